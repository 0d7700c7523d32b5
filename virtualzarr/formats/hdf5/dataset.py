"""HDF5 datasets as chunk grid, references, codecs and fill value."""

from __future__ import annotations

import math
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
from virtualzarr.formats.hdf5 import external_storage, header, vlen
from virtualzarr.formats.hdf5.byte_source import Parsing, UnknownStructureError
from virtualzarr.formats.hdf5.context import FileContext
from virtualzarr.formats.hdf5.datatype import check_type, decode_type, get_size
from virtualzarr.formats.hdf5.describe import Description
from virtualzarr.formats.hdf5.element_type import ElementType
from virtualzarr.formats.hdf5.filters import FilterPipeline, filter_pipeline
from virtualzarr.formats.hdf5.indexes import ChunkIndex
from virtualzarr.formats.hdf5.inline_values import InlineValues
from virtualzarr.formats.hdf5.messages import parse_fill
from virtualzarr.formats.hdf5.open_file import OpenFile
from virtualzarr.manifest import Decoder, Manifest
from virtualzarr.metadata import STRING, ArrayMetadata
from virtualzarr.stores.files import is_url


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
    element : ElementType
        May be simpler than that of `described`.
    shape : tuple of int
        With the axes of an array type.
    """

    description: Description
    context: FileContext
    element: ElementType
    shape: tuple[int, ...]

    def decoding(self) -> FilterPipeline:
        """Return the codecs of the elements and of the filters."""
        filters = self.description.decoding()
        if self.element is self.description.element:
            return filters
        return filter_pipeline(self.element, filters.filters)

    @property
    def nbytes(self) -> int:
        """Bytes of all elements as stored."""
        return math.prod(self.shape) * self.element.itemsize


StorageLayout = tuple[SeparableGrid, Manifest, Pipeline]


def read_values(description: Description, context: FileContext) -> Values:
    """Find out how the values of a dataset lie.

    Raises `UnsupportedError` if the values cannot be referenced exactly; the message says why;
    `AccessError` if they are in a file that may not be reached; `SourceError` if the file
    contradicts itself.

    Parameters
    ----------
    context : FileContext
        The file it is in.
    """
    element, extents = description.element, description.shape
    # Before anything is made of it: numpy makes one element of what a datatype of 80 bytes may
    # claim.
    width = max(element.itemsize, element.dtype.itemsize)
    config.limits.check("element_bytes", width, "bytes of an element")
    if extents is None:  # a null dataspace: no axes, and no values
        return _read_null_dataspace(element)
    if description.layout.kind == "virtual":
        _forbid_template(context, "a virtual dataset")
        from virtualzarr.formats.hdf5 import virtual_dataset

        return virtual_dataset.read(description, context)
    dataset = Dataset(description, context, element, extents + element.inner)
    if element.has_pointers:
        return _inline_vlen(dataset)
    if len(element.codecs) > 1 and _is_clean(dataset):
        dataset = replace(dataset, element=replace(element, codecs=element.codecs[:1]))
    grid, manifest, pipeline = _lay_out(dataset)
    fill = find_fill_value(dataset, manifest)
    return Values(dataset.shape, element.dtype, grid, manifest, pipeline, fill, element.labels)


def _forbid_template(context: FileContext, reason: str) -> None:
    if context.file.recorder is not None:
        context.file.recorder.forbid(reason)


def _record_values(dataset: Dataset, manifest: Manifest) -> None:
    """Note that values are looked at: they, and where they are, are the same in files alike."""
    recorder, address = dataset.context.file.recorder, dataset.description.address
    if recorder is None or address is None:
        return
    recorder.pin(address)
    stored = np.asarray(manifest.source) >= 0
    if manifest.nrefs and not manifest.sources[0].is_inline:
        starts = np.asarray(manifest.offset)[stored]
        recorder.use_rows(starts, starts + np.asarray(manifest.length)[stored])


def _read_null_dataspace(element: ElementType) -> Values:
    """Return the values of a null dataspace: one axis without elements."""
    dtype, pipeline = element.dtype, Pipeline(element.codecs)
    fill: Any = np.zeros((), dtype)[()]
    if element.has_pointers:
        dtype, pipeline, fill = STRING, Pipeline([make("vlen-utf8")]), ""
    manifest = Manifest.missing((0,))
    return Values((0,), dtype, RegularGrid((0,), (1,)), manifest, pipeline, fill, element.labels)


def _lay_out(dataset: Dataset) -> StorageLayout:
    description = dataset.description
    if 0 in dataset.shape:
        return lay_out_empty(dataset)
    if description.layout.kind == "compact":
        return _lay_out_compact(dataset)
    if description.layout.kind == "contiguous":
        if description.external:
            _forbid_template(dataset.context, "external storage")
            return _lay_out_external(dataset)
        return _lay_out_contiguous(dataset)
    return _lay_out_chunked(dataset)


def _single_cell_grid(dataset: Dataset) -> RegularGrid:
    """Return the grid of one cell."""
    return _cached_grid(dataset.shape, tuple([max(n, 1) for n in dataset.shape]))


@lru_cache(1024)
def _cached_grid(shape: tuple[int, ...], chunk: tuple[int, ...]) -> RegularGrid:
    return RegularGrid(shape, chunk)


def lay_out_empty(dataset: Dataset) -> StorageLayout:
    """Return grid, references and codecs of a dataset without elements."""
    description = dataset.description
    chunk = description.layout.chunk if description.layout.kind == "chunked" else ()
    if len(chunk) + len(dataset.element.inner) == len(dataset.shape):
        grid = _cached_grid(dataset.shape, tuple(chunk) + dataset.element.inner)
    else:
        grid = _single_cell_grid(dataset)
    return grid, Manifest.missing(grid.grid_shape), dataset.decoding().pipeline


def _lay_out_compact(dataset: Dataset) -> StorageLayout:
    """Keep the values here: they lie inside the object header, wherever HDF5 moves that."""
    data = dataset.description.layout.data
    if len(data) < dataset.nbytes:
        raise SourceError(f"{len(data)} bytes are stored, {dataset.nbytes} are needed")
    return make_inline(dataset, np.frombuffer(data, np.uint8, dataset.nbytes))


def make_inline(dataset: Dataset, raw: NDArray[np.uint8]) -> StorageLayout:
    """Return grid, references and codecs of values kept in the manifest.

    Strings are cleaned: that spares the codec.
    """
    raw = _clean_padding(dataset.element, raw)
    manifest = Manifest.inline(raw.tobytes(), len(dataset.shape))
    return _single_cell_grid(dataset), manifest, Pipeline(dataset.element.codecs[:1])


def _clean_padding(element: ElementType, raw: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Return bytes of elements with strings padded as numpy's are."""
    for codec in element.codecs[1:]:
        assert isinstance(codec, BytesBytes)
        raw = np.asarray(codec.decode(raw, raw.size, raw.size))
    return raw


