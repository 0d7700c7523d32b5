"""Credentials by prefix of URLs: which of those that are named a URL gets."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any
from unicodedata import normalize
from urllib.parse import unquote, urlsplit

from virtualzarr.redaction import find_secrets, hide_in_url
from virtualzarr.stores.credential_providers import Provider, check_private, read_private
from virtualzarr.stores.uris import expand_address, is_web, origin_of

OPTION = "credentials"
"""The name among `storage_options`."""

FILE_VARIABLE = "VIRTUALZARR_CREDENTIALS"

_OVERLONG = re.compile(r"%c[01]%[89ab]", re.IGNORECASE)
"""Quoted characters of two bytes where one is right: old servers take %C0%AE for a full stop."""


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
            url = hide_in_url(prefix)
            if url != prefix:
                raise ValueError(
                    f"credentials for {url}: the prefix has a login or a signature in it, which "
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

    def concerns(self, url: str) -> bool:
        """Tell whether there are credentials for a URL, or for some that are below it."""
        segments = split_url(url)
        if segments is None:
            return False
        return self.find(url) is not None or any(
            prefix[: len(segments)] == segments for prefix in self._providers
        )

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
    def renewals(self) -> int:
        """How often other credentials came of a look-up than were there before."""
        return sum(provider.renewals for provider in self._providers.values())

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
    url = expand_address(url) if "[" in url else url
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
    ours = _keyring_of(_as_json(named)) if named else _EMPTY
    if not path:
        return ours
    status = check_private(path)
    return _keyring_of_file(path, status.st_mtime_ns) | ours


def _as_json(named: Mapping[str, Any]) -> str:
    try:
        return json.dumps(named, sort_keys=True)
    except (TypeError, ValueError):
        problem = _find_odd_value(named)
    # Not chained: what is no text may show itself.
    raise ValueError(problem)


def _find_odd_value(named: Mapping[str, Any]) -> str:
    """Return what is wrong with names that are not all of JSON."""
    problem = "they are named by a mapping of texts, or module:function"
    for prefix, names in named.items():
        values = [names, *names.values()] if isinstance(names, Mapping) else [names]
        functions = [value for value in values if callable(value)]
        try:
            json.dumps(names)
        except (TypeError, ValueError):
            problem = _ask_for_name(functions[0]) if functions else problem
            # Any other name may be a secret in the wrong place.
            is_prefix = isinstance(prefix, str) and split_url(prefix) is not None
            return f"credentials{f' for {hide_in_url(prefix)}' if is_prefix else ''}: {problem}"
    return f"credentials: {problem}"


def _ask_for_name(function: Any) -> str:
    module, name = (getattr(function, each, "") for each in ("__module__", "__qualname__"))
    is_named = module != "__main__" and str(name).isidentifier()
    return (
        f"a function is named {f'{module}:{name}' if is_named else 'module:function'!r}, as a text "
        "by which other processes import it"
    )


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


def secrets_of(options: Mapping[str, Any] | None, url: str) -> frozenset[str]:
    """Return the secrets in options and in a URL, and those that were looked up of late."""
    keyring = find_keyring(options)
    secrets = find_secrets(without_keyring(options), url)
    return secrets if keyring is None else secrets | keyring.secrets


def advise_login(
    provider: Provider | None,
    host: str,
    *,
    is_renewed: bool = False,
    options: Mapping[str, Any] | None = None,
) -> str:
    """Return what to do about an answer that credentials are missing, or not accepted.

    Parameters
    ----------
    provider : Provider, optional
        Whose credentials were sent.
    host : str
        What is a prefix for which they can be given.
    is_renewed : bool
        Whether others were sent when the first were not accepted.
    options : mapping, optional
        What was sent without a provider.

    Examples
    --------
    >>> advise_login(None, "https://host")
    "credentials are given by storage_options={'credentials': {'https://host': ...}}, see \
docs/credentials.md"
    """
    if provider is None:
        are_given = bool(find_secrets(without_keyring(options)))
        others = "those in storage_options were not accepted; others " if are_given else ""
        others = others or "credentials "
        return (
            f"{others}are given by storage_options={{{OPTION!r}: {{{host!r}: ...}}}}, "
            "see docs/credentials.md"
        )
    renewed = " were renewed, and" if is_renewed else ""
    return f"the credentials for {provider.prefix}{renewed} were not accepted"


def names_of(options: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the names of credentials among options, as options, and nothing else of them."""
    return {name: value for name, value in (options or {}).items() if name == OPTION}
