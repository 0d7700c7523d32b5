"""Published references that live on: appended to, renamed, checked, and converted."""

from virtualzarr.growing.appending import append
from virtualzarr.growing.checking import CheckReport, check
from virtualzarr.growing.moving import convert, rename

__all__ = ["CheckReport", "append", "check", "convert", "rename"]
