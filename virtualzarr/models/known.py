"""Which class of models is for which node: by Zarr format, and for arrays or groups."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from virtualzarr.errors import UnsupportedError
from virtualzarr.metadata import ArrayMetadata, GroupMetadata
from virtualzarr.models import v2, v3
from virtualzarr.models.array import ArraySpecBase
from virtualzarr.models.group import GroupSpecBase
from virtualzarr.models.node import NodeSpec

ArrayClass = type[ArraySpecBase[Any]]
GroupClass = type[GroupSpecBase[Any, Any]]

_MODELS: dict[int, tuple[ArrayClass, GroupClass]] = {
    2: (v2.ArraySpec, v2.GroupSpec),
    3: (v3.ArraySpec, v3.GroupSpec),
}


def models(zarr_format: int) -> tuple[ArrayClass, GroupClass]:
    """Return the classes of models of arrays and of groups."""
    if zarr_format not in _MODELS:
        raise UnsupportedError(f"zarr_format {zarr_format}; known are 2 and 3")
    return _MODELS[zarr_format]


def spec_of(metadata: ArrayMetadata | GroupMetadata) -> NodeSpec:
    """Return the model of metadata; whether they have a form in documents shows when it is asked.

    A group has the members that are consolidated in it, or none that are known.
    """
    array, group = models(metadata.zarr_format)
    return array._of(metadata) if isinstance(metadata, ArrayMetadata) else group._of(metadata)


def as_written(metadata: ArrayMetadata) -> ArrayMetadata:
    """Return the metadata of an array as they are read back from its documents.

    Raises
    ------
    UnsupportedError
        They have no form in documents.
    """
    spec = models(metadata.zarr_format)[0]._of(metadata)
    return spec.from_documents(spec.to_documents()).metadata


def from_documents(documents: Mapping[str, Any]) -> NodeSpec:
    """Return the model that a node's documents have, by their names, v3 before v2.

    Examples
    --------
    >>> from_documents({".zgroup": {"zarr_format": 2}, ".zattrs": {"title": "weather"}})
    GroupSpec(attributes={'title': 'weather'}, members=None, extra={})
    """
    if "zarr.json" in documents:
        document = documents["zarr.json"]
        array, group = _MODELS[3]
        is_group = isinstance(document, Mapping) and document.get("node_type") == "group"
        return (group if is_group else array).from_documents(documents)
    array, group = _MODELS[2]
    if ".zarray" in documents:
        return array.from_documents(documents)
    return group.from_documents({".zgroup": {"zarr_format": 2}, **documents})
