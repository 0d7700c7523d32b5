"""How the values of one HDF5 dataset lie in its file: grid, references, codecs, fill value."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from grids import RegularGrid
from grids.grid import SeparableGrid
from virtualzarr.codecs import Pipeline, make
from virtualzarr.codecs.base import BytesBytes
from virtualzarr.errors import SourceError, UnsupportedError
from virtualzarr.formats.hdf5 import external, header, inlined, virtual
from virtualzarr.formats.hdf5.filters import FilterPipeline, filter_pipeline
from virtualzarr.formats.hdf5.header import ChunkLayout, Filter, HeaderBytes
from virtualzarr.formats.hdf5.index import ChunkIndex, read_chunk_index
from virtualzarr.formats.hdf5.surroundings import Surroundings
from virtualzarr.formats.hdf5.types import ElementType, element_type
from virtualzarr.manifest import Decoder, Manifest, Sources
from virtualzarr.metadata import STRING
from virtualzarr.stores.files import is_url

# Strings of datasets up to this size are looked at.
_LOOKED_AT = 1 << 18
# h5py passes on no more parameters of a filter than this.
_H5PY_PARAMETERS = 16


@dataclass(frozen=True)
class Values:
    """The values of one dataset, without names and attributes.

    Parameters
    ----------
    shape, dtype, grid, manifest, pipeline, fill_value
        As in `ArrayMetadata` and `Array`.
    labels : dict
        Names of the values of an enumeration.
    """

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    grid: SeparableGrid
    manifest: Manifest
    pipeline: Pipeline
    fill_value: Any
    labels: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class _Dataset:
    """What the functions of this module look at."""

    dsid: Any
    dcpl: Any
    space: Any
    near: Surroundings
    element: ElementType
    shape: tuple[int, ...]

    def decoding(self, filters: Sequence[Filter] = ()) -> FilterPipeline:
        return filter_pipeline(self.element, filters)

    @property
    def nbytes(self) -> int:
        """Bytes of all elements as stored."""
        return math.prod(self.shape) * self.element.itemsize


_Stored = tuple[SeparableGrid, Manifest, Pipeline]


def read_values(dsid: Any, address: int, near: Surroundings) -> Values:
    """Find out how the values of a dataset lie.

    Parameters
    ----------
    dsid : h5py.h5d.DatasetID
    address : int
        Of its object header.
    near : Surroundings
        The file it is in.

    Raises
    ------
    UnsupportedError
        If the values cannot be referenced exactly; the message says why.
    AccessError
        If they are in a file that may not be reached.
    SourceError
        If the file contradicts itself.
    """
    dcpl, space = dsid.get_create_plist(), dsid.get_space()
    element = element_type(dsid.get_type())
    extents = space.get_simple_extent_dims()
    if extents is None:  # a null dataspace: no axes, and no values
        return _no_values(element)
    dataset = _Dataset(dsid, dcpl, space, near, element, extents + element.inner)
    if element.elsewhere:
        return _copied(dataset)
    if len(element.codecs) > 1 and _is_clean(dataset):
        dataset = replace(dataset, element=replace(element, codecs=element.codecs[:1]))
    grid, manifest, pipeline = _stored(dataset, address)
    fill = _fill_value(dataset, manifest.nrefs < manifest.ncells)
    return Values(dataset.shape, element.dtype, grid, manifest, pipeline, fill, element.labels)


def _no_values(element: ElementType) -> Values:
    """Return the values of a null dataspace: one axis without elements."""
    dtype, pipeline = element.dtype, Pipeline(element.codecs)
    fill: Any = np.zeros((), dtype)[()]
    if element.elsewhere:
        dtype, pipeline, fill = STRING, Pipeline([make("vlen-utf8")]), ""
    manifest = Manifest.missing((0,))
    return Values((0,), dtype, RegularGrid((0,), (1,)), manifest, pipeline, fill, element.labels)


def _stored(dataset: _Dataset, address: int) -> _Stored:
    from h5py import h5d

    layout = dataset.dcpl.get_layout()
    if 0 in dataset.shape:
        return _nothing(dataset)
    if layout == h5d.COMPACT:
        return _read(dataset)  # they lie inside the object header, wherever HDF5 moves that
    if layout == h5d.CONTIGUOUS:
        return _external(dataset) if dataset.dcpl.get_external_count() else _contiguous(dataset)
    if layout == h5d.CHUNKED:
        return _chunked(dataset, address)
    if layout == h5d.VIRTUAL:
        return _virtual(dataset)
    raise UnsupportedError(f"HDF5 storage layout {layout} is not known")


def _whole(dataset: _Dataset) -> RegularGrid:
    """Return the grid of one cell."""
    return RegularGrid(dataset.shape, [max(n, 1) for n in dataset.shape])


def _nothing(dataset: _Dataset) -> _Stored:
    grid = _whole(dataset)
    return grid, Manifest.missing(grid.grid_shape), dataset.decoding().pipeline


def _read(dataset: _Dataset) -> _Stored:
    """Keep the values here, strings cleaned: that spares the codec."""
    raw = _cleaned(dataset.element, _raw(dataset))
    manifest = Manifest.inline(raw.tobytes(), len(dataset.shape))
    return _whole(dataset), manifest, Pipeline(dataset.element.codecs[:1])


def _contiguous(dataset: _Dataset) -> _Stored:
    from h5py import h5d

    dsid, ndim = dataset.dsid, len(dataset.shape)
    pipeline = dataset.decoding().pipeline
    if dsid.get_space_status() == h5d.SPACE_STATUS_NOT_ALLOCATED:
        return _whole(dataset), Manifest.missing((1,) * ndim), pipeline
    nbytes = dataset.nbytes
    offset, stored = dsid.get_offset(), dsid.get_storage_size()
    if offset is None or stored < nbytes:
        raise SourceError(f"{stored} bytes are stored, {nbytes} are needed")
    return (
        _whole(dataset),
        Manifest.single(dataset.near.file.source, offset, nbytes, ndim),
        pipeline,
    )


def _is_clean(dataset: _Dataset) -> bool:
    """Whether all strings of a small local dataset are padded as numpy's are.

    They then need no codec that other readers do not have. Large datasets are not looked at.
    """
    from h5py import h5d

    where = dataset.dcpl.get_layout()
    if where == h5d.VIRTUAL or dataset.dcpl.get_external_count():
        return False
    if not 0 < dataset.nbytes <= _LOOKED_AT or is_url(dataset.near.file.source.uri):
        return False
    try:
        raw = _raw(dataset)
    except (OSError, ValueError, RuntimeError):  # a filter that is not here, or broken chunks
        return False
    return np.array_equal(raw, _cleaned(dataset.element, raw))


def _raw(dataset: _Dataset) -> NDArray[np.uint8]:
    """Return the bytes of all elements as they are stored, without filters."""
    from h5py import h5s

    raw = np.zeros(dataset.nbytes, np.uint8)
    # With the dataset's own type for the memory, HDF5 converts nothing.
    dataset.dsid.read(h5s.ALL, h5s.ALL, raw, mtype=dataset.dsid.get_type())
    return raw


def _cleaned(element: ElementType, raw: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Return bytes of elements with strings padded as numpy's are."""
    for codec in element.codecs[1:]:
        assert isinstance(codec, BytesBytes)
        raw = np.asarray(codec.decode(raw, raw.size, raw.size))
    return raw