def _is_clean(dataset: Dataset) -> bool:
    """Whether all strings of a small local dataset are padded as numpy's are.

    They then need no codec that other readers do not have. Large datasets are not looked at.
    """
    most = config.tuning.hdf5_checked_string_bytes
    if dataset.description.external or not 0 < dataset.nbytes <= most:
        return False
    if is_url(dataset.context.file.source.uri):
        return False
    try:
        # Read once here so that other Zarr readers need no codec of this package; a megabyte is not
        # worth it.
        stored = read_opaque(dataset.description, dataset.context, dataset.element.itemsize)
        _record_values(dataset, stored.manifest)
        raw = np.frombuffer(np.asarray(as_array(stored)[...]).tobytes(), np.uint8)
    except (VirtualZarrError, OSError):  # a filter that is not here, or broken chunks
        return False
    return np.array_equal(raw, _clean_padding(dataset.element, raw))


def _lay_out_contiguous(dataset: Dataset) -> StorageLayout:
    description, ndim = dataset.description, len(dataset.shape)
    layout, nbytes = description.layout, dataset.nbytes
    pipeline = dataset.decoding().pipeline
    # Late allocation: HDF5 has never written a value, and reads the fill value.
    if layout.address is None:
        return _single_cell_grid(dataset), Manifest.missing((1,) * ndim), pipeline
    if layout.size is not None and layout.size < nbytes:
        raise SourceError(f"{layout.size} bytes are stored, {nbytes} are needed")
    if description.size is not None and layout.address + nbytes > description.size:
        raise SourceError(f"the file ends inside the {nbytes} bytes at {layout.address}")
    offset, source = description.base + layout.address, dataset.context.file.source
    return _single_cell_grid(dataset), Manifest.single(source, offset, nbytes, ndim), pipeline


