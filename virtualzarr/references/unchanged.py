"""Comparison of manifests: whether stored references stay as they are."""

from __future__ import annotations

import numpy as np

from virtualzarr.manifest import Manifest


def starts_with(new: Manifest, old: Manifest) -> bool:
    """Tell whether the first cells of one manifest, in C order, have the references of another."""
    if new.ncells < old.ncells:
        return False
    # Rows of both tables of sources are compared by what they stand for; -2 equals no row.
    rows = {source: row for row, source in enumerate(new.sources)}
    remap = np.array([*(rows.get(source, -2) for source in old.sources), -1], np.int64)
    source = remap[np.asarray(old.source).reshape(-1)]
    if not np.array_equal(np.asarray(new.source).reshape(-1)[: old.ncells], source):
        return False
    missing = source == -1  # whose ranges mean nothing
    return all(
        bool(((np.asarray(a).reshape(-1)[: old.ncells] == np.asarray(b).reshape(-1)) | missing)
             .all())
        for a, b in ((new.offset, old.offset), (new.length, old.length))
    )  # fmt: skip


def starts_with_box(new: Manifest, old: Manifest) -> bool:
    """Tell whether the first cells along each axis have the references of another manifest."""
    index = tuple(map(slice, old.shape))
    source, offset, length = (
        np.asarray(column)[index] for column in (new.source, new.offset, new.length)
    )
    return starts_with(Manifest(source.shape, new.sources, source, offset, length), old)
