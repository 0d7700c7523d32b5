"""Verdict on an archive: what each way to join and publish it would copy, era by era."""

from __future__ import annotations

import os
import tempfile
from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Literal, get_args

from virtualzarr.archive.eras import Era
from virtualzarr.archive.survey import Survey
from virtualzarr.array import Array
from virtualzarr.choices import ReferenceFormat
from virtualzarr.errors import MissingDependencyError, VirtualZarrError
from virtualzarr.hierarchy.group import Group
from virtualzarr.ingest.virtualize import virtualize
from virtualzarr.references.publish import preview

Result = Literal["virtual for all", "virtual for us", "copy", "decide", "impossible"]

MAX_ERAS = 32
"""Eras of one strand, at most, that are held against the largest one."""

_SUFFIX = {"json": "json", "parquet": "parq", "icechunk": "icechunk", "native": "zarr"}
_ODD_KINDS = ("byte order", "chunk shape", "filters", "format", "data type", "scale/offset", "fill")
_OURS = ("native", "dataset")
_FORMS = (*get_args(ReferenceFormat), "copy")
_BYTES_PER_SECOND = 50e6
"""What copying decodes and stores again, about, on one core."""


@dataclass(frozen=True)
class Verdict:
    """What becomes of a variable of an era in a form.

    Parameters
    ----------
    form : str
        Of references, or "copy" for a regular copy of all values.
    era : int
        Its number.
    variable : str
        Its path; empty for all of them.
    result : str
        "virtual for all", "virtual for us", "copy", "decide" or "impossible".
    chunks, nbytes : int
        Chunks that are decoded and stored again, and bytes of their values, about: those of one
        file of the era, times its files.
    why : str
    """

    form: str
    era: int
    variable: str
    result: Result
    chunks: int = 0
    nbytes: int = 0
    why: str = ""


def judge(
    report: Survey,
    *,
    storage_options: Mapping[str, Any] | None = None,
    allowed: Any = None,
    format: str | None = None,
) -> list[Verdict]:
    """Return what becomes of each era in each form.

    Some files of each era are joined with files of the largest one of its strand, as a run would
    do, and what that says holds for the others, as they are alike: of each number of rows there is
    one. So are single files whose chunks or numbers are odd, for what they make of the others.
    Nothing is written.

    Parameters
    ----------
    report : Survey
    storage_options, allowed, format
        As for `survey`.
    """
    if report.dim is None:
        return []
    access = {"storage_options": storage_options, "allowed": allowed, "format": format}
    verdicts: list[Verdict] = []
    numbered = list(enumerate(report.eras, 1))
    for strand in sorted({era.strand for era in report.eras}):
        some = [(number, era) for number, era in numbered if era.strand == strand]
        judged = _Strand(some[:MAX_ERAS], report.dim, access)
        verdicts += judged.judge(_list_odd(report, strand, some))
        verdicts += [Verdict(form, number, "", "decide", why="too many eras to look at each")
                     for number, _ in some[MAX_ERAS:] for form in _FORMS]  # fmt: skip
    return verdicts


class _Strand:
    """The eras of one strand, each of which is held against the largest one."""

    def __init__(self, eras: list[tuple[int, Era]], dim: str, access: Mapping[str, Any]) -> None:
        self.eras, self.dim, self.access = eras, dim, access
        self.largest = max(eras, key=lambda entry: (entry[1].nbytes, -entry[0]))
        self._spilled: dict[tuple[str, str], Verdict] = {}

    def judge(self, odd: list[tuple[int, Era]]) -> list[Verdict]:
        """Return what becomes of each era in each form, and of files that are odd in them."""
        verdicts = [each for number, era in self.eras for each in self._judge_era(number, era)]
        for number, files in odd:
            copies = [each for each in self._judge_era(number, files, is_odd=True)
                      if each.form != "copy" and each.result == "copy"]  # fmt: skip
            repeated = {(each.form, each.era) for each in copies}
            verdicts = [each for each in verdicts
                        if each.variable or (each.form, each.era) not in repeated]  # fmt: skip
            verdicts += copies
        # What joining other eras makes of the largest one is known last.
        copied = {(form, self.largest[0]) for form, _ in self._spilled}
        plain = [each for each in verdicts if each.variable or (each.form, each.era) not in copied]
        return plain + list(self._spilled.values())

    def _judge_era(self, number: int, era: Era, is_odd: bool = False) -> list[Verdict]:
        base = self.largest[1]
        names = list(dict.fromkeys([base.samples[0], base.samples[-1], *era.samples]))
        joined, why = _join(names, self.dim, self.access)
        if joined is None:
            return [Verdict(form, number, "", "impossible", why=why) for form in _FORMS]
        verdicts: list[Verdict] = []
        own, _ = _join([era.typical], self.dim, self.access)
        chunks = {} if own is None else _measure_chunks(own)
        # All that are joined are of the largest era, if that is the one.
        is_largest = number == self.largest[0] and not is_odd
        mine = names if is_largest else list(era.samples)
        together, _ = _join(mine, self.dim, self.access)
        others = len(names) - len(mine)
        most = {} if together is None else _measure_chunks(together)
        for form in get_args(ReferenceFormat):
            if form in _OURS:
                result: Result = "decide" if why else "virtual for us"
                verdicts.append(Verdict(form, number, "", result, why=why))
            else:
                verdicts += self._preview(
                    joined, form, number, era.files, chunks, most, others, why
                )
        nbytes = 0 if own is None else sum(array.nbytes for array in _list_arrays(own))
        total = sum(count for count, _ in chunks.values())
        verdicts.append(
            Verdict("copy", number, "", "copy", total * era.files, nbytes * era.files, why)
        )
        return verdicts

    def _preview(
        self, joined: Group, form: ReferenceFormat, number: int, files: int,
        chunks: Mapping[str, tuple[int, int]], most: Mapping[str, tuple[int, int]],
        others: int, why: str,
    ) -> list[Verdict]:  # fmt: skip
        try:
            # Nothing is written there: only the name is looked at.
            target = os.path.join(tempfile.gettempdir(), f"no-such-folder/a.{_SUFFIX[form]}")
            seen = preview(joined, target, reference_format=form)
        except MissingDependencyError:
            return []
        except VirtualZarrError as error:
            return [Verdict(form, number, "", "impossible", why=error.message)]
        verdicts = [Verdict(form, number, path, "impossible", why=reason)
                    for path, reason in seen.skipped.items()]  # fmt: skip
        sizes = {array.path: array.dtype.itemsize for array in _list_arrays(joined)}
        for line in seen.lines:
            if not line.copied:
                continue
            # What is copied is cut otherwise, perhaps: a file's own chunks are what is said.
            own, length = chunks.get(line.path, (line.copied, 0))
            size = length * sizes.get(line.path, 0) or line.copied_bytes // line.copied
            base, era = self.largest
            mine = most.get(line.path, (line.copied, 0))[0]
            left = line.copied - mine
            # As all of an era are alike: what is as many as the others have is theirs alone.
            if others and line.copied == line.chunks - mine and left > 0:
                left, own = line.copied, 0
            count = min(line.copied, own) * files
            if count:
                verdicts.append(
                    Verdict(form, number, line.path, "copy", count, count * size, line.why)
                )
            if others and left > 0:
                # Joined with these, nobody else reads the chunks of the largest era, either.
                count = left * era.files // others
                self._spilled[form, line.path] = Verdict(
                    form, base, line.path, "copy", count, count * size, line.why
                )
        if not verdicts:
            result: Result = "decide" if why else "virtual for all"
            verdicts.append(Verdict(form, number, "", result, why=why))
        return verdicts


