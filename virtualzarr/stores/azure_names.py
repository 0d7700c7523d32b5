"""Names of Azure's accounts and hosts: what URL and options say together, for all who ask there.

A URL that names a host is asked there, and options have to agree with it and with each other: a key
or a signature goes to no other host than the one that was meant. Sources: Microsoft, "Configure
Azure Storage connection strings", "Storage account endpoints" and "Azurite".
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from virtualzarr.errors import UnsupportedError, error_context

_PROTOCOLS = ("az://", "abfs://", "abfss://")
_VARIABLE = "AZURE_STORAGE_CONNECTION_STRING"

_CONTAINER = re.compile(r"[^@?#%\\:.\s]*")
_ACCOUNT = re.compile(r"[a-z0-9-]{1,63}")
_HOST = re.compile(r"[a-z0-9.-]+(:\d+)?")
_OF_ACCOUNT = re.compile(
    r"([a-z0-9-]+?)(?:-(?:secondary|microsoftrouting|internetrouting))*"
    r"(?:\.z\d+|\.privatelink)?\.blob\."
)
"""Hosts whose first part is an account, in all clouds."""

_URL = re.compile(r"(https?)://([^/]*)/?([^/]*)/?", re.IGNORECASE)
_SECRETS = {"accountkey": "account_key", "sharedaccesssignature": "sas_token"}


class _Endpoint(NamedTuple):
    """Where blobs are: an emulator has the account as the path."""

    protocol: str
    host: str
    path: str

    @property
    def account(self) -> str | None:
        match = _OF_ACCOUNT.match(self.host)
        return self.path or (match and match[1]) or None

    def __str__(self) -> str:
        return f"{self.protocol}://{self.host}{self.path and '/'}{self.path}"


@dataclass(frozen=True)
class AzureNames:
    """What a URL and options name together.

    Attributes
    ----------
    url : str
        The URL without its host.
    container : str
    account : str, optional
    endpoint : str, optional
        A URL of the web, without a slash at its end.
    options : dict
        All others, in which `account_key` and `sas_token` are also those of a connection string.
    has_string : bool
        Whether a connection string was given.
    """

    url: str
    container: str
    account: str | None
    endpoint: str | None
    options: dict[str, Any] = field(repr=False)
    has_string: bool = False

    def for_adlfs(self) -> dict[str, Any]:
        """Return the options by which adlfs asks the endpoint.

        Raises
        ------
        UnsupportedError
            It has no way to.
        """
        if self.endpoint is None:
            return self.options
        host = self.endpoint.partition("://")[2]
        # The host also beside a text: a file that is opened prefers a key of the environment.
        options = self.options | {"account_name": self.account, "account_host": host}
        secrets = [name for name in _SECRETS.values() if options.get(name)]
        is_text_enough = secrets or not (options.get("client_id") or self._must_log_in)
        is_elsewhere = options.get("location_mode") not in (None, "primary")
        if options.get("credential") or is_elsewhere or not is_text_enough:
            return self._for_adlfs_by_host(options)
        # A text of our own: variables of the environment would be preferred to other options.
        members = {"BlobEndpoint": self.endpoint}
        if options.get("account_key"):
            members |= {
                "AccountName": self._require_account(),
                "AccountKey": options["account_key"],
            }
        elif options.get("sas_token"):
            # As adlfs has it: as a member of its own, one with a parameter that is not known to the
            # library of Azure would be taken for a key.
            members["BlobEndpoint"] += f"?{options['sas_token']}"
        text = ";".join(f"{name}={value}" for name, value in members.items())
        others = {name: value for name, value in options.items() if name not in secrets}
        return others | {"connection_string": text}

    @property
    def _must_log_in(self) -> bool:
        """Whether adlfs looks for a login of its own, without secrets in options."""
        return not (self.has_string or self.options.get("anon"))

    def _for_adlfs_by_host(self, options: dict[str, Any]) -> dict[str, Any]:
        """Return options for logins that connection strings do not have."""
        if not str(self.endpoint).startswith("https://"):
            raise UnsupportedError(
                "adlfs asks http:// by account_key or sas_token alone, or with anon=True"
            )
        if os.environ.get(_VARIABLE):
            raise UnsupportedError(f"adlfs would prefer the variable {_VARIABLE} to these options")
        # None, so that the settings of fsspec have none either.
        return options | {"account_name": self._require_account(), "connection_string": None}

    def _require_account(self) -> str:
        if self.account is None:
            raise UnsupportedError("storage_options name no account_name")
        return self.account


def is_azure(url: str) -> bool:
    """Tell whether a URL is one of Azure, and no chain.

    Examples
    --------
    >>> is_azure("az://container@account/a.nc"), is_azure("zip://a.nc::az://container/b.zip")
    (True, False)
    """
    return url.lower().startswith(_PROTOCOLS) and "::" not in url


def name_like(path: str, url: str) -> str:
    """Return the URL of a path, `container/name`, at the host that another URL names.

    Examples
    --------
    >>> name_like("container/a.nc", "az://container@account.blob.core.windows.net/*.nc")
    'az://container@account.blob.core.windows.net/a.nc'
    """
    protocol, _, rest = url.partition("://")
    _, mark, host = rest.partition("/")[0].partition("@")
    container, slash, name = path.partition("/")
    return f"{protocol}://{container}{mark}{host}{slash}{name}"


def resolve_azure(url: str, options: Mapping[str, Any]) -> AzureNames:
    """Return what a URL and options name together: all places that name a host have to agree.

    Parameters
    ----------
    url : str
        ``az://container/…``, ``az://container@account/…`` or ``az://container@host/…``.
    options : mapping
        Those of adlfs, and ``endpoint``, a URL of the web as obstore takes it.

    Raises
    ------
    UnsupportedError
        They contradict each other, or are no names. It says which, without values.

    Examples
    --------
    >>> names = resolve_azure("az://maps@me.blob.core.chinacloudapi.cn/a", {"anon": True})
    >>> names.url, names.account, names.endpoint
    ('az://maps/a', 'me', 'https://me.blob.core.chinacloudapi.cn')
    """
    protocol, _, rest = url.partition("://")
    authority, slash, path = rest.partition("/")
    container, mark, host = authority.partition("@")
    host = host.lower().rstrip(".")
    is_whole = not mark or (container and host)
    if not is_whole or not _CONTAINER.fullmatch(container) or "@" in host:
        raise UnsupportedError("this names no container: write az://container@host/...")
    others = dict(options)
    members, has_string = _take_members(others)
    endpoint, account = _find_endpoint(host, others, members)
    if account is None and (account := os.environ.get("AZURE_STORAGE_ACCOUNT_NAME")):
        account = _check(account, _ACCOUNT, "AZURE_STORAGE_ACCOUNT_NAME")
        endpoint = endpoint or _Endpoint("https", f"{account}.blob.core.windows.net", "")
    others |= {new: members[old] for old, new in _SECRETS.items() if old in members}
    for name in _SECRETS.values():
        if others.get(name) is not None:
            others[name] = _check_secret(others[name], name)
    plain = f"{protocol}://{container}{slash}{path}"
    named = None if endpoint is None else str(endpoint)
    return AzureNames(plain, container, account, named, others, has_string)


def at_hosts_of_azure(uri: str, options: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """Return URL and options by which adlfs asks the hosts that the links of a chain name."""
    links = uri.split("::")
    for number, link in enumerate(links):
        if not is_azure(link):
            continue
        protocol = link.partition("://")[0]
        # As fsspec has it: the first link has all options, and each its own under its protocol.
        own = dict(options.pop(protocol, None) or {})
        with error_context(file=link):
            names = resolve_azure(link, own if number else own | options)
            given = names.for_adlfs()
        links[number] = names.url
        options = {**options, protocol: given} if number else given
    return "::".join(links), options


def _take_members(options: dict[str, Any]) -> tuple[dict[str, str], bool]:
    """Take the connection string out of options: its members by name, and whether there is one."""
    text = options.pop("connection_string", None)
    place = "connection_string"
    if not text and not any(options.get(name) for name in (*_SECRETS.values(), "anon")):
        # As adlfs has it. Beside other secrets it is not asked for.
        text, place = os.environ.get(_VARIABLE), _VARIABLE
    if not isinstance(text, str | None):
        raise UnsupportedError("storage_options: connection_string is a text")
    members: dict[str, str] = {}
    for part in (text or "").split(";"):
        name, mark, value = (each.strip() for each in part.partition("="))
        if (name and not mark) or name.lower() in members:
            raise UnsupportedError(f"{place} is malformed, or has a name twice")
        if value:
            members[name.lower()] = value
    if members.get("usedevelopmentstorage", "").lower() == "true":
        raise UnsupportedError(
            f"{place}: UseDevelopmentStorage names no host; give BlobEndpoint, AccountName and "
            "AccountKey of the emulator"
        )
    return members, bool(members)


def _find_endpoint(
    host: str, options: dict[str, Any], members: Mapping[str, str]
) -> tuple[_Endpoint | None, str | None]:
    """Return where blobs are, and the account; take out of options what says so."""
    is_host = "." in host or ":" in host
    account_host = _take_text(options, "account_host")
    urls = {
        "BlobEndpoint": members.get("blobendpoint"),
        "endpoint": _take_text(options, "endpoint"),
        "account_host": account_host and f"https://{account_host}",
    }
    named = {place: _parse_endpoint(url, place) for place, url in urls.items() if url}
    _check_equal({place: str(endpoint) for place, endpoint in named.items()}, "hosts")
    if is_host:
        named["the URL"] = _parse_endpoint(f"https://{host}", "the URL")
        _check_equal({place: each.host for place, each in named.items()}, "hosts")
    accounts = {
        "the URL": "" if is_host else host,
        "account_name": _take_text(options, "account_name"),
        "AccountName": members.get("accountname"),
    }
    accounts = {place: _check(name, _ACCOUNT, place) for place, name in accounts.items() if name}
    of_hosts = {place: each.account for place, each in named.items() if each.account}
    account = _check_equal(of_hosts | accounts, "accounts")
    if accounts.keys() == {"the URL"} and named and not of_hosts:
        raise UnsupportedError(
            f"{' and '.join(named)} does not say that it is a host of the URL's account: "
            "give account_name, too"
        )
    # The first, which may be an emulator's, with a path.
    endpoint = next(iter(named.values()), None)
    return _check_suffix(endpoint, account, members), account


def _check_suffix(
    endpoint: _Endpoint | None, account: str | None, members: Mapping[str, str]
) -> _Endpoint | None:
    """Return the endpoint, or that of an account in the cloud that a connection string names."""
    suffix = members.get("endpointsuffix", "").lower().strip("/.")
    if endpoint is None and account is not None:
        protocol = members.get("defaultendpointsprotocol", "https")
        host = f"{account}.blob.{suffix or 'core.windows.net'}"
        return _parse_endpoint(f"{protocol}://{host}", "connection_string")
    # Where there is a BlobEndpoint, that is asked whatever the suffix is of other services.
    if endpoint is None or not suffix or "blobendpoint" in members:
        return endpoint
    if not endpoint.host.partition(":")[0].endswith(f".{suffix}"):
        raise UnsupportedError("EndpointSuffix and the URL, or options, name different hosts")
    return endpoint


def _parse_endpoint(url: str, place: str) -> _Endpoint:
    match = _URL.fullmatch(url.strip())
    if match is None:
        raise UnsupportedError(f"{place} is no URL of a host, which begins with https://")
    protocol, host, path = (part.lower() for part in match.groups())
    host = host.removesuffix(":443" if protocol == "https" else ":80").rstrip(".")
    host = _check(host, _HOST, place).replace(".dfs.", ".blob.", 1)
    if path:
        _check(path, _ACCOUNT, place)
    in_host = _OF_ACCOUNT.match(host)
    if in_host and path not in ("", in_host[1]):
        raise UnsupportedError(f"{place} names different accounts by its host and its path")
    return _Endpoint(protocol, host, path)


def _take_text(options: dict[str, Any], name: str) -> str | None:
    value = options.pop(name, None)
    if not isinstance(value, str | None):
        raise UnsupportedError(f"storage_options: {name} is a text")
    return value


def _check(text: str, pattern: re.Pattern[str], place: str) -> str:
    text = text.lower()
    if not pattern.fullmatch(text):
        kind = "account" if pattern is _ACCOUNT else "host"
        raise UnsupportedError(f"{place} is, or has in it, no name of an Azure {kind}")
    return text


def _check_equal(names: Mapping[str, str | None], kind: str) -> str | None:
    if len({*names.values()}) > 1:
        raise UnsupportedError(f"{' and '.join(names)} name different {kind}")
    return next(iter(names.values()), None)


def _check_secret(value: Any, name: str) -> str:
    """Return a secret without what surrounds it in files and in the portal."""
    if not isinstance(value, str):
        raise UnsupportedError(f"storage_options: {name} is a text")
    value = value.strip().removeprefix("?") if name == "sas_token" else value.strip()
    if re.search(r"[;\s\x00-\x1f\x7f]", value):
        raise UnsupportedError(f"storage_options: {name} has signs in it that none has")
    return value
