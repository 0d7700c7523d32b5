"""Opening of what is stored in a Zarr hierarchy, array or group, or creation of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from virtualzarr.array import Array
from virtualzarr.errors import NodeNotFoundError
from virtualzarr.hierarchy.create import check_params, create_array
from virtualzarr.hierarchy.group import Group
from virtualzarr.hierarchy.open_node import build_node, create_group
from virtualzarr.hierarchy.resolve import Mode, resolve
from virtualzarr.metadata.create import ArrayParams
from virtualzarr.stores.open_store import store_location


def open_zarr(
    target: Any,
    path: str,
    mode: Mode,
    params: ArrayParams,
    *,
    storage_options: Mapping[str, Any] | None = None,
    allowed: str | Iterable[str] | None = None,
    use_consolidated: bool | None = None,
    metadata_key: str | None = None,
) -> Array | Group:
    """Open the array or group under a path, or create it; parameters are those of `open`.

    Raises
    ------
    NodeNotFoundError, NodeExistsError
        Nothing is stored under the path, or something is, as the mode has it.
    MismatchError
        What is there is not as asked for.
    """
    resolved = resolve(
        target,
        path,
        mode,
        storage_options=storage_options,
        zarr_format=params.get("zarr_format"),
        metadata_key=metadata_key,
    )
    store, path = resolved.store, resolved.path
    location = store_location(store, allowed, storage_options)
    # Only documents of arrays have other names than usual.
    metadata = resolved.read(None if metadata_key is None else "array")
    if metadata is not None:
        node = build_node(metadata, store, path, location, use_consolidated)
        check_node(node, store.uri, params)
        return node
    overwrite = mode == "w"
    if metadata_key is not None or params.get("shape") is not None:
        return create_array(store, name=path, overwrite=overwrite, **params)
    return create_group(
        store,
        path=path,
        zarr_format=resolved.zarr_format,
        attributes=params.get("attributes"),
        overwrite=overwrite,
    )


def check_node(node: Array | Group, uri: str, params: ArrayParams) -> None:
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
