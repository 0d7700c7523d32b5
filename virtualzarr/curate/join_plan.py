"""Plan of a run: which files are joined, and how; and what was decided that no join could do."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from virtualzarr.archive.anomalies import Anomaly
from virtualzarr.archive.survey import Survey
from virtualzarr.curate.decisions import (
    BROKEN,
    CONVERTED,
    GAPS,
    MISSING,
    NEW,
    Decision,
    Decisions,
    group_anomalies,
    name_anomaly,
)
from virtualzarr.redaction import hide_secrets
from virtualzarr.references.preview import Preview

_NEIGHBOURS = (*GAPS, "step changes", "overlap")
_NO_PLACE = ("replaced", "no coordinate", "no rows")
"""Who is left out for that leaves no gap behind."""


@dataclass(frozen=True)
class _Decided:
    """An anomaly, its key, and what is done about it."""

    key: str
    odd: Anomaly
    do: str | None


@dataclass
class JoinPlan:
    """How files are joined as was decided.

    Parameters
    ----------
    files : dict
        Those of each strand, in order.
    join : dict
        Options of `virtualzarr.virtualize`.
    copied : tuple of str
        Variables that may be copied, or patterns of them; empty texts for all of some files.
    left_out : dict
        Files that are not joined, and the key of the line for which.
    counts : dict
        Files by the line that decides about them.
    problems : tuple of str
        What cannot be done as was decided.
    """

    files: dict[str, list[str]]
    join: dict[str, Any]
    copied: tuple[str, ...]
    left_out: dict[str, str]
    counts: dict[str, int]
    problems: tuple[str, ...] = ()

    @classmethod
    def of(cls, decisions: Decisions, report: Survey) -> JoinPlan:
        """Plan the join of the files of a survey."""
        lines = {line.at: line for line in decisions.lines}
        new = lines.get(NEW, Decision(NEW, "stop"))
        # What nobody has decided stops the run, unless the file says what new ones become.
        decided = [_Decided(key, odd, lines.get(key, new).do)
                   for odd in report.anomalies for key in [name_anomaly(odd)]]  # fmt: skip
        left_out = _leave_out(decided)
        join = _choose_options(decided)
        problems = (
            *_check_gaps(decided, report, left_out, join),
            *_check_missing(decided, left_out, join),
        )
        copied = {each.odd.variable: None for each in decided if each.do == "copy"}
        counts = {key: len(files) for key, files in group_anomalies(report).items()}
        # Of files with the same bytes, strands and all other anomalies have the first one alone.
        twice = {each.odd.files: each.odd.files[-1 if each.do == "keep-last" else 0]
                 for each in decided if each.odd.kind == "same content twice"}  # fmt: skip
        first_names = {files[0]: name for files, name in twice.items()}
        chosen = {strand: [first_names.get(name, name) for name in names if name not in left_out]
                  for strand, names in report.strands.items()}  # fmt: skip
        if new.do == "skip":
            for strand in chosen.keys() - {*decisions.strands}:
                additions = dict.fromkeys(chosen.pop(strand), NEW)
                left_out |= additions
                counts[NEW] = counts.get(NEW, 0) + len(additions)
        for files, name in twice.items():
            why = left_out.get(files[0])
            left_out |= dict.fromkeys(files, why or "same content twice")
            if why is None:
                del left_out[name]
        return cls(chosen, join, tuple(copied), left_out, counts, problems)

    def check(self, decisions: Decisions) -> Iterator[str]:
        """Yield why nothing can be written."""
        yield from self.problems
        if len(self.files) > 1 and "{strand}" not in decisions.to:
            yield (
                f"there are {len(self.files)} strands ({', '.join(self.files)}): each is "
                "published for itself, and publish.to needs {strand} in it"
            )
        lines = {line.at: line.do for line in decisions.lines}
        if lines.get(NEW) == "skip":
            planned = (name for names in self.files.values() for name in names)
            yield from decisions.record.check_new(planned, self.left_out, lines)
        if not all(self.files.values()) or not self.files:
            yield "no file is left"

    def check_copies(self, seen: Preview) -> Iterator[str]:
        """Yield what publishing would copy, or leave out, that no line says."""
        for path, why in seen.skipped.items():
            yield f"{path}: {hide_secrets(why)}"
        for line in seen.lines:
            is_decided = any(not name or fnmatchcase(line.path, name) for name in self.copied)
            if line.copied and not is_decided:
                why = f" ({hide_secrets(line.why)})" if line.why else ""
                yield (
                    f"{line.path}: {line.copied:,} chunks would be copied{why}, and no line "
                    "about this variable says copy: decide so, or write another form"
                )

    def describe(self, strand: str, to: str) -> dict[str, Any]:
        """Return what is written of a strand."""
        return {"to": to, "files": len(self.files[strand])}


def _leave_out(decided: list[_Decided]) -> dict[str, str]:
    """Return files that are left out, but for copies, and the key of the line for which."""
    left_out: dict[str, str] = {}
    for each in decided:
        files, kind = each.odd.files, each.odd.kind
        if kind == "same content twice":
            continue
        # Whatever new ones become: what cannot be scanned is in no join.
        if each.do == "skip" or kind in BROKEN:
            left_out |= dict.fromkeys(_list_odd(kind, files), each.key)
        elif each.do in ("keep-first", "keep-last") and kind != "overlap":
            dropped = files[1:] if each.do == "keep-first" else files[:-1]
            left_out |= dict.fromkeys(dropped, each.key)
    return left_out


def _list_odd(kind: str, files: tuple[str, ...]) -> tuple[str, ...]:
    """Return the files that an anomaly leaves out: of neighbours, the second."""
    if kind in _NEIGHBOURS and len(files) == 2:
        return files[1:]
    return files[1:] if kind == "replaced" else files


def _choose_options(decided: list[_Decided]) -> dict[str, Any]:
    join: dict[str, Any] = {}
    for each in decided:
        kind = each.odd.kind
        if each.do in ("keep-first", "keep-last") and kind == "overlap":
            join["overlap"] = each.do.removeprefix("keep-")
        elif each.do == "fill":
            join["gaps" if kind in GAPS else "missing"] = "fill"
        elif kind in CONVERTED and each.do in ("convert", "virtual-for-us", "copy"):
            join["harmonize"] = True
    return join


def _check_gaps(
    decided: list[_Decided], report: Survey, left_out: dict[str, str], join: dict[str, Any]
) -> Iterator[str]:
    """Yield which gaps would be filled, as a join fills all or none, that are not to be."""
    if "gaps" not in join:
        return
    kinds = {each.key: each.odd.kind for each in decided}
    filled = next(each.key for each in decided if each.do == "fill" and each.odd.kind in GAPS)
    for key in dict.fromkeys(each.key for each in decided if each.do == "accept"
                             and each.odd.kind in GAPS and len(each.odd.files) > 1):  # fmt: skip
        yield (
            f"{filled}: fill was decided, and accept of {key}: a join fills all gaps or none, so "
            "decide the same of both"
        )
    inner: dict[str, int] = {}
    for names in report.strands.values():
        stay = [number for number, name in enumerate(names) if name not in left_out]
        for name in names[stay[0] : stay[-1]] if stay else ():
            if name in left_out and kinds[left_out[name]] not in _NO_PLACE:
                inner[left_out[name]] = inner.get(left_out[name], 0) + 1
    for key, count in inner.items():
        yield (
            f"{filled}: fill was decided, and {key} leaves out {count:,} files between others: a "
            "join would fill their places, too, so do not fill, or do not leave them out"
        )


def _check_missing(
    decided: list[_Decided], left_out: dict[str, str], join: dict[str, Any]
) -> Iterator[str]:
    """Yield which variables would be filled, as a join fills all or none, that are not to be."""
    if "missing" not in join:
        return
    filled = next(each.key for each in decided if each.do == "fill" and each.odd.kind in MISSING)
    kinds = (*MISSING, "variable renamed")
    others = {each.key: None for each in decided if each.do == "accept" and each.odd.kind in kinds
              and not left_out.keys() >= {*each.odd.files}}  # fmt: skip
    for key in others:
        yield (
            f"{filled}: fill was decided, and nothing of {key}, which a join would fill, too: "
            "draft a line about it, or let `new` stop or skip"
        )
