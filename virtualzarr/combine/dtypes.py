"""Inputs of several data types: which one holds the values of all, and what casts to it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from virtualzarr.array import Array
from virtualzarr.codecs import Codec, Pipeline, make
from virtualzarr.errors import UnsupportedError
from virtualzarr.manifest import Decoder
from virtualzarr.metadata.dtypes import vlen_kind
from virtualzarr.metadata.portable import mask_of

_MASKS = ("_FillValue", "missing_value")


def common_dtype(dtypes: Sequence[np.dtype[Any]]) -> np.dtype[Any] | None:
    """Return the data type that holds every value of some others, None if there is none.

    Numbers are promoted as numpy does, unless some could not be told apart any more; texts and
    bytes to the longest; times to the finest unit.

    Examples
    --------
    >>> [common_dtype([np.dtype(name), np.dtype("f4")]) for name in ("i4", "i8")]
    [dtype('float64'), None]
    """
    common: np.dtype[Any] | None = dtypes[0]
    for dtype in dtypes[1:]:
        if common is not None and common is not dtype:
            common = _promote(common, dtype)
    return common


def _promote(a: np.dtype[Any], b: np.dtype[Any]) -> np.dtype[Any] | None:
    if a == b:
        return a if vlen_kind(a) == vlen_kind(b) else None
    kinds = {a.kind, b.kind}
    if not (kinds <= set("iufc") or (len(kinds) == 1 and kinds < set("SUMm"))):
        return None
    try:
        common = np.promote_types(a, b)
    except TypeError:  # months are of no fixed length
        return None
    return common if _can_hold(common, a) and _can_hold(common, b) else None


def _can_hold(wide: np.dtype[Any], narrow: np.dtype[Any]) -> bool:
    """Whether a data type has every number that another has."""
    if narrow.kind not in "iu" or wide.kind not in "fc":
        return True
    bits = 8 * narrow.itemsize - (narrow.kind == "i")
    return bits <= np.finfo(wide).nmant + 1


def iter_inexact_masks(array: Array, dtype: np.dtype[Any]) -> Iterator[tuple[str, Any]]:
    """Yield attributes whose number, the mark of missing values, means none after a cast.

    1e20 is not a float32: what is marked by the float32 next to it is another number in float64.
    """
    if dtype == array.dtype or array.dtype.kind not in "fc":
        return
    for name in _MASKS:
        value = mask_of(array.metadata) if name == "_FillValue" else array.attrs.get(name)
        for number in value if isinstance(value, list) else [value]:
            if isinstance(number, int | float | np.number):
                with np.errstate(all="ignore"):
                    element = array.dtype.type(number)
                if element == element and complex(element) != complex(number):
                    yield name, number


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
    if any(one.hasobject for one in stored):
        raise UnsupportedError(
            "the longest text of variable length is not known without reading; name a data type "
            "with a length, such as 'U20', or cast what is read"
        )
    return np.result_type(*(np.zeros((), one).astype(dtype) for one in stored))


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
    codec = _make_cast_codec(array.dtype, dtype, lossy)
    metadata, manifest = array.metadata, array.manifest
    fill = metadata.fill_value
    if fill is not None:
        with np.errstate(all="ignore"):
            fill = np.asarray(fill, array.dtype).astype(dtype)[()]
    decoders = [Decoder(_after(codec, d.pipeline), d.shape) for d in manifest.decoders]
    metadata = metadata.replace(
        dtype=dtype, fill_value=fill, pipeline=_after(codec, metadata.pipeline), extra={}
    )
    return array.replace(metadata, manifest.replace(decoders=decoders))


def _after(codec: Codec, pipeline: Pipeline) -> Pipeline:
    return Pipeline([codec, *pipeline.codecs])


def _make_cast_codec(stored: np.dtype[Any], dtype: np.dtype[Any], lossy: bool) -> Codec:
    if lossy:
        return make("virtualzarr.astype", data_type=stored.str, lossy=True)
    if stored.kind in "iuf" and dtype.kind in "iuf":
        return make("cast_value", data_type=stored.name)
    return make("virtualzarr.astype", data_type=stored.str)
