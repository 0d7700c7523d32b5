"""v2 metadata of codecs: dtype, order, filters and compressor as a chain, and back.

A v2 document has a dtype with a byte order, a memory order, filters and a compressor. In v3 terms
the memory order is a transpose before everything, the byte order belongs to the codec that turns
the array into bytes, and the filters and the compressor follow each other.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from virtualzarr.codecs.bytes import Bytes
from virtualzarr.codecs.core.base import ArrayArray, ArrayBytes, ChunkSpec, Codec, Endian
from virtualzarr.codecs.core.byte_order import has_order, native
from virtualzarr.codecs.core.registry import codec_from_v2, make
from virtualzarr.codecs.transpose import Transpose
from virtualzarr.errors import MetadataError, UnsupportedError


def codecs_from_v2(
    filters: Sequence[Mapping[str, Any]] | None,
    compressor: Mapping[str, Any] | None,
    order: str,
    dtype: np.dtype[Any],
    shape: Sequence[int] | None,
) -> list[Codec]:
    """Return the codecs that v2 members stand for; see `Pipeline.from_v2`."""
    if order not in ("C", "F"):
        raise MetadataError(f"order must be 'C' or 'F', not {order!r}")
    codecs: list[Codec] = []
    ndim = None if shape is None else len(shape)
    configs = [*(filters or ()), *([] if compressor is None else [compressor])]
    # The order F of v2 is a transpose before all other codecs; of one axis it is none.
    if order == "F" and (ndim is None or ndim > 1) and not _is_nested(configs):
        axes: Any = "F" if ndim is None else list(reversed(range(ndim)))
        codecs.append(make("transpose", order=axes))
    stored = dtype
    serialized = False
    for config in configs:
        codec = codec_from_v2(config)
        if isinstance(codec, ArrayArray) and not serialized:
            stored = _check_filter(codec, config, stored)
            codec = _simplify(codec, shape, stored.itemsize)
        elif isinstance(codec, ArrayArray):
            raise UnsupportedError(
                f"v2 filter {config['id']} comes after a codec of bytes; only filters of arrays "
                "before it are supported"
            )
        elif isinstance(codec, ArrayBytes):
            if serialized:
                raise UnsupportedError(f"v2 codec {config['id']} comes after a codec of bytes")
            # Such codecs write native numbers: nothing says that the array's byte order is theirs.
            _check_native(codec, config, stored)
            codec = _simplify(codec, shape, stored.itemsize)
            serialized = True
        # The first codec of bytes: before it, v2 implies that elements are written as they lie in
        # memory.
        elif not serialized:
            codecs.append(_bytes_codec(stored))
            serialized = True
        # v3 documents need something of this codec that v2 leaves to the dtype.
        if codec.name == "blosc":
            codec = codec.resolve(ChunkSpec((1,), native(stored)))
        codecs.append(codec)
    if not serialized:
        codecs.append(_bytes_codec(stored))
    return codecs


_NESTED = ("json2", "msgpack2")


def _is_nested(configs: Sequence[Any]) -> bool:
    """Whether blocks are nested lists: numcodecs makes them by index, whatever the order."""
    return bool(configs) and isinstance(configs[0], Mapping) and configs[0].get("id") in _NESTED


def _bytes_codec(stored: np.dtype[Any]) -> Codec:
    """Return the `bytes` codec for a dtype with the byte order of what is stored."""
    if not has_order(stored) or stored.hasobject:
        return make("bytes")
    orders: tuple[tuple[str, Endian], ...] = (("little", "<"), ("big", ">"))
    for endian, sign in orders:
        # Also of structured dtypes, if all of their fields have one order.
        if stored == stored.newbyteorder(sign):
            return make("bytes", endian=endian)
    return make("bytes")  # a structured dtype of mixed byte order keeps that of its fields


def _check_filter(codec: Codec, config: Mapping[str, Any], stored: np.dtype[Any]) -> np.dtype[Any]:
    """Return the dtype behind a filter, with its byte order; the filter must fit the one before."""
    outer = next((key for key in ("dtype", "decode_dtype") if config.get(key)), None)
    if outer is not None and np.dtype(config[outer]) != stored:
        raise UnsupportedError(
            f"v2 filter {config['id']} is set up for {np.dtype(config[outer]).str}, but the array "
            f"there is {stored.str}: what it should give is not defined"
        )
    inner = next((key for key in ("astype", "encode_dtype") if config.get(key)), None)
    if inner is not None:
        return np.dtype(config[inner])
    assert isinstance(codec, ArrayArray)
    spec = ChunkSpec((1,), native(stored))
    encoded = spec if isinstance(codec, Transpose) else codec.encode_spec(spec)
    return stored if encoded.dtype == spec.dtype else encoded.dtype


def _check_native(codec: Codec, config: Mapping[str, Any], stored: np.dtype[Any]) -> None:
    """Refuse a codec of arrays whose result would be taken for the other byte order."""
    declared = config.get("dtype")
    if declared is not None and np.dtype(declared) == stored:
        return
    if has_order(stored) and stored != native(stored):
        raise UnsupportedError(
            f"v2 codec {config['id']} decodes to native numbers, but the array is {stored.str}"
        )


def _simplify(codec: Codec, shape: Sequence[int] | None, itemsize: int) -> Codec:
    """Drop the shape and dtype that imagecodecs' v2 codecs repeat from the array."""
    if not codec.name.startswith("imagecodecs_"):
        return codec
    fields = {key: value for key, value in codec.configuration.items() if key != "squeeze"}
    declared = fields.get("shape")
    if declared is not None and shape is not None and codec.name != "imagecodecs_eer":
        lead = len(shape) - len(declared)
        same = lead >= 0 and tuple(shape[lead:]) == tuple(declared) and math.prod(shape[:lead]) == 1
        if same and fields.get("axis", -1) < 0:
            del fields["shape"]
    fields.pop("dtype", None)
    if fields.get("itemsize") == itemsize:
        del fields["itemsize"]
    return make(codec.name, **fields)


