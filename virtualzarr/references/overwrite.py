"""Overwrite protection: what references may replace, and what they never do."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable
from typing import TYPE_CHECKING

from virtualzarr.errors import NodeExistsError, SourceError, SourceNotFoundError, UnsupportedError
from virtualzarr.hierarchy.inventory import list_sources
from virtualzarr.ingest.detect import detect
from virtualzarr.manifest import Source
from virtualzarr.stores.atomic_files import check_regular
from virtualzarr.stores.files import Connection, Location, is_url, take_fingerprint
from virtualzarr.stores.uris import resolve_links

if TYPE_CHECKING:
    from virtualzarr.array import Array
    from virtualzarr.hierarchy.group import Group
    from virtualzarr.references.portable_form import PortableForm

_HEAD = 1 << 20
"""Bytes of an object that are looked at to see what it is."""

_COMPANION_HEAD = 4096
"""The same, of a page or document beside references."""

COMPANIONS = {
    "page": (".html", b'<meta name="generator" content="virtualzarr">'),
    "document of STAC": (".stac.json", b'"stac_version"'),
}
"""What accompanies references: how names end, and what such files begin with, nearly."""


def check_replaceable(
    form: PortableForm, location: Location, sources: Iterable[Source] = (), *, overwrite: bool
) -> None:
    """Refuse to put references where something else lies.

    Raises `NodeExistsError` if there is something that is not to be replaced.

    Parameters
    ----------
    form : PortableForm
        That of the references.
    sources : iterable of Source
        What they refer to.
    overwrite : bool
        Whether also what is not recognized as references of this form may be replaced.
    """
    uri = location.uri
    if location.is_remote:
        # Folders and repositories at URLs are not replaced at all.
        if form.is_single_file:
            _check_object(form, location, sources, overwrite)
        return
    # Symbolic links are followed, as the file they lead to is what would be replaced.
    path = resolve_links(uri)
    if not os.path.exists(path):
        return
    check_regular(uri)
    is_file = os.path.isfile(path)
    if is_file != form.is_single_file:
        nouns = ("a folder", "a file")
        raise NodeExistsError(
            f"references of the form {form.name} are {nouns[form.is_single_file]}, and there is "
            f"{nouns[is_file]} already: remove it, or write to another place",
            file=uri,
        )
    # Before anything else: not even overwrite=True may destroy the data that are referred to.
    check_sources(path, sources)
    if form.is_replaceable(path) or (overwrite and form.overwrites_anything):
        return
    remedy = "overwrite=True replaces it"
    if not form.overwrites_anything:
        remedy = "remove it, or write to another place"
    raise NodeExistsError(f"there is {_describe(path, form)} already; {remedy}", file=uri)


def check_sources(path: str, sources: Iterable[Source]) -> None:
    """Refuse to replace a file or folder that is referred to, whatever its name is.

    Raises `NodeExistsError`.
    """
    status = os.stat(path)
    start = f"{path}{os.sep}"
    for source in sources:
        if source.is_inline or is_url(source.uri):
            continue
        if stat.S_ISDIR(status.st_mode):
            same = os.path.realpath(source.uri).startswith(start)
        else:
            try:
                other = os.stat(source.uri)
            except OSError:
                continue
            # By inode: hard links, other spellings and mounts of one file do not hide it.
            same = (other.st_dev, other.st_ino) == (status.st_dev, status.st_ino)
        if same:
            raise _is_source(path, source.uri)


def _is_source(uri: str, source: str) -> NodeExistsError:
    subject = "it is" if source == uri else f"{source} is"
    return NodeExistsError(
        f"{subject} among the files that are referred to: write the references to another place",
        file=uri,
    )


def _describe(path: str, form: PortableForm) -> str:
    """Return in words what is at a place."""
    noun = "folder" if os.path.isdir(path) else "file"
    try:
        kind = detect(path)
    except (UnsupportedError, SourceError):
        return f"a {noun} that holds no references"
    if kind != "kerchunk":
        return f"a {noun} of the format {kind}"
    if noun == "folder" and form.recognizes(path, kind):
        return "a folder of references, of which readers that are open load more later,"
    return f"a {noun} that holds " + ("no references" if noun == "file" else "other references")


def _check_object(
    form: PortableForm, location: Location, sources: Iterable[Source], overwrite: bool
) -> None:
    """Do the same for an object, of which only the first bytes are looked at."""
    uri = location.uri
    try:
        take_fingerprint(location)
    except SourceNotFoundError:
        return
    if any(source.uri == uri for source in sources):
        raise _is_source(uri, uri)
    connection = Connection(location)
    # The first bytes only: a reference file may have gigabytes.
    head = connection.fetch(connection.path, uri, 0, _HEAD)[0]
    if head and not overwrite and not form.matches_content(head):
        raise NodeExistsError(
            "there is an object already that holds no references; overwrite=True replaces it",
            file=uri,
        )


def list_companions(location: Location) -> dict[str, str]:
    """Return where what accompanies references is, by what it is."""
    companions = {}
    for noun, (ending, mark) in COMPANIONS.items():
        beside = location.with_uri(f"{os.path.splitext(location.uri)[0]}{ending}")
        if beside.uri != location.uri and mark in (read_head(beside) or b""):
            companions[noun] = beside.uri
    return companions


def read_head(location: Location, nbytes: int = _COMPANION_HEAD) -> bytes | None:
    """Return the first bytes of a file; None if it is not there."""
    uri = location.uri
    if location.is_remote:
        connection = Connection(location)
        try:
            return bytes(connection.fetch(connection.path, uri, 0, nbytes)[0])
        except SourceNotFoundError:
            return None
    path = resolve_links(uri)
    if not os.path.isfile(path):
        return None
    with open(path, "rb") as file:
        return file.read(nbytes)


def check_companion(node: Group | Array, location: Location, noun: str, overwrite: bool) -> None:
    """Refuse to put what accompanies references where something else lies.

    Parameters
    ----------
    node : Group or Array
        What is published: none of its files is ever replaced.
    location : Location
        Of a page, or of a document.
    noun : str
        What it is, as in `COMPANIONS`.

    Raises
    ------
    NodeExistsError
        There is something else.
    """
    mark = b"" if overwrite else COMPANIONS[noun][1]
    remedy = "overwrite=True replaces it"
    check_ours(location, noun, mark, list_sources(node), remedy=remedy)


def check_ours(
    location: Location,
    noun: str,
    mark: bytes,
    sources: Iterable[Source],
    *,
    remedy: str = "remove it, or write to another place",
) -> None:
    """Refuse to replace a file that is none of our own of its kind, or is a source.

    Parameters
    ----------
    location : Location
    noun : str
        What is to be written.
    mark : bytes
        What such files have near their beginning.
    sources : iterable of Source
        Files that are never replaced, whatever is in them.

    Raises
    ------
    NodeExistsError
    """
    uri = location.uri
    if location.is_remote:
        head = read_head(location)
        if head is not None and any(source.uri == uri for source in sources):
            raise _is_source(uri, uri)
    else:
        path = resolve_links(uri)
        if not os.path.exists(path):
            return
        check_regular(uri)
        check_sources(path, sources)
        if not os.path.isfile(path):
            raise NodeExistsError(f"there would be a {noun}, and there is a folder", file=uri)
        head = read_head(location)
    if head and mark not in head:
        raise NodeExistsError(f"there is a file already that is no {noun}; {remedy}", file=uri)
