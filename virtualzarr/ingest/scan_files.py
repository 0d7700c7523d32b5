"""Scans of many files, serial or parallel."""

from __future__ import annotations

import logging
import os
import threading
import time
import warnings
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from functools import partial
from hashlib import blake2b
from importlib import import_module
from itertools import chain, zip_longest
from typing import Any

from virtualzarr.array.executors import as_executor, name_deaths, open_executor
from virtualzarr.batches import Batch, Row, has_manifests, make_batches
from virtualzarr.combine.runs import Run
from virtualzarr.config import config, settings_for_workers
from virtualzarr.errors import (
    ExecutorError,
    SkippedVariableWarning,
    VirtualZarrError,
    count_warnings,
    warn_caller,
)
from virtualzarr.formats.other_files import count_other_files
from virtualzarr.hierarchy.group import Group
from virtualzarr.ingest.detect import scan
from virtualzarr.ingest.long_scans import scan_long
from virtualzarr.ingest.progress import show_progress
from virtualzarr.ingest.small_values import keep_small_values
from virtualzarr.ingest.template_cache import TemplateCache, uses_templates
from virtualzarr.stores.file_heads import iter_heads, keeps_pieces, use_heads
from virtualzarr.stores.files import Location, is_url, resolve_uri
from virtualzarr.stores.request_loop import SharedWork
from virtualzarr.stores.uris import is_web

_log = logging.getLogger(__name__)

AT_ONCE = 128
"""At most so many files are sent to other processes in one message."""

_READ_FROM = 8  # fewer files that are alike are not worth reading together
_REMOTE_AT_ONCE = 32  # remote files that are scanned together


def scan_files(
    files: Sequence[str], parallel: Any, progress: bool | None, **options: Any
) -> list[Group]:
    """Return the group of each file; parameters are those of `scan_each`."""
    groups = []
    # Closed also if a file is an error: a ledger is there for others then.
    with closing(scan_each(files, parallel, progress, **options)) as scanned:
        for group in scanned:
            if isinstance(group, VirtualZarrError):
                raise group
            groups.append(group)
    return groups


def scan_each(
    files: Sequence[str],
    parallel: Any,
    progress: bool | None,
    *,
    ledger: str | os.PathLike[str] | None = None,
    **options: Any,
) -> Generator[Group | VirtualZarrError]:
    """Yield the group of each file in order, or what is wrong with the file.

    Parameters are those of `scan_each_compact`.
    """
    with closing(scan_each_compact(files, parallel, progress, ledger=ledger, **options)) as items:
        yield from (item.group() if isinstance(item, Row) else item for item in items)


def scan_each_compact(
    files: Sequence[str],
    parallel: Any,
    progress: bool | None,
    *,
    ledger: str | os.PathLike[str] | None = None,
    reads_values: bool = False,
    listed: Mapping[str, Any] | None = None,
    **options: Any,
) -> Generator[Item]:
    """Yield each file in order: as a row, as a group if no row came of it, or what is wrong.

    Parameters
    ----------
    parallel : int, concurrent.futures.Executor or dask.distributed.Client or None
    ledger : path, optional
        What is in it is not scanned again, and what is scanned is noted.
    reads_values : bool
        Whether other processes read small coordinates, too, of files that are alike.
    listed : mapping, optional
        Versions of files by their names, as a listing says them: a ledger asks for no others.
    **options
        Of `virtualzarr.virtualize`.
    """
    if ledger is None:
        # Closed at once if the consumer ends early: heads of files in use would outlive the scan.
        scans = scan_items(files, parallel, progress, options, reads_values=reads_values)
        with closing(scans):
            yield from (one.item for one in scans)
        return
    # By its name: it is above this module, and most scans need no SQLite.
    noted = import_module("virtualzarr.ingest.noted_scans").scan_noted
    with closing(noted(files, ledger, parallel, progress, options, listed)) as items:
        yield from items


