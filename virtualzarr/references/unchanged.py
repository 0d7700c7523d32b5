"""What of published references stays as it is when others are added."""

from __future__ import annotations

from typing import Any

import numpy as np

from virtualzarr.manifest import Manifest
from virtualzarr.references.kerchunk.scan import Opened
from virtualzarr.references.plan import Plan
from virtualzarr.references.reopen import arrays_of


def kept(opened: Opened, plan: Plan) -> dict[str, Any]:
    """Return how much of a folder of references stays as it is, if the rest can be added to it."""
    folder = opened.folder
    if folder is None:
        return {}
    there = {}
    for path, array in arrays_of(opened.node).items():
        count = array.manifest.ncells
        new = plan.arrays.get(path)
        # What is copied now has other codecs, though its reference is still that of before.
        if new is None or (new.odd < count).any() or not _begins_with(new.manifest, array.manifest):
            return {"record_size": folder.record_size}
        there[path] = count
    if folder.series is None or len(plan.arrays) != len(there):
        return {"record_size": folder.record_size}
    return {"record_size": folder.record_size, "keep": there, "series": folder.series}


def kept_cells(opened: Opened, plan: Plan) -> dict[str, Any]:
    """Return how many cells along each axis of arrays in a repository stay as they are."""
    there = {}
    for path, array in arrays_of(opened.node).items():
        if path not in plan.arrays:
            return {}
        new, old = plan.arrays[path].manifest, array.manifest
        grown = sum(n > k for n, k in zip(new.shape, old.shape, strict=True))
        kept_before = np.zeros(new.shape, bool)
        kept_before[tuple(map(slice, old.shape))] = True
        if kept_before.reshape(-1)[plan.arrays[path].odd].any():
            return {}  # What is copied now has other codecs than its reference of before.
        if grown > 1 or not _begins_with(_part(new, old.shape), old):
            return {}
        there[path] = old.shape
    return {"keep": there} if len(plan.arrays) == len(there) else {}


def _part(manifest: Manifest, shape: tuple[int, ...]) -> Manifest:
    """The first cells of a manifest along each axis."""
    index = tuple(slice(count) for count in shape)
    columns = (np.asarray(c)[index] for c in (manifest.source, manifest.offset, manifest.length))
    source, offset, length = columns
    return Manifest(source.shape, manifest.sources, source, offset, length)


def _begins_with(new: Manifest, old: Manifest) -> bool:
    """Whether the first cells of one manifest, in C order, have the references of another."""
    if new.ncells < old.ncells:
        return False
    rows = {source: row for row, source in enumerate(new.sources)}
    remap = np.array([*(rows.get(source, -2) for source in old.sources), -1], np.int64)
    source = remap[np.asarray(old.source).reshape(-1)]
    columns = ((new.source, source), (new.offset, old.offset), (new.length, old.length))
    there = source != -1
    return all(
        bool(((np.asarray(a).reshape(-1)[: old.ncells] == np.asarray(b).reshape(-1)) | (
            ~there if i else False)).all())
        for i, (a, b) in enumerate(columns)
    )  # fmt: skip
