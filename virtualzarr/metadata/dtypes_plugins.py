"""Registry of data types of other packages, by call or by entry point.

Documents have the name and configuration of a data type, numpy a dtype. A plug-in converts one
into the other, and recognizes its dtype by whatever it likes, such as dtype metadata; the chunks
are encoded as numpy sees the elements.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from virtualzarr.errors import MetadataError

ENTRY_POINTS = "virtualzarr.data_types"


@dataclass(frozen=True)
class DataType:
    """A data type of documents beyond those this package has.

    Attributes
    ----------
    name : str
        The name in v3 documents.
    parse : callable
        Takes the configuration, a dict, and returns the numpy dtype, in native byte order.
    describe : callable
        Takes a numpy dtype and returns the configuration, a dict, or None if the dtype is another.
    fill_from_json : callable, optional
        Takes the JSON of a fill value and the dtype, and returns the scalar. By default fill
        values are written as those of the plain dtype.
    fill_to_json : callable, optional
        Takes the scalar and the dtype, and returns the JSON.
    v2 : bool
        Whether v2 documents have it, too: the name is the member ``dtype`` then, without a
        configuration, and elements are little-endian, as TensorStore has it for ``bfloat16``.
    """

    name: str
    parse: Callable[[dict[str, Any]], np.dtype]
    describe: Callable[[np.dtype], Mapping[str, Any] | None]
    fill_from_json: Callable[[Any, np.dtype], Any] | None = None
    fill_to_json: Callable[[Any, np.dtype], Any] | None = None
    v2: bool = False


_registered: dict[str, DataType] = {}
_is_pending = True


def register_data_type(data_type: DataType) -> None:
    """Register a data type for documents.

    Packages do it without being imported by an entry point of the group
    ``virtualzarr.data_types``, named as the data type, that loads a `DataType`.

    Examples
    --------
    >>> cents = np.dtype("i8", metadata={"unit": "cent"})
    >>> register_data_type(DataType(
    ...     "cents",
    ...     parse=lambda configuration: cents,
    ...     describe=lambda dtype: {} if (dtype.metadata or {}).get("unit") == "cent" else None,
    ... ))
    >>> from virtualzarr.metadata import dtype_from_v3, dtype_to_v3
    >>> dtype_from_v3("cents"), dtype_to_v3(cents)
    (dtype('int64'), 'cents')
    """
    _registered[data_type.name] = data_type


def find_by_name(name: str) -> DataType | None:
    """Return the plug-in for a name that this package does not support itself."""
    # Importing `importlib.metadata` and scanning installed packages takes longer than opening an
    # array: only for names nobody has registered.
    if name not in _registered:
        from importlib.metadata import entry_points

        for entry in entry_points(group=ENTRY_POINTS, name=name):
            _load(entry)
    return _registered.get(name)


def find_by_dtype(dtype: np.dtype, *, search: bool = False) -> DataType | None:
    """Return the plug-in for a dtype among those in use or, with `search`, all installed."""
    if search:
        _load_all()
    return next((each for each in _registered.values() if each.describe(dtype) is not None), None)


def _load_all() -> None:
    global _is_pending
    if _is_pending:
        from importlib.metadata import entry_points

        for entry in entry_points(group=ENTRY_POINTS):
            if entry.name not in _registered:
                _load(entry)
        _is_pending = False


def _load(entry: Any) -> None:
    try:
        data_type = entry.load()
    except Exception as error:
        raise MetadataError(
            f"the plug-in for data type {entry.name!r} does not load: {error}"
        ) from error
    if not isinstance(data_type, DataType) or data_type.name != entry.name:
        raise MetadataError(
            f"the plug-in for data type {entry.name!r} is no DataType of that name: {data_type!r}"
        )
    _registered[entry.name] = data_type
