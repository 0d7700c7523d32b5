"""Metadata documents of a node by the names they are stored under, parsed and written.

Zarr v2 spreads a node over `.zarray` or `.zgroup` and `.zattrs`; v3 has one `zarr.json`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from virtualzarr.metadata import groups, json_documents, model, repair, v2, v3

Documents = dict[str, dict[str, Any]]
"""The documents of a node by the names they are stored under; the first defines the node."""

ARRAY_DOCUMENTS = {2: ".zarray", 3: "zarr.json"}
"""The document that defines an array, by Zarr format."""

_FIRST = ("zarr_format", "node_type", "attributes")


def from_documents(documents: Mapping[str, Any]) -> model.ArrayMetadata | model.GroupMetadata:
    """Parse the documents of a node, v3 before v2; a group has what is consolidated in it.

    Raises
    ------
    MetadataError, UnsupportedError
        A document breaks its specification, or needs what this package does not have; the message
        names the member.

    Examples
    --------
    >>> from_documents({".zgroup": {"zarr_format": 2}, ".zattrs": {"title": "weather"}}).attributes
    {'title': 'weather'}
    """
    if "zarr.json" in documents:
        document = documents["zarr.json"]
        is_group = isinstance(document, Mapping) and document.get("node_type") == "group"
        return parse_group(documents, 3) if is_group else parse_array(documents, 3)
    if ".zarray" in documents:
        return parse_array(documents, 2)
    # Some writers consolidate a hierarchy whose root has a .zmetadata and nothing else.
    return parse_group({".zgroup": {"zarr_format": 2}, **documents}, 2)


def parse_array(documents: Mapping[str, Any], zarr_format: int) -> model.ArrayMetadata:
    """Parse the documents of an array of a Zarr format."""
    if zarr_format == 3:
        return v3.parse_array_v3(documents["zarr.json"])
    return v2.parse_array_v2(documents[".zarray"], documents.get(".zattrs"))


def parse_group(documents: Mapping[str, Any], zarr_format: int) -> model.GroupMetadata:
    """Parse the documents of a group of a Zarr format."""
    if zarr_format == 3:
        return groups.parse_group_v3(documents["zarr.json"])
    group = groups.parse_group_v2(documents[".zgroup"], documents.get(".zattrs"))
    if (consolidated := documents.get(".zmetadata")) is None:
        return group
    return group.replace(consolidated=groups.parse_consolidated_v2(consolidated))


def to_documents(metadata: model.ArrayMetadata | model.GroupMetadata) -> Documents:
    """Return the documents of a single node: of a group without consolidated metadata.

    Raises
    ------
    UnsupportedError
        The Zarr format has no form for something in it.
    """
    if metadata.zarr_format == 3:
        if isinstance(metadata, model.ArrayMetadata):
            return {"zarr.json": v3.array_to_v3(metadata)}
        return {"zarr.json": groups.group_to_v3(metadata.replace(consolidated=None))}
    if isinstance(metadata, model.ArrayMetadata):
        name, (main, attributes) = ".zarray", v2.array_to_v2(metadata)
    else:
        name, (main, attributes) = ".zgroup", groups.group_to_v2(metadata)
    # An empty .zattrs says nothing, and would cost each reader of the node a request.
    return {name: main} | ({".zattrs": attributes} if attributes else {})


def as_written(metadata: model.ArrayMetadata) -> model.ArrayMetadata:
    """Return the metadata of an array as they are read back from its documents.

    Raises
    ------
    UnsupportedError
        They have no form in documents.
    """
    return parse_array(to_documents(metadata), metadata.zarr_format)


def to_json(metadata: model.ArrayMetadata | model.GroupMetadata) -> dict[str, Any]:
    """Return the documents of a node as one JSON object: format, kind and attributes first.

    Source: ZEP 6, in which v2's attributes are a member, too.
    """
    documents = to_documents(metadata)
    (main, *_) = documents.values()
    document = {"attributes": documents.get(".zattrs", {}), **main}
    return {name: document.pop(name) for name in _FIRST if name in document} | document


def split_json(document: Mapping[str, Any], name: str) -> Documents:
    """Return the documents that one JSON object stands for; `name` is that of the first."""
    if name == "zarr.json":
        return {name: dict(document)}
    main = {key: value for key, value in document.items() if key != "attributes"}
    attributes = document.get("attributes")
    return {name: main} | ({} if attributes is None else {".zattrs": attributes})


def array_from_json(document: Mapping[str, Any], zarr_format: int) -> model.ArrayMetadata:
    """Parse the metadata of an array from one JSON object, also as the examples of ZEP 6 spell it.

    Raises
    ------
    MetadataError, UnsupportedError
        As for the metadata documents of arrays; the message names the member.
    """
    document = json_documents.as_object(document)
    json_documents.require_format(document, zarr_format)
    json_documents.require(document, "shape")
    document = repair.empty_filters(document) if zarr_format == 2 else repair.early_names(document)
    return parse_array(split_json(document, ARRAY_DOCUMENTS[zarr_format]), zarr_format)
