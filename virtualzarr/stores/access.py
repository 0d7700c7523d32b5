"""Which files the references of a file may reach, and what their URLs mean.

A reference file is data from somewhere, and may name any file. One that came from a URL must not
make its reader open local files; `allowed` narrows further, to places below given prefixes.
"""

from __future__ import annotations

import os
import posixpath
import re
from collections.abc import Iterable, Mapping
from typing import Any

from virtualzarr.errors import AccessError, BadReferenceError
from virtualzarr.stores.fsspec import FsspecStore
from virtualzarr.stores.http import without_credentials
from virtualzarr.stores.local import LocalStore
from virtualzarr.stores.read_only import unwrap
from virtualzarr.stores.store import Store
from virtualzarr.stores.uris import (
    ANYWHERE,
    LimitedOptions,
    from_name,
    is_below,
    is_url,
    is_web,
    origin_of,
    resolve_uri,
    split_archives,
    strip_members,
)

LOCAL_PROTOCOLS = frozenset(
    ["http", "https", "s3", "s3a", "gs", "gcs", "az", "abfs", "abfss", "adl", "oci", "oss", "obs",
     "cos", "ftp", "ftps", "sftp", "hf", "memory"]
)  # fmt: skip
"""Protocols that a local reference file may name when nothing else is said."""

REMOTE_PROTOCOLS = LOCAL_PROTOCOLS - {"memory", "sftp"}
"""Protocols that a remote reference file may name: none that reaches this process or its keys."""

_LOCAL = re.compile(r"(?:file|local):(?://|(?=/))", re.IGNORECASE)
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")


class Access:
    """What a reference file may reach.

    Parameters
    ----------
    home : str
        The reference file's own URI; "" for a document in memory.
    allowed : str or iterable of str, optional
        Prefixes of URLs, or local folders or files, that references must lie below; ``"*"`` allows
        anything.
    storage_options : mapping, optional
        How fsspec opens URLs.

    Examples
    --------
    >>> Access("s3://bucket/refs.json").source_of("/etc/passwd")
    Traceback (most recent call last):
    virtualzarr.errors.AccessError: a reference file from a URL names a local file; if that is \
right, say so with allowed= [file /etc/passwd]
    >>> Access("/data/refs.json").source_of("s3://bucket/a.nc")
    's3://bucket/a.nc'
    """

    def __init__(
        self,
        home: str,
        allowed: str | Iterable[str] | None = None,
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        self.home = home
        self.remote = is_url(home)
        self.storage_options = storage_options
        self._fine: set[str] = set()  # "s3://" and the like, once one such URL was found good
        prefixes = [allowed] if isinstance(allowed, (str, os.PathLike)) else allowed
        self.prefixes = None if prefixes is None else [_prefix(prefix) for prefix in prefixes]

    def source_of(self, uri: Any) -> str:
        """The URI as sources have it: a URL, or an absolute local path.

        Raises
        ------
        AccessError
            If references may not reach it.
        BadReferenceError
            If it is none, or a relative path that means two files.
        """
        if not isinstance(uri, str) or not uri or "\0" in uri:
            raise BadReferenceError(f"{uri!r} is no URL or path of a source")
        if uri[: uri.find(":") + 3] in self._fine and "::" not in uri:
            return uri
        full = self._full(uri)
        if self.prefixes is not None:
            if not any(is_below(strip_members(full), prefix) for prefix in self.prefixes):
                raise AccessError("a reference reaches outside what was allowed", file=uri)
        elif not is_url(full):
            if self.remote:
                raise AccessError(
                    "a reference file from a URL names a local file; if that is right, say so "
                    "with allowed=",
                    file=uri,
                )
        elif not self._is_known(full):
            raise AccessError(
                "references may not use this protocol unless allowed= says so", file=uri
            )
        else:
            self._fine.add(full[: full.index(":") + 3])
        return full

    def options_of(self, source: str) -> Mapping[str, Any] | None:
        """How to open a source: keys go to the protocol and host they were given for only.

        Those of a remote reference file are for its own host. A local one has none: its options go
        to services of which a protocol names but one, such as S3, and to the hosts that `allowed`
        names. How to connect, which says nothing of who asks, goes to all of the web.
        """
        if not is_url(source):
            return None
        options = self.storage_options
        origin = origin_of(source)
        if options and not self._is_for(origin):
            options = without_credentials(options) if is_web(source) else None
        if self.prefixes is not None and ANYWHERE not in self.prefixes:
            return LimitedOptions(options, self.prefixes)
        return options or None

    def _is_for(self, origin: tuple[str, str, int | None]) -> bool:
        """Whether the options were given for a protocol and host."""
        if self.remote:
            return origin == origin_of(self.home)
        named = (prefix for prefix in self.prefixes or () if is_url(prefix))
        return not origin[1] or any(origin == origin_of(prefix) for prefix in named)

    def _is_known(self, url: str) -> bool:
        scheme = _scheme(url)
        if "::" in url or scheme is None:
            return False
        return scheme in (REMOTE_PROTOCOLS if self.remote else LOCAL_PROTOCOLS) or (
            self.remote and "::" not in self.home and scheme == _scheme(self.home)
        )

    def _full(self, uri: str) -> str:
        """An absolute path or URL for what may be relative to the reference file."""
        outer, last = split_archives(uri)
        if outer:
            return outer + self._full(last)
        local = _LOCAL.match(uri)
        if local:
            return resolve_uri(uri[local.end() :] or ".")
        if posixpath.isabs(uri) or (is_url(uri) and not _is_name(uri)):
            return uri
        if self.remote:
            home = self.home.partition("?")[0] if is_web(self.home) else self.home
            return f"{home.rpartition('/')[0]}/{from_name(uri, home)}"
        name = from_name(uri, self.home)
        here = os.path.abspath(name)
        if not self.home:
            return here
        beside = os.path.join(os.path.dirname(self.home), name)
        if not os.path.exists(beside):
            return here if os.path.exists(here) else beside
        if os.path.exists(here) and not os.path.samefile(here, beside):
            raise BadReferenceError(
                f"the relative path {uri!r} is one file in the reference file's folder and another "
                "in the current folder; fsspec would take the latter. Change the folder, or write "
                "absolute paths"
            )
        return beside


def _is_name(uri: str) -> bool:
    """Whether a text with two colons is the name of a file, and no chain of protocols."""
    from fsspec.registry import known_implementations

    return "://" not in uri and uri.partition("::")[0] not in known_implementations


def _scheme(url: str) -> str | None:
    found = _SCHEME.match(url)
    return None if found is None else found[1].lower()


def _prefix(prefix: Any) -> str:
    text = os.fspath(prefix)
    if text == ANYWHERE or (is_url(text) and not _LOCAL.match(text)):
        return str(text)
    local = _LOCAL.match(text)
    return os.path.realpath(text[local.end() :] if local else text)


def store_access(
    store: Store,
    allowed: str | Iterable[str] | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> Access:
    """Return what manifests in a store may refer to: as reference files of the same place may."""
    inner: Any = unwrap(store)
    home = inner.uri if isinstance(inner, LocalStore | FsspecStore) else ""
    return Access(home, allowed, storage_options or getattr(inner, "storage_options", None))
