"""Credentials by prefix of URLs: named, looked up by each process, and renewed when they expire."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import re
import stat
import time
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import suppress
from datetime import datetime
from functools import lru_cache
from importlib import import_module
from netrc import NetrcParseError, netrc
from typing import Any, NoReturn
from unicodedata import normalize
from urllib.parse import unquote, urlsplit

from virtualzarr.errors import AccessError
from virtualzarr.redaction import find_secrets, hide_in_url
from virtualzarr.stores.forks import ForkSafeLock
from virtualzarr.stores.uris import is_web, origin_of

OPTION = "credentials"
"""The name among `storage_options`."""

FILE_VARIABLE = "VIRTUALZARR_CREDENTIALS"

RENEWAL = 0.8
"""The part of its lifetime after which a credential is renewed."""

_WEB = frozenset(["bearer", "headers", "sas", "earthdata", "netrc", "call"])
_PUBLIC = frozenset(
    ["profile", "anon", "requester_pays", "earthdata", "netrc", "call", "account_name",
     "endpoint_url", "region_name", "project", "expires_at"]
)  # fmt: skip
"""Names whose values are no secrets, and may be written where options are."""

_RECENT = 4
"""Credentials of one provider that are known, the newest of them in use."""

_UNKNOWN = float("inf")
_OVERLONG = re.compile(r"%c[01]%[89ab]", re.IGNORECASE)
"""Quoted characters of two bytes where one is right: old servers take %C0%AE for a full stop."""

_FUNCTION = re.compile(r"[^\W\d][\w.]*:[^\W\d]\w*")


class Credential:
    """What a provider gave: secrets, which nothing shows or pickles.

    Attributes
    ----------
    headers : mapping of str to str
        Of requests over HTTP.
    query : str
        A signature that is added to URLs; "" for none.
    options : mapping
        Of fsspec's file systems.
    renew_at : float
        When it is to be renewed, in seconds since 1970.
    """

    __slots__ = ("headers", "options", "query", "renew_at")

    def __init__(self, values: Mapping[str, Any], now: float) -> None:
        values = dict(values)
        expires_at = values.pop("expires_at", None)
        self.renew_at = _UNKNOWN if expires_at is None else now + RENEWAL * (expires_at - now)
        self.query = str(values.pop("sas", "")).removeprefix("?")
        self.headers = dict(values.pop("headers", {}))
        if "bearer" in values:
            self.headers["Authorization"] = f"Bearer {values.pop('bearer')}"
        self.options = values

    def as_options(self) -> dict[str, Any]:
        """Return options of fsspec's file systems of object stores."""
        return {**self.options, **({"sas_token": self.query} if self.query else {})}

    def is_same(self, other: Credential) -> bool:
        """Whether another one has the same secrets."""
        ours = self.headers, self.query, self.options
        return ours == (other.headers, other.query, other.options)

    def __reduce__(self) -> NoReturn:
        raise TypeError("credentials are not pickled: each process looks them up")


