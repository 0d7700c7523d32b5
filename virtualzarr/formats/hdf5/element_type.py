"""Element types of HDF5 datasets: datatypes as numpy dtypes, exactly or not at all."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np

from virtualzarr.codecs import Codec, Pipeline, make
from virtualzarr.codecs.hdf5.library_type import is_flat, type_message, type_of
from virtualzarr.errors import CodecError, UnsupportedError

_MAX_DEPTH = 16
_MAX_STRINGS = 4096


@dataclass(frozen=True)
class StringField:
    """Fixed-length strings inside an element whose padding numpy does not take off.

    Parameters
    ----------
    offset, size : int
        Bytes from the start of the element, and bytes of one string.
    padding : str
        ``"null_terminated"``: what follows the first NUL is no part of the string;
        ``"space_padded"``: trailing blanks are no part of it.
    """

    offset: int
    size: int
    padding: str


@dataclass(frozen=True)
class ElementType:
    """What the elements of a dataset are.

    Parameters
    ----------
    dtype : numpy dtype
        To declare: native where the elements are plain.
    itemsize : int
        Bytes of one element as stored.
    codecs : tuple of Codec
        What makes elements of the stored bytes, before any filter.
    inner : tuple of int
        Dimensions of an array type: further, innermost axes of the dataset.
    labels : dict
        Names of the values of an enumeration.
    has_pointers : bool
        The elements point to where their values lie; the other members then say nothing.
    """

    dtype: np.dtype[Any]
    itemsize: int
    codecs: tuple[Codec, ...]
    inner: tuple[int, ...] = ()
    labels: dict[str, int] = field(default_factory=dict, compare=False)
    has_pointers: bool = False


class _OddTypeError(UnsupportedError):
    """No numpy dtype has the same bytes, but the HDF5 library may convert them."""


def make_element_type(tid: Any) -> ElementType:
    """Describe an HDF5 datatype.

    Raises `UnsupportedError` if the elements cannot be had exactly; the message says why.

    Parameters
    ----------
    tid : h5py.h5t.TypeID
    """
    return _make_element_type(type_message(tid))


@lru_cache(1024)
def _make_element_type(message: str) -> ElementType:
    tid = type_of(message)
    if not is_flat(tid):
        return ElementType(np.dtype(object), tid.get_size(), (make("bytes"),), has_pointers=True)
    try:
        stored, strings = _describe(tid, 0)
    except _OddTypeError as error:
        return _convert_with_library(tid, error)
    except (ValueError, TypeError) as error:
        raise UnsupportedError(f"numpy cannot hold this HDF5 datatype: {error}") from error
    base, inner = stored.subdtype or (stored, ())
    dtype, endian = split_endian(base)
    codecs = [make("bytes", endian=endian) if endian else make("bytes")]
    fields = [[s.offset, s.size, s.padding] for s in strings if s.offset < base.itemsize]
    if fields:
        codecs.append(make("virtualzarr.strings", itemsize=base.itemsize, fields=fields))
    labels = {} if base == np.bool_ else _list_labels(tid)
    return ElementType(dtype, base.itemsize, tuple(codecs), tuple(inner), labels)


def _convert_with_library(tid: Any, reason: UnsupportedError) -> ElementType:
    """Leave it to the HDF5 library to make of the elements what h5py makes of them."""
    from h5py import h5t

    inner: tuple[int, ...] = ()
    while isinstance(tid, h5t.TypeArrayID):
        inner += tuple(tid.get_array_dims())
        tid = tid.get_super()
    try:
        dtype = _value_dtype(tid, 0)
        codec = make("virtualzarr.hdf5_type", datatype=type_message(tid))
        # One element of zeros shows whether there is a conversion.
        Pipeline([codec]).for_block((1,), dtype).decode(bytes(tid.get_size()))
    except (CodecError, TypeError, ValueError, KeyError) as error:
        raise reason from error
    return ElementType(dtype, tid.get_size(), (codec,), inner, _list_labels(tid))


def _value_dtype(tid: Any, depth: int) -> np.dtype[Any]:
    """Return the dtype that h5py reads a type as; where it has none, one that holds all values."""
    from h5py import h5t

    if depth > _MAX_DEPTH:
        raise UnsupportedError(f"the datatype is nested more than {_MAX_DEPTH} levels deep")
    try:
        return np.dtype(tid.dtype.newbyteorder("="))
    except (TypeError, KeyError):
        if isinstance(tid, h5t.TypeFloatID):  # VAX byte order
            _, _, exponent, _, mantissa = tid.get_fields()
            if exponent < 11 and mantissa < 53:
                # VAX floats have no numpy dtype, yet every value of up to 53 bits of mantissa fits
                # in a double.
                return np.dtype("f8")
        if isinstance(tid, h5t.TypeIntegerID) and tid.get_size() < 8:
            kind = "u" if tid.get_sign() == h5t.SGN_NONE else "i"
            return np.dtype(f"{kind}{4 if tid.get_size() < 4 else 8}")
        if isinstance(tid, h5t.TypeArrayID):
            return np.dtype((_value_dtype(tid.get_super(), depth + 1), tid.get_array_dims()))
        if not isinstance(tid, h5t.TypeCompoundID):
            raise TypeError("numpy has no such type") from None
    members = range(tid.get_nmembers())
    names = [tid.get_member_name(k).decode("utf-8", "replace") for k in members]
    inside = [_value_dtype(tid.get_member_type(k), depth + 1) for k in members]
    return np.dtype(list(zip(names, inside, strict=True)))


def _describe(tid: Any, depth: int) -> tuple[np.dtype[Any], list[StringField]]:
    """Return the numpy dtype of the stored bytes and the strings in one element."""
    from h5py import h5t

    if depth > _MAX_DEPTH:
        raise UnsupportedError(f"the datatype is nested more than {_MAX_DEPTH} levels deep")
    if isinstance(tid, h5t.TypeCompoundID):
        return _describe_compound(tid, depth)
    if isinstance(tid, h5t.TypeArrayID):
        return _describe_array(tid, depth)
    # Before integers: enumerations are integers with labels, and h5py's two-valued ones are
    # booleans.
    if isinstance(tid, h5t.TypeEnumID):
        base = _describe_integer(tid.get_super())
        return (np.dtype(bool) if base.itemsize == 1 and tid.dtype == np.bool_ else base), []
    if isinstance(tid, h5t.TypeStringID):
        return _describe_string(tid)
    if isinstance(tid, h5t.TypeIntegerID):
        return _describe_integer(tid), []
    if isinstance(tid, h5t.TypeFloatID):
        return _describe_float(tid), []
    if isinstance(tid, h5t.TypeBitfieldID):
        return _describe_bitfield(tid), []
    if isinstance(tid, h5t.TypeOpaqueID):
        return _describe_opaque(tid), []
    if hasattr(h5t, "TypeComplexID") and isinstance(tid, h5t.TypeComplexID):
        part = _describe_float(tid.get_super())
        return np.dtype(f"{part.str[0]}c{2 * part.itemsize}"), []
    plural = "times" if tid.get_class() == h5t.TIME else f"types of class {tid.get_class()}"
    raise UnsupportedError(f"HDF5 {plural} are not supported: numpy has no such type")


def _describe_integer(tid: Any) -> np.dtype[Any]:
    from h5py import h5t

    if not isinstance(tid, h5t.TypeIntegerID):  # of a damaged file: the library decodes any base
        raise UnsupportedError("HDF5 enumerations of values that are no integers are not supported")
    size = tid.get_size()
    if size not in (1, 2, 4, 8) or tid.get_precision() != 8 * size or tid.get_offset() != 0:
        raise _OddTypeError(
            f"HDF5 integer of {tid.get_precision()} bits at bit {tid.get_offset()} of "
            f"{size} bytes is not supported"
        )
    kind = "u" if tid.get_sign() == h5t.SGN_NONE else "i"
    return np.dtype(f"{_get_byte_order(tid)}{kind}{size}")


def _get_byte_order(tid: Any) -> str:
    from h5py import h5t

    order = tid.get_order()
    if order not in (h5t.ORDER_LE, h5t.ORDER_BE):
        raise _OddTypeError("HDF5 numbers in VAX byte order are not supported")
    return "<" if order == h5t.ORDER_LE else ">"


def _describe_float(tid: Any) -> np.dtype[Any]:
    from h5py import h5t

    # Compared as whole types: exponent bias, normalization and bit positions are free parameters of
    # an HDF5 float (section IV.A.2.d, class 1), and Zarr has these three kinds alone.
    for bits in (32, 64, 16):
        for order, name in (("<", "LE"), (">", "BE")):
            if tid.equal(getattr(h5t, f"IEEE_F{bits}{name}")):
                return np.dtype(f"{order}f{bits // 8}")
    raise _OddTypeError(
        f"HDF5 float of {tid.get_precision()} bits in {tid.get_size()} bytes is not an IEEE "
        "float of 16, 32 or 64 bits"
    )


def _describe_bitfield(tid: Any) -> np.dtype[Any]:
    from h5py import h5t

    for bits in (8, 16, 32, 64):
        for order, name in (("<", "LE"), (">", "BE")):
            if tid.equal(getattr(h5t, f"STD_B{bits}{name}")):
                return np.dtype(f"{order}u{bits // 8}")
    raise _OddTypeError(f"HDF5 bitfield in {tid.get_size()} bytes does not fill its bytes")


def _describe_opaque(tid: Any) -> np.dtype[Any]:
    """Opaque bytes; h5py's tag for datetimes and the like tells the numpy dtype."""
    tag = tid.get_tag()
    dtype = np.dtype(f"V{tid.get_size()}")
    if tag.startswith(b"NUMPY:"):
        dtype = np.dtype(tag[6:].decode("ascii", "replace"))
        # The tag is the file's claim: a dtype of another size would shift all elements.
        if dtype.hasobject or dtype.itemsize != tid.get_size():
            raise UnsupportedError(f"HDF5 opaque type with the tag {tag!r} is not supported")
    return dtype


