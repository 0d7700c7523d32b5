"""Chunk lengths along a growing dimension, as summaries of tables have them.

Where all chunks of an array have one length, and no run of rows begins or ends within one, its grid
is known without reading any table.

Source: ``specs/dataset.md``, *Tables*.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from virtualzarr.dataset.entry import Entry
from virtualzarr.dataset.runs import Runs


def find_step(runs: Runs) -> int:
    """Return the greatest number that divides first ids and lengths of all runs; 0 for none."""
    return math.gcd(int(np.gcd.reduce(runs.first)), int(np.gcd.reduce(runs.count)))


ChunkLengths = Sequence[tuple[int, Sequence[str] | None]]
"""Chunk lengths along the growing dimension, 0 where there are several, with the arrays that have
them; None for all others."""

_MOST_PATHS = 16
"""Names of arrays in a summary, at most."""


def describe_chunks(entries: Sequence[Entry]) -> tuple[int, ChunkLengths] | None:
    """Return what some entries are chunked by; None if it is too much to say.

    Returns
    -------
    step : int
        The greatest number that divides their first ids, and their counts of rows.
    lengths
        Chunk lengths by arrays; empty if there are no rows.
    """
    return join_chunks(_describe(entry) for entry in entries if not entry.is_static)


def _describe(entry: Entry) -> tuple[int, ChunkLengths] | None:
    if entry.layer is not None or entry.grids:
        return None
    (first, count), *others = entry.rows.values()
    many = sum(len(paths or ()) for _, paths in entry.chunks) > _MOST_PATHS
    if others or many or not entry.chunks:
        return None
    lengths = []
    for runs, paths in entry.chunks:
        (length, repeats), is_one = runs[0], len(runs) == 1
        is_exact = is_one and length * repeats == count
        lengths.append((length if is_exact else 0, None if paths is None else [*paths]))
    return math.gcd(first, count), lengths


def join_chunks(parts: Iterable[Any]) -> tuple[int, ChunkLengths] | None:
    """Return what several descriptions of chunks say together."""
    step = 0
    joined: dict[tuple[str, ...] | None, int] = {}
    for part in parts:
        if part is None:
            return None
        new = {None if paths is None else tuple(paths): int(length) for length, paths in part[1]}
        if joined and new and joined.keys() != new.keys():
            return None
        step = math.gcd(step, int(part[0]))
        joined = {
            paths: n if joined.get(paths, n) == n else 0 for paths, n in new.items()
        } or joined
    return step, [(length, None if paths is None else [*paths]) for paths, length in joined.items()]