class Provider:
    """Where the credentials for a prefix come from.

    Parameters
    ----------
    prefix : str
    names : str or mapping
        As in `storage_options`, or in the file for all.
    may_have_secrets : bool
        Whether values may be secrets themselves, and not only say where they are.

    Raises
    ------
    ValueError
        For what is no such mapping, without naming a value.
    """

    def __init__(self, prefix: str, names: object, may_have_secrets: bool) -> None:
        self.prefix = prefix
        self._names = {"call": names} if isinstance(names, str) else names
        if not isinstance(self._names, Mapping) or not all(map(_is_text, self._names)):
            raise _spec_error(prefix, "a mapping, or module:function, is needed")
        if is_web(prefix) and (unknown := {*self._names} - _WEB):
            raise _spec_error(prefix, f"there is no {sorted(unknown)[0]!r} for HTTP")
        headers = self._names.get("headers", {})
        if not isinstance(headers, Mapping) or not all(map(_is_text, headers.values())):
            raise _spec_error(prefix, "headers is a mapping of names to texts")
        function = self._names.get("call", "a:b")
        if not isinstance(function, str) or not _FUNCTION.fullmatch(function):
            # Not repeated: it may be the secret itself, where its name is meant.
            raise _spec_error(prefix, "a function is named module:function")
        if self._names.get("netrc") not in (None, True, False, "basic", "bearer"):
            raise _spec_error(prefix, "netrc is true, or basic or bearer")
        if not may_have_secrets:
            for name, value in _flatten(self._names):
                if name not in _PUBLIC and not _is_reference(value):
                    raise _spec_error(
                        prefix, f"{name} has to be env:NAME or file:PATH, and no secret itself"
                    )
        self._lock = ForkSafeLock()
        self._credential: Credential | None = None
        self._problem: str | None = None
        self.lookups = 0
        self._recent = deque[Credential](maxlen=_RECENT)

    def __repr__(self) -> str:
        return f"Provider({self.prefix!r})"

    @property
    def names(self) -> object:
        """Where its values come from, or what they are."""
        return self._names

    @property
    def variables(self) -> frozenset[str]:
        """Variables of the environment in which its secrets are."""
        assert isinstance(self._names, Mapping)
        named = (value for _, value in _flatten(self._names) if _is_reference(value))
        names = {value.removeprefix("env:") for value in named if value.startswith("env:")}
        return frozenset(names | ({"EARTHDATA_TOKEN"} if self._names.get("earthdata") else set()))

    @property
    def secrets(self) -> frozenset[str]:
        """What was sent of late: answers to it may come after it was renewed, and repeat it."""
        sent = ({"headers": each.headers, **each.as_options()} for each in [*self._recent])
        return frozenset[str]().union(*map(find_secrets, sent))

    @property
    def is_fresh(self) -> bool:
        """Whether `get` has nothing to look up."""
        credential = self._credential
        return credential is not None and time.time() < credential.renew_at

    def get(self, lookups: int | None = None) -> Credential:
        """Return the credential, renewed in time.

        Parameters
        ----------
        lookups : int, optional
            What `lookups` was when it was needed: what came of later ones holds.

        Raises
        ------
        AccessError
            It is not there.
        """
        credential = self._credential
        if credential is None or time.time() >= credential.renew_at:
            lookups = self.lookups if lookups is None else lookups
            with self._lock:
                if self._credential is credential:
                    self._credential = self._look_up_once(lookups)
                credential = self._credential
        assert credential is not None
        return credential

    def renew(self, used: Credential | None, lookups: int | None = None) -> Credential:
        """Return another credential than one that was not accepted; that one if there is none."""
        lookups = self.lookups if lookups is None else lookups
        with self._lock:  # of those who were refused together, one asks
            if self._credential is used:
                renewed = self._look_up_once(lookups)
                self._credential = used if used and renewed.is_same(used) else renewed
            assert self._credential is not None
            return self._credential

    def _look_up_once(self, lookups: int) -> Credential:
        """Look the credential up, if nobody else has since there were so many lookups."""
        if self.lookups == lookups:
            problem = None
            try:
                self._recent.append(self._look_up())
            except AccessError as error:
                problem = error.message
                raise
            except BaseException:  # whoever waits looks it up himself
                self.lookups -= 1
                raise
            finally:
                self._problem, self.lookups = problem, self.lookups + 1
        elif self._problem is not None:
            raise AccessError(self._problem)
        return self._recent[-1]

    def _look_up(self) -> Credential:
        values: dict[str, Any] = {}
        assert isinstance(self._names, Mapping)
        for name, value in self._names.items():
            if name == "call":
                values |= self._call(value)
            elif name == "earthdata":
                values |= {"bearer": self._read("env:EARTHDATA_TOKEN")} if value else {}
            elif name == "netrc":
                values = _merge(values, self._read_netrc(value) if value else {})
            elif isinstance(value, Mapping) and name == "headers":
                headers = {header: self._read(text) for header, text in value.items()}
                values = _merge(values, {name: headers})
            else:
                values[name] = self._read(value)
        if not isinstance(values.get("expires_at", 0), int | float):
            raise AccessError(f"expires_at is no date or number: credentials for {self.prefix}")
        return Credential(values, time.time())

    def _read(self, value: Any) -> Any:
        """Return the secret that a value is, or names."""
        if not _is_reference(value):
            return value
        kind, _, name = value.partition(":")
        if kind == "env":
            if name not in os.environ:
                raise AccessError(f"the variable {name} is not set: credentials for {self.prefix}")
            return os.environ[name]
        return read_private(name).strip()

    def _read_netrc(self, kind: object) -> dict[str, Any]:
        """Return what the user's netrc has for the host of the prefix, and for no other."""
        host, path = origin_of(self.prefix)[1], os.environ.get("NETRC") or "~/.netrc"
        path, hosts = os.path.expanduser(path), None
        _check_private(path)
        # Neither quoted nor chained: what the parser says may have secrets in it.
        with suppress(NetrcParseError, ValueError):
            hosts = netrc(path).hosts
        if hosts is None:
            raise AccessError("netrc cannot be parsed", file=path)
        # Not `authenticators`, which has the entry `default` for all hosts.
        entry = hosts.get(host)
        if entry is None:
            raise AccessError(f"netrc has nothing for the host of {self.prefix}", file=path)
        login, _, password = entry
        if not is_web(self.prefix):
            return {"username": login, "password": password}
        if kind == "bearer":
            return {"bearer": password}
        text = base64.b64encode(f"{login}:{password}".encode()).decode()
        return {"headers": {"Authorization": f"Basic {text}"}}

    def _call(self, name: str) -> dict[str, Any]:
        module, _, function = name.partition(":")
        # Named once it is known to be a function: it may be a login, where its name is meant.
        problem, shown = "", "the function that is named"
        try:
            called = getattr(import_module(module), function)
            shown = name
            result = called()
            values = {"bearer": result} if isinstance(result, str) else dict(result)
            if isinstance(expires_at := values.get("expires_at"), datetime):
                values["expires_at"] = expires_at.timestamp()
            headers: Any = values.get("headers", {})
            if not all(map(_is_text, dict(headers).values())):
                raise TypeError("headers are texts")
            return values
        except (Exception, SystemExit) as error:  # programs of the command line end so
            problem = type(error).__name__
        # Neither quoted nor chained, not even as context: what it says may have secrets in it.
        raise AccessError(f"{shown} failed with {problem}: credentials for {self.prefix}")


