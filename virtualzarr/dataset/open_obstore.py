"""Opening of folders in GCS and Azure by obstore, with the options of fsspec's file systems."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any
from urllib.parse import urlsplit

from virtualzarr.dataset.object_client import ObjectClient
from virtualzarr.dataset.obstore_client import ObstoreClient
from virtualzarr.dataset.sas_client import SasClient
from virtualzarr.errors import AccessError, UnsupportedError
from virtualzarr.stores.credentials import find_keyring, without_keyring
from virtualzarr.stores.location import Location

_NO_RETRIES = {"max_retries": 0, "retry_timeout": timedelta(seconds=60)}
"""A library that repeats a request on its own hides that the first one was not answered."""

_RENEW_SECONDS = 300
"""After how long keys are looked up again that do not say when they expire."""

_NAMES: Mapping[str, Mapping[str, str | None]] = {
    "gs": {
        "endpoint_url": "base_url",
        "project": None,
        "access": None,
    },
    "az": {
        "account_name": "account_name",
        "account_key": "account_key",
        "sas_token": "sas_key",
        "tenant_id": "tenant_id",
        "client_id": "client_id",
        "client_secret": "client_secret",
        "anon": "skip_signature",
        "endpoint": "endpoint",
    },
}
"""Names of options in fsspec's file systems and in obstore; None for what it has no use for."""

_CONNECTION_STRING = {
    "accountname": "account_name",
    "accountkey": "account_key",
    "sharedaccesssignature": "sas_token",
    "blobendpoint": "endpoint",
}
"""Names in what Azure's portal shows, as far as it says where blobs are and who asks for them."""

_HARMLESS = frozenset(
    ["asynchronous", "skip_instance_cache", "use_listings_cache", "listings_expiry_time",
     "max_paths", "default_block_size", "default_fill_cache", "default_cache_type", "cache_regions",
     "use_ssl", "version_aware", "consistency", "cache_timeout"]
)  # fmt: skip
"""Options that say how fsspec lists and caches."""


def open_client(location: Location, service: str) -> ObjectClient:
    """Return the client of a folder in ``"gs"`` or ``"az"``."""
    from obstore.store import AzureStore, GCSStore

    # Not as a URL of the web: names of objects have signs such as # and ? in them.
    bucket, _, path = location.uri.partition("://")[2].partition("/")
    prefix = path.strip("/") or None
    options = without_keyring(location.storage_options)
    keyring = find_keyring(location.storage_options)
    provider = None if keyring is None else keyring.find(location.uri)
    if provider is not None:
        options |= provider.get().as_options()
    common: dict[str, Any] = {"prefix": prefix, "retry_config": _NO_RETRIES}
    if provider is not None and _as_keys(service, provider.get().as_options()) is not None:
        # What obstore is given at once is never looked up again.
        options = {name: options[name] for name in options if name not in _SECRETS[service]}
        common["credential_provider"] = _RenewedKeys(location, service)
    if service == "gs":
        store: Any = GCSStore(bucket, **_translate_gs(options, location.uri), **common)
        return ObstoreClient(location, store)
    container, _, host = bucket.partition("@")
    settings = _translate_az(options, location.uri, host)
    find_signature = partial(_find_signature, location)
    if find_signature() is not None:
        account = settings.get("account_name") or os.environ.get("AZURE_STORAGE_ACCOUNT_NAME")
        if not (account or settings.get("endpoint")):
            raise UnsupportedError("storage_options name no account_name", file=location.uri)
        endpoint = str(settings.get("endpoint") or f"https://{account}.blob.core.windows.net")
        url = f"{endpoint.rstrip('/')}/{container}"
        return SasClient(location, url, f"{prefix}/" if prefix else "", find_signature)
    return ObstoreClient(location, AzureStore(container, **settings, **common))


def _find_signature(location: Location) -> Any:
    """Return the shared access signature by which Azure is asked now; None without one."""
    options = without_keyring(location.storage_options)
    keyring = find_keyring(location.storage_options)
    if keyring is not None and (provider := keyring.find(location.uri)) is not None:
        options |= provider.get().as_options()
    return _translate_az(options, location.uri).get("sas_key")


_SECRETS = {
    "gs": ("token",),
    "az": ("account_key", "sas_token"),
}
"""Names of options in fsspec's file systems whose values are renewed."""


