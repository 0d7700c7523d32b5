"""Classes of files that are equal in all that is compared, as numbers of few tables."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from virtualzarr.archive.anomalies import CALENDAR_NAMES, TIME_UNITS, Change
from virtualzarr.archive.axis import AxisFacts
from virtualzarr.archive.facts import FileFacts
from virtualzarr.combine.cf_time import TimeUnit

Table = dict[str, Any]
"""What is compared of one variable, by the name of the property."""

_RARE = 10
"""Chunks that are missing are odd if they are in no more than every tenth file."""


class Classes:
    """Which class each file is of, and what is compared of the files of each.

    Parameters
    ----------
    facts : sequence of FileFacts
        Of the files, in order.
    dim : str, optional
        The dimension along which lengths may differ.

    Attributes
    ----------
    codes : list of int
        The class of each file.
    varying : list of (Change, int)
        What is another in more than every third file, and how many different ones there are; it is
        compared no more, as it would make an era of every file.
    """

    def __init__(self, facts: Sequence[FileFacts], dim: str | None) -> None:
        self._dim = dim
        self._tables: list[tuple[str, Table]] = []
        self._numbers: dict[tuple[str, str], int] = {}
        self._members: list[tuple[int, ...]] = []
        self._epochs: dict[int, str] = {}
        self._by_source: dict[tuple[int, str], int] = {}
        self.codes = self._number_files(facts)
        self._fill_chunks()
        self._drop_common_holes()
        self.varying = self._drop_varying()

    def table(self, code: int) -> dict[tuple[str, str], Any]:
        """Return what is compared of the files of a class, by variable and property."""
        table: dict[tuple[str, str], Any] = {}
        for number in self._members[code]:
            path, values = self._tables[number]
            table |= {(path, name): value for name, value in values.items()}
        return table

    def _number_files(self, facts: Sequence[FileFacts]) -> list[int]:
        codes_by_content: dict[tuple[Any, ...], int] = {}
        codes: dict[tuple[int, ...], int] = {}
        numbers = []
        for one in facts:
            # Files share these objects where they are alike: they are compared once.
            key = (id(one.properties), one.format,
                   *(axis.digest for path, axis in one.axes.items()
                     if self._is_static(one, path)))  # fmt: skip
            code = codes_by_content.get(key)
            if code is None:
                members = self._list_members(one)
                code = codes_by_content[key] = codes.setdefault(members, len(codes))
                if code == len(self._members):
                    self._members.append(members)
            numbers.append(code)
        return numbers

    def _is_static(self, facts: FileFacts, path: str) -> bool:
        """Tell whether the values of a coordinate are to be the same in all files."""
        dims = facts.properties[path].get("dimensions") or []
        # A number alone is another in each file, as often as not: it is no axis.
        return bool(dims) and self._dim not in dims and path != self._dim

    def _list_members(self, facts: FileFacts) -> tuple[int, ...]:
        members = [self._intern("", {"format": facts.format})]
        for path, properties in facts.properties.items():
            axis = facts.axes.get(path)
            static = axis if axis is not None and self._is_static(facts, path) else None
            # The properties live as long as the facts of the files do.
            key = id(properties), "" if static is None else static.digest
            if key not in self._by_source:
                table = self._tabulate(path, properties, static)
                self._by_source[key] = self._intern(path, table)
            members.append(self._by_source[key])
        return tuple(sorted(members))

    def _intern(self, path: str, table: Table) -> int:
        key = path, json.dumps(table, sort_keys=True)
        if key not in self._numbers:
            self._numbers[key] = len(self._tables)
            self._tables.append((path, table))
        return self._numbers[key]

    def _tabulate(self, path: str, properties: Table, static: AxisFacts | None) -> Table:
        table = {name: value for name, value in properties.items()
                 if name != f"length along {self._dim}"}  # fmt: skip
        table["variable"] = True
        name = f"chunk along {self._dim}"
        if name in table and table[name] is None:
            # All rows are in one chunk: how many there are says which chunks these may be cut to.
            table[name] = [properties[f"length along {self._dim}"]]
        if static is not None:
            table["values"], table["reversed values"] = static.digest, static.reversed
        self._split_units(table)
        return table

    def _split_units(self, table: Table) -> None:
        """Put units of times apart: word and date are two kinds; a date has the first spelling."""
        text = table.get("units")
        word, since, date = str(text).strip("'\"").partition(" since ")
        if since:
            calendar = str(table.get("calendar", "'standard'")).strip("'\"")
            unit = TimeUnit.from_attributes({"units": f"{word}{since}{date}", "calendar": calendar})
            if unit is not None and unit.epoch is not None:
                word, date = unit.name, self._epochs.setdefault(unit.epoch, date)
                # CF has several names of a calendar, of which one is none.
                if "calendar" in table:
                    table[CALENDAR_NAMES] = table["calendar"]
                table["calendar"] = unit.calendar
            del table["units"]
            table[TIME_UNITS], table["epoch"] = word, date

    def _replace(self, tables: Sequence[tuple[str, Table]]) -> None:
        """Compare other tables instead of those that there are; some may be equal now."""
        self._tables, self._numbers = [], {}
        new = [self._intern(path, table) for path, table in tables]
        codes: dict[tuple[int, ...], int] = {}
        renumbered = []
        for members in self._members:
            key = tuple(sorted(new[number] for number in members))
            renumbered.append(codes.setdefault(key, len(codes)))
        self._members = list(codes)
        self.codes = [renumbered[code] for code in self.codes]

    def _fill_chunks(self) -> None:
        """Say how variables are cut of files that have all of the dimension in one chunk.

        They do not say how more would be cut: as in the file before them that does, else after,
        but for those that have more rows than that.
        """
        name = f"chunk along {self._dim}"
        lengths: dict[str, set[Any]] = {}
        for path, table in self._tables:
            if isinstance(table.get(name), int):
                lengths.setdefault(path, set()).add(table[name])
        if any(len(values) > 1 for values in lengths.values()):
            self._fill_each(name)
            return
        single = {path: next(iter(values)) for path, values in lengths.items()}
        self._replace([
            (path, {**table, name: _choose_chunk(table[name], single.get(path))}
             if name in table else table)
            for path, table in self._tables
        ])  # fmt: skip

    def _fill_each(self, name: str) -> None:
        """Do so file by file, where files are cut in several ways."""
        tables = list(self._tables)
        # From the last to the first, so that the first files know what comes.
        following: list[dict[str, Any]] = [{}] * len(self.codes)
        current: dict[str, Any] = {}
        for k in range(len(self.codes) - 1, -1, -1):
            for number in self._members[self.codes[k]]:
                path, table = tables[number]
                if isinstance(table.get(name), int) and current.get(path) != table[name]:
                    current = {**current, path: table[name]}
            following[k] = current
        members: dict[tuple[int, ...], int] = {}
        codes = []
        last: dict[str, Any] = {}
        for k, code in enumerate(self.codes):
            key = []
            for number in self._members[code]:
                path, table = tables[number]
                if isinstance(table.get(name), list):
                    value = _choose_chunk(table[name], last.get(path), following[k].get(path))
                    number = self._intern(path, {**table, name: value})
                elif table.get(name) is not None:
                    last[path] = table[name]
                key.append(number)
            codes.append(members.setdefault(tuple(sorted(key)), len(members)))
        self._members, self.codes = list(members), codes

    def _count_files(self) -> list[int]:
        """Return how many files each table is of."""
        per_class = [0] * len(self._members)
        for code in self.codes:
            per_class[code] += 1
        counts = [0] * len(self._tables)
        for code, members in enumerate(self._members):
            for number in members:
                counts[number] += per_class[code]
        return counts

    def _drop_common_holes(self) -> None:
        """Do not compare whether chunks are missing where many files have such."""
        holes: dict[str, int] = {}
        for count, (path, table) in zip(self._count_files(), self._tables, strict=True):
            if "chunks" in table:
                holes[path] = holes.get(path, 0) + count
        most = max(1, len(self.codes) // _RARE)
        common = {path for path, count in holes.items() if count > most}
        if common:
            self._replace([(path, _without(table, {"chunks"}) if path in common else table)
                           for path, table in self._tables])  # fmt: skip

    def _drop_varying(self) -> list[tuple[Change, int]]:
        most = max(3, len(self.codes) // 3)
        if len(self._members) <= most:
            return []
        used = self._count_files()
        values: dict[tuple[str, str], set[str]] = {}
        for count, (path, table) in zip(used, self._tables, strict=True):
            for name, value in table.items() if count else ():
                values.setdefault((path, name), set()).add(json.dumps(value))
        varying = {key: len(some) for key, some in values.items() if len(some) > most}
        names: dict[str, set[str]] = {}
        for path, name in varying:
            names.setdefault(path, set()).add(name)
        self._replace([(path, _without(table, names.get(path, set())))
                       for path, table in self._tables])  # fmt: skip
        return [(Change(*key, None, None), count) for key, count in varying.items()
                if key[1] != "reversed values"]  # fmt: skip


def _choose_chunk(own: Any, *others: int | None) -> Any:
    """Return the chunk length of a file: its own, or one of others if it has all rows in one chunk.

    Examples
    --------
    >>> _choose_chunk(12, 8), _choose_chunk([6], 8), _choose_chunk([24], 8), _choose_chunk([24])
    (12, 8, 'all', None)
    """
    if not isinstance(own, list):
        return own
    sizes = [chunk for chunk in others if chunk is not None]
    # A chunk of more rows is none of those: it is longer.
    return next((chunk for chunk in sizes if own[0] <= chunk), "all" if sizes else None)


def _without(table: Table, names: set[str]) -> Table:
    return {name: value for name, value in table.items() if name not in names}
