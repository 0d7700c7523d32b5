"""Members of archives, local or elsewhere: file systems of them, over reads of this package.

fsspec would request an archive itself, with one login for all hosts, to which redirects take it,
and go on in another version of it.
"""

from __future__ import annotations

import io
import os
from collections.abc import Hashable, Mapping
from typing import Any, Protocol
from weakref import WeakValueDictionary

from virtualzarr.errors import SourceError, VirtualZarrError
from virtualzarr.stores.files_in_memory import Buffer
from virtualzarr.stores.fingerprints import Fingerprint, as_source_error, check_unchanged
from virtualzarr.stores.seekable import SeekableFile
from virtualzarr.stores.uris import without_query

_BUFFER = 1024 * 1024
"""Bytes of an archive that are requested at once: members are read in small steps."""


class ArchiveSource(Protocol):
    """What requests the bytes of an archive: a `Connection`."""

    path: str

    @property
    def must_ask_versions(self) -> bool:
        """Whether only another request tells of which version an answer is."""
        ...

    def fetch(
        self, path: str, uri: str, start: int, stop: int | None, limit: int | None = None
    ) -> tuple[bytes, Fingerprint | None]:
        """Return bytes of a file, and what tells of which version they are."""
        ...

    def fingerprint(self, path: str, uri: str) -> Fingerprint:
        """Return a file's fingerprint as it is now."""
        ...


# Shared: members of one archive are opened one by one, and its directory is read only once.
_archives: WeakValueDictionary[Hashable, Any] = WeakValueDictionary()


def open_members(
    members: str, uri: str, source: ArchiveSource, options: Mapping[str, Any], shared_by: Hashable
) -> tuple[Any, str, Fingerprint]:
    """Return fsspec's file system of an archive, the path within it, and the archive's version.

    Parameters
    ----------
    members : str
        What is within the archive, and within archives in it: ``zip://b.nc::tar://a.zip::``.
    uri : str
        Of the archive.
    source : ArchiveSource
    options : mapping
        As fsspec has them for chains: those of each link by its protocol, others for the first.
    shared_by : hashable
        What tells how, and by whose login, the archive is requested.

    Raises
    ------
    SourceError
        It is not there, or no such archive.
    """
    try:
        links = [link.partition("://") for link in members.removesuffix("::").split("::")]
        fingerprint = source.fingerprint(source.path, uri).as_recorded()
        key = (links[0][0], *links[1:], uri, fingerprint, shared_by, os.getpid())
        # What tells nothing of its version may be replaced unnoticed: its directory is read anew.
        fs = _archives.get(key) if fingerprint.has_version else None
        if fs is None:
            fs = _archives[key] = _open_links(
                links, _open_archive(uri, source, fingerprint), options
            )
        return fs, fs._strip_protocol(links[0][2]), fingerprint
    except VirtualZarrError:
        raise
    except Exception as error:
        raise as_source_error(error, uri) from error


def _open_archive(uri: str, source: ArchiveSource, fingerprint: Fingerprint) -> Any:
    """Return a file object of an archive, which reads nothing of another version."""
    if fingerprint.size is None:
        raise SourceError("nothing tells how long the archive is", file=uri)

    def read(start: int, stop: int) -> Buffer:
        data, current = source.fetch(source.path, uri, start, stop)
        if current is None and source.must_ask_versions:
            current = source.fingerprint(source.path, uri)
        if current is not None:
            check_unchanged(uri, fingerprint, current)
        if len(data) != stop - start:
            raise SourceError(f"{stop - start} bytes were asked for, {len(data)} came", file=uri)
        return data

    raw = SeekableFile(read, fingerprint.size, without_query(uri))
    return io.BufferedReader(raw, _BUFFER)


def _open_links(links: list[tuple[str, str, str]], file: Any, options: Mapping[str, Any]) -> Any:
    import fsspec

    protocols = {protocol for protocol, _, _ in links}  # whose options are theirs alone
    others = {name: value for name, value in options.items() if name not in protocols}
    outer: Any = None
    for number, (protocol, _, path) in reversed([*enumerate(links)]):
        kwargs = {**options.get(protocol, {}), **({} if number else others)}
        fs = fsspec.filesystem(protocol, fo=file, skip_instance_cache=True, **kwargs)
        # One that nobody has any more closes its file, which those within it read.
        fs.within, outer = outer, fs
        file = fs.open(path) if number else None
    return fs
