"""Logins at FTP servers and their likes: asked for again, and shared where a server is full."""

from __future__ import annotations

import ftplib
import os
import re
from collections.abc import Hashable, Mapping
from hashlib import sha256
from typing import Any
from weakref import WeakSet

from virtualzarr.errors import SourceError
from virtualzarr.stores.credential_providers import Provider
from virtualzarr.stores.credentials import advise_login
from virtualzarr.stores.fingerprints import as_source_error
from virtualzarr.stores.forks import ForkSafeLock
from virtualzarr.stores.retry import TransientError, retry_blocking
from virtualzarr.stores.uris import origin_of, parse_url

_LOGGED_IN = ("ftp://", "ftps://", "sftp://", "ssh://", "smb://")

_FULL = re.compile(r"too many|maximum|limit", re.IGNORECASE)
_live: dict[Hashable, WeakSet[Any]] = {}
_lock = ForkSafeLock()


def logs_in_at_once(uri: str) -> bool:
    """Tell whether the file system of a URL logs in when it is made, and not by each request."""
    return uri.lower().startswith(_LOGGED_IN) and "::" not in uri


def log_in(uri: str, options: Mapping[str, Any]) -> tuple[Any, str]:
    """Return fsspec's file system for a URL, which connects when it is made, and the path in it.

    Servers take only so many connections of a user. Where one takes no more, the connections that
    this process has there are shared; several are faster.

    Raises whatever the file system does.
    """
    import fsspec

    url = parse_url(uri)
    login = repr((url.netloc, sorted(options.items(), key=repr))).encode()
    key = os.getpid(), url.scheme, sha256(login).digest()  # passwords are no keys

    def attempt() -> tuple[Any, str]:
        try:
            fs, path = fsspec.core.url_to_fs(uri, **options)
        except Exception as error:
            if is_full(error) and (shared := _find_live(key)) is not None:
                return shared, shared._strip_protocol(uri)
            if is_full(error) or _may_pass(error):
                raise TransientError(error) from error
            raise
        if url.scheme.startswith("ftp"):
            _note_live(key, fs)
        return fs, path

    return retry_blocking(attempt)


def _note_live(key: Hashable, fs: Any) -> None:
    with _lock:
        for other in [other for other, there in _live.items() if not there]:
            del _live[other]
        _live.setdefault(key, WeakSet()).add(fs)


def _find_live(key: Hashable) -> Any:
    with _lock:
        return next(iter(_live.get(key, ())), None)


def is_full(error: Exception) -> bool:
    """Tell whether a server takes no more connections. Source: RFC 959, 5.4; what servers say.

    Examples
    --------
    >>> is_full(ftplib.error_perm("530 Too many users")), is_full(ftplib.error_perm("530 No"))
    (True, False)
    """
    answer = str(error)
    is_refused = isinstance(error, ftplib.error_perm) and answer.startswith("530")
    is_busy = isinstance(error, ftplib.error_temp) and answer.startswith("421")
    return is_busy or (is_refused and _FULL.search(answer) is not None)


def _may_pass(error: Exception) -> bool:
    # Where nobody listens, or answers in time, is no server.
    is_lasting = isinstance(error, ConnectionRefusedError)
    is_broken = isinstance(error, ConnectionError | EOFError | ftplib.error_temp)
    return is_broken and not is_lasting


def describe_login(error: Exception, uri: str, provider: Provider | None) -> SourceError:
    """Return the error for a file system that cannot be made, with what to do about a login."""
    # The status of FTP for a login that is missing or wrong.
    is_refused = type(error).__module__ == "ftplib" and str(error).startswith("530")
    if not is_refused or is_full(error):
        return as_source_error(error, uri)
    protocol, host, port = origin_of(uri)
    advice = advise_login(provider, f"{protocol}://{host}:{port}")
    return SourceError(f"the server answered {error}: {advice}", file=uri)
