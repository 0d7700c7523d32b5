"""Data of datasets that something outside refers to: whether a tag keeps them from the vacuum."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from virtualzarr.dataset.head import Head, read_head, read_version, walk_log
from virtualzarr.dataset.open_storage import open_storage
from virtualzarr.dataset.operations import Protocol
from virtualzarr.dataset.row_tables import read_entries
from virtualzarr.dataset.segment import DATA
from virtualzarr.errors import SourceNotFoundError
from virtualzarr.manifest import Source
from virtualzarr.stores.uris import ANYWHERE


def find_unkept(sources: Iterable[Source]) -> set[str]:
    """Return the URIs of those sources that a vacuum of their dataset may delete.

    Those stay that a version with a tag refers to. A folder without a head is no dataset.
    """
    folders: dict[str, dict[str, Source]] = {}
    for source in sources:
        folder, _, name = source.uri.rpartition(f"/{DATA}/")
        folders.setdefault(folder, {})[f"{DATA}/{name}"] = source
    unkept: set[str] = set()
    for folder, by_name in folders.items():
        # Its head is asked for what it keeps, and nothing of it is passed on.
        location = next(iter(by_name.values())).location
        storage = open_storage(replace(location, uri=folder, allowed=(ANYWHERE,)))
        try:
            head = storage.run(read_head())
        except SourceNotFoundError:
            continue
        tagged = storage.run(walk_log(head, _list_tagged))
        unkept |= {source.uri for name, source in by_name.items() if name not in tagged}
    return unkept


def _list_tagged(head: Head) -> Protocol[set[str]]:
    """Return the names of the objects of data that versions with a tag refer to."""
    names: set[str] = set()
    for version in {*head.snapshot.tags.values()}:
        state = yield from read_version(head, version)
        for entry in (yield from read_entries(state)):
            names |= {named.name for named in entry.data}
    return names