def _lay_out_external(dataset: Dataset) -> StorageLayout:
    parts = external_storage.list_segments(
        dataset.description.external, dataset.nbytes, dataset.context
    )
    grid, manifest = external_storage.lay_out_segments(
        parts, dataset.shape, dataset.element.itemsize
    )
    return grid, manifest, dataset.decoding().pipeline


def _lay_out_chunked(dataset: Dataset) -> StorageLayout:
    description, element = dataset.description, dataset.element
    layout = description.layout
    decoding = dataset.decoding()
    if len(layout.chunk) + len(element.inner) != len(dataset.shape):
        raise SourceError(f"chunks have {len(layout.chunk)} axes, the dataset another number")
    grid = _cached_grid(dataset.shape, layout.chunk + element.inner)
    index = description.index()
    if index is None:
        return grid, Manifest.missing(grid.grid_shape), decoding.pipeline
    index = index.reshape(grid.grid_shape)
    edges = layout.raw_edges and bool(decoding.filters)
    mask = _mask_partial_chunks(index, grid, decoding) if edges else index.mask
    pipeline, decoders, decoder = _make_decoders(index, mask, decoding)
    manifest = Manifest(
        grid.grid_shape,
        dataset.context.file.sources,
        index.source,
        index.offset,
        index.length,
        decoders,
        decoder,
    )
    return grid, manifest, pipeline


def _mask_partial_chunks(
    index: ChunkIndex, grid: RegularGrid, decoding: FilterPipeline
) -> NDArray[np.uint32]:
    """Return the masks where chunks that reach over the edge are stored without filters."""
    mask = np.zeros(index.source.shape, np.uint32) if index.mask is None else index.mask.copy()
    for axis, (extent, edge) in enumerate(zip(grid.shape, grid.chunk_shape, strict=True)):
        if extent % edge:
            # Bit 0 of the layout flags: the last chunk along an axis that it does not fill skips
            # all filters, which the index does not repeat in its mask.
            mask[(slice(None),) * axis + (-1,)] = decoding.all_skipped
    return mask


def _make_decoders(
    index: ChunkIndex, mask: NDArray[np.uint32] | None, decoding: FilterPipeline
) -> tuple[Pipeline, tuple[Decoder, ...], NDArray[np.int32] | None]:
    """Return the pipeline to declare, and decoders for the chunks that need another."""
    if mask is None or not decoding.filters:
        return decoding.pipeline, (), None
    stored = index.source >= 0
    mask = np.where(stored, mask & np.uint32(decoding.all_skipped), 0)
    # Bits beyond the pipeline's filters mean nothing, and masks of missing chunks are not set.
    values = np.unique(mask[stored]).tolist()
    if len(values) == 1:  # all chunks skip the same filters: those are no part of the array
        return decoding.without_skipped(values[0]), (), None
    odd = [value for value in values if value]
    decoders = tuple(Decoder(decoding.without_skipped(value)) for value in odd)
    decoder = np.where(mask == 0, -1, np.searchsorted(odd, mask)).astype(np.int32)
    return decoding.pipeline, decoders, decoder


def _inline_vlen(dataset: Dataset) -> Values:
    """Keep values here that lie in heaps between other things."""
    description = dataset.description
    if description.external:
        raise UnsupportedError("variable-length values in external files")
    try:
        dtype, shape, data, pipeline = dataset.context.file.get_vlen(
            description.address, lambda: read_vlen(description, dataset.context)
        )
    except UnknownStructureError as reason:
        dtype, shape, data, pipeline = description.open(reason.message).read_inline(
            dataset.context.names
        )
    return make_inline_values(dtype, shape, data, pipeline)


