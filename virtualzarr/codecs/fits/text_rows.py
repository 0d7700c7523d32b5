"""Rows of FITS tables that are written as text."""

from __future__ import annotations

import re

import numpy as np

from virtualzarr.codecs.core.base import Block, Buffer, ChunkSpec, as_u1
from virtualzarr.codecs.fits.read_only import ReadOnlyCodec
from virtualzarr.errors import CodecError

_FORM = re.compile(r"([AIFED])([0-9]{1,9})(?:\.([0-9]{1,9}))?")


class Text(ReadOnlyCodec):
    """Rows of characters with numbers in fixed places.

    Source: FITS standard 4.0, section 7.2. Members are `width`, the bytes of a row, and `fields`, a
    list of ``[name, first byte, format, null]`` in the order of the array's fields: the format is
    FORTRAN's (A8, I6, F9.3), and null the text of values that are not there, which become NaN, or
    0 in integers, as empty fields do.
    """

    def validate(self) -> None:
        """Check that the fields lie in the row."""
        self.check_members(["width", "fields"])
        width, fields = self.configuration["width"], self.configuration["fields"]
        for field in fields:
            name, first, form, null = field
            match = _FORM.fullmatch(form)
            if match is None or not 0 <= first <= first + int(match[2]) <= width:
                raise self.invalid(f"the field {field!r} is not within {width} bytes")
            if not isinstance(name, str) or not isinstance(null, str | None):
                raise self.invalid(f"the field {field!r} has no name, or another null than text")

    def compute_encoded_size(self, spec: ChunkSpec) -> int | None:
        """Return the bytes of all rows."""
        size: int = spec.size * self.configuration["width"]
        return size

    def decode(self, data: Buffer, spec: ChunkSpec) -> Block:
        """Return the rows."""
        flat, width = as_u1(data), self.configuration["width"]
        if flat.size != spec.size * width:
            raise self.error(f"{flat.size} bytes for {spec.size} rows of {width}")
        rows = flat.reshape(spec.size, width)
        table = np.zeros(spec.size, spec.dtype)
        for name, first, form, null in self.configuration["fields"]:
            kind, size, decimals = self._parts(form)
            texts = np.ascontiguousarray(rows[:, first : first + size]).view(f"S{size}")[:, 0]
            if kind == "A":
                table[name] = texts
                continue
            try:
                table[name] = _numbers(texts, kind, decimals, null)
            except (ValueError, OverflowError) as error:
                raise CodecError(f"{self.name}: the column {name!r}: {error}") from error
        return table.reshape(spec.shape)

    @staticmethod
    def _parts(form: str) -> tuple[str, int, int]:
        match = _FORM.fullmatch(form)
        assert match is not None
        return match[1], int(match[2]), int(match[3] or 0)


def _numbers(texts: Block, kind: str, decimals: int, null: str | None) -> Block:
    """Return the numbers that texts are."""
    texts = np.char.strip(texts)
    absent = texts == b""
    if null is not None:
        absent |= texts == null.strip().encode("latin-1")
    if kind == "I":
        return np.where(absent, b"0", texts).astype(np.int64)
    texts = np.char.upper(np.where(absent, b"nan", texts).astype("S"))
    # FORTRAN writes exponents of double precision with D.
    texts = np.char.replace(texts, b"D", b"E")
    values = texts.astype(np.float64)
    if decimals:
        # The standard has an implied decimal point there, and most readers do not know that.
        implied = (np.char.find(texts, b".") < 0) & np.isfinite(values) & (values != 0)
        if implied.any():
            raise ValueError(f"{texts[implied][0]!r} has no decimal point")
    return values
