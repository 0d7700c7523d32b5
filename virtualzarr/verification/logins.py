"""Logins of clients: what each is given of the credentials by prefix, and that nothing shows it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from virtualzarr.stores.credentials import Keyring, find_keyring, without_keyring
from virtualzarr.stores.uris import is_web

_TAKERS = frozenset(["zarr", "zarr2", "zarrs", "dask", "xarray", "kerchunk", "tensorstore"])
"""Clients that are told how to log in; others get nothing."""


@dataclass(frozen=True)
class ClientLogin:
    """How clients log in.

    Attributes
    ----------
    options, target_options : mapping
        Options of fsspec for sources, and for the publication.
    secrets : tuple of str
        What is in them that no report has.
    variables : frozenset of str
        Variables of the environment in which secrets are: clients do not get them.
    """

    options: Mapping[str, Any]
    target_options: Mapping[str, Any]
    secrets: tuple[str, ...] = ()
    variables: frozenset[str] = frozenset()

    def add_to(self, request: Mapping[str, Any], client: str) -> dict[str, Any]:
        """Return what a client is asked, with its login, if it takes any."""
        if client not in _TAKERS:
            return dict(request)
        options = {**(request.get("options") or {}), **self.options}
        return {**request, "options": options, "login": dict(self.target_options)}

    def redact(self, text: str) -> str:
        """Return what a client said without secrets."""
        for secret in self.secrets:
            text = text.replace(secret, "[secret]")
        return text


NO_LOGIN = ClientLogin({}, {})


def find_client_login(
    target: str, sources: Iterable[str], storage_options: Mapping[str, Any] | None
) -> ClientLogin:
    """Return how clients log in to a publication and to its sources.

    Clients have one login for all hosts that they ask by a protocol. They are given that of a
    prefix only if all sources lie below it, and over HTTP only what HTTP clients take out of
    requests that are redirected to another host: the header ``Authorization``.
    """
    keyring = find_keyring(storage_options)
    if keyring is None:
        return NO_LOGIN
    options, target_options = _options_for(keyring, sources), _options_for(keyring, [target])
    given = without_keyring(storage_options)
    texts = {text for each in (options, target_options) for text in _texts(each)}
    # Of headers, also what follows the scheme.
    texts |= {text.partition(" ")[2] for text in texts}
    secrets = tuple(sorted(texts - {*_texts(given), ""}, key=len, reverse=True))
    return ClientLogin(options, target_options, secrets, keyring.variables)


def _options_for(keyring: Keyring, uris: Iterable[str]) -> dict[str, Any]:
    """Return options of fsspec for all of some URIs; none if one login is not for all of them."""
    providers = {keyring.find(uri) for uri in uris}
    provider = providers.pop() if len(providers) == 1 else None
    if provider is None:
        return {}
    credential = provider.get()
    if not is_web(provider.prefix):
        return credential.as_options()
    is_plain = {*credential.headers} == {"Authorization"} and not credential.query
    return {"headers": dict(credential.headers)} if is_plain else {}


def _texts(options: Mapping[str, Any]) -> Iterable[str]:
    for value in options.values():
        if isinstance(value, str):
            yield value
        elif isinstance(value, Mapping):
            yield from _texts(value)
