"""Copies of arrays and hierarchies, with other chunks, codecs or formats, in bounded memory."""

from virtualzarr.copying.api import CopyReport, copy

__all__ = ["CopyReport", "copy"]
