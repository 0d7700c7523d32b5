"""Sessions of botocore and aiobotocore: what they repeat and follow, and where services are."""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import cache
from inspect import signature
from typing import Any

from virtualzarr.stores.forks import ForkSafeLock
from virtualzarr.stores.web_connections import watch_connections

_environment: list[dict[str, str | None]] = []
_noting = ForkSafeLock()


def without_own_retries(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return options of s3fs by which nothing beneath repeats requests or follows redirects.

    Examples
    --------
    >>> without_own_retries({"anon": True})["config_kwargs"]["retries"]
    {'max_attempts': 0}
    """
    settings = dict(options.get("config_kwargs") or {}, retries={"max_attempts": 0})
    if (kind := _session_kind()) is not None:
        settings.setdefault("http_session_cls", kind)
    return {**options, "config_kwargs": settings}


@cache
def _session_kind() -> type | None:
    """Return a class of HTTP sessions of aiobotocore that follow no redirects, nor repeat requests.

    aiohttp would send them the token of a session, whatever host they lead to. botocore itself
    finds the region of a bucket, as it does without aiobotocore.
    """
    try:
        from aiobotocore.config import AioConfig
        from aiobotocore.httpsession import AIOHTTPSession
    except ImportError:
        return None  # s3fs says so
    if "http_session_cls" not in signature(AioConfig).parameters:
        return None

    class Session(AIOHTTPSession):  # type: ignore[misc, unused-ignore]
        async def _get_session(self, proxy_url: str | None) -> Any:
            session = await super()._get_session(proxy_url)
            watch_connections(session)
            return _Direct(session)

    return Session


class _Direct:
    """A session of aiohttp that follows no redirects, and repeats no writes."""

    def __init__(self, session: Any) -> None:
        self._session = session

    def request(self, *args: Any, **options: Any) -> Any:
        # It sends again, unseen, what a connection that broke has not answered: of a write, the
        # second answer would say nothing of the first. Read where a request begins, which is now.
        is_read = (args[0] if args else options.get("method")) in ("GET", "HEAD")
        self._session._retry_connection = is_read
        return self._session.request(*args, **options, allow_redirects=False)


def share_models(session: Any) -> Any:
    """Return a session of botocore whose descriptions of services are read once for all sessions.

    They are in files of megabytes, and take nearly all of the time that a new client takes.
    """
    session.register_component("data_loader", _loader(session.get_config_variable("data_path")))
    return session


@cache
def _loader(folders: str | None) -> Any:
    from botocore.loaders import create_loader

    return create_loader(folders)


def with_region(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return options of s3fs with a region that is named beside them, as datasets take it.

    Examples
    --------
    >>> with_region({"anon": True, "region_name": "eu"})
    {'anon': True, 'client_kwargs': {'region_name': 'eu'}}
    """
    if "region_name" not in options:
        return dict(options)
    others = {name: value for name, value in options.items() if name != "region_name"}
    client = {"region_name": options["region_name"], **(options.get("client_kwargs") or {})}
    return {**others, "client_kwargs": client}


def note_environment() -> None:
    """Let s3fs look at the environment again if it has changed.

    fsspec keeps its file systems, and those that are in front of others, such as caches.
    """
    import s3fs  # noqa: F401 - or there is nothing to open
    from fsspec.registry import registry

    # Other threads may set and delete variables meanwhile.
    names = [name for name in list(os.environ) if name.startswith("AWS_")]
    variables = {name: os.environ.get(name) for name in names}
    with _noting:
        if _environment and _environment[0] != variables:
            for kind in list(registry.values()):
                kind.clear_instance_cache()
        _environment[:] = [variables]


def open_session(profile: str | None = None) -> Any:
    """Return botocore's session of a profile; None where botocore is not installed.

    It reads the user's configuration files, and what is set in the environment.
    """
    try:
        from botocore.session import Session
    except ImportError:
        return None
    return Session(profile=profile)


def find_endpoint(session: Any) -> dict[str, str]:
    """Return endpoint and region as s3fs finds them for a session, where they are configured."""
    from botocore.configprovider import ConfiguredEndpointProvider
    from botocore.utils import ensure_boolean

    settings = {"region": session.get_config_variable("region")}
    if not ensure_boolean(session.get_config_variable("ignore_configured_endpoint_urls")):
        endpoints = ConfiguredEndpointProvider(
            full_config=session.full_config,
            scoped_config=session.get_scoped_config(),
            client_name="s3",
        )
        settings["endpoint"] = endpoints.provide()
    return {name: value for name, value in settings.items() if value}
