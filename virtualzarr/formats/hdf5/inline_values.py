"""Inline values: HDF5 values that cannot be referenced, copied into the manifest."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from virtualzarr.codecs import Pipeline, make
from virtualzarr.config import config
from virtualzarr.errors import UnsupportedError
from virtualzarr.formats.hdf5.datatype import to_h5py_type
from virtualzarr.formats.hdf5.element_type import split_endian
from virtualzarr.formats.hdf5.region_references import describe_selection
from virtualzarr.metadata import STRING

_POINTER = 16  # bytes of an element that points to a heap
_SLAB_ELEMENTS = 4096

Values = NDArray[Any]
Shape = tuple[int, ...]


InlineValues = tuple[np.dtype[Any], Shape, bytes, Pipeline]
"""The dtype and shape to declare, the values as one chunk, and its codecs."""


def read(dsid: Any, names: Mapping[int, str]) -> InlineValues:
    """Read a dataset with variable-length elements or references in it, with h5py.

    Strings become text, references the path of what they point to; references to a region, and
    sequences of anything but numbers, text in JSON. Of a compound the fields become that, as text
    of fixed length; sequences of numbers there are JSON, too.

    Parameters
    ----------
    dsid : h5py.h5d.DatasetID
    names : mapping
        Path of each object of the file by address.

    Returns
    -------
    InlineValues

    Raises
    ------
    UnsupportedError
        If the values take more than `config.inline_bytes`, or have no such form.
    """
    tid = dsid.get_type()
    values = _read_with_h5py(dsid, tid, dsid.get_space().get_simple_extent_dims())
    return encode_objects(tid, values, dsid, names)


def encode_objects(tid: Any, values: Values, oid: Any, names: Mapping[int, str]) -> InlineValues:
    """Return values in the form that is kept.

    Raises `UnsupportedError`.

    Parameters
    ----------
    tid : h5py.h5t.TypeID
    values : array
        As h5py reads them; references may be paths already.
    oid : h5py ObjectID, optional
        Of the dataset, if there are references.
    names : mapping
        Path of each object of the file by address.
    """
    shape = values.shape  # with the axes of an array type
    reader = _ObjectConverter(oid, names)
    # Sequences of numbers stay numbers (vlen-array); all else has a form as text that every Zarr
    # reader has, as there is no Zarr data type for nested or mixed sequences.
    numbers = find_sequence_dtype(tid)
    if numbers is not None:
        values = _to_numeric_arrays(values, numbers)
        dtype = np.dtype(object)
        pipeline = Pipeline([make("numcodecs.vlen-array", dtype=numbers.str)])
    elif values.dtype.names is None:
        dtype, pipeline = STRING, Pipeline([make("vlen-utf8")])
        values = reader.to_texts(values)
    else:
        values = reader.to_plain(values)
        dtype, endian = split_endian(values.dtype)
        pipeline = Pipeline([make("bytes", endian=endian) if endian else make("bytes")])
    data = b""
    if values.size:
        check_size(values.nbytes)
        data = pipeline.for_block(shape, dtype).encode(values)
        check_size(len(data))
    return dtype, shape, data, pipeline


def encode_texts(parts: list[bytes], shape: Shape) -> InlineValues:
    """Return strings in the form that is kept.

    Raises `UnsupportedError` if one is not UTF-8, or they take too much.
    """
    try:
        # With something between them, what is valid as a whole is valid in each part.
        b"\n".join(parts).decode()
    except UnicodeDecodeError as error:
        raise UnsupportedError(f"a variable-length string is not UTF-8: {error}") from error
    return STRING, shape, _encode_ragged(parts), Pipeline([make("vlen-utf8")])


def encode_sequences(parts: list[bytes], shape: Shape, dtype: np.dtype[Any]) -> InlineValues:
    """Return sequences of numbers, given as their bytes, in the form that is kept."""
    pipeline = Pipeline([make("numcodecs.vlen-array", dtype=dtype.str)])
    return np.dtype(object), shape, _encode_ragged(parts), pipeline


def _encode_ragged(parts: list[bytes]) -> bytes:
    """Return how many parts there are, then length and bytes of each, as the codecs have it."""
    if not parts:
        return b""
    lengths = np.array([len(parts), *map(len, parts)], "<u4").tobytes()
    pieces: list[bytes] = [b""] * (2 * len(parts))
    # Lengths and bytes interleaved by slices: numcodecs' encoder takes a Python step for each
    # element.
    pieces[::2] = [lengths[k : k + 4] for k in range(4, len(lengths), 4)]
    pieces[1::2] = parts
    data = lengths[:4] + b"".join(pieces)
    check_size(len(data))
    return data


def check_size(nbytes: int) -> None:
    """Refuse to keep too much in memory."""
    if nbytes > config.inline_bytes:
        raise UnsupportedError(
            f"{nbytes} bytes are too many to copy into the manifest; "
            "virtualzarr.config.inline_bytes is the most"
        )


def _read_with_h5py(dsid: Any, tid: Any, shape: Shape) -> Values:
    """Read all values, a few at a time so that it is noticed soon when they are too many."""
    from h5py import h5s

    check_size(math.prod(shape) * min(tid.get_size(), _POINTER))
    try:
        dtype = tid.dtype
        memory = to_h5py_type(dtype)
    except (TypeError, ValueError) as error:
        raise UnsupportedError(f"h5py cannot read this HDF5 datatype: {error}") from error
    values = np.zeros(shape, dtype)
    check_size(values.nbytes)
    if not shape:
        dsid.read(h5s.ALL, h5s.ALL, values, mtype=memory)
        return _fix_byte_order(values, dtype)
    total = 0
    for part in _iter_hyperslabs(shape):
        lengths = tuple(s.stop - s.start for s in part)
        space = dsid.get_space()
        space.select_hyperslab(tuple(s.start for s in part), lengths)
        block = np.zeros(lengths, dtype)
        dsid.read(h5s.create_simple(lengths), space, block, mtype=memory)
        # Objects on the heap cost more than their pointers: sizes are only known once a slab was
        # read.
        total += _count_bytes(block)
        check_size(total)
        values[part] = block
    return _fix_byte_order(values, dtype)


def _iter_hyperslabs(shape: Shape) -> Iterator[tuple[slice, ...]]:
    """Yield selections of a bounded number of elements that cover a shape."""
    if not math.prod(shape):
        return
    # Slabs run along the slowest axes: rows that are contiguous are read in one call.
    inner = math.prod(shape[1:])
    if inner <= _SLAB_ELEMENTS or len(shape) == 1:
        step = max(1, _SLAB_ELEMENTS // inner)
        for start in range(0, shape[0], step):
            inner_slices = tuple(slice(0, n) for n in shape[1:])
            yield (slice(start, min(start + step, shape[0])), *inner_slices)
        return
    for start in range(shape[0]):
        for inner_slices in _iter_hyperslabs(shape[1:]):
            yield (slice(start, start + 1), *inner_slices)


def _count_bytes(values: Any) -> int:
    """Return the bytes of all that objects hold."""
    if values.dtype.names is not None:
        return sum(_count_bytes(values[name]) for name in values.dtype.names)
    if values.dtype.kind != "O":
        return int(values.nbytes)
    total = 0
    for item in values.flat:
        if isinstance(item, np.ndarray):
            total += _count_bytes(item)
        elif isinstance(item, bytes | str):
            total += len(item)
        total += _POINTER
    return total


def _fix_byte_order(values: Values, dtype: np.dtype[Any]) -> Values:
    """Return what was read with sequences of big-endian numbers as they are.

    h5py 3.16 takes their bytes for native ones.
    """
    import h5py

    dtype = dtype.base
    for name in dtype.names or ():
        if dtype[name].hasobject:
            values[name] = _fix_byte_order(values[name], dtype[name])
    base = h5py.check_vlen_dtype(dtype)
    if base is None:
        return values
    for k, item in enumerate(values.flat):
        if not isinstance(item, np.ndarray):
            continue
        if item.dtype.names is not None and ">" in str(item.dtype.descr) + str(base.descr):
            raise UnsupportedError("variable-length sequences of big-endian compounds")
        if base.kind == "O":
            values.flat[k] = _fix_byte_order(item, base)
        elif base.byteorder == ">" and _has_byte_order_bug():
            values.flat[k] = item.view(item.dtype.newbyteorder(">"))
    return values


@cache
def _has_byte_order_bug() -> bool:
    """Whether this version of h5py takes the bytes of big-endian sequences for native ones."""
    import h5py

    with h5py.File("x", "w", driver="core", backing_store=False) as file:
        dataset = file.create_dataset("x", (1,), h5py.vlen_dtype(np.dtype(">i2")))
        dataset[0] = np.array([1], "<i2")
        return bool(dataset[0][0] != 1)


def find_sequence_dtype(tid: Any) -> np.dtype[Any] | None:
    """Return the dtype of the elements of sequences of numbers; None for all other types."""
    from h5py import h5t

    while isinstance(tid, h5t.TypeArrayID):
        tid = tid.get_super()
    if not isinstance(tid, h5t.TypeVlenID):
        return None
    try:
        dtype = tid.get_super().dtype
    except TypeError:
        return None
    return np.dtype(dtype.str) if dtype.kind in "biufc" and dtype.subdtype is None else None


def _to_numeric_arrays(values: Values, dtype: np.dtype[Any]) -> Values:
    """Return sequences as arrays of one dtype; what was never written is empty."""
    out = np.empty(values.shape, object)
    for k, item in enumerate(values.flat):
        out.flat[k] = item if isinstance(item, np.ndarray) else np.empty(0, dtype)
    return out


@dataclass(frozen=True)
class _ObjectConverter:
    """Makes text of the objects that h5py reads.

    Parameters
    ----------
    oid : h5py ObjectID
        Of the dataset.
    names : mapping
        Path of each object of the file by address.
    """

    oid: Any
    names: Mapping[int, str]

    def to_plain(self, values: Values) -> Values:
        """Return an array without objects: they become text of fixed length."""
        if values.dtype.names is None:
            if values.dtype.kind != "O":
                return values
            texts = self.to_texts(values)
            longest = max((len(text) for text in texts.flat), default=0)
            check_size(4 * longest * texts.size)
            return texts.astype(f"<U{max(longest, 1)}")
        fields = {name: self.to_plain(values[name]) for name in values.dtype.names}
        ndim = values.ndim
        inner = {name: part.shape[ndim:] for name, part in fields.items()}
        dtype = np.dtype([(name, part.dtype, inner[name]) for name, part in fields.items()])
        out = np.zeros(values.shape, dtype)
        for name, part in fields.items():
            out[name] = part
        return out

    def to_texts(self, values: Values) -> Values:
        """Return an array of text."""
        out = np.empty(values.shape, object)
        for k, item in enumerate(values.flat):
            out.flat[k] = self._to_text(item)
        return out

    def _to_text(self, item: Any) -> str:
        value = self._to_json(item)
        return value if isinstance(value, str) else json.dumps(value)

    def _to_json(self, item: Any) -> Any:
        """Return an element as JSON values."""
        from h5py import h5r

        if isinstance(item, h5r.RegionReference):
            return json.dumps(self._describe_region(item))
        if isinstance(item, h5r.Reference):
            return self._resolve_path(item)
        if isinstance(item, np.ndarray):
            return [self._to_json(part) for part in item]
        if isinstance(item, np.void) and item.dtype.names is not None:
            return {name: self._to_json(item[name]) for name in item.dtype.names}
        if isinstance(item, bytes):
            try:
                return item.decode("utf-8")
            except UnicodeDecodeError as error:
                raise UnsupportedError(f"a variable-length string is not UTF-8: {error}") from error
        value = item.item() if isinstance(item, np.generic) else item
        if isinstance(value, complex):
            return [value.real, value.imag]
        if isinstance(value, int | float | str):
            return value
        raise UnsupportedError(f"{type(item).__name__} inside variable-length data")

    def _resolve_path(self, reference: Any) -> str:
        """Return the path of what a reference points to, "" if it points to nothing."""
        from h5py import h5i, h5o, h5r

        if not reference:
            return ""
        try:
            target = h5r.dereference(reference, self.oid)
            address = h5o.get_info(target).addr
        except (ValueError, RuntimeError, OSError, KeyError, TypeError, AttributeError) as error:
            raise UnsupportedError("a reference points to what is not there") from error
        if address in self.names:
            return f"/{self.names[address]}"
        name: bytes = h5i.get_name(target) or b""
        return name.decode("utf-8", "backslashreplace")

    def _describe_region(self, reference: Any) -> Any:
        """Return a region as path and blocks (first and last corner) or points."""
        from h5py import h5r

        if not reference:
            return None
        path = self._resolve_path(reference)
        try:
            space = h5r.get_region(reference, self.oid)
        except (ValueError, RuntimeError, OSError, KeyError) as error:
            raise UnsupportedError("a reference points to a region that is not there") from error
        return describe_selection(path, space)
