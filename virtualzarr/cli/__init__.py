"""The command line ``virtualzarr``: a module for each command in `commands`."""

from virtualzarr.cli.parser import main

__all__ = ["main"]
