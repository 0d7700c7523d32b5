"""DMR++: documents of OPeNDAP that say where the chunks of the variables of another file are."""

from virtualzarr.formats.dmrpp.scan import scan

__all__ = ["scan"]