def scan_items(
    files: Sequence[str],
    parallel: Any,
    progress: bool | None,
    options: Mapping[str, Any],
    *,
    reads_values: bool = False,
    at_once: int = AT_ONCE,
) -> Generator[ScannedFile]:
    """Yield what came of each file in order; parameters are those of `scan_each_compact`.

    Other processes are given at most `at_once` files in one message.
    """
    started = time.perf_counter()
    with open_executor(parallel) as opened, show_progress(progress, len(files)) as bar:
        executor = as_executor(opened)
        if executor is None:
            scanned: Iterable[ScannedFile] = _scan_here(files, options, reads_values, at_once)
        else:
            scanned = _scan_parallel(files, executor, dict(options), reads_values, at_once)
        for one in scanned:
            bar.update(1)
            yield one
    _log.info("scanned %d files in %.1f s", len(files), time.perf_counter() - started)


Item = Row | Group | VirtualZarrError


@dataclass(frozen=True, slots=True)
class ScannedFile:
    """What came of a file.

    Parameters
    ----------
    item : Row, Group or VirtualZarrError
    is_alone : bool
        Whether nothing but the file decided what came of it, and all that was warned of are skipped
        variables: then the same comes of it as long as it does not change.
    """

    item: Item
    is_alone: bool


def _watch(items: Iterator[Item]) -> Generator[ScannedFile]:
    """Yield items, and whether nothing but the file decided what came of each."""
    while True:
        warned, others = count_warnings(), count_other_files()
        try:
            item = next(items)
        except StopIteration:
            return
        nskipped = count_skipped(item) if isinstance(item, Group) else 0
        is_alone = count_other_files() == others and count_warnings() - warned == nskipped
        yield ScannedFile(item, is_alone)


def count_skipped(group: Group) -> int:
    """Return how many variables a scan skipped.

    Examples
    --------
    >>> count_skipped(Group({}, skipped={"air": "it is no array"}))
    1
    """
    return len(group.skipped) + sum(
        count_skipped(node) for _, node in group.members(None) if isinstance(node, Group)
    )


def scan_rows(
    files: Sequence[str], options: Mapping[str, Any], cache: TemplateCache | None = None
) -> Iterator[Row | Group | VirtualZarrError]:
    """Yield what came of each file in order, as rows for batches, or what is wrong with the file.

    A group whose chunks are a store's own is no row, and stays what it is.

    Rows of files that are alike have one schema: `virtualzarr.batches.make_batches` puts them
    together.

    Parameters
    ----------
    options : mapping
        Of `virtualzarr.ingest.detect.scan`.
    cache : TemplateCache, optional
        Of files that were scanned before, with the same options and settings.
    """
    scanned: Iterable[Any] = (
        (cache or TemplateCache(options)).scan_each(files)
        if uses_templates(options)
        else map(partial(_scan_one, **options), files)
    )
    for one in scanned:
        yield Row.of(one) if isinstance(one, Group) and has_manifests(one) else one


def _scan_serial(files: Sequence[str], options: Mapping[str, Any]) -> Iterator[Item]:
    """Scan one file after the other, by templates where they are alike."""
    if len(files) < 2 or not uses_templates(options):
        return map(partial(_scan_one, **options), files)
    return TemplateCache(options).scan_each(files)


def _scan_here(
    files: Sequence[str], options: Mapping[str, Any], reads_values: bool, at_once: int
) -> Iterator[ScannedFile]:
    """Scan one file after the other; if that takes long and they are local, in own processes."""
    nremote = sum(is_url(resolve_uri(file)) for file in files)
    if nremote == len(files) > 1:
        locations = [Location.of(file, options.get("storage_options")) for file in files]
        yield from _scan_ahead(files, locations, options, reads_values)
    elif nremote:
        with use_heads({}):  # of a scan whose consumer this is: the file may be another one now
            yield from _watch(_scan_serial(files, options))
    else:
        yield from scan_long(
            files,
            lambda some: _watch(_scan_serial(some, options)),
            lambda some, workers: _scan_parallel(
                some, workers, dict(options), reads_values, at_once
            ),
        )


