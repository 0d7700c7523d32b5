"""Inventory of an archive: every file, its version, and what came of its scan."""

from __future__ import annotations

import json
import os
import re
import warnings
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal

from virtualzarr.archive.anomalies import Kind, as_kind
from virtualzarr.archive.axis import AxisFacts
from virtualzarr.archive.damage import find_damage
from virtualzarr.archive.facts import FileFacts, Properties
from virtualzarr.archive.garbage import collections
from virtualzarr.archive.row_facts import RowFacts
from virtualzarr.batches import Row
from virtualzarr.errors import (
    MissingDependencyError,
    OutOfMemoryError,
    SkippedVariableWarning,
    SourceChangedError,
    SourceError,
    SourceNotFoundError,
    UnsupportedError,
    VirtualZarrError,
)
from virtualzarr.hierarchy.group import Group
from virtualzarr.ingest.detect import detect
from virtualzarr.ingest.ledger import Ledger
from virtualzarr.ingest.noted_scans import NOTED_AT_ONCE, as_storable
from virtualzarr.ingest.scan_files import AT_ONCE, Item, count_skipped, scan_items
from virtualzarr.ingest.versions import Version, take_version, take_versions
from virtualzarr.stores.files import is_url
from virtualzarr.stores.location import Location
from virtualzarr.stores.uris import resolve_uri

_TRUNCATED = re.compile(r"truncated|cut off|the file ends at")
# A variable whose values would lie beyond the end of the file: formats without sums of lengths.
_CUT_VALUES = re.compile(r"the file ends at .*truncated", re.DOTALL)
_DAMAGED = re.compile("damaged|there is no object header")
_NO_PERMISSION = re.compile(r"permission denied|forbidden|\b40[13]\b", re.IGNORECASE)
_OF_A_SERVER = re.compile(r"\bthe (server|service) (answered|do)")
_FINAL: tuple[Kind, ...] = (
    "empty", "truncated", "not the format", "not supported", "damaged metadata",
)  # fmt: skip
# A short answer of a server is no truncated file.
_FINAL_REMOTE: tuple[Kind, ...] = ("empty", "not the format")
_MOST_TEXTS = 64


@dataclass(frozen=True)
class FileReport:
    """A file of an archive, and what came of its scan.

    Parameters
    ----------
    uri : str
    size : int, optional
    facts : FileFacts, optional
    error : (str, str), optional
        Kind and text, where there are no facts.
    damage : list of (str, str, str)
        Kind, text and variable of chunks that do not decode.
    """

    uri: str
    size: int | None
    facts: FileFacts | None
    error: tuple[Kind, str] | None = None
    damage: list[tuple[Kind, str, str]] = field(default_factory=list)


def take_inventory(
    files: Sequence[str],
    ledger: Ledger | None,
    options: Mapping[str, Any],
    parallel: Any = None,
    progress: bool | None = None,
    decode: int | Literal["all"] = 0,
    listed: Mapping[str, Version | None] | None = None,
) -> tuple[list[FileReport], int]:
    """Return a report of each file, and how many were not scanned, as the ledger had them.

    Versions that a listing says (`listed`) are not asked for.
    Chunks that are to be decoded are in each run: a ledger says nothing of them.
    """
    reports: list[FileReport | None] = [None] * len(files)
    versions = _take_versions(files, reports, listed, options.get("storage_options"))
    reporter = _Reporter(options, decode)
    nreused = 0
    notes = None if ledger is None else _Notes(ledger)
    if ledger is not None and notes is not None:
        with collections.put_off():
            nreused = _take_noted(files, versions, reports, ledger, notes, reporter)
    unscanned = [number for number, report in enumerate(reports) if report is None]
    with warnings.catch_warnings():
        # What is skipped is reported of each file and variable.
        warnings.simplefilter("ignore", SkippedVariableWarning)
        scans = scan_items(
            [files[k] for k in unscanned], parallel, progress, {**options, "on_error": "warn"},
            at_once=AT_ONCE if ledger is None else NOTED_AT_ONCE,
        )  # fmt: skip
        with closing(scans):
            for number, scanned in zip(unscanned, scans, strict=True):
                noted = versions[number]
                assert noted is not None
                report = reports[number] = reporter.report(files[number], noted, scanned.item)
                if notes is not None and scanned.is_alone and _is_final(report):
                    notes.note(report, noted, scanned.item)
    return [report for report in reports if report is not None], nreused


def _take_versions(
    files: Sequence[str],
    reports: list[FileReport | None],
    listed: Mapping[str, Version | None] | None,
    storage_options: Mapping[str, Any] | None,
) -> list[Version | None]:
    """Return versions of files, listed or asked for; report what cannot be read, or is empty."""
    versions: list[Version | None] = [None] * len(files)
    answers = listed or {}
    taken = iter(take_versions([f for f in files if answers.get(f) is None], storage_options))
    for number, file in enumerate(files):
        version = answers.get(file) or next(taken)
        if isinstance(version, VirtualZarrError):
            reports[number] = _report_error(file, None, version)
            continue
        versions[number] = version
        if version.size == 0:
            reports[number] = FileReport(file, 0, None, ("empty", "the file is empty"))
    return versions


