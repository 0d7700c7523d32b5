"""`gen` blocks of reference files: many references by one rule, evaluated as columns."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from virtualzarr.config import config
from virtualzarr.errors import BadReferenceError
from virtualzarr.references.kerchunk.chunk_cells import Spaces
from virtualzarr.references.kerchunk.templates import Templates, Value, texts

Ints = npt.NDArray[np.int64]

_FIRST_MARK = 0xE000  # the private use characters stand for numbers in a key
_LAST_MARK = 0xF8FF


@dataclass(frozen=True)
class Generated:
    """References that one `gen` block makes.

    Attributes
    ----------
    array : int64 array
        Which array of the document each belongs to.
    coordinates : list of int64 array
    which : int64 array
        Which of `uris`.
    offset, length : int64 arrays
        A length of -1 is the whole file.
    """

    array: Ints
    coordinates: list[Ints]
    which: Ints
    uris: list[str]
    offset: Ints
    length: Ints


def generate(block: Any, templates: Templates, spaces: Spaces, most: int) -> list[Generated]:
    """Evaluate one `gen` block.

    Raises `BadReferenceError` if the block breaks the specification or makes keys of no array.

    Parameters
    ----------
    block : dict
        With `key`, `url`, `dimensions` and perhaps `offset` and `length`.
    most : int
        More references than this are refused before they are made.

    Returns
    -------
    list of Generated
        One for each array; mostly there is one.
    """
    if not isinstance(block, Mapping):
        raise BadReferenceError(f"a gen block is a {type(block).__name__}, not an object")
    missing = {"key", "url", "dimensions"} - set(block)
    if missing or ("offset" in block) != ("length" in block):
        raise BadReferenceError(
            "a gen block needs key, url and dimensions, and both of offset and length or neither"
        )
    # The count is bounded by the arrays' chunks before any column is made: a dozen characters may
    # ask for 10^18 references.
    variables, count = _variables(block["dimensions"], most)
    named: dict[str, Value] = dict(variables)
    offset, length = np.zeros(count, np.int64), np.full(count, -1, np.int64)
    if "offset" in block:
        offset = _numbers(block["offset"], templates, named, count, "offset")
        length = _numbers(block["length"], templates, named, count, "length")
        # Arithmetic may give anything: checked as numbers are that are written out.
        if (offset < 0).any() or (length < 0).any():
            raise BadReferenceError("a gen block makes a negative offset or length")
    which, uris = _uris(_text(block["url"], "url"), templates, named, count)
    key = templates.pieces(_text(block["key"], "key"), named)
    return [
        Generated(owner, numbers, which[rows], uris, offset[rows], length[rows])
        for rows, owner, numbers in _cells(key, spaces, count)
    ]


def _variables(dimensions: Any, most: int) -> tuple[dict[str, Ints], int]:
    """The Cartesian product of the dimensions: one column for each."""
    if not isinstance(dimensions, Mapping):
        raise BadReferenceError("the dimensions of a gen block are no object")
    ranges = {str(name): _range(name, values) for name, values in dimensions.items()}
    count = math.prod(len(values) for values in ranges.values())
    if count > most:
        raise BadReferenceError(
            f"a gen block makes {count} references, but the arrays have only {most} chunks"
        )
    config.limits.check("generated", count, "references of a gen block")
    # The Cartesian product as columns: in any order, as each reference has a key of its own.
    grids = np.meshgrid(*(np.array(v, np.int64) for v in ranges.values()), indexing="ij")
    return {name: grid.reshape(-1) for name, grid in zip(ranges, grids, strict=True)}, count


def _range(name: str, values: Any) -> range | list[int]:
    numbers = list(values.values()) if isinstance(values, Mapping) else values
    if not isinstance(numbers, list) or not all(
        isinstance(n, int) and not isinstance(n, bool) and abs(n) < 2**62 for n in numbers
    ):
        raise BadReferenceError(f"dimension {name!r} of a gen block does not consist of integers")
    if isinstance(values, list):
        return values
    if (
        "stop" not in values
        or not set(values) <= {"start", "stop", "step"}
        or values.get("step") == 0
    ):
        raise BadReferenceError(f"dimension {name!r} of a gen block needs start, stop and step")
    return range(values.get("start", 0), values["stop"], values.get("step", 1))


def _text(value: Any, name: str) -> str:
    if not isinstance(value, str):
        raise BadReferenceError(f"{name} of a gen block is a {type(value).__name__}, not a text")
    return value


def _numbers(
    value: Any, templates: Templates, variables: dict[str, Value], count: int, name: str
) -> Ints:
    """Offsets or lengths; a plain number is accepted where the specification has a text."""
    if isinstance(value, int) and not isinstance(value, bool):
        pieces: list[Value] = [value]
    else:
        pieces = templates.pieces(_text(value, name).strip(), variables)
    if len(pieces) == 1 and isinstance(pieces[0], np.ndarray):
        return pieces[0]
    words = set(texts(pieces, 1)) if all(isinstance(p, (str, int)) for p in pieces) else None
    columns = list(words) * count if words is not None else texts(pieces, count)
    try:
        return np.fromiter(map(int, columns), np.int64, count)
    except (ValueError, OverflowError) as error:
        raise BadReferenceError(f"{name} of a gen block is no integer: {error}") from error


def _uris(
    url: str, templates: Templates, variables: dict[str, Value], count: int
) -> tuple[Ints, list[str]]:
    """The distinct URLs, and which of them each reference has."""
    pieces = templates.pieces(url, variables)
    moving = [piece for piece in pieces if isinstance(piece, np.ndarray)]
    if any(isinstance(piece, list) for piece in pieces):
        numbers: dict[str, int] = {}
        rows = [numbers.setdefault(text, len(numbers)) for text in texts(pieces, count)]
        return np.array(rows, np.int64), list(numbers)
    if not moving:
        return np.zeros(count, np.int64), texts(pieces, 1)
    # URLs are made once for each distinct combination of the numbers in them, not for each
    # reference.
    values, which = np.unique(np.stack(moving), axis=1, return_inverse=True)
    rows_of = iter(values)
    few = [next(rows_of) if isinstance(piece, np.ndarray) else piece for piece in pieces]
    return which.reshape(-1).astype(np.int64), texts(few, values.shape[1])


def _cells(pieces: list[Value], spaces: Spaces, count: int) -> list[tuple[Ints, Ints, list[Ints]]]:
    """Rows, owners and coordinates, array by array."""
    if count == 0:
        return []
    columns = [piece for piece in pieces if isinstance(piece, np.ndarray)]
    if not any(isinstance(piece, list) for piece in pieces) and len(columns) < 1000:
        matches = _cells_of_pattern(pieces, columns, spaces, count)
        if matches is not None:
            return matches
    # Keys that are no plain pattern are made one by one, as text: rare, and exact.
    located = [spaces.locate(key) for key in texts(pieces, count)]
    owners = np.array([number for number, _ in located], np.int64)
    result = []
    for owner in np.unique(owners).tolist():
        rows = np.flatnonzero(owners == owner)
        numbers = np.array([located[row][1] for row in rows.tolist()], np.int64).T
        result.append((rows, np.full(len(rows), owner, np.int64), list(numbers)))
    return result


def _cells_of_pattern(
    pieces: list[Value], columns: list[Ints], spaces: Spaces, count: int
) -> list[tuple[Ints, Ints, list[Ints]]] | None:
    """Cells of keys whose coordinates are constants or one expression each, without making keys."""
    parts: list[str] = []
    # Each column of numbers gets a private use character in its place; the key with them is split
    # as any other key.
    for piece in pieces:
        number = sum(len(part) == 1 and _FIRST_MARK <= ord(part) <= _LAST_MARK for part in parts)
        parts.append(chr(_FIRST_MARK + number) if isinstance(piece, np.ndarray) else str(piece))
    if sum(_FIRST_MARK <= ord(c) <= _LAST_MARK for part in parts for c in part) != len(columns):
        return None  # the text itself has such characters
    key = "".join(parts)
    owner = spaces.owner(key)
    if owner < 0 or not key.startswith(spaces.all[owner].stem):
        return None
    space = spaces.all[owner]
    words = key[len(space.stem) :].split(space.separator) if space.ncoords else []
    sample = "".join("0" if _FIRST_MARK <= ord(c) <= _LAST_MARK else c for c in key)
    if len(words) != space.ncoords or space.cell(sample) is None:
        return None
    coordinates = []
    for word in words:
        if _FIRST_MARK <= ord(word[0]) <= _LAST_MARK and len(word) == 1:
            coordinates.append(columns[ord(word) - _FIRST_MARK])
        elif word.isascii():
            coordinates.append(np.full(count, int(word), np.int64))
        else:
            return None
    return [(np.arange(count), np.full(count, owner, np.int64), coordinates)]
