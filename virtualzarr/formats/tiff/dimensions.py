"""The dimensions of a file's images, named so that each name has one length and one meaning."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from numpy.typing import NDArray

_Meaning = tuple[int, bytes | None]
"""Length, and coordinates if there are any."""


class Dimensions:
    """Names of the dimensions of all images of a file.

    They are tifffile's axis letters in lower case. A letter that comes again with another length,
    or with other coordinates, gets a number: readers of groups, such as xarray, take dimensions of
    one name for the same one, also those of groups within groups.

    Examples
    --------
    >>> dimensions = Dimensions()
    >>> dimensions.name("QQYX", (2, 3, 64, 96)), dimensions.name("YX", (32, 96))
    (('q', 'q_1', 'y', 'x'), ('y_1', 'x'))
    """

    def __init__(self) -> None:
        self._meanings: dict[str, _Meaning] = {}

    def name(
        self, axes: str, shape: Sequence[int], coordinates: Mapping[str, NDArray[Any]] | None = None
    ) -> tuple[str, ...]:
        """Return names for the axes of an image.

        Parameters
        ----------
        axes : str
            A letter for each axis.
        shape : sequence of int
        coordinates : mapping, optional
            Coordinates by letter in lower case.
        """
        names: list[str] = []
        for letter, length in zip(axes.lower(), shape, strict=True):
            values = (coordinates or {}).get(letter)
            meaning = length, None if values is None else values.tobytes()
            names.append(self._find(letter, meaning, names))
        return tuple(names)

    def _find(self, letter: str, meaning: _Meaning, taken: Sequence[str]) -> str:
        """Return the first name that means this, or nothing yet."""
        number, name = 0, letter
        while name in taken or self._meanings.setdefault(name, meaning) != meaning:
            number += 1
            name = f"{letter}_{number}"
        return name