def _list_odd(report: Survey, strand: str, eras: list[tuple[int, Era]]) -> list[tuple[int, Era]]:
    """Return files whose chunks or numbers are odd, each kind as an era with a number."""
    stops = list(accumulate(era.files for _, era in eras))
    places: dict[str, int] = {}
    odd: dict[str, tuple[int, Era]] = {}
    for anomaly in report.anomalies:
        if anomaly.era is not None or anomaly.kind not in _ODD_KINDS:
            continue
        places = places or {name: k for k, name in enumerate(report.strands.get(strand, ()))}
        name = anomaly.files[0]
        if name in places and len(odd) < MAX_ERAS:
            number = eras[bisect_right(stops, places[name])][0]
            like = Era(name, anomaly.files[-1], len(anomaly.files), typical=name, samples=(name,))
            odd.setdefault(name, (number, like))
    return list(odd.values())


def _join(names: list[str], dim: str, access: Mapping[str, Any]) -> tuple[Group | None, str]:
    """Return files joined, and what has to be decided for that; None if they cannot be joined."""
    ways: list[tuple[dict[str, Any], str]] = [
        ({}, ""),
        ({"harmonize": True}, "convert: packing, fill values or units of times differ"),
        ({"harmonize": True, "missing": "fill"}, "fill: not all variables are everywhere"),
    ]
    problem = ""
    for options, decision in ways:
        try:
            return virtualize(names, dim, combine="by_coords", overlap="last", **options, **access,
                              progress=False), decision  # fmt: skip
        except VirtualZarrError as error:
            problem = error.message
    return None, problem


def _list_arrays(group: Group) -> list[Array]:
    return [node for _, node in group.members(None) if isinstance(node, Array)]


def _measure_chunks(group: Group) -> dict[str, tuple[int, int]]:
    """Return how many chunks each array has, and how many values there are in one on average."""
    counts = {array.path: array.manifest.ncells for array in _list_arrays(group)}
    return {array.path: (counts[array.path], array.size // max(counts[array.path], 1))
            for array in _list_arrays(group)}  # fmt: skip


def sum_costs(verdicts: list[Verdict]) -> list[tuple[str, str]]:
    """Return for each form what it would do with the archive, in words.

    Examples
    --------
    >>> sum_costs([Verdict("json", 1, "", "virtual for all"),
    ...            Verdict("json", 2, "air", "copy", 40, 4_000_000, "other codecs")])
    [('json', 'copies about 40 chunks, 4,000,000 bytes (an estimate: 1 s)')]
    """
    forms = dict.fromkeys(verdict.form for verdict in verdicts)
    parts = []
    for form in forms:
        some = [verdict for verdict in verdicts if verdict.form == form]
        impossible = [verdict for verdict in some if verdict.result == "impossible"]
        open_ones = [verdict for verdict in some if verdict.result == "decide"]
        chunks, nbytes = sum(v.chunks for v in some), sum(v.nbytes for v in some)
        if impossible:
            text = f"impossible: {impossible[0].why}"
        elif chunks:
            seconds = max(round(nbytes / _BYTES_PER_SECOND), 1)
            text = f"copies about {chunks:,} chunks, {nbytes:,} bytes (an estimate: {seconds:,} s)"
        else:
            text = "virtual for us" if form in _OURS else "virtual for all"
        if open_ones and not impossible:
            text += f"; to decide: {open_ones[0].why}"
        parts.append((form, text))
    return parts