async def get_credential(provider: Provider) -> Credential:
    """Return the credential of a provider; what has to be looked up does not stop the loop."""
    if provider.is_fresh:
        return provider.get()
    return await asyncio.to_thread(provider.get, provider.lookups)


async def renew_credential(provider: Provider, used: Credential | None) -> bool:
    """Renew a credential that was not accepted, and tell whether there is another."""
    return await asyncio.to_thread(provider.renew, used, provider.lookups) is not used


class Keyring:
    """Providers by prefix.

    Examples
    --------
    >>> keyring = Keyring({"s3://a": {"profile": "work"}, "s3://a/b": {"anon": True}})
    >>> keyring.find("s3://a/b/c.nc"), keyring.find("s3://ab/c.nc")
    (Provider('s3://a/b'), None)
    """

    def __init__(self, names: Mapping[str, object], may_have_secrets: bool = False) -> None:
        self._providers: dict[tuple[object, ...], Provider] = {}
        for prefix, value in names.items():
            shown = hide_in_url(prefix)
            if shown != prefix:
                raise ValueError(
                    f"credentials for {shown}: the prefix has a login or a signature in it, which "
                    "belongs to what is given for the prefix"
                )
            segments = split_url(prefix)
            if segments is None:
                # Not repeated: it may be a secret in the wrong place.
                raise ValueError(
                    "credentials are for prefixes of URLs, such as https://host/folder, and one of "
                    "the names that are given is none, or has . or .. in its path"
                )
            while segments[-1] == "":  # https://host/a/ is the prefix https://host/a
                segments = segments[:-1]
            self._providers[segments] = Provider(prefix, value, may_have_secrets)

    def find(self, url: str) -> Provider | None:
        """Return the provider of the longest prefix that a URL lies below."""
        segments = split_url(url)
        while segments:
            if (provider := self._providers.get(segments)) is not None:
                return provider
            segments = segments[:-1]
        return None

    @property
    def prefixes(self) -> frozenset[tuple[object, ...]]:
        """The prefixes, as `split_url` returns them."""
        return frozenset(self._providers)

    def describe(self) -> list[tuple[str, object]]:
        """Return the names of all credentials by prefix, which may be secrets themselves."""
        described = [(provider.prefix, provider.names) for provider in self._providers.values()]
        return sorted(described, key=lambda pair: pair[0])

    @property
    def variables(self) -> frozenset[str]:
        """Variables of the environment in which secrets are."""
        names = (provider.variables for provider in self._providers.values())
        return frozenset[str]().union(*names)

    @property
    def secrets(self) -> frozenset[str]:
        """The secrets of all providers that were asked."""
        each = (provider.secrets for provider in self._providers.values())
        return frozenset[str]().union(*each)

    def __or__(self, first: Keyring) -> Keyring:
        merged = Keyring({})
        merged._providers = self._providers | first._providers
        return merged


