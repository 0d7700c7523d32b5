"""Scans with a ledger: what is noted there is not scanned again, and what is scanned is noted."""

from __future__ import annotations

import os
from collections.abc import Generator, Mapping, Sequence
from contextlib import closing
from typing import Any

from virtualzarr.batches import Row, has_manifests
from virtualzarr.errors import VirtualZarrError, warn_caller
from virtualzarr.hierarchy.group import Group
from virtualzarr.ingest.ledger import Ledger, scan_options
from virtualzarr.ingest.scan_files import Item, count_skipped, scan_items, skip_warnings
from virtualzarr.ingest.versions import Version, take_version, take_versions
from virtualzarr.stores.location import Location

NOTED_AT_ONCE = 8
"""Files that other processes scan in one message where a ledger notes them.

Four of these are under way or wait with two processes: with the transaction of the ledger, they are
what a kill loses.
"""


def scan_noted(
    files: Sequence[str],
    path: str | os.PathLike[str],
    parallel: Any,
    progress: bool | None,
    options: Mapping[str, Any],
    listed: Mapping[str, Version | None] | None = None,
) -> Generator[Item]:
    """Yield what came of each file in order; parameters are those of `scan_each`.

    Versions that a listing says (`listed`) are not asked for.

    Errors are not taken from a ledger, nor are variables that were skipped, unless this scan skips
    them, too: such files are scanned again, and say what is wrong in the same words.
    """
    storage_options = options.get("storage_options")
    noted = scan_options(options.get("format"), options.get("allowed"), storage_options)
    with Ledger(path, noted, storage_options) as ledger:
        uris = [Location.of(file).uri for file in files]
        answers = listed or {}
        unlisted = [file for file in files if answers.get(file) is None]
        fresh = iter(take_versions(unlisted, storage_options))
        taken = [answers.get(file) or next(fresh) for file in files]
        # Whatever is wrong with a file, its scan says it.
        versions = [None if isinstance(one, VirtualZarrError) else one for one in taken]
        entries = ledger.find(uris, versions)
        skips = options.get("on_error") == "warn"
        # Scanned are those that are not noted: which these are has to be known before the first.
        usable = [
            entry is not None and entry.batch is not None and (skips or not entry.nskipped)
            for entry in entries
        ]
        unscanned = [number for number, is_usable in enumerate(usable) if not is_usable]
        scans = scan_items(
            [files[n] for n in unscanned], parallel, progress, options, at_once=NOTED_AT_ONCE
        )
        with closing(scans):
            for number, entry in enumerate(entries):
                if entry is not None and usable[number]:
                    yield _replay(files[number], ledger.load(entry), options)
                    continue
                scanned = next(scans)
                if scanned.is_alone:
                    _note(ledger, files[number], versions[number], scanned.item, options)
                yield scanned.item


def _try_version(file: str, storage_options: Mapping[str, Any] | None) -> Version | None:
    try:
        return take_version(file, storage_options)
    except VirtualZarrError:
        return None  # whatever is wrong, the scan says it


def _replay(file: str, row: Row | None, options: Mapping[str, Any]) -> Item:
    """Return what was noted of a file, or what comes of its scan if the ledger is damaged there."""
    if row is None:
        return next(scan_items([file], None, False, options)).item
    for message, category in skip_warnings(file, row.group()) if row.source is None else ():
        warn_caller(message, category)
    return row


def _note(
    ledger: Ledger, file: str, version: Version | None, item: Item, options: Mapping[str, Any]
) -> None:
    """Note a scan, if the file is still of the version that it was of before."""
    row = as_storable(item, Location.of(file).uri)
    now = _try_version(file, options.get("storage_options"))
    if row is not None and version is not None and now is not None and now.is_same(version):
        nskipped = count_skipped(item) if isinstance(item, Group) else 0
        ledger.put(Location.of(file).uri, version, row, nskipped=nskipped)


def as_storable(item: Item, uri: str) -> Row | None:
    """Return a scan as a row that a ledger can hold; None if nothing but a scan makes it."""
    if isinstance(item, Row):
        return item
    if not isinstance(item, Group) or not has_manifests(item):
        return None
    row = Row.of(item)
    # References into other files hold as long as those do not change, of which no ledger knows.
    return row if row.schema.list_uris() <= {uri} else None
