"""Logins of Icechunk's storage: the credentials of a repository's prefix."""

from __future__ import annotations

import time
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from virtualzarr.errors import AccessError, UnsupportedError
from virtualzarr.stores.credential_providers import Credential
from virtualzarr.stores.credentials import find_keyring, names_of
from virtualzarr.stores.location import Location

_RENEW_SECONDS = 300
"""After how long keys are looked up again that do not say when they expire."""

_NAMES = {
    "anon": "anonymous", "requester_pays": "requester_pays", "endpoint_url": "endpoint_url",
    "region_name": "region",
}  # fmt: skip
"""Names of options in fsspec's file systems and in Icechunk's storage, of those that it has."""

_KEYS = {"s3": ("key", "secret", "token"), "gs": ("token",)}


def find_login(target: Location, service: str) -> dict[str, Any]:
    """Return arguments of Icechunk's storage by the credentials of a repository's prefix.

    Icechunk stores arguments with what it pickles: secrets are none of them, but a function that
    looks them up.

    Raises
    ------
    UnsupportedError
        Icechunk has no such option.
    """
    keyring = find_keyring(target.storage_options)
    provider = None if keyring is None else keyring.find(target.uri)
    if provider is None:
        return {}
    options = provider.get().as_options()
    options |= options.pop("client_kwargs", None) or {}
    if options.get("token") == "anon":  # as gcsfs has it
        options = {**options, "anon": True, "token": None}
    keys = {name for name in _KEYS[service] if options.get(name) is not None}
    unknown = sorted({*options} - {*_NAMES, *_KEYS[service]})
    if unknown:
        raise UnsupportedError(
            f"Icechunk opens no storage with the credentials {', '.join(unknown)}", file=target.uri
        )
    settings = {new: options[name] for name, new in _NAMES.items() if options.get(name) is not None}
    if endpoint := settings.get("endpoint_url"):
        # Names of buckets are no hosts there.
        settings |= {"allow_http": endpoint.startswith("http://"), "force_path_style": True}
    if keys:
        location = Location(target.uri, names_of(target.storage_options))
        settings["get_credentials"] = _LookUp(location, service)
    return settings


@dataclass(frozen=True)
class _LookUp:
    """Keys as Icechunk asks for them, by where they are named."""

    location: Location
    service: str

    def __call__(self) -> Any:
        """Return the keys, and when Icechunk is to ask again."""
        import icechunk

        keyring = find_keyring(self.location.storage_options)
        provider = None if keyring is None else keyring.find(self.location.uri)
        if provider is None:
            raise AccessError("there are no credentials for it any more", file=self.location.uri)
        credential = provider.get()
        expires_after = _renewal_of(credential)
        options = credential.options
        if self.service == "gs":
            return icechunk.GcsBearerCredential(options["token"], expires_after=expires_after)
        return icechunk.S3StaticCredentials(
            options["key"], options["secret"], options.get("token"), expires_after
        )


def _renewal_of(credential: Credential) -> datetime:
    return datetime.fromtimestamp(min(credential.renew_at, time.time() + _RENEW_SECONDS), UTC)
