"""Survey of an archive: what is in many files, where they change, and what is odd."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from hashlib import blake2b, file_digest
from typing import Any, Literal

from virtualzarr.archive.anomalies import Anomaly
from virtualzarr.archive.axis_checks import check_axis, check_names
from virtualzarr.archive.classes import Classes
from virtualzarr.archive.eras import Era, find_eras
from virtualzarr.archive.garbage import collections
from virtualzarr.archive.inventory import FileReport, take_inventory
from virtualzarr.archive.moments import format_position
from virtualzarr.archive.order import Axes, choose_dim, find_axis, has_dimension, sort_files
from virtualzarr.archive.strands import find_strands
from virtualzarr.formats.registry import get_format
from virtualzarr.ingest.find_files import Paths, find_files, natural_key
from virtualzarr.ingest.ledger import Ledger, scan_options
from virtualzarr.keywords import strict_keywords
from virtualzarr.redaction import escape_unprintable, hide_in_json, hide_secrets, strip_secrets
from virtualzarr.stores.files import is_url

_END = 1 << 16


@dataclass(frozen=True, repr=False)
class Survey:
    """What is in an archive.

    Parameters
    ----------
    files, nbytes : int
        How many there are, and their bytes.
    formats : dict
        Files of each format that were scanned.
    dim : str or None
        The dimension along which files follow; None if they were taken in the order of their names.
    reused : int
        Files that were not scanned, as the ledger had them.
    eras : tuple of Era
        Runs of files that are alike, in the order of their coordinates.
    anomalies : tuple of Anomaly
        What is odd.
    listing : str
        A digest of the names and sizes of all files.
    strands : dict
        The files that were scanned, in order, but for copies; of each of the satellites, tiles or
        products that take turns, if there are several.
    options : dict
        What else decides on what is found, if it was given: `format`, `decode`, and the `assets`
        of a listing.
    """

    files: int
    nbytes: int
    formats: dict[str, int]
    dim: str | None
    reused: int
    eras: tuple[Era, ...]
    anomalies: tuple[Anomaly, ...]
    listing: str = ""
    strands: dict[str, tuple[str, ...]] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Return the survey as JSON has it, without the logins and signatures of URLs."""
        # Files in order are those of the listing that are in no anomaly: a million names.
        document = asdict(replace(self, strands={}))
        del document["strands"]
        hidden: dict[str, Any] = hide_in_json(document)
        return hidden

    def __repr__(self) -> str:
        """Say it in sentences."""
        formats = ", ".join(f"{count:,} {name}" for name, count in sorted(self.formats.items()))
        lines = [f"{self.files:,} files, {self.nbytes:,} bytes ({formats or 'none was scanned'})"]
        if self.dim is not None:
            lines.append(f"along {self.dim}")
        if self.reused:
            lines.append(f"{self.reused:,} taken from the ledger")
        for number, era in enumerate(self.eras, 1):
            strand = f" of {era.strand}" if era.strand else ""
            span = f" ({era.start} to {era.stop})" if era.start else ""
            files = f"{era.files:,} files{strand}, {era.first} to {era.last}"
            lines.append(f"era {number}: {files}{span}")
            lines += [f"  {change}" for change in era.changes]
        single = [anomaly for anomaly in self.anomalies if anomaly.era is None]
        counts = sorted(Counter(anomaly.kind for anomaly in single).items())
        words = [f"{count:,} {kind}" for kind, count in counts] or ["none of single files"]
        if nchanges := len(self.anomalies) - len(single):
            words.append(f"{nchanges:,} where eras begin")
        lines.append(f"anomalies: {', '.join(words) if self.anomalies else 'none'}")
        lines += [f"  {anomaly}" for anomaly in single]
        return hide_secrets("\n".join(map(escape_unprintable, lines)))


