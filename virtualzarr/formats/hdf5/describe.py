"""What is to be known of one HDF5 dataset, from its messages or, by name, from the library."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

from virtualzarr.codecs.hdf5.library_type import type_of
from virtualzarr.errors import UnsupportedError, VirtualZarrError
from virtualzarr.formats.hdf5 import header
from virtualzarr.formats.hdf5.datatype import Memory, checked, decoded, memory
from virtualzarr.formats.hdf5.external_files import Slot
from virtualzarr.formats.hdf5.filters import FilterPipeline, filter_pipeline
from virtualzarr.formats.hdf5.h5py_fallback import Remote
from virtualzarr.formats.hdf5.header import ObjectHeader
from virtualzarr.formats.hdf5.indexes import ChunkIndex
from virtualzarr.formats.hdf5.layouts import Layout
from virtualzarr.formats.hdf5.objects import Object
from virtualzarr.formats.hdf5.space import Fill, Space, fill
from virtualzarr.formats.hdf5.types import ElementType, element_type
from virtualzarr.formats.hdf5.unsupported import Unknown


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
    open: Callable[[str], Remote]
    address: int | None = None
    never_filled: bool = False
    mappings: bytes | None = None


def describe(
    found: Object | None, base: int, size: int, open_: Callable[[str], Remote]
) -> Described:
    """Describe a dataset.

    Parameters
    ----------
    found : Object, optional
        None where the file's superblock is not known.
    base, size : int
        Of the file.
    open_ : callable
        Gets why the HDF5 library is asked, and returns the dataset as that has it.

    Raises
    ------
    SourceError, UnsupportedError
    """
    if found is None:
        return _by_library(open_("its superblock"), None, 0)
    try:
        return _by_messages(found, base, size, open_)
    except Unknown as error:
        layout = found.layout if isinstance(found.layout, Layout) else None
        return _by_library(open_(error.message), layout, base)


def _by_messages(found: Object, base: int, size: int, open_: Callable[[str], Remote]) -> Described:
    headers, space, layout = found.header, found.space, found.layout
    for part in (headers, space, layout, found.external):
        if isinstance(part, VirtualZarrError):
            raise part
    if TYPE_CHECKING:
        assert isinstance(headers, ObjectHeader)
        assert isinstance(space, Space)
        assert isinstance(layout, Layout)
        assert isinstance(found.external, tuple)
    messages = headers.messages
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


def _index(found: Object, base: int, open_: Callable[[str], Remote]) -> ChunkIndex | None:
    if isinstance(found.index, Unknown):
        assert isinstance(found.layout, Layout)
        return open_(found.index.message).index(found.layout)
    if isinstance(found.index, VirtualZarrError):
        raise found.index
    return found.index


def _by_library(found: Remote, layout: Layout | None, base: int) -> Described:
    """Describe a dataset whose messages are not all known."""
    facts = found.facts(layout, base)
    element = element_type(type_of(facts.datatype))

    def filters() -> FilterPipeline:
        if isinstance(facts.filters, VirtualZarrError):
            raise facts.filters
        return filter_pipeline(element, facts.filters)

    def fill_value() -> NDArray[Any] | None:
        if isinstance(facts.fill, VirtualZarrError):
            raise facts.fill
        return facts.fill

    return Described(
        facts.space.shape,
        element,
        facts.layout,
        facts.external,
        base,
        None,
        filters,
        fill_value,
        lambda: found.index(facts.layout),
        lambda reason: found,
        never_filled=facts.never_filled,
    )
