"""Mutations one after the other, without guidance: for short runs, and for comparisons."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Mapping
from random import Random

from tests.fuzz.mutation import mutated

Finding = tuple[str, bytes, str]


def loop(
    corpus: Mapping[str, bytes],
    run: Callable[[bytes], str],
    random: Random,
    count: int | None = None,
    seconds: float = float("inf"),
) -> Iterator[Finding]:
    """Yield what was found in damaged files of a corpus: where it began, the file, what is wrong.

    Parameters
    ----------
    corpus : mapping
        Files by name.
    run : callable
        Takes a file and returns what is wrong, or "".
    random : Random
    count : int, optional
        How many files to try.
    seconds : float, optional
        For how long to try.
    """
    names, files = list(corpus), list(corpus.values())
    stop = time.monotonic() + seconds
    seen: set[str] = set()
    tried = 0
    while tried != count and time.monotonic() < stop:
        number = random.randrange(len(names))
        raw = mutated(files[number], files, random)
        found = run(raw)
        tried += 1
        if found and kind(found) not in seen:
            seen.add(kind(found))
            yield names[number], raw, found


def kind(found: str) -> str:
    """Return what findings of the same cause have in common."""
    return re.sub(r"0x[0-9a-f]+|\d+", "N", found[-300:])
