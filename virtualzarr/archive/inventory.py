"""Inventory of an archive: every file, its version, and what came of its scan."""

from __future__ import annotations

import os
import re
import time
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from virtualzarr.archive.anomalies import Kind
from virtualzarr.archive.facts import FileFacts
from virtualzarr.archive.ledger import Ledger, Outcome, Version
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
from virtualzarr.ingest.detect import detect
from virtualzarr.ingest.scan_files import scan_each
from virtualzarr.stores.files import Fingerprint, is_url, take_fingerprint
from virtualzarr.stores.location import Location

WEAK_SECONDS = 2
"""A file that was modified so shortly before its scan may change without another time."""

_TRUNCATED = re.compile(r"truncated|cut off|the file ends at")
_NO_PERMISSION = re.compile(r"permission denied|forbidden|\b40[13]\b", re.IGNORECASE)
_FINAL: tuple[Kind, ...] = (
    "empty", "truncated", "not the format", "not supported", "damaged metadata",
)  # fmt: skip
# A short answer of a server is no truncated file.
_FINAL_REMOTE: tuple[Kind, ...] = ("empty", "not the format")


@dataclass(frozen=True)
class FileReport:
    """A file of an archive, and what came of its scan."""

    uri: str
    size: int | None
    outcome: Outcome


def take_inventory(
    files: Sequence[str],
    ledger: Ledger | None,
    options: Mapping[str, Any],
    parallel: Any = None,
    progress: bool | None = None,
) -> list[FileReport]:
    """Return a report of each file; those that the ledger has are not scanned."""
    reports: dict[int, FileReport] = {}
    versions: dict[int, Version] = {}
    storage_options = options.get("storage_options")
    for number, file in enumerate(files):
        try:
            fingerprint = take_fingerprint(Location.of(file, storage_options))
        except VirtualZarrError as error:
            reports[number] = FileReport(file, None, _as_outcome(file, None, error))
            continue
        version = versions[number] = _version_of(fingerprint)
        outcome = None if ledger is None else ledger.find(_uri_of(file), version)
        if outcome is None and version.size == 0:
            outcome = Outcome(None, ("empty", "the file is empty"))
        if outcome is not None:
            reports[number] = FileReport(file, version.size, outcome)
    unscanned = [number for number in range(len(files)) if number not in reports]
    with warnings.catch_warnings():
        # What is skipped is reported of each file and variable.
        warnings.simplefilter("ignore", SkippedVariableWarning)
        scans = scan_each(
            [files[k] for k in unscanned], parallel, progress, **{**options, "on_error": "warn"}
        )
        for number, scanned in zip(unscanned, scans, strict=True):
            file, version = files[number], versions[number]
            outcome = _look_at(file, version, scanned, options)
            reports[number] = FileReport(file, version.size, outcome)
            final = _FINAL_REMOTE if is_url(file) else _FINAL
            is_final = outcome.error is None or outcome.error[0] in final
            if ledger is not None and is_final:
                ledger.put(_uri_of(file), version, outcome)
    return [reports[number] for number in range(len(files))]


def _uri_of(file: str) -> str:
    return Location.of(file).uri


def _version_of(fingerprint: Fingerprint) -> Version:
    if fingerprint.etag is not None:
        return Version(fingerprint.size, f"etag {fingerprint.etag}")
    modified = fingerprint.mtime_ns
    age = None if modified is None else time.time_ns() - modified
    return Version(
        fingerprint.size, f"modified {modified}", age is None or age < WEAK_SECONDS * 10**9
    )


def _look_at(file: str, version: Version, scanned: Any, options: Mapping[str, Any]) -> Outcome:
    """Return the facts of what was scanned, if the file is still as it was."""
    try:
        if isinstance(scanned, VirtualZarrError):
            raise scanned
        format = options.get("format") or detect(file, options.get("storage_options"))
        facts = FileFacts.of(scanned, format)
        location = Location.of(file, options.get("storage_options"))
        now = _version_of(take_fingerprint(location))
    except VirtualZarrError as error:
        return _as_outcome(file, version.size, error)
    if (now.size, now.tag) != (version.size, version.tag):
        return Outcome(None, ("changed during the scan", "it has another size or date now"))
    return Outcome(facts)


def _as_outcome(file: str, size: int | None, error: VirtualZarrError) -> Outcome:
    return Outcome(None, (classify_error(file, size, error), error.message))


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
    if isinstance(error, UnsupportedError):
        return "not the format" if "are of no known format" in error.message else "not supported"
    if not isinstance(error, SourceError):
        return "damaged metadata"
    if _TRUNCATED.search(error.message):
        return "truncated"
    # An error of the system or of a server says nothing of the bytes.
    cause = error.__cause__
    is_system = isinstance(cause, OSError) or (is_url(file) and cause is not None)
    return "unreachable" if is_system else "damaged metadata"
