"""Operations of the h5py worker: datasets, groups and attributes that this package does not parse.

Runs in a worker: see `virtualzarr.formats.hdf5.h5py_fallback`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from virtualzarr.codecs.hdf5.library_type import type_message, type_of
from virtualzarr.errors import SourceError, UnsupportedError, VirtualZarrError
from virtualzarr.formats.hdf5 import inline_values
from virtualzarr.formats.hdf5.attributes import AttributeReader
from virtualzarr.formats.hdf5.element_type import make_element_type
from virtualzarr.formats.hdf5.external_file_list import Slot
from virtualzarr.formats.hdf5.h5py_fallback import H5PY_ERRORS, DatasetFacts
from virtualzarr.formats.hdf5.h5py_index import read_chunk_index
from virtualzarr.formats.hdf5.indexes import ChunkIndex
from virtualzarr.formats.hdf5.layout_message import Layout
from virtualzarr.formats.hdf5.links import Link
from virtualzarr.formats.hdf5.messages import Dataspace, Filter, from_h5py_space
from virtualzarr.metadata import STRING

# h5py passes on no more parameters of a filter than this.
_H5PY_PARAMETERS = 16


def kind(fid: Any, target: bytes) -> tuple[str, int]:
    """Return what an object is ("group", "dataset" or "type"), and its address."""
    from h5py import h5o

    info = h5o.get_info(fid, target)
    kinds = {h5o.TYPE_GROUP: "group", h5o.TYPE_DATASET: "dataset"}
    return kinds.get(info.type, "type"), info.addr


def links(fid: Any, target: bytes) -> list[Link]:
    """Return the links of a group, in the order of creation if that is kept, else by name."""
    from h5py import h5, h5l, h5o, h5p

    kinds = {h5l.TYPE_HARD: "hard", h5l.TYPE_SOFT: "soft", h5l.TYPE_EXTERNAL: "external"}
    result: list[Link] = []
    gid = h5o.open(fid, target)

    def note(name: bytes, info: Any) -> None:
        kind, address, value = kinds.get(info.type, "user-defined"), 0, b""
        if kind == "hard":
            address = h5o.get_info(gid, name).addr
        elif kind == "soft":
            value = gid.links.get_val(name)
        elif kind == "external":
            value = b"\0".join(gid.links.get_val(name)) + b"\0"
        result.append(Link(name, kind, address, value))

    order = h5.INDEX_NAME
    # Creation order is what netCDF4 shows; without it, there are only names to go by.
    if gid.get_create_plist().get_link_creation_order() & h5p.CRT_ORDER_TRACKED:
        order = h5.INDEX_CRT_ORDER
    gid.links.iterate(note, info=True, idx_type=order)
    return result


def _open_dataset(fid: Any, target: bytes) -> Any:
    """Open a dataset, but not a virtual one: the library would open whatever files that names."""
    from h5py import h5d

    dsid = h5d.open(fid, target)
    if dsid.get_create_plist().get_layout() == h5d.VIRTUAL:
        raise UnsupportedError("a virtual dataset that only the HDF5 library could read")
    return dsid


def space(fid: Any, target: bytes) -> Dataspace:
    """Return the dataspace of a dataset."""
    return from_h5py_space(_open_dataset(fid, target).get_space())


def facts(fid: Any, target: bytes, layout: Layout | None, base: int) -> DatasetFacts:
    """Return what is to be known of a dataset."""
    from h5py import h5d

    dsid = _open_dataset(fid, target)
    dcpl = dsid.get_create_plist()
    dataset_layout = _read_layout(dsid, dcpl, base) if layout is None else layout
    filters: tuple[Filter, ...] | VirtualZarrError = ()
    fill: NDArray[Any] | VirtualZarrError | None
    try:
        filters = _list_filters(dcpl) if dataset_layout.kind == "chunked" else ()
    except VirtualZarrError as error:
        filters = error
    try:
        fill = _read_user_fill(dsid, dcpl)
    except VirtualZarrError as error:
        fill = error
    return DatasetFacts(
        from_h5py_space(dsid.get_space()),
        type_message(dsid.get_type()),
        dataset_layout,
        tuple(Slot(*dcpl.get_external(k)) for k in range(dcpl.get_external_count())),
        filters,
        fill,
        dcpl.get_fill_time() == h5d.FILL_TIME_NEVER,
    )


def _read_layout(dsid: Any, dcpl: Any, base: int) -> Layout:
    """Return the layout as far as h5py tells it.

    Raises `UnsupportedError` if it is of an unknown kind.
    """
    from h5py import h5d

    kind = dcpl.get_layout()
    if kind == h5d.COMPACT:
        return Layout("compact", data=_read_stored(dsid).tobytes())
    if kind == h5d.CONTIGUOUS:
        offset = dsid.get_offset()
        return Layout("contiguous", None if offset is None else offset - base,
                      dsid.get_storage_size())  # fmt: skip
    if kind == h5d.CHUNKED:
        return Layout("chunked", chunk=dcpl.get_chunk())
    raise UnsupportedError("a layout of the dataset that is not known")


def _read_stored(dsid: Any) -> NDArray[np.uint8]:
    """Read values as they are stored."""
    from h5py import h5s

    tid = dsid.get_type()
    nbytes = dsid.get_space().get_simple_extent_npoints() * tid.get_size()
    inline_values.check_size(nbytes)
    raw = np.zeros(nbytes, np.uint8)
    # With the dataset's own type for the memory, HDF5 converts nothing.
    dsid.read(h5s.ALL, h5s.ALL, raw, mtype=tid)
    return raw


def _list_filters(dcpl: Any) -> tuple[Filter, ...]:
    filters = []
    for k in range(dcpl.get_nfilters()):
        number, _, values, name = dcpl.get_filter(k)
        if len(values) > _H5PY_PARAMETERS:
            raise UnsupportedError(f"the parameters of HDF5 filter {number} cannot be read")
        filters.append(Filter(number, name.decode("utf-8", "replace"), values))
    return tuple(filters)


def _read_user_fill(dsid: Any, dcpl: Any) -> NDArray[Any] | None:
    from h5py import h5d

    if dcpl.fill_value_defined() != h5d.FILL_VALUE_USER_DEFINED:
        return None
    try:
        values = np.zeros((), dsid.dtype)
    except TypeError:  # h5py has no such type
        values = np.zeros((), make_element_type(type_of(type_message(dsid.get_type()))).dtype)
    try:
        dcpl.get_fill_value(values)
    except H5PY_ERRORS as error:
        raise SourceError(f"the fill value cannot be read: {error}") from error
    return values


def index(fid: Any, target: bytes, layout: Layout) -> ChunkIndex | None:
    """Return the chunk index of a dataset, None where no chunk is stored."""
    return read_chunk_index(_open_dataset(fid, target), layout)


def attributes(fid: Any, target: bytes) -> list[tuple[str, Any]]:
    """Return names and values of the attributes of an object, or why they cannot be read."""
    from h5py import h5o

    oid = h5o.open(fid, target)
    return [
        (attribute.name, attribute.value) for attribute in AttributeReader({}).list_with_h5py(oid)
    ]


def read_inline(fid: Any, target: bytes, names: Mapping[int, str]) -> tuple[Any, ...]:
    """Return the values of a dataset that lie in heaps: type, shape, bytes and codecs."""
    dsid = _open_dataset(fid, target)
    if dsid.get_create_plist().get_external_count():
        raise UnsupportedError("variable-length values in external files")
    dtype, shape, data, pipeline = inline_values.read(dsid, names)
    plain: Any = dtype
    if dtype.hasobject:
        plain = "text" if dtype == STRING else "sequences"
    codecs = [(codec.name, dict(codec.configuration)) for codec in pipeline.codecs]
    return plain, shape, data, codecs
