"""Rows of FITS tables that are not elements as they are: of variable length, or written as text."""

from __future__ import annotations

import re

import numpy as np

from virtualzarr.codecs.core.base import Block, Buffer, ChunkSpec, as_u1
from virtualzarr.codecs.fits.tiles import ReadOnlyCodec
from virtualzarr.errors import CodecError

_FORM = re.compile(r"([AIFED])([0-9]{1,9})(?:\.([0-9]{1,9}))?")


class Cell(ReadOnlyCodec):
    """One array of variable length, all elements of a chunk of one cell.

    Source: FITS standard 4.0, section 7.3.5. Members are `data_type`, as stored; `text`, optional,
    for characters, which end at the first NUL; and `scale` and `zero`, optional: elements are then
    float64, or unsigned where just their offset says so.
    """

    def validate(self) -> None:
        """Check the members."""
        fields = self.configuration
        if not {"data_type"} <= set(fields) <= {"data_type", "text", "scale", "zero"}:
            raise self.invalid("needs data_type, and knows text, scale and zero")
        try:
            self._dtype = np.dtype(fields["data_type"])
        except TypeError as error:
            raise self.invalid(f"data_type: {error}") from error
        if self._dtype.hasobject or not self._dtype.itemsize:
            raise self.invalid(f"there are no elements of type {self._dtype}")
        for name in ("scale", "zero"):
            if not isinstance(fields.get(name, 0), int | float):
                raise self.invalid(f"{name} must be a number, not {fields[name]!r}")

    def decode(self, data: Buffer, spec: ChunkSpec) -> Block:
        """Return the array as the only element of an array of objects."""
        flat = as_u1(data)
        if spec.size != 1 or flat.size % self._dtype.itemsize:
            raise self.error(f"{flat.size} bytes are no array of {self._dtype} of one cell")
        made = np.empty(1, object)
        if self.configuration.get("text"):
            made[0] = flat.tobytes().split(b"\0")[0].rstrip(b" ").decode("latin-1")
        else:
            made[0] = self._meant(flat.view(self._dtype))
        return made.reshape(spec.shape)

    def _meant(self, stored: Block) -> Block:
        fields = self.configuration
        values = stored.astype(stored.dtype.newbyteorder("="))
        scale, zero = fields.get("scale", 1), fields.get("zero", 0)
        if scale == 1 and zero == 0:
            return values
        size = values.dtype.itemsize
        if scale == 1 and values.dtype.kind == "i" and zero == 2 ** (8 * size - 1):
            return values.view(f"u{size}") ^ np.array(zero, f"u{size}")
        with np.errstate(all="ignore"):
            return values.astype(np.float64) * scale + zero


class Text(ReadOnlyCodec):
    """Rows of characters with numbers in fixed places.

    Source: FITS standard 4.0, section 7.2. Members are `width`, the bytes of a row, and `fields`, a
    list of ``[name, first byte, format, null]`` in the order of the array's fields: the format is
    FORTRAN's (A8, I6, F9.3), and null the text of values that are not there, which become NaN, or
    0 in integers, as empty fields do.
    """

    def validate(self) -> None:
        """Check that the fields lie in the row."""
        if set(self.configuration) != {"width", "fields"}:
            raise self.invalid("the members are width and fields")
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
        made = np.zeros(spec.size, spec.dtype)
        for name, first, form, null in self.configuration["fields"]:
            kind, size, decimals = self._parts(form)
            texts = np.ascontiguousarray(rows[:, first : first + size]).view(f"S{size}")[:, 0]
            if kind == "A":
                made[name] = texts
                continue
            try:
                made[name] = _numbers(texts, kind, decimals, null)
            except (ValueError, OverflowError) as error:
                raise CodecError(f"{self.name}: the column {name!r}: {error}") from error
        return made.reshape(spec.shape)

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
    texts = np.char.replace(texts, b"D", b"E")
    values = texts.astype(np.float64)
    if decimals:
        # The standard has an implied decimal point there, and most readers do not know that.
        implied = (np.char.find(texts, b".") < 0) & np.isfinite(values) & (values != 0)
        if implied.any():
            raise ValueError(f"{texts[implied][0]!r} has no decimal point")
    return values
