"""Links of STAC: the assets of items, and of all items that catalogues lead to."""

from __future__ import annotations

import os
import posixpath
from collections.abc import Callable, Iterator, Mapping
from typing import Any
from urllib.parse import urlunsplit

from virtualzarr.errors import SourceError
from virtualzarr.ingest.versions import Version
from virtualzarr.stores.location import Location
from virtualzarr.stores.uris import is_url, parse_url

MAX_DOCUMENTS = 1_000_000
"""Documents that links are followed to."""

_FOLLOWED = ("item", "items", "child", "next")
_NO_DATA = ("image/png", "image/jpeg", "image/webp", "image/gif", "text/", "application/json",
            "application/xml", "application/geo+json")  # fmt: skip


def is_stac(document: Mapping[str, Any]) -> bool:
    """Tell whether a document is of STAC, or a collection of items.

    Examples
    --------
    >>> is_stac({"stac_version": "1.0.0", "type": "Catalog"}), is_stac({"zarr_format": 2})
    (True, False)
    """
    return "stac_version" in document or document.get("type") == "FeatureCollection"


def find_stac_assets(
    document: Mapping[str, Any],
    location: Location,
    fetch: Callable[[str], Any],
    wanted: set[str] | None,
) -> Iterator[tuple[str, Version | None]]:
    """Yield the URIs of the assets of items, of a document and of all that it leads to.

    STAC says nothing of versions: they are asked for.

    Parameters
    ----------
    document : mapping
    location : Location
        Where it is: links are relative to that, and may not lead where references may not.
    fetch : callable
        Returns the document at a URI.
    wanted : set of str, optional
        Names or roles of assets.

    Raises
    ------
    SourceError
        A document is damaged, or links never end.
    """
    # Documents are fetched when their turn comes: there may be many.
    waiting: list[str] = []
    seen = {location.uri}
    current, at = document, location
    while True:
        items = current.get("features") if current.get("type") == "FeatureCollection" else [current]
        for item in _as_list(items, "features", at):
            yield from _list_assets(item, at, wanted)
        waiting += reversed([uri for uri in _list_links(current, at) if uri not in seen])
        seen.update(waiting)
        if len(seen) > MAX_DOCUMENTS:
            raise SourceError(f"links lead to more than {MAX_DOCUMENTS:,} documents", file=at.uri)
        if not waiting:
            return
        at = location.locate(waiting.pop())
        current = fetch(at.uri)


def _list_links(document: Mapping[str, Any], location: Location) -> list[str]:
    """Return where a document leads to, each once."""
    uris = []
    for link in _as_list(document.get("links", []), "links", location):
        if not isinstance(link, Mapping) or link.get("rel") not in _FOLLOWED:
            continue
        if link.get("method", "GET") != "GET":
            raise SourceError("a link to the next page is no GET", file=location.uri)
        uris.append(_normalize(location.resolve_uri(link.get("href"))))
    return list(dict.fromkeys(uris))


def _normalize(uri: str) -> str:
    """Return a URI without steps up: a document that leads to itself has one name, and no more.

    Examples
    --------
    >>> _normalize("s3://bucket/a/../b/x.json")
    's3://bucket/b/x.json'
    """
    if not is_url(uri):
        return os.path.normpath(uri)
    if "/.." not in uri and "/./" not in uri:
        return uri
    parts = parse_url(uri)
    return urlunsplit(parts._replace(path=posixpath.normpath(parts.path)))


def _as_list(value: Any, what: str, location: Location) -> list[Any]:
    if not isinstance(value, list):
        raise SourceError(f"{what} is no list", file=location.uri)
    return value


def _list_assets(
    item: Any, location: Location, wanted: set[str] | None
) -> Iterator[tuple[str, Version | None]]:
    if not isinstance(item, Mapping):
        raise SourceError("an item is no JSON object", file=location.uri)
    # Collections have assets, too: pictures and documents of all items.
    if item.get("type") != "Feature":
        return
    assets = item.get("assets", {})
    if not isinstance(assets, Mapping) or not all(isinstance(a, Mapping) for a in assets.values()):
        raise SourceError("the assets of an item are no JSON objects", file=location.uri)
    chosen = [asset for name, asset in assets.items() if _is_wanted(name, asset, wanted)]
    if wanted is None and not chosen:
        chosen = [asset for asset in assets.values()
                  if not str(asset.get("type", "")).startswith(_NO_DATA)]  # fmt: skip
    for asset in chosen:
        yield _normalize(location.resolve_uri(asset.get("href"))), None


def _is_wanted(name: str, asset: Mapping[str, Any], wanted: set[str] | None) -> bool:
    roles = asset.get("roles") or []
    if wanted is None:
        return "data" in roles
    return name in wanted or bool(wanted & {role for role in roles if isinstance(role, str)})
