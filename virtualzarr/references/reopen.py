"""References that were published, found again: in which form, with which arrays and files."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from virtualzarr.array import Array
from virtualzarr.errors import (
    SourceChangedError,
    SourceError,
    SourceNotFoundError,
    UnsupportedError,
)
from virtualzarr.hierarchy.group import Group
from virtualzarr.ingest.detect import detect
from virtualzarr.manifest import Source
from virtualzarr.references.icechunk import repository as icechunks
from virtualzarr.references.icechunk.read import open_repository
from virtualzarr.references.icechunk.repository import is_repository
from virtualzarr.references.kerchunk.read_parquet import METADATA
from virtualzarr.references.kerchunk.scan import Opened, open_references
from virtualzarr.references.plan import FORMS, Form
from virtualzarr.references.portable import TRUNCATE
from virtualzarr.stores.files import Connection, Location, is_url, resolve_uri


def place_of(target: Any) -> str:
    """Return where references are, or will be."""
    return resolve_uri(target).rstrip("/")


def state_of(uri: str, storage_options: Mapping[str, Any] | None = None) -> object:
    """Return what tells that somebody wrote to references; None where nothing is there.

    Of a repository that is the snapshot at the end of its branch; of files and objects, what their
    store says of the one that is written last.
    """
    if is_repository(uri):
        return icechunks.tip(uri, storage_options)
    if not is_url(uri):
        path = os.path.join(uri, METADATA) if os.path.isdir(uri) else uri
        found = os.stat(path) if os.path.exists(path) else None
        return found and (found.st_ino, found.st_mtime_ns, found.st_size)
    return _object_state(uri, storage_options) or _object_state(
        f"{uri}/{METADATA}", storage_options
    )


def _object_state(uri: str, storage_options: Mapping[str, Any] | None) -> object:
    connection = Connection(Location(uri, storage_options))
    try:
        return connection.fingerprint(connection.path, uri)
    except SourceNotFoundError:
        return None
    except SourceError as error:
        if isinstance(error.__cause__, IsADirectoryError):
            return None
        raise


def check_state(uri: str, before: object, storage_options: Mapping[str, Any] | None = None) -> None:
    """Refuse to replace references that others have replaced since their state was taken.

    Raises
    ------
    SourceChangedError
    """
    if state_of(uri, storage_options) != before:
        raise SourceChangedError(
            "somebody else wrote here meanwhile; nothing was written: do it again", file=uri
        )


def kind_of(uri: str, storage_options: Mapping[str, Any] | None) -> str:
    """Return "kerchunk", "icechunk", or "zarr" for the native form.

    Raises
    ------
    UnsupportedError
        There are no references.
    """
    kind = detect(uri, storage_options)
    if kind not in ("kerchunk", "icechunk", "zarr"):
        raise UnsupportedError(f"there are no references, but {kind}", file=uri)
    return kind


def open_published(
    uri: str,
    storage_options: Mapping[str, Any] | None,
    allowed: str | Iterable[str] | None,
) -> Opened:
    """Open references whose arrays are virtual."""
    if kind_of(uri, storage_options) == "icechunk":
        return Opened(open_repository(uri, storage_options=storage_options, allowed=allowed))
    return open_references(uri, storage_options=storage_options, allowed=allowed)


def form_of(uri: str, opened: Opened, plugin_codecs: bool = False) -> Form:
    """Return the form that references have."""
    name = "json" if opened.folder is None else "parquet"
    if is_repository(uri):
        name = "icechunk"
    codecs = {c.name for a in arrays_of(opened.node).values() for c in a.metadata.pipeline.codecs}
    return replace(FORMS[name], plugins=plugin_codecs or TRUNCATE in codecs)


def arrays_of(node: Group | Array) -> dict[str, Array]:
    """Return all arrays of a hierarchy by path."""
    if isinstance(node, Array):
        return {"": node}
    return {path: one for path, one in node.members(None) if isinstance(one, Array)}


def sources_of(node: Group | Array) -> list[Source]:
    """Return the files that a hierarchy refers to, each once."""
    found: dict[Source, None] = {}
    for array in arrays_of(node).values():
        if array.is_virtual:
            manifest = array.manifest
            used = np.zeros(len(manifest.sources) + 1, bool)
            used[np.asarray(manifest.source)] = True
            found |= dict.fromkeys(s for s, u in zip(manifest.sources, used, strict=False) if u)
    return [source for source in found if not source.is_inline]


def formats_of(node: Group | Array) -> set[int]:
    """Return the Zarr formats of the arrays of a hierarchy."""
    return {array.metadata.zarr_format for array in arrays_of(node).values()}
