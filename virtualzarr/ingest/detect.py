"""Format detection: by directory, by the first bytes of a file, then by its name."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterable, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

from virtualzarr.choices import OnError, check_choice
from virtualzarr.errors import SourceError, UnsupportedError, VirtualZarrError, as_memory_error
from virtualzarr.formats.other_files import note_other_file
from virtualzarr.formats.registry import (
    BUILT_IN,
    FORMATS,
    ZSTD,
    Format,
    get_format,
    list_formats,
    plugins,
)
from virtualzarr.hierarchy.group import Group
from virtualzarr.redaction import hide_in_url
from virtualzarr.stores.files import is_url, read_head
from virtualzarr.stores.fsspec import share_documents
from virtualzarr.stores.location import Location

HEAD_BYTES = 4096
_ZIP = b"PK\x03\x04"
_DOCUMENTS = ("zarr.json", ".zgroup", ".zarray", "version", "refs")


def find_format(target: Any, mode: str, storage_options: Mapping[str, Any] | None) -> str:
    """Tell the format of anything that can be opened, or as which it is created with a mode.

    Parameters
    ----------
    target : path, URL, mapping, store or session
    mode : {"r", "r+", "a", "w", "w-"}
    storage_options : mapping or None
        How fsspec opens a URL.
    """
    if isinstance(target, str) or hasattr(target, "__fspath__"):
        name = os.fspath(target)
        if mode in ("a", "w", "w-") and (is_url(name) or not os.path.isfile(name)):
            # There may be nothing yet; but a dataset with a history is not written over.
            is_dataset = not is_url(name) and get_format("dataset").has_path(name)
            return "dataset" if is_dataset else "zarr"
        # Reading never creates: only where a node may be created is an empty place taken for Zarr.
        return detect(target, storage_options)
    if is_session(target):
        return "icechunk"
    is_refs = isinstance(target, Mapping) and not _holds_bytes(target)
    return "kerchunk" if is_refs else "zarr"


def _holds_bytes(mapping: Mapping[Any, Any]) -> bool:
    """Tell the mapping of a store from references in memory, which have texts and lists."""
    values: Iterable[Any] = mapping.values()
    if not isinstance(mapping, dict):
        # Each value may be a request: one says as much, a document if there is one.
        keys = (*_DOCUMENTS, *islice(mapping, 1))
        first = next((key for key in keys if key in mapping), None)
        values = [] if first is None else [mapping[first]]
    return all(isinstance(value, (bytes, bytearray, memoryview)) for value in values)


def detect(path_or_url: Any, storage_options: Mapping[str, Any] | None = None) -> str:
    """Tell the format of a file or directory: by its content, or else by its name.

    Returns
    -------
    str
        The name of the format.

    Raises
    ------
    SourceError
        If there is nothing to read.
    UnsupportedError
        If no format fits; the message says what was tried.

    Examples
    --------
    >>> Path("empty.nc").write_bytes(b"CDF\\1" + bytes(28))
    32
    >>> detect("empty.nc")
    'netcdf3'
    """
    location = Location.of(path_or_url, storage_options)
    uri = location.uri
    # Directories first: of a file no format says so, and of a directory there are no first bytes.
    for name, each in FORMATS.items():
        if each.matches_path is not None and each.has_path(uri, location.storage_options):
            return name
    if not location.is_remote and Path(uri).is_dir():
        raise UnsupportedError(
            "the directory holds no Zarr metadata, no Icechunk repository and no references in "
            "Parquet; give the files in it, or a pattern",
            file=uri,
        )
    head, name = read_head(location, HEAD_BYTES), _file_name(uri)
    # Formats of this package decide before plug-ins, whose import may be slow.
    match = _match_content(head, FORMATS) or _match_content(head, plugins())
    match = match or _match_name(name, list_formats())
    if match is None and head.startswith(ZSTD) and name.endswith((".json.zst", ".json.zstd")):
        match = "kerchunk"  # whose first zstd block is longer than the head: nothing to look into
    if match is not None:
        return match
    if not head:
        raise UnsupportedError("the file is empty", file=uri)
    # A name that promises another content is the likeliest cause: a truncated or mislabelled file.
    formats = list_formats()
    by_name = [each for each in formats if name.endswith(formats[each].extensions)]
    hint = f", though its name is that of {' or '.join(by_name)}" if by_name else ""
    folder = _folder_in_zip(uri) if head.startswith(_ZIP) and not location.is_remote else None
    if folder is not None:
        hint = f"; Zarr metadata are in the archive, though: open zip://{folder}::{uri}"
    raise UnsupportedError(
        f"the first bytes, {bytes(head[:8])!r}, are of no known format{hint} "
        f"(tried {', '.join(formats)}); force one with format=",
        file=uri,
    )


def is_session(target: Any) -> bool:
    """Tell whether an object is a session of Icechunk, without importing that."""
    kinds = {f"{kind.__module__}.{kind.__name__}" for kind in type(target).__mro__}
    return "icechunk.session.Session" in kinds


def _match_content(head: bytes, formats: Mapping[str, Format]) -> str | None:
    for name, each in formats.items():
        if each.matches is not None and each.matches(head):
            return name
    return None


def _match_name(file: str, formats: Mapping[str, Format]) -> str | None:
    """Return the format that a file's name is of, among those that have no signature.

    A file without the signature of its format is not of it, whatever it is called.
    """
    for name, each in formats.items():
        if each.matches is None and file.endswith(each.extensions):
            return name
    return None


def _file_name(uri: str) -> str:
    """Return what a file is called, in lower case, without the query of a URL."""
    return (uri.split("?")[0] if is_url(uri) else uri).rstrip("/").lower()


def scan(
    path_or_url: Any,
    *,
    format: str | None = None,
    on_error: OnError = "raise",
    storage_options: Mapping[str, Any] | None = None,
    allowed: str | Iterable[str] | None = None,
    recorder: Any = None,
) -> Group:
    """Scan one file into a group of arrays whose chunks lie in that file.

    Parameters
    ----------
    path_or_url : path or str
    format : str, optional
        By default it is detected.
    on_error : {"raise", "warn"}
        What to do about a variable that cannot be virtualized: raise, or warn, leave it out and
        note it in the group's `skipped`.
    storage_options : mapping, optional
        How fsspec opens a URL.
    allowed : str or iterable of str, optional
        Places that a reference file may reach, or an HDF5 file that has values in other files, or
        links to them: folders, or URLs up to a ``/``. By default, HDF5 reaches files beside it and
        in folders there; other formats always.
    recorder : object, optional
        Is told what the group depends on, if the format can do that; else that it cannot.

    Returns
    -------
    Group

    Raises
    ------
    SourceError
        There is no such file, or it is truncated or damaged.
    UnsupportedError
        The format, or a variable, is not supported.

    Examples
    --------
    >>> scan("notes.txt", format="notes")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    virtualzarr.errors.UnsupportedError: no format is called 'notes'; there are hdf5, netcdf3, ...
    """
    check_choice("on_error", on_error, OnError)
    with share_documents():
        return _scan(path_or_url, format, on_error, storage_options, allowed, recorder)


def _scan(
    path_or_url: Any,
    format: str | None,
    on_error: OnError,
    storage_options: Mapping[str, Any] | None,
    allowed: str | Iterable[str] | None,
    recorder: Any,
) -> Group:
    name = format or detect(path_or_url, storage_options)
    matched = get_format(name)
    scanner: Any = matched.load()
    limits: dict[str, Any] = {"allowed": allowed} if matched.reaches_files else {}
    if recorder is not None:
        if matched.records:
            limits["recorder"] = recorder
        else:
            recorder.forbid(f"files of the format {name}")
    # References name others; what a format of another package looks at, only that knows.
    if name not in BUILT_IN or (matched.reaches_files and not matched.records):
        note_other_file()
    started = time.perf_counter()
    # A file's index may claim anything: a MemoryError of numpy is named after the file, too.
    try:
        group: Group = scanner(
            path_or_url, on_error=on_error, storage_options=storage_options, **limits
        )
    except MemoryError as error:
        if isinstance(error, VirtualZarrError):
            raise
        raise as_memory_error(error, file=str(path_or_url)) from error
    log = logging.getLogger(f"virtualzarr.formats.{name}")
    uri = hide_in_url(str(path_or_url))
    log.debug("scanned %s in %.3f s", uri, time.perf_counter() - started)
    return group


def _folder_in_zip(path: str) -> str | None:
    """Return the one folder at the top of an archive, if it holds Zarr metadata."""
    from virtualzarr.nodes.documents import MARKERS
    from virtualzarr.stores import ZipStore

    try:
        store = ZipStore(path)
    except SourceError:  # it only begins like an archive
        return None
    # Archivers put the folder itself into the archive, so that its documents are one level down.
    folders = [*store.list_dir("")]
    if len(folders) == 1 and any(store.file(f"{folders[0]}/{name}") for name in MARKERS):
        return folders[0]
    return None
