"""Upgrade of hierarchies in the native form, version 1, to datasets with versions.

Source: ``specs/dataset.md``, *Upgrade of version 1*.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from virtualzarr.dataset import objects
from virtualzarr.dataset.commit import new_id
from virtualzarr.dataset.create import build_root, first_change
from virtualzarr.dataset.dataset import Dataset
from virtualzarr.dataset.describe import describe_commit
from virtualzarr.dataset.directory import Directory
from virtualzarr.dataset.fitting import Addition, describe_first
from virtualzarr.dataset.head import Head, read_head
from virtualzarr.dataset.operations import HEAD, Get, Protocol
from virtualzarr.dataset.own_chunks import ChunkWriter
from virtualzarr.dataset.schema import Schema, read_schema
from virtualzarr.dataset.segment import Cells, list_own_objects
from virtualzarr.dataset.snapshot import Snapshot
from virtualzarr.dataset.storage import ROOT
from virtualzarr.errors import MetadataError, SourceNotFoundError, UnsupportedError
from virtualzarr.hierarchy.group import Group
from virtualzarr.hierarchy.inventory import iter_arrays
from virtualzarr.hierarchy.open_node import open_hierarchy
from virtualzarr.keywords import strict_keywords
from virtualzarr.manifest import Source
from virtualzarr.nodes.replace_documents import settle
from virtualzarr.references.native.manifest_chunks import NativeChunks
from virtualzarr.stores import LocalStore
from virtualzarr.stores.files import is_url, open_file, resolve_uri
from virtualzarr.stores.invalidation import notify_change
from virtualzarr.stores.location import Location
from virtualzarr.stores.locks import hierarchy_lock, topmost_folder
from virtualzarr.stores.upgraded import is_dataset_root

_OBJECT = re.compile(
    r"(schemas|segments|index|log|data|staged)/[0-9]+-[0-9a-f]{16}((\.[0-9a-f]{16})?\.new)?"
)
_PENDING = "upgrade"


@strict_keywords()
def upgrade(
    path: Any,
    dimension: str,
    *,
    message: str | None = None,
    allowed: str | Iterable[str] | None = None,
) -> Dataset:
    """Make a hierarchy in the native form, version 1, a dataset with versions, where it lies.

    Whatever stops it, there is the hierarchy, whole, or the dataset, whole; repeating it goes on.
    Other writers wait. Packages that know version 1 only refuse the dataset.

    Parameters
    ----------
    path : path or str
        The directory of the hierarchy.
    dimension : str
        Rows come and go along this dimension of all arrays that have it. Its coordinate variable,
        if there is one, must increase.
    message : str, optional
        For the history.
    allowed
        As for `Dataset`.

    Returns
    -------
    Dataset
        At version 1, with the references, values and attributes that the hierarchy had. Source
        files that had relative names keep such names, and so will later ones: it may be moved with
        them. It may have later versions if it was one already.

    Raises
    ------
    SourceNotFoundError
        There is nothing.
    UnsupportedError
        It is an array, or a part of a hierarchy, or is not in a directory; or the coordinate does
        not increase.

    Examples
    --------
    >>> import tempfile
    >>> import numpy as np
    >>> import virtualzarr as vz
    >>> folder = tempfile.mkdtemp()
    >>> group = vz.create_group(f"{folder}/air.zarr")
    >>> array = group.create_array("air", data=np.array([1.5, 2.5]), dimension_names=["time"])
    >>> dataset = upgrade(f"{folder}/air.zarr", "time")
    >>> dataset.version, dataset.group["air"][...].tolist()
    (1, [1.5, 2.5])
    """
    folder = resolve_uri(path).rstrip("/")
    if is_url(folder) or not os.path.isdir(folder):
        raise UnsupportedError("only hierarchies in directories are upgraded", file=folder)
    folder = os.path.realpath(folder)
    if (top := topmost_folder(folder)) != folder:
        raise UnsupportedError(f"it is a part of the hierarchy {top}: upgrade that", file=folder)
    directory = Directory(Location.of(folder, None, allowed))
    directory.require_commits()
    store = LocalStore(folder)
    # The same lock is that of the dataset's writers, from the moment on when there is one.
    with hierarchy_lock(store):
        root = store.get(ROOT)
        if root is None:
            raise SourceNotFoundError("there is no Zarr v3 hierarchy", file=folder)
        if not is_dataset_root(root):
            _check_head(directory)
            settle(store)
            _begin(directory, _open(store, directory.location), dimension, message)
        _finish(directory)
    return Dataset(folder, allowed=allowed)


def _open(store: LocalStore, location: Location) -> Group:
    node = open_hierarchy(store, location=location, use_consolidated=False)
    if not isinstance(node, Group):
        raise UnsupportedError("an array cannot be upgraded, but a group with it", file=store.uri)
    return node


def _check_head(directory: Directory) -> None:
    """Refuse a hierarchy with a head that no upgrade has left which was stopped."""
    path = os.path.join(directory.uri, HEAD)
    if not os.path.lexists(path):
        return
    if os.path.isfile(path):
        with suppress(MetadataError):
            document = objects.decode((directory.get(Get(HEAD)) or (b"",))[0])
            if isinstance(document, dict) and document.get(_PENDING) is True:
                return
    raise UnsupportedError(
        f"something in it is called {HEAD!r}, as the head of a dataset: rename it",
        file=directory.uri,
    )


def _is_relative(node: Group) -> bool:
    """Tell whether source files are named relative to the arrays."""
    sources = (array.chunk_source for _, array in iter_arrays(node))
    return any(
        isinstance(source, NativeChunks) and source.configuration.relative for source in sources
    )


def _begin(directory: Directory, node: Group, dimension: str, message: str | None) -> None:
    """Do everything up to the root's document, which decides."""
    addition = describe_first(node, Schema(growing=dimension, relative=_is_relative(node)))
    writer = ChunkWriter(
        lambda kind, data: directory.run(objects.put(kind, 0, data)), directory.uri
    )
    addition = _move_in(addition, writer, directory.uri, addition.schema.nodes)
    names = [addition.schema.name_file(uri, directory.uri) for uri in addition.sources]
    about = describe_commit("upgrade", message, names)
    head = directory.run(_build_head(addition, writer, about))
    # A head that was left is no longer that of the hierarchy.
    left = directory.get(Get(HEAD))
    pending = objects.encode(objects.decode(head.to_bytes()) | {_PENDING: True})
    directory.replace(pending, None if left is None else left[1], has_turn=True)
    directory.put_root(build_root())
    notify_change(directory.store.to_uri(ROOT))


