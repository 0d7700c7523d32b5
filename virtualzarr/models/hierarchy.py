"""Models read from whatever can be opened, and hierarchies created from models."""

from __future__ import annotations

from typing import Any

from virtualzarr.array import Array
from virtualzarr.hierarchy.group import Group
from virtualzarr.hierarchy.open_node import open_hierarchy
from virtualzarr.metadata import loads_json
from virtualzarr.models.convert import spec_classes
from virtualzarr.models.node import NodeSpec
from virtualzarr.nodes import consolidated
from virtualzarr.nodes.documents import validate_path
from virtualzarr.nodes.write_nodes import write_hierarchy
from virtualzarr.stores import open_store


def read(node: Any, path: str = "", *, depth: int | None = None, **options: Any) -> Any:
    """Return the model of a hierarchy.

    Parameters
    ----------
    node : Array, Group, those of zarr-python, or what `virtualzarr.open` opens
    path : str
        Which node of it; the root by default.
    depth : int, optional
        How deep to look: 0 is the node alone. The members of groups there are None. All by default.
    **options
        For `virtualzarr.open`.

    Returns
    -------
    ArraySpec or GroupSpec
        Of `v2` or `v3`. Virtual arrays of another format than the group's get its keys.

    Examples
    --------
    >>> import virtualzarr as vz
    >>> group = vz.create_group({}, attributes={"title": "weather"})
    >>> x = group.create_array("a/x", shape=(4, 6), dtype="i4")
    >>> list(read(group).to_flat())
    ['', 'a', 'a/x']
    >>> read(group, depth=1).members["a"].members is None
    True
    """
    # By module name, as importing zarr to ask isinstance would cost all who do not have it.
    if type(node).__module__.startswith("zarr.") and hasattr(node, "metadata"):
        node = node[path] if path.strip("/") else node
        array, group = spec_classes(node.metadata.zarr_format)
        document = _to_json(node, depth)
        return (array if "shape" in document else group).from_json(document)
    if not isinstance(node, Array | Group):
        from virtualzarr.ingest.open_target import open

        node = open(node, path, **options)
    elif path.strip("/") and isinstance(node, Group):
        node = node[path]
    return _build_model(node, node.metadata.zarr_format, depth)


def _build_model(node: Array | Group, zarr_format: int, depth: int | None) -> NodeSpec:
    array, group = spec_classes(zarr_format)
    if isinstance(node, Array):
        # Virtual arrays have no keys yet: those of the group's format are as good as any.
        metadata = node.metadata
        return array.from_metadata(metadata.as_format(zarr_format) if node.is_virtual else metadata)
    members = None
    if depth is None or depth > 0:
        deeper = None if depth is None else depth - 1
        members = {name: _build_model(node[name], zarr_format, deeper) for name in node}
    return group(attributes=node.attributes, members=members, extra=node.metadata.extra)


def _to_json(node: Any, depth: int | None) -> dict[str, Any]:
    """Return the JSON object of ZEP 6 for an array or a group of zarr-python."""
    from zarr.core.buffer import default_buffer_prototype

    # zarr-python's own encoder writes the documents: its classes in memory change between versions.
    buffers = node.metadata.to_buffer_dict(default_buffer_prototype())
    documents = {name: loads_json(data.to_bytes()) for name, data in buffers.items()}
    main = next(name for name in ("zarr.json", ".zarray", ".zgroup") if name in documents)
    document: dict[str, Any] = documents[main]
    # Members are read below, from nodes as they are: the consolidated ones may be stale.
    document.pop("consolidated_metadata", None)
    if main != "zarr.json":
        document["attributes"] = documents.get(".zattrs", {})
    if "shape" not in document and (depth is None or depth > 0):
        deeper = None if depth is None else depth - 1
        document["members"] = {name: _to_json(inner, deeper) for name, inner in node.members()}
    return document


def create(
    model: NodeSpec[Any],
    store: Any,
    path: str = "",
    *,
    overwrite: bool = False,
    consolidate: bool = False,
    storage_options: dict[str, Any] | None = None,
) -> Array | Group:
    """Make a hierarchy in a store; see `NodeSpec.create`."""
    target = open_store(store, storage_options)
    root = validate_path(path, model.zarr_format)
    nodes = {name: node.metadata for name, node in model.to_flat().items()}
    write_hierarchy(target, root, nodes, overwrite=overwrite)
    # Last: if it were there before, each node would rewrite the consolidated document.
    if consolidate and model.node_type == "group":
        consolidated.consolidate(target, root)
    return open_hierarchy(target, root, zarr_format=model.zarr_format)
