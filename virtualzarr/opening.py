"""Opening anything this package can read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from virtualzarr.array import Array
from virtualzarr.formats import detect, scan
from virtualzarr.formats.zarr import open_hierarchy
from virtualzarr.group import Group
from virtualzarr.stores import open_store


def open(
    target: Any,
    path: str = "",
    *,
    format: str | None = None,
    on_error: str = "raise",
    storage_options: Mapping[str, Any] | None = None,
) -> Array | Group:
    """Open an array or group: a Zarr hierarchy, a reference file, or any format that scans.

    Parameters
    ----------
    target : path, URL, mapping or store
        A mapping is either a store's keys and bytes, or the content of a reference file.
    path : str
        Which node of the hierarchy; the root by default.
    format, on_error, storage_options
        As for `virtualize`.

    Returns
    -------
    Array or Group

    Raises
    ------
    NodeNotFoundError
        If nothing is stored under the path.

    Examples
    --------
    >>> group = open({"zarr.json": b'{"zarr_format": 3, "node_type": "group"}'})
    >>> group
    <Group: 0 members>
    """
    is_place = isinstance(target, str) or hasattr(target, "__fspath__")
    if format is None and is_place:
        format = detect(target, storage_options)
    elif format is None:
        is_refs = isinstance(target, Mapping) and not all(
            isinstance(value, (bytes, bytearray, memoryview)) for value in target.values()
        )
        format = "kerchunk" if is_refs else "zarr"
    if format == "zarr":
        return open_hierarchy(open_store(target, storage_options), path)
    group = scan(target, format=format, on_error=on_error, storage_options=storage_options)
    return group[path] if path.strip("/") else group
