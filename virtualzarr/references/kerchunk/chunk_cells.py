"""Chunk keys parsed into cells: the array a reference belongs to, and the cell of its grid."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from virtualzarr.errors import BadReferenceError
from virtualzarr.metadata import ArrayMetadata, KeyEncoding
from virtualzarr.references.kerchunk.bytescan import Mask, Positions, Text
from virtualzarr.references.kerchunk.members import Members

_SLASH, _BACKSLASH = ord("/"), ord("\\")
_BLOCK = 1 << 14
_CHUNK = re.compile(r"c|(c[./])?-?\d+([./]-?\d+)*", re.ASCII)


@dataclass(frozen=True)
class KeySpace:
    """The keys that the chunks of one array may have.

    Attributes
    ----------
    stem : str
        What all its keys begin with; coordinates follow, except for a v3 scalar.
    ncoords : int
        Numbers in a key: one for each axis; one, a zero, for a v2 scalar; none for a v3 scalar.
    shape : tuple of int
        Bounds of these numbers.
    """

    path: str
    stem: str
    separator: str
    ncoords: int
    shape: tuple[int, ...]
    is_v2_scalar: bool = False
    """VirtualiZarr writes the key of its only chunk without the zero."""

    @classmethod
    def of(cls, path: str, metadata: ArrayMetadata) -> KeySpace:
        """The keys of an array at a path."""
        encoding: KeyEncoding = metadata.key_encoding
        folder = f"{path}/" if path else ""
        shape = tuple(metadata.grid.grid_shape)
        if encoding.name == "default":
            stem = f"{folder}c{encoding.separator if shape else ''}"
        else:
            stem, shape = folder, shape or (1,)
        is_v2_scalar = encoding.name == "v2" and not metadata.shape
        return cls(path, stem, encoding.separator, len(shape), shape, is_v2_scalar)

    def looks_like_chunk(self, key: str) -> bool:
        """Whether a key in the array's folder is spelled as those of chunks in some encoding.

        If it is none of this array's, its metadata may be wrong, and chunks would go missing.
        """
        folder = len(self.path) + 1 if self.path else 0
        return _CHUNK.fullmatch(key[folder:]) is not None

    def not_a_chunk(self, key: str) -> BadReferenceError:
        """Return the error for a key of another encoding, or with other numbers."""
        return BadReferenceError(
            f"not a chunk key of this array: {self.ncoords} numbers are expected, with "
            f"{self.separator!r} between them, after {self.stem!r}",
            variable=self.path or "/",
            chunk=key,
        )

    def cell(self, key: str) -> tuple[int, ...] | None:
        """The numbers in a key that begins with the stem, or None where they are none."""
        coordinates = key[len(self.stem) :]
        if self.is_v2_scalar and not coordinates:
            return (0,)
        if not self.ncoords:
            return None if coordinates else ()
        words = coordinates.split(self.separator)
        if len(words) != self.ncoords or not all(_is_number(word) for word in words):
            return None
        return tuple(int(word) for word in words)


def _is_number(word: str) -> bool:
    # 16 digits as the scanner; more are outside any grid anyway.
    plain = word.isascii() and word.isdigit() and len(word) <= 16
    return plain and (word == "0" or word[0] != "0")


class Spaces:
    """The key spaces of all arrays of a document."""

    def __init__(self, spaces: Iterable[KeySpace]) -> None:
        self.all = list(spaces)
        self._by_stem = {space.stem: number for number, space in enumerate(self.all)}
        self._by_path = {space.path: number for number, space in enumerate(self.all)}

    def kinds(self) -> list[tuple[str, int]]:
        """The distinct separators and numbers of coordinates of the arrays that have any."""
        kinds = {(space.separator, space.ncoords) for space in self.all if space.ncoords}
        # Most numbers first: then a key's numbers are never taken for a part of its stem.
        return sorted(kinds, key=lambda kind: (-kind[1], kind[0]))

    def with_stem(self, stem: str, kind: tuple[str, int]) -> int:
        """The array whose keys begin so and have such coordinates, or -1."""
        number = self._by_stem.get(stem, -1)
        if number >= 0 and (self.all[number].separator, self.all[number].ncoords) == kind:
            return number
        return -1

    def owner(self, key: str) -> int:
        """The array in whose folder a key lies, or -1: the root array owns what no other does."""
        folder = key
        while folder:
            folder = folder.rpartition("/")[0]
            if folder in self._by_path:
                return self._by_path[folder]
        return -1

    def locate(self, key: str) -> tuple[int, tuple[int, ...]]:
        """The array and the cell of a chunk key.

        Raises `BadReferenceError` if no array of the document has such a chunk.
        """
        number = self.owner(key)
        if number < 0:
            raise BadReferenceError("the key is no metadata and no array's chunk", chunk=key)
        space = self.all[number]
        cell = space.cell(key) if key.startswith(space.stem) else None
        if cell is None:
            raise space.not_a_chunk(key)
        return number, cell


@dataclass(frozen=True)
class Located:
    """Where some regular members belong.

    Attributes
    ----------
    rows : int64 array
        Which members.
    array : int64 array
        Which array each belongs to.
    coordinates : list of int64 array
        Its numbers along each axis.
    """

    rows: Positions
    array: Positions
    coordinates: list[Positions]


def locate_members(text: Text, members: Members, spaces: Spaces) -> tuple[list[Located], Positions]:
    """Find the cells of regular members, kind of key by kind of key.

    Returns
    -------
    located : list of Located
    unknown : int64 array
        Members whose keys are no chunk's; the caller decides what they are.
    """
    # Kind by kind (separator and number of coordinates), most coordinates first; what fits is
    # taken out.
    left = np.arange(len(members))
    located = []
    for separator, ncoords in spaces.kinds():
        start, stop = members.key_start[left], members.key_stop[left]
        pieces = [
            _coordinates(text, start[i : i + _BLOCK], stop[i : i + _BLOCK], separator, ncoords)
            for i in range(0, len(left), _BLOCK)
        ]
        if not pieces:
            break
        good = np.concatenate([piece[0] for piece in pieces])
        stem_stop = np.concatenate([piece[1] for piece in pieces])[good]
        numbers = [
            np.concatenate(column)[good] for column in zip(*(p[2] for p in pieces), strict=True)
        ]
        # Stems are compared once for each distinct one: there are as many as arrays.
        which, first = text.unique(start[good], stem_stop)
        owners = np.array(
            [
                spaces.with_stem(_string(text, int(a), int(b)), (separator, ncoords))
                for a, b in zip(start[good][first], stem_stop[first], strict=True)
            ],
            np.int64,
        )
        owner = owners[which] if len(which) else which
        # The stem may be none of the document's arrays: then it may still be of another kind.
        is_chunk = owner >= 0
        rows = left[good]
        located.append(Located(rows[is_chunk], owner[is_chunk], [n[is_chunk] for n in numbers]))
        good[good] = is_chunk
        left = left[~good]
    return located, left


def _coordinates(
    text: Text, start: Positions, stop: Positions, separator: str, ncoords: int
) -> tuple[Mask, Positions, list[Positions]]:
    """Read that many numbers from the end of each key.

    Returns
    -------
    Where that went well, where the stem before the numbers ends, and the numbers.
    """
    good = np.ones(len(start), bool)
    at = stop.copy()
    columns: list[Positions] = []
    # Backwards from the end, as the stem may end with digits itself.
    for _ in range(ncoords):
        if columns:
            good &= text.bytes[at - 1] == ord(separator)
            at -= 1
            if separator == "/":
                # JSON may spell / as \/, and some writers do.
                at -= text.bytes[at - 1] == _BACKSLASH
        value, digits = text.numbers_before(at)
        good &= digits > 0
        at = np.where(good, at - digits, stop)
        columns.append(value)
    before = text.bytes[at - 1]
    folder = (before == _SLASH) | ((before == ord(".")) & (text.bytes[at - 2] == ord("c")))
    good &= (at == start) | folder
    return good, at, columns[::-1]


def _string(text: Text, start: int, stop: int) -> str:
    """The JSON string between two positions.

    Raises `BadReferenceError` if it is none: a wrong escape, a control character, no UTF-8.
    """
    raw = text.data[start:stop]
    try:
        return str(json.loads(b'"' + raw + b'"'))
    except ValueError as error:
        raise BadReferenceError(f"not a JSON string: {raw[:200]!r} ({error})") from error


def strings(text: Text, start: Positions, stop: Positions) -> tuple[Positions, list[str]]:
    """The distinct JSON strings between positions, and which of them each row holds."""
    which, first = text.unique(start, stop)
    places = list(zip(start[first].tolist(), stop[first].tolist(), strict=True))
    # Within unescaped quotes, so that side by side they are a list of strings if each is one.
    joined = b'","'.join([text.data[a:b] for a, b in places])
    try:
        decoded = json.loads(b'["' + joined + b'"]') if places else []
    except ValueError:
        decoded = [_string(text, a, b) for a, b in places]
    distinct = dict.fromkeys(decoded)
    if len(distinct) == len(decoded):
        return which, decoded
    # Differently escaped, the same string has come more than once.
    numbers = {string: number for number, string in enumerate(distinct)}
    which = np.array([numbers[string] for string in decoded], np.int64)[which]
    return which, list(numbers)


def member_items(text: Text, members: Members, rows: Positions) -> Iterator[tuple[str, list[Any]]]:
    """Regular members as Python objects, for the few whose keys are no chunk's."""
    for row in rows.tolist():
        key = _string(text, int(members.key_start[row]), int(members.key_stop[row]))
        uri = _string(text, int(members.uri_start[row]), int(members.uri_stop[row]))
        length = int(members.length[row])
        yield key, [uri] if length < 0 else [uri, int(members.offset[row]), length]