def codecs_to_v2(
    chain: Sequence[Codec], dtype: np.dtype[Any], ndim: int, shape: tuple[int, ...] | None
) -> dict[str, Any]:
    """Return the v2 members of a chain of codecs; see `Pipeline.to_v2`."""
    codecs = list(chain)
    order = _memory_order(codecs, ndim)
    serializer = next(codec for codec in codecs if isinstance(codec, ArrayBytes))
    endian: Endian = "<"
    if isinstance(serializer, Bytes):
        endian = ">" if serializer.configuration.get("endian") == "big" else "<"
    spec = ChunkSpec(shape if shape is not None else (1,) * ndim, native(dtype))
    # The other codecs come behind the transpose, and see its shape.
    if order == "F":
        spec = ChunkSpec(spec.shape[::-1], spec.dtype)
    stored = _declare_dtype(
        serializer, spec.dtype, [c for c in codecs if isinstance(c, ArrayArray)]
    )
    configs: list[dict[str, Any]] = []
    for codec in codecs:
        if isinstance(codec, Bytes):
            continue
        codec = codec.resolve(spec)
        config = codec.to_v2(spec, endian)
        if shape is None and "shape" in config and "shape" not in codec.configuration:
            raise UnsupportedError(f"codec {codec.name}: its v2 form needs the chunk shape")
        configs.append(config)
        if isinstance(codec, ArrayArray):
            spec = codec.encode_spec(spec)
    # v2 keeps one compressor apart from the filters; the two lists are applied one after the other.
    last = configs.pop() if configs and codecs[-1].compressor else None
    return {"dtype": stored, "filters": configs or None, "compressor": last, "order": order}


def _memory_order(codecs: list[Codec], ndim: int) -> str:
    """Take the transposes off the front of a chain and return the memory order they amount to."""
    axes = tuple(range(ndim))
    while codecs and isinstance(codecs[0], Transpose):
        axes = tuple(axes[axis] for axis in codecs.pop(0).axes(ndim))  # type: ignore[attr-defined]
    if any(isinstance(codec, Transpose) for codec in codecs):
        raise UnsupportedError("a transpose behind other codecs has no form in v2 metadata")
    if axes == tuple(range(ndim)):
        return "C"
    if any(codec.v2_id in _NESTED for codec in codecs):
        raise UnsupportedError("nested lists of a transposed block have no form in v2 metadata")
    if axes == tuple(reversed(range(ndim))):
        return "F"
    raise UnsupportedError(f"a transpose to {list(axes)} has no form in v2 metadata, only C and F")


def _declare_dtype(
    serializer: ArrayBytes, dtype: np.dtype[Any], filters: list[ArrayArray]
) -> np.dtype[Any]:
    """Return the array's dtype as a v2 document declares it."""
    if not isinstance(serializer, Bytes) or dtype.hasobject:
        return dtype
    if serializer.configuration.get("endian") is None and dtype.names is None and filters:
        return dtype  # filters made single bytes of it
    return serializer.encode_dtype(dtype)
