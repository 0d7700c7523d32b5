"""The `vlen-utf8` and `vlen-bytes` codecs: a count, then length and bytes of each element."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from virtualzarr.codecs.core.base import ArrayBytes, Block, Buffer, ChunkSpec, as_u1
from virtualzarr.codecs.core.scratch import allocate
from virtualzarr.redaction import take_message


class _Vlen(ArrayBytes):
    """Elements in C order, lengths as little-endian u32; source: zarr-extensions, codecs/vlen-*."""

    element: type
    noun: str
    decoding_fields: ClassVar[tuple[str, ...] | None] = ()

    def validate(self) -> None:
        """Check that there is no configuration."""
        self.check_members()

    def _value(self, raw: bytes) -> Any:
        raise NotImplementedError

    def _raw(self, value: Any) -> bytes:
        if value is None or (isinstance(value, (int, float)) and value == 0):
            return b""
        raise self.error(f"can only encode {self.noun}, not {type(value).__name__}")

    def decode(self, data: Buffer, spec: ChunkSpec) -> Block:
        """Return an array of the elements, of the array's own dtype."""
        if spec.dtype.kind not in "OT":
            raise self.invalid(f"cannot decode to {spec.dtype}")
        raw = bytes(as_u1(data))
        count = int.from_bytes(raw[:4], "little")
        if len(raw) < 4 or count != spec.size:
            raise self.error(f"holds {count} elements, the block needs {spec.size}")
        values = allocate((count,), object)
        # One after another, as every length says where the next lies; the bounds are checked before
        # bytes are cut.
        position = 4
        for index in range(count):
            start = position + 4
            position = start + int.from_bytes(raw[start - 4 : start], "little")
            if position > len(raw) or start > len(raw):
                raise self.error(f"the data are truncated in element {index} of {count}")
            values[index] = self._value(raw[start:position])
        if position != len(raw):
            raise self.error(f"{len(raw) - position} bytes too many after the last element")
        return values.reshape(spec.shape).astype(spec.dtype, copy=False)

    def encode(self, block: Block, spec: ChunkSpec) -> Buffer:
        """Return count, lengths and bytes."""
        parts = [spec.size.to_bytes(4, "little")]
        for value in np.asarray(block, object).reshape(-1):
            raw = self._raw(value)
            parts += (len(raw).to_bytes(4, "little"), raw)
        return b"".join(parts)


class VlenUtf8(_Vlen):
    """Strings as UTF-8 (``vlen-utf8``); a missing one (None, 0) counts as empty."""

    element, noun = str, "strings"

    def _value(self, raw: bytes) -> str:
        try:
            return raw.decode()
        except UnicodeDecodeError as error:
            raise self.error(f"an element is not UTF-8 ({take_message(error)})") from error

    def _raw(self, value: Any) -> bytes:
        if isinstance(value, str):
            try:
                return value.encode()
            except UnicodeEncodeError as error:
                raise self.error(f"a string has no form in UTF-8 ({error})") from error
        return super()._raw(value)


class VlenBytes(_Vlen):
    """Byte strings (``vlen-bytes``); a missing one (None, 0) counts as empty."""

    element, noun = bytes, "bytes"

    def _value(self, raw: bytes) -> bytes:
        return raw

    def _raw(self, value: Any) -> bytes:
        if isinstance(value, (bytes, bytearray, memoryview)):
            return bytes(value)
        return super()._raw(value)