def _take_noted(
    files: Sequence[str],
    versions: Sequence[Version | None],
    reports: list[FileReport | None],
    ledger: Ledger,
    notes: _Notes,
    reporter: _Reporter,
) -> int:
    """Put reports of files that the ledger has into their places; return how many."""
    uris = [resolve_uri(file) for file in files]
    entries = ledger.find(uris, versions)
    hashes = {entry.properties for entry in entries if entry and entry.properties}
    properties = ledger.load_properties(hashes)
    axes: dict[str, AxisFacts] = {}
    noted = 0
    for number, entry in enumerate(entries):
        version = versions[number]
        if entry is None or version is None or reports[number] is not None:
            continue
        size = version.size
        if entry.error is not None:
            kind, text = entry.error
            reports[number] = FileReport(files[number], size, None, (as_kind(kind), text))
        elif reporter.decode and (row := ledger.load(entry)):
            reports[number] = reporter.report(files[number], version, row, is_noted=True)
        elif reporter.decode:
            continue
        elif entry.facts is not None and entry.properties in properties:
            facts = FileFacts.from_json(properties[entry.properties], json.loads(entry.facts), axes)
            reports[number] = _report_facts(files[number], size, facts)
        elif row := ledger.load(entry):
            # Virtualized before, but not surveyed: facts are noted, too.
            report = reports[number] = reporter.report(files[number], version, row, is_noted=True)
            if _is_final(report):
                notes.note(report, version, row)
        noted += reports[number] is not None
    return noted


def _is_final(report: FileReport) -> bool:
    """Tell whether the same comes of the file again as long as it does not change."""
    if report.error is None:
        return True
    return report.error[0] in (_FINAL_REMOTE if is_url(report.uri) else _FINAL)


class _Notes:
    """Notes reports in a ledger."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        # Properties that files share, and their text.
        self._texts: dict[int, tuple[Properties, str]] = {}

    def note(self, report: FileReport, version: Version, item: Item) -> None:
        """Note the report of what was scanned."""
        uri = Location.of(report.uri).uri
        if report.facts is None:
            self._ledger.put(uri, version, error=report.error)
            return
        nskipped = count_skipped(item) if isinstance(item, Group) else 0
        self._ledger.put(
            uri, version, as_storable(item, uri), nskipped=nskipped,
            properties=self._dump(report.facts.properties),
            facts=json.dumps(report.facts.to_json()),
        )  # fmt: skip

    def _dump(self, properties: Properties) -> str:
        cached = self._texts.get(id(properties))
        if cached is None:
            while len(self._texts) >= _MOST_TEXTS:
                del self._texts[next(iter(self._texts))]
            cached = self._texts[id(properties)] = properties, json.dumps(properties)
        return cached[1]


class _Reporter:
    """Makes reports of scans, those of files that are alike by what differs."""

    def __init__(self, options: Mapping[str, Any], decode: int | Literal["all"]) -> None:
        self.decode = decode
        self._format = options.get("format")
        self._storage_options = options.get("storage_options")
        self._rows = RowFacts()

    def report(self, file: str, version: Version, item: Item, is_noted: bool = False) -> FileReport:
        """Return the facts of what was scanned, if the file is still as it was."""
        try:
            if isinstance(item, VirtualZarrError):
                raise item
            if isinstance(item, Row):
                facts = self._rows.of(item, partial(self._find_format, file), is_noted)
            else:
                facts = FileFacts.of(item, self._find_format(file))
            now = take_version(file, self._storage_options)
        except VirtualZarrError as error:
            return _report_error(file, version.size, error)
        if not now.is_same(version):
            changed: Kind = "changed during the scan"
            return FileReport(
                file, version.size, None, (changed, "it has another size or date now")
            )
        report = _report_facts(file, version.size, facts)
        if self.decode and report.facts is not None:
            group = item.group() if isinstance(item, Row) else item
            return replace(report, damage=list(find_damage(group, file, self.decode)))
        return report

    def _find_format(self, file: str) -> str:
        return self._format or detect(file, self._storage_options)


def _report_facts(file: str, size: int | None, facts: FileFacts) -> FileReport:
    """Return a report of a file that was scanned: truncated, if values of a variable were cut."""
    for path, properties in facts.properties.items():
        why = properties.get("skipped", "")
        if _CUT_VALUES.search(why):
            return FileReport(file, size, None, ("truncated", f"{path}: {why}"))
    return FileReport(file, size, facts)


def _report_error(file: str, size: int | None, error: VirtualZarrError) -> FileReport:
    return FileReport(file, size, None, (classify_error(file, size, error), error.message))


def classify_error(file: str, size: int | None, error: VirtualZarrError) -> Kind:
    """Return which kind of anomaly an error of a file is.

    Examples
    --------
    >>> classify_error("a.nc", 60, SourceError("it was cut off at byte 60 of 16042"))
    'truncated'
    """
    # What this machine lacks is no fault of the file, and must not be noted as one.
    if isinstance(error, MissingDependencyError | OutOfMemoryError):
        raise error
    if isinstance(error, SourceNotFoundError):
        return "dangling link" if os.path.islink(file) else "gone"
    if isinstance(error, SourceChangedError):
        return "changed during the scan"
    causes = (error, error.__cause__)
    if any(isinstance(one, PermissionError) for one in causes) or (
        isinstance(error, SourceError) and _NO_PERMISSION.search(error.message)
    ):
        return "no permission"
    # A library that was asked for what is damaged refuses it, too.
    if isinstance(error, UnsupportedError) and not _DAMAGED.search(error.message):
        return "not the format" if "are of no known format" in error.message else "not supported"
    if not isinstance(error, SourceError):
        return "damaged metadata"
    if _TRUNCATED.search(error.message):
        return "truncated"
    # An error of the system or of a server says nothing of the bytes.
    cause = error.__cause__
    is_system = isinstance(cause, OSError) or (
        is_url(file) and (cause is not None or _OF_A_SERVER.search(error.message) is not None)
    )
    return "unreachable" if is_system else "damaged metadata"
