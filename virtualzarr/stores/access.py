"""Scope of cached bytes: by which login, and of which service, they were read."""

from __future__ import annotations

import hashlib
import json
import os
import secrets

from virtualzarr.stores.credentials import Keyring, without_keyring
from virtualzarr.stores.location import Location

_KEY = secrets.token_bytes(32)
"""With which logins are named, so that names tell nothing of what is in them."""

_VARIABLES = (
    "AWS_PROFILE",
    "AWS_ACCESS_KEY_ID",
    "AWS_ENDPOINT_URL",
    "AWS_ENDPOINT_URL_S3",
    "AWS_SHARED_CREDENTIALS_FILE",
    "AWS_CONFIG_FILE",
    "NETRC",
)
"""What else says whom a URL of S3 asks, and by which login one of any protocol is asked."""


def describe_access(location: Location, keyring: Keyring | None) -> bytes | None:
    """Return a text that is another one for each login and service; it has secrets in it.

    None if there are options that no text tells apart, such as sessions and functions. Names of
    credentials stand for them, so that it stays the same when they are renewed.

    Examples
    --------
    >>> one, two = ({"headers": {"Authorization": name}} for name in "ab")
    >>> first = describe_access(Location("https://host/x", one), None)
    >>> first == describe_access(Location("https://host/x", two), None)
    False
    >>> describe_access(Location("https://host/x", {"get_client": print}), None) is None
    True
    """
    import fsspec

    protocol = location.uri.partition("://")[0]
    facts = {
        "options": without_keyring(location.storage_options),
        "settings": fsspec.config.conf.get(protocol),
        # A redirect that one reader may follow, another may not.
        "redirects": location.redirects,
        "credentials": None if keyring is None else keyring.describe(),
        "variables": [os.environ.get(name) for name in _VARIABLES],
    }
    try:
        return json.dumps(facts, sort_keys=True).encode()
    except (TypeError, ValueError):
        return None


def name_login(text: str) -> str:
    """Return the name, in this process, of a login that a text describes, which is secret."""
    return hashlib.blake2b(text.encode(), key=_KEY, digest_size=16).hexdigest()


def login_of(keyring: Keyring | None) -> str | None:
    """Return the name of the login by a keyring; None without one."""
    return None if keyring is None else name_login(repr(keyring.describe()))
