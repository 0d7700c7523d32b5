"""Renamed variables and dimensions of groups."""

from __future__ import annotations

from collections.abc import Mapping

from virtualzarr.array import Array
from virtualzarr.combine.groups import REFERENCE_ATTRIBUTES
from virtualzarr.hierarchy.group import Group


def rename_members(group: Group, names: Mapping[str, str], path: str = "") -> Group:
    """Do what `Group.rename` does."""
    members: dict[str, Array | Group] = {}
    for name in group:
        node, new = group[name], names.get(name, name)
        # Two members may swap names, so that only names which stay are in the way.
        if new in members or (new != name and new in group and new not in names):
            raise ValueError(f"{path}/{new}: two members would be called so")
        if isinstance(node, Group):
            members[new] = rename_members(node, names, f"{path}/{new}")
        else:
            members[new] = _rename_array(node, names).with_path(f"{path}/{new}".lstrip("/"))
    attributes = _rename_in_attributes(group.attrs, names)
    skipped = {"/".join(names.get(part, part) for part in where.split("/")): why
               for where, why in group.skipped.items()}  # fmt: skip
    return Group(attributes, members, group.path, skipped)


def _rename_array(array: Array, names: Mapping[str, str]) -> Array:
    dims = {dim: names[dim] for dim in array.dims if dim is not None and dim in names}
    attributes = _rename_in_attributes(array.attrs, names)
    if not dims and attributes == array.attrs:
        return array
    renamed = array.lazy.rename_dims(dims)
    renamed.metadata = renamed.metadata.replace(attributes=attributes)
    return renamed


def _rename_in_attributes(
    attributes: Mapping[str, object], names: Mapping[str, str]
) -> dict[str, object]:
    """Return attributes in which those that refer to variables, as CF has them, follow."""
    renamed = dict(attributes)
    for key in REFERENCE_ATTRIBUTES:
        if isinstance(text := renamed.get(key), str):
            # `grid_mapping` may be written as "crs: x y" (CF 1.11, section 5.6): the colon stays.
            renamed[key] = " ".join(_rename_word(word, names) for word in text.split(" "))
    return renamed


def _rename_word(word: str, names: Mapping[str, str]) -> str:
    bare = word.removesuffix(":")
    return names.get(bare, bare) + word[len(bare) :]
