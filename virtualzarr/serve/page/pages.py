"""Answers of the page: HTML, pictures, and what both load."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, quote

from virtualzarr.array import Array
from virtualzarr.errors import VirtualZarrError
from virtualzarr.hierarchy.group import Group
from virtualzarr.hierarchy.inventory import iter_arrays
from virtualzarr.serve.catalogue import Entry
from virtualzarr.serve.delivery import Delivery
from virtualzarr.serve.messages import Request, Response, document_response, text_response
from virtualzarr.serve.page import html
from virtualzarr.serve.page.describe import (
    Chunks,
    choose_variable,
    describe_chunks,
    values_at,
)
from virtualzarr.serve.page.picture import Picture, draw
from virtualzarr.serve.page.sampling import MAX_BYTES, NoPictureError
from virtualzarr.serve.page.values import is_drawable, sample_text
from virtualzarr.serve.page.view import View, make_view
from virtualzarr.serve.tags import digest
from virtualzarr.stores.lru_cache import LRUCache

_log = logging.getLogger(__name__)

_HERE = Path(__file__).parent
_ASSETS = {"page.js": "text/javascript; charset=utf-8", "style.css": "text/css; charset=utf-8"}
_HOST = re.compile(r"[A-Za-z0-9.-]{1,255}(:\d{1,5})?|\[[0-9A-Fa-f:.]{2,45}\](:\d{1,5})?")
_VERSIONS = 20
_RECENT = 8 << 20
_TEXT = 200

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob: data:; "
    "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
"""Nothing is loaded from elsewhere, and nothing in a page runs but its own script."""

_HEADERS = {
    "content-security-policy": POLICY,
    "referrer-policy": "no-referrer",
    "cache-control": "no-cache",
}


class Pages:
    """The pages of an application.

    Parameters
    ----------
    entries : dict of Entry by name
    delivery : Delivery
        Whose threads and memory pictures take.
    show_sources : bool
        Whether files and URLs of sources are named.
    """

    def __init__(self, entries: dict[str, Entry], delivery: Delivery, show_sources: bool) -> None:
        self.entries, self.delivery, self.show_sources = entries, delivery, show_sources
        self._recent: LRUCache[Any, tuple[Any, Picture]] = LRUCache(_RECENT)

    async def respond(
        self, entry: Entry | None, parts: list[str], request: Request, url: str
    ) -> Response:
        """Return the answer to a path that is no key of a face.

        Parameters
        ----------
        entry : Entry, optional
            The dataset that the path is below.
        parts : list of str
            The rest of the path.
        url : str
            Where the application is, with a slash at its end.
        """
        if len(parts) == 2 and parts[0] == "-" and parts[1] in _ASSETS:
            body = (_HERE / parts[1]).read_bytes()
            return _page(request, body, _ASSETS[parts[1]])
        if entry is None:
            if parts == [""]:
                return _page(request, html.catalogue_page(self.entries))
            if len(parts) == 1 and parts[0] in self.entries:
                return text_response(301, "the page", location=f"{quote(parts[0])}/")
        elif parts == [""]:
            below = f"{url}{quote(entry.name)}/" if entry.name else url
            return await self._page_of(entry, request, below)
        elif parts == ["-", "picture"]:
            return await self._picture_of(entry, request)
        return text_response(404, "there is nothing of that name")

    async def _page_of(self, entry: Entry, request: Request, url: str) -> Response:
        query = _parse(request)
        arrays = dict(await self.delivery.read(lambda: list(iter_arrays(entry.snapshot.node))))
        name = query.get("var", [""])[0]
        path = name if name in arrays else choose_variable(arrays)
        picture, chunks = "", None
        if path is not None:
            picture = await self._picture_html(entry, arrays[path], path, query)
            chunks = await self.delivery.read(self._describe_chunks, entry, path)
        body = await self.delivery.read(
            lambda: html.dataset_page(
                entry.name, entry.snapshot.node, path,
                version=entry.snapshot.version, skipped=self._skipped(entry),
                notice=_notice(entry), picture=picture, chunks=chunks,
                history=_history(entry), url=url, show_sources=self.show_sources,
            )
        )  # fmt: skip
        return _page(request, body)

    @staticmethod
    def _describe_chunks(entry: Entry, path: str) -> Chunks | None:
        for face in entry.snapshot.faces.values():
            if path in face.arrays:
                try:
                    stored = face.arrays[path].prepare()
                except VirtualZarrError:
                    return None  # the page shows everything else
                if stored.manifest is None:
                    return None
                in_store = stored.store_chunks is not None
                return describe_chunks(stored.array, stored.manifest, in_store)
        return None

    def _skipped(self, entry: Entry) -> dict[str, str]:
        skipped = {f"all of {name}": why for name, why in entry.snapshot.skipped.items()}
        for name, face in entry.snapshot.faces.items():
            skipped |= {f"{path or '/'} in {name}": why for path, why in face.skipped.items()}
        node = entry.snapshot.node
        if isinstance(node, Group):
            # Reasons may name files.
            hidden = "it could not be virtualized"
            skipped |= {
                path: why if self.show_sources else hidden for path, why in node.skipped.items()
            }
        return skipped

    async def _picture_html(
        self, entry: Entry, array: Array, path: str, query: Mapping[str, list[str]]
    ) -> str:
        """Return the picture of a variable, or some of its values, or why there is neither."""
        try:
            if not is_drawable(array):
                async with self.delivery.budget.take(MAX_BYTES):
                    text = await self.delivery.encode(sample_text, array)
                return html.values_html(text)
            view = await self.delivery.read(make_view, entry.snapshot.node, path, array)
            at = _positions(view, query)
            picture = await self._draw(view, at)
        except NoPictureError as error:
            return f'<p class="note">No picture: {html.text(error.message)}.</p>'
        except VirtualZarrError as error:
            _log.warning("%s: no picture of %s: %s", entry.name or "/", path or "/", error)
            return '<p class="notice">The values cannot be read.</p>'
        values = await self.delivery.read(values_at, entry.snapshot.node, path, array, view, at)
        sliders = html.make_sliders(array, view, at, values)
        image = html.attribute(f"-/picture?{_query_of(path, at)}")
        return html.picture_html(path, sliders, image, picture)

    async def _draw(self, view: View, at: list[int]) -> Picture:
        # By its metadata, which the snapshot holds: the page and its picture follow each other.
        metadata = view.array.metadata
        key = id(metadata), view.array.path, tuple(at)
        cached: tuple[Any, Picture] | None = self._recent.get(key)
        if cached is not None:
            return cached[1]
        async with self.delivery.budget.take(2 * MAX_BYTES):
            picture = await self.delivery.encode(draw, view, at)
        self._recent.put(key, (metadata, picture), len(picture.data))
        return picture

    async def _picture_of(self, entry: Entry, request: Request) -> Response:
        query = _parse(request)
        path = query.get("var", [""])[0]
        node = entry.snapshot.node
        arrays = dict(await self.delivery.read(lambda: list(iter_arrays(node))))
        if path not in arrays:
            return text_response(404, "there is no such variable")
        array = arrays[path]
        view = await self.delivery.read(make_view, node, path, array)
        at = _positions(view, query)
        try:
            picture = await self._draw(view, at)
        except NoPictureError as error:
            return text_response(404, error.message)
        values = await self.delivery.read(values_at, node, path, array, view, at)
        about = {
            "low": picture.low, "high": html.high_text(picture), "kind": picture.kind,
            "alt": html.alternative(path, picture),
            "caption": picture.caption, "at": at, "values": [value[:_TEXT] for value in values],
        }  # fmt: skip
        headers = _HEADERS | {
            "content-type": picture.media_type,
            "x-picture": quote(json.dumps(about)),
        }
        return Response(200, picture.data, headers, "picture")


def url_of(request: Request, scheme: str, root: str) -> str:
    """Return where the application is, as the client sees it, with a slash at its end."""
    host = request.header(b"host")
    # It is shown in snippets: nothing but what a host may be.
    host = host if _HOST.fullmatch(host) else "localhost"
    return f"{'https' if scheme == 'https' else 'http'}://{host}{quote(root)}/"


def _page(request: Request, body: bytes, media_type: str = "text/html; charset=utf-8") -> Response:
    return document_response(
        request, body, digest(body), _HEADERS | {"content-type": media_type}, "page"
    )


def _parse(request: Request) -> dict[str, list[str]]:
    try:
        return parse_qs(request.query.decode("latin-1"), keep_blank_values=True, max_num_fields=64)
    except ValueError:
        return {}


def _query_of(path: str, at: list[int]) -> str:
    return "&".join([f"var={quote(path, safe='')}", *(f"at={i}" for i in at)])


def _positions(view: View, query: Mapping[str, list[str]]) -> list[int]:
    """Return where a picture is along all axes but its own: as asked for, within the array."""
    texts = query.get("at", [])
    at = []
    for number, axis in enumerate(view.others):
        text = texts[number] if number < len(texts) else "0"
        index = int(text) if text.isascii() and text.isdigit() and len(text) < 19 else 0
        at.append(max(0, min(index, view.shape[axis] - 1)))
    return at


def _notice(entry: Entry) -> str:
    if entry.held_back is None:
        return ""
    return (
        f"There is version {entry.held_back}, which does more than append: what is served stays at "
        f"version {entry.snapshot.version} until the server starts again."
    )


def _history(entry: Entry) -> list[tuple[Any, ...]]:
    """Return the last versions of a dataset: who made them, and of which files, stays here."""
    source = entry.snapshot.source
    if source is None:
        return []
    try:
        versions = source.history(max(1, source.version - _VERSIONS + 1), source.version + 1)
    except VirtualZarrError:
        return []
    return [
        (each.version, f"{each.time:%Y-%m-%d %H:%M} UTC", each.about.get("verb", ""),
         each.about.get("message") or "")
        for each in reversed(versions)
    ]  # fmt: skip