@strict_keywords()
def survey(
    paths: Paths,
    dim: str | None = None,
    *,
    decode: int | Literal["all"] = 0,
    ledger: str | os.PathLike[str] | None = None,
    format: str | None = None,
    storage_options: Mapping[str, Any] | None = None,
    allowed: str | Iterable[str] | None = None,
    parallel: Any = None,
    progress: bool | None = None,
) -> Survey:
    """Tell what is in an archive, without joining it: eras of alike files, and what is odd.

    Parameters
    ----------
    paths : path, URL, or several of them
        Each may be a pattern with ``*``; or a `Listing`, see `virtualzarr.read_listing`.
    dim : str, optional
        The dimension along which files follow; by default that of a time, or else of a coordinate,
        which differs between files.
    decode : int or "all"
        How many chunks of each variable of each file are read and decoded, or all. By default none
        is: damaged chunks are not seen then.
    ledger : path, optional
        A file that says what was scanned; it is created if there is none. Files that have not
        changed since are not scanned again, and a run that was ended goes on. `virtualize` and
        appends share it.
    format, storage_options, allowed, parallel, progress
        As in `virtualzarr.virtualize`.

    Returns
    -------
    Survey

    Raises
    ------
    SourceError
        A pattern finds no file. What is wrong with single files is an anomaly.
    LedgerError
        The ledger cannot be used.
    UnsupportedError
        No format is called so.

    Examples
    --------
    >>> survey("archive/air-*.nc", ledger="air.ledger")  # doctest: +SKIP
    """
    files = list(dict.fromkeys(find_files(paths, storage_options)))
    if decode != "all" and (isinstance(decode, bool) or decode < 0):
        raise ValueError(f'decode is a number of chunks, or "all", not {decode!r}')
    if format is not None:
        get_format(format)
    scan = {"format": format, "storage_options": storage_options, "allowed": allowed}
    options = {"scan": scan, "decode": decode, "listed": getattr(paths, "versions", None)}
    arguments = {"format": format, "decode": decode, "assets": getattr(paths, "assets", None)}
    arguments = {name: value for name, value in arguments.items() if value}
    if ledger is None:
        report = _survey(files, dim, None, options, parallel, progress)
        return replace(report, options=arguments)
    noted = scan_options(format, allowed, storage_options)
    with Ledger(ledger, noted, storage_options) as opened:
        report = _survey(files, dim, opened, options, parallel, progress)
    return replace(report, options=arguments)


def _survey(
    files: Sequence[str],
    dim: str | None,
    ledger: Ledger | None,
    options: Mapping[str, Any],
    parallel: Any,
    progress: bool | None,
) -> Survey:
    reports, nreused = take_inventory(
        files,
        ledger,
        options["scan"],
        parallel,
        progress,
        decode=options["decode"],
        listed=options["listed"],
    )
    with collections.put_off():
        return _compare(files, reports, nreused, dim)


def _compare(
    files: Sequence[str], reports: list[FileReport], nreused: int, dim: str | None
) -> Survey:
    """Return what reports of files say of the archive."""
    reports.sort(key=lambda report: natural_key(report.uri))
    scanned = [report for report in reports if report.facts is not None]
    anomalies = _collect_errors(reports)
    facts = [report.facts for report in scanned if report.facts is not None]
    if dim is None:
        dim = choose_dim(facts)
    elif facts and not any(has_dimension(one, dim) for one in facts):
        raise ValueError(f"dim: no file has a dimension or coordinate {dim!r}")
    pairs = [find_axis(one, dim) for one in facts]
    path = next((path for path, _ in pairs if path), "")
    axes = [axis for _, axis in pairs]
    # Copies of a file have its coordinates: they are told once, and left out of what follows.
    copies = _find_copies(scanned)
    anomalies += [Anomaly("same content twice", names) for names in copies]
    again = {name for names in copies for name in names[1:]}
    order = [k for k in sort_files(axes) if scanned[k].uri not in again]
    names, axes = [scanned[k].uri for k in order], [axes[k] for k in order]
    sizes = [scanned[k].size or 0 for k in order]
    classes = Classes([facts[k] for k in order], dim)
    for change, count in classes.varying:
        words = f"{change.name}: {count:,} different ones in {len(names):,} files"
        anomalies.append(Anomaly(change.kind, tuple(names), change.variable, words))
    strands: dict[str, list[int]] = {}
    for k, strand in enumerate(find_strands(names, classes.codes, axes)):
        strands.setdefault(strand, []).append(k)
    eras, odd = _compare_strands(strands, names, axes, sizes, classes, path)
    anomalies += odd
    return Survey(
        len(files), sum(report.size or 0 for report in reports),
        dict(Counter(one.format for one in facts)), dim if path else None,
        nreused, tuple(eras), tuple(anomalies), _digest_listing(reports),
        {strand: tuple(names[k] for k in some) for strand, some in sorted(strands.items())},
    )  # fmt: skip