def _scan_ahead(
    files: Sequence[str],
    locations: Sequence[Location],
    options: Mapping[str, Any],
    reads_values: bool,
) -> Iterator[ScannedFile]:
    """Scan one remote file after the other, the heads of some requested before their turn."""
    cache, alike = TemplateCache(options), uses_templates(options)
    parts = [slice(k, k + _REMOTE_AT_ONCE) for k in range(0, len(files), _REMOTE_AT_ONCE)]
    with closing(iter_heads([locations[part] for part in parts])) as each_heads:
        for part, heads in zip(parts, each_heads, strict=True):
            some = files[part]
            with use_heads(heads):
                items = cache.scan_each(some) if alike else (_scan_one(f, **options) for f in some)
                scanned = [*_watch(items)]
                if keeps_pieces():
                    _keep_values([one.item for one in scanned], rows=not reads_values)
                # Whoever takes them asks for versions and values of the same bytes.
                yield from Packed.of(scanned, reads_values, least=1).items()


def _keep_values(items: Sequence[Item], rows: bool) -> None:
    """Keep small values for the join; of rows only where they are not read at once."""
    for item in items:
        group = item.group() if rows and isinstance(item, Row) else item
        if isinstance(group, Group):
            keep_small_values(group)


def _scan_parallel(
    files: Sequence[str],
    executor: Any,
    options: dict[str, Any],
    reads_values: bool,
    at_once: int,
) -> Iterator[ScannedFile]:
    """Scan some files at a time elsewhere: a message for each would cost as much as its scan.

    Their warnings are given here, and the settings of this process hold there.
    """
    # Few messages for few files, so that all workers have some; at most 128 files in each, so that
    # the last worker does not keep the others waiting.
    size = min(max(len(files) // config.tuning.scan_messages, 1), at_once)
    # Threads get no message: batches would only delay the first results.
    if isinstance(executor, ThreadPoolExecutor):
        size = 1
    settings, shared_work = settings_for_workers(), SharedWork()
    work = partial(shared_work.do, partial(
        _scan_batch, home=os.getpid(), settings=settings, options=options, reads_values=reads_values
    ))  # fmt: skip
    files = [name_for_workers(file) for file in files]
    batches = [files[k : k + size] for k in range(0, len(files), size)]
    with name_deaths(), shared_work:
        for some, answer in zip_longest(batches, executor.map(work, batches), fillvalue=()):
            packed, caught = _check_answer(answer, some)
            for message, category in caught:
                warn_caller(message, category)
            yield from packed if isinstance(packed, list) else packed.items()


def name_for_workers(file: str) -> str:
    """Return the name by which processes elsewhere know a file: their folder may be another one.

    Examples
    --------
    >>> name_for_workers("a.nc") == os.path.abspath("a.nc"), name_for_workers("s3://bucket/a.nc")
    (True, 's3://bucket/a.nc')
    """
    with suppress(VirtualZarrError):  # a worker says what is wrong with it
        name = resolve_uri(file)
        chain, link, last = name.rpartition("::")
        # A path at the end of a chain of protocols that fsspec knows.
        is_whole = not chain or os.path.isabs(name) or is_web(name)
        return name if is_whole else chain + link + resolve_uri(last)
    return file


Warnings = list[tuple[str, type[Warning]]]


def _hash_names(files: Sequence[str]) -> bytes:
    """Return what tells some files from others, to be sent with what came of them."""
    text = "\0".join(files).encode("utf-8", "surrogateescape")
    return blake2b(text, digest_size=16).digest()


def _check_answer(answer: Any, files: Sequence[str]) -> tuple[list[ScannedFile] | Packed, Warnings]:
    """Return what an executor gives for some files.

    Raises `ExecutorError` if it is for others: if the executor mixes up what it is given.
    """
    if not isinstance(answer, tuple) or answer[:1] != (_hash_names(files),):
        request = f"{len(files)} files from {files[0]}" if files else "files"
        raise ExecutorError(f"the executor gave something else than what came of {request}")
    _, packed, caught = answer
    return packed, caught


def _scan_batch(
    files: Sequence[str],
    home: int,
    settings: Mapping[str, Any],
    options: Mapping[str, Any],
    reads_values: bool,
) -> tuple[bytes, list[ScannedFile] | Packed, Warnings]:
    """Scan files in whatever process this is; return what the first one, `home`, is to warn of.

    The first of what is returned says of which files the rest is.
    """
    names = _hash_names(files)
    if os.getpid() == home:
        return names, list(_watch(_scan_serial(files, options))), []
    # A worker starts with default settings: limits that the user raised have to hold there, too.
    vars(config).update(settings)
    if threading.current_thread() is not threading.main_thread():
        # Only one thread of a process can listen to its warnings.
        scanned = list(_watch(_scan_serial(files, options)))
        warned = [skip_warnings(file, one.item) for file, one in zip(files, scanned, strict=True)]
        return names, scanned, [*chain.from_iterable(warned)]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        rows = scan_rows(files, options, _find_cache(options, settings))
        packed = Packed.of(list(_watch(rows)), reads_values)
    return names, packed, [(str(item.message), item.category) for item in caught]


@dataclass(frozen=True)
class Packed:
    """What came of some files, for another process: as batches, where they are alike.

    Parameters
    ----------
    count : int
        Files.
    batches : list
        Batches, and the number of the file of each row.
    others : dict
        Errors, and groups that are no rows, by number of the file.
    alone : frozenset of int
        Files of which nothing else decided what came of them.
    """

    count: int
    batches: list[tuple[Batch, list[int]]]
    others: dict[int, Group | VirtualZarrError]
    alone: frozenset[int]

    @classmethod
    def of(
        cls, scanned: Sequence[ScannedFile], reads_values: bool = False, least: int = _READ_FROM
    ) -> Packed:
        """Pack what was scanned, and values of small coordinates if these are to be read.

        They are not read of fewer than `least` files that are alike.
        """
        items = [one.item for one in scanned]
        numbers = [n for n, one in enumerate(items) if isinstance(one, Row)]
        rows = [one for one in items if isinstance(one, Row)]
        batches = [
            (batch, [numbers[number] for number in some]) for batch, some in make_batches(rows)
        ]
        if reads_values:
            batches = [
                (_read_values(batch) if len(some) >= least else batch, some)
                for batch, some in batches
            ]
        others = {n: one for n, one in enumerate(items) if not isinstance(one, Row)}
        alone = frozenset(n for n, one in enumerate(scanned) if one.is_alone)
        return cls(len(scanned), batches, others, alone)

    def items(self) -> Iterator[ScannedFile]:
        """Yield the row of each file in order, or its group, or what is wrong with the file."""
        places = {
            number: (batch, row)
            for batch, numbers in self.batches
            for row, number in enumerate(numbers)
        }
        for number in range(self.count):
            if number in self.others:
                item: Item = self.others[number]
            else:
                batch, row = places[number]
                item = batch.row(row)
            yield ScannedFile(item, number in self.alone)


def _read_values(batch: Batch) -> Batch:
    """Return a batch with the values of small coordinates, which joins ask for."""
    if batch.sources[0] is None:
        return batch
    values = Run(0, [batch.row(number) for number in range(len(batch))]).read_small()
    return replace(batch, values=values)


# Of the run that this process works for: templates of one message serve the next.
_caches: dict[str, TemplateCache] = {}


def _find_cache(options: Mapping[str, Any], settings: Mapping[str, Any]) -> TemplateCache:
    """Return the templates of files that were scanned with these options and settings."""
    key = repr((sorted(options.items()), sorted(settings.items())))
    if key not in _caches:
        _caches.clear()
        _caches[key] = TemplateCache(options)
    return _caches[key]


def skip_warnings(file: str, group: Item) -> Warnings:
    """Return what is warned of a file: the variables that its scan skipped."""
    skipped = group.skipped if isinstance(group, Group) else {}
    return [
        (f"could not be virtualized: {why} [file {file}, variable {path}]", SkippedVariableWarning)
        for path, why in skipped.items()
    ]


def _scan_one(file: str, **options: Any) -> Group | VirtualZarrError:
    """Scan one file; whatever goes wrong, the error names the file."""
    try:
        return scan(file, **options)
    except VirtualZarrError as error:
        return error.at(file=file)
    except Exception as error:
        error.add_note(f"while scanning {file}")
        raise
