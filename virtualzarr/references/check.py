"""Check of source files: missing, changed, or as they were when they were scanned.

Deep checks compare the digests of source files that were noted, and decode all chunks.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from virtualzarr.array import Array
from virtualzarr.array.chunk_source import open_source
from virtualzarr.errors import SourceError, SourceNotFoundError, UnsupportedError, VirtualZarrError
from virtualzarr.hierarchy.group import Group
from virtualzarr.hierarchy.inventory import list_arrays, list_sources
from virtualzarr.ingest.open_target import open as open_node
from virtualzarr.keywords import strict_keywords
from virtualzarr.manifest import Source
from virtualzarr.redaction import hide_secrets
from virtualzarr.stores.digests import is_comparable_digest, require_size, sample_digest
from virtualzarr.stores.files import take_fingerprint
from virtualzarr.stores.fingerprints import differences, is_comparable

CHECKERS = 16
"""Threads that look at source files: they wait more than they work."""


@dataclass(frozen=True)
class CheckReport:
    """How the source files are.

    Attributes
    ----------
    ok, missing, unknown : tuple of str
        URLs and paths. Of the unknown nothing was noted when they were scanned, or nothing can be
        found out now that could be compared.
    changed : dict of str to str
        What has changed, by URL or path.
    unreachable : dict of str to str
        Why nothing could be found out now of some of the unknown.
    """

    ok: tuple[str, ...]
    changed: Mapping[str, str]
    missing: tuple[str, ...]
    unknown: tuple[str, ...]
    unreachable: Mapping[str, str] = field(default_factory=dict)

    @property
    def good(self) -> bool:
        """Whether no file is known to be missing or changed."""
        return not self.changed and not self.missing

    def __repr__(self) -> str:
        return self.text()

    def text(self) -> str:
        """Return the counts, and what is wrong, line by line."""
        counts = {
            "ok": self.ok, "changed": self.changed, "missing": self.missing,
            "unknown": self.unknown,
        }  # fmt: skip
        lines = [", ".join(f"{len(files):,} {name}" for name, files in counts.items())]
        lines += [f"  changed: {uri}: {why}" for uri, why in self.changed.items()]
        lines += [f"  missing: {uri}" for uri in self.missing]
        lines += [f"  unreachable: {uri}: {why}" for uri, why in self.unreachable.items()]
        return hide_secrets("\n".join(lines))


@strict_keywords()
def check_references(
    target: Any,
    *,
    storage_options: Mapping[str, Any] | None = None,
    allowed: str | Iterable[str] | None = None,
    deep: bool = False,
) -> CheckReport:
    """Find out whether source files are as they were when they were scanned.

    Parameters
    ----------
    target : path, str, Group or Array
        References, or an opened hierarchy.
    storage_options, allowed
        As for `open`.
    deep : bool
        Whether bytes are read, too. Digests of samples are compared where the references have
        them (``publish(..., digests=True)``), and every chunk is decoded, so that files of which a
        chunk is cut off, is no longer where it was, or fails the checksum that it is stored with,
        count as changed. Other numbers in chunks that decode are found by digests only, and only
        in bytes that were sampled.

    Examples
    --------
    >>> check_references("air.json").good  # doctest: +SKIP
    True
    """
    node = target
    if not isinstance(target, (Group, Array)):
        node = open_node(target, storage_options=storage_options, allowed=allowed)
    sources = list_sources(node)
    # One request a file, side by side; a check of thousands of objects waits for the network
    # only.
    with ThreadPoolExecutor(CHECKERS) as pool:
        states = list(pool.map(partial(_check_source, deep=deep), sources))
    by_state: dict[str, list[str]] = {"ok": [], "missing": [], "unknown": []}
    changed = {}
    for source, (state, why) in zip(sources, states, strict=True):
        if state == "changed":
            changed[source.uri] = why
        else:
            by_state[state].append(source.uri)
    for file, why in (find_undecodable(node) if deep else {}).items():
        changed.setdefault(file, why)
    by_state = {state: [u for u in uris if u not in changed] for state, uris in by_state.items()}
    reasons = {source.uri: why for source, (state, why) in zip(sources, states, strict=True)
               if state == "unknown" and why and source.uri not in changed}  # fmt: skip
    ok, missing, unknown = (tuple(by_state[state]) for state in ("ok", "missing", "unknown"))
    return CheckReport(ok, changed, missing, unknown, reasons)


def _check_source(source: Source, deep: bool) -> tuple[str, str]:
    try:
        now = take_fingerprint(source.location)
        # The digest is read only where size, date and tag show nothing: it costs a few reads of
        # each file.
        changes = differences(source.fingerprint, now) or (compare_digest(source) if deep else "")
    except SourceNotFoundError:
        return "missing", ""
    except (SourceError, UnsupportedError) as error:
        return "unknown", error.message
    then = source.fingerprint
    if changes:
        return "changed", changes
    # That nothing differs says something only if there was something to compare.
    comparable = is_comparable(then, now) or None not in (then.size, now.size)
    comparable = comparable or (
        deep and source.digest is not None and is_comparable_digest(source.digest)
    )
    return ("ok" if comparable and not (then.is_empty and source.digest is None) else "unknown"), ""


READ_BYTES = 64 * 1024 * 1024
"""About so much of an array is read at once."""

Box = tuple[tuple[int, int], ...]


def compare_digest(source: Source) -> str:
    """Return what of a file differs from the digest that was noted; "" if nothing does."""
    if source.digest is None or not is_comparable_digest(source.digest):
        return ""
    size = require_size(take_fingerprint(source.location).size, source.uri)
    if sample_digest(open_source(source), size) == source.digest:
        return ""
    return "its bytes are others, though size and date are the same"


def find_undecodable(node: Group | Array) -> dict[str, str]:
    """Return what is wrong with files of which a chunk cannot be read, the first such of each."""
    failures: dict[str, str] = {}
    for path, array in list_arrays(node).items():
        all_cells = tuple((0, count) for count in array.grid.grid_shape)
        if array.is_virtual and 0 not in array.shape:
            for error in _failures(array, all_cells):
                if not isinstance(error, SourceNotFoundError):
                    failures.setdefault(error.at(variable=path).file or path, str(error))
    return failures


def _failures(array: Array, box: Box) -> Iterator[VirtualZarrError]:
    """Read the cells of a box; where that fails, its halves, down to single cells."""
    axis = max(range(len(box)), key=lambda i: box[i][1] - box[i][0], default=0)
    cells = math.prod(stop - start for start, stop in box)
    # Halved until what fails is one chunk: reading all chunks one by one would cost a decode call
    # and a request each.
    if cells == 1 or _nbytes(array, box) <= READ_BYTES:
        try:
            array[_region(array, box)]
            return
        except VirtualZarrError as error:
            if cells == 1:
                yield error
                return
    start, stop = box[axis]
    for half in ((start, (start + stop) // 2), ((start + stop) // 2, stop)):
        yield from _failures(array, (*box[:axis], half, *box[axis + 1 :]))


def _region(array: Array, box: Box) -> tuple[slice, ...]:
    """Return the elements of a box of cells."""
    if not box:
        return ()
    first = array.grid.cell_origin(tuple(start for start, _ in box))
    last = tuple(stop - 1 for _, stop in box)
    ends = zip(array.grid.cell_origin(last), array.grid.cell_shape(last), array.shape, strict=True)
    stops = (min(origin + length, extent) for origin, length, extent in ends)
    return tuple(map(slice, first, stops))


def _nbytes(array: Array, box: Box) -> int:
    return math.prod(s.stop - s.start for s in _region(array, box)) * array.dtype.itemsize
