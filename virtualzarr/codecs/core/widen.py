"""Pipelines of blocks with an axis of length 1 more or less: the bytes are the same."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from virtualzarr.codecs.core.base import Codec
from virtualzarr.codecs.core.pipeline import Pipeline
from virtualzarr.codecs.core.registry import make
from virtualzarr.codecs.transpose import Transpose

_FLAT = frozenset(
    [
        *("bytes", "vlen-utf8", "vlen-bytes", "numcodecs.delta", "numcodecs.fixedscaleoffset"),
        *("numcodecs.quantize", "numcodecs.astype", "numcodecs.bitround", "numcodecs.packbits"),
        *("imagecodecs_quantize", "imagecodecs_bitorder", "imagecodecs_bitshuffle"),
        *("imagecodecs_float24", "imagecodecs_bfloat16", "imagecodecs_packints"),
        *("bitround", "packbits", "cast_value", "scale_offset", "virtualzarr.strings"),
        *("virtualzarr.astype", "virtualzarr.constant", "virtualzarr.unpack", "virtualzarr.time"),
    ]
)
"""Codecs of arrays that see one element after another, and no axes."""

_ALONG_AXIS = frozenset(
    ["imagecodecs_delta", "imagecodecs_xor", "imagecodecs_byteshuffle", "imagecodecs_floatpred"]
)
"""Codecs that work along one axis, the last unless they say which."""

_IMAGES = frozenset(
    [
        *("apng", "avif", "bmp", "ccittfax3", "ccittfax4", "ccittrle", "heif", "htj2k", "jpeg"),
        *("jpeg2k", "jpegls", "jpegxl", "jpegxr", "jpegxs", "lerc", "ljpeg", "png", "qoi", "spng"),
        "webp",
    ]
)
"""Image formats of imagecodecs, which take axes of length 1 before the image for granted."""


@lru_cache(maxsize=1024)
def widen_pipeline(pipeline: Pipeline, axis: int, ndim: int) -> Pipeline:
    """Return a pipeline that decodes the same bytes to a block with one axis more.

    Parameters
    ----------
    pipeline : Pipeline
        For blocks of `ndim` axes.
    axis : int
        Where the new axis, of length 1, stands in the new block.
    ndim : int

    Examples
    --------
    >>> chain = Pipeline([make("transpose", order=[1, 0]), make("bytes", endian="little")])
    >>> widen_pipeline(chain, 0, 2)
    Pipeline([transpose(order=[2, 1, 0]), bytes(endian='little')])
    """
    # Filters along an axis, and images, would take the new axis for one of theirs.
    ordered = [codec.name for codec in pipeline.codecs if _is_ordered(codec)]
    chain: list[Codec] = []
    index = axis  # where the new axis is at this step of the chain
    for codec in pipeline.codecs:
        if isinstance(codec, Transpose):
            order, index = _widen_order(codec.axes(ndim), index, first=bool(ordered))
            chain.append(make("transpose", order=order))
        elif _is_ordered(codec):
            if index:
                # In front of all others, the new axis is not in the codec's way.
                chain.append(
                    make("transpose", order=[index, *range(index), *range(index + 1, ndim + 1)])
                )
                index = 0
            chain.append(_shift_axis(codec))
        elif codec.kind == "bytes_bytes" or codec.name in _FLAT:
            chain.append(codec)
        else:
            # Whatever depends on the number of axes goes on seeing those it knows.
            return Pipeline([make("virtualzarr.repeat", axis=axis), *pipeline.codecs])
    return Pipeline(chain)


@lru_cache(maxsize=1024)
def narrow_pipeline(pipeline: Pipeline, axis: int, ndim: int) -> Pipeline | None:
    """Return a pipeline that decodes the same bytes to a block without one of its axes.

    Parameters
    ----------
    pipeline : Pipeline
        For blocks of `ndim` axes.
    axis : int
        The axis to leave out, of length 1.
    ndim : int

    Returns
    -------
    Pipeline or None
        None if what a codec decodes may depend on the number of axes.

    Examples
    --------
    >>> chain = Pipeline([make("transpose", order=[1, 0]), make("bytes", endian="little")])
    >>> narrow_pipeline(chain, 0, 2)
    Pipeline([bytes(endian='little')])
    """
    chain: list[Codec] = []
    position = axis
    for codec in pipeline.codecs:
        if isinstance(codec, Transpose):
            order = codec.axes(ndim)
            narrow = [old - (old > position) for old in order if old != position]
            # A transpose that has no effect any more is left out: metadata of equal arrays stay
            # equal.
            if narrow != sorted(narrow):
                chain.append(make("transpose", order=narrow))
            position = order.index(position)
        elif codec.kind == "bytes_bytes" or codec.name in _FLAT:
            chain.append(codec)
        else:
            return None
    return Pipeline(chain)


def _is_ordered(codec: Codec) -> bool:
    """Whether a codec cares which axis is which."""
    if codec.kind == "bytes_bytes":
        return False
    return codec.name in _ALONG_AXIS or codec.name.removeprefix("imagecodecs_") in _IMAGES


def _shift_axis(codec: Codec) -> Codec:
    """Return a codec that counts one more axis before its own."""
    axis = codec.configuration.get("axis", -1)
    if codec.name not in _ALONG_AXIS or axis < 0 or codec.configuration.get("shape") is not None:
        return codec
    return make(codec.name, **{**codec.configuration, "axis": axis + 1})


def _widen_order(order: Sequence[int], position: int, *, first: bool) -> tuple[list[int], int]:
    """Return the order with axis `position` put in, and where that is among the encoded axes.

    The order that reverses all axes goes on reversing them all: Zarr v2 has a word for that.
    """
    ndim = len(order)
    target = position
    if first:
        target = 0
    elif ndim > 1 and list(order) == list(reversed(range(ndim))):
        target = ndim - position
    wide = [axis + (axis >= position) for axis in order]
    return [*wide[:target], position, *wide[target:]], target