def _external(dataset: _Dataset) -> _Stored:
    parts = external.segments(dataset.dcpl, dataset.nbytes, dataset.near)
    grid, manifest = external.lay(parts, dataset.shape, dataset.element.itemsize)
    return grid, manifest, dataset.decoding().pipeline


def _virtual(dataset: _Dataset) -> _Stored:
    """Put references to the sources together, or else read what HDF5 makes of them."""
    near, element, dcpl = dataset.near, dataset.element, dataset.dcpl
    extents = dataset.space.get_simple_extent_dims()
    fill = np.asarray(_fill_value(dataset, True), element.dtype).tobytes()
    try:
        found = virtual.pieces(dcpl, extents, near, element, fill)
        return virtual.assemble(found, dataset.shape, dataset.decoding().pipeline)
    except virtual.Unaligned as reason:
        _check_sources(dataset)
        try:
            inlined.check_size(dataset.nbytes)
        except UnsupportedError as error:
            raise UnsupportedError(
                f"references cannot stand for the virtual dataset ({reason}): {error.message}"
            ) from None
        return _read(dataset)


def _check_sources(dataset: _Dataset) -> None:
    """Make sure that HDF5 may open what a virtual dataset is made of."""
    for index in range(dataset.dcpl.get_virtual_count()):
        name = dataset.dcpl.get_virtual_filename(index)
        name = name if isinstance(name, str) else name.decode("utf-8", "surrogateescape")
        if name != ".":
            dataset.near.check(name)


def _chunked(dataset: _Dataset, address: int) -> _Stored:
    element = dataset.element
    layout, filters = _header(dataset, address, dataset.near.file.bytes)
    decoding = dataset.decoding(filters)
    chunk = dataset.dcpl.get_chunk()
    grid = RegularGrid(dataset.shape, chunk + element.inner)
    index = read_chunk_index(dataset.dsid, dataset.space, chunk, layout)
    if index is None:
        return grid, Manifest.missing(grid.grid_shape), decoding.pipeline
    index = index.reshaped(grid.grid_shape)
    edges = layout.raw_edges and bool(filters)
    mask = _raw_edges(index, grid, decoding) if edges else index.mask
    pipeline, decoders, decoder = _decoders(index, mask, decoding)
    manifest = Manifest(
        grid.grid_shape,
        Sources([dataset.near.file.source]),
        index.source,
        index.offset,
        index.length,
        decoders,
        decoder,
    )
    return grid, manifest, pipeline