def flat_cells(
    space: KeySpace, coordinates: list[npt.NDArray[np.int64]], *, strict: bool = False
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64] | None]:
    """C-order numbers of the cells that lie in the grid, and which rows those are, or None for all.

    Stores keep chunks outside of the grid when an array has shrunk.

    Raises `BadReferenceError` if `strict`, naming the first key that lies outside.
    """
    count = len(coordinates[0]) if coordinates else 0
    flat = np.zeros(count, np.int64)
    outside = np.zeros(count, bool)
    # Bounds are compared before numbers are multiplied: within them, the product fits 64 bits.
    for numbers, bound in zip(coordinates, space.shape, strict=True):
        outside |= (numbers < 0) | (numbers >= bound)
    if strict and outside.any():
        row = int(np.argmax(outside))
        raise BadReferenceError(
            f"{int(outside.sum())} references lie outside the grid of {space.shape} cells",
            variable=space.path or "/", chunk=key_of(space, [int(n[row]) for n in coordinates]),
        )  # fmt: skip
    rows = np.flatnonzero(~outside) if outside.any() else None
    for numbers, bound in zip(coordinates, space.shape, strict=True):
        flat = flat * bound + numbers
    return flat if rows is None else flat[rows], rows


def key_of(space: KeySpace, numbers: Iterable[int]) -> str:
    """The key of one cell."""
    return space.stem + space.separator.join(str(number) for number in numbers)


def spaces_of(arrays: Mapping[str, ArrayMetadata]) -> Spaces:
    """The key spaces of arrays by path."""
    return Spaces(KeySpace.of(path, metadata) for path, metadata in arrays.items())
