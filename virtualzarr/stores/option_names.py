"""Names of options that file systems take: errors that say which there are, before any request."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

_COMMON = frozenset(
    ["use_listings_cache", "listings_expiry_time", "max_paths", "skip_instance_cache",
     "target_protocol", "target_options", "compression", "encoding", "errors", "expand", "mode",
     "name_function", "newline", "num"]
)  # fmt: skip
"""Options that fsspec itself takes, or leaves out."""

_OTHERS = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
_MAPPINGS = ("headers", "client_kwargs", "config_kwargs", "s3_additional_kwargs")

_KINDS = {
    "fsspec.implementations.http.HTTPFileSystem": "HTTP",
    "s3fs.core.S3FileSystem": "S3",
    "fsspec.implementations.ftp.FTPFileSystem": "FTP",
}
"""File systems that pass on what they do not know, or say nothing of it."""

S3_NAMES = (
    "key, secret, token, profile, anon, requester_pays, endpoint_url, region_name and client_kwargs"
)

_ADVICE = {
    "HTTP": "headers, client_kwargs, ssl, proxy and timeout are some that there are",
    "S3": f"{S3_NAMES} are some that there are",
    "FTP": "username, password, acct, tls and timeout are some that there are",
}
_LOGINS = frozenset(["username", "user", "password", "bearer", "token", "netrc", "basic", "login"])
"""Names under which a login may be meant for HTTP."""


def check_options(uri: str, options: Mapping[str, Any]) -> None:
    """Refuse options that a file system does not take, by their names: values may be secrets.

    Raises
    ------
    ValueError
    """
    protocol = uri.partition("://")[0].lower()
    if "::" in uri or not options:
        return
    for name in _MAPPINGS:
        if options.get(name) is not None and not isinstance(options[name], Mapping):
            raise ValueError(
                f"storage_options: {name} has to be a mapping, such as "
                f'{{"{name}": {{"name": "value"}}}} in JSON, not {type(options[name]).__name__}'
            )
    kind, names = _find_names(protocol)
    for name in ("key", "secret", "token") if kind == "S3" else ():
        # Else botocore says what it likes, at some request or other.
        if not isinstance(value := options.get(name), str | None):
            raise ValueError(f"storage_options: {name} is a text for S3")
        if value and not value.isprintable():
            raise ValueError(f"storage_options: {name} has signs in it, such as a newline")
    unknown = [] if kind is None else [name for name in options if name not in names]
    if not unknown:
        return
    advice = _ADVICE[kind or ""]
    if kind == "HTTP" and _LOGINS.issuperset(unknown):
        advice = (
            "a login is given by prefix, such as storage_options={'credentials': {'https://host': "
            "{'username': 'env:NAME', 'password': 'file:PATH'}}}, see docs/credentials.md"
        )
    listed = ", ".join(map(repr, unknown))
    raise ValueError(f"storage_options: {kind} takes no option {listed}; {advice}")


def check_headers(options: Mapping[str, Any]) -> None:
    """Refuse headers that are no texts, without their values: aiohttp would show these."""
    for mapping in (options, options.get("client_kwargs") or {}):
        for name, value in dict(mapping.get("headers") or {}).items():
            if not isinstance(name, str) or not isinstance(value, str):
                named = f" {name!r}" if isinstance(name, str) else ""
                raise ValueError(
                    f"storage_options: the header{named} has to be text, not {type(value).__name__}"
                )


@lru_cache(maxsize=16)
def _find_names(protocol: str) -> tuple[str | None, frozenset[str]]:
    """Return the kind of a protocol's file system and the names of its options; None for others."""
    import fsspec

    try:
        cls = fsspec.get_filesystem_class(protocol)
    except (ImportError, ValueError):  # said when it is opened
        return None, frozenset()
    kind = _KINDS.get(f"{cls.__module__}.{cls.__name__}")
    extra = {protocol}
    takers: list[Any] = [base.__init__ for base in cls.__mro__]
    if kind == "HTTP":
        from aiohttp import ClientSession

        takers.append(ClientSession._request)
    elif kind == "S3":
        from aiobotocore.session import AioSession

        takers.append(AioSession.__init__)
        # The last three are options of datasets, of which requests by s3fs say that it has none.
        extra |= {"region_name", "verify", "consistency", "cache_timeout"}
    parameters = [each for taker in takers for each in inspect.signature(taker).parameters.values()]
    names = {each.name for each in parameters if each.kind not in _OTHERS}
    return kind, _COMMON | names | extra
