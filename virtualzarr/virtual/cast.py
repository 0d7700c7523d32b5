"""Casts to other data types, done when chunks are decoded."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from virtualzarr.array.array import Array
from virtualzarr.codecs import Codec, Pipeline, make
from virtualzarr.errors import UnsupportedError
from virtualzarr.manifest import Decoder


def resolve_dtype(dtype: Any, stored: Sequence[np.dtype[Any]]) -> np.dtype[Any]:
    """Return a data type with the length or the unit that numpy would choose in ``astype``.

    For numpy, `str` and `bytes` (text of length 0) and times without a unit mean "whatever the
    elements need".

    Parameters
    ----------
    dtype : dtype-like
    stored : sequence of dtype
        Those of the elements, which one data type is to hold.

    Raises
    ------
    UnsupportedError
        The length is that of the longest text of variable length: only reading would tell.

    Examples
    --------
    >>> resolve_dtype(str, [np.dtype("U4"), np.dtype("U7")]), resolve_dtype("S", [np.dtype("i2")])
    (dtype('<U7'), dtype('S6'))
    """
    dtype = np.dtype(dtype)
    needs_length = dtype.kind in "SUV" and not dtype.itemsize
    if not needs_length and dtype not in (np.dtype("M8"), np.dtype("m8")):
        return dtype
    if any(each.hasobject for each in stored):
        raise UnsupportedError(
            "the longest text of variable length is not known without reading; name a data type "
            "with a length, such as 'U20', or cast what is read"
        )
    # A cast of one zero lets numpy itself say how long the text of a number may become.
    return np.result_type(*(np.zeros((), each).astype(dtype) for each in stored))


def cast_array(array: Array, dtype: np.dtype[Any], *, lossy: bool = False) -> Array:
    """Return a virtual array of another data type; its chunks are cast when they are decoded.

    Parameters
    ----------
    array : Array
    dtype : dtype
        Without a length or unit, see `resolve_dtype`.
    lossy : bool
        Cast as numpy's ``astype``, whatever becomes of the values. Otherwise, a value that is not
        the same afterwards is an error when it is read.

    Raises
    ------
    UnsupportedError
        One of the two is of variable length, or a compound; or text is to become numbers.
    """
    dtype = resolve_dtype(dtype, [array.dtype])
    if array.dtype == dtype:
        return array
    text = array.dtype.kind in "SU" and dtype.kind not in "SU"  # which may be no number
    if text or array.dtype.hasobject or dtype.hasobject or array.dtype.names or dtype.names:
        raise UnsupportedError(
            f"{array.dtype} is not cast to {dtype} without reading; cast what is read"
        )
    codec = _cast_codec(array.dtype, dtype, lossy)
    fill = array.fill_value
    if fill is not None:
        with np.errstate(all="ignore"):
            # Missing chunks never meet the codec: the fill value is cast here as their elements
            # would be.
            fill = np.asarray(fill, array.dtype).astype(dtype)[()]
    return with_codec(array, codec, dtype=dtype, fill_value=fill, extra={})


def with_codec(array: Array, codec: Codec, **changes: Any) -> Array:
    """Return a virtual array decoded by one codec more, with some members of metadata changed."""
    metadata, manifest = array.metadata, array.manifest
    # The first codec of a pipeline is the last to decode.
    pipeline = Pipeline([codec, *metadata.pipeline.codecs])
    decoders = [Decoder(Pipeline([codec, *d.pipeline.codecs]), d.shape) for d in manifest.decoders]
    metadata = metadata.replace(pipeline=pipeline, **changes)
    return array.replace(metadata, manifest.replace(decoders=decoders))


def _cast_codec(stored: np.dtype[Any], dtype: np.dtype[Any], lossy: bool) -> Codec:
    if lossy:
        return make("virtualzarr.astype", data_type=stored.str, lossy=True)
    # Those of C's `long double`, of 16 bytes, Zarr has no name for.
    if all(each.kind in "iuf" and each.itemsize <= 8 for each in (stored, dtype)):
        return make("cast_value", data_type=stored.name)
    return make("virtualzarr.astype", data_type=stored.str)
