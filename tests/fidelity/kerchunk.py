"""Fidelity of reference files, JSON and Parquet, against fsspec and zarr-python."""

from __future__ import annotations

import contextlib
import json
import os
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.fidelity.compare import Row
from tests.fidelity.zarr import compare
from virtualzarr.array import Array
from virtualzarr.errors import VirtualZarrError
from virtualzarr.references.kerchunk import scan


def files(directory: Path) -> list[Path]:
    """List documents that hold references, and folders of Parquet files with a `.zmetadata`."""
    folders = {path.parent for path in directory.rglob(".zmetadata")
               if any(path.parent.rglob("refs.*.parq"))}  # fmt: skip
    found = [path for path in directory.rglob("*.json") if _document(path)]
    return sorted([*folders, *(path for path in found if not folders & set(path.parents))])


def _document(path: Path) -> Any:
    """Return what a file of JSON holds, if that may be references."""
    try:
        document = json.loads(path.read_bytes())
    except (ValueError, OSError):
        return None
    keys = document.get("refs", document) if isinstance(document, dict) else ()
    markers = (".zgroup", ".zarray", ".zmetadata", "zarr.json")
    named = isinstance(keys, dict) and any(key.rpartition("/")[2] in markers for key in keys)
    return document if named else None


def check(path: Path) -> Iterator[Row]:
    """Compare every array that the references describe."""
    warnings.simplefilter("ignore")
    # fsspec looks for relative paths where it is, and we where the references are.
    os.chdir(path if path.is_dir() else path.parent)
    theirs: dict[str, Any] = {}
    try:
        _open(path, theirs)
        why = "zarr-python does not read it"
    except Exception as error:
        why = f"fsspec cannot open it: {type(error).__name__}: {error}"
    try:
        group = scan(path, on_error="warn")
    except VirtualZarrError as error:
        yield Row("", "refused" if theirs else "unreadable", error.message)
        return
    ours = {name: node for name, node in group.members(None) if isinstance(node, Array)}
    for name in {**theirs, **ours}:
        if name in group.skipped:
            yield Row(name, "refused", group.skipped[name])
        elif name in theirs:
            yield Row(name, *compare(ours.get(name), theirs[name]))
        else:
            yield Row(name, "unreadable", why)


def _open(path: Path, arrays: dict[str, Any]) -> None:
    """Add the arrays that zarr-python opens through fsspec."""
    import fsspec
    import imagecodecs.numcodecs
    import zarr

    imagecodecs.numcodecs.register_codecs(verbose=False)
    if path.is_dir():
        keys = json.loads((path / ".zmetadata").read_bytes())["metadata"]
    else:
        document = _document(path)
        if "gen" in document:
            raise ValueError("it makes nothing of gen")
        keys = document.get("refs", document)
    # Without a protocol, fsspec looks for chunks at once, and finds no groups within groups.
    options = {"remote_protocol": "file"} if path.is_dir() else {}
    fs = fsspec.filesystem("reference", fo=str(path), asynchronous=True, **options)
    store = zarr.storage.FsspecStore(fs, read_only=True, path="")
    for key in keys:
        name, _, last = key.rpartition("/")
        if last in (".zarray", "zarr.json"):
            with contextlib.suppress(Exception):  # those of groups, and what it does not know
                version = 2 if last == ".zarray" else 3
                arrays[name] = zarr.open_array(store, path=name, mode="r", zarr_format=version)
