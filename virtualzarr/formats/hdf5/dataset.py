"""How the values of one HDF5 dataset lie in its file: grid, references, codecs, fill value."""

from __future__ import annotations

import math
from collections.abc import Generator
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from grids import RegularGrid
from grids.grid import SeparableGrid
from virtualzarr.array import Array
from virtualzarr.codecs import Pipeline, make
from virtualzarr.codecs.core.base import BytesBytes
from virtualzarr.codecs.core.netcdf_fill import netcdf_fill
from virtualzarr.config import config
from virtualzarr.errors import SourceError, UnsupportedError, VirtualZarrError
from virtualzarr.formats.hdf5 import external, header, inlined, space
from virtualzarr.formats.hdf5 import vlen as heaped
from virtualzarr.formats.hdf5.context import Surroundings
from virtualzarr.formats.hdf5.datatype import checked, decoded, size
from virtualzarr.formats.hdf5.describe import Described
from virtualzarr.formats.hdf5.filters import FilterPipeline, filter_pipeline
from virtualzarr.formats.hdf5.indexes import ChunkIndex
from virtualzarr.formats.hdf5.open_file import OpenFile
from virtualzarr.formats.hdf5.types import ElementType
from virtualzarr.formats.hdf5.unsupported import Unknown
from virtualzarr.manifest import Decoder, Manifest
from virtualzarr.metadata import STRING, ArrayMetadata
from virtualzarr.stores.files import is_url

# Strings of datasets up to this size are looked at.
_LOOKED_AT = 1 << 18


@dataclass(slots=True)
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


@dataclass(slots=True)
class Dataset:
    """What the functions of this module look at.

    Parameters
    ----------
    described : Described
    near : Surroundings
    element : ElementType
        May be simpler than that of `described`.
    shape : tuple of int
        With the axes of an array type.
    """

    described: Described
    near: Surroundings
    element: ElementType
    shape: tuple[int, ...]

    def decoding(self) -> FilterPipeline:
        """Return the codecs of the elements and of the filters."""
        found = self.described.decoding()
        if self.element is self.described.element:
            return found
        return filter_pipeline(self.element, found.filters)

    @property
    def nbytes(self) -> int:
        """Bytes of all elements as stored."""
        return math.prod(self.shape) * self.element.itemsize


_Stored = tuple[SeparableGrid, Manifest, Pipeline]


