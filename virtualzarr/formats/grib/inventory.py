"""Inventories (``.idx``, ``.index``) beside remote GRIB files: offsets of all messages at once.

Without one, each message has to be read to know where the next begins: a round trip for each.
Offsets are not trusted: they only tell which bytes to fetch together.
"""

from __future__ import annotations

import re

from virtualzarr.errors import SourceError
from virtualzarr.manifest import Source
from virtualzarr.stores.files import RemoteFile

FROM = 4 << 20
"""Files of fewer bytes are scanned as fast without."""

_MOST_BYTES = 16 << 20
_MOST = 20_000
_LINE = re.compile(rb"^[0-9.]+:([0-9]{1,15}):", re.MULTILINE)
_MEMBER = re.compile(rb'"_offset": *([0-9]{1,15})')


def message_starts(source: Source) -> list[int]:
    """Return the offsets of messages in a file; none if no inventory is found.

    wgrib's lie at the file's name and ``.idx``, ECMWF's at the name with ``.index`` in place of its
    extension.
    """
    uri, size = source.uri, source.size or 0
    # A query or a chained fsspec URL does not end with the name of the file, so no name beside it
    # can be built from it.
    if size < FROM or "?" in uri or "::" in uri:
        return []
    stem = uri.rpartition(".")[0]
    for inventory_uri, pattern in ((f"{uri}.idx", _LINE), (f"{stem}.index", _MEMBER)):
        try:
            beside = Source.from_file(inventory_uri, source.storage_options)
            length = beside.size
            if length is None or length > _MOST_BYTES:
                continue
            text = bytes(RemoteFile(beside.location).read(0, length))
        # Also where access is denied: an inventory is an optimization, and a scan works without.
        except SourceError:
            continue
        starts = sorted({int(start) for start in pattern.findall(text)})
        if len(starts) <= _MOST:
            return [start for start in starts if start < size]
    return []
