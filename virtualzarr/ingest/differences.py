"""First difference between two groups that are to be the same in everything."""

from __future__ import annotations

from virtualzarr.array import Array
from virtualzarr.batches.schema import freeze
from virtualzarr.hierarchy.group import Group


def find_difference(group: Group, other: Group) -> str:
    """Return in what two groups of a scan differ, empty if in nothing that a user can see.

    Examples
    --------
    >>> find_difference(Group({"a": 1}), Group({"a": 1.0}))
    'the attributes of /'
    """
    where = f"/{group.path}"
    if group.path != other.path or group.skipped != other.skipped:
        return f"path or skipped variables of {where}"
    if not _same_attributes(group.attributes, other.attributes):
        return f"the attributes of {where}"
    if list(group) != list(other):
        return f"the members of {where}"
    for name in group:
        node, twin = group[name], other[name]
        if isinstance(node, Group) and isinstance(twin, Group):
            difference = find_difference(node, twin)
        elif isinstance(node, Array) and isinstance(twin, Array):
            difference = _compare_arrays(node, twin)
        else:
            difference = f"what {node.path} is"
        if difference:
            return difference
    return ""


def _compare_arrays(array: Array, other: Array) -> str:
    where = f"/{array.path}"
    if array.path != other.path or array.metadata != other.metadata:
        return f"the metadata of {where}"
    if not _same_attributes(array.metadata.attributes, other.metadata.attributes):
        return f"the attributes of {where}"
    if array.manifest != other.manifest:
        return f"the references of {where}"
    return "" if array.file_layout == other.file_layout else f"the layout in the file of {where}"


def _same_attributes(attributes: dict[str, object], other: dict[str, object]) -> bool:
    """Whether attributes are the same to the bit, in the same order and of the same dtypes."""
    return bool(freeze(attributes) == freeze(other))
