"""Descriptions of nodes for the terminal: as a tree, as text, as JSON."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from virtualzarr.array import Array, chunk_inventory
from virtualzarr.display.summaries import axes_text, chunk_lengths
from virtualzarr.errors import UnsupportedError
from virtualzarr.hierarchy.group import Group
from virtualzarr.metadata.create import to_plain_json
from virtualzarr.redaction import hide_in_url


def describe(node: Array | Group) -> str:
    """Return the tree of a group with each array's chunks and codecs, and what was skipped.

    Examples
    --------
    >>> print(describe(Group({"title": "weather"}, {"inner": Group()})))
    /
    │ title: weather
    └── inner
    <BLANKLINE>
    0 arrays, 2 groups, 0 chunks, 0 bytes
    """
    if isinstance(node, Array):
        return f"{node.info}\nStored     : {_describe_storage(node)}"
    nodes = [one for _, one in node.members(None)]
    arrays = [one for one in nodes if isinstance(one, Array)]
    groups = 1 + len(nodes) - len(arrays)
    nbytes = sum(array.nbytes for array in arrays)
    chunks = sum(array.nchunks for array in arrays)
    lines = [f"/{node.path}", *_attributes(node, "│ "), *_members(node), ""]
    lines.append(
        f"{count(len(arrays), 'array')}, {count(groups, 'group')}, {count(chunks, 'chunk')}, "
        f"{count(nbytes, 'byte')}"
    )
    return "\n".join([*lines, *_iter_skipped(node)])


def tree(node: Array | Group, level: int | None = None) -> str:
    """Return the names, shapes and data types in a group, and what was skipped.

    Examples
    --------
    >>> print(tree(Group({}, {"inner": Group({}, {"deep": Group()})}), level=1))
    /
    └── inner
    """
    if isinstance(node, Array):
        return f"/{node.path} {node.shape} {node.dtype}"
    return "\n".join([node.tree(level), *_iter_skipped(node)])


def as_json(node: Array | Group, level: int | None = None) -> dict[str, Any]:
    """Return what is in a node as JSON has it.

    Examples
    --------
    >>> as_json(Group({"title": "weather"}))
    {'node': 'group', 'attributes': {'title': 'weather'}, 'members': {}, 'skipped': {}}
    """
    if isinstance(node, Array):
        return {
            "node": "array",
            "shape": list(node.shape),
            "dtype": str(node.dtype),
            "dimension_names": list(node.dims),
            "chunks": chunk_lengths(node),
            "codecs": [codec.name for codec in node.metadata.pipeline.codecs],
            "nchunks": node.nchunks,
            "nbytes": node.nbytes,
            "attributes": to_plain_json(dict(node.attrs)),
        }
    result: dict[str, Any] = {"node": "group", "attributes": to_plain_json(dict(node.attrs))}
    if level is None or level > 0:
        deeper = None if level is None else level - 1
        result["members"] = {name: as_json(node[name], deeper) for name in node}
    return {**result, "skipped": dict(node.skipped)}


def _iter_skipped(group: Group) -> Iterator[str]:
    if group.skipped:
        yield from ("", f"{len(group.skipped)} skipped:")
        yield from (f"  {path}: {reason}" for path, reason in group.skipped.items())


def _describe_storage(array: Array) -> str:
    """Say how much of an array there is, by listing its store."""
    try:
        # A listing of the store: stores over plain HTTP have none.
        nbytes, objects = array.nbytes_stored(), chunk_inventory.count_objects(array)
    except UnsupportedError as error:
        return f"not known: {error.message}"
    if not (nbytes or array.is_virtual):
        return "not known: the store lists nothing"
    noun = "chunk" if array.shards is None else "shard"
    cells = math.prod(array.grid.grid_shape)
    ratio = f", ratio {array.nbytes / nbytes:.3g}" if nbytes and array.nbytes else ""
    return f"{objects:,} of {count(cells, noun)}, {count(nbytes, 'byte')}{ratio}"


def count(number: int, noun: str) -> str:
    """Return a number and what it counts."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def _members(group: Group) -> Iterator[str]:
    for i, name in enumerate(group, 1):
        node = group[name]
        fork, stem = ("└── ", "    ") if i == len(group) else ("├── ", "│   ")
        if isinstance(node, Group):
            yield f"{fork}{name}"
            inner = [*_attributes(node, "│ "), *_members(node)]
        else:
            yield f"{fork}{name} {axes_text(node)} {node.dtype}"
            inner = [f"  {line}" for line in _iter_storage(node)]
        yield from (stem + line for line in inner)


def _attributes(node: Group, stem: str) -> Iterator[str]:
    for name, value in node.attrs.items():
        # Histories run over pages; one line tells what it is.
        text = str(value).split("\n")[0]
        yield f"{stem}{name}: {text[:70]}{'...' if len(text) > 70 else ''}"


def _iter_storage(array: Array) -> Iterator[str]:
    codecs = " > ".join(codec.name for codec in array.metadata.pipeline.codecs)
    yield f"{count(array.nchunks, 'chunk')} of {chunk_lengths(array)}, {codecs}"
    if array.is_virtual:
        names = [hide_in_url(source.uri) or "inline" for source in array.manifest.sources]
        others = f" and {len(names) - 2} more" if len(names) > 2 else ""
        missing = array.nchunks - array.manifest.nrefs
        never = f", {missing:,} never written" if missing else ""
        yield f"in {', '.join(names[:2])}{others}{never}" if names else "never written"
        # Chunks with another decoder than the array declares: no other reader has a place for it.
        odd = array.nchunks - int(np.count_nonzero(array.manifest.canonical))
        if odd:
            yield f"{odd:,} of them decode in their own way: publishing them needs a copy"
