"""Byte ranges of GRIB fields as chunk references, and the prefixes that their codecs need.

The chunk of a field that is alone in its message is the message. One of several is the part that
ends with its values; sections before it that are also the field's are in the codec's configuration.
"""

from __future__ import annotations

import base64
from dataclasses import dataclass
from typing import Any

import numpy as np

from virtualzarr.codecs import Codec, make
from virtualzarr.errors import SourceError
from virtualzarr.formats.grib.index import Fields, Ints, Steps, unique_rows
from virtualzarr.formats.paging import Gather

_MOST = 1 << 28
_DATE = slice(12, 19)
"""Offsets of the reference time in section 1, on which values do not depend."""


@dataclass(frozen=True)
class Places:
    """Byte ranges of fields, as columns.

    Attributes
    ----------
    begin, end : int64 array
    before : int64 array
        Index in `parts` of the prefix that a field's codec needs; -1 if it needs none.
    """

    begin: Ints
    end: Ints
    before: Ints
    parts: list[bytes]

    def codec(self, part: int, options: dict[str, Any]) -> Codec:
        """Return the codec of fields with a prefix of `parts`, or of those without (-1)."""
        if part >= 0:
            options = {**options, "before": base64.b64encode(self.parts[part]).decode()}
        return make("virtualzarr.grib", **options)


def read_places(fields: Fields) -> Steps:
    """Parse: return the `Places` of fields."""
    begin, end = fields.start.copy(), fields.stop.copy()
    places = Places(begin, end, np.full(len(fields), -1), [])
    shared = np.flatnonzero(~fields.alone)
    end[shared] = fields.end[shared, 7]
    # The first of several fields begins with the message. A later one begins with its section 4, or
    # with the bitmap (section 6) of an earlier field if it reuses that: chunks then overlap.
    later = shared[1:][np.diff(fields.message[shared]) == 0]
    begin[later] = np.minimum(fields.begin[later, 4], fields.begin[later, 6])
    lengths = (fields.end - fields.begin)[later][:, [1, 3]]
    if int(lengths.sum()) > _MOST:
        raise SourceError("messages of several fields have too long sections before them")
    for first, third in sorted(set(map(tuple, lengths.tolist()))):
        rows = later[(lengths == (first, third)).all(axis=1)]
        parts = [fields.discipline[rows, None].astype(np.uint8)]
        for section, length in ((1, first), (3, third)):
            parts.append((yield Gather(fields.begin[rows, section], length)).copy())
        # Without times, prefixes are as few as grids: a codec for each, not for each message.
        parts[1][:, _DATE] = 0
        kinds, _, kind_of = unique_rows(np.concatenate(parts, axis=1))
        places.before[rows] = kind_of + len(places.parts)
        places.parts.extend(kind.tobytes() for kind in kinds)
    return places
