"""Foreign file formats: each is scanned from its own index into a group of virtual arrays."""

from virtualzarr.formats.registry import FORMATS, Format, begins, register

__all__ = ["FORMATS", "Format", "begins", "register"]
