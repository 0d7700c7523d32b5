"""Entries: where the rows of segments are among those of a dataset."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from virtualzarr.dataset.named import Named
from virtualzarr.errors import MetadataError

ChunkRuns = tuple[tuple[int, int], ...]
"""Chunk lengths, and how often each comes one after the other."""


@dataclass(frozen=True, slots=True)
class LayerRows:
    """Rows of other entries that a segment has a second time, in other chunks.

    Attributes
    ----------
    chunks : mapping of str to int
        Chunk lengths by dimension, which are the name of the layer.
    dimension : str
        The growing one.
    ids : sequence of (int, int)
        Row ids, one after the other as the segment has them: first ones and how many follow.
    arrays : sequence of str
        Paths of the arrays that it has.
    """

    chunks: Mapping[str, int]
    dimension: str
    ids: ChunkRuns
    arrays: tuple[str, ...]

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> LayerRows:
        """Read what `to_json` returned."""
        return cls(
            {name: int(length) for name, length in document["chunks"].items()},
            document["dimension"],
            _to_runs(document["ids"]),
            tuple(document["arrays"]),
        )

    def to_json(self) -> dict[str, Any]:
        """Return the rows as JSON."""
        return {
            "chunks": dict(self.chunks),
            "dimension": self.dimension,
            "ids": [list(run) for run in self.ids],
            "arrays": list(self.arrays),
        }

    @property
    def key(self) -> tuple[tuple[str, int], ...]:
        """What tells layers apart."""
        return tuple(sorted(self.chunks.items()))

    def __len__(self) -> int:
        return sum(count for _, count in self.ids)


@dataclass(frozen=True, slots=True)
class Entry:
    """Where the rows of a segment are among those of the dataset.

    Attributes
    ----------
    segment : Named
    sequence : int
        Which of two entries that overlap is in force: the greater one.
    rows : mapping of str to (int, int)
        For each growing dimension that the segment extends, the id of its first row and how many
        rows it has.
    bounds : mapping of str to (JSON, JSON)
        The least and greatest coordinate of those rows, where they are known.
    chunks : sequence of (runs, paths)
        How the rows of arrays are chunked: chunk lengths with how often each comes, and of which
        arrays; None for all arrays that are not listed.
    grids : mapping of str to sequence of runs
        Of arrays that are chunked otherwise than their document says along other axes: chunk
        lengths along each of their axes but the growing one.
    commits : int
        How many commits' rows were merged into it.
    data : sequence of Named
        Objects of the dataset's own that its references lie in.
    layer : LayerRows, optional
        The rows that the segment has a second time; `rows` is empty then.
    cells : int
        How many cells its arrays have in all; 0 if that was not counted.
    folded : int
        The chunk length that all its rows were folded for, though some chunks may be shorter, as
        rows came late; 0 if they were not, or not all for one.
    """

    segment: Named
    sequence: int
    rows: Mapping[str, tuple[int, int]]
    bounds: Mapping[str, tuple[Any, Any]] = field(default_factory=dict)
    chunks: tuple[tuple[ChunkRuns, tuple[str, ...] | None], ...] = ()
    grids: Mapping[str, tuple[ChunkRuns, ...]] = field(default_factory=dict)
    commits: int = 1
    data: tuple[Named, ...] = ()
    layer: LayerRows | None = None
    cells: int = 0
    folded: int = 0

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Entry:
        """Read what `to_json` returned."""
        layer = document.get("layer")
        return cls(
            Named.from_json(document["segment"]),
            int(document["sequence"]),
            {name: _to_ids(*pair) for name, pair in document["rows"].items()},
            {name: (low, high) for name, (low, high) in document.get("bounds", {}).items()},
            tuple(
                (_to_runs(runs), None if paths is None else tuple(paths))
                for runs, paths in document.get("chunks", ())
            ),
            {
                path: tuple(_to_runs(runs) for runs in axes)
                for path, axes in document.get("grids", {}).items()
            },
            int(document.get("commits", 1)),
            tuple(map(Named.from_json, document.get("data", ()))),
            None if layer is None else LayerRows.from_json(layer),
            int(document.get("cells", 0)),
            int(document.get("folded", 0)),
        )

    def to_json(self) -> dict[str, Any]:
        """Return the entry as JSON."""
        document: dict[str, Any] = {
            "segment": self.segment.to_json(),
            "sequence": self.sequence,
            "rows": {name: list(rows) for name, rows in self.rows.items()},
        }
        # Each version's head has many entries, so members with defaults are left out.
        if self.bounds:
            document["bounds"] = {name: list(pair) for name, pair in self.bounds.items()}
        if self.grids:
            document["grids"] = {
                path: [[list(run) for run in runs] for runs in axes]
                for path, axes in self.grids.items()
            }
        if self.commits > 1:
            document["commits"] = self.commits
        if self.cells:
            document["cells"] = self.cells
        if self.folded:
            document["folded"] = self.folded
        if self.data:
            document["data"] = [item.to_json() for item in self.data]
        if self.layer is not None:
            document["layer"] = self.layer.to_json()
        if self.chunks:
            document["chunks"] = [
                [[list(run) for run in runs], None if paths is None else list(paths)]
                for runs, paths in self.chunks
            ]
        return document

    @property
    def key(self) -> tuple[int, str]:
        """Sequence and segment: by what entries are ordered and taken away."""
        return self.sequence, self.segment.name

    @property
    def is_static(self) -> bool:
        """Whether it has arrays that do not grow."""
        return not self.rows and self.layer is None

    def count(self, dimension: str) -> int:
        """Return how many rows the segment has along a growing dimension."""
        return self.rows[dimension][1] if self.layer is None else len(self.layer)

    def chunks_of(self, path: str) -> ChunkRuns:
        """Return how the rows of an array are chunked."""
        others: ChunkRuns = ()
        for runs, paths in self.chunks:
            if paths is None:
                others = runs
            elif path in paths:
                return runs
        return others


def _to_ids(first: Any, count: Any) -> tuple[int, int]:
    ids = int(first), int(count)
    # Columns of ids, and sums of them, are 64-bit integers.
    if max(map(abs, ids)) >= 1 << 62:
        raise MetadataError(f"an entry has row ids that no dataset has: {ids[0]}, {ids[1]} of them")
    return ids


def _to_runs(document: Sequence[Any]) -> ChunkRuns:
    return tuple((int(length), int(count)) for length, count in document)
