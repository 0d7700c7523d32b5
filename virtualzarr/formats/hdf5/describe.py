"""Descriptions of HDF5 datasets, by their messages or by the HDF5 library."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

from virtualzarr.codecs.hdf5.library_type import type_of
from virtualzarr.errors import UnsupportedError, VirtualZarrError
from virtualzarr.formats.hdf5 import header
from virtualzarr.formats.hdf5.byte_source import UnknownStructureError
from virtualzarr.formats.hdf5.datatype import MemoryType, check_type, decode_type, find_memory_type
from virtualzarr.formats.hdf5.element_type import ElementType, make_element_type
from virtualzarr.formats.hdf5.external_file_list import Slot
from virtualzarr.formats.hdf5.filters import FilterPipeline, filter_pipeline
from virtualzarr.formats.hdf5.h5py_fallback import LibraryObject
from virtualzarr.formats.hdf5.header import ObjectHeader
from virtualzarr.formats.hdf5.indexes import ChunkIndex
from virtualzarr.formats.hdf5.layout_message import Layout
from virtualzarr.formats.hdf5.messages import Dataspace, FillValue, parse_fill, parse_filters
from virtualzarr.formats.hdf5.objects import Object


@dataclass(slots=True)
class Description:
    """A dataset.

    Parameters
    ----------
    shape : tuple of int, optional
        None for a null dataspace.
    external : tuple of Slot
        The pieces of other files that hold the values, if they do.
    base : int
        Byte of the file that address 0 is.
    size : int, optional
        Bytes of the file from there on, where that is to be checked.
    decoding : callable
        Returns the codecs of the values; no filter saw them if they are not chunked.
    fill : callable
        Returns the fill value as h5py has it; None where the user gave none.
    never_filled : bool
        Whether HDF5 is told never to write the fill value.
    index : callable
        Returns the chunk index.
    open : callable
        Gets what for, and returns the dataset as the HDF5 library has it.
    address : int, optional
        Of the object header, if its messages are known.
    mappings : bytes, optional
        Of a virtual dataset, as stored.
    """

    shape: tuple[int, ...] | None
    element: ElementType
    layout: Layout
    external: tuple[Slot, ...]
    base: int
    size: int | None
    decoding: Callable[[], FilterPipeline]
    fill: Callable[[], NDArray[Any] | None]
    index: Callable[[], ChunkIndex | None]
    open: Callable[[str], LibraryObject]
    address: int | None = None
    never_filled: bool = False
    mappings: bytes | None = None


def describe(
    object_: Object | None, base: int, size: int, open_: Callable[[str], LibraryObject]
) -> Description:
    """Describe a dataset.

    Raises `SourceError` or `UnsupportedError`.

    Parameters
    ----------
    object_ : Object, optional
        None where the file's superblock is not known.
    base, size : int
        Of the file.
    open_ : callable
        Gets why the HDF5 library is asked, and returns the dataset as that has it.
    """
    if object_ is None:
        return _describe_by_library(open_("its superblock"), None, 0)
    try:
        return _describe_by_messages(object_, base, size, open_)
    except UnknownStructureError as error:
        layout = object_.layout if isinstance(object_.layout, Layout) else None
        return _describe_by_library(open_(error.message), layout, base)


def _describe_by_messages(
    object_: Object, base: int, size: int, open_: Callable[[str], LibraryObject]
) -> Description:
    headers, space, layout = object_.header, object_.space, object_.layout
    for part in (headers, space, layout, object_.external):
        if isinstance(part, VirtualZarrError):
            raise part
    if TYPE_CHECKING:
        assert isinstance(headers, ObjectHeader)
        assert isinstance(space, Dataspace)
        assert isinstance(layout, Layout)
        assert isinstance(object_.external, tuple)
    messages = headers.messages
    # HDF5 runs filters on chunks alone: a pipeline message on other layouts is kept, but without
    # effect.
    filters = messages.get(header.FILTERS) if layout.kind == "chunked" else None
    # What is not known must be noticed now.
    fill_value = parse_fill(messages.get(header.FILL), messages.get(header.FILL_V0))
    if filters is not None:
        parse_filters(filters)
    return Description(
        space.shape,
        _make_element_type(messages[header.TYPE]),
        layout,
        object_.external,
        base,
        size,
        lambda: _make_filter_pipeline(messages[header.TYPE], filters),
        lambda: _read_fill(messages[header.TYPE], fill_value),
        lambda: _get_index(object_, base, open_),
        open_,
        object_.address,
        fill_value.never,
        object_.mappings,
    )


@lru_cache(4096)
def _make_element_type(message: bytes) -> ElementType:
    return make_element_type(decode_type(message))


@lru_cache(4096)
def _make_filter_pipeline(message: bytes, filters: bytes | None) -> FilterPipeline:
    return filter_pipeline(
        _make_element_type(message), () if filters is None else parse_filters(filters)
    )


def _read_fill(message: bytes, fill_value: FillValue) -> NDArray[Any] | None:
    if fill_value.value is None:
        return None
    try:
        memory_type_ = find_memory_type(check_type(message))
    except TypeError as error:  # h5py has no such type
        try:
            memory_type_ = MemoryType.of(decode_type(message), _make_element_type(message).dtype)
        except TypeError:
            raise UnsupportedError(f"h5py cannot read the fill value: {error}") from error
    return memory_type_.values(fill_value.value, 1)


def _get_index(
    object_: Object, base: int, open_: Callable[[str], LibraryObject]
) -> ChunkIndex | None:
    if isinstance(object_.index, UnknownStructureError):
        assert isinstance(object_.layout, Layout)
        return open_(object_.index.message).index(object_.layout)
    if isinstance(object_.index, VirtualZarrError):
        raise object_.index
    return object_.index


def _describe_by_library(dataset: LibraryObject, layout: Layout | None, base: int) -> Description:
    """Describe a dataset whose messages are not all known."""
    facts = dataset.facts(layout, base)
    element = make_element_type(type_of(facts.datatype))

    def filters() -> FilterPipeline:
        if isinstance(facts.filters, VirtualZarrError):
            raise facts.filters
        return filter_pipeline(element, facts.filters)

    def fill_value() -> NDArray[Any] | None:
        if isinstance(facts.fill, VirtualZarrError):
            raise facts.fill
        return facts.fill

    return Description(
        facts.space.shape,
        element,
        facts.layout,
        facts.external,
        base,
        None,
        filters,
        fill_value,
        lambda: dataset.index(facts.layout),
        lambda reason: dataset,
        never_filled=facts.never_filled,
    )
