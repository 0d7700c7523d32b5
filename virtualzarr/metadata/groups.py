"""Group documents and consolidated metadata of Zarr v2 and v3, parsed and written."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from virtualzarr.errors import MetadataError, UnsupportedError, VirtualZarrError
from virtualzarr.metadata import repair
from virtualzarr.metadata.json_documents import as_object, member, require_format, short
from virtualzarr.metadata.model import ArrayMetadata, Consolidated, GroupMetadata
from virtualzarr.metadata.paths import normalize_path
from virtualzarr.metadata.v2 import array_to_v2, parse_array_v2, parse_attributes
from virtualzarr.metadata.v3 import array_to_v3, check_node, optional_members, parse_array_v3

_V2_NAMES = (".zarray", ".zgroup", ".zattrs")
_V3_MEMBERS = ("zarr_format", "node_type", "attributes", "consolidated_metadata")


def parse_group_v2(
    zgroup: Mapping[str, Any], zattrs: Mapping[str, Any] | None = None
) -> GroupMetadata:
    """Read the v2 documents of a group: `.zgroup`, and `.zattrs` where there is one.

    Source: Zarr v2 specification, groups.
    """
    with member(".zgroup"):
        zgroup = as_object(zgroup)
        require_format(zgroup, 2)
    # zarr-python 3 leaves a consolidated_metadata here, too; in v2 it belongs in `.zmetadata`.
    members = ("zarr_format", "consolidated_metadata")
    extra = {name: zgroup[name] for name in zgroup if name not in members}
    return GroupMetadata(parse_attributes(zattrs), 2, extra)


def group_to_v2(metadata: GroupMetadata) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the v2 documents `.zgroup` and `.zattrs` of a group."""
    return {"zarr_format": 2, **metadata.extra}, dict(metadata.attributes)


def parse_consolidated_v2(document: Mapping[str, Any]) -> Consolidated:
    """Read a `.zmetadata` document; the root group has the path "".

    Raises
    ------
    MetadataError
        The document itself is broken. Broken metadata of single nodes is in `skipped`.
    """
    with member(".zmetadata"):
        document = as_object(document)
        if document.get("zarr_consolidated_format") != 1:
            stored = short(document.get("zarr_consolidated_format"))
            raise MetadataError(f"zarr_consolidated_format: must be 1, not {stored}")
        with member("metadata"):
            return parse_documents_v2(as_object(document.get("metadata")))


def parse_documents_v2(documents: Mapping[str, Any]) -> Consolidated:
    """Read v2 documents by their keys, such as `a/.zarray`, in any order.

    Examples
    --------
    >>> parse_documents_v2({"a/.zattrs": {"b": 1}, "a/.zgroup": {"zarr_format": 2}}).nodes["a"]
    GroupMetadata(attributes={'b': 1}, zarr_format=2, extra={}, consolidated=None)
    """
    # One pass to gather each node's documents, then one to parse: keys are in any order. Broken
    # nodes are kept with their errors, so that the others can be opened.
    by_path: dict[str, dict[str, Any]] = {}
    for key, value in documents.items():
        path, _, name = key.rpartition("/")
        if name not in _V2_NAMES:
            raise MetadataError(f"{key}: not the key of a metadata document")
        by_path.setdefault(normalize_path(path), {})[name] = value
    result = Consolidated()
    for path, parts in by_path.items():
        try:
            result.nodes[path] = _parse_node_v2(parts)
        except VirtualZarrError as error:
            result.skipped[path] = error.at(variable=path or "/")
    return result


def _parse_node_v2(parts: Mapping[str, Any]) -> ArrayMetadata | GroupMetadata:
    if ".zarray" in parts:
        return parse_array_v2(parts[".zarray"], parts.get(".zattrs"))
    if ".zgroup" in parts:
        return parse_group_v2(parts[".zgroup"], parts.get(".zattrs"))
    raise MetadataError(".zattrs: there is neither .zarray nor .zgroup beside it")


def consolidated_to_v2(consolidated: Consolidated) -> dict[str, Any]:
    """Return the `.zmetadata` document of a hierarchy whose root has the path ""."""
    _check_complete(consolidated)
    documents: dict[str, Any] = {}
    for path, node in consolidated.nodes.items():
        lead = f"{path}/" if path else ""
        with member(path or "/"):
            if isinstance(node, GroupMetadata):
                documents[f"{lead}.zgroup"], documents[f"{lead}.zattrs"] = group_to_v2(node)
            else:
                documents[f"{lead}.zarray"], documents[f"{lead}.zattrs"] = array_to_v2(node)
    return {"metadata": documents, "zarr_consolidated_format": 1}


