"""Fields of a structured array, each as an array to read and write."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from virtualzarr.array.indexing import Indexable
from virtualzarr.errors import UnsupportedError

if TYPE_CHECKING:
    from grids.selection import Mode
    from virtualzarr.array.array import Array


@dataclass(frozen=True)
class FieldSelection:
    """Selection within each element: a field, or several, or a part of a field with a shape.

    Attributes
    ----------
    names : tuple of str or list of str
        A field, then a field of that, and so on; a list of names is several fields.
    inner : tuple
        Integers, slices and new axes, which select along the axes of the field.
    """

    names: tuple[str | list[str], ...]
    inner: tuple[Any, ...] = ()

    def view(self, elements: NDArray[Any]) -> NDArray[Any]:
        """Return a view of the selection in some elements, with the field's axes last."""
        axes = (slice(None),) * elements.ndim
        for name in self.names:
            elements = elements[name]
        return elements[(*axes, *self.inner, ...)]

    def to_records(self, value: NDArray[Any], part: NDArray[Any]) -> NDArray[Any]:
        """Return values, one record for each element, with the part as the only field.

        Parameters
        ----------
        value : array
        part : array
            The selection in one element, as an example.
        """
        elements = value.shape[: max(0, value.ndim - part.ndim)]
        # As records, values have the axes of the array alone, and project like any others.
        records = np.empty(elements, np.dtype([("part", part.dtype, part.shape)]))
        records["part"] = value
        return records


class FieldView(Indexable):
    """A field of a structured array: its dtype is that of the field, native, and a field that has
    a shape adds its axes behind those of the array. Made by `Array.field`.

    A selection is read as that of the whole elements, since chunks hold them together; to write to
    it, chunks are read, changed and written again. `oindex`, `vindex` and `blocks` index along the
    axes of the array; those of the field come whole.

    Attributes
    ----------
    shape : tuple of int
    dtype : numpy dtype
    dims : tuple of str or None
        Name of each axis; the axes of the field itself have none.
    fill_value
        What missing chunks read as: a scalar, or an array for a field with a shape.
    """

    def __init__(self, array: Array, names: tuple[str, ...]) -> None:
        if not names:
            raise ValueError("name a field")
        self._array, self._names = array, names
        dtype = array.dtype
        inner_shape: tuple[int, ...] = ()
        # As numpy does when a field is taken: the sub-array shape in its dtype becomes the last
        # axes of the array.
        for name in names:
            if dtype.names is None or name not in dtype.names:
                existing = ", ".join(map(repr, dtype.names or ())) or "none"
                raise KeyError(f"there is no field {name!r}; the fields are: {existing}")
            dtype = dtype[name]
            if dtype.subdtype is not None:
                dtype, lengths = dtype.subdtype
                inner_shape += lengths
        self.dtype: np.dtype[Any] = dtype if dtype.names else dtype.newbyteorder("=")
        self._inner_shape = inner_shape

    @property
    def shape(self) -> tuple[int, ...]:
        """Elements along each axis."""
        return self._array.shape + self._inner_shape

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.shape)

    @property
    def dims(self) -> tuple[str | None, ...]:
        """Name of each axis."""
        return self._array.dims + (None,) * len(self._inner_shape)

    @property
    def fill_value(self) -> Any:
        """What missing chunks read as; None where the metadata leave it open."""
        fill = self._array.fill_value
        return None if fill is None else self._extract(np.asarray(fill))

    def __getitem__(self, selection: Any) -> Any:
        """Read a selection by integers, slices, an ellipsis and new axes, as numpy would."""
        outer, inner = self._split_axes(selection)
        part = self._extract(np.asarray(self._array[outer]))
        return part[(Ellipsis, *inner)] if inner else part

    def __setitem__(self, selection: Any, value: Any) -> None:
        """Write a value, which broadcasts, to this field of the selected elements."""
        outer, inner = self._split_axes(selection)
        self._array._write(outer, "basic", value, FieldSelection(self._names, inner))

    def _get_item(self, selection: Any, mode: Mode) -> Any:
        return self._extract(np.asarray(self._array._read_element(selection, mode)))

    def _set_item(self, selection: Any, mode: Mode, value: Any) -> None:
        self._array._write(selection, mode, value, FieldSelection(self._names))

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        if copy is False:
            raise ValueError("an array of chunks cannot become a numpy array without a copy")
        return np.asarray(self[...], dtype=dtype)

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("len() of an array without axes")
        return self.shape[0]

    def __repr__(self) -> str:
        names = ".".join(self._names)
        return f"<Field {names} {self.shape} {self.dtype} of {self._array!r}>"

    def _extract(self, elements: NDArray[Any]) -> Any:
        """Return the field of elements that were read."""
        for name in self._names:
            elements = elements[name]
        # A copy: a view would keep the other fields in memory, too.
        part = elements.astype(self.dtype, order="C")
        return part[()] if part.ndim == 0 else part

    def _split_axes(self, selection: Any) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        """Split a selection into that of the array's axes and that of the field's."""
        items = selection if isinstance(selection, tuple) else (selection,)
        if not self._inner_shape:
            return items, ()
        for item in items:
            if not (item is None or item is Ellipsis or isinstance(item, int | slice | np.integer)):
                raise UnsupportedError(
                    f"a field of shape {self._inner_shape} is selected by integers and slices, "
                    f"not {item!r}"
                )
        used = sum(item is not None and item is not Ellipsis for item in items)
        if used > self.ndim:
            raise IndexError(f"{used} indices for {self.ndim} axes")
        dots = [i for i, item in enumerate(items) if item is Ellipsis]
        if len(dots) > 1:
            raise IndexError("an index can only have a single ellipsis ('...')")
        # The ellipsis stands for whole axes, so that each item has its axis.
        dot = dots[0] if dots else len(items)
        items = (*items[:dot], *(slice(None),) * (self.ndim - used), *items[dot + 1 :])
        axes = 0
        # New axes before the first index of the field still belong to the selection of the array.
        for i, item in enumerate(items):
            if axes == self._array.ndim and item is not None:
                return items[:i], items[i:]
            axes += item is not None
        return items, ()


def split_fields(selection: Any) -> tuple[list[str] | str | None, Any]:
    """Take the name of a field, or a list of names, out of a selection.

    Examples
    --------
    >>> split_fields(("x", slice(2)))
    ('x', (slice(None, 2, None),))
    >>> split_fields(["x", "y"])
    (['x', 'y'], Ellipsis)
    """
    if _is_field(selection):
        return selection, Ellipsis
    if not isinstance(selection, tuple):
        return None, selection
    fields = [item for item in selection if _is_field(item)]
    if not fields:
        return None, selection
    if len(fields) > 1:
        raise IndexError(f"name one field, or a list of them, not {fields}")
    others = tuple(item for item in selection if not _is_field(item))
    return fields[0], others or Ellipsis


def _is_field(item: Any) -> bool:
    if isinstance(item, list):
        return bool(item) and all(isinstance(name, str) for name in item)
    return isinstance(item, str)
