"""Fidelity of Zarr v2 and v3, in directories and zip files, against zarr-python or TensorStore."""

from __future__ import annotations

import json
import os
import warnings
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from tests.fidelity.compare import Row, difference, slabs
from virtualzarr.array import Array
from virtualzarr.errors import VirtualZarrError
from virtualzarr.formats.zarr import scan
from virtualzarr.ingest.open_target import open as open_node

MARKERS = ("zarr.json", ".zarray", ".zgroup")


def files(directory: Path) -> list[Path]:
    """List the roots of hierarchies: folders, and zip files that have one at their root."""
    found = []
    for folder, folders, names in os.walk(directory):
        if set(MARKERS) & set(names):
            found.append(Path(folder))
            folders.clear()
            continue
        zips = [Path(folder, name) for name in names if name.endswith(".zip")]
        found += [path for path in zips if set(MARKERS) & set(_names(path))]
    return sorted(found)


def _names(path: Path) -> list[str]:
    """Return the keys of a store."""
    if path.is_dir():
        return [each.relative_to(path).as_posix() for each in path.rglob("*")]
    try:
        with zipfile.ZipFile(path) as archive:
            return archive.namelist()
    except (zipfile.BadZipFile, OSError):
        return []


def check(path: Path) -> Iterator[Row]:
    """Compare every array of a hierarchy."""
    warnings.simplefilter("ignore")
    try:
        group: Any = scan(path, on_error="warn")
        nodes = dict(group.members(None))
    except VirtualZarrError as error:
        outcome = "refused" if any(_oracle(path, name) for name in _arrays(path)) else "unreadable"
        yield Row("", outcome, error.message)
        return
    for name in _arrays(path):
        theirs = _oracle(path, name)
        if theirs is None:
            yield Row(name, "unreadable", "neither zarr-python nor TensorStore reads it")
        elif not name and len(nodes) == 1:
            yield Row(name, *compare(next(iter(nodes.values())), theirs))
        elif name in group.skipped:
            yield Row(name, "refused", group.skipped[name])
        else:
            # What is not in a group of its own is not listed, by zarr-python neither.
            yield Row(name, *compare(nodes[name] if name in nodes else _opened(path, name), theirs))


def _opened(path: Path, name: str) -> Any:
    try:
        return open_node(path, name)
    except VirtualZarrError:
        return None


def compare(ours: Any, theirs: Any) -> tuple[str, str]:
    """Compare two arrays, slab by slab."""
    if not isinstance(ours, Array):
        return "wrong", "vanished"
    if ours.shape != tuple(theirs.shape):
        return "wrong", f"shape {ours.shape}, not {theirs.shape}"
    for part in slabs(ours.shape, ours.dtype.itemsize):
        try:
            other = np.asarray(theirs[part])
        except Exception as error:
            return "unreadable", f"the oracle fails: {type(error).__name__}: {error}"
        try:
            mine = ours[part]
        except VirtualZarrError as error:
            return "refused", f"when read: {error.message}"
        if other.dtype.kind == "T":
            other = other.astype(object)
        if other.dtype.names is not None:
            # zarr-python gives names to what is between fields.
            fields = mine.dtype.names or ()
            named = [n for n in other.dtype.names if n in fields or other.dtype[n].kind != "V"]
            other = other[named]
        found = difference(mine, other)
        if found:
            return "wrong", found
    return "equal", ""


def _arrays(path: Path) -> Iterator[str]:
    """Yield the paths of all arrays that are stored, whatever lists them."""
    for key in _names(path):
        folder, _, name = key.rpartition("/")
        if name == ".zarray" or (name == "zarr.json" and _is_array(path, key)):
            yield folder


def _is_array(path: Path, key: str) -> bool:
    if path.is_dir():
        raw = (path / key).read_bytes()
    else:
        with zipfile.ZipFile(path) as archive:
            raw = archive.read(key)
    try:
        return bool(json.loads(raw).get("node_type") == "array")
    except (ValueError, AttributeError):
        return False


def _oracle(path: Path, name: str) -> Any:
    """Return what reads the array: zarr-python, or TensorStore; None if neither does."""
    import zarr

    try:
        store = zarr.storage.ZipStore(path) if path.is_file() else zarr.storage.LocalStore(path)
        array = zarr.open_array(store, path=name, mode="r")
        array[tuple(slice(1) for _ in array.shape)]
        return array
    except Exception:  # whatever zarr-python raises
        return _tensorstore(path / name) if path.is_dir() else None


def _tensorstore(folder: Path) -> Any:
    import tensorstore

    driver = "zarr3" if (folder / "zarr.json").exists() else "zarr"
    spec = {"driver": driver, "kvstore": {"driver": "file", "path": f"{folder}/"}}
    try:
        array = tensorstore.open(spec).result()
        array[tuple(slice(min(n, 1)) for n in array.shape)].read().result()
    except Exception:  # whatever TensorStore raises
        return None
    return array
