"""Opening of storages: what a path or URL of a dataset is, and which options object stores take.

Options are those of fsspec's file systems, as everywhere in this package, so that the same ones
open a dataset and the files that it refers to.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

from virtualzarr.dataset.directory import Directory
from virtualzarr.dataset.fsspec_storage import FsspecStorage
from virtualzarr.dataset.object_store import ObjectStore
from virtualzarr.dataset.redirects import check_no_redirect
from virtualzarr.dataset.storage import Storage
from virtualzarr.errors import (
    AccessError,
    MissingDependencyError,
    UnsupportedError,
    VirtualZarrError,
)
from virtualzarr.stores.credentials import find_keyring, without_keyring
from virtualzarr.stores.location import Location
from virtualzarr.stores.obstore import describe_error
from virtualzarr.stores.s3 import find_endpoint, open_session
from virtualzarr.stores.uris import parse_url, protocol_of

_SERVICES = {
    "s3": "s3", "s3a": "s3", "gs": "gs", "gcs": "gs", "az": "az", "abfs": "az", "abfss": "az",
}  # fmt: skip

_NO_RETRIES = {"max_retries": 0, "retry_timeout": timedelta(seconds=60)}
"""A library that repeats a request on its own hides that the first one was not answered."""

_RENEW_SECONDS = 300
"""After how long keys are looked up again that do not say when they expire."""

_NAMES: Mapping[str, Mapping[str, str | None]] = {
    "s3": {
        "key": "access_key_id",
        "secret": "secret_access_key",
        "token": "session_token",
        "anon": "skip_signature",
        "endpoint_url": "endpoint",
        "region_name": "region",
        "requester_pays": "request_payer",
    },
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


def open_storage(location: Location, single_writer: bool = False) -> Storage:
    """Return the storage of a dataset, there or not; one that cannot be committed to is read."""
    if not location.is_remote:
        return Directory(location, single_writer)
    service = _SERVICES.get(protocol_of(location.uri).lower())
    if service is None or "::" in location.uri:
        return FsspecStorage(location, single_writer)
    refusal: VirtualZarrError
    try:
        reopen = partial(_open_service, service, location)
        return ObjectStore(location, reopen(), single_writer, reopen)
    except ImportError:
        refusal = MissingDependencyError(
            "committing to datasets in object stores needs obstore: "
            "pip install 'virtualzarr[object-stores]'",
            file=location.uri,
        )
    except UnsupportedError as error:
        refusal = error
    except Exception as error:
        # Those of obstore can only be named where it is there.
        if type(error).__module__ != "obstore.exceptions" and not isinstance(error, TypeError):
            raise
        refusal = UnsupportedError(
            f"these options are none to commit to object stores with: {describe_error(error)}",
            file=location.uri,
        )
    return FsspecStorage(location, single_writer, refusal)


def _open_service(service: str, location: Location) -> Any:
    from obstore.store import AzureStore, GCSStore, S3Store

    parts = parse_url(location.uri)
    bucket, prefix = parts.netloc, parts.path.strip("/") or None
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
        return GCSStore(bucket, **_translate_gs(options, location.uri), **common)
    if service == "az":
        container, _, host = bucket.partition("@")
        if host:
            options.setdefault("account_name", host.partition(".")[0])
        return AzureStore(container, **_translate_az(options, location.uri), **common)
    is_signed = "credential_provider" in common
    settings = _translate_s3(options, location.uri, is_signed=is_signed) | common
    if (endpoint := settings.get("endpoint")) and {"session_token", "credential_provider"} & {
        *settings
    }:
        check_no_redirect(str(endpoint), bucket, location.uri)
    return S3Store(bucket, **settings)


_SECRETS = {
    "s3": ("key", "secret", "username", "password", "token"),
    "gs": ("token",),
    "az": ("account_key", "sas_token"),
}
"""Names of options in fsspec's file systems whose values are renewed."""


def _as_keys(service: str, options: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return what a provider of obstore's gives of options; None if these have no such secrets."""
    if service == "s3":
        key, secret = (options.get(a, options.get(b)) for a, b in zip(*_S3_NAMES, strict=True))
        if secret is None:
            return None
        return {"access_key_id": key, "secret_access_key": secret, "token": options.get("token")}
    if service == "gs":
        token = options.get("token")
        # As gcsfs has it: other texts are names, or paths of files.
        is_bearer = isinstance(token, str) and token not in _GS_NAMES and not os.path.exists(token)
        return {"token": token} if is_bearer else None
    if sas := options.get("sas_token"):
        return {"sas_token": str(sas).removeprefix("?")}
    key = options.get("account_key")
    return None if key is None else {"access_key": key}


_S3_NAMES = ("key", "secret"), ("username", "password")
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


def _translate_s3(options: dict[str, Any], uri: str, *, is_signed: bool = False) -> dict[str, Any]:
    options |= options.pop("client_kwargs", None) or {}
    options |= {
        new: options.pop(old)
        for old, new in [("username", "key"), ("password", "secret")]
        if old in options
    }
    profile = options.pop("profile", None)
    is_verified = options.pop("verify", True) is not False
    # Style of addresses, timeouts and such: paths are understood by all services.
    options.pop("config_kwargs", None)
    settings = _translate("s3", options, uri)
    if (session := open_session(profile)) is not None:
        for name, value in find_endpoint(session).items():
            settings.setdefault(name, value)
        if not is_signed and not {"access_key_id", "skip_signature"} & {*settings}:
            settings |= _find_credentials(session)
    return settings | _client_options(settings.get("endpoint"), is_verified)


def _client_options(endpoint: object, is_verified: bool = True) -> dict[str, Any]:
    client = {} if is_verified else {"allow_invalid_certificates": True}
    if str(endpoint or "").startswith("http://"):
        client["allow_http"] = True
    return {"client_options": client} if client else {}


def _find_credentials(session: Any) -> dict[str, Any]:
    """Return what asks for credentials where the files that a dataset refers to ask: botocore.

    It reads the user's configuration, which obstore does not.
    """
    credentials = session.get_credentials()
    if credentials is None:
        return {}

    def provide() -> dict[str, Any]:
        frozen = credentials.get_frozen_credentials()
        parameters = {"access_key_id": frozen.access_key, "secret_access_key": frozen.secret_key}
        # Those with a token expire; asked for again, botocore has newer ones in time.
        return parameters | {
            "token": frozen.token, "expires_at": getattr(credentials, "_expiry_time", None)
        }  # fmt: skip

    return {"credential_provider": provide}


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


def _translate_az(options: dict[str, Any], uri: str) -> dict[str, Any]:
    text = str(options.pop("connection_string", None) or "")
    parts = [part.partition("=") for part in text.split(";")]
    members = {name.strip().lower(): value for name, _, value in parts if value}
    options |= {new: members[old] for old, new in _CONNECTION_STRING.items() if old in members}
    if sas := options.get("sas_token"):
        options["sas_token"] = str(sas).removeprefix("?")  # as the portal shows it
    account = options.get("account_name")
    if host := options.pop("account_host", None):
        options["endpoint"] = f"https://{host}"
    elif account and (suffix := members.get("endpointsuffix")):
        protocol = members.get("defaultendpointsprotocol", "https")
        options.setdefault("endpoint", f"{protocol}://{account}.blob.{suffix}")
    settings = _translate("az", options, uri)
    return settings | _client_options(settings.get("endpoint"))


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