def _compare_strands(
    strands: Mapping[str, Sequence[int]],
    names: Sequence[str],
    axes: Axes,
    sizes: Sequence[int],
    classes: Classes,
    path: str,
) -> tuple[list[Era], list[Anomaly]]:
    """Return the eras of files in order, each strand's by itself, and what is odd in them."""
    eras: list[Era] = []
    anomalies: list[Anomaly] = []
    for strand, members in sorted(strands.items()):
        some, ends = [names[k] for k in members], [axes[k] for k in members]
        if path:
            anomalies += _check_coordinates(some, ends, path)
        codes = [classes.codes[k] for k in members]
        rows = [-1 if axis is None else axis.n for axis in ends]
        additions, insides, changes = find_eras(some, codes, rows, classes, len(eras) + 1)
        for era, inside in zip(additions, insides, strict=True):
            nbytes = sum(sizes[members[k]] for k in inside)
            start, stop = _find_ends([ends[k] for k in inside])
            eras.append(replace(era, start=start, stop=stop, strand=strand, nbytes=nbytes))
        anomalies += changes
    return eras, anomalies


def _check_coordinates(names: Sequence[str], axes: Axes, path: str) -> list[Anomaly]:
    odd = check_axis(names, axes, path)
    twice = {name for each in odd if each.kind == "replaced" for name in each.files[1:]}
    single = [k for k, name in enumerate(names) if name not in twice]
    return odd + check_names([names[k] for k in single], [axes[k] for k in single], path)


def _digest_listing(reports: Sequence[FileReport]) -> str:
    digest = blake2b(digest_size=16)
    for report in reports:
        line = f"{strip_secrets(report.uri)}\0{report.size}\n"
        digest.update(line.encode(errors="surrogateescape"))
    return f"blake2b:{digest.hexdigest()}"


def _find_ends(axes: Axes) -> tuple[str, str]:
    """Return the first and the last coordinate of files, as text."""
    placed = [axis for axis in axes if axis is not None and axis.low is not None]
    if not placed:
        return "", ""
    last = max(axis.high for axis in placed if axis.high is not None)
    calendar = placed[0].calendar
    return format_position(placed[0].low, calendar), format_position(last, calendar)


def _collect_errors(reports: Sequence[FileReport]) -> list[Anomaly]:
    errors: dict[tuple[Any, str, str], list[str]] = {}
    for report in reports:
        for error in ([] if report.error is None else [(*report.error, "")]) + report.damage:
            errors.setdefault(error, []).append(report.uri)
    return [Anomaly(kind, tuple(names), variable, text)
            for (kind, text, variable), names in errors.items()]  # fmt: skip


def _find_copies(scanned: Sequence[FileReport]) -> list[tuple[str, ...]]:
    """Return local files with the same bytes; only those whose metadata are the same are read."""
    alike: dict[tuple[Any, ...], list[str]] = {}
    for report in scanned:
        facts = report.facts
        if facts is not None and not is_url(report.uri):
            coordinates = tuple(axis.digest for axis in facts.axes.values())
            alike.setdefault((report.size, facts.places, coordinates), []).append(report.uri)
    copies = []
    for names in alike.values():
        if len(names) > 1:
            copies += _group_by_bytes([name for name in names if os.path.isfile(name)])
    return copies


def _group_by_bytes(names: Sequence[str]) -> list[tuple[str, ...]]:
    ends: dict[tuple[int, int], list[str]] = {}
    for name in names:
        ends.setdefault(_hash_ends(name), []).append(name)
    by_digest: dict[bytes, list[str]] = {}
    for some in ends.values():
        if len(some) > 1:
            for name in some:
                by_digest.setdefault(_digest_bytes(name), []).append(name)
    return [tuple(some) for some in by_digest.values() if len(some) > 1]


def _hash_ends(name: str) -> tuple[int, int]:
    """Return the size of a file, and a hash of its first bytes and its last, or of all."""
    with open(name, "rb", buffering=0) as file:
        size = os.fstat(file.fileno()).st_size
        if size <= 2 * _END:
            return size, hash(file.read())
        start = file.read(_END)
        file.seek(size - _END)
        return size, hash(start + file.read())


def _digest_bytes(name: str) -> bytes:
    with open(name, "rb") as file:
        return file_digest(file, partial(blake2b, digest_size=16)).digest()
