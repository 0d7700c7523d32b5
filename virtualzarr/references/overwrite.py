"""What references may replace: references of the same form, and nothing that they are made of."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterable, Mapping
from typing import Any

from virtualzarr.errors import NodeExistsError, SourceError, SourceNotFoundError, UnsupportedError
from virtualzarr.ingest.detect import detect
from virtualzarr.manifest import Source
from virtualzarr.references.icechunk.repository import is_repository
from virtualzarr.references.kerchunk.read_parquet import is_folder
from virtualzarr.stores.atomic_files import check_regular, resolve_links
from virtualzarr.stores.files import Connection, Location, is_url, take_fingerprint

_DOCUMENT = re.compile(rb'(\.zgroup|\.zarray|zarr\.json)"')
_DOCUMENT_NAMES = ("zarr.json", ".zarray", ".zgroup", ".zattrs", ".zmetadata")
_HEAD = 1 << 20
"""Bytes of an object that are looked at to see what it is."""
_LONGEST = 16


def check_replaceable(
    uri: str,
    form: str,
    sources: Iterable[Source] = (),
    *,
    overwrite: bool = False,
    storage_options: Mapping[str, Any] | None = None,
) -> None:
    """Refuse to put references where something else lies.

    Parameters
    ----------
    uri : str
        An absolute local path, or a URL.
    form : str
        Of the references.
    sources : iterable of Source
        What they refer to.
    overwrite : bool
        Whether also what is not recognized as references of this form may be replaced.
    storage_options : mapping, optional
        How fsspec opens the URL.

    Raises
    ------
    NodeExistsError
        There is something that is not to be replaced.
    """
    if is_url(uri):
        _check_object(uri, form, sources, overwrite, storage_options)
        return
    place = resolve_links(uri)
    if not os.path.exists(place):
        return
    check_regular(uri)
    is_file = os.path.isfile(place)
    if is_file != (form == "json"):
        made, there = ("a file", "a folder") if form == "json" else ("a folder", "a file")
        raise NodeExistsError(
            f"references of the form {form} are {made}, and there is {there} already: remove it, "
            "or write to another place",
            file=uri,
        )
    check_sources(place, sources)
    if _is_of_form(place, form) or (overwrite and form != "icechunk"):
        return
    remedy = "overwrite=True replaces it"
    if form == "icechunk":
        remedy = "remove it, or write to another place"
    raise NodeExistsError(f"there is {_name_of(place)} already; {remedy}", file=uri)


def _is_of_form(place: str, form: str) -> bool:
    """Tell whether there are references of a form, or nothing at all."""
    if form == "json":
        return is_reference_file(place)
    if not os.listdir(place):
        return True
    return is_folder(place) if form == "parquet" else is_repository(place)


def is_reference_file(path: str) -> bool:
    """Tell whether a file is empty, or holds references: an object with documents of Zarr."""
    if os.path.basename(path) in _DOCUMENT_NAMES:
        return False
    if not os.path.getsize(path):
        return True
    with open(path, "rb") as file:
        block = file.read(_HEAD)
        if re.match(rb"\s*\{", block) is None:
            return False
        end = b""
        while block:
            if _DOCUMENT.search(end + block) is not None:
                return True
            end = block[-_LONGEST:]  # a name may lie across two blocks
            block = file.read(_HEAD)
    return False


def _is_references(data: Any) -> bool:
    return re.match(rb"\s*\{", data) is not None and _DOCUMENT.search(data) is not None


def check_sources(place: str, sources: Iterable[Source]) -> None:
    """Refuse to replace a file or folder that is referred to, whatever its name is.

    Raises
    ------
    NodeExistsError
    """
    found = os.stat(place)
    start = f"{place}{os.sep}"
    for source in sources:
        if source.is_inline or is_url(source.uri):
            continue
        if stat.S_ISDIR(found.st_mode):
            same = os.path.realpath(source.uri).startswith(start)
        else:
            try:
                other = os.stat(source.uri)
            except OSError:
                continue
            same = (other.st_dev, other.st_ino) == (found.st_dev, found.st_ino)
        if same:
            raise _is_source(place, source.uri)


def _is_source(uri: str, source: str) -> NodeExistsError:
    what = "it is" if source == uri else f"{source} is"
    return NodeExistsError(
        f"{what} among the files that are referred to: write the references to another place",
        file=uri,
    )


def _name_of(place: str) -> str:
    """Return in words what is at a place."""
    noun = "folder" if os.path.isdir(place) else "file"
    try:
        kind = detect(place)
    except (UnsupportedError, SourceError):
        return f"a {noun} that holds no references"
    if kind != "kerchunk":
        return f"a {noun} of the format {kind}"
    return f"a {noun} that holds " + ("no references" if noun == "file" else "other references")


def _check_object(
    uri: str,
    form: str,
    sources: Iterable[Source],
    overwrite: bool,
    storage_options: Mapping[str, Any] | None,
) -> None:
    """Do the same for an object; folders and repositories at URLs are not replaced at all."""
    if form != "json":
        return
    try:
        take_fingerprint(Location(uri, storage_options))
    except SourceNotFoundError:
        return
    if any(source.uri == uri for source in sources):
        raise _is_source(uri, uri)
    connection = Connection(Location(uri, storage_options))
    head = connection.fetch(connection.path, uri, 0, _HEAD)[0]
    if head and not overwrite and not _is_references(head):
        raise NodeExistsError(
            "there is an object already that holds no references; overwrite=True replaces it",
            file=uri,
        )
