"""Comparison of manifests: whether stored references stay as they are."""

from __future__ import annotations

import numpy as np

from virtualzarr.manifest import Manifest
from virtualzarr.metadata import ArrayMetadata
from virtualzarr.references.portable import chunk_shape


def starts_with(new: Manifest, old: Manifest) -> bool:
    """Tell whether the first cells of one manifest, in C order, have the references of another."""
    return new.ncells >= old.ncells and count_unchanged(new, old) == old.ncells


def count_unchanged(new: Manifest, old: Manifest) -> int:
    """Count the first cells of a manifest, in C order, that another has alike."""
    count = min(old.ncells, new.ncells)
    # Rows of both tables of sources are compared by what they stand for; -2 equals no row.
    rows = {source: row for row, source in enumerate(new.sources)}
    remap = np.array([*(rows.get(source, -2) for source in old.sources), -1], np.int64)
    source = remap[np.asarray(old.source).reshape(-1)][:count]
    same = np.asarray(new.source).reshape(-1)[:count] == source
    missing = source == -1  # whose ranges mean nothing
    for a, b in ((new.offset, old.offset), (new.length, old.length)):
        same &= (np.asarray(a).reshape(-1)[:count] == np.asarray(b).reshape(-1)[:count]) | missing
    return count if same.all() else int(np.argmin(same))


def starts_with_box(new: Manifest, old: Manifest) -> bool:
    """Tell whether the first cells along each axis have the references of another manifest."""
    index = tuple(map(slice, old.shape))
    source, offset, length = (
        np.asarray(column)[index] for column in (new.source, new.offset, new.length)
    )
    return starts_with(Manifest(source.shape, new.sources, source, offset, length), old)


def is_frozen(new: ArrayMetadata, old: ArrayMetadata) -> bool:
    """Tell whether two states of a regular array have the same chunk shape, codecs and meaning."""
    return (
        has_same_meaning(new, old)
        and chunk_shape(new) == chunk_shape(old)
        and new.pipeline.decoding_key(new.dtype) == old.pipeline.decoding_key(old.dtype)
    )


def has_same_meaning(new: ArrayMetadata, old: ArrayMetadata) -> bool:
    """Tell whether elements mean the same in two states of an array: type, units, packing."""
    return new.dtype == old.dtype and new.attributes == old.attributes
