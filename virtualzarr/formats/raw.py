"""Raw binary files without a header: shape and type are given by the caller."""

from __future__ import annotations

import math
import operator
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from virtualzarr.errors import SourceError
from virtualzarr.formats.headers import file_size
from virtualzarr.formats.plain import check_dtype, fortran, plain_array
from virtualzarr.hierarchy.group import Group
from virtualzarr.keywords import strict_keywords
from virtualzarr.manifest import Source


@strict_keywords()
def virtualize_raw(
    path_or_url: Any,
    dtype: Any,
    shape: Sequence[int],
    *,
    offset: int = 0,
    order: str | Sequence[int] = "C",
    name: str = "data",
    dims: Sequence[str | None] | None = None,
    attributes: Mapping[str, Any] | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> Group:
    """Open a file of plain numbers as a group with one array, whose only chunk lies in the file.

    Parameters
    ----------
    path_or_url : path or str
    dtype : dtype-like
        As stored, with the byte order: ``">f4"`` is big-endian.
    shape : sequence of int
        One length may be -1: it is computed from the size of the file.
    offset : int
        Bytes before the first element.
    order : {"C", "F"} or sequence of int
        How the elements follow one another: the last axis fastest, or the first; or the array's
        axes in the order they are stored, slowest first.
    name : str
        Of the array.
    dims : sequence of str or None, optional
        Names of its dimensions.
    attributes : mapping, optional
    storage_options : mapping, optional
        How fsspec opens a URL.

    Returns
    -------
    Group

    Raises
    ------
    SourceError
        There is no such file, it is too short, or -1 is no whole number.
    UnsupportedError
        Elements of this type cannot be referenced.
    ValueError
        The description contradicts itself.

    Examples
    --------
    >>> _ = open("ramp.bin", "wb").write(bytes(4) + bytes(range(6)))
    >>> group = virtualize_raw("ramp.bin", "u1", (-1, 2), offset=4, order="F", dims=("y", "x"))
    >>> group["data"][:].tolist()
    [[0, 3], [1, 4], [2, 5]]
    """
    source = Source.from_file(path_or_url, storage_options)
    dtype, lengths = np.dtype(dtype), [operator.index(length) for length in shape]
    check_dtype(dtype)
    if min(lengths, default=0) < -1 or lengths.count(-1) > 1 or offset < 0:
        raise ValueError(f"a shape {tuple(shape)} at {offset}")
    if -1 in lengths:
        lengths[lengths.index(-1)] = _infer_length(source, offset, dtype, lengths)
    axes = _axes(order, len(lengths))
    array = plain_array(
        source, offset, dtype, lengths, axes=axes, path=name,
        dimension_names=dims, attributes=attributes,
    )  # fmt: skip
    return Group({}, {name: array})


def _infer_length(source: Source, offset: int, dtype: np.dtype[Any], lengths: Sequence[int]) -> int:
    """Return the length of the axis -1, from the size of the file."""
    row = math.prod(length for length in lengths if length != -1) * dtype.itemsize
    size = file_size(source) - offset
    count, remainder = divmod(size, row) if row else (0, 0)
    # Not rounded down: bytes that are left over mean that type, shape or offset are wrong.
    if remainder or count < 0:
        raise SourceError(
            f"the {size} bytes from {offset} on are no whole number of rows of {row} bytes",
            file=source.uri,
        )
    return count


def _axes(order: str | Sequence[int], ndim: int) -> Sequence[int] | None:
    if order == "C":
        return None
    if order == "F":
        return fortran(ndim)
    if isinstance(order, str) or sorted(order) != list(range(ndim)):
        raise ValueError(f"order is 'C', 'F' or a permutation of {ndim} axes, not {order!r}")
    return order
