"""Joins through batches beside joins of groups: the same results, and nothing where those fail."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from virtualzarr.array import Array
from virtualzarr.batches import Row, RowCollector, has_manifests
from virtualzarr.combine import alike, by_coords, concat_stack
from virtualzarr.combine.error_report import ErrorReport, InputLabels
from virtualzarr.combine.runs import split_runs
from virtualzarr.hierarchy.group import Group
from virtualzarr.ingest import inputs
from virtualzarr.ingest.differences import find_difference
from virtualzarr.manifest import Manifest, Source, Sources
from virtualzarr.virtual.from_store import as_virtual


class Comparison:
    """What was joined both ways.

    Attributes
    ----------
    nequal, nleft : int
        Joins that were equal, and that were left to the join of groups.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.nequal = self.nleft = 0
        self._nfiles = 0

    def compare(self, groups: Sequence[Group], join: Any, through: Any) -> None:
        """Join groups whose chunks are in files both ways."""
        if not all(has_manifests(group) for group in groups):
            return
        groups = [self._store(group) for group in groups]
        collector = RowCollector()
        rows = [collector.add(group) for group in groups]
        for row, group in zip(rows, groups, strict=True):
            assert find_difference(row.group(), group) == ""
        labels = InputLabels(groups)
        try:
            expected = join(groups)
        except Exception as error:
            expected, why = None, error
        joined = through(rows, labels)
        if joined is None:
            self.nleft += 1
            return
        assert expected is not None, f"not found: {why}"
        self.nequal += 1
        difference = find_difference(joined, expected)
        assert not difference, difference

    def _store(self, group: Group) -> Group:
        """Return a group whose inline chunks are in a file, as those of a scan are."""
        self._nfiles += 1
        path = self.folder / f"{self._nfiles}.bin"
        heap = bytearray()
        arrays: list[tuple[Array, dict[int, int]]] = []
        for _, node in group.members(None):
            if isinstance(node, Array):
                starts = {}
                for row, source in enumerate(node.manifest.sources):
                    if source.data is not None:
                        starts[row] = len(heap)
                        heap += source.data
                arrays.append((node, starts))
        path.write_bytes(heap)
        file = Source.from_file(path)
        stored = {node.path: _with_file(node, starts, file) for node, starts in arrays}
        return group.map_arrays(lambda array: stored[array.path])


def _with_file(array: Array, starts: dict[int, int], file: Source) -> Array:
    manifest = array.manifest
    if not starts or len(manifest.sources) > 1 or (np.asarray(manifest.length) < 0).any():
        return array
    offset = np.where(manifest.source >= 0, np.asarray(manifest.offset) + starts[0], 0)
    rest = (manifest.length, manifest.decoders, manifest.decoder, manifest.origin)
    changed = Manifest(manifest.shape, Sources([file]), manifest.source, offset, *rest)
    layout, array = array.file_layout, array.replace(None, changed)
    array.file_layout = layout
    return array


@contextmanager
def comparing(patch: pytest.MonkeyPatch) -> Iterator[Comparison]:
    """Have all joins compared with joins through batches."""
    with tempfile.TemporaryDirectory() as folder:
        comparison = Comparison(Path(folder))
        patch.setattr(alike, "MEAN_RUN", 0)
        concat_items, stack_items = concat_stack.concat_items, concat_stack.stack_items
        combine = by_coords.combine_groups_by_coords

        def concat(items: Any, axis: Any, dim: Any, report: Any, options: Any) -> Any:
            def join(groups: Sequence[Group]) -> Any:
                report = ErrorReport(InputLabels(groups))
                return concat_items(groups, along if dim is None else None, dim, report, options)

            def through(rows: Sequence[Row], labels: InputLabels) -> Group | None:
                return alike.concat_runs(split_runs(rows), along, labels, options)

            is_array = isinstance(items[0], Array)
            along = dim if dim is not None else axis or 0 if is_array else axis
            if along is not None and len(items) > 1:
                comparison.compare(as_groups(items), join, through)
            return concat_items(items, axis, dim, report, options)

        def stack(items: Any, axis: Any, dim: Any, report: Any, options: Any) -> Any:
            def join(groups: Sequence[Group]) -> Any:
                return stack_items(groups, 0, dim, ErrorReport(InputLabels(groups)), options)

            def through(rows: Sequence[Row], labels: InputLabels) -> Group | None:
                return alike.stack_runs(split_runs(rows), dim, labels, options)

            if dim is not None and len(items) > 1:
                comparison.compare(as_groups(items), join, through)
            return stack_items(items, axis, dim, report, options)

        def order(groups: Any, dims: Any, labels: Any, options: Any, **rules: Any) -> Any:
            def through(rows: Sequence[Row], labels: InputLabels) -> Group | None:
                return alike.combine_rows_by_coords(rows, dims, options, **rules)

            def join(groups: Sequence[Group]) -> Any:
                return combine(groups, dims, InputLabels(groups), options, **rules)

            if len(groups) > 1:
                comparison.compare(groups, join, through)
            return combine(groups, dims, labels, options, **rules)

        functions = {
            "concat_items": concat,
            "stack_items": stack,
            "combine_groups_by_coords": order,
        }
        for module in (concat_stack, by_coords, inputs):
            for name, function in functions.items():
                if hasattr(module, name):
                    patch.setattr(module, name, function)
        yield comparison


def as_groups(items: Sequence[Any]) -> Sequence[Group]:
    """Return arrays as the only variable of groups."""
    if isinstance(items[0], Group):
        return items
    arrays = [as_virtual(item) if item.is_virtual else item for item in items]
    return [Group({}, {"x": array.with_path("x")}) for array in arrays]
