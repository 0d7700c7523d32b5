"""Opening anything this package can read, and hierarchies to write to."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Mapping
from contextlib import nullcontext
from datetime import datetime
from typing import Any, Literal, Unpack, overload

from virtualzarr.array import Array, ChunkCache
from virtualzarr.array.fields import FieldView
from virtualzarr.array.read.cache_policy import CachePolicy, Recheck
from virtualzarr.choices import OnError
from virtualzarr.errors import AccessError, NodeNotFoundError, UnsupportedError, name_type
from virtualzarr.formats.registry import get_format
from virtualzarr.hierarchy.group import Group
from virtualzarr.hierarchy.open_zarr import check_node, open_zarr
from virtualzarr.hierarchy.resolve import Mode, check_mode
from virtualzarr.ingest.detect import find_format, scan
from virtualzarr.keywords import strict_keywords
from virtualzarr.metadata.create import ArrayParams
from virtualzarr.redaction import hide_in_url
from virtualzarr.stores.adapt import READ_ONLY, adapt, is_read_only
from virtualzarr.stores.fsspec import share_documents
from virtualzarr.virtual.element_bytes import view_as_bytes

_log = logging.getLogger(__name__)


@overload
def open(
    target: Any,
    path: str = "",
    *,
    mode: Mode = "r",
    format: str | None = None,
    on_error: OnError = "raise",
    storage_options: Mapping[str, Any] | None = None,
    allowed: str | Iterable[str] | None = None,
    cache: ChunkCache | None = None,
    recheck_cached_metadata: Recheck | None = None,
    recheck_cached_data: Recheck | None = None,
    use_consolidated: bool | None = None,
    metadata_key: str | None = None,
    open_as_void: Literal[False] = False,
    version: int | None = None,
    at: datetime | str | None = None,
    tag: str | None = None,
    **params: Unpack[ArrayParams],
) -> Array | Group: ...
@overload
def open(
    target: Any, path: str = "", *, open_as_void: Literal[True], **options: Any
) -> FieldView: ...
@strict_keywords(ArrayParams)  # type: ignore[misc]  # which keywords there are is in the first
def open(
    target: Any,
    path: str = "",
    *,
    mode: Mode = "r",
    format: str | None = None,
    on_error: OnError = "raise",
    storage_options: Mapping[str, Any] | None = None,
    allowed: str | Iterable[str] | None = None,
    cache: ChunkCache | None = None,
    recheck_cached_metadata: Recheck | None = None,
    recheck_cached_data: Recheck | None = None,
    use_consolidated: bool | None = None,
    metadata_key: str | None = None,
    open_as_void: bool = False,
    version: int | None = None,
    at: datetime | str | None = None,
    tag: str | None = None,
    **params: Unpack[ArrayParams],
) -> Array | Group | FieldView:
    """Open an array or group: a Zarr hierarchy, a reference file, or any format that scans.

    Parameters
    ----------
    target : path, URL, mapping or store
        A mapping is either a store's keys and bytes, or the content of a reference file.
    path : str
        Which node of the hierarchy; the root by default.
    mode : {"r", "r+", "a", "w", "w-"}
        As for `open_array`. Only Zarr hierarchies can be written to. Where a node is made, it is
        an array if a shape is given, else a group.
    format, on_error, storage_options
        As for `virtualize`.
    allowed : str or iterable of str, optional
        Places that references may reach, in a reference file or in manifests of a Zarr hierarchy,
        and where the other files may be that an HDF5 file has values in or links to: folders, or
        URLs up to a ``/``.
    cache, recheck_cached_metadata, recheck_cached_data
        As for `open_array`; of a group, for all arrays in it.
    use_consolidated : bool, optional
        Whether the members of a stored group are what its consolidated metadata say, where they and
        the members' own documents disagree. True asks for them, False never looks at them. By
        default they are believed, as zarr-python does, with the mode "r"; where there may be
        writers, the members' own documents count.
    metadata_key : str, optional
        As for `open_array`: of a stored Zarr array only.
    open_as_void : bool
        Whether to give the bytes of an array's elements as they are stored, whatever the data type:
        a `FieldView` of uint8 with one more axis, of as many bytes as an element has.
    version, at, tag
        At which version a dataset is opened: by its number, as the newest at a time (a text is in
        UTC if it has no time zone), or by its tag. By default, the newest one. The arrays stay at
        it. See `virtualzarr.Dataset`.
    **params
        The parameters of `create_array`: what an array must be, or is made as.

    Returns
    -------
    Array, Group or FieldView

    Raises
    ------
    NodeNotFoundError, NodeExistsError
        Nothing is stored under the path, or something is, as the mode has it.
    MismatchError
        What is there is not as asked for; the message has both values of whatever differs.
    UnsupportedError
        The file is of a format that can only be read. `open_as_void`: elements have no fixed number
        of bytes, or a codec makes something else of them.

    Examples
    --------
    >>> group = open({"zarr.json": b'{"zarr_format": 3, "node_type": "group"}'})
    >>> group
    <Group: 0 members>
    """
    check_mode(mode)
    if mode != "r" and is_read_only(target):
        raise AccessError(READ_ONLY, file=_show(target))
    target, storage_options = adapt(target, storage_options)
    cache_policy = CachePolicy(cache, recheck_cached_metadata, recheck_cached_data)
    # What detection reads of a hierarchy is not requested again to open it; who writes reads anew.
    with share_documents() if mode == "r" else nullcontext():
        if format is None and metadata_key is not None:
            format = "zarr"
        format = format or find_format(target, mode, storage_options)
        if isinstance(target, str | os.PathLike):
            uri = hide_in_url(os.fspath(target))
            _log.debug("opening %s as %s, mode %s", uri, format, mode)
        for_zarr: Any = {"use_consolidated": use_consolidated, "metadata_key": metadata_key}
        for_datasets: Any = {"version": version, "at": at, "tag": tag}
        _check_options(target, format, mode, for_zarr, for_datasets)
        access: Any = {"storage_options": storage_options, "allowed": allowed}
        node: Array | Group
        if format != "zarr":
            if format == "dataset":
                opener: Any = get_format(format).load()
                group = opener(target, **access, **for_datasets)
            else:
                group = scan(target, format=format, on_error=on_error, **access)
            node = group[path] if path.strip("/") else group
            check_node(node, _show(target), params)
        else:
            node = open_zarr(target, path, mode, params, **access, **for_zarr)
    # After opening, as this is also how arrays of a group get it, whichever format they came from.
    node.cache_policy = cache_policy
    if not open_as_void:
        return node
    if isinstance(node, Group):
        raise NodeNotFoundError(
            f"there is no array at {node.path!r}, but a group: it has no elements",
            file=_show(target),
        )
    return view_as_bytes(node)


def _show(target: Any) -> str:
    """Return what errors call a target: its path or URL, or what it is."""
    is_path = isinstance(target, str | os.PathLike)
    return str(target) if is_path else str(getattr(target, "uri", name_type(target)))


def _check_options(
    target: Any,
    format: str,
    mode: Mode,
    for_zarr: Mapping[str, Any],
    for_datasets: Mapping[str, Any],
) -> None:
    """Refuse options, and modes, that only other formats have."""
    if format != "zarr" and for_zarr["use_consolidated"] is not None:
        problem = "use_consolidated: only stored Zarr hierarchies have consolidated metadata"
    elif format != "zarr" and for_zarr["metadata_key"] is not None:
        problem = "metadata_key: only stored Zarr arrays have metadata documents"
    elif format != "dataset" and any(value is not None for value in for_datasets.values()):
        problem = "version, at and tag are of datasets with versions, which this is none"
    elif format == "dataset" and mode != "r":
        problem = "datasets change by commits: open a virtualzarr.Dataset, and append to it"
    elif format != "zarr" and mode != "r":
        problem = (
            f"files of the format {format} can only be read; publish them, or copy them to Zarr"
        )
    else:
        return
    raise UnsupportedError(problem, file=_show(target))
