"""Locations: a path or URL, how it is opened, and what its references may reach.

A reference file is data from somewhere, and may name any file. One that came from a URL must not
make its reader open local files; `allowed` narrows further, to prefixes of URLs and to folders.
"""

from __future__ import annotations

import os
import posixpath
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from virtualzarr.errors import AccessError, BadReferenceError
from virtualzarr.redaction import hide_in_url
from virtualzarr.stores.credentials import names_of
from virtualzarr.stores.pins import Pins, ReadVersion
from virtualzarr.stores.uris import (
    ANYWHERE,
    expand_address,
    from_name,
    is_below,
    is_file_name,
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
"""Protocols that a local reference file may name when `allowed` is not given."""

REMOTE_PROTOCOLS = LOCAL_PROTOCOLS - {"memory", "sftp"}
"""Protocols that a remote reference file may name: none that reaches this process or its keys."""

_LOCAL_URL = re.compile(r"(?:file|local):(?://|(?=/))", re.IGNORECASE)
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")
_HOST = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://[^/?#\[\]]+/")
_CONNECTION_OPTIONS = ("ssl", "proxy", "proxy_auth", "timeout", "verify_ssl", "encoded")
_CLIENT_OPTIONS = ("trust_env", "timeout")


def without_credentials(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options that say how to connect, and nothing of who asks: any host may get them.

    Examples
    --------
    >>> without_credentials({"headers": {"X-Api-Key": "secret"}, "ssl": False})
    {'ssl': False}
    """
    harmless = {name: options[name] for name in _CONNECTION_OPTIONS if name in options}
    client = options.get("client_kwargs") or {}
    client = {name: client[name] for name in _CLIENT_OPTIONS if name in client}
    return harmless | ({"client_kwargs": client} if client else {})


@dataclass(frozen=True)
class Location:
    """A file, folder or object, how it is opened, and which others its references may reach.

    Parameters
    ----------
    uri : str
        An absolute local path or a URL; "" for a document in memory.
    storage_options : mapping, optional
        How fsspec opens the URL. Never compared or shown.
    allowed : tuple of str, optional
        Prefixes of URLs, or local folders or files, that references in the file must lie below;
        ``"*"`` allows anything. Without it, references use the usual protocols, and those of a
        remote file name no local one.
    redirects : tuple of str, optional
        Prefixes that redirects of a server must lead below; anywhere, if there are none.
    withheld : bool
        Whether a reference led here, and `storage_options` were given that are not for this host.

    Examples
    --------
    >>> Location("s3://bucket/refs.json").resolve("/etc/passwd")
    Traceback (most recent call last):
    virtualzarr.errors.AccessError: a reference file from a URL names a local file; if that is \
right, say so with allowed= [file /etc/passwd]
    >>> Location("/data/refs.json").resolve("s3://bucket/a.nc")
    Location(uri='s3://bucket/a.nc')
    """

    uri: str
    storage_options: Mapping[str, Any] | None = field(default=None, repr=False, compare=False)
    allowed: tuple[str, ...] | None = field(default=None, repr=False)
    redirects: tuple[str, ...] | None = field(default=None, repr=False)
    withheld: bool = field(default=False, repr=False, compare=False)
    # "s3://" and the like, once a URL of that protocol was allowed: documents name many.
    _usable: set[str] = field(default_factory=set, init=False, repr=False, compare=False)
    # Of files that references in a document at this location name.
    pins: Pins = field(default_factory=Pins, init=False, repr=False, compare=False)

    def __repr__(self) -> str:
        return f"Location(uri={hide_in_url(self.uri)!r})"

    def __getstate__(self) -> tuple[dict[str, Any], Mapping[str, ReadVersion]]:
        # Who makes the sources anew elsewhere reads the same versions, or nothing.
        return vars(self), self.pins.read_versions()

    def __setstate__(self, state: tuple[dict[str, Any], Mapping[str, ReadVersion]]) -> None:
        values, versions = state
        vars(self).update(values)
        self.pins.hold(versions)

    @classmethod
    def of(
        cls,
        path_or_url: Any,
        storage_options: Mapping[str, Any] | None = None,
        allowed: str | Iterable[str] | None = None,
    ) -> Location:
        """Return the location that a user names, relative to the current folder.

        A location is returned as it is; None stands for a document in memory.
        """
        if isinstance(path_or_url, Location):
            return path_or_url
        prefixes = [allowed] if isinstance(allowed, (str, os.PathLike)) else allowed
        return cls(
            "" if path_or_url is None else resolve_uri(path_or_url),
            storage_options,
            None if prefixes is None else tuple(_as_prefix(prefix) for prefix in prefixes),
        )

    @property
    def is_remote(self) -> bool:
        """Whether it is a URL."""
        return is_url(self.uri)

    def with_uri(self, uri: str) -> Location:
        """Return another file of the same service, opened in the same way."""
        return Location(uri, self.storage_options, self.allowed, self.redirects, self.withheld)

    def resolve(self, reference: Any) -> Location:
        """Return the location that a reference in this file names.

        Raises
        ------
        AccessError
            If references may not reach it.
        BadReferenceError
            If it is none, or a relative path that means two files.
        """
        return self.locate(self.resolve_uri(reference))

    def locate(self, uri: str) -> Location:
        """Return the location of a URL or absolute path that `resolve_uri` returned."""
        options, redirects = self.options_for(uri)
        return Location(uri, options, redirects=redirects, withheld=self.withholds(uri))

    def withholds(self, uri: str) -> bool:
        """Tell whether a URL that a reference names gets less than `storage_options` have."""
        options = self.storage_options
        return bool(options) and is_url(uri) and self.options_for(uri)[0] != options

    def options_for(self, uri: str) -> tuple[Mapping[str, Any] | None, tuple[str, ...] | None]:
        """Return `storage_options` and `redirects` of a URI that `resolve_uri` returned."""
        options = self.storage_options
        if (not options and self.allowed is None) or not is_url(uri):
            return None, None
        if options and not self._is_own_origin(origin_of(uri)):
            # Those by prefix say themselves to whom they go.
            by_prefix = names_of(options)
            # How to connect, which says nothing of who asks, goes to all of the web.
            options = (without_credentials(options) if is_web(uri) else {}) | by_prefix
        # A server could redirect an allowed URL anywhere: redirects are checked, too.
        limited = self.allowed is not None and ANYWHERE not in self.allowed
        return options or None, self.allowed if limited else None

    def resolve_uri(self, reference: Any) -> str:
        """Return the URL or absolute path that a reference names. Raises as `resolve`."""
        if not isinstance(reference, str) or not reference or not _is_name(reference):
            raise BadReferenceError(f"{reference!r} is no URL or path of a source")
        if reference[: reference.find(":") + 3] in self._usable and "::" not in reference:
            return reference
        uri = self._as_absolute(reference)
        if self.allowed is not None:
            if not any(is_below(strip_members(uri), prefix) for prefix in self.allowed):
                raise AccessError("a reference reaches outside what was allowed", file=reference)
        elif not is_url(uri):
            if self.is_remote:
                raise AccessError(
                    "a reference file from a URL names a local file; if that is right, say so "
                    "with allowed=",
                    file=reference,
                )
        elif not self._is_usable(uri):
            raise AccessError(
                "references may not use this protocol unless allowed= names what they reach, or "
                "the folder it is in; of members of archives, that is the archive",
                file=reference,
            )
        else:
            self._usable.add(uri[: uri.index(":") + 3])
        return uri

    def resolves_to_itself(self, references: Sequence[str]) -> bool:
        """Tell of many references at a look whether `resolve_uri` returns each as it is.

        True only for absolute paths, or for URLs of one host; False where each has to be looked at.
        """
        if self.allowed is not None or not references:
            return False
        text = "\n".join(references)
        if not text.isascii() or "\0" in text or "::" in text:
            return False
        # What both the first and the last of a sorted list begin with, all do.
        start = posixpath.commonprefix([min(references), max(references)])
        if start.startswith("/"):
            return not self.is_remote
        host = _HOST.match(start)
        return host is not None and not _LOCAL_URL.match(start) and self._is_usable(start)

    def _is_own_origin(self, origin: tuple[str, str, int | None]) -> bool:
        """Whether the options were given for a protocol and host: keys must go to no other.

        Those of a remote reference file are for its own host. A local one has none: its options go
        to services of which a protocol names but one, such as S3, and to the hosts that `allowed`
        names.
        """
        if self.is_remote:
            return origin == origin_of(self.uri)
        named = (prefix for prefix in self.allowed or () if is_url(prefix))
        return not origin[1] or any(origin == origin_of(prefix) for prefix in named)

    def _is_usable(self, url: str) -> bool:
        scheme = _scheme_of(url)
        if "::" in url or scheme is None:
            return False
        return scheme in (REMOTE_PROTOCOLS if self.is_remote else LOCAL_PROTOCOLS) or (
            self.is_remote and "::" not in self.uri and scheme == _scheme_of(self.uri)
        )

    def _as_absolute(self, reference: str) -> str:
        """Return the absolute path or URL of what may be relative to this file."""
        if "[" in reference:
            reference = expand_address(reference)
        members, archive = split_archives(reference)
        if members:
            return members + self._as_absolute(archive)
        if local := _LOCAL_URL.match(reference):
            return resolve_uri(reference[local.end() :] or ".")
        if posixpath.isabs(reference) or (is_url(reference) and not is_file_name(reference)):
            return reference
        if self.is_remote:
            # A query, such as a signature, belongs to this file alone.
            base = self.uri.partition("?")[0] if is_web(self.uri) else self.uri
            return f"{base.rpartition('/')[0]}/{from_name(reference, base)}"
        return self._find_beside(reference, from_name(reference, self.uri))

    def _find_beside(self, reference: str, name: str) -> str:
        """Return the path of a file named relative to this one, or to the current folder."""
        in_current = os.path.abspath(name)
        if not self.uri:
            return in_current
        beside = os.path.join(os.path.dirname(self.uri), name)
        if not os.path.exists(beside):
            return in_current if os.path.exists(in_current) else beside
        # Kerchunk's own readers take paths as relative to the process, most writers mean the file.
        if os.path.exists(in_current) and not os.path.samefile(in_current, beside):
            raise BadReferenceError(
                f"the relative path {reference!r} is one file in the reference file's folder and "
                "another in the current folder; fsspec would take the latter. Change the folder, "
                "or write absolute paths"
            )
        return beside


def _is_name(reference: str) -> bool:
    """Tell whether the system can be asked for a name: no NUL, no half of a surrogate pair."""
    try:
        return "\0" not in reference and (reference.isascii() or bool(os.fsencode(reference)))
    except UnicodeEncodeError:
        return False


def _scheme_of(url: str) -> str | None:
    match = _SCHEME.match(url)
    return None if match is None else match[1].lower()


def _as_prefix(path_or_url: Any) -> str:
    text = expand_address(os.fspath(path_or_url))
    local = _LOCAL_URL.match(text)
    if text == ANYWHERE or (is_url(text) and not local):
        return str(text)
    # Real paths: `is_below` compares what links lead to.
    return os.path.realpath(text[local.end() :] if local else text)
