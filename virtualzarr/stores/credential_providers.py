"""Providers of credentials for a prefix, which each process looks up, and renews in time."""

from __future__ import annotations

import asyncio
import base64
import math
import os
import re
import stat
import time
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import datetime
from difflib import get_close_matches
from importlib import import_module
from netrc import NetrcParseError, netrc
from typing import Any, NoReturn
from weakref import WeakKeyDictionary

from virtualzarr.errors import AccessError
from virtualzarr.redaction import find_secrets
from virtualzarr.stores import credential_lookups
from virtualzarr.stores.credential_lookups import (
    Lookup,
    call_in_turn,
    late_error,
    looking_up,
    waiting_for,
)
from virtualzarr.stores.forks import ForkSafeLock, reset_in_forks
from virtualzarr.stores.option_names import S3_NAMES
from virtualzarr.stores.refusals import Uses
from virtualzarr.stores.uris import is_web, origin_of

RENEWAL = 0.8
"""The part of its lifetime after which a credential is renewed."""

_WEB = ("bearer", "headers", "username", "password", "sas", "earthdata", "netrc", "call")
_WEB_VALUES = ("bearer", "headers", "username", "password", "sas", "expires_at")
_WEB_ALONE = frozenset(["bearer", "headers", "earthdata"])
_PUBLIC = frozenset(
    ["profile", "anon", "requester_pays", "earthdata", "netrc", "call", "account_name",
     "endpoint_url", "region_name", "project", "expires_at"]
)  # fmt: skip
"""Names whose values are no secrets, and may be written where options are."""

_RECENT = 4
"""Credentials of one provider that are known, the newest of them in use."""

_UNKNOWN = float("inf")
_WORDS = re.compile(r"[a-z]{1,20}(?:[_.][a-z]{1,20})*")
_FUNCTION = re.compile(r"[^\W\d][\w.]*:[^\W\d]\w*")
_TOKEN = re.compile(r"[!-~]+")
_IN_HEADERS = re.compile(r"[^\0\r\n]*")


