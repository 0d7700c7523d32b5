"""Copies of small arrays that do not grow, so that no source file has to stay for their sake.

Files of rows go when the rows are dropped. A coordinate such as `lat` would be lost with the first
of them, and nothing could be compared with it, and so be appended, any more.
"""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np

from virtualzarr.array.chunk_source import open_source
from virtualzarr.config import config
from virtualzarr.dataset.segment import Cells
from virtualzarr.manifest import Source, Sources

MOST_BYTES = 1 << 20
"""Of an array whose chunks have more bytes together, references are kept."""

MOST_CHUNKS = 32
"""Each is a request, where the file is elsewhere."""


def copy_small(arrays: Mapping[str, Cells]) -> dict[str, Cells]:
    """Return the references of arrays with their chunks inline, where these are small and few.

    Raises
    ------
    SourceError
        A chunk cannot be read.
    """
    if not arrays:
        return {}
    with ThreadPoolExecutor(min(config.requests, len(arrays))) as pool:
        return dict(zip(arrays, pool.map(_copy, arrays.values()), strict=True))


def _copy(cells: Cells) -> Cells:
    manifest = cells.manifest
    if manifest.ncells > MOST_CHUNKS:
        return cells
    sources = manifest.sources
    source, offset, length = (
        np.array(column) for column in (manifest.source, manifest.offset, manifest.length)
    )
    is_foreign = np.asarray(np.array([*(not each.is_inline for each in sources), False])[source])
    if not is_foreign.any():
        return cells
    # Some references are to all of a file, from an offset on.
    sizes = np.array([*(each.size or MOST_BYTES + 1 for each in sources), 0], np.int64)[source]
    length = np.where(length < 0, sizes - offset, length)
    if length[is_foreign].sum() > MOST_BYTES:
        return cells
    inlined = [number for number, each in enumerate(sources) if each.is_inline]
    rows = np.full(len(sources) + 1, -1)
    rows[inlined] = np.arange(len(inlined))
    new, heap = np.array(rows[source]), bytearray()
    for cell in map(tuple, np.argwhere(is_foreign).tolist()):
        start = int(offset[cell])
        file = open_source(sources[int(source[cell])])
        new[cell], offset[cell] = len(inlined), len(heap)
        heap += file.read(start, start + int(length[cell]))
    table = Sources([*(sources[number] for number in inlined), Source.inline(bytes(heap))])
    return replace(
        cells,
        manifest=manifest.replace(sources=table, source=new, offset=offset, length=length),
    )
