"""Fidelity of the HDF5 scanner: every dataset h5py sees, against h5py's values, and netCDF4's."""

from __future__ import annotations

import contextlib
import json
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from tests.fidelity import netcdf4
from tests.fidelity.compare import Row, difference, slabs
from virtualzarr.array import Array
from virtualzarr.errors import VirtualZarrError
from virtualzarr.formats.hdf5 import scan


def files(directory: Path) -> list[Path]:
    """List the files to check."""
    return sorted(path for path in directory.rglob("*") if path.is_file())


def check(path: Path) -> Iterator[Row]:
    """Compare every variable of a file."""
    path = path.resolve()
    with contextlib.chdir(path.parent):  # where HDF5 looks for external files
        yield from _check(path)


def _check(path: Path) -> Iterator[Row]:
    import h5py
    import hdf5plugin  # noqa: F401  (more filters for h5py)

    try:
        file = h5py.File(path, "r")
    except (OSError, ValueError, RuntimeError) as error:
        yield _unopened(path, error)
        return
    with file, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            group = scan(path, on_error="warn")
        except VirtualZarrError as error:
            yield Row("", "refused", error.message)
            return
        for name, reason in group.skipped.items():
            why = _readable(file, name)
            yield Row(name, "unreadable", why) if why else Row(name, "refused", reason)
        seen = set(group.skipped)
        for name, node in group.members(max_depth=None):
            seen.add(name)
            if isinstance(node, Array):
                yield Row(name, *_compare(node, file, name))
        yield from _vanished(file, seen)
        if netcdf4.is_netcdf(file):  # last, as the netCDF library may crash
            yield from netcdf4.check(path, group, file)


def _unopened(path: Path, error: Exception) -> Row:
    try:
        scan(path)
    except VirtualZarrError:
        return Row("", "unreadable", f"h5py cannot open the file: {error}")
    return Row("", "wrong", "h5py cannot open the file, but it was scanned")


def _compare(array: Array, file: Any, name: str) -> tuple[str, str]:
    try:
        dataset = _dataset(file, name)
        if dataset.shape is None:  # a null dataspace
            same = array.size == 0 and difference(array[...].reshape(-1), _nothing(dataset)) is None
            return ("equal", "") if same else ("wrong", f"{array}, not {dataset[()]}")
        picked = list(slabs(dataset.shape, dataset.dtype.itemsize))
        values = [_without_references(dataset[selection], file) for selection in picked]
    except Exception as error:  # whatever h5py raises
        return "unreadable", f"{type(error).__name__}: {error}"
    try:
        for selection, theirs in zip(picked, values, strict=True):
            # Variables of netCDF-4 go on past the end of their dataset.
            part = tuple(map(slice, dataset.shape)) if selection is ... else selection
            found = difference(np.asarray(array[part], array.dtype), theirs)
            if found:
                return "wrong", found
    except VirtualZarrError as error:
        return "refused", f"when read: {error.message}"
    except Exception as error:
        return "wrong", f"{type(error).__name__}: {error}"
    inline = any(source.is_inline for source in array.manifest.sources)
    return ("inlined" if inline else "equal"), ""


def _nothing(dataset: Any) -> Any:
    return np.empty(0, dataset.dtype.base)


def _readable(file: Any, name: str) -> str | None:
    """Say why h5py cannot read what was refused; None if it can, or if it is a group."""
    import h5py

    try:
        dataset = file[name]
        if isinstance(dataset, h5py.Dataset):
            dataset[()]
    except Exception as error:  # whatever h5py raises
        return f"{type(error).__name__}: {error}"
    return None


def _without_references(values: Any, file: Any) -> Any:
    """Return values with the names of what references point to in their place."""
    import h5py

    values = np.asarray(values)
    if values.dtype.names is not None and values.dtype.hasobject:
        fields = {name: _without_references(values[name], file) for name in values.dtype.names}
        extra = values.ndim
        dtype = [(name, part.dtype, part.shape[extra:]) for name, part in fields.items()]
        out = np.zeros(values.shape, np.dtype(dtype))
        for name, part in fields.items():
            out[name] = part
        return out
    if values.dtype.kind != "O":
        return values
    out = np.empty(values.shape, object)
    for index, item in enumerate(values.flat):
        if isinstance(item, h5py.RegionReference):
            out.flat[index] = json.dumps(_region(item, file))
        elif isinstance(item, h5py.Reference):
            out.flat[index] = file[item].name if item else ""
        elif isinstance(item, np.ndarray) and item.dtype.hasobject:
            out.flat[index] = _without_references(item, file)
        elif isinstance(item, np.ndarray) and _is_big(values.dtype):
            out.flat[index] = item.view(item.dtype.newbyteorder(">"))
        else:
            out.flat[index] = item
    return out


def _is_big(dtype: Any) -> bool:
    """Whether h5py 3.16 took the bytes of big-endian sequences for native ones."""
    import h5py

    base = h5py.check_vlen_dtype(dtype)
    return base is not None and bool(base.byteorder == ">")


def _region(reference: Any, file: Any) -> Any:
    """Return what a region reference points to, as scans say it."""
    import h5py

    if not reference:
        return None
    space = h5py.h5r.get_region(reference, file.id)
    path = file[h5py.h5r.get_name(reference, file.id)].name
    if space.get_select_type() == h5py.h5s.SEL_POINTS:
        return {"path": path, "points": space.get_select_elem_pointlist().tolist()}
    return {"path": path, "blocks": space.get_select_hyper_blocklist().tolist()}


def _dataset(file: Any, name: str) -> Any:
    """Open a dataset by the name users see."""
    head, _, last = name.rpartition("/")
    parent = file[head] if head else file
    hidden = f"_nc4_non_coord_{last}"
    return parent[hidden if hidden in parent else last]


def _vanished(file: Any, seen: set[str]) -> Iterator[Row]:
    """Report datasets that are neither in the group nor among what was refused."""
    import h5py

    found: list[str] = []

    def visit(name: str, node: Any) -> None:
        if isinstance(node, h5py.Dataset):
            found.append(name)

    try:
        file.visititems(visit)
    except Exception as error:  # whatever h5py raises
        yield Row("", "unreadable", f"h5py cannot list the file: {type(error).__name__}")
    for name in found:
        shown = name.replace("_nc4_non_coord_", "")
        under = any(name.startswith(f"{path}/") for path in seen)
        if {name, shown}.isdisjoint(seen) and not under and not _is_dimension(file[name]):
            yield Row(name, "wrong", "the dataset vanished")


def _is_dimension(dataset: Any) -> bool:
    text = dataset.attrs.get("NAME", b"")
    text = text.decode("latin-1") if isinstance(text, bytes) else str(text)
    return text.startswith("This is a netCDF dimension but not a netCDF variable")
