"""Data types of documents: helpers that Zarr v2 and v3 share.

Variable-length strings and byte strings are object dtypes whose numpy metadata says which of the
two they are, as h5py's do: `STRING` and `BYTES`.
"""

from __future__ import annotations

import re
from collections.abc import Container

import numpy as np

from virtualzarr.codecs.core.numbers import NARROW
from virtualzarr.errors import MetadataError, UnsupportedError
from virtualzarr.metadata.json_documents import short

STRING = np.dtype(object, metadata={"vlen": str})
BYTES = np.dtype(object, metadata={"vlen": bytes})

# Names in zarr-extensions of the dtypes of ml_dtypes: those of real numbers have the same name, the
# complex ones are named by the format of their parts.
NARROW_NAMES = {name: name for name, number in NARROW.items() if number.kind != "c"}
NARROW_NAMES |= {"complex_float16": "complex32", "complex_bfloat16": "bcomplex32"}
UNITS = ("Y", "M", "W", "D", "h", "m", "s", "ms", "us", "μs", "ns", "ps", "fs", "as", "generic")
MAX_ITEMSIZE = 2**31 - 1


def vlen_kind(dtype: np.dtype) -> type | None:
    """Return `str` or `bytes` for a dtype of variable-length elements, None for all others.

    Examples
    --------
    >>> vlen_kind(STRING), vlen_kind(np.dtype("f4"))
    (<class 'str'>, None)
    """
    kind = dict(dtype.metadata or {}).get("vlen") if dtype.kind == "O" else None
    return kind if kind in (str, bytes) else None


def list_leaves(dtype: np.dtype) -> list[np.dtype]:
    """Return the plain dtypes that a possibly structured dtype is made of, in order."""
    if dtype.names is not None:
        return [leaf for name in dtype.names for leaf in list_leaves(dtype[name])]
    if dtype.subdtype is not None:
        return list_leaves(dtype.subdtype[0])
    return [dtype]


def parse_time_dtype(kind: str, unit: str, order: str) -> np.dtype:
    """Return the dtype of times (M) or spans of time (m), in a unit such as ``"10s"``."""
    # numpy takes more, such as "25s/3": only the units of zarr-extensions "numpy.datetime64" pass,
    # with a multiplier that fits numpy's C int.
    match = re.fullmatch(r"([1-9][0-9]*)?(\D+)", unit)
    if match is None or match[2] not in UNITS or int(match[1] or 1) >= 2**31:
        raise MetadataError(f"{short(unit)} is no unit of time, such as 'ns' or '10s'")
    if match[2] == "generic":
        return np.dtype(f"{order}{kind}8")
    return np.dtype(f"{order}{kind}8[{unit.replace('μ', 'u')}]")


def check_field_name(name: str, names: Container[str]) -> str:
    """Return the name of a field, if none of those before it has it."""
    if not name:
        raise MetadataError("a field has no name")
    if name in names:
        raise MetadataError(f"two fields have the name {short(name)}")
    return name


def list_fields(dtype: np.dtype) -> list[tuple[str, np.dtype, int]]:
    """Return name, dtype and offset of the fields of a structured dtype, in memory order.

    Raises
    ------
    UnsupportedError
        Fields overlap, are not in memory order, or have titles.
    """
    # Both formats list fields one after the other, without offsets: overlaps (unions) and fields
    # out of order cannot be written, and would be read at other bytes.
    result: list[tuple[str, np.dtype, int]] = []
    end = 0
    for name in dtype.names or ():
        field, offset, *title = dtype.fields[name]  # type: ignore[index]
        if title:
            raise UnsupportedError(f"the field {name!r} has a title, which documents cannot hold")
        if offset < end:
            raise UnsupportedError(f"the field {name!r} overlaps or precedes the one before it")
        result.append((name, field, offset))
        end = offset + field.itemsize
    return result
