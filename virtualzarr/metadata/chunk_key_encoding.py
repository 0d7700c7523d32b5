"""Chunk key encodings: grid coordinates to keys of chunks in a store, and back."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from virtualzarr.errors import BadReferenceError, MetadataError, UnsupportedError
from virtualzarr.metadata.json_documents import as_object, member, short

_DEFAULT_SEPARATOR = {"default": "/", "v2": "."}


@dataclass(frozen=True)
class KeyEncoding:
    """Conversion of the grid coordinates of cells to the keys of their chunks, and back.

    Source: Zarr v3 core specification, chunk key encodings `default` and `v2`.

    Parameters
    ----------
    name : {"default", "v2"}
        `default` gives `c/1/23`, and `c` for arrays without dimensions; `v2` gives `1.23` and `0`.
    separator : {"/", "."}, optional
        Stands between coordinates. Default: `/` for `default`, `.` for `v2`.

    Examples
    --------
    >>> KeyEncoding().key((1, 23)), KeyEncoding("v2").key((1, 23)), KeyEncoding().key(())
    ('c/1/23', '1.23', 'c')
    """

    name: str = "default"
    separator: str = ""

    def __post_init__(self) -> None:
        if self.name not in _DEFAULT_SEPARATOR:
            raise UnsupportedError(
                f"the chunk key encoding {short(self.name)}; known are default and v2"
            )
        if self.separator == "":
            object.__setattr__(self, "separator", _DEFAULT_SEPARATOR[self.name])
        if self.separator not in ("/", "."):
            raise MetadataError(f"separator: must be '/' or '.', not {short(self.separator)}")

    def key(self, cell: Sequence[int]) -> str:
        """Return the key of one cell."""
        numbers = [str(int(i)) for i in cell]
        if self.name == "default":
            return self.separator.join(["c", *numbers])
        return self.separator.join(numbers) or "0"

    def keys(self, cells: npt.ArrayLike) -> list[str]:
        """Return the keys of many cells, without a Python loop over them.

        Parameters
        ----------
        cells : int array of shape (k, ndim)

        Examples
        --------
        >>> KeyEncoding("v2", "/").keys([[0, 1], [10, 2]])
        ['0/1', '10/2']
        """
        cells = np.asarray(cells)
        if cells.ndim != 2:
            raise ValueError(f"cells must have shape (k, ndim), not {cells.shape}")
        count, ndim = cells.shape
        if ndim == 0:
            return [self.key(())] * count
        if count == 1:
            return [self.key(cells[0].tolist())]
        # Object arrays of strings add elementwise in C. Each axis contributes few distinct texts,
        # such as "/17", which are formatted once and repeated by a fancy index.
        total: Any = ""
        for axis in range(ndim):
            lead = self.separator if axis else ""
            if axis == 0 and self.name == "default":
                lead = f"c{self.separator}"
            values, inverse = _find_distinct(cells[:, axis])
            words = np.array([f"{lead}{value}" for value in values], dtype=object)
            total = total + words[inverse]
        return total.tolist()

    def pattern(self, ndim: int) -> re.Pattern[str]:
        """Return what matches the keys of an array's chunks, and no others.

        Examples
        --------
        >>> [bool(KeyEncoding().pattern(1).fullmatch(key)) for key in ("c/12", "c/01", "c/1/2")]
        [True, False, False]
        """
        # Nothing but chunk keys begins with "c" or a digit and has so many numbers.
        # Greater numbers than these may not fit into int64, and no grid has them.
        number = "(0|[1-9][0-9]{0,17}|[1-8][0-9]{18})"
        parts = ["c"] * (self.name == "default") + [number] * ndim
        return re.compile(re.escape(self.separator).join(parts) or "0")

    def folder(self, ndim: int) -> str:
        """Return the folder in which all chunks of an array are; empty where it is the array's."""
        # Listing `c/` alone spares the array's other objects; with other separators nothing but a
        # prefix of names is common to chunks, which not every store can list by.
        return "c" if self.name == "default" and self.separator == "/" and ndim else ""

    def parse(self, keys: Sequence[str], ndim: int) -> npt.NDArray[np.int64]:
        """Return the cells that `keys` name, as an int64 array of shape (k, ndim).

        Raises
        ------
        BadReferenceError
            A key is not one this encoding writes for `ndim` dimensions.

        Examples
        --------
        >>> KeyEncoding().parse(["c/0/7", "c/12/3"], ndim=2).tolist()
        [[0, 7], [12, 3]]
        """
        keys = list(keys)
        # Read leniently and written again: what does not come back as it was is no key of this
        # encoding. That refuses "01" and "+1", which int() takes, without a regular expression.
        cells = self._numbers(keys, ndim)
        if cells is None or self.keys(cells) != keys:
            self._explain(keys, ndim)
        assert cells is not None
        return cells

    def _numbers(self, keys: list[str], ndim: int) -> npt.NDArray[np.int64] | None:
        """Read the numbers in `keys`; None where they cannot be coordinates."""
        if ndim == 0 or not keys:
            return np.zeros((len(keys), ndim), np.int64)
        # One split of all keys: millions of keys cost no call each.
        words = self.separator.join(keys).split(self.separator)
        width = ndim + (self.name == "default")
        if len(words) != width * len(keys):
            return None
        if self.name == "default":
            del words[::width]
        try:
            numbers = np.fromiter(map(int, words), np.int64, len(words))
        except (ValueError, OverflowError):
            return None
        return None if numbers.min() < 0 else numbers.reshape(len(keys), ndim)

    def _explain(self, keys: list[str], ndim: int) -> None:
        for key in keys:
            cells = self._numbers([key], ndim)
            if cells is None or self.key(cells[0].tolist()) != key:
                raise BadReferenceError(
                    f"{short(key)} is not a chunk key of an array of {ndim} dimensions with the "
                    f"key encoding {self.name!r} and the separator {self.separator!r}"
                )
        raise AssertionError("keys differ as a whole but not one by one")

    def to_json(self) -> dict[str, Any]:
        """Return the member `chunk_key_encoding` of a v3 document."""
        return {"name": self.name, "configuration": {"separator": self.separator}}

    @classmethod
    def from_json(cls, value: Any) -> KeyEncoding:
        """Read the member `chunk_key_encoding` of a v3 document: an object or a bare name."""
        if isinstance(value, str):
            return cls(value)
        value = as_object(value)
        if not isinstance(value.get("name"), str):
            raise MetadataError(f"name: must be a string, not {short(value.get('name'))}")
        default = cls(value["name"])
        with member("configuration"):
            configuration: Mapping[str, Any] = as_object(value.get("configuration", {}))
            for name in configuration:
                if name != "separator":
                    raise MetadataError(f"{name}: unknown member")
            separator = configuration.get("separator", default.separator)
            if separator not in ("/", "."):
                raise MetadataError(f"separator: must be '/' or '.', not {short(separator)}")
            return cls(default.name, separator)


def _find_distinct(column: npt.NDArray[Any]) -> tuple[Iterable[int], npt.NDArray[Any]]:
    """Return coordinates that contain those of `column`, and the index of each among them."""
    # Columns are mostly dense: a range and a subtraction instead of the sort of `np.unique`.
    if len(column):
        low, high = int(column.min()), int(column.max())
        if high - low < 2 * len(column) + 1000:
            return range(low, high + 1), column - low
    values, inverse = np.unique(column, return_inverse=True)
    return values.tolist(), inverse
