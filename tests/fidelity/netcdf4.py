"""Fidelity of netCDF-4 files: dimensions, shapes and values against netCDF4-python."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from tests.fidelity.compare import Row, difference
from virtualzarr.array import Array
from virtualzarr.errors import VirtualZarrError
from virtualzarr.hierarchy.group import Group
from virtualzarr.metadata.dimension_names import real_name

# Values of larger variables are compared at their ends only.
_LIMIT = 1 << 22


def is_netcdf(file: Any) -> bool:
    """Whether an open HDF5 file has dimension scales, or the mark of the netCDF library."""
    if "_NCProperties" in file.attrs:
        return True
    found: list[str] = []

    def visit(name: str, node: Any) -> None:
        if node.attrs.get("CLASS") == b"DIMENSION_SCALE":
            found.append(name)

    try:
        file.visititems(visit)
    except Exception:  # whatever h5py raises: its own comparison says so
        return False
    return bool(found)


def check(path: Path, group: Group, hdf5: Any) -> Iterator[Row]:
    """Compare the variables of a netCDF-4 file with those of a scan of it."""
    import netCDF4

    try:
        file = netCDF4.Dataset(path)
    except Exception as error:  # whatever netCDF4 raises
        yield Row("", "unreadable", f"netCDF4 cannot open the file: {error}")
        return
    with file:
        for name, variable in _variables(file):
            yield Row(f"{name} (netCDF4)", *_compare(group, name, variable, hdf5))


def _variables(group: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, variable in group.variables.items():
        yield prefix + name, variable
    for name, inner in group.groups.items():
        yield from _variables(inner, f"{prefix}{name}/")


def _compare(group: Group, name: str, variable: Any, hdf5: Any) -> tuple[str, str]:
    try:
        array = group[name]
    except VirtualZarrError as error:
        return "refused", error.message
    if not isinstance(array, Array):
        return "wrong", "a group, not a variable"
    if array.shape[: variable.ndim] != variable.shape:
        fixed = [dim for dim in variable.get_dims() if not dim.isunlimited()]
        lengths = dict(zip(variable.dimensions, array.shape, strict=False))
        if any(len(dim) != lengths[dim.name] for dim in fixed):
            return "unreadable", "a scale of another length, which netCDF takes for the variable's"
        return "wrong", f"shape {array.shape}, not {variable.shape}"
    pairs = zip(array.dims, variable.dimensions, strict=False)
    if not all(_same_dimension(*pair, name, hdf5) for pair in pairs):
        return "wrong", f"dimensions {array.dims}, not {variable.dimensions}"
    return _compare_values(array, variable)


def _same_dimension(ours: Any, theirs: str, variable: str, hdf5: Any) -> bool:
    """Whether two names are of one dimension: a scale may have several links to it."""
    if real_name(theirs) in (None, ours):
        return True
    beside = hdf5[variable].parent
    return ours in beside and theirs in beside and beside[ours] == beside[theirs]


def _compare_values(array: Array, variable: Any) -> tuple[str, str]:
    dtype = variable.dtype
    if dtype is not str and (not isinstance(dtype, np.dtype) or dtype.kind not in "iufS"):
        return "equal", ""  # h5py's values are compared anyway
    variable.set_auto_maskandscale(False)
    variable.set_auto_chartostring(False)
    itemsize = 16 if dtype is str else dtype.itemsize
    for part in _parts(array.shape, itemsize):
        try:
            theirs = np.asarray(variable[part])
        except Exception as error:  # whatever netCDF4 raises
            return "unreadable", f"{type(error).__name__}: {error}"
        try:
            ours = np.asarray(array[part], array.dtype)
        except VirtualZarrError as error:
            return "refused", f"when read: {error.message}"
        if ours.dtype.kind == "b":  # netCDF has no Booleans
            ours = ours.astype(theirs.dtype)
        if found := difference(ours, theirs.reshape(ours.shape)):
            return "wrong", found
    return "equal", ""


def _parts(shape: tuple[int, ...], itemsize: int) -> Iterator[Any]:
    """Yield all of a small array, else its first and its last elements."""
    if math.prod(shape) * itemsize <= _LIMIT:
        yield ...
        return
    tail = tuple(slice(max(0, n - 2), n) for n in shape)
    yield tuple(slice(0, min(n, 2)) for n in shape)
    yield tail
