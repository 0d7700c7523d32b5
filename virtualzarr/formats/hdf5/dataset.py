"""How the values of one HDF5 dataset lie in its file: grid, references, codecs, fill value."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from grids import RegularGrid
from virtualzarr.codecs import Pipeline
from virtualzarr.codecs.base import BytesBytes
from virtualzarr.errors import SourceError, UnsupportedError
from virtualzarr.formats.hdf5 import header, inlined
from virtualzarr.formats.hdf5.filters import FilterPipeline, filter_pipeline
from virtualzarr.formats.hdf5.header import ChunkLayout, Filter, HeaderBytes
from virtualzarr.formats.hdf5.index import ChunkIndex, read_chunk_index
from virtualzarr.formats.hdf5.types import ElementType, element_type
from virtualzarr.manifest import Decoder, Manifest, Source, Sources
from virtualzarr.metadata import STRING

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
    grid: RegularGrid
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
    source: Source
    element: ElementType
    shape: tuple[int, ...]

    def decoding(self, filters: Sequence[Filter] = ()) -> FilterPipeline:
        return filter_pipeline(self.element, filters)

    @property
    def nbytes(self) -> int:
        """Bytes of all elements as stored."""
        return math.prod(self.shape) * self.element.itemsize


_Stored = tuple[RegularGrid, Manifest, Pipeline]


def read_values(
    dsid: Any, address: int, source: Source, file: HeaderBytes, names: Mapping[int, str]
) -> Values:
    """Find out how the values of a dataset lie.

    Parameters
    ----------
    dsid : h5py.h5d.DatasetID
    address : int
        Of its object header.
    source : Source
        The file, as manifests name it.
    file : HeaderBytes
        The file, to read the object header from.
    names : mapping
        Path of each object of the file by address: what references are replaced by.

    Raises
    ------
    UnsupportedError
        If the values cannot be referenced exactly; the message says why.
    SourceError
        If the file contradicts itself.
    """
    from h5py import h5d, h5s

    dcpl, space = dsid.get_create_plist(), dsid.get_space()
    layout = dcpl.get_layout()
    if space.get_simple_extent_type() == h5s.NULL:
        raise UnsupportedError("the dataset has a null dataspace: no shape and no values")
    if layout == h5d.VIRTUAL:
        raise UnsupportedError("virtual datasets are not supported; scan the files it is made of")
    if dcpl.get_external_count():
        raise UnsupportedError("the values are in external files, which are not supported")
    element = element_type(dsid.get_type())
    shape = space.get_simple_extent_dims() + element.inner
    dataset = _Dataset(dsid, dcpl, space, source, element, shape)
    if element.elsewhere:
        return _copied(dataset, names)
    grid, manifest, pipeline = _stored(dataset, layout, address, file)
    fill = _fill_value(dataset, manifest.nrefs < manifest.ncells)
    return Values(shape, element.dtype, grid, manifest, pipeline, fill, element.labels)


def _stored(dataset: _Dataset, layout: int, address: int, file: HeaderBytes) -> _Stored:
    from h5py import h5d

    if 0 in dataset.shape:
        return _nothing(dataset)
    if layout == h5d.COMPACT:
        return _compact(dataset)
    if layout == h5d.CONTIGUOUS:
        return _contiguous(dataset)
    if layout == h5d.CHUNKED:
        return _chunked(dataset, address, file)
    raise UnsupportedError(f"HDF5 storage layout {layout} is not known")


def _whole(dataset: _Dataset) -> RegularGrid:
    """Return the grid of one cell."""
    return RegularGrid(dataset.shape, [max(n, 1) for n in dataset.shape])


def _nothing(dataset: _Dataset) -> _Stored:
    grid = _whole(dataset)
    return grid, Manifest.missing(grid.grid_shape), dataset.decoding().pipeline


def _compact(dataset: _Dataset) -> _Stored:
    """Keep the values here: they lie inside the object header, wherever HDF5 moves that."""
    from h5py import h5s

    raw = np.zeros(dataset.nbytes, np.uint8)
    # With the dataset's own type for the memory, HDF5 converts nothing.
    dataset.dsid.read(h5s.ALL, h5s.ALL, raw, mtype=dataset.dsid.get_type())
    pipeline = dataset.decoding().pipeline
    for codec in pipeline.codecs[1:]:  # strings are cleaned now: that spares the codec
        assert isinstance(codec, BytesBytes)
        raw = np.asarray(codec.decode(raw, raw.size, raw.size))
    manifest = Manifest.inline(raw.tobytes(), len(dataset.shape))
    return _whole(dataset), manifest, Pipeline(pipeline.codecs[:1])


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
    return _whole(dataset), Manifest.single(dataset.source, offset, nbytes, ndim), pipeline


def _chunked(dataset: _Dataset, address: int, file: HeaderBytes) -> _Stored:
    element = dataset.element
    layout, filters = _header(dataset, address, file)
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
        Sources([dataset.source]),
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


def _copied(dataset: _Dataset, names: Mapping[int, str]) -> Values:
    """Keep values here that lie in heaps between other things."""
    dtype, shape, data, pipeline = inlined.read(dataset.dsid, names)
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
