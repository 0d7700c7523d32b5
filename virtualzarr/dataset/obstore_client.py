"""Client of GCS and Azure by obstore, and its options by those of fsspec's file systems."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from virtualzarr.dataset.object_client import (
    ABSENT,
    ANY,
    ConditionError,
    Replaceable,
    refused,
    unreachable,
)
from virtualzarr.errors import AccessError, UnsupportedError
from virtualzarr.redaction import hide_known
from virtualzarr.stores.credentials import find_keyring, secrets_of, without_keyring
from virtualzarr.stores.location import Location
from virtualzarr.stores.obstore import describe_error
from virtualzarr.stores.uris import parse_url

_REFUSED = re.compile(
    r"status code: (40[13]\b|400\b.*: (ExpiredToken|TokenRefreshRequired|InvalidToken)\b)"
)
"""What obstore has no exception for: listings that are refused, and 400 to keys that expired."""

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


class ObstoreClient:
    """Objects below a folder; see `ObjectClient`.

    Parameters
    ----------
    location : Location
    store : obstore.store.ObjectStore
        Of the folder. It must not repeat requests by itself.
    """

    def __init__(self, location: Location, store: Any) -> None:
        self._location = location.with_uri(location.uri.rstrip("/"))
        self._store = store
        self.endpoint: str | None = getattr(store, "config", {}).get("endpoint")

    def get(self, name: str, byte_range: tuple[int, int] | None) -> tuple[bytes, str]:
        """Return an object, or some of its bytes, and its tag."""
        options: Any = None if byte_range is None else {"range": byte_range}
        response = self._store.get(name, options=options)
        return bytes(response.bytes()), _as_tag(response.meta) or "{}"

    def look(self, name: str) -> None:
        """Ask whether there is an object, without its bytes."""
        self._store.head(name)

    def put(self, name: str, data: bytes, replaced: Replaceable) -> str | None:
        """Store an object, if it may take the place of what is there: its tag, if that is told."""
        mode: Any = replaced if replaced in (ABSENT, ANY) else json.loads(replaced)
        return _as_tag(self._store.put(name, data, mode=mode, use_multipart=False))

    def list_objects(self) -> dict[str, int]:
        """Return the sizes of all objects by name."""
        return {item["path"]: item["size"] for page in self._store.list() for item in page}

    def list_top(self) -> list[str]:
        """Return the names of folders and objects right below the folder."""
        result = self._store.list_with_delimiter()
        names = [*result["common_prefixes"], *(item["path"] for item in result["objects"])]
        return [name.strip("/") for name in names]

    def delete(self, names: Sequence[str]) -> None:
        """Delete objects, by few requests where the store can do that."""
        self._store.delete([*names])

    def outcome(self, error: Exception, name: str) -> Exception:
        """Return what an error means; see `ObjectClient`."""
        from obstore import exceptions

        if isinstance(error, FileNotFoundError):
            return FileNotFoundError(f"there is no {name}")
        if not isinstance(error, exceptions.BaseError | OSError):
            return error
        options, file = self._location.storage_options, f"{self._location.uri}/{name}"
        problem = hide_known(describe_error(error), secrets_of(options, file))
        if isinstance(error, exceptions.PreconditionError):
            return ConditionError(problem)
        if isinstance(error, exceptions.AlreadyExistsError):
            # 409 is a race that nobody has won yet, which says nothing of the condition; but Azure
            # says so of what is there, too.
            is_race = "status code: 409" in problem and "BlobAlreadyExists" not in str(error)
            return unreachable(problem, file) if is_race else ConditionError(problem)
        denials = exceptions.PermissionDeniedError | exceptions.UnauthenticatedError
        if isinstance(error, denials) or _REFUSED.search(problem):
            return refused(problem, file)
        return unreachable(problem, file)


def _as_tag(meta: Any) -> str | None:
    """Return what a store calls a state of an object: entity tag, or generation, or both."""
    tag = {key: meta[key] for key in ("e_tag", "version") if meta.get(key)}
    return json.dumps(tag) if tag else None


def open_client(location: Location, service: str) -> ObstoreClient:
    """Return the client of a folder in ``"gs"`` or ``"az"``."""
    from obstore.store import AzureStore, GCSStore

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
        store: Any = GCSStore(bucket, **_translate_gs(options, location.uri), **common)
        return ObstoreClient(location, store)
    container, _, host = bucket.partition("@")
    if host:
        options.setdefault("account_name", host.partition(".")[0])
    store = AzureStore(container, **_translate_az(options, location.uri), **common)
    return ObstoreClient(location, store)


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
    if sas := options.get("sas_token"):
        return {"sas_token": str(sas).removeprefix("?")}
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
