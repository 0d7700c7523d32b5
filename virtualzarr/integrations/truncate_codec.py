"""The codec `virtualzarr.truncate` for zarr-python and numcodecs, which find it by entry point."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np
from numcodecs.abc import Codec
from numcodecs.compat import ensure_contiguous_ndarray, ndarray_copy

NAME = "virtualzarr.truncate"


class NumcodecsTruncate(Codec):  # type: ignore[misc]
    """For Zarr v2: only the first bytes count.

    Parameters
    ----------
    nbytes : int
        How many.
    longest : int, optional
        Bytes in the longest chunk; not used.

    Examples
    --------
    >>> bytes(NumcodecsTruncate(2).decode(b"abc"))
    b'ab'
    """

    codec_id = NAME

    def __init__(self, nbytes: int, longest: int = 0) -> None:
        self.nbytes = nbytes
        self.longest = longest

    def encode(self, buf: Any) -> Any:
        """Return what is given."""
        return buf

    def decode(self, buf: Any, out: Any = None) -> Any:
        """Return the first bytes."""
        data = ensure_contiguous_ndarray(buf).view(np.uint8)
        if len(data) < self.nbytes:
            raise ValueError(f"{NAME}: decoded {len(data)} bytes, the block needs {self.nbytes}")
        return ndarray_copy(data[: self.nbytes], out)


def __getattr__(name: str) -> Any:
    # numcodecs must be able to load its codec where there is no zarr-python, or an older one.
    if name != "ZarrTruncate":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return _zarr_codec()


def _zarr_codec() -> type:
    # Defined inside, since its base class exists in zarr-python 3 only; numcodecs may be alone.
    from zarr.abc.codec import BytesBytesCodec

    @dataclass(frozen=True)
    class ZarrTruncate(BytesBytesCodec):
        """For Zarr v3: only the first bytes count, as many as the chunk has."""

        is_fixed_size: ClassVar[bool] = False  # type: ignore[misc]
        longest: int = 0

        @classmethod
        def from_dict(cls, data: dict[str, Any]) -> Self:
            return cls(**(data.get("configuration") or {}))

        def to_dict(self) -> dict[str, Any]:
            configuration = {"configuration": {"longest": self.longest}} if self.longest else {}
            return {"name": NAME, **configuration}

        def compute_encoded_size(self, input_byte_length: int, chunk_spec: Any) -> int:
            return input_byte_length

        def _decode_sync(self, chunk_bytes: Any, chunk_spec: Any) -> Any:
            # zarr-python 3.0 has numpy dtypes here, later versions their own.
            native = getattr(chunk_spec.dtype, "to_native_dtype", None)
            itemsize = (chunk_spec.dtype if native is None else native()).itemsize
            # zarr-python passes the shape of the chunk; numcodecs does not, so that v2 has it in
            # `nbytes`.
            nbytes = math.prod(chunk_spec.shape) * itemsize
            if len(chunk_bytes) < nbytes:
                raise ValueError(
                    f"{NAME}: decoded {len(chunk_bytes)} bytes, the block needs {nbytes}"
                )
            return chunk_bytes[:nbytes]

        async def _decode_single(self, chunk_bytes: Any, chunk_spec: Any) -> Any:
            return self._decode_sync(chunk_bytes, chunk_spec)

        def _encode_sync(self, chunk_bytes: Any, chunk_spec: Any) -> Any:
            return chunk_bytes

        async def _encode_single(self, chunk_bytes: Any, chunk_spec: Any) -> Any:
            return chunk_bytes

    globals()["ZarrTruncate"] = ZarrTruncate
    return ZarrTruncate