def read_values(described: Described, near: Surroundings) -> Values:
    """Find out how the values of a dataset lie.

    Parameters
    ----------
    described : Described
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
    element, extents = described.element, described.shape
    width = max(element.itemsize, element.dtype.itemsize)
    config.limits.check("element_bytes", width, "bytes of an element")
    if extents is None:  # a null dataspace: no axes, and no values
        return _no_values(element)
    if described.layout.kind == "virtual":
        from virtualzarr.formats.hdf5 import virtual_dataset

        return virtual_dataset.read(described, near)
    dataset = Dataset(described, near, element, extents + element.inner)
    if element.elsewhere:
        return _copied(dataset)
    if len(element.codecs) > 1 and _is_clean(dataset):
        dataset = replace(dataset, element=replace(element, codecs=element.codecs[:1]))
    grid, manifest, pipeline = _stored(dataset)
    fill = fill_value(dataset, manifest)
    return Values(dataset.shape, element.dtype, grid, manifest, pipeline, fill, element.labels)


def _no_values(element: ElementType) -> Values:
    """Return the values of a null dataspace: one axis without elements."""
    dtype, pipeline = element.dtype, Pipeline(element.codecs)
    fill: Any = np.zeros((), dtype)[()]
    if element.elsewhere:
        dtype, pipeline, fill = STRING, Pipeline([make("vlen-utf8")]), ""
    manifest = Manifest.missing((0,))
    return Values((0,), dtype, RegularGrid((0,), (1,)), manifest, pipeline, fill, element.labels)


def _stored(dataset: Dataset) -> _Stored:
    described = dataset.described
    if 0 in dataset.shape:
        return lay_nothing(dataset)
    if described.layout.kind == "compact":
        return _compact(dataset)
    if described.layout.kind == "contiguous":
        return _external(dataset) if described.external else _contiguous(dataset)
    return _chunked(dataset)


def _whole(dataset: Dataset) -> RegularGrid:
    """Return the grid of one cell."""
    return _grid(dataset.shape, tuple([max(n, 1) for n in dataset.shape]))


@lru_cache(1024)
def _grid(shape: tuple[int, ...], chunk: tuple[int, ...]) -> RegularGrid:
    return RegularGrid(shape, chunk)


def lay_nothing(dataset: Dataset) -> _Stored:
    """Return grid, references and codecs of a dataset without elements."""
    described = dataset.described
    chunk = described.layout.chunk if described.layout.kind == "chunked" else ()
    if len(chunk) + len(dataset.element.inner) == len(dataset.shape):
        grid = _grid(dataset.shape, tuple(chunk) + dataset.element.inner)
    else:
        grid = _whole(dataset)
    return grid, Manifest.missing(grid.grid_shape), dataset.decoding().pipeline


def _compact(dataset: Dataset) -> _Stored:
    """Keep the values here: they lie inside the object header, wherever HDF5 moves that."""
    data = dataset.described.layout.data
    if len(data) < dataset.nbytes:
        raise SourceError(f"{len(data)} bytes are stored, {dataset.nbytes} are needed")
    return inline(dataset, np.frombuffer(data, np.uint8, dataset.nbytes))


def inline(dataset: Dataset, raw: NDArray[np.uint8]) -> _Stored:
    """Return grid, references and codecs of values kept in the manifest.

    Strings are cleaned: that spares the codec.
    """
    raw = _cleaned(dataset.element, raw)
    manifest = Manifest.inline(raw.tobytes(), len(dataset.shape))
    return _whole(dataset), manifest, Pipeline(dataset.element.codecs[:1])


def _cleaned(element: ElementType, raw: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Return bytes of elements with strings padded as numpy's are."""
    for codec in element.codecs[1:]:
        assert isinstance(codec, BytesBytes)
        raw = np.asarray(codec.decode(raw, raw.size, raw.size))
    return raw


def _is_clean(dataset: Dataset) -> bool:
    """Whether all strings of a small local dataset are padded as numpy's are.

    They then need no codec that other readers do not have. Large datasets are not looked at.
    """
    if dataset.described.external or not 0 < dataset.nbytes <= _LOOKED_AT:
        return False
    if is_url(dataset.near.file.source.uri):
        return False
    try:
        stored = as_stored_elements(dataset.described, dataset.near, dataset.element.itemsize)
        raw = np.frombuffer(np.asarray(as_array(stored)[...]).tobytes(), np.uint8)
    except (VirtualZarrError, OSError):  # a filter that is not here, or broken chunks
        return False
    return np.array_equal(raw, _cleaned(dataset.element, raw))


def _contiguous(dataset: Dataset) -> _Stored:
    described, ndim = dataset.described, len(dataset.shape)
    layout, nbytes = described.layout, dataset.nbytes
    pipeline = dataset.decoding().pipeline
    if layout.address is None:
        return _whole(dataset), Manifest.missing((1,) * ndim), pipeline
    if layout.size is not None and layout.size < nbytes:
        raise SourceError(f"{layout.size} bytes are stored, {nbytes} are needed")
    if described.size is not None and layout.address + nbytes > described.size:
        raise SourceError(f"the file ends inside the {nbytes} bytes at {layout.address}")
    offset, source = described.base + layout.address, dataset.near.file.source
    return _whole(dataset), Manifest.single(source, offset, nbytes, ndim), pipeline


