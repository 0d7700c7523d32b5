"""DMR++ documents of OPeNDAP: chunk references into another file, in XML."""

from virtualzarr.formats.dmrpp.scanner import scan

__all__ = ["scan"]