def _header(dataset: _Dataset, address: int, file: HeaderBytes) -> tuple[ChunkLayout, list[Filter]]:
    """Read the layout and the filters from the object header."""
    found = header.find(file, address, header.LAYOUT, header.FILTERS)
    if header.LAYOUT not in found:
        raise SourceError("the object header has no layout message")
    layout = header.chunk_layout(found[header.LAYOUT])
    if not dataset.dcpl.get_nfilters():
        return layout, []
    if header.FILTERS in found:
        return layout, header.filters(found[header.FILTERS])
    # The message is shared with other objects; HDF5 knows where it is.
    filters = []
    for k in range(dataset.dcpl.get_nfilters()):
        number, _, values, name = dataset.dcpl.get_filter(k)
        if len(values) > _H5PY_PARAMETERS:
            raise UnsupportedError(f"the parameters of HDF5 filter {number} cannot be read")
        filters.append(Filter(number, name.decode("utf-8", "replace"), values))
    return layout, filters


def _raw_edges(
    index: ChunkIndex, grid: RegularGrid, decoding: FilterPipeline
) -> NDArray[np.uint32]:
    """Return the masks where chunks that reach over the edge are stored without filters."""
    mask = np.zeros(index.source.shape, np.uint32) if index.mask is None else index.mask.copy()
    for axis, (extent, edge) in enumerate(zip(grid.shape, grid.chunk_shape, strict=True)):
        if extent % edge:
            mask[(slice(None),) * axis + (-1,)] = decoding.all_skipped
    return mask


def _decoders(
    index: ChunkIndex, mask: NDArray[np.uint32] | None, decoding: FilterPipeline
) -> tuple[Pipeline, tuple[Decoder, ...], NDArray[np.int32] | None]:
    """Return the pipeline to declare, and decoders for the chunks that need another."""
    if mask is None or not decoding.filters:
        return decoding.pipeline, (), None
    stored = index.source >= 0
    mask = np.where(stored, mask & np.uint32(decoding.all_skipped), 0)
    values = np.unique(mask[stored]).tolist()
    if len(values) == 1:  # all chunks skip the same filters: those are no part of the array
        return decoding.masked(values[0]), (), None
    odd = [value for value in values if value]
    decoders = tuple(Decoder(decoding.masked(value)) for value in odd)
    decoder = np.where(mask == 0, -1, np.searchsorted(odd, mask)).astype(np.int32)
    return decoding.pipeline, decoders, decoder


def _copied(dataset: _Dataset) -> Values:
    """Keep values here that lie in heaps between other things."""
    from h5py import h5d

    if dataset.dcpl.get_layout() == h5d.VIRTUAL:
        _check_sources(dataset)
    if dataset.dcpl.get_external_count():
        raise UnsupportedError("variable-length values in external files")
    dtype, shape, data, pipeline = inlined.read(dataset.dsid, dataset.near.names)
    grid = RegularGrid(shape, [max(n, 1) for n in shape])
    if 0 in shape:
        manifest = Manifest.missing(grid.grid_shape)
    else:
        manifest = Manifest.inline(data, len(shape))
    fill = "" if dtype == STRING else None if dtype.hasobject else np.zeros((), dtype)[()]
    return Values(shape, dtype, grid, manifest, pipeline, fill)


def _fill_value(dataset: _Dataset, needed: bool) -> Any:
    """Return what h5py reads where nothing was written.

    That is zero where HDF5 is told never to write the fill value: the library then leaves the
    reader's memory as it is.
    """
    from h5py import h5d

    dcpl, element = dataset.dcpl, dataset.element
    zero = np.zeros((), element.dtype)[()]
    if dcpl.get_fill_time() == h5d.FILL_TIME_NEVER:
        return zero
    if dcpl.fill_value_defined() != h5d.FILL_VALUE_USER_DEFINED:
        return zero
    try:
        values = np.zeros((), dataset.dsid.dtype)
    except TypeError:  # h5py has no such type
        values = np.zeros((), element.dtype)
    try:
        dcpl.get_fill_value(values)
    except (TypeError, ValueError, OSError, RuntimeError) as error:
        if needed:
            raise UnsupportedError(f"the fill value cannot be read: {error}") from error
        return zero
    values = values.reshape(-1).astype(element.dtype)
    if needed and any(item.tobytes() != values[0].tobytes() for item in values):
        raise UnsupportedError("the fill value is a list of different numbers")
    return values[0]
