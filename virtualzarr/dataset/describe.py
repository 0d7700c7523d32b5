"""Groups of virtual arrays as datasets store them: documents, references, coordinates."""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from virtualzarr.array import Array
from virtualzarr.dataset.segment import Cells, chunk_runs
from virtualzarr.errors import MismatchError, UnsupportedError
from virtualzarr.hierarchy.group import Group
from virtualzarr.hierarchy.inventory import iter_arrays
from virtualzarr.metadata import KeyEncoding
from virtualzarr.metadata.portable import find_missing, to_portable_v3
from virtualzarr.references.native.save import SIMPLE, is_writable
from virtualzarr.references.native.save import check_described as check_array_described
from virtualzarr.references.public_urls import check_public
from virtualzarr.virtual.axis_slices import AxisSlices
from virtualzarr.virtual.from_store import as_virtual, build_manifest
from virtualzarr.virtual.rechunk import apply_axis_slices, get_axes, with_decoder, without_shards


def as_virtual_v3(array: Array) -> Array:
    """Return an array as it is described in a dataset: Zarr v3, and codecs that also encode.

    Whether a document can say all of it is left to `check_described`. Shards are left to decoders,
    as sub-chunks need not divide the cells into which rows that come and go cut them.
    """
    metadata = to_portable_v3(array.metadata).metadata.as_format(3)
    metadata = metadata.replace(key_encoding=KeyEncoding(), storage_transformers=())
    manifest = build_manifest(array)
    if not is_writable(metadata):
        manifest = with_decoder(manifest, metadata.pipeline)
        metadata = metadata.replace(pipeline=SIMPLE)
    return without_shards(as_virtual(array).replace(metadata, manifest))


def check_described(group: Group) -> Group:
    """Return a group, if Zarr v3 documents say exactly what its arrays are.

    Raises
    ------
    PublishError
    """
    for path, array in iter_arrays(group):
        check_array_described(array.metadata, path)
    return group


def find_growing(group: Group, dimension: str) -> dict[str, Array]:
    """Return the arrays that have a dimension, by path."""
    return {path: array for path, array in iter_arrays(group) if dimension in array.dims}


def build_cells(array: Array, dimension: str) -> Cells:
    """Return the references of an array whose last cell ends where the array does."""
    axis = array.dims.index(dimension)
    axes = get_axes(array)
    if axes[axis].end != axes[axis].extent:
        slices = [AxisSlices.clip(other) if i == axis else AxisSlices.identity(other)
                  for i, other in enumerate(axes)]  # fmt: skip
        array = apply_axis_slices(array, slices)
    return Cells(array.manifest, chunk_runs(get_axes(array)[axis]))


def count_rows(group: Group, dimension: str) -> int:
    """Return how many rows there are along a dimension, the same in all arrays."""
    growing = find_growing(group, dimension).values()
    counts = {array.shape[array.dims.index(dimension)] for array in growing}
    if len(counts) != 1:
        raise MismatchError(f"arrays have different lengths along {dimension!r}: {sorted(counts)}")
    return counts.pop()


def read_coordinates(group: Group, dimension: str) -> NDArray[Any] | None:
    """Return the values of the coordinate of a dimension; None if it has none.

    Raises
    ------
    UnsupportedError
        It does not increase.
    """
    array = group.get(dimension)
    if not isinstance(array, Array) or array.dims != (dimension,) or array.dtype.kind not in "iuf":
        return None
    values = array[...]
    if values.dtype.kind == "f" and not np.isfinite(values).all():
        raise UnsupportedError(
            f"the coordinate of {dimension!r} is not finite in some rows, which could not be found "
            "by it",
            variable=array.path,
        )
    if (values[1:] <= values[:-1]).any():
        raise UnsupportedError(
            f"the coordinate of {dimension!r} does not increase; sort the rows first",
            variable=array.path,
        )
    return np.asarray(values)


def check_coordinates(group: Group, dimension: str) -> None:
    """Refuse rows whose coordinate is missing, as the array's attributes say.

    Zero never is: the fill value of Zarr v2, which most writers set to that without meaning it, is
    an attribute here too.

    Raises
    ------
    UnsupportedError
    """
    array = group.get(dimension)
    if not isinstance(array, Array) or not {"_FillValue", "missing_value"} & array.attrs.keys():
        return
    if array.dims != (dimension,) or array.dtype.kind not in "iuf":
        return
    values = np.asarray(array[...])
    if (find_missing(array.metadata, values) & (values != 0)).any():
        raise UnsupportedError(
            f"the coordinate of {dimension!r} is missing in some rows: it is its _FillValue or "
            "missing_value there",
            variable=array.path,
        )


def describe_commit(verb: str, message: str | None, files: Sequence[str] = ()) -> dict[str, Any]:
    """Return what the history says of a commit: verb, writer, message and source files."""
    about: dict[str, Any] = {"verb": verb, "writer": f"{socket.gethostname()}:{os.getpid()}"}
    if message:
        about["message"] = message
    if files:
        check_public(files)
        about["files"] = list(files)
    return about
