"""Eras: runs of files that are alike in all that is compared, and what changes between them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from virtualzarr.archive.anomalies import Anomaly, Change, merge_changes
from virtualzarr.archive.facts import FileFacts, digest_json
from virtualzarr.combine.cf_time import TimeUnit

Table = dict[tuple[str, str], Any]
"""Values by variable and property."""


@dataclass(frozen=True)
class Era:
    """Files that follow each other and are alike.

    Parameters
    ----------
    first, last : str
        Files.
    files : int
    changes : tuple of str
        In what it differs from the era before it, in words.
    """

    first: str
    last: str
    files: int
    changes: tuple[str, ...] = ()


def find_eras(
    names: Sequence[str], facts: Sequence[FileFacts], dim: str | None
) -> tuple[list[Era], list[Anomaly]]:
    """Return eras of files in order, and what is odd: changes, and files unlike those around them.

    Parameters
    ----------
    names, facts : sequence
        The files, in the order of their coordinates.
    dim : str, optional
        The dimension along which lengths may differ.
    """
    tables = _tabulate(facts, dim)
    anomalies = _take_out_varying(names, tables)
    keys = [
        digest_json(sorted([*name, value] for name, value in table.items())) for table in tables
    ]
    # Fewer files than that are unlike those around them: no era of their own.
    least = max(3, -(-len(names) // 1000))
    numbers = _find_borders(keys, least)
    eras: list[Era] = []
    typical: list[Table] = []
    for number, members in groupby(range(len(names)), numbers.__getitem__):
        indices = list(members)
        common = Counter(keys[i] for i in indices).most_common(1)[0][0]
        table = tables[next(i for i in indices if keys[i] == common)]
        inside = tuple(names[i] for i in indices)
        changes = _compare(typical[-1], table) if typical else []
        words = [f"{variable} {text}" for _, variable, text in changes]
        eras.append(Era(inside[0], inside[-1], len(indices), tuple(words)))
        typical.append(table)
        anomalies += [Anomaly(kind, inside, variable, text, number + 1)
                      for kind, variable, text in changes]  # fmt: skip
        odd: dict[tuple[Any, str, str], list[str]] = {}
        for i in indices:
            if keys[i] != common:
                for difference in _compare(table, tables[i]):
                    odd.setdefault(difference, []).append(names[i])
        anomalies += [Anomaly(kind, tuple(some), variable, text)
                      for (kind, variable, text), some in odd.items()]  # fmt: skip
    return eras, anomalies


def _tabulate(facts: Sequence[FileFacts], dim: str | None) -> list[Table]:
    """Return what is compared of each file along a dimension."""
    tables = []
    cut: dict[str, Any] = {}
    dates: dict[int, str] = {}
    for one in facts:
        table: Table = {("", "format"): one.format}
        for path, properties in one.properties.items():
            table[path, "variable"] = True
            is_joined = dim in (properties.get("dimensions") or ()) or path == dim
            for name, value in properties.items():
                if name == f"length along {dim}" or (is_joined and name.endswith("values")
                                                     and name != "flag_values"):  # fmt: skip
                    continue
                if name == f"chunk along {dim}":
                    # Whoever has it all in one chunk does not say how more would be cut.
                    value = cut[path] = cut.get(path) if value is None else value
                table[path, name] = value
            # A number alone is another in each file, as often as not: it is no axis.
            if not properties.get("dimensions"):
                table.pop((path, "values"), None)
            if not properties.get("dimensions") or (path, "values") not in table:
                table.pop((path, "reversed values"), None)
            _split_units(table, path, dates)
        tables.append(table)
    # What the first files did not say, later ones may.
    by_path: dict[str, Any] = {}
    name = f"chunk along {dim}"
    for table in reversed(tables):
        for path, key in [entry for entry in table if entry[1] == name]:
            by_path[path] = table[path, key] = table[path, key] or by_path.get(path)
    return tables


def _split_units(table: Table, path: str, dates: dict[int, str]) -> None:
    """Put units of times apart: word and date are two kinds; a date has the first spelling."""
    text = table.get((path, "units"))
    word, since, date = str(text).strip("'\"").partition(" since ")
    if since:
        calendar = str(table.get((path, "calendar"), "'standard'")).strip("'\"")
        unit = TimeUnit.from_attributes({"units": f"{word}{since}{date}", "calendar": calendar})
        if unit is not None and unit.epoch is not None:
            word, date = unit.name, dates.setdefault(unit.epoch, date)
        table[path, "units"], table[path, "epoch"] = word, date


def _take_out_varying(names: Sequence[str], tables: list[Table]) -> list[Anomaly]:
    """Take out of tables what is another in every third file, and return it as anomalies.

    A factor or a date that is each file's own would make an era of every file.
    """
    values: dict[tuple[str, str], dict[str, int]] = {}
    for number, table in enumerate(tables):
        for key, value in table.items():
            values.setdefault(key, {}).setdefault(repr(value), number)
    changes = []
    for key, firsts in values.items():
        if len(firsts) > max(3, len(names) // 3):
            for table in tables:
                table.pop(key, None)
            changes.append((Change(*key, None, None), len(firsts)))
    return [
        Anomaly(change.kind, tuple(names), change.variable,
                f"{change.name}: {count:,} different ones in {len(names):,} files")
        for change, count in changes
        if change.name != "reversed values"
    ]  # fmt: skip


def _find_borders(keys: Sequence[str], least: int) -> list[int]:
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


def _compare(before: Table, after: Table) -> list[tuple[Any, str, str]]:
    """Return kind, variable and words of what differs between two files."""
    changes = []
    changed = {path for path, name in before.keys() ^ after.keys() if name == "variable"}
    for path, name in sorted(before.keys() | after.keys()):
        a, b = before.get((path, name)), after.get((path, name))
        if a == b and type(a) is type(b):
            continue
        # Of a variable that is not there, nothing else is.
        if path in changed and name != "variable":
            continue
        changes.append(Change(path, name, a, b))
    reversed_paths = {
        path
        for path, name in before
        if name == "values"
        and before[path, name] == after.get((path, "reversed values"))
        and before[path, name] != after.get((path, name))
    }
    kept = [
        change
        for change in changes
        if not (change.name == "values" and change.variable in reversed_paths)
        and not (change.name == "reversed values" and change.variable not in reversed_paths)
        # Other lengths are other values, too: said once.
        and not (change.name == "values" and any(other.variable == change.variable
                 and other.name.startswith("length along") for other in changes))
    ]  # fmt: skip
    variables = sorted({path for path, _ in before.keys() | after.keys()})
    return merge_changes(kept, variables)
