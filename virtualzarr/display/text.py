"""Text representations of groups: the tree of members, and a table of facts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from virtualzarr.array import Array
from virtualzarr.errors import VirtualZarrError

if TYPE_CHECKING:
    from virtualzarr.hierarchy.group import Group


def tree(group: Group, level: int | None = None) -> str:
    """Return a picture of a hierarchy; see `Group.tree`."""
    return "\n".join([f"/{group.path}", *_branches(group, level)])


def _branches(group: Group, level: int | None) -> Iterator[str]:
    if level is not None and level <= 0:
        return
    names = list(group)
    for i, name in enumerate(names, 1):
        node = group[name]
        fork, stem = ("└── ", "    ") if i == len(names) else ("├── ", "│   ")
        facts = f" {node.shape} {node.dtype}" if isinstance(node, Array) else ""
        yield f"{fork}{name}{facts}"
        if not isinstance(node, Array):
            deeper = None if level is None else level - 1
            yield from (stem + line for line in _branches(node, deeper))


def info(group: Group) -> str:
    """Return what there is to know of a group, a line each; see `Group.info`."""
    # Members are opened once, as each costs a request where nothing is consolidated.
    nodes = [node for _, node in group.members(max_depth=None)]
    arrays = [node for node in nodes if isinstance(node, Array)]
    rows = {
        "Name": f"/{group.path}",
        "Arrays": len(arrays),
        "Groups": len(nodes) - len(arrays),
        "Chunks": sum(array.nchunks for array in arrays),
        "Bytes": f"{sum(array.nbytes for array in arrays):,}",
        "Skipped": len(group.skipped),
    }
    if group.ignored_keys:
        plural = "" if group.ignored_keys == 1 else "s"
        rows["Ignored"] = f"{group.ignored_keys} key{plural}, neither metadata nor chunks"
    return "\n".join(f"{name:<11}: {value}" for name, value in rows.items())


def representation(group: Group) -> str:
    """Return a group in one line, as Python shows it."""
    try:
        members = f"{len(group)} member{'' if len(group) == 1 else 's'}"
    except VirtualZarrError:
        members = "members unknown"
    name = f" {group.path}" if group.path else ""
    skipped = f", {len(group.skipped)} skipped" if group.skipped else ""
    return f"<Group{name}: {members}{skipped}>"
