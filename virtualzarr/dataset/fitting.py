"""Fitting of new arrays to stored ones: references in the terms of a dataset's schema."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from grids import Axis, SeparableGrid
from virtualzarr.array import Array
from virtualzarr.combine.arrays import inline_missing_chunks
from virtualzarr.combine.cf_packing import is_missing
from virtualzarr.combine.compatibility import (
    can_inline_fill,
    has_missing_chunks,
    is_same_fill_value,
)
from virtualzarr.combine.concat_stack import concat_rows
from virtualzarr.combine.harmonize_to_stored import harmonize_to_stored
from virtualzarr.combine.missing import missing_array
from virtualzarr.combine.options import ParsedOptions
from virtualzarr.combine.pack_like_stored import pack_group_like_stored
from virtualzarr.dataset.alike import is_alike
from virtualzarr.dataset.copy_fixed import copy_small
from virtualzarr.dataset.describe import (
    as_virtual_v3,
    build_cells,
    check_coordinates,
    check_described,
    count_rows,
    find_growing,
    read_coordinates,
)
from virtualzarr.dataset.file_names import MAYBE, NO_FILE, hash_uri
from virtualzarr.dataset.file_rows import Ranges, find_file_rows, list_others
from virtualzarr.dataset.file_versions import UNKNOWN, version_of
from virtualzarr.dataset.merge import group_chunks
from virtualzarr.dataset.schema import Schema
from virtualzarr.dataset.segment import DATA, Cells, pack
from virtualzarr.dataset.snapshot import ChunkRuns, Named, Names, as_names
from virtualzarr.dataset.verbs import Rows, Stored
from virtualzarr.errors import MismatchError, UnsupportedError
from virtualzarr.hierarchy.group import Group
from virtualzarr.hierarchy.inventory import iter_arrays, list_arrays
from virtualzarr.manifest import Manifest, Source
from virtualzarr.metadata import ArrayMetadata
from virtualzarr.references.dataset_data import DatasetData
from virtualzarr.references.materialize import note_read_versions
from virtualzarr.references.native.manifest_growth import check_alike
from virtualzarr.references.native.save import COPY
from virtualzarr.virtual.inline import inline_array
from virtualzarr.virtual.rechunk import get_axes, with_decoder
from virtualzarr.virtual.transforms import fill_constant

if TYPE_CHECKING:
    from virtualzarr.dataset.version import DatasetVersion


FileRanges = Mapping[str, Ranges | None]
"""Rows that came from each file, by URI; None where nothing tells but what they refer to."""

NO_FILES: FileRanges = {}


@dataclass(frozen=True)
class Addition:
    """New rows of arrays, ready to be stored.

    Attributes
    ----------
    cells : mapping of str to Cells
        References of the arrays that grow, by path.
    fixed : mapping of str to Cells
        Those of new arrays that do not.
    count : int
        How many rows there are.
    coordinates : array, optional
    grids : mapping
        See `Entry`.
    schema : Schema
        What the schema has to be.
    folder : str
        That of the dataset: what it has itself is named relative to it, and its sources, too, if
        the schema says so.
    is_gap : bool
        Whether the rows stand for a gap, until those of a file come.
    """

    cells: Mapping[str, Cells]
    fixed: Mapping[str, Cells]
    count: int
    coordinates: NDArray[Any] | None
    schema: Schema
    grids: Mapping[str, tuple[ChunkRuns, ...]] = field(default_factory=dict)
    folder: str = ""
    is_gap: bool = False

    def __post_init__(self) -> None:
        # Coordinates have been read by now: rows and what is read of them are of one version.
        for name in ("cells", "fixed"):
            cells: Mapping[str, Cells] = getattr(self, name)
            noted = note_read_versions({path: each.manifest for path, each in cells.items()})
            changed = {path: replace(each, manifest=noted[path]) for path, each in cells.items()}
            object.__setattr__(self, name, changed)

    @property
    def chunks(self) -> tuple[Any, ...]:
        """How the rows are chunked, see `Entry`."""
        return tuple(group_chunks({p: cells.chunks or () for p, cells in self.cells.items()}))

    def rows(self, schema: Named | None, files: FileRanges = NO_FILES) -> Rows:
        """Return the rows, in the terms of a stored schema.

        `files` are those that were scanned: one may have nothing but values that are kept inline.
        """
        relative = self.schema.relative
        segment = pack(self.cells, self.coordinates, self.folder, relative=relative)
        stored = Stored("segments", *segment)
        return Rows(
            self.schema.growing,
            stored,
            self.count,
            self.coordinates,
            self.chunks,
            schema,
            self.grids,
            self._name_rows(files),
            sum(cells.manifest.ncells for cells in self.cells.values()),
        )

    @property
    def sources(self) -> list[str]:
        """The files that the rows come from."""
        return [*self._versions]

    @cached_property
    def _versions(self) -> dict[str, list[str]]:
        """The versions of each file that the rows come from: one, or several of a group."""
        used: dict[int, Source] = {}
        for cells in self.cells.values():
            manifest = cells.manifest
            rows = np.asarray(manifest.source)
            # Tables may have sources of what the rows were joined with, which none refers to. Most
            # arrays have the same table.
            used |= {id(source): source for source in manifest.sources.select(rows)}
        versions: dict[str, dict[str, None]] = {}
        for source in used.values():
            if source.uri and not self._is_own(source.uri):
                versions.setdefault(source.uri, {})[version_of(source)] = None
        return {uri: [*each] for uri, each in versions.items()}

    def _name_rows(self, files: FileRanges) -> Names:
        """Return names of files, each with rows that came from it: first, count and version."""
        if self.is_gap:
            return as_names()  # rows without a name stand for gaps
        named = {uri: ranges for uri, ranges in files.items() if ranges is not None}
        others = [
            uri
            for uri in dict.fromkeys([*files, *self.sources])
            # Chunks of a store of Zarr are files of it.
            if uri not in named and not any(parent in named for parent in _list_parents(uri))
        ]
        nameless: Ranges = []
        if len(others) == 1 and not named:
            named[others[0]] = [(0, self.count)]
        elif others:
            axes = self.schema.axes
            cells = {path: (cells, axes[path][1]) for path, cells in self.cells.items()}
            rows, nameless = find_file_rows(cells, self.count, [*named, *others])
            named |= {uri: rows.get(uri, []) for uri in others}
        nameless += list_others([pair for pairs in named.values() for pair in pairs], self.count)
        items = [
            (self.schema.name_file(uri, self.folder), first, count, version)
            for uri, ranges in named.items()
            for first, count in ranges
            for version in self._versions.get(uri, [UNKNOWN])
        ]
        if others and nameless:
            # These rows may be of any of them.
            names = (self.schema.name_file(uri, self.folder) for uri in others)
            items += [(f"{MAYBE}{name}", 0, self.count, UNKNOWN) for name in names]
        items += [(NO_FILE, *pair, UNKNOWN) for pair in dict.fromkeys(nameless)]
        return as_names((hash_uri(name), first, count, v) for name, first, count, v in items)

    def _is_own(self, uri: str) -> bool:
        return bool(self.folder) and uri.startswith(f"{self.folder}/{DATA}/")

    def fixed_segment(self) -> Stored | None:
        """Return the segment of arrays that do not grow; None if there are none."""
        if not self.fixed:
            return None
        cells, relative = copy_small(self.fixed), self.schema.relative
        return Stored("segments", *pack(cells, None, self.folder, relative=relative))


def _list_parents(uri: str) -> list[str]:
    return [uri[:at] for at, char in enumerate(uri) if char == "/"]


def describe_first(group: Group, schema: Schema) -> Addition:
    """Return the rows of the first group of a dataset, which makes its schema."""
    dimension = schema.growing
    check_coordinates(group, dimension)
    group = check_described(_check_data(group.map_arrays(as_virtual_v3)))
    growing = find_growing(group, dimension)
    if not growing:
        raise ValueError(f"no array has a dimension {dimension!r}")
    if not count_rows(group, dimension):
        raise UnsupportedError(f"a dataset begins with a row at least, and {dimension!r} has none")
    fixed = {
        path: Cells(array.manifest, None)
        for path, array in iter_arrays(group)
        if path not in growing
    }
    return Addition(
        {path: build_cells(array, dimension) for path, array in growing.items()},
        fixed,
        count_rows(group, dimension),
        read_coordinates(group, dimension),
        schema.with_nodes(group),
    )


def fit(dataset: DatasetVersion, group: Group, options: Mapping[str, Any]) -> Addition:
    """Return new arrays in the terms of stored ones, checked against them.

    Parameters
    ----------
    dataset : DatasetVersion
    group : Group
        What is added.
    options : mapping
        As for `concat`.

    Raises
    ------
    MismatchError
        They differ in what must be equal.
    """
    check_coordinates(group, dataset.dimension)
    group = _check_data(group.map_arrays(as_virtual_v3))
    if is_alike(dataset, group, options):
        addition = _as_addition(group, {}, dataset.schema)
    else:
        group = check_described(group)
        addition = join(dataset.select_last_row(), dataset.schema, group, options)
    return replace(addition, folder=dataset.path)


def join(ends: Group, schema: Schema, group: Group, options: Mapping[str, Any]) -> Addition:
    """Return new arrays in the terms of stored ones, joined with the last row of these."""
    dimension = schema.growing
    addition = harmonize_to_stored(ends, group, options)
    parsed = ParsedOptions.parse(**options)
    if "packing" in parsed.harmonize:
        addition = pack_group_like_stored(ends, addition)
    # Attributes stay as they are stored, unless the user says how they are combined.
    rules = {"combine_attrs": "override", **options}
    joined = concat_rows([ends, addition], dimension, **rules)
    may_fill = parsed.missing == "fill" or "fill" in parsed.harmonize
    rows = joined.map_arrays(lambda array: _new_rows(array, ends, dimension, may_fill))
    new_schema = schema
    stored_paths = {path for path, _ in ends.members(None)}
    growing = find_growing(rows, dimension)
    new_nodes = {path: node for path, node in rows.members(None) if path not in stored_paths}
    if new_nodes:
        new_schema = new_schema.with_nodes(rows, new_nodes)
    if rules["combine_attrs"] != "override":
        new_schema = _with_joined_attributes(new_schema, ends, joined, stored_paths)
    fixed = {
        path: Cells(node.manifest, None)
        for path, node in new_nodes.items()
        if isinstance(node, Array) and path not in growing
    }
    return _as_addition(rows, fixed, new_schema)


def _as_addition(rows: Group, fixed: Mapping[str, Cells], schema: Schema) -> Addition:
    growing = find_growing(rows, schema.growing)
    return Addition(
        {path: build_cells(array, schema.growing) for path, array in growing.items()},
        fixed,
        count_rows(rows, schema.growing),
        read_coordinates(rows, schema.growing),
        schema,
        _other_grids(growing, schema),
    )


def _check_data(group: Group) -> Group:
    """Refuse references into the own data of a dataset, this one or another, that may be deleted.

    Raises
    ------
    PublishError
    """
    data = DatasetData()
    for path, array in list_arrays(group).items():
        data.check(array.manifest, path, COPY)
    return group


def _new_rows(array: Array, ends: Group, dimension: str, may_fill: bool) -> Array:
    """Return the new rows of an array that was joined with the last stored one, checked."""
    if dimension not in array.dims:
        return array
    axis = array.dims.index(dimension)
    last = ends.get(array.path)
    skipped = 0
    if isinstance(last, Array):
        array = _with_fill_of(array, last, may_fill)
        check_alike(last, array, axis, same_chunks=False)
        array = _with_pipeline_of(array, last)
        skipped = last.shape[axis]
    else:
        # A new variable: the rows that the others have already are missing.
        skipped = next(
            node.shape[node.dims.index(dimension)]
            for node in find_growing(ends, dimension).values()
        )
    if not skipped:
        return array
    return array.lazy[tuple(slice(skipped if i == axis else 0, None) for i in range(array.ndim))]


def _with_fill_of(array: Array, stored: Array, may_fill: bool) -> Array:
    """Return an array with the stored fill value, where no chunk of its own reads as another.

    Joined with a stored array that lacks no chunk, it has that of the new rows. If missing chunks
    may have values of their own (`may_fill`), they become references to it.
    """
    fill = stored.metadata.fill_value
    if array.dtype != stored.dtype:
        return array
    if has_missing_chunks(array):
        is_same = is_same_fill_value(array.fill_value, fill, array.dtype)
        if is_same or not (may_fill and can_inline_fill(array)):
            return array
        array = inline_missing_chunks(array)
    return array.replace(array.metadata.replace(fill_value=fill), array.manifest)


def _with_pipeline_of(array: Array, stored: Array) -> Array:
    """Return an array described with the codecs of the stored one, its chunks with their own."""
    pipeline, dtype = stored.metadata.pipeline, array.dtype
    if array.metadata.pipeline.decoding_key(dtype) == pipeline.decoding_key(dtype):
        return array
    manifest = with_decoder(array.manifest, array.metadata.pipeline)
    return array.replace(array.metadata.replace(pipeline=pipeline), manifest)


def _with_joined_attributes(
    schema: Schema, ends: Group, joined: Group, stored_paths: set[str]
) -> Schema:
    for path, node in [("", joined), *joined.members(None)]:
        if path and path not in stored_paths:
            continue
        before = (ends[path] if path else ends).attrs
        after = node.attrs
        if dict(before) != dict(after):
            gone = [name for name in before if name not in after]
            schema = schema.with_attributes(path, after, gone)
    return schema


def _other_grids(growing: Mapping[str, Array], schema: Schema) -> dict[str, tuple[ChunkRuns, ...]]:
    """Return the chunk lengths of arrays that are cut otherwise than their documents say."""
    grids: dict[str, tuple[ChunkRuns, ...]] = {}
    for path, array in growing.items():
        axis = array.dims.index(schema.growing)
        documented = schema.arrays[path].grid
        assert isinstance(documented, SeparableGrid)
        others = [
            (new, old)
            for i, (new, old) in enumerate(zip(get_axes(array), documented.axes, strict=True))
            if i != axis
        ]
        if any(_runs(new) != _runs(old) for new, old in others):
            grids[path] = tuple(_runs(new) for new, _ in others)
    return grids


def _runs(axis: Axis) -> ChunkRuns:
    """Return chunk lengths as they are decoded: the last chunk may reach past the end."""
    lengths, counts = axis.runs()
    return tuple(zip(lengths.tolist(), counts.tolist(), strict=True))


def build_gap(schema: Schema, values: NDArray[Any]) -> Addition:
    """Return rows that have coordinates, which are given, and missing values.

    Raises
    ------
    MismatchError
        An array has no value that readers take for a missing one.
    """
    dimension = schema.growing
    values = values.astype(schema.arrays[dimension].dtype)
    inline = inline_array(values, (dimension,), None, dimension)
    manifest = with_decoder(inline.manifest, inline.metadata.pipeline)
    cells = {dimension: Cells(manifest, ((len(values), 1),))}
    for path in schema.axes:
        if path != dimension:
            missing = _build_missing(schema.arrays[path], path, dimension, len(values))
            if missing is not None:
                cells[path] = missing
    return Addition(cells, {}, len(values), values, schema, is_gap=True)


def _build_missing(metadata: ArrayMetadata, path: str, dimension: str, count: int) -> Cells | None:
    """Return references to nothing but missing values; None if chunks may as well be absent."""
    absent = Manifest.missing(metadata.grid.grid_shape)
    array = Array.from_manifest(metadata, absent, path)
    fill = np.array([metadata.effective_fill], metadata.dtype)
    if metadata.dtype.kind not in "biufcmM" or is_missing(fill, array).all():
        return None  # texts that are absent are empty
    try:
        array = missing_array(array, {dimension: count})
    except MismatchError as error:
        raise MismatchError(
            f"gaps cannot be filled: {path} has no _FillValue by which readers would know what is "
            f"missing among {metadata.dtype} values",
            variable=path,
        ) from error
    everywhere = np.ones(array.manifest.shape, bool)
    manifest = fill_constant(array, everywhere, array.fill_value)
    stored = array.metadata.replace(fill_value=metadata.fill_value)
    return build_cells(array.replace(stored, manifest), dimension)