def parse_group_v3(document: Mapping[str, Any]) -> GroupMetadata:
    """Read the v3 document of a group, with the metadata consolidated in it.

    Source: Zarr v3 core specification, group metadata.

    Raises
    ------
    MetadataError
        The document breaks the specification; the message names the member.
    """
    with member("zarr.json"):
        document = repair.null_members(as_object(document))
        check_node(document, "group", _V3_MEMBERS)
        with member("attributes"):
            attributes = as_object(document.get("attributes", {}))
        consolidated = None
        if "consolidated_metadata" in document:
            with member("consolidated_metadata"):
                consolidated = parse_consolidated_v3(document["consolidated_metadata"])
        extra = {name: document[name] for name in document if name not in _V3_MEMBERS}
        return GroupMetadata(attributes, 3, extra, consolidated)


def group_to_v3(metadata: GroupMetadata) -> dict[str, Any]:
    """Return the v3 document of a group, with its consolidated metadata if it has any."""
    document: dict[str, Any] = {"attributes": dict(metadata.attributes), "zarr_format": 3}
    if metadata.consolidated is not None:
        document["consolidated_metadata"] = consolidated_to_v3(metadata.consolidated)
    document["node_type"] = "group"
    return document | optional_members(metadata.extra)


def parse_consolidated_v3(value: Mapping[str, Any]) -> Consolidated:
    """Read the member `consolidated_metadata` of a v3 group, in any order of paths.

    Groups inside may have consolidated metadata of their own; where the two differ, the outer one,
    which was written later, counts.

    Raises
    ------
    MetadataError
        The member itself is broken. Broken metadata of single nodes is in `skipped`.
    """
    value = as_object(value)
    if value.get("kind", "inline") != "inline":
        raise MetadataError(f"kind: must be 'inline', not {short(value.get('kind'))}")
    with member("metadata"):
        documents = as_object(value.get("metadata"))
    # zarr-python writes consolidated metadata for each group it consolidates, and these nest. An
    # inner one is not updated when the outer is written: its nodes count only where the outer one
    # says nothing, which also holds for nodes that could not be read.
    result, inner = Consolidated(), Consolidated()
    for key, document in documents.items():
        path = normalize_path(key)
        try:
            node = _parse_node_v3(document)
        except VirtualZarrError as error:
            result.skipped[path] = error.at(variable=path)
            continue
        if isinstance(node, GroupMetadata) and node.consolidated is not None:
            _add_inner(inner, path, node.consolidated)
            node = node.replace(consolidated=None)
        result.nodes[path] = node
    outer = {*result.nodes, *result.skipped}
    nodes = {path: node for path, node in inner.nodes.items() if path not in outer}
    skipped = {path: error for path, error in inner.skipped.items() if path not in outer}
    return Consolidated(result.nodes | nodes, result.skipped | skipped)


def _add_inner(inner: Consolidated, path: str, below: Consolidated) -> None:
    inner.nodes.update({f"{path}/{name}": node for name, node in below.nodes.items()})
    inner.skipped.update({f"{path}/{name}": error for name, error in below.skipped.items()})


def _parse_node_v3(document: Any) -> ArrayMetadata | GroupMetadata:
    node_type = as_object(document).get("node_type")
    if node_type == "group":
        return parse_group_v3(document)
    return parse_array_v3(document)


def consolidated_to_v3(consolidated: Consolidated) -> dict[str, Any]:
    """Return the member `consolidated_metadata` of the document of a v3 group."""
    _check_complete(consolidated)
    documents: dict[str, Any] = {}
    for path, node in consolidated.nodes.items():
        with member(path or "/"):
            documents[path] = (
                group_to_v3(node) if isinstance(node, GroupMetadata) else array_to_v3(node)
            )
    return {"kind": "inline", "must_understand": False, "metadata": documents}


def _check_complete(consolidated: Consolidated) -> None:
    # Readers of consolidated metadata do not look for other nodes: leaving one out deletes it.
    for path, error in consolidated.skipped.items():
        raise UnsupportedError(
            f"the consolidated metadata cannot be written again without {path!r}, whose metadata "
            f"could not be read ({error.message})"
        )
