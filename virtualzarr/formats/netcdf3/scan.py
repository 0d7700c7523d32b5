"""NetCDF-3 scan: variables, and records interleaved at a constant stride."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Unpack

import numpy as np

from grids import RegularGrid
from virtualzarr.array import Array
from virtualzarr.array.file_layout import FileLayout
from virtualzarr.errors import SourceError
from virtualzarr.formats.headers import HeaderReader
from virtualzarr.formats.netcdf3.declare import declare
from virtualzarr.formats.netcdf3.header import Header, Value, Variable, read_header, row_bytes
from virtualzarr.formats.on_error import Refusals, ScanOptions, begin_scan
from virtualzarr.formats.plain import LIMIT, plain_pipeline
from virtualzarr.hierarchy.group import Group
from virtualzarr.manifest import Affine, Manifest, Sources
from virtualzarr.metadata import ArrayMetadata, check_name, json_attributes

if TYPE_CHECKING:
    from virtualzarr.formats.templates.recorder import Recorder


def scan(
    path_or_url: Any, *, recorder: Recorder | None = None, **options: Unpack[ScanOptions]
) -> Group:
    """Scan a netCDF3 file; a recorder is told what the group depends on.

    A variable without the record dimension is one chunk; so is the only variable with it, as its
    records are contiguous. Otherwise records of variables are interleaved, and each is a chunk.
    """
    with begin_scan(path_or_url, **options) as refusals:
        header = read_header(HeaderReader(refusals.source))
        group = _Scan(header, refusals).group()
        if recorder is not None:
            declare(recorder, header, group, refusals.source)
        return group


def _to_json(attributes: Mapping[str, Value]) -> dict[str, Any]:
    return json_attributes({name: value.decode() for name, value in attributes.items()})


class _Scan:
    """Scan of one file from its header."""

    def __init__(self, header: Header, refusals: Refusals) -> None:
        self.header, self.refusals, self.source = header, refusals, refusals.source
        records = [variable for variable in header.variables if self._has_records(variable)]
        self._check_begins()
        self.record_bytes = _record_bytes([self._row_bytes(each) for each in records], records)
        self.nrecords = header.nrecords
        if self.nrecords is None:
            self.nrecords = self._count_streamed_records(records)

    def group(self) -> Group:
        members: dict[str, Array | Group] = {}
        for variable in self.header.variables:
            with self.refusals.of(variable.name):
                check_name(variable.name, 2)
                if variable.name in members:
                    raise SourceError("another variable has the same name")
                members[variable.name] = self._array(variable)
        attributes = _to_json(self.header.attributes)
        return Group(attributes, members, skipped=self.refusals.reasons)

    def _has_records(self, variable: Variable) -> bool:
        numbers = variable.dimensions
        return bool(numbers) and not self.header.dimensions[numbers[0]][1]

    def _row_bytes(self, variable: Variable) -> int:
        return row_bytes(variable, self.header.dimensions)

    def _check_begins(self) -> None:
        """Raise if variables, or their first records, overlap: some offset is then wrong."""
        end, last = self.header.nbytes, "the header"
        for variable in sorted(self.header.variables, key=lambda variable: variable.begin):
            if variable.begin < end:
                raise SourceError(
                    f"the values begin at byte {variable.begin}, which is within {last}",
                    variable=variable.name,
                )
            end, last = variable.begin + self._row_bytes(variable), f"variable {variable.name!r}"

    def _count_streamed_records(self, records: list[Variable]) -> int:
        """Return the number of records of a streamed file, from its size."""
        if not records:
            return 0
        ends = (variable.begin + self._row_bytes(variable) for variable in records)
        # The last record may lack the padding after its last variable: it counts if its values are
        # there, hence the end of the first record plus whole strides.
        left = (self.source.size or 0) - max(ends)
        return left // self.record_bytes + 1 if left >= 0 else 0

    def _array(self, variable: Variable) -> Array:
        shape = self._shape(variable)
        # Contiguous records are one chunk, as references to each would be needless; a stride larger
        # than the record means that those of other variables lie between.
        row = self._row_bytes(variable)
        is_interleaved = self._has_records(variable) and row != self.record_bytes
        edges = (1, *shape[1:]) if is_interleaved else tuple(max(length, 1) for length in shape)
        metadata = ArrayMetadata(
            shape=shape,
            dtype=variable.dtype.newbyteorder("="),
            grid=RegularGrid(shape, edges),
            pipeline=plain_pipeline(variable.dtype),
            # Not _FillValue, which stays an attribute for xarray to mask with; nothing is missing
            # that this could fill.
            fill_value=np.zeros((), variable.dtype.newbyteorder("="))[()],
            dimension_names=tuple(self.header.dimensions[n][0] for n in variable.dimensions),
            attributes=_to_json(variable.attributes),
        )
        manifest = self._manifest(variable, metadata, row if is_interleaved else None)
        array = Array.from_manifest(metadata, manifest, variable.name)
        records = self._has_records(variable)
        array.file_layout = FileLayout(unlimited=(records,) if shape else ())
        return array

    def _shape(self, variable: Variable) -> tuple[int, ...]:
        """Return the shape of a variable, checked against the size of the file."""
        if self._row_bytes(variable) >= LIMIT:
            raise SourceError("a record has more bytes than a file can have")
        nrecords = self.nrecords or 0
        if self._has_records(variable) and nrecords > (self.source.size or 0):
            raise SourceError(
                f"there are {nrecords} records, but the file ends at {self.source.size}"
            )
        return tuple(self.header.dimensions[n][1] or nrecords for n in variable.dimensions)

    def _manifest(self, variable: Variable, metadata: ArrayMetadata, row: int | None) -> Manifest:
        """Return references to a variable: one range, or one per record of `row` bytes."""
        cells = metadata.grid.grid_shape
        if not metadata.size:
            return Manifest.missing(cells)
        step = metadata.nbytes if row is None else self.record_bytes
        length = metadata.nbytes if row is None else row
        self._check_place(variable, (cells[0] - 1) * step + length if cells else length)
        if row is None:
            return Manifest.single(self.source, variable.begin, length, metadata.ndim)
        strides = (step, *(0 for _ in cells[1:]))
        # Two numbers for any count of records: no column of offsets is built.
        offset = Affine(cells, variable.begin, strides)
        return Manifest(cells, Sources([self.source]), 0, offset, length)

    def _check_place(self, variable: Variable, nbytes: int) -> None:
        begin, end, size = variable.begin, variable.begin + nbytes, self.source.size or 0
        if end > size:
            raise SourceError(
                f"the values lie at bytes {begin} to {end}, but the file ends at {size}; it is "
                "truncated or damaged"
            )


def _record_bytes(rows: list[int], records: list[Variable]) -> int:
    """Return the stride of records in bytes."""
    # Each variable's part of a record is padded to four bytes, except where only one variable has
    # records: the specification's special case for byte and short types.
    if len(rows) == 1:
        return rows[0]
    return sum(row + -row % 4 for row in rows)
