"""ASGI application that serves datasets as Zarr, read-only."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from virtualzarr.choices import check_choice
from virtualzarr.hierarchy.group import Group
from virtualzarr.keywords import strict_keywords
from virtualzarr.serve.access import Access
from virtualzarr.serve.answers import Answers
from virtualzarr.serve.catalogue import Entry, Follow, make_catalogue, name_targets
from virtualzarr.serve.delivery import Delivery
from virtualzarr.serve.disk_cache import DiskCache
from virtualzarr.serve.exchange import Exchange
from virtualzarr.serve.messages import Receive, Scope, Send
from virtualzarr.serve.page.pages import Pages

_log = logging.getLogger(__name__)

MEMORY = 96 << 20
CACHE_SIZE = 10 << 30
POLL = 10.0


@strict_keywords()
def create_app(
    targets: Any,
    *,
    tokens: Collection[str] = (),
    public: bool = False,
    origins: Collection[str] = (),
    follow: Follow = "append",
    poll: float = POLL,
    max_age: int = 0,
    memory: int = MEMORY,
    cache: str | os.PathLike[str] | None = None,
    cache_size: int = CACHE_SIZE,
    show_sources: bool = False,
    page: bool = True,
    format: str | None = None,
    storage_options: Mapping[str, Any] | None = None,
    allowed: str | Iterable[str] | None = None,
    version: int | None = None,
    at: str | None = None,
    tag: str | None = None,
) -> Application:
    """Return an ASGI application that serves datasets as Zarr over HTTP.

    Parameters
    ----------
    targets : path, URL, Group, Array, dict, list of these, or mapping of names to them
        What to serve: whatever `virtualzarr.open` opens, also references in a dict. A list of
        texts may have ``name=target``.
        One that stands alone has no name in its URLs.
    tokens : collection of str
        One of which each request needs, if there are any.
    public : bool
        Whether everybody may ask without one. If neither, only requests to and from loopback are
        answered.
    origins : collection of str
        Web pages that may read answers, besides the usual.
    follow : {"append", "all", "none"}
        Which commits URLs without a version follow, of datasets with versions.
    poll : float
        Seconds between looks for new versions; 0 for none.
    max_age : int
        Seconds for which clients need not ask again, of URLs without a version.
    memory : int
        Bytes for chunks on their way: requests wait for them.
    cache : path, optional
        A folder for encoded chunks.
    cache_size : int
        Bytes in it.
    show_sources : bool
        Whether the page names files and URLs of sources.
    page : bool
        Whether there is a page for people.
    format, storage_options, allowed, version, at, tag
        As for `virtualzarr.open`, for all targets.

    Returns
    -------
    Application

    Raises
    ------
    VirtualZarrError
        A target cannot be opened.
    MissingDependencyError
        The extra ``serve`` is not installed.

    Notes
    -----
    See ``specs/serving.md`` for what is answered.

    Examples
    --------
    >>> from virtualzarr import Group
    >>> app = create_app({"empty": Group({"title": "empty"})})
    >>> sorted(app.entries["empty"].snapshot.faces["v2"].documents)
    ['.zattrs', '.zgroup', '.zmetadata']
    """
    check_choice("follow", follow, Follow)
    options = {
        "format": format, "storage_options": storage_options, "allowed": allowed,
        "version": version, "at": at, "tag": tag,
    }  # fmt: skip
    stored = None if cache is None else DiskCache(cache, cache_size)
    return Application(
        make_catalogue(_as_mapping(targets), options, follow),
        Access(tokens, public, origins),
        Delivery(memory, stored),
        poll=poll, max_age=max_age, show_sources=show_sources, page=page,
    )  # fmt: skip


def _as_mapping(targets: Any) -> dict[str, Any]:
    # Groups are mappings, too, and so are stores and references in memory.
    if isinstance(targets, Mapping) and not isinstance(targets, Group):
        return {"": targets} if _is_target(targets) else dict(targets)
    if isinstance(targets, list | tuple):
        if all(isinstance(target, str) for target in targets):
            return name_targets(targets)
        raise TypeError("several targets that are not texts need names: give a mapping")
    return {"": targets}


def _is_target(mapping: Mapping[Any, Any]) -> bool:
    """Tell whether a mapping is a hierarchy or references, none of names to targets."""
    is_store = any(name in mapping for name in ("zarr.json", ".zgroup", ".zarray"))
    return is_store or ("refs" in mapping and isinstance(mapping.get("version"), int))


class Application:
    """An ASGI application; see `create_app`.

    Attributes
    ----------
    entries : dict of Entry by name
    """

    def __init__(
        self,
        entries: dict[str, Entry],
        access: Access,
        delivery: Delivery,
        *,
        poll: float,
        max_age: int,
        show_sources: bool,
        page: bool,
    ) -> None:
        self.entries, self.access, self.delivery = entries, access, delivery
        self.poll, self.max_age = poll, max_age
        self.show_sources = show_sources
        self.answers = Answers()
        self.pages = Pages(entries, delivery, show_sources) if page else None
        self._polling: asyncio.Task[None] | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, as ASGI has it."""
        if scope["type"] == "lifespan":
            await self._run_lifespan(receive, send)
        elif scope["type"] == "http":
            self._start_polling()
            await Exchange(self, scope, receive, send).run()
        else:
            # Of a websocket, which is refused.
            await send({"type": "websocket.close", "code": 1003})

    async def _run_lifespan(self, receive: Receive, send: Send) -> None:
        while True:
            message = await receive()
            await send({"type": f"{message['type']}.complete"})
            if message["type"] == "lifespan.shutdown":
                if self._polling is not None:
                    self._polling.cancel()
                    self._polling = None
                self.delivery.close()
                return

    def _start_polling(self) -> None:
        # With the first request: mounted applications are told of no start.
        if (
            self._polling is None
            and self.poll > 0
            and any(entry.is_watched for entry in self.entries.values())
        ):
            self._polling = asyncio.get_running_loop().create_task(self._keep_polling())

    async def _keep_polling(self) -> None:
        while True:
            await asyncio.sleep(self.poll)
            for entry in self.entries.values():
                try:
                    await self.delivery.read(entry.refresh)
                # Whatever it is, what is served stays as it is, and the next look may succeed.
                except Exception as error:
                    _log.warning("%s: no look for new versions: %s", entry.name or "/", error)

    def locate(self, parts: list[str]) -> tuple[Entry, list[str]] | None:
        """Return the dataset that a path names, and the rest of the path."""
        if "" in self.entries:
            return self.entries[""], parts
        entry = self.entries.get(parts[0])
        return None if entry is None or len(parts) < 2 else (entry, parts[1:])
