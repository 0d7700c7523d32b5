"""One version of each file in all that is joined, where several openings know none of it."""

from __future__ import annotations

from collections.abc import Iterable

from virtualzarr.array import Array
from virtualzarr.array.chunk_source import ManifestChunks
from virtualzarr.hierarchy.group import Group
from virtualzarr.hierarchy.inventory import iter_arrays
from virtualzarr.manifest import Sources
from virtualzarr.manifest.sources import join_openings
from virtualzarr.stores.pins import Pins


def join_versions(items: Iterable[Group | Array]) -> None:
    """Have arrays, or those of groups, read one version of each file from now on.

    Raises
    ------
    SourceChangedError
        A file has been read in two.
    """
    tables: dict[int, Sources] = {}
    others: list[Pins] = []
    for item in items:
        for _, array in iter_arrays(item):
            source = array.chunk_source
            # Large manifests that are stored are not loaded for this.
            if (location := getattr(source, "location", None)) is not None:
                others.append(location.pins)
            elif isinstance(source, ManifestChunks):
                tables[id(source.manifest.sources)] = source.manifest.sources
    join_openings([*tables.values()], others)