def _external(dataset: Dataset) -> _Stored:
    parts = external.segments(dataset.described.external, dataset.nbytes, dataset.near)
    grid, manifest = external.lay(parts, dataset.shape, dataset.element.itemsize)
    return grid, manifest, dataset.decoding().pipeline


def _chunked(dataset: Dataset) -> _Stored:
    described, element = dataset.described, dataset.element
    layout = described.layout
    decoding = dataset.decoding()
    if len(layout.chunk) + len(element.inner) != len(dataset.shape):
        raise SourceError(f"chunks have {len(layout.chunk)} axes, the dataset another number")
    grid = _grid(dataset.shape, layout.chunk + element.inner)
    index = described.index()
    if index is None:
        return grid, Manifest.missing(grid.grid_shape), decoding.pipeline
    index = index.reshaped(grid.grid_shape)
    edges = layout.raw_edges and bool(decoding.filters)
    mask = _raw_edges(index, grid, decoding) if edges else index.mask
    pipeline, decoders, decoder = _decoders(index, mask, decoding)
    manifest = Manifest(
        grid.grid_shape,
        dataset.near.file.sources,
        index.source,
        index.offset,
        index.length,
        decoders,
        decoder,
    )
    return grid, manifest, pipeline


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


def _copied(dataset: Dataset) -> Values:
    """Keep values here that lie in heaps between other things."""
    described = dataset.described
    if described.external:
        raise UnsupportedError("variable-length values in external files")
    try:
        dtype, shape, data, pipeline = dataset.near.file.copy(
            described.address, lambda: copying(described, dataset.near)
        )
    except Unknown as reason:
        dtype, shape, data, pipeline = described.open(reason.message).copied(dataset.near.names)
    return inline_values(dtype, shape, data, pipeline)


def inline_values(
    dtype: np.dtype[Any], shape: tuple[int, ...], data: bytes, pipeline: Pipeline
) -> Values:
    """Return values that are kept in the manifest, in one chunk."""
    grid = RegularGrid(shape, [max(n, 1) for n in shape])
    if 0 in shape:
        manifest = Manifest.missing(grid.grid_shape)
    else:
        manifest = Manifest.inline(data, len(shape))
    fill = "" if dtype == STRING else None if dtype.hasobject else np.zeros((), dtype)[()]
    return Values(shape, dtype, grid, manifest, pipeline, fill)


def copying(described: Described, near: Surroundings) -> Generator[Any, Any, inlined.Copied]:
    """Read values that lie in heaps; a parser, so that many can be read in the same rounds.

    Raises
    ------
    Unknown
        If only h5py can read them.
    """
    objects, address = near.file.objects, described.address
    if objects is None or address is None or described.layout.kind == "virtual":
        raise Unknown("values that lie elsewhere")
    message = checked(objects.messages(address)[header.TYPE])
    try:
        decoded(message).dtype  # noqa: B018
    except TypeError as error:
        raise Unknown(f"a datatype that numpy does not have: {error}") from error
    found = as_stored_elements(described, near, size(message))
    grid, fill = found.grid, np.asarray(found.fill_value).tobytes()
    assert isinstance(grid, RegularGrid)
    stored = yield from heaped.elements(grid, found.manifest, found.pipeline, fill, described.base)
    return (yield from heaped.copied(objects, near.names, message, stored))


def as_stored_elements(described: Described, near: Surroundings, width: int) -> Values:
    """Find out how elements lie whose bytes are to stay as they are stored; their dtype is V.

    Parameters
    ----------
    described : Described
        Of a dataset that is not virtual.
    near : Surroundings
    width : int
        Bytes of an element.

    Raises
    ------
    Unknown
        If the dataset is not known well enough.
    """
    shape = described.shape
    if shape is None:
        raise Unknown("a dataset without a dataspace")
    config.limits.check("element_bytes", width, "bytes of an element")
    dtype = np.dtype((np.void, width))
    element = ElementType(dtype, width, (make("bytes"),))
    grid, manifest, pipeline = _stored(Dataset(described, near, element, shape))
    fill = np.frombuffer(read_fill(described, near, width), dtype)[0]
    return Values(shape, dtype, grid, manifest, pipeline, fill)