def _as_keys(service: str, options: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return what a provider of obstore's gives of options; None if these have no such secrets."""
    if service == "gs":
        token = options.get("token")
        # As gcsfs has it: other texts are names, or paths of files.
        is_bearer = isinstance(token, str) and token not in _GS_NAMES and not os.path.exists(token)
        return {"token": token} if is_bearer else None
    if isinstance(sas := options.get("sas_token"), str) and sas:
        return {"sas_token": sas.removeprefix("?")}
    key = options.get("account_key")
    return None if key is None else {"access_key": key}


_GS_NAMES = ("anon", "google_default", "cache", "cloud", "browser")


@dataclass(frozen=True)
class _RenewedKeys:
    """Keys for an object store as obstore asks for them, by where they are named."""

    location: Location
    service: str

    def __call__(self) -> dict[str, Any]:
        """Return the keys, and when obstore is to ask again."""
        keyring = find_keyring(self.location.storage_options)
        provider = None if keyring is None else keyring.find(self.location.uri)
        if provider is None:
            raise AccessError("there are no credentials for it any more", file=self.location.uri)
        credential = provider.get()
        keys = _as_keys(self.service, credential.as_options())
        if keys is None:
            raise AccessError("its credentials have no keys any more", file=self.location.uri)
        expires_at = min(credential.renew_at, time.time() + _RENEW_SECONDS)
        return {**keys, "expires_at": datetime.fromtimestamp(expires_at, UTC)}


def _client_options(endpoint: object) -> dict[str, Any]:
    is_plain = str(endpoint or "").startswith("http://")
    return {"client_options": {"allow_http": True}} if is_plain else {}


def _translate_gs(options: dict[str, Any], uri: str) -> dict[str, Any]:
    token = options.pop("token", None)
    settings = _translate("gs", options, uri)
    if token == "anon":
        settings["skip_signature"] = True
        # Who writes without a signature would be asked for a token nevertheless.
        settings["credential_provider"] = lambda: {"token": "", "expires_at": None}
    elif isinstance(token, str) and token not in ("google_default", "cache", "cloud"):
        settings["application_credentials"] = token
    elif isinstance(token, Mapping) and token.get("type") == "service_account":
        settings["service_account_key"] = json.dumps(dict(token))
    elif token is not None and not isinstance(token, str):
        raise _option_error(["token"], uri)
    return settings | _client_options(settings.get("base_url"))


def _translate_az(options: dict[str, Any], uri: str, host: str = "") -> dict[str, Any]:
    """Return options of obstore; `host` is what the URL names, a host or an account alone."""
    text = str(options.pop("connection_string", None) or "")
    parts = [part.partition("=") for part in text.split(";")]
    members = {name.strip().lower(): value for name, _, value in parts if value}
    account = _find_account(options, members, host, uri)
    options |= {new: members[old] for old, new in _CONNECTION_STRING.items() if old in members}
    if account is not None:
        options["account_name"] = account
    if sas := options.get("sas_token"):
        if not isinstance(sas, str):
            raise UnsupportedError("storage_options: sas_token is a text", file=uri)
        options["sas_token"] = sas.removeprefix("?")  # as the portal shows it
    suffix = members.get("endpointsuffix")
    if "." in host and suffix and not host.endswith(f".{suffix}"):
        raise UnsupportedError("the URL and connection_string name different hosts", file=uri)
    if named := options.pop("account_host", None):
        options["endpoint"] = f"https://{named}"
    elif "." in host:  # of a national cloud, too
        options.setdefault("endpoint", f"https://{host.replace('.dfs.', '.blob.', 1)}")
    elif account and suffix:
        protocol = members.get("defaultendpointsprotocol", "https")
        options.setdefault("endpoint", f"{protocol}://{account}.blob.{suffix}")
    settings = _translate("az", options, uri)
    return settings | _client_options(settings.get("endpoint"))


def _find_account(
    options: Mapping[str, Any], members: Mapping[str, str], host: str, uri: str
) -> str | None:
    """Return the account that is named, in whatever place; None if none is.

    Raises
    ------
    UnsupportedError
        One is named in one place, and another in another.
    """
    named = {
        "account_name": options.get("account_name"),
        "connection_string": members.get("accountname"),
        "the URL": host.partition(".")[0],
    }
    if host and "accountname" not in members and "blobendpoint" in members:
        # Connection strings with a signature: of emulators, the account is in the path.
        endpoint = urlsplit(members["blobendpoint"])
        in_host = str(endpoint.hostname).partition(".")[0]
        named["connection_string"] = endpoint.path.strip("/") or in_host
    accounts = {place: account for place, account in named.items() if account}
    if len({*accounts.values()}) > 1:
        raise UnsupportedError(f"{' and '.join(accounts)} name different accounts", file=uri)
    return next(iter(accounts.values()), None)


def _translate(service: str, options: Mapping[str, Any], uri: str) -> dict[str, Any]:
    names = _NAMES[service]
    unknown = [name for name in options if name not in names and name not in _HARMLESS]
    if unknown:
        raise _option_error(unknown, uri)
    return {
        new: value
        for name, value in options.items()
        if (new := names.get(name)) is not None and value is not None
    }


def _option_error(names: list[str], uri: str) -> UnsupportedError:
    # Names only: values may be secrets.
    return UnsupportedError(
        f"storage_options {', '.join(map(repr, names))} cannot be used to commit to object stores",
        file=uri,
    )
