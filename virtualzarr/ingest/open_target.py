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
from virtualzarr.errors import NodeNotFoundError, UnsupportedError
from virtualzarr.formats.registry import get_format
from virtualzarr.hierarchy.create import check_params, create_array, open_array
from virtualzarr.hierarchy.group import Group
from virtualzarr.hierarchy.open_node import build_node, create_group
from virtualzarr.hierarchy.resolve import Mode, ResolvedTarget, check_mode, resolve
from virtualzarr.ingest.detect import detect, is_session, scan
from virtualzarr.keywords import strict_keywords
from virtualzarr.metadata.create import ArrayParams
from virtualzarr.stores import open_store
from virtualzarr.stores.adapt import adapt
from virtualzarr.stores.files import is_url
from virtualzarr.stores.fsspec import share_documents
from virtualzarr.stores.location import Location
from virtualzarr.stores.open_store import store_location
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
    target, storage_options = adapt(target, storage_options)
    cache_policy = CachePolicy(cache, recheck_cached_metadata, recheck_cached_data)
    # What detection reads of a hierarchy is not requested again to open it; who writes reads anew.
    with share_documents() if mode == "r" else nullcontext():
        # Reading never creates: only where a node may be created is an empty place taken for Zarr.
        if format is None:
            zarr = metadata_key is not None
            format = "zarr" if zarr else _format_of(target, mode, storage_options)
        if isinstance(target, str | os.PathLike):
            _log.debug("opening %s as %s, mode %s", target, format, mode)
        node: Array | Group
        if format != "zarr":
            _check_file_options(target, use_consolidated, metadata_key)
            access: dict[str, Any] = {"storage_options": storage_options, "allowed": allowed}
            if format == "dataset":
                node = _open_version(
                    target, path, mode, access, {"version": version, "at": at, "tag": tag}
                )
            else:
                _check_no_version(target, version, at, tag)
                node = _open_file(target, path, mode, format, on_error, access)
            _check_node(node, str(target), params)
        elif metadata_key is None:
            _check_no_version(target, version, at, tag)
            zarr_format, options = params.get("zarr_format"), storage_options
            resolved = resolve(target, path, mode, storage_options=options, zarr_format=zarr_format)
            location = store_location(resolved.store, allowed, storage_options)
            node = _open_zarr(resolved, location, use_consolidated, params)
        else:
            store = open_store(target, storage_options)
            node = open_array(store, path, mode=mode, metadata_key=metadata_key, **params)
    # After opening, as this is also how arrays of a group get it, whichever format they came from.
    node.cache_policy = cache_policy
    return _element_bytes(node, target) if open_as_void else node


def _element_bytes(node: Array | Group, target: Any) -> FieldView:
    if isinstance(node, Group):
        raise NodeNotFoundError(
            f"there is no array at {node.path!r}, but a group: it has no elements",
            file=str(target),
        )
    return view_as_bytes(node)


def _check_file_options(
    target: Any, use_consolidated: bool | None, metadata_key: str | None
) -> None:
    """Refuse options that only stored Zarr hierarchies have."""
    if use_consolidated is not None:
        raise UnsupportedError(
            "use_consolidated: only stored Zarr hierarchies have consolidated metadata",
            file=str(target),
        )
    if metadata_key is not None:
        raise UnsupportedError(
            "metadata_key: only stored Zarr arrays have metadata documents", file=str(target)
        )


def _open_file(
    target: Any,
    path: str,
    mode: Mode,
    format: str,
    on_error: OnError,
    access: Mapping[str, Any],
) -> Array | Group:
    if mode != "r":
        raise UnsupportedError(
            f"files of the format {format} can only be read; publish them, or copy them to Zarr",
            file=str(target),
        )
    group = scan(target, format=format, on_error=on_error, **access)
    return group[path] if path.strip("/") else group


def _open_version(
    target: Any, path: str, mode: Mode, access: Mapping[str, Any], which: Mapping[str, Any]
) -> Array | Group:
    """Open a dataset at a version."""
    if mode != "r":
        raise UnsupportedError(
            "datasets change by commits: open a virtualzarr.Dataset, and append to it",
            file=str(target),
        )
    opener: Any = get_format("dataset").load()
    group: Group = opener(target, **access, **which)
    return group[path] if path.strip("/") else group


def _check_no_version(target: Any, *which: Any) -> None:
    if any(choice is not None for choice in which):
        raise UnsupportedError(
            "version, at and tag are of datasets with versions, which this is none",
            file=str(target),
        )


def _check_node(node: Array | Group, uri: str, params: ArrayParams) -> None:
    """Refuse a node that is not as asked for."""
    if isinstance(node, Array):
        check_params(node, uri, params)
        return
    # zarr_format and attributes describe groups as well: only the others ask for an array.
    names = [name for name in params if name not in ("zarr_format", "attributes")]
    if any(params[name] is not None for name in names):  # type: ignore[literal-required]
        raise NodeNotFoundError(
            f"there is no array at {node.path!r}, but a group: it has no {names[0]}", file=uri
        )


def _format_of(target: Any, mode: str, storage_options: Mapping[str, Any] | None) -> str:
    if isinstance(target, str) or hasattr(target, "__fspath__"):
        name = os.fspath(target)
        if mode in ("a", "w", "w-") and (is_url(name) or not os.path.isfile(name)):
            # There may be nothing yet; but a dataset with a history is not written over.
            is_dataset = not is_url(name) and get_format("dataset").has_path(name)
            return "dataset" if is_dataset else "zarr"
        return detect(target, storage_options)
    if is_session(target):
        return "icechunk"
    # Values tell a store from references in memory: those have texts and lists, stores have bytes.
    is_refs = isinstance(target, Mapping) and not all(
        isinstance(value, (bytes, bytearray, memoryview)) for value in target.values()
    )
    return "kerchunk" if is_refs else "zarr"


def _open_zarr(
    resolved: ResolvedTarget,
    location: Location,
    use_consolidated: bool | None,
    params: ArrayParams,
) -> Array | Group:
    store, path = resolved.store, resolved.path
    if (metadata := resolved.read()) is not None:
        node = build_node(metadata, store, path, location, use_consolidated)
        _check_node(node, store.uri, params)
        return node
    overwrite = resolved.mode == "w"
    if params.get("shape") is not None:
        return create_array(store, name=path, overwrite=overwrite, **params)
    return create_group(
        store,
        path=path,
        zarr_format=resolved.zarr_format,
        attributes=params.get("attributes"),
        overwrite=overwrite,
    )
