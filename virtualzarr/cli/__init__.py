"""The command line: scan files into references, look into files, and a demonstration."""

from virtualzarr.cli.parser import main

__all__ = ["main"]
