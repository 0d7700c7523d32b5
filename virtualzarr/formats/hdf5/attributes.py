"""The attributes of HDF5 objects: what users wrote, and the bookkeeping beside it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from virtualzarr.errors import UnsupportedError
from virtualzarr.metadata import json_attributes

# Bookkeeping of the HDF5 dimension scales and of netCDF4, no part of what users wrote.
_HIDDEN = frozenset(
    {
        "REFERENCE_LIST", "DIMENSION_LIST", "_Netcdf4Dimid", "_Netcdf4Coordinates",
        "_nc3_strict", "_NCProperties", "_NCCOPY",
    }
)  # fmt: skip
_OF_SCALES = ("CLASS", "NAME")

_H5PY_ERRORS = (TypeError, ValueError, OSError, RuntimeError, KeyError, MemoryError)
_MAX_BYTES = 1 << 26

Complain = Callable[[str, str], None]


@dataclass
class Attributes:
    """The attributes of one object.

    Parameters
    ----------
    shown : dict
        What users wrote, as JSON values.
    hidden : dict
        The bookkeeping, as numpy gives it; references as addresses of object headers.
    """

    shown: dict[str, Any] = field(default_factory=dict)
    hidden: dict[str, Any] = field(default_factory=dict)

    @property
    def is_scale(self) -> bool:
        """Whether the object is an HDF5 dimension scale."""
        return self.hidden.get("CLASS") == "DIMENSION_SCALE"


class Address(int):
    """Address of the object header that a reference points to; -1 for one to nothing."""


class AttributeReader:
    """Reads attributes; remembers what it found out about each HDF5 datatype.

    Parameters
    ----------
    names : mapping
        Path of each object of the file by address: what references are replaced by.
    """

    def __init__(self, names: Mapping[int, str]) -> None:
        self.names = names
        self._kinds: dict[bytes, _Kind] = {}

    def read(self, oid: Any, complain: Complain) -> Attributes:
        """Read the attributes of an object.

        Parameters
        ----------
        oid : h5py ObjectID
        complain : callable
            Called with the name and the reason for each attribute that cannot be read.
        """
        from h5py import h5a

        found = Attributes()
        wanted: dict[str, Any] = {}
        for index in range(h5a.get_num_attrs(oid)):
            name = f"number {index}"
            try:
                aid = h5a.open(oid, index=index)
                name = aid.name.decode("utf-8", "backslashreplace")
                if name == "REFERENCE_LIST":  # who uses a scale: long, and its users say it, too
                    continue
                value = self._value(aid)
            except UnsupportedError as error:
                complain(name, error.message)
            except _H5PY_ERRORS as error:
                complain(name, f"h5py cannot read it: {error}")
            else:
                if name in _HIDDEN:
                    found.hidden[name] = value
                else:
                    wanted[name] = _named(value, self.names)
        found.shown = json_attributes(wanted)
        if found.shown.get("CLASS") == "DIMENSION_SCALE":
            found.hidden.update({name: found.shown.pop(name, "") for name in _OF_SCALES})
        return found

    def _value(self, aid: Any) -> Any:
        """Read one attribute as numpy values; references become `Address`."""
        kind = self._kind(aid.get_type())
        extents = aid.get_space().get_simple_extent_dims()
        if extents is None:  # a null dataspace
            return "" if kind.text else []
        shape = extents + kind.inner
        if math.prod(shape) * kind.base.itemsize > _MAX_BYTES:
            raise UnsupportedError(f"its shape {shape} is too large for an attribute")
        values = np.zeros(shape, kind.base)
        aid.read(values, mtype=kind.memory)
        if shape == (1,):  # netCDF keeps every single value as a list of one
            values = values.reshape(())
        return _objects(values, aid) if kind.base.kind == "O" else values

    def _kind(self, tid: Any) -> _Kind:
        key = tid.encode()
        kind = self._kinds.get(key)
        if kind is None:
            kind = self._kinds[key] = _kind(tid)
        return kind


@dataclass(frozen=True)
class _Kind:
    """What there is to know about an HDF5 datatype to read attributes of it."""

    base: np.dtype[Any]
    inner: tuple[int, ...]
    memory: Any
    text: bool


def _kind(tid: Any) -> _Kind:
    from h5py import h5t

    _refuse_unreadable(tid)
    dtype = tid.dtype
    base, inner = dtype.subdtype or (dtype, ())
    return _Kind(base, inner, h5t.py_create(dtype), tid.get_class() == h5t.STRING)


def _refuse_unreadable(tid: Any, inside: bool = False) -> None:
    """Refuse types that have no JSON form, before h5py reads (and sometimes crashes on) them."""
    from h5py import h5t

    kind = tid.get_class()
    if inside and (kind in (h5t.VLEN, h5t.REFERENCE) or tid.dtype.kind == "O"):
        raise UnsupportedError("its compound type holds variable-length data or references")
    if kind == h5t.REFERENCE and not tid.equal(h5t.STD_REF_OBJ):
        raise UnsupportedError("region references are not supported")
    if kind in (h5t.VLEN, h5t.ARRAY):
        _refuse_unreadable(tid.get_super(), inside)
    if kind == h5t.COMPOUND:
        for index in range(tid.get_nmembers()):
            _refuse_unreadable(tid.get_member_type(index), inside=True)


def _objects(values: Any, oid: Any) -> Any:
    """Return the objects h5py gives as lists of plain ones."""
    from h5py import h5o, h5r

    if isinstance(values, np.ndarray) and values.dtype.hasobject:
        if values.ndim == 0:
            return _objects(values[()], oid)
        return [_objects(part, oid) for part in values]
    if isinstance(values, h5r.Reference):
        target = h5r.dereference(values, oid) if values else None
        return Address(-1 if target is None else h5o.get_info(target).addr)
    return values


def _named(value: Any, names: Mapping[int, str]) -> Any:
    """Replace addresses by the paths of the objects there."""
    if isinstance(value, list):
        return [_named(item, names) for item in value]
    if isinstance(value, Address):
        return f"/{names[value]}" if value in names else ""
    return value
