"""What is to be known of one HDF5 dataset, from its messages or, by name, from h5py."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from virtualzarr.errors import SourceError, UnsupportedError, VirtualZarrError
from virtualzarr.formats.hdf5 import header
from virtualzarr.formats.hdf5.datatype import Memory, checked, decoded, memory
from virtualzarr.formats.hdf5.external_files import Slot
from virtualzarr.formats.hdf5.filters import FilterPipeline, filter_pipeline
from virtualzarr.formats.hdf5.header import Filter, ObjectHeader
from virtualzarr.formats.hdf5.index import read_chunk_index
from virtualzarr.formats.hdf5.indexes import ChunkIndex
from virtualzarr.formats.hdf5.layouts import Layout
from virtualzarr.formats.hdf5.library import H5PY_ERRORS
from virtualzarr.formats.hdf5.objects import Object
from virtualzarr.formats.hdf5.source import Unknown
from virtualzarr.formats.hdf5.space import Fill, Space, fill
from virtualzarr.formats.hdf5.types import ElementType, element_type

# h5py passes on no more parameters of a filter than this.
_H5PY_PARAMETERS = 16


@dataclass(slots=True)
class Described:
    """A dataset.

    Parameters
    ----------
    shape : tuple of int, optional
        None for a null dataspace.
    element : ElementType
    layout : Layout
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
        Gets what for, and returns the dataset as h5py has it.
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
    open: Callable[[str], Any]
    address: int | None = None
    never_filled: bool = False
    mappings: bytes | None = None


def describe(found: Object | None, base: int, size: int, open_: Callable[[str], Any]) -> Described:
    """Describe a dataset.

    Parameters
    ----------
    found : Object, optional
        None where the file's superblock is not known.
    base, size : int
        Of the file.
    open_ : callable
        Gets why h5py is asked, and returns the dataset as h5py has it.

    Raises
    ------
    SourceError, UnsupportedError
    """
    if found is None:
        return _by_h5py(open_("its superblock"), None, 0)
    try:
        return _by_messages(found, base, size, open_)
    except Unknown as error:
        layout = found.layout if isinstance(found.layout, Layout) else None
        return _by_h5py(open_(error.message), layout, base)


def _by_messages(found: Object, base: int, size: int, open_: Callable[[str], Any]) -> Described:
    headers, space, layout = found.header, found.space, found.layout
    for part in (headers, space, layout):
        if isinstance(part, VirtualZarrError):
            raise part
    assert isinstance(headers, ObjectHeader)
    assert isinstance(space, Space)
    assert isinstance(layout, Layout)
    messages = headers.messages
    if isinstance(found.external, VirtualZarrError):
        raise found.external
    filters = messages.get(header.FILTERS) if layout.kind == "chunked" else None
    # What is not known must be noticed now.
    given = fill(messages.get(header.FILL), messages.get(header.OLD_FILL))
    if filters is not None:
        header.pipeline(filters)
    return Described(
        space.shape,
        _element(messages[header.TYPE]),
        layout,
        found.external,
        base,
        size,
        lambda: _decoding(messages[header.TYPE], filters),
        lambda: _fill(messages[header.TYPE], given),
        lambda: _index(found, base, open_),
        open_,
        found.address,
        given.never,
        found.mappings,
    )


@lru_cache(4096)
def _element(message: bytes) -> ElementType:
    return element_type(decoded(message))


@lru_cache(4096)
def _decoding(message: bytes, filters: bytes | None) -> FilterPipeline:
    return filter_pipeline(_element(message), () if filters is None else header.pipeline(filters))


def _fill(message: bytes, given: Fill) -> NDArray[Any] | None:
    if given.value is None:
        return None
    try:
        how = memory(checked(message))
    except TypeError as error:  # h5py has no such type
        try:
            how = Memory.of(decoded(message), _element(message).dtype)
        except TypeError:
            raise UnsupportedError(f"h5py cannot read the fill value: {error}") from error
    return how.values(given.value, 1)


def _index(found: Object, base: int, open_: Callable[[str], Any]) -> ChunkIndex | None:
    if isinstance(found.index, Unknown):
        assert isinstance(found.layout, Layout)
        return read_chunk_index(open_(found.index.message), found.layout)
    if isinstance(found.index, VirtualZarrError):
        raise found.index
    return found.index


def _by_h5py(dsid: Any, layout: Layout | None, base: int) -> Described:
    """Describe a dataset whose messages are not all known."""
    from h5py import h5d, h5s

    dcpl = dsid.get_create_plist()
    if dcpl.get_layout() == h5d.VIRTUAL:
        raise UnsupportedError("a virtual dataset that only the HDF5 library could read")
    space = dsid.get_space()
    null = space.get_simple_extent_type() == h5s.NULL
    known = _layout(dsid, dcpl, base) if layout is None else layout
    element = element_type(dsid.get_type())
    return Described(
        None if null else space.get_simple_extent_dims(),
        element,
        known,
        tuple(Slot(*dcpl.get_external(k)) for k in range(dcpl.get_external_count())),
        base,
        None,
        lambda: filter_pipeline(element, _filters(dcpl) if known.kind == "chunked" else ()),
        lambda: _given_fill(dsid, dcpl, element),
        lambda: read_chunk_index(dsid, known),
        lambda reason: dsid,
        never_filled=dcpl.get_fill_time() == h5d.FILL_TIME_NEVER,
    )


def _layout(dsid: Any, dcpl: Any, base: int) -> Layout:
    """Return the layout as far as h5py tells it.

    Raises
    ------
    UnsupportedError
        If the dataset is chunked: h5py does not tell which of its chunks have filters.
    """
    from h5py import h5d

    kind = dcpl.get_layout()
    if kind == h5d.COMPACT:
        return Layout("compact", data=read_stored(dsid).tobytes())
    if kind == h5d.CONTIGUOUS:
        offset = dsid.get_offset()
        return Layout("contiguous", None if offset is None else offset - base,
                      dsid.get_storage_size())  # fmt: skip
    if kind == h5d.CHUNKED:
        return Layout("chunked", chunk=dcpl.get_chunk())
    raise UnsupportedError("a layout of the dataset that is not known")


def read_stored(dsid: Any) -> NDArray[np.uint8]:
    """Read values with h5py as they are stored."""
    from h5py import h5s

    tid = dsid.get_type()
    raw = np.zeros(dsid.get_space().get_simple_extent_npoints() * tid.get_size(), np.uint8)
    # With the dataset's own type for the memory, HDF5 converts nothing.
    dsid.read(h5s.ALL, h5s.ALL, raw, mtype=tid)
    return raw


def _filters(dcpl: Any) -> tuple[Filter, ...]:
    filters = []
    for k in range(dcpl.get_nfilters()):
        number, _, values, name = dcpl.get_filter(k)
        if len(values) > _H5PY_PARAMETERS:
            raise UnsupportedError(f"the parameters of HDF5 filter {number} cannot be read")
        filters.append(Filter(number, name.decode("utf-8", "replace"), values))
    return tuple(filters)


def _given_fill(dsid: Any, dcpl: Any, element: ElementType) -> NDArray[Any] | None:
    from h5py import h5d

    if dcpl.fill_value_defined() != h5d.FILL_VALUE_USER_DEFINED:
        return None
    try:
        values = np.zeros((), dsid.dtype)
    except TypeError:  # h5py has no such type
        values = np.zeros((), element.dtype)
    try:
        dcpl.get_fill_value(values)
    except H5PY_ERRORS as error:
        raise SourceError(f"the fill value cannot be read: {error}") from error
    return values