def make_inline_values(
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


def read_vlen(description: Description, context: FileContext) -> Parsing[InlineValues]:
    """Read values that lie in heaps; a parser, so that many can be read in the same rounds.

    Raises `UnknownStructureError` if only h5py can read them.
    """
    objects, address = context.file.objects, description.address
    if objects is None or address is None or description.layout.kind == "virtual":
        raise UnknownStructureError("values that lie elsewhere")
    message = check_type(objects.messages(address)[header.TYPE])
    try:
        decode_type(message).dtype  # noqa: B018
    except TypeError as error:
        raise UnknownStructureError(f"a datatype that numpy does not have: {error}") from error
    values = read_opaque(description, context, get_size(message))
    grid, fill = values.grid, np.asarray(values.fill_value).tobytes()
    assert isinstance(grid, RegularGrid)
    stored = yield from vlen.read_elements(
        grid, values.manifest, values.pipeline, fill, description.base
    )
    return (yield from vlen.decode_elements(objects, context.names, message, stored))


def read_opaque(description: Description, context: FileContext, width: int) -> Values:
    """Find out how elements lie whose bytes are to stay as they are stored; their dtype is V.

    Raises `UnknownStructureError` if the dataset is not known well enough.

    Parameters
    ----------
    description : Description
        Of a dataset that is not virtual.
    width : int
        Bytes of an element.
    """
    shape = description.shape
    if shape is None:
        raise UnknownStructureError("a dataset without a dataspace")
    config.limits.check("element_bytes", width, "bytes of an element")
    dtype = np.dtype((np.void, width))
    element = ElementType(dtype, width, (make("bytes"),))
    grid, manifest, pipeline = _lay_out(Dataset(description, context, element, shape))
    fill = np.frombuffer(read_fill(description, context, width), dtype)[0]
    return Values(shape, dtype, grid, manifest, pipeline, fill)


def read_fill(description: Description, context: FileContext, width: int) -> bytes:
    """Return the bytes of an element that was never written.

    Raises `UnknownStructureError` if they are not known.
    """
    if context.file.objects is None or description.address is None:
        raise UnknownStructureError("the fill value of a dataset that is not known")
    messages = context.file.objects.messages(description.address)
    fill = parse_fill(messages.get(header.FILL), messages.get(header.FILL_V0))
    element = bytes(width) if fill.never or fill.value is None else fill.value
    if len(element) != width:
        raise UnknownStructureError("a fill value of another length")
    return element


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


def find_fill_value(dataset: Dataset, manifest: Manifest | None) -> Any:
    """Return what h5py reads where nothing was written, which is nowhere if all chunks are stored.

    That is zero where HDF5 is told never to write the fill value: the library then leaves the
    reader's memory as it is.
    """

    def needed() -> bool:
        return manifest is None or manifest.nrefs < manifest.ncells

    description, element = dataset.description, dataset.element
    config.limits.check("element_bytes", element.dtype.itemsize, "bytes of an element")
    value = None
    if not description.never_filled:
        try:
            value = _read_user_fill(description, element)
        except UnsupportedError:
            if needed():
                raise
    return np.zeros((), element.dtype)[()] if value is None else value


def _read_user_fill(description: Description, element: ElementType) -> Any:
    """Return the fill value that the dataset declares, None where it declares none.

    Raises `UnsupportedError` if it cannot be read, or is no single value.
    """
    try:
        values = description.fill()
    except VirtualZarrError as error:
        raise UnsupportedError(f"the fill value cannot be read: {error.message}") from error
    if values is None:
        return None
    values = values.reshape(-1).astype(element.dtype)
    # Array types have a fill value for each of their elements; as axes of Zarr they have one for
    # all.
    if any(item.tobytes() != values[0].tobytes() for item in values[1:]):
        raise UnsupportedError("the fill value is a list of different numbers")
    return values[0]


def find_fill_past_end(description: Description, dtype: np.dtype[Any], file: OpenFile) -> Any:
    """Return what the netCDF library reads past the end of a dataset on an unlimited dimension.

    That is the dataset's own fill value, also where HDF5 never writes it, else netCDF's default:
    not what HDF5 reads where nothing was written within the dataset, which is zero by default.

    Raises `UnsupportedError` if the fill value cannot be read.

    Parameters
    ----------
    dtype : numpy dtype
        Of the values as they are declared.
    file : OpenFile
        That the dataset is in.
    """
    if dtype == STRING:
        return _read_text_fill(description, file)
    if description.element.has_pointers:
        return None if dtype.hasobject else np.zeros((), dtype)[()]
    value = _read_user_fill(description, description.element)
    return netcdf_fill(dtype) if value is None else value


def _read_text_fill(description: Description, file: OpenFile) -> str:
    """Return the fill value of a dataset of text."""
    if file.objects is None or description.address is None:
        raise UnsupportedError("the fill value of text cannot be read")
    messages = file.objects.messages(description.address)
    stored = parse_fill(messages.get(header.FILL), messages.get(header.FILL_V0)).value
    if stored is None:
        return ""
    row = np.frombuffer(stored, np.uint8).reshape(1, -1)
    (texts,) = file.data.run([vlen.read_texts(file.objects, row)])
    try:
        return bytes(texts[0]).decode()
    except UnicodeDecodeError as error:
        raise UnsupportedError("the fill value is not UTF-8") from error
