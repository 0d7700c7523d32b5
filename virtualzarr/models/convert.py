"""Conversion of models between Zarr v2 and v3, where nothing is lost, and their classes."""

from __future__ import annotations

from typing import Any

from virtualzarr.errors import UnsupportedError, error_context
from virtualzarr.metadata.convert_format import convert_array, convert_group
from virtualzarr.models import v2, v3
from virtualzarr.models.array import ArraySpecBase
from virtualzarr.models.group import GroupSpecBase
from virtualzarr.models.node import NodeSpec

ArrayClass = type[ArraySpecBase[Any]]
GroupClass = type[GroupSpecBase[Any, Any]]

_CLASSES: dict[int, tuple[ArrayClass, GroupClass]] = {
    2: (v2.ArraySpec, v2.GroupSpec),
    3: (v3.ArraySpec, v3.GroupSpec),
}


def spec_classes(zarr_format: int) -> tuple[ArrayClass, GroupClass]:
    """Return the classes of models of arrays and of groups."""
    if zarr_format not in _CLASSES:
        raise UnsupportedError(f"zarr_format {zarr_format}; known are 2 and 3")
    return _CLASSES[zarr_format]


def convert(model: NodeSpec[Any], zarr_format: int, *, new_keys: bool = False) -> Any:
    """Return a model in another Zarr format; see `NodeSpec.to_format`."""
    array, group = spec_classes(zarr_format)
    if zarr_format == model.zarr_format:
        return model
    converted: dict[str, NodeSpec] = {}
    # Node by node, so that an error names the one that has no form in the other format.
    for path, node in model.to_flat().items():
        with error_context(variable=path or "/"):
            if isinstance(node, ArraySpecBase):
                metadata = convert_array(node.metadata, zarr_format, new_keys=new_keys)
                converted[path] = array.from_metadata(metadata)
            else:
                # Members of flat groups: none, or None where nobody looked. from_flat nests them.
                new: Any = convert_group(node.metadata, zarr_format)  # type: ignore[arg-type]
                converted[path] = group._of(new, members=node.members)  # type: ignore[attr-defined]
    return converted[""] if model.node_type == "array" else group.from_flat(converted)
