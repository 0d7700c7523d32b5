"""Check of URLs before they are published: none has a login or a signature."""

from __future__ import annotations

from collections.abc import Iterable

from virtualzarr.errors import PublishError
from virtualzarr.redaction import has_secrets


def check_public(uris: Iterable[str]) -> None:
    """Refuse URLs that would tell a secret to whoever reads what is published.

    Examples
    --------
    >>> check_public(["https://host/a.nc?version=2"])
    """
    for uri in uris:
        if has_secrets(uri):
            raise PublishError(
                "the URL of a source has a login or a signature in it, which whoever reads the "
                "references would see: give it in storage_options, as credentials for a prefix",
                file=uri,
            )
