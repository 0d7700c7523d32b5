"""Fields of names of files: parts that all names have, and that are not the same in all."""

from __future__ import annotations

import os
import re
import unicodedata
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

RARE = 10
"""One file in so many may be of series that have too few to tell."""

_MOST = 64
"""A field with more values is a number or a date."""

_TOKEN = re.compile("[0-9]+|[A-Za-z]+")
_SEPARATOR = re.compile(r"[-_. ]")
_FOLDER_SEPARATOR = re.compile(r"[-_. /\\]")

Kind = Literal["tokens", "words"]
"""Tokens are digits or letters; words are what is between separators, and may be empty."""


@dataclass(frozen=True)
class NameField:
    """A part of names.

    Parameters
    ----------
    values : tuple of str
        Different ones.
    numbers : int64 array
        Which of these each file has.
    labels : tuple of str
        Each value with what belongs to it in names and is the same in all: ``h08`` of ``08``.
    versions : tuple of str
        Each value with what is before it if both are one decimal number: ``1.0`` of ``0``.
    place : (int, int)
        Where it is: in folders or in names without, and after how many others.
    """

    values: tuple[str, ...]
    numbers: NDArray[np.int64]
    labels: tuple[str, ...]
    versions: tuple[str, ...]
    place: tuple[int, int]

    @property
    def count(self) -> int:
        """How many different values there are."""
        return len(self.values)


def list_fields(names: Sequence[str], kind: Kind, least: int) -> list[NameField]:
    """Return the fields that all names have, those with the fewest values first.

    Parameters
    ----------
    names : sequence of str
    kind : "tokens" or "words"
    least : int
        Each value is in so many names, but for one name in ten: another series may have begun.

    Examples
    --------
    >>> names = [f"h0{k % 2}_{k}.nc" for k in range(4)]
    >>> [field.labels for field in list_fields(names, "tokens", 2)]
    [('h00', 'h01')]
    """
    fields = []
    cuts = (os.path.dirname, _FOLDER_SEPARATOR), (os.path.basename, _SEPARATOR)
    for level, (cut, separator) in enumerate(cuts):
        texts = [cut(name) for name in names]
        parts = list(map(_TOKEN.findall if kind == "tokens" else separator.split, texts))
        if len({len(part) for part in parts}) != 1:
            continue
        columns = list(zip(*parts, strict=True))
        for number, column in enumerate(columns):
            counts = Counter(column)
            nrare = sum(count for count in counts.values() if count < least)
            if 1 < len(counts) <= _MOST and nrare * RARE <= len(names):
                same = [len(set(before)) == 1 for before in columns[max(number - 3, 0) : number]]
                fields.append(_make_field(column, texts, (level, number), same, kind))
    # Of fields with as many values, those of names before those of folders.
    return sorted(fields, key=lambda field: (field.count, -field.place[0], field.place[1]))


def _make_field(
    column: Sequence[str],
    texts: Sequence[str],
    place: tuple[int, int],
    same: Sequence[bool],
    kind: Kind,
) -> NameField:
    """Return a field, whose values are called as in the first name that has them."""
    indices: dict[str, int] = {}
    firsts: list[str] = []
    numbers = []
    for value, text in zip(column, texts, strict=True):
        if value not in indices:
            indices[value] = len(indices)
            firsts.append(text)
        numbers.append(indices[value])
    values = tuple(indices)
    labels = versions = values
    if kind == "tokens":
        number = place[1]
        spans = [[match.span() for match in _TOKEN.finditer(text)] for text in firsts]
        versions = tuple(
            text[_find_number(text, span, number, same) : span[number][1]]
            for text, span in zip(firsts, spans, strict=True)
        )
        labels = tuple(
            text[_find_word(text, span, number, same) : span[number][1]]
            for text, span in zip(firsts, spans, strict=True)
        )
    return NameField(values, np.array(numbers, np.int64), labels, versions, place)


def _find_number(
    text: str, spans: Sequence[tuple[int, int]], number: int, same: Sequence[bool]
) -> int:
    """Return where the decimal number begins that a token is the end of, if the rest is the same.

    Examples
    --------
    >>> _find_number("v1.0", [(0, 1), (1, 2), (3, 4)], 2, [True, True])
    1
    """
    start, stop = spans[number]
    if not (same and same[-1]) or not text[start:stop].isdigit():
        return start
    before, end = spans[number - 1]
    is_one = text[end:start] == "." and text[before:end].isdigit()
    return before if is_one else start


def _find_word(
    text: str, spans: Sequence[tuple[int, int]], number: int, same: Sequence[bool]
) -> int:
    """Return where the word begins that a token belongs to, as far as that is the same in all."""
    start = _find_number(text, spans, number, same)
    if not text[start : start + 1].isdigit():
        return start
    steps = 1 if start == spans[number][0] else 2
    if len(same) < steps or not same[-steps]:
        return start
    before, end = spans[number - steps]
    return before if end == start else start


def name_values(fields: Sequence[NameField], names: Sequence[str]) -> list[str]:
    """Return for each file the name of what it has in some fields, by which paths can be told.

    Examples
    --------
    >>> names = [f"h0{k % 2}v1_{k}.nc" for k in range(4)]
    >>> name_values(list_fields(names, "tokens", 2), names)[:2]
    ['00', '01']
    """
    if len(fields) == 1:
        # Alone, a value is called as short as it can be.
        texts, numbers = list(fields[0].versions), fields[0].numbers
    else:
        numbers = fields[0].numbers
        for field in fields[1:]:
            numbers = numbers * field.count + field.numbers
        _, first, numbers = np.unique(numbers, return_index=True, return_inverse=True)
        texts = ["-".join(field.labels[field.numbers[k]] for field in fields)
                 for k in first.tolist()]  # fmt: skip
    unique = _tell_apart(texts)
    return [unique[number] for number in numbers.tolist()]


def _tell_apart(texts: Sequence[str]) -> list[str]:
    """Return texts that are no two the same on any file system, nor empty.

    Examples
    --------
    >>> _tell_apart(["G16", "g16", "", "a/b"])
    ['G16', 'g16-2', 'unnamed', 'a-b']
    """
    known: set[str] = set()
    unique = []
    for text in texts:
        plain = "".join(char if char.isalnum() or char in "._-" else "-"
                        for char in unicodedata.normalize("NFC", text))  # fmt: skip
        plain = plain.strip(".-") or "unnamed"
        name, number = plain, 1
        while name.casefold() in known:
            number += 1
            name = f"{plain}-{number}"
        known.add(name.casefold())
        unique.append(name)
    return unique