def split_url(url: str) -> tuple[object, ...] | None:
    """Return protocol, host and port or bucket, and the segments of the path.

    None for what is no URL, and for paths that a server may take for others.

    Examples
    --------
    >>> split_url("https://Host.org/a//b/?x=1")
    ('https', 'host.org', 443, 'a', '', 'b', '')
    >>> split_url("https://host.org/a%2Fb"), split_url("https://host.org/a/%252e%252e/b")
    (('https', 'host.org', 443, 'a/b'), None)
    """
    if "::" in url or "://" not in url:
        return None
    is_quoted = is_web(url)
    try:
        parts = urlsplit(url if is_quoted else url.replace("?", "%3F").replace("#", "%23"))
    except ValueError:
        return None
    path = parts.path if is_quoted else url.partition("://")[2].removeprefix(parts.netloc)
    segments = path.removeprefix("/").split("/") if path else []
    # A quoted slash is part of a segment here, and ends none; a server that takes it for a slash
    # could still go up by it.
    plain = [_unquote_all(segment) for segment in segments]
    if _OVERLONG.search(path) or any(map(_leads_up, "/".join(plain).replace("\\", "/").split("/"))):
        return None
    origin = origin_of(url)
    # Buckets are no hosts, but prefixes are of one of them; and keys of objects are not quoted.
    bucket = [] if origin[1] else [parts.netloc]
    return *origin, *bucket, *(plain if is_quoted else segments)


def _leads_up(step: str) -> bool:
    """Tell whether a server may take a step of a path for `.` or `..`.

    Some drop what follows a semicolon, blanks and control characters, or know other full stops.
    """
    step = normalize("NFKC", step).partition(";")[0]
    return "".join(char for char in step if char > " " and char != "\x7f") in (".", "..")


def _unquote_all(text: str) -> str:
    while (plain := unquote(text)) != text:
        text = plain
    return text


_EMPTY = Keyring({})


def find_keyring(options: Mapping[str, Any] | None) -> Keyring | None:
    """Return the keyring that options name, and that of the file for all; None without any.

    Raises
    ------
    ValueError
        For what is no mapping of prefixes.
    AccessError
        Others may read the file, or it is not there.
    """
    named, path = (options or {}).get(OPTION), os.environ.get(FILE_VARIABLE)
    if not named and not path:
        return None
    if named is not None and not isinstance(named, Mapping):
        raise ValueError("credentials are a mapping of prefixes of URLs")
    ours = _keyring_of(json.dumps(named, sort_keys=True)) if named else _EMPTY
    if not path:
        return ours
    status = _check_private(path)
    return _keyring_of_file(path, status.st_mtime_ns) | ours


# Shared, so that all files below a prefix have one token, which is renewed once.
@lru_cache(maxsize=64)
def _keyring_of(names: str) -> Keyring:
    return Keyring(json.loads(names))


@lru_cache(maxsize=8)
def _keyring_of_file(path: str, mtime_ns: int) -> Keyring:
    try:
        names = json.loads(read_private(path))
    except ValueError:
        names = None
    if not isinstance(names, dict):
        # Not quoted: secrets are in it.
        raise ValueError(f"{path}, which {FILE_VARIABLE} names, is no JSON object of prefixes")
    return Keyring(names, may_have_secrets=True)


def without_keyring(options: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return options without the names of credentials, as libraries take them."""
    return {name: value for name, value in (options or {}).items() if name != OPTION}


def names_of(options: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the names of credentials among options, as options, and nothing else of them."""
    return {name: value for name, value in (options or {}).items() if name == OPTION}


def read_private(path: str) -> str:
    """Return the text of a file that nobody else may read."""
    _check_private(path)
    with open(path, encoding="utf-8") as file:
        return file.read()


def _check_private(path: str) -> os.stat_result:
    try:
        status = os.stat(path)
    except OSError as error:
        raise AccessError(f"credentials cannot be read: {error.strerror}", file=path) from error
    if os.name == "posix" and stat.S_IMODE(status.st_mode) & 0o077:
        raise AccessError("others may read these credentials: chmod 600", file=path)
    return status


def _spec_error(prefix: str, problem: str) -> ValueError:
    return ValueError(f"credentials for {prefix}: {problem}")


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _is_reference(value: object) -> bool:
    return isinstance(value, str) and value.startswith(("env:", "file:"))


def _merge(first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, Any]:
    """Return what two sources give together, the headers of both."""
    headers = {**first.get("headers", {}), **second.get("headers", {})}
    return {**first, **second, **({"headers": headers} if headers else {})}


def _flatten(names: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for name, value in names.items():
        if name == "headers" and isinstance(value, Mapping):
            yield from ((f"header {header}", text) for header, text in value.items())
        elif name == "client_kwargs" and isinstance(value, Mapping):
            yield from value.items()
        else:
            yield name, value
