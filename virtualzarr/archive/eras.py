"""Eras: runs of files that are alike in all that is compared, and what changes between them."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby
from typing import Any

from virtualzarr.archive.anomalies import CALENDAR_NAMES, Anomaly, Change, Kind, merge_changes
from virtualzarr.archive.classes import Classes
from virtualzarr.redaction import HiddenRepr

Table = dict[tuple[str, str], Any]
"""Values by variable and property."""

_MOST_LENGTHS = 8
"""Numbers of rows of which there are samples."""


@dataclass(frozen=True, repr=False)
class Era(HiddenRepr):
    """Files that follow each other and are alike.

    Parameters
    ----------
    first, last : str
        Files.
    files : int
    changes : tuple of str
        In what it differs from the era before it, in words.
    start, stop : str
        The first and the last coordinate, as text.
    strand : str
        Which of the satellites, tiles or products that take turns it is of.
    nbytes : int
        Of its files.
    typical : str
        One of the files that most of it are like.
    samples : tuple of str
        That one and more like it: the last one, and one of each number of rows. What joining them
        makes, joining all does. After a last file that alone is as long, the next one is there.
    """

    first: str
    last: str
    files: int
    changes: tuple[str, ...] = ()
    start: str = ""
    stop: str = ""
    strand: str = ""
    nbytes: int = 0
    typical: str = ""
    samples: tuple[str, ...] = ()


def find_eras(
    names: Sequence[str],
    codes: Sequence[int],
    lengths: Sequence[int],
    classes: Classes,
    first: int = 1,
) -> tuple[list[Era], list[list[int]], list[Anomaly]]:
    """Return eras of files, the numbers of their files, and what is odd between and in them.

    Parameters
    ----------
    names, codes, lengths : sequence
        The files, in the order of their coordinates, the class of each, and how many rows it has.
    classes : Classes
    first : int
        The number of the first era.
    """
    anomalies: list[Anomaly] = []
    # Fewer files than that are unlike those around them: no era of their own.
    least = max(3, -(-len(names) // 1000))
    numbers = _find_borders(codes, least)
    members = [list(some) for _, some in groupby(range(len(names)), numbers.__getitem__)]
    typical = [Counter(codes[i] for i in some).most_common(1)[0][0] for some in members]
    eras: list[Era] = []
    compare = lru_cache(4096)(lambda a, b: _compare(classes.table(a), classes.table(b)))
    for number, (indices, common) in enumerate(zip(members, typical, strict=True)):
        inside = tuple(names[i] for i in indices)
        changes: list[tuple[Kind, str, str]] = []
        if number:
            before = typical[number - 1]
            changes = compare(before, common)
            changes = changes + _compare_new(classes, before, common, typical[number - 1 :: -1])
        words = [f"{variable} {text}" for _, variable, text in changes]
        samples = [names[i] for i in _choose_samples(indices, codes, lengths, common)]
        eras.append(
            Era(inside[0], inside[-1], len(indices), tuple(words),
                typical=samples[0], samples=tuple(samples))
        )  # fmt: skip
        anomalies += [Anomaly(kind, inside, variable, text, number + first)
                      for kind, variable, text in changes]  # fmt: skip
        odd: dict[tuple[Any, str, str], list[str]] = {}
        counts = Counter(codes[i] for i in indices)
        near = typical[number - 1 :: -1] if number else []
        # What no era has is as in most of the files that have it.
        near = [*near, *typical[number + 1 :], *(code for code, _ in counts.most_common())]
        differences = {code: compare(common, code) + _compare_new(classes, common, code, near)
                       for code in counts if code != common}  # fmt: skip
        for i in indices:
            for difference in differences.get(codes[i], ()):
                odd.setdefault(difference, []).append(names[i])
        anomalies += [Anomaly(kind, tuple(some), variable, text)
                      for (kind, variable, text), some in odd.items()]  # fmt: skip
    return eras, members, anomalies


def _compare_new(
    classes: Classes, common: int, code: int, others: Sequence[int]
) -> list[tuple[Kind, str, str]]:
    """Return what differs of variables that a class lacks, from the first other one with them."""
    before, after = classes.table(common), classes.table(code)
    missing = {path for path, name in after if name == "variable"}
    missing -= {path for path, name in before if name == "variable"}
    earlier: Table = {}
    for other in others:
        if not missing:
            break
        table = classes.table(other)
        variables = {path for path, name in table if name == "variable"} & missing
        earlier |= {key: value for key, value in table.items() if key[0] in variables}
        missing -= variables
    paths = {path for path, _ in earlier}
    own = {key: value for key, value in after.items() if key[0] in paths}
    return _compare(earlier, own, {path for path, _ in before | after})


def _choose_samples(
    indices: Sequence[int], codes: Sequence[int], lengths: Sequence[int], common: int
) -> list[int]:
    """Return the numbers of files of an era that show what joining all of it makes."""
    alike = [i for i in indices if codes[i] == common]
    by_length: dict[int, int] = {}
    for i in alike:
        by_length.setdefault(lengths[i], i)
    some = sorted({*list(by_length.values())[:_MOST_LENGTHS], alike[-1]})
    # The last rows of all may be fewer: of a file in the middle, another has to come after it.
    is_alone = by_length[lengths[alike[-1]]] == alike[-1] and len(some) > 1
    if is_alone and alike[-1] + 1 < len(codes):
        some.append(alike[-1] + 1)
    return some


def _find_borders(keys: Sequence[int], least: int) -> list[int]:
    """Return the number of the era of each file, from 0.

    Runs shorter than `least` are outliers in the era before them, or in the first.
    """
    runs = [(key, len(list(group))) for key, group in groupby(keys)]
    numbers: list[int] = []
    number, current = -1, None
    for key, count in runs:
        if count >= least and key != current:
            number, current = number + 1, key
        numbers += [max(number, 0)] * count
    return numbers


def _compare(
    before: Table, after: Table, others: Iterable[str] = ()
) -> list[tuple[Kind, str, str]]:
    """Return kind, variable and words of what differs between two files, which may have others."""
    changes = []
    changed = {path for path, name in before.keys() ^ after.keys() if name == "variable"}
    renamed = _find_renamed(before, after, changed)
    skipped = {path for path, name in before.keys() | after.keys() if name == "skipped"}
    for path, name in sorted(before.keys() | after.keys()):
        a, b = before.get((path, name)), after.get((path, name))
        if a == b and type(a) is type(b):
            continue
        # Of a variable that is not there, or was skipped, nothing else is.
        if path in skipped and name != "skipped":
            continue
        if path in changed and (name != "variable" or path in renamed.values()):
            continue
        if path in renamed:
            changes.append(Change(path, "name", renamed[path], path))
            continue
        changes.append(Change(path, name, a, b))
    reversed_paths = _find_reversed(before, after)
    distinct = [
        change
        for change in changes
        if not (change.name == "values" and change.variable in reversed_paths)
        and not (change.name == "reversed values" and change.variable not in reversed_paths)
        # Other calendars have other names, too, and other lengths other values: said once.
        and not (change.name == CALENDAR_NAMES and before.get((change.variable, "calendar"))
                 != after.get((change.variable, "calendar")))
        and not (change.name == "values" and any(other.variable == change.variable
                 and other.name.startswith("length along") for other in changes))
    ]  # fmt: skip
    variables = sorted({path for path, _ in before.keys() | after.keys()} | set(others))
    return merge_changes(distinct, variables)


def _find_reversed(before: Table, after: Table) -> set[str]:
    """Return coordinates that have the same values the other way round."""
    return {
        path
        for path, name in before
        if name == "values"
        and before[path, name] == after.get((path, "reversed values"))
        and before[path, name] != after.get((path, name))
    }


def _find_renamed(before: Table, after: Table, changed: set[str]) -> dict[str, str]:
    """Return new names of variables, each with the old one of a variable that is the same.

    A name is claimed only if no other variable that came or went is like it.
    """
    by_content: dict[str, tuple[list[str], list[str]]] = {}
    for path in changed:
        table = before if (path, "variable") in before else after
        content = {name: value for (variable, name), value in table.items() if variable == path}
        # A coordinate is called as its dimension is.
        content["dimensions"] = ["" if dim == path else dim
                                 for dim in content.get("dimensions") or ()]  # fmt: skip
        entry = by_content.setdefault(json.dumps(content, sort_keys=True), ([], []))
        entry[table is after].append(path)
    return {new[0]: old[0] for old, new in by_content.values() if len(old) == len(new) == 1}
