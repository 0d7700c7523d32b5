"""Damage of chunks, which only decoding them tells."""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import blake2b
from typing import Literal

import numpy as np

from virtualzarr.archive.anomalies import Kind
from virtualzarr.archive.facts import iter_nodes
from virtualzarr.array import Array
from virtualzarr.errors import VirtualZarrError
from virtualzarr.hierarchy.group import Group


def find_damage(
    group: Group, file: str, count: int | Literal["all"]
) -> Iterator[tuple[Kind, str, str]]:
    """Yield kind, text and variable of chunks that do not decode, one for each variable.

    Parameters
    ----------
    group : Group
        What a scan of the file returned.
    file : str
        Its name decides which chunks are read: the same ones each time.
    count : int or "all"
        Chunks of each variable.
    """
    for path, node in iter_nodes(group):
        if not isinstance(node, Array):
            continue
        cells = np.flatnonzero(np.asarray(node.manifest.source).reshape(-1) >= 0)
        if count != "all" and len(cells) > count:
            seed = blake2b(f"{file} {path}".encode(errors="surrogateescape"), digest_size=8)
            random = np.random.default_rng(int.from_bytes(seed.digest(), "big"))
            cells = random.choice(cells, count, replace=False)
        for cell in cells.tolist():
            index = tuple(int(i) for i in np.unravel_index(cell, node.manifest.shape))
            try:
                node.read(index, mode="block")
            except VirtualZarrError as error:
                yield "damaged chunk", f"chunk {index}: {error.message}", path
                break
