"""Logins of clients: what each is given of the credentials by prefix, and that nothing shows it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from virtualzarr.stores.credentials import Keyring, find_keyring, without_keyring
from virtualzarr.stores.uris import is_web, protocol_of

_TAKERS = frozenset(["zarr", "zarr2", "zarrs", "dask", "xarray", "kerchunk", "tensorstore"])
"""Clients that are told how to log in; others get nothing."""


@dataclass(frozen=True)
class ClientLogin:
    """How clients log in.

    Attributes
    ----------
    options : mapping of mappings
        Options of fsspec for sources, by their protocol.
    target_options : mapping
        Those for the publication.
    secrets : tuple of str
        What is in them that no report has.
    variables : frozenset of str
        Variables of the environment in which secrets are: clients do not get them.
    withheld : tuple of str
        Which logins no client is given, and why.
    """

    options: Mapping[str, Mapping[str, Any]]
    target_options: Mapping[str, Any]
    secrets: tuple[str, ...] = ()
    variables: frozenset[str] = frozenset()
    withheld: tuple[str, ...] = ()

    def add_to(self, request: Mapping[str, Any], client: str) -> dict[str, Any]:
        """Return what a client is asked, with its login, if it takes any."""
        if client not in _TAKERS:
            return dict(request)
        sources = {
            protocol: {**options, **self.options.get(protocol, {})}
            for protocol, options in (request.get("sources") or {}).items()
        }
        return {**request, "sources": sources, "login": dict(self.target_options)}

    def explain(self, client: str) -> str:
        """Return why a client that refuses may have lacked a login; "" if it has all there are."""
        is_given = bool(self.target_options or any(self.options.values()))
        if is_given and client not in _TAKERS:
            return f"{client} is given no login"
        return "; ".join(self.withheld)

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
    prefix only if all sources of the protocol lie below it, and over HTTP only what HTTP clients
    take out of requests that are redirected to another host: the header ``Authorization``.
    """
    keyring = find_keyring(storage_options)
    if keyring is None:
        return NO_LOGIN
    by_protocol: dict[str, list[str]] = {}
    for uri in sources:
        by_protocol.setdefault(protocol_of(uri), []).append(uri)
    withheld: list[str] = []
    options = {p: _options_for(keyring, uris, withheld) for p, uris in by_protocol.items()}
    target_options = _options_for(keyring, [target], withheld)
    plain = without_keyring(storage_options)
    texts = {text for each in (*options.values(), target_options) for text in _texts(each)}
    # Of headers, also what follows the scheme.
    texts |= {text.partition(" ")[2] for text in texts}
    secrets = tuple(sorted(texts - {*_texts(plain), ""}, key=len, reverse=True))
    reasons = tuple(dict.fromkeys(withheld))
    return ClientLogin(options, target_options, secrets, keyring.variables, reasons)


def _options_for(keyring: Keyring, uris: Sequence[str], withheld: list[str]) -> dict[str, Any]:
    """Return options of fsspec for all of some URIs of one protocol.

    None if one login is not for all of them, or not one that clients are given: the reason is added
    to `withheld`.
    """
    providers = {keyring.find(uri) for uri in uris}
    if len(providers) > 1:
        withheld.append(
            f"clients are given no login for {protocol_of(uris[0])}, as one is not for all sources"
        )
        return {}
    provider = providers.pop()
    if provider is None:
        return {}
    credential = provider.get()
    if not is_web(provider.prefix):
        return credential.as_options()
    is_plain = {*credential.headers} == {"Authorization"} and not credential.query
    if not is_plain:
        withheld.append(
            f"clients are not given the login of {provider.prefix}, as it is "
            f"{'a signature' if credential.query else 'not the header Authorization alone'}"
        )
        return {}
    return {"headers": dict(credential.headers)}


def _texts(options: Mapping[str, Any]) -> Iterable[str]:
    for value in options.values():
        if isinstance(value, str):
            yield value
        elif isinstance(value, Mapping):
            yield from _texts(value)