def read_fill(described: Described, near: Surroundings, width: int) -> bytes:
    """Return the bytes of an element that was never written.

    Raises
    ------
    Unknown
        If they are not known.
    """
    if near.file.objects is None or described.address is None:
        raise Unknown("the fill value of a dataset that is not known")
    messages = near.file.objects.messages(described.address)
    given = space.fill(messages.get(header.FILL), messages.get(header.OLD_FILL))
    found = bytes(width) if given.never or given.value is None else given.value
    if len(found) != width:
        raise Unknown("a fill value of another length")
    return found


def as_array(values: Values) -> Array:
    """Return values as an array without names and attributes."""
    metadata = ArrayMetadata(
        shape=values.shape,
        dtype=values.dtype,
        grid=values.grid,
        pipeline=values.pipeline,
        fill_value=values.fill_value,
    )
    return Array.from_manifest(metadata, values.manifest)


def fill_value(dataset: Dataset, manifest: Manifest | None) -> Any:
    """Return what h5py reads where nothing was written, which is nowhere if all chunks are stored.

    That is zero where HDF5 is told never to write the fill value: the library then leaves the
    reader's memory as it is.
    """

    def needed() -> bool:
        return manifest is None or manifest.nrefs < manifest.ncells

    described, element = dataset.described, dataset.element
    config.limits.check("element_bytes", element.dtype.itemsize, "bytes of an element")
    value = None
    if not described.never_filled:
        try:
            value = _given_fill(described, element)
        except UnsupportedError:
            if needed():
                raise
    return np.zeros((), element.dtype)[()] if value is None else value


def _given_fill(described: Described, element: ElementType) -> Any:
    """Return the fill value that the dataset declares, None where it declares none.

    Raises
    ------
    UnsupportedError
        It cannot be read, or is no single value.
    """
    try:
        values = described.fill()
    except VirtualZarrError as error:
        raise UnsupportedError(f"the fill value cannot be read: {error.message}") from error
    if values is None:
        return None
    values = values.reshape(-1).astype(element.dtype)
    if any(item.tobytes() != values[0].tobytes() for item in values[1:]):
        raise UnsupportedError("the fill value is a list of different numbers")
    return values[0]


def fill_past_end(described: Described, dtype: np.dtype[Any], file: OpenFile) -> Any:
    """Return what the netCDF library reads past the end of a dataset on an unlimited dimension.

    That is the dataset's own fill value, also where HDF5 never writes it, else netCDF's default:
    not what HDF5 reads where nothing was written within the dataset, which is zero by default.

    Parameters
    ----------
    described : Described
    dtype : numpy dtype
        Of the values as they are declared.
    file : OpenFile
        That the dataset is in.

    Raises
    ------
    UnsupportedError
        The fill value cannot be read.
    """
    if dtype == STRING:
        return _fill_text(described, file)
    if described.element.elsewhere:
        return None if dtype.hasobject else np.zeros((), dtype)[()]
    value = _given_fill(described, described.element)
    return netcdf_fill(dtype) if value is None else value


def _fill_text(described: Described, file: OpenFile) -> str:
    """Return the fill value of a dataset of text."""
    if file.objects is None or described.address is None:
        raise UnsupportedError("the fill value of text cannot be read")
    messages = file.objects.messages(described.address)
    given = space.fill(messages.get(header.FILL), messages.get(header.OLD_FILL)).value
    if given is None:
        return ""
    row = np.frombuffer(given, np.uint8).reshape(1, -1)
    (found,) = file.data.run([heaped.read_texts(file.objects, row)])
    try:
        return bytes(found[0]).decode()
    except UnicodeDecodeError as error:
        raise UnsupportedError("the fill value is not UTF-8") from error