YOUNG = 60
"""Credentials that were looked up so many seconds ago are taken for good."""


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
    looked_up_at : float
        When it was looked up, in seconds since 1970.
    uses : Uses
        Requests that were sent with it.
    """

    __slots__ = ("headers", "looked_up_at", "options", "query", "renew_at", "uses")

    def __init__(self, values: Mapping[str, Any], now: float, uses: Uses) -> None:
        values, self.looked_up_at = dict(values), now
        expires_at = values.pop("expires_at", None)
        self.renew_at = _UNKNOWN if expires_at is None else now + RENEWAL * (expires_at - now)
        self.query = str(values.pop("sas", "")).removeprefix("?")
        self.headers = dict(values.pop("headers", {}))
        if "bearer" in values:
            self.headers["Authorization"] = f"Bearer {values.pop('bearer')}"
        self.options = values
        self.uses = uses

    def as_options(self) -> dict[str, Any]:
        """Return options of fsspec's file systems of object stores."""
        return {**self.options, **({"sas_token": self.query} if self.query else {})}

    def is_same(self, other: Credential) -> bool:
        """Whether another one has the same secrets."""
        ours = self.headers, self.query, self.options
        try:
            return bool(ours == (other.headers, other.query, other.options))
        except Exception:  # of objects that a function has returned
            return False

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

    Attributes
    ----------
    lookups : int
        How often they were looked up.
    renewals : int
        How often others came of that than were there before.

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
        self._check_names(self._names)
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
        self.turns = WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Lock]()
        reset_in_forks(self)
        self.reset_after_fork()
        self._credential: Credential | None = None
        self._problem: str | None = None
        self.lookups = 0
        self.renewals = 0
        self._uses = Uses()
        self._recent = deque[Credential](maxlen=_RECENT)

    def _check_names(self, names: Mapping[str, Any]) -> None:
        """Refuse names that would have no effect for the protocol of the prefix."""
        if is_web(self.prefix):
            if unknown := {*names}.difference(_WEB):
                raise _spec_error(
                    self.prefix,
                    f"there is no {sorted(unknown)[0]!r} for HTTP, but {', '.join(_WEB)}",
                )
            if ("username" in names) != ("password" in names):
                raise _spec_error(self.prefix, "username and password belong together")
        elif useless := _WEB_ALONE.intersection(names):
            raise _spec_error(self.prefix, f"{sorted(useless)[0]!r} is for HTTP alone")
        elif self.prefix.startswith("s3") and (keys := [n for n in names if n.startswith("aws_")]):
            raise _spec_error(self.prefix, f"there is no {keys[0]!r} for S3, but {S3_NAMES}")

    def __repr__(self) -> str:
        return f"Provider({self.prefix!r})"

    def reset_after_fork(self) -> None:
        """Forget what another thread looks up, which was not forked."""
        self.lookup: Lookup | None = None

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
            with self._alone():
                if self._credential is credential:
                    self._replace(self._look_up_once(lookups))
                credential = self._credential
        assert credential is not None
        return credential

    def renew(self, used: Credential | None, lookups: int | None = None) -> Credential:
        """Return another credential than one that was not accepted; that one if there is none."""
        lookups = self.lookups if lookups is None else lookups
        with self._alone():  # of those who were refused together, one asks
            if self._credential is used:
                renewed = self._look_up_once(lookups)
                self._replace(used if used and renewed.is_same(used) else renewed)
            assert self._credential is not None
            return self._credential

    def forget(self) -> None:
        """Have the credential looked up anew by who needs it next: nothing opens by it."""
        self._credential = None

    def _replace(self, credential: Credential) -> None:
        old, self._credential = self._credential, credential
        self.renewals += old is not None and not credential.is_same(old)

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Wait for who looks it up, and exclude all others."""
        with waiting_for(self):
            if not self._lock.acquire(timeout=credential_lookups.PATIENCE):
                raise late_error(self)
            try:
                yield
            finally:
                self._lock.release()

    def _look_up_once(self, lookups: int) -> Credential:
        """Look the credential up, if nobody else has since there were so many lookups."""
        if self.lookups == lookups:
            try:
                self._recent.append(self._look_up())
            except AccessError as error:  # after any other, whoever waits looks it up himself
                self._problem, self.lookups = error.message, lookups + 1
                raise
            self._problem, self.lookups = None, lookups + 1
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
        # What a function returns may be anything: it is refused here, and not where it is sent.
        problem = _find_web_problem(values) if is_web(self.prefix) else None
        if (problem := problem or _find_problem(values)) is not None:
            raise AccessError(f"{problem}: credentials for {self.prefix}")
        if is_web(self.prefix):
            values = self._as_basic(values)
        return Credential(values, time.time(), Uses(self._uses))

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
        check_private(path)
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
        if kind == "bearer" and is_web(self.prefix):
            return {"bearer": password}
        return {"username": login, "password": password}

    def _as_basic(self, values: dict[str, Any]) -> dict[str, Any]:
        """Return values with the header of basic authentication for a name and a password."""
        login = values.pop("username", None), values.pop("password", None)
        if login == (None, None):
            return values
        if not all(map(_is_text, login)):
            raise AccessError(f"username and password are texts: credentials for {self.prefix}")
        text = base64.b64encode(":".join(login).encode()).decode()
        return _merge(values, {"headers": {"Authorization": f"Basic {text}"}})

    def _call(self, name: str) -> dict[str, Any]:
        module, _, function = name.partition(":")
        # Named once it is known to be a function: it may be a login, where its name is meant.
        called = self._import(module, function)
        with looking_up(self) as lookup:
            try:
                result = called()
                values = {"bearer": result} if isinstance(result, str) else result
                if isinstance(values, Mapping) and (values := dict(values)):
                    if isinstance(expires_at := values.get("expires_at"), datetime):
                        values["expires_at"] = expires_at.timestamp()
                    return values
                problem = f"returned neither a token nor a mapping of some, but {_describe(result)}"
            except (Exception, SystemExit) as error:  # programs of the command line end so
                problem = f"failed with {type(error).__name__}"
        if lookup.asks_itself:
            problem = "reads what needs the credentials that it is to return"
        # Neither quoted nor chained, not even as context: what it says may have secrets in it.
        raise AccessError(f"{name} {problem}: credentials for {self.prefix}")

    def _import(self, module: str, function: str) -> Any:
        """Return a function by its name, of which errors show what is surely no secret.

        It may be a login, user:password or key:secret, where the name of a function is meant.
        """
        named = f" {module}" if _WORDS.fullmatch(module) else ""
        try:
            imported = import_module(module)
            if callable(called := getattr(imported, function, None)):
                return called
            problem = f"the module {module} has no function of the name that is given"
            if close := get_close_matches(function, vars(imported), 1):
                problem += f" (is {module}:{close[0]} meant?)"
        except ModuleNotFoundError as error:
            if not f"{module}.".startswith(f"{error.name}."):  # one that it imports itself
                named = f" {error.name}"
            problem = f"there is no module{named} for the function that is named"
        except (Exception, SystemExit) as error:
            problem = f"the module{named} failed with {type(error).__name__}"
        raise AccessError(f"{problem}: credentials for {self.prefix}")


def _find_problem(values: Mapping[str, Any]) -> str | None:
    """Return why values are none for any protocol, without a secret; None if nothing is wrong."""
    if not isinstance(values.get("headers", {}), Mapping):
        return "headers is no mapping"
    if not _is_text(values.get("sas", "")):
        return "sas is no text"
    if not _is_timestamp(values.get("expires_at", 0)):
        return "expires_at is no date or number"
    return None


def _find_web_problem(values: Mapping[str, Any]) -> str | None:
    """Return why values are none of HTTP, without a secret; None if nothing is wrong."""
    token, headers = values.get("bearer", "."), values.get("headers", {})
    if unknown := {*values}.difference(_WEB_VALUES):
        names = [name for name in unknown if _is_text(name) and _WORDS.fullmatch(name)]
        problem = f"there is no {min(names)!r}" if names else "they are of names that are not known"
        return f"{problem} for HTTP, but {', '.join(_WEB_VALUES)}"
    if not isinstance(token, str):
        return "the bearer token is no text"
    if not _TOKEN.fullmatch(token):
        return f"the bearer token {'has characters that none may have' if token else 'is empty'}"
    if not isinstance(headers, Mapping) or not all(map(_is_text, [*headers, *headers.values()])):
        return "headers is a mapping of names to texts"
    if not all(_IN_HEADERS.fullmatch(text) for text in headers.values()):
        return "a header has several lines"
    return None


def _is_timestamp(value: object) -> bool:
    with suppress(OverflowError):
        if isinstance(value, int | float) and not isinstance(value, bool):
            return math.isfinite(value)
    return False


def _describe(result: object) -> str:
    return "an empty mapping" if isinstance(result, Mapping) else type(result).__name__


async def get_credential(provider: Provider) -> Credential:
    """Return the credential of a provider; what has to be looked up does not stop the loop."""
    if provider.is_fresh:
        return provider.get()
    return await call_in_turn(provider, provider.get, provider.lookups)


async def renew_credential(provider: Provider, used: Credential | None) -> bool:
    """Renew a credential that was not accepted, and tell whether there is another."""
    return await call_in_turn(provider, provider.renew, used, provider.lookups) is not used


def read_private(path: str) -> str:
    """Return the text of a file that nobody else may read."""
    check_private(path)
    with open(path, encoding="utf-8") as file:
        return file.read()


def check_private(path: str) -> os.stat_result:
    """Return the status of a file, or raise `AccessError` if others may read it."""
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
