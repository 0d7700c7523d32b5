"""Writer of Icechunk repositories: references set in one session, committed whole or not at all."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote

import numpy as np
import numpy.typing as npt

from virtualzarr.array.chunk_source import open_source
from virtualzarr.errors import PublishError, VirtualZarrError
from virtualzarr.manifest import Manifest, References, Source, Sources
from virtualzarr.metadata import dumps_json, loads_json
from virtualzarr.references.array_plan import ArrayPlan
from virtualzarr.references.icechunk import bindings
from virtualzarr.references.materialize import encode_chunks
from virtualzarr.references.plan import Plan
from virtualzarr.references.portable import KEYS
from virtualzarr.references.report import Counts
from virtualzarr.references.several_writers import LostRaceError
from virtualzarr.references.write_plan import WriteTask
from virtualzarr.stores.files import is_url, take_fingerprint
from virtualzarr.stores.location import Location

_FOLDERS = 16
Ints = npt.NDArray[np.int64]


def write_icechunk(
    task: WriteTask,
    *,
    keep: Mapping[str, tuple[int, ...]] | None = None,
    expected: object = None,
    commit: str = "",
) -> tuple[int, int, list[str]]:
    """Commit references, and chunks that are copied or inline, to the main branch.

    Raises `LostRaceError` if somebody else has committed meanwhile.

    Parameters
    ----------
    keep : mapping of tuple of int by path, optional
        How many cells along each axis stay as they are; if not given, all is replaced.
    expected : str, optional
        The snapshot that the branch must end with, as the new one is made from it.
    commit : str
        An id that no other commit has, by which it is found in the history.

    Returns
    -------
    nbytes, copied_bytes : int
        Bytes of metadata and chunks that were stored; those of copied chunks among them.
    notes : list of str
    """
    uri = task.location.uri
    prefixes = list_prefixes(task.plan, uri)
    repository = _repository(task.location, prefixes)
    branch = bindings.branch_of(task.location)
    if branch not in repository.list_branches():
        repository.create_branch(branch, repository.lookup_branch(bindings.BRANCH))
    session = repository.writable_session(branch)
    if expected is not None and session.snapshot_id != expected:
        raise _conflict(uri)
    if keep is None:
        bindings.clear(session.store)
    nbytes, copied = set_references(task, session.store, keep)
    if session.has_uncommitted_changes:  # What has no chunks adds none.
        try:
            message = "virtualzarr: append" if keep else "virtualzarr: publish"
            session.commit(message, {bindings.COMMIT: commit, bindings.RECEIPT: task.receipt})
        except bindings.icechunk().ConflictError as error:
            # A request that is sent again finds its own success in its way.
            if not bindings.has_commit(repository, branch, commit):
                raise _conflict(uri) from error
    notes = []
    if prefixes:
        names = ", ".join(repr(prefix) for prefix in prefixes)
        notes.append(f"who opens the repository must authorize virtual chunks below {names}")
    return nbytes, copied, notes


def set_references(
    task: WriteTask, store: Any, keep: Mapping[str, tuple[int, ...]] | None = None
) -> tuple[int, int]:
    """Set metadata, references and chunks in the store of a session.

    Returns
    -------
    nbytes, copied_bytes : int
    """
    plan, counts = task.plan, task.counts
    nbytes = bindings.put(store, _without_consolidated(task.documents))
    copied = 0
    for path, array in list(plan.arrays.items()):
        before = counts.references
        start = (keep or {}).get(path)
        try:
            stored, copies = _write_array(
                store, task.location.uri, array, start, counts, task.plan.parallel
            )
        except VirtualZarrError as error:
            plan.skip(path, error)
            bindings.clear(store, path)
            continue
        nbytes, copied = nbytes + stored, copied + copies
        task.advance(counts.references - before)
    return nbytes, copied


def _conflict(uri: str) -> LostRaceError:
    return LostRaceError(
        "somebody else committed meanwhile; nothing was written: do it again", file=uri
    )


def _without_consolidated(documents: Mapping[str, bytes]) -> Iterator[tuple[str, bytes]]:
    """Documents without consolidated metadata: the repository is itself one."""
    for key, value in documents.items():
        document = loads_json(value)
        assert isinstance(document, dict)
        document.pop("consolidated_metadata", None)
        yield key, dumps_json(document, indent=None)


def _is_own(source: Source, uri: str) -> bool:
    """Tell whether a source is a chunk of the repository itself."""
    return bool(uri) and source.uri.startswith(f"{uri}/chunks/")


def list_prefixes(plan: Plan, uri: str) -> dict[str, Mapping[str, Any] | None]:
    """Folders and buckets that sources lie in, and how they are opened."""
    sources = {s for array in plan.arrays.values() for s in array.manifest.sources}
    sources = {source for source in sources if not _is_own(source, uri)}
    # A container for each folder, so that readers authorize no more than what is referred to.
    local = sorted(
        {os.path.dirname(s.uri) for s in sources if not s.is_inline and not is_url(s.uri)}
    )
    # Everybody who opens the repository must name all of them: of many, the folder above.
    if len(local) > _FOLDERS:
        local = [os.path.commonpath(local)]
    prefixes: dict[str, Mapping[str, Any] | None] = {
        bindings.location(_plain(folder)): None for folder in local
    }
    for source in sources:
        if is_url(source.uri):
            scheme, _, path = source.uri.partition("://")
            prefixes[f"{scheme}://{path.partition('/')[0]}/"] = source.storage_options
    return dict(sorted(prefixes.items()))


def _plain(folder: str) -> str:
    """The folder, or that above whose name needs no encoding: Icechunk would find no other."""
    while quote(folder) != folder:
        folder = os.path.dirname(folder)
    return folder.rstrip("/") + "/"


def _repository(target: Location, prefixes: Mapping[str, Mapping[str, Any] | None]) -> Any:
    """Open a repository, or create it, with access to the sources."""
    module = bindings.icechunk()
    storage = bindings.storage(target)
    exists = module.Repository.exists(storage)
    config = module.Repository.open(storage).config if exists else None
    config = config or module.RepositoryConfig.default()
    containers = config.virtual_chunk_containers or {}
    access, is_new = {}, not exists
    for prefix, source_options in prefixes.items():
        container, access[prefix] = bindings.container_of(prefix, source_options)
        if prefix not in containers:
            config.set_virtual_chunk_container(container)
            is_new = True
    make = module.Repository.open if exists else module.Repository.create
    repository = make(storage, config=config, authorize_virtual_chunk_access=access)
    # Two that write the configuration at once fail: what it has already is not written.
    if is_new:
        repository.save_config()
    return repository


def _write_array(
    store: Any,
    uri: str,
    array: ArrayPlan,
    start: tuple[int, ...] | None,
    counts: Counts,
    parallel: Any,
) -> tuple[int, int]:
    """Store the references of an array from some cell on, and its own chunks."""
    manifest, path = array.manifest, array.path
    box = _box(manifest.shape, start)
    if box is None:
        return 0, 0
    # One call sets a box of references: what stays is left out of it.
    first, shape = box
    index = tuple(slice(a, a + n) for a, n in zip(first, shape, strict=True))
    refs = manifest.take(index)
    # Cells by number, as plans have them; four kinds follow: ranges of files, inline chunks, chunks
    # of the repository, which are stored again, and chunks to copy.
    flat = np.arange(manifest.ncells).reshape(manifest.shape)[index].reshape(-1)
    misread = np.isin(flat, array.misread)
    is_inline = np.array([source.is_inline for source in manifest.sources] + [False], bool)
    inline = is_inline[refs.source] & ~misread
    is_own = np.array([_is_own(source, uri) for source in manifest.sources] + [False], bool)
    own = is_own[refs.source] & ~misread
    virtual = (refs.source >= 0) & ~inline & ~own & ~misread
    counts.references += int(np.count_nonzero(refs.source >= 0))
    counts.inlined += int(np.count_nonzero(inline)) + array.inline * int(misread.sum())
    if virtual.any():
        length = _lengths(manifest, refs, virtual)
        refs = replace(refs, source=np.where(virtual, refs.source, -1), length=length)
        wrong = _set_references(store, f"/{path}", first, shape, manifest.sources, refs)
        if wrong:
            # It checks nothing but whether one of its containers of virtual chunks takes the URL.
            first_uri = manifest.sources[int(refs.source[virtual].reshape(-1)[0])].uri
            raise PublishError(
                f"Icechunk refuses {len(wrong)} references, such as those to {first_uri}: the "
                "version that is installed takes none to such a place; install a newer one, or "
                "publish in another form",
                variable=path,
            )
    stored = bindings.put(store, _inline(path, manifest, flat[inline]))
    stored += bindings.put(store, _own_chunks(path, manifest, flat[own]))
    cells = flat[misread]
    chunks = encode_chunks(array.array, array.metadata, cells, parallel)
    keys = _keys(path, manifest.shape, cells)
    copied = bindings.put(store, zip(keys, chunks, strict=True))
    return stored + copied, 0 if array.inline else copied


def _box(
    shape: tuple[int, ...], stored: tuple[int, ...] | None
) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    """First cell and shape of the part of a grid that is new; None if nothing is."""
    first = [0] * len(shape)
    if stored is not None:
        grown = [axis for axis, (n, k) in enumerate(zip(shape, stored, strict=True)) if n > k]
        if not grown:
            return None
        first[grown[0]] = stored[grown[0]]
    extent = tuple(n - a for n, a in zip(shape, first, strict=True))
    return (tuple(first), extent) if math.prod(extent) else None


def _keys(path: str, shape: tuple[int, ...], cells: Ints) -> list[str]:
    lead = f"{path}/" if path else ""
    return [lead + key for key in KEYS[3].keys(_coordinates(cells, shape))]


def _coordinates(cells: Ints, shape: tuple[int, ...]) -> Ints:
    if not shape:
        return np.zeros((len(cells), 0), np.int64)
    return np.stack(np.unravel_index(cells, shape), axis=1)


def _own_chunks(path: str, manifest: Manifest, cells: Ints) -> Iterator[tuple[str, bytes]]:
    """Yield the chunks of some cells that the repository has already, as they are stored."""
    rows = np.asarray(manifest.source).reshape(-1)[cells].tolist()
    for key, row in zip(_keys(path, manifest.shape, cells), rows, strict=True):
        yield key, bytes(open_source(manifest.sources[row]).read(0, None))


def _inline(path: str, manifest: Manifest, cells: Ints) -> Iterator[tuple[str, bytes]]:
    columns = (np.asarray(c).reshape(-1)[cells].tolist()
               for c in (manifest.source, manifest.offset, manifest.length))  # fmt: skip
    for key, row, offset, length in zip(_keys(path, manifest.shape, cells), *columns, strict=True):
        data = manifest.sources[row].data or b""
        yield key, data[offset:] if length < 0 else data[offset : offset + length]


def _lengths(manifest: Manifest, refs: References, virtual: npt.NDArray[np.bool_]) -> Ints:
    """Lengths, also of chunks that are whole files."""
    length = np.array(refs.length)
    open_ended = virtual & (length < 0)
    for row in np.unique(refs.source[open_ended]).tolist():
        file = manifest.sources[row]
        size = file.size
        if size is None:
            size = take_fingerprint(file.location).size
        if size is None:
            raise PublishError("the size of the file is not known", file=file.uri)
        cells = open_ended & (refs.source == row)
        length[cells] = size - refs.offset[cells]
    return length


def _set_references(
    store: Any,
    path: str,
    first: tuple[int, ...],
    shape: tuple[int, ...],
    sources: Sources,
    refs: References,
) -> Any:
    """Hand references over; return those that are refused."""
    present = np.flatnonzero(refs.source >= 0)
    used = [sources[row] for row in np.unique(refs.source[present]).tolist()]
    texts = np.array([bindings.location(source.uri) for source in sources] + [""], object)
    # The call for columns takes one date for all, and no entity tags.
    by_etag = any(s.etag is not None and s.mtime_ns is None for s in used)
    if hasattr(store, "set_virtual_refs_arr") and not by_etag:
        return store.set_virtual_refs_arr(
            path,
            shape,
            texts[refs.source].tolist(),
            refs.offset.astype(np.uint64),
            np.maximum(refs.length, 0).astype(np.uint64),
            arr_offset=first if any(first) else None,
            checksum=_date(used),
        )
    # One date or tag for each file, or an older Icechunk: an object for each reference.
    make = bindings.icechunk().VirtualChunkSpec
    cells = (_coordinates(present, shape) + np.array(first, np.int64)).tolist()
    checks = [_check(source) for source in sources]
    columns = (texts[refs.source[present]], refs.offset[present], refs.length[present])
    rows = zip(cells, *(c.tolist() for c in columns), refs.source[present].tolist(), strict=True)
    specs = [
        make(index=cell, location=location, offset=offset, length=length, **checks[row])
        for cell, location, offset, length, row in rows
    ]
    return store.set_virtual_refs(path, specs)


def _check(source: Source) -> dict[str, Any]:
    """What Icechunk compares when it reads: an entity tag, or a date."""
    if source.is_inline:
        return {}
    if source.etag is not None and source.mtime_ns is None:
        return {"etag_checksum": source.etag.strip('"')}
    return {"last_updated_at_checksum": _date([source])}


def _date(sources: Iterable[Source]) -> datetime:
    """After which none of the files may have been modified.

    All were scanned after the last of these dates, so that one date serves for all. Icechunk
    counts in seconds.
    """
    return datetime.fromtimestamp(max(map(_seconds, sources), default=0), UTC)


def _seconds(source: Source) -> int:
    # Rounded up, as Icechunk compares whole seconds: a file of the same second must not count as
    # changed.
    if source.mtime_ns is not None:
        return source.mtime_ns // 10**9 + 1
    if source.not_after_ns is not None:
        return source.not_after_ns // 10**9
    return math.ceil(datetime.now(UTC).timestamp()) + 1
