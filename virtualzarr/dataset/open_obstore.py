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

from virtualzarr.dataset.object_client import ObjectClient
from virtualzarr.dataset.obstore_client import ObstoreClient
from virtualzarr.dataset.sas_client import SasClient
from virtualzarr.errors import AccessError, UnsupportedError, error_context
from virtualzarr.stores.azure_names import AzureNames, resolve_azure
from virtualzarr.stores.credential_providers import Provider
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
        "account_key": "account_key",
        "sas_token": "sas_key",
        "tenant_id": "tenant_id",
        "client_id": "client_id",
        "client_secret": "client_secret",
        "anon": "skip_signature",
    },
}
"""Names of options in fsspec's file systems and in obstore; None for what it has no use for."""

_HARMLESS = frozenset(
    ["asynchronous", "skip_instance_cache", "use_listings_cache", "listings_expiry_time",
     "max_paths", "default_block_size", "default_fill_cache", "default_cache_type", "cache_regions",
     "use_ssl", "version_aware", "assume_container_exists", "consistency", "cache_timeout"]
)  # fmt: skip
"""Options that say how fsspec lists and caches."""


def open_client(location: Location, service: str, endpoint: str | None = None) -> ObjectClient:
    """Return the client of a folder in ``"gs"`` or ``"az"``.

    `endpoint` is what `find_endpoint` returned before: credentials that name another one since are
    an error.
    """
    # Not as a URL of the web: names of objects have signs such as # and ? in them.
    bucket, _, path = location.uri.partition("://")[2].partition("/")
    prefix = path.strip("/") or None
    common = {"prefix": prefix, "retry_config": _NO_RETRIES}
    if service == "gs":
        return _open_gs(location, bucket, common)
    return _open_az(location, _resolve_az(location, endpoint), common)


def find_endpoint(location: Location, service: str) -> str | None:
    """Return where Azure is asked; None of GCS."""
    return _resolve_az(location).endpoint if service == "az" else None


def _open_gs(location: Location, bucket: str, common: dict[str, Any]) -> ObjectClient:
    from obstore.store import GCSStore

    options, provider = _find_options(location), _find_provider(location)
    if provider is not None and _as_keys("gs", provider.get().as_options()) is not None:
        # What obstore is given at once is never looked up again.
        options.pop("token", None)
        common["credential_provider"] = _RenewedKeys(location, "gs")
    store: Any = GCSStore(bucket, **_translate_gs(options, location.uri), **common)
    return ObstoreClient(location, store)


def _open_az(location: Location, names: AzureNames, common: dict[str, Any]) -> ObjectClient:
    from obstore.store import AzureStore

    settings = _translate_az(names, location.uri)
    if settings.get("sas_key") is not None:
        if names.endpoint is None:
            raise UnsupportedError("storage_options name no account_name", file=location.uri)
        url = f"{names.endpoint}/{names.container}"
        prefix = f"{common['prefix']}/" if common["prefix"] else ""
        return SasClient(location, url, prefix, partial(_find_signature, location, names.endpoint))
    if _find_provider(location) is not None and settings.pop("account_key", None) is not None:
        common["credential_provider"] = _RenewedKeys(location, "az", names.endpoint)
    return ObstoreClient(location, AzureStore(names.container, **settings, **common))


def _find_provider(location: Location) -> Provider | None:
    keyring = find_keyring(location.storage_options)
    return None if keyring is None else keyring.find(location.uri)


def _find_options(location: Location) -> dict[str, Any]:
    """Return options with the credentials that are good now."""
    provider = _find_provider(location)
    credentials = {} if provider is None else provider.get().as_options()
    return without_keyring(location.storage_options) | credentials


def _resolve_az(location: Location, endpoint: str | None = None) -> AzureNames:
    """Return what URL, options and credentials name now, which has to be at that endpoint."""
    with error_context(file=location.uri):
        names = resolve_azure(location.uri, _find_options(location))
    if endpoint is not None and names.endpoint != endpoint:
        raise AccessError(
            "its credentials name another host than before: open it anew", file=location.uri
        )
    return names


def _find_signature(location: Location, endpoint: str) -> Any:
    """Return the shared access signature by which Azure is asked now; None without one."""
    return _resolve_az(location, endpoint).options.get("sas_token")


def _as_keys(service: str, options: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return what a provider of obstore's gives of options; None if these have no such secrets.

    Those of Azure are what `resolve_azure` left of them.
    """
    if service == "gs":
        token = options.get("token")
        # As gcsfs has it: other texts are names, or paths of files.
        is_bearer = isinstance(token, str) and token not in _GS_NAMES and not os.path.exists(token)
        return {"token": _as_bearer(token)} if is_bearer else None
    if sas := options.get("sas_token"):
        return {"sas_token": sas}
    key = options.get("account_key")
    return None if key is None else {"access_key": key}


def _as_bearer(token: Any) -> str:
    """Return a token as headers have it: obstore would panic at others."""
    text = str(token).strip()
    if not text.isascii() or not text.isprintable() or " " in text:
        raise UnsupportedError("storage_options: token has signs in it that none has")
    return text


_GS_NAMES = ("anon", "google_default", "cache", "cloud", "browser")


@dataclass(frozen=True)
class _RenewedKeys:
    """Keys for an object store as obstore asks for them, by where they are named."""

    location: Location
    service: str
    endpoint: str | None = None

    def __call__(self) -> dict[str, Any]:
        """Return the keys, and when obstore is to ask again."""
        provider = _find_provider(self.location)
        if provider is None:
            raise AccessError("there are no credentials for it any more", file=self.location.uri)
        credential = provider.get()
        options: Mapping[str, Any] = credential.as_options()
        if self.service == "az":
            options = _resolve_az(self.location, self.endpoint).options
        with error_context(file=self.location.uri):
            keys = _as_keys(self.service, options)
        if keys is None:
            raise AccessError("its credentials have no keys any more", file=self.location.uri)
        expires_at = min(credential.renew_at, time.time() + _RENEW_SECONDS)
        return {**keys, "expires_at": datetime.fromtimestamp(max(expires_at, 0), UTC)}


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


def _translate_az(names: AzureNames, uri: str) -> dict[str, Any]:
    settings = _translate("az", names.options, uri)
    named = {"account_name": names.account, "endpoint": names.endpoint}
    settings |= {name: value for name, value in named.items() if value is not None}
    return settings | _client_options(names.endpoint)


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