def _describe_string(tid: Any) -> tuple[np.dtype[Any], list[StringField]]:
    from h5py import h5t

    # numpy pads strings with NULs. Where HDF5 ends them at the first NUL or pads them with blanks,
    # what follows is no part of the string and needs a codec that takes it off.
    size, padding = tid.get_size(), tid.get_strpad()
    if padding == h5t.STR_NULLPAD or (padding == h5t.STR_NULLTERM and size == 1):
        return np.dtype(f"S{size}"), []
    name = {h5t.STR_NULLTERM: "null_terminated", h5t.STR_SPACEPAD: "space_padded"}.get(padding)
    if name is None:
        raise UnsupportedError(f"HDF5 string padding {padding} is not known")
    return np.dtype(f"S{size}"), [StringField(0, size, name)]


def _describe_array(tid: Any, depth: int) -> tuple[np.dtype[Any], list[StringField]]:
    base, strings = _describe(tid.get_super(), depth + 1)
    inner, dims = base.subdtype or (base, ())
    stored = np.dtype((inner, (*tid.get_array_dims(), *dims)))
    return stored, list(_repeat_strings(strings, base.itemsize, stored.itemsize))


def _repeat_strings(strings: list[StringField], step: int, size: int) -> Iterator[StringField]:
    if strings and size // step * len(strings) > _MAX_STRINGS:
        raise UnsupportedError(f"one element holds more than {_MAX_STRINGS} strings")
    for start in range(0, size, step) if strings else ():
        for part in strings:
            yield StringField(start + part.offset, part.size, part.padding)


