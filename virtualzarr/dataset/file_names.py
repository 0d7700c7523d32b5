"""Names of source files: which ones have rows in a dataset.

A name is a hash of the URI with the ids of the rows that came from the file, and with the version
of the file that they came from, as far as that is known (`file_versions`). It counts as long as
one of those rows is there, so that nothing need be done when rows are dropped or replaced. Hashes
are as long as the digests by which objects are trusted: equal ones are taken for the same name.

Source: ``specs/dataset.md``, *Names of files*.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from hashlib import sha256
from typing import Any

import numpy as np
from numpy.typing import NDArray

from virtualzarr.dataset import objects
from virtualzarr.dataset.limits import Limits
from virtualzarr.dataset.named import Node
from virtualzarr.dataset.operations import Protocol
from virtualzarr.dataset.placing import Coordinates
from virtualzarr.dataset.row_search import find_ids
from virtualzarr.dataset.row_tables import encode_columns, read_runs, split_columns
from virtualzarr.dataset.runs import Runs
from virtualzarr.dataset.segment import name_source
from virtualzarr.dataset.snapshot import (
    FileNames,
    Names,
    Snapshot,
    as_names,
    as_tuples,
    hash_to_hex,
)
from virtualzarr.dataset.tables import Choice, Pack, Summaries, Table, choose_all
from virtualzarr.errors import UnsupportedError

_COLUMNS = np.dtype("V16"), np.dtype("<i8"), np.dtype("<i8")
_ALL_COLUMNS = (*_COLUMNS, np.dtype("V8"))

_WITH_VERSIONS = b"\x01"
"""Ends a leaf that has versions: those of before have none, and whole numbers of 8 bytes."""


RowsOfFile = tuple[int, int, str]
"""First id, count, and version of the file."""

NO_FILE = ""
"""The name of rows that came without a file: those that have no name at all stand for gaps."""

MAYBE = "?"
"""Before the name of a file of which rows without a file may be: those that came with it, and with
others, and refer to none of them."""


def hash_uri(uri: str) -> str:
    """Return the hash of a URI: half of SHA-256, hexadecimal.

    Examples
    --------
    >>> hash_uri("/data/1.nc")
    'dc94bdd5a57dc6e747972075b60115bf'
    """
    try:
        data = uri.encode()
    except UnicodeEncodeError as error:
        problem = "the name of the file is not UTF-8, which a dataset needs: rename the file"
        raise UnsupportedError(problem, file=ascii(uri)) from error
    return sha256(data).hexdigest()[:32]


class NameTable(Table[NDArray[Any]]):
    """Names by increasing hash; the summary has the first and last hash, and how many there are."""

    def encode(self, items: NDArray[Any]) -> bytes:
        """Return a leaf."""
        columns = [np.ascontiguousarray(items[name]) for name in items.dtype.names or ()]
        return encode_columns([*columns, np.frombuffer(_WITH_VERSIONS, "u1")])

    def decode(self, data: bytes) -> NDArray[Any]:
        """Return the items of a leaf."""
        raw = objects.decompress(data)
        has_versions = len(raw) % 8 == len(_WITH_VERSIONS) and raw.endswith(_WITH_VERSIONS)
        if has_versions:
            hashes, first, count, versions = split_columns(raw[:-1], _ALL_COLUMNS)
        else:
            hashes, first, count = split_columns(raw, _COLUMNS)
        items = np.zeros(len(first), as_names().dtype)
        items["hash"], items["first"], items["count"] = hashes.view("S16"), first, count
        if has_versions:
            items["version"] = versions.view("S8")
        return items

    def join(self, parts: Sequence[NDArray[Any]]) -> NDArray[Any]:
        """Return items of several leaves, one after the other."""
        return np.concatenate([as_names(), *parts])

    def summarize(self, items: NDArray[Any]) -> tuple[Any, ...]:
        """Return the summary of a leaf."""
        return hash_to_hex(items["hash"][0]), hash_to_hex(items["hash"][-1]), len(items)

    def combine(self, summaries: Summaries) -> tuple[Any, ...]:
        """Return the summary of a node with such children."""
        return summaries[0][0], summaries[-1][1], sum(summary[2] for summary in summaries)


NAMES = NameTable(1, 1)
"""For reading, which depends on no limits."""


def _as_hashes(names: Iterable[str]) -> NDArray[Any]:
    return np.array([bytes.fromhex(name) for name in names], "S16")


def at_hashes(hashes: NDArray[Any]) -> Choice:
    """Choose children that may have any of some hashes, which increase."""

    def choose(summaries: Summaries, start: int) -> tuple[Sequence[int], int]:
        low = hashes.searchsorted(_as_hashes(summary[0] for summary in summaries), "left")
        high = hashes.searchsorted(_as_hashes(summary[1] for summary in summaries), "right")
        return np.flatnonzero(low < high).tolist(), start

    return choose


def hash_names(uris: Iterable[str], folder: str, *prefixes: str) -> dict[str, str]:
    """Return the hashes that files may have in a dataset of a folder, with their URIs.

    Names are relative to the folder in datasets that move with their files. Both are after each of
    some prefixes, which are none by default.
    """
    return {
        hash_uri(f"{prefix}{name}"): f"{prefix}{uri}"
        for uri in uris
        for name in (uri, name_source(uri, folder))
        for prefix in prefixes or ("",)
    }


def read_names(
    state: Snapshot, dimension: str, uris: Iterable[str], folder: str = "", *prefixes: str
) -> Protocol[dict[str, list[RowsOfFile]]]:
    """Return ids of rows that came from some files, whether they are still there or not.

    Returns
    -------
    dict of str to list of (int, int, str)
        First ids, counts and versions, by URI after the prefix.
    """
    by_hash = hash_names(uris, folder, *prefixes)
    names = state.names.get(dimension)
    if names is None or not by_hash:
        return {}
    hashes = _as_hashes(sorted(by_hash))
    parts = [as_names(names.tail)]
    for root in names.tables:
        items, _ = yield from NAMES.scan(root, at_hashes(hashes))
        parts.append(items)
    hits = np.concatenate(parts)
    hits = hits[np.isin(hits["hash"], hashes)]
    rows: dict[str, list[RowsOfFile]] = {}
    for name, first, count, version in as_tuples(hits):
        rows.setdefault(by_hash[name], []).append((first, count, version))
    return rows


def find_files(
    state: Snapshot,
    dimension: str,
    uris: Iterable[str],
    folder: str = "",
    coordinates: Coordinates | None = None,
    *prefixes: str,
) -> Protocol[dict[str, list[RowsOfFile]]]:
    """Return which source files have rows along a dimension now.

    Parameters
    ----------
    coordinates : callable, optional
        See `find_ids`.

    Returns
    -------
    dict of str to list of (int, int, str)
        Ids among which those rows are, as first one and count, and their versions.
    """
    names = yield from read_names(state, dimension, uris, folder, *prefixes)
    every = [(first, count) for rows in names.values() for first, count, _ in rows]
    stretches = yield from find_ids(state, dimension, every, coordinates)
    live = iter(_are_live(every, stretches))
    live_names = {uri: [each for each in rows if next(live)] for uri, rows in names.items()}
    return {uri: rows for uri, rows in live_names.items() if rows}


def _are_live(
    pairs: Sequence[tuple[int, int]], stretches: Iterable[tuple[int, Runs]]
) -> list[bool]:
    """Tell of ids whether any of them is a row."""
    first, count = np.array(pairs, np.int64).reshape(-1, 2).T
    live = np.zeros(len(first), bool)
    for _, runs in stretches:
        live |= runs.count_ids(first, first + count) > 0
    return live.tolist()


def move_files(state: Snapshot, dimension: str, old: Runs, first: int) -> Protocol[Names]:
    """Return the files of rows that get ids which go on from one, as those of new rows.

    This reads the names of all files: where rows get other ids, many bytes are written anyway.
    """
    items = yield from _read_all(state, dimension)
    moved = []
    for name, low, count, version in as_tuples(items[is_live(items, old)]):
        # Rows of others that lie between them now are left out.
        start, stop = old.locate_ids(low, count)
        moved += [
            (name, first + at, n, version) for at, n in Runs(start, stop - start).join().pairs
        ]
    return as_names(dict.fromkeys(moved))


def find_shared(
    state: Snapshot,
    dimension: str,
    uris: Iterable[str],
    folder: str,
    pairs: Sequence[tuple[int, int]],
) -> Protocol[list[bool]]:
    """Tell of ranges of ids whether other files have ids in them, or may have."""
    items = yield from _read_all(state, dimension)
    hashes = [*hash_names(uris, folder, "", MAYBE), hash_uri(NO_FILE)]
    others = items[~np.isin(items["hash"], _as_hashes(hashes))]
    ends = others["first"] + others["count"]
    return [bool(((others["first"] < low + count) & (ends > low)).any()) for low, count in pairs]


def have_files(
    state: Snapshot, dimension: str, ids: NDArray[np.int64]
) -> Protocol[NDArray[np.bool_]]:
    """Tell which rows, by their ids, came with a file or without one, and stand for no gap."""
    items = yield from _read_all(state, dimension)
    begun = np.sort(items["first"]).searchsorted(ids, "right")
    ended = np.sort(items["first"] + items["count"]).searchsorted(ids, "right")
    return np.asarray(begun > ended)


def _read_all(state: Snapshot, dimension: str) -> Protocol[NDArray[Any]]:
    names = state.names.get(dimension, FileNames())
    parts = [as_names(names.tail)]
    for root in names.tables:
        parts.append((yield from NAMES.scan(root, choose_all))[0])
    return np.concatenate(parts)


def is_live(items: NDArray[Any], runs: Runs) -> NDArray[np.bool_]:
    """Tell of names whether any of their rows is there."""
    return np.asarray(runs.count_ids(items["first"], items["first"] + items["count"]) > 0)


def add_files(
    state: Snapshot, dimension: str, files: Names, pack: Pack, limits: Limits
) -> Protocol[tuple[FileNames, bool]]:
    """Return the names with more of them, and whether tables are others."""
    names = state.names.get(dimension, FileNames())
    # Not copied where there is nothing to add to: they may be those of a million files.
    new = np.concatenate([as_names(names.tail), files]) if names.tail else files
    if len(new) <= limits.names:
        return replace(names, tail=as_tuples(new)), False
    table = NameTable(limits.leaf_names, limits.fan_out)
    tables = list(names.tables)
    for start in range(0, len(new), limits.most_names):
        tables.append((yield from _write(table, new[start : start + limits.most_names], pack)))
    due = _find_due(tables, limits)
    if due is not None:
        low, high = due
        parts = []
        for root in tables[low:high]:
            items, _ = yield from NAMES.scan(root, choose_all, pack)
            parts.append(items)
        # What came from files whose rows are gone is left out here, so that names stay few where
        # a window of rows moves on.
        items = np.concatenate(parts)
        items = items[is_live_or_new(items, new, (yield from read_runs(state, dimension)))]
        merged = [(yield from _write(table, items, pack))] if len(items) else []
        tables[low:high] = merged
    return FileNames(tuple(tables)), True


def leave_out_gone(
    state: Snapshot, dimension: str, pack: Pack, limits: Limits
) -> Protocol[FileNames | None]:
    """Return the names that count, where more than a tenth of all do not; None elsewhere."""
    items = yield from _read_all(state, dimension)
    if not len(items):
        return None
    live = items[is_live(items, (yield from read_runs(state, dimension)))]
    if len(live) > len(items) - len(items) / 10:
        return None
    table = NameTable(limits.leaf_names, limits.fan_out)
    tables = []
    for start in range(0, len(live), limits.most_names):
        tables.append((yield from _write(table, live[start : start + limits.most_names], pack)))
    return FileNames(tuple(tables))


def is_live_or_new(items: NDArray[Any], new: NDArray[Any], runs: Runs) -> NDArray[np.bool_]:
    """Tell which names to keep: those with rows before a commit, or that come with it."""
    return is_live(items, runs) | np.isin(items["first"], new["first"])


def _write(table: NameTable, items: NDArray[Any], pack: Pack) -> Protocol[Node]:
    ordered = np.sort(items, order="hash", kind="stable")
    root = yield from table.edit(None, choose_all, lambda old, start: ordered, pack)
    assert root is not None
    return root


def _find_due(tables: Sequence[Node], limits: Limits) -> tuple[int, int] | None:
    """Return which tables to merge: the last ones of about the same length, if they are enough."""
    counts = [int(table.summary[2]) for table in tables]
    low = len(tables)
    total, largest = 0, 0
    due = None
    while low and total + counts[low - 1] <= limits.most_names:
        low -= 1
        total, largest = total + counts[low], max(largest, counts[low])
        # All of these together are worth it if they are ten times the largest of them.
        if total >= limits.names_fan_in * largest or (
            total > limits.most_names // 2 and largest <= total // 2
        ):
            due = low
    return None if due is None else (due, len(tables))
