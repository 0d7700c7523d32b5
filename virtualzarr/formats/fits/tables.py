"""Binary tables, as they are stored."""

from __future__ import annotations

from virtualzarr.array import Array
from virtualzarr.errors import UnsupportedError
from virtualzarr.formats.fits.columns import columns, row_dtype, row_length
from virtualzarr.formats.fits.header import Cards
from virtualzarr.formats.fits.images import lengths
from virtualzarr.formats.plain import plain_array
from virtualzarr.manifest import Source


def table(cards: Cards, source: Source, offset: int, path: str) -> Array:
    """Return a binary table as a structured array, as it is stored.

    Source: FITS standard 4.0, section 7.3.
    """
    if cards.get("ZTABLE") is True:
        raise UnsupportedError("compressed FITS tables; decompress them (funpack)")
    found = columns(cards)
    for column in found:
        if column.letter in "PQ" and column.count:
            raise UnsupportedError(
                f"variable-length arrays, in the column {column.name!r} of the FITS table"
            )
    dtype = row_dtype(found, row_length(cards))
    return plain_array(
        source, offset, dtype, (lengths(cards)[1],), path=path, dimension_names=("row",)
    )