def _build_head(addition: Addition, writer: ChunkWriter, about: dict[str, Any]) -> Protocol[Head]:
    nothing = Head(Snapshot(0, "", 0))
    record = yield from first_change(addition)(nothing)
    used = [list_own_objects(cells, addition.folder) for cells in (addition.fixed, addition.cells)]
    if not addition.fixed:
        used = used[1:]
    added = tuple(
        replace(entry, data=tuple(named for named in writer.data if named.name in names))
        for entry, names in zip(record.added, used, strict=True)
    )
    commit = yield from new_id(nothing)
    record = replace(record, commit=commit, about=about, added=added)
    return (yield from nothing.commit(record))


def _move_in(
    addition: Addition, writer: ChunkWriter, folder: str, nodes: Collection[str]
) -> Addition:
    """Copy chunks that are stored with the arrays into objects of the dataset."""
    prefixes = tuple(f"{folder}/{path}/" for path in nodes if path)
    move = partial(_move_cells, writer=writer, is_moved=lambda uri: uri.startswith(prefixes))
    pending = [
        {path: move(cells) for path, cells in each.items()}
        for each in (addition.cells, addition.fixed)
    ]
    writer.finish()
    cells, fixed = ({path: get() for path, get in each.items()} for each in pending)
    return replace(addition, cells=cells, fixed=fixed, folder=folder)


def _move_cells(
    cells: Cells, writer: ChunkWriter, is_moved: Callable[[str], bool]
) -> Callable[[], Cells]:
    manifest = cells.manifest
    rows = [n for n, source in enumerate(manifest.sources) if is_moved(source.uri)]
    if not rows:
        return lambda: cells
    source = np.array(manifest.source)
    offset, length = np.array(manifest.offset), np.array(manifest.length)
    for cell in zip(*np.nonzero(np.isin(source, rows)), strict=True):
        data = _read(manifest.sources[int(source[cell])], int(offset[cell]), int(length[cell]))
        number, offset[cell], length[cell] = writer.add(data)
        source[cell] = len(manifest.sources) + number
    return lambda: replace(
        cells,
        manifest=manifest.replace(
            sources=writer.sources(manifest.sources), source=source, offset=offset, length=length
        ),
    )


def _read(source: Source, offset: int, length: int) -> bytes:
    return bytes(open_file(source.location).read(offset, None if length < 0 else offset + length))


def _finish(directory: Directory) -> None:
    """Do everything after the root's document; what is done already is left out."""
    head = directory.run(read_head())
    if head.is_pending:
        document = objects.decode((directory.get(Get(HEAD)) or (b"",))[0])
        del document[_PENDING]
        directory.replace(objects.encode(document), head.tag, has_turn=True)
    state = head.snapshot
    nodes = directory.run(read_schema(state)).nodes
    # Documents first: without them, nothing below a folder is opened any more.
    keys = [key for key, _ in directory.store.list() if _is_left(key, nodes)]
    keys.sort(key=lambda key: not key.endswith(f"/{ROOT}"))
    directory.delete(keys)
    for folder in sorted({os.path.dirname(key) for key in keys}, key=len, reverse=True):
        while folder:
            with suppress(OSError):  # it has something else
                os.rmdir(directory.store.to_uri(folder))
            folder = os.path.dirname(folder)


def _is_left(key: str, nodes: Collection[str]) -> bool:
    """Tell whether a key belongs to an array or group of version 1, not to the dataset."""
    if _OBJECT.fullmatch(key):
        return False
    parts = key.split("/")[:-1]
    return any("/".join(parts[: n + 1]) in nodes for n in range(len(parts)))