def _describe_compound(tid: Any, depth: int) -> tuple[np.dtype[Any], list[StringField]]:
    names, formats, offsets, strings = [], [], [], []
    for index in range(tid.get_nmembers()):
        name = tid.get_member_name(index).decode("utf-8", "replace")
        offset = tid.get_member_offset(index)
        try:
            dtype, inside = _describe(tid.get_member_type(index), depth + 1)
        except UnsupportedError as error:
            raise type(error)(f"field {name!r}: {error.message}") from error
        names.append(name)
        formats.append(dtype)
        offsets.append(offset)
        strings += [StringField(offset + part.offset, part.size, part.padding) for part in inside]
    # h5py reads compounds of two equal floats named r and i as complex numbers.
    if tid.dtype.kind == "c":
        return _describe_complex(formats, offsets, tid.get_size()), []
    fields = {"names": names, "formats": formats, "offsets": offsets, "itemsize": tid.get_size()}
    return np.dtype(fields), strings  # type: ignore[call-overload]


def _describe_complex(formats: list[np.dtype[Any]], offsets: list[int], size: int) -> np.dtype[Any]:
    """Return the complex dtype of a compound that h5py takes for complex numbers."""
    part = formats[0]
    if formats != [part, part] or offsets != [0, part.itemsize] or size != 2 * part.itemsize:
        raise _OddTypeError("HDF5 compound of a complex number has padding or mixed byte orders")
    return np.dtype(f"{part.str[0]}c{2 * part.itemsize}")


def _list_labels(tid: Any) -> dict[str, int]:
    """Return the names of the values of an enumeration, or of an array of them."""
    from h5py import h5t

    while isinstance(tid, h5t.TypeArrayID):
        tid = tid.get_super()
    if not isinstance(tid, h5t.TypeEnumID):
        return {}
    members = range(tid.get_nmembers())
    return {
        tid.get_member_name(k).decode("utf-8", "replace"): int(tid.get_member_value(k))
        for k in members
    }


def split_endian(stored: np.dtype[Any]) -> tuple[np.dtype[Any], str | None]:
    """Return the dtype to declare and the byte order to decode with.

    A plain dtype becomes native; a structured one keeps the order of each field when they differ.

    Examples
    --------
    >>> split_endian(np.dtype(">i2")) == (np.dtype("i2"), "big")
    True
    >>> split_endian(np.dtype([("a", ">i2"), ("b", "<i2")]))[1] is None
    True
    """
    # Zarr has one byte order for an array: structured dtypes of mixed orders keep them in the
    # dtype.
    orders = {part.str[0] for part in _iter_leaves(stored)} - {"|"}
    if len(orders) > 1:
        return stored, None
    native = stored.newbyteorder("=") if stored.names is None else stored.newbyteorder("<")
    return native, {"<": "little", ">": "big"}[orders.pop()] if orders else None


def _iter_leaves(dtype: np.dtype[Any]) -> Iterator[np.dtype[Any]]:
    if dtype.subdtype is not None:
        yield from _iter_leaves(dtype.subdtype[0])
    elif dtype.fields is not None:
        for part in dtype.fields.values():
            yield from _iter_leaves(part[0])
    else:
        yield dtype
