"""Which bytes are read for a field, and what is needed beside them.

A field that is alone in its message is the message. One of several is the part that ends with its
values; what lies before, and is the field's, too, goes into the configuration of the codec.
"""

from __future__ import annotations

import base64
from dataclasses import dataclass
from typing import Any

import numpy as np

from virtualzarr.codecs import Codec, make
from virtualzarr.errors import SourceError
from virtualzarr.formats.grib.index import Fields, Ints, Steps
from virtualzarr.formats.paging import Gather

_MOST = 1 << 28
_DATE = slice(12, 19)
"""Where the reference time lies in section 1: values do not depend on it."""


@dataclass(frozen=True)
class Places:
    """Where fields lie, as columns.

    Attributes
    ----------
    begin, end : int64 array
    before : int64 array
        Number of the bytes in `parts` that a field needs beside its own; -1 if it needs none.
    parts : list of bytes
    """

    begin: Ints
    end: Ints
    before: Ints
    parts: list[bytes]

    def codec(self, part: int, options: dict[str, Any]) -> Codec:
        """Return the codec of fields that need some bytes beside their own."""
        if part >= 0:
            options = {**options, "before": base64.b64encode(self.parts[part]).decode()}
        return make("virtualzarr.grib", **options)


def read_places(fields: Fields) -> Steps:
    """Parse: return the `Places` of fields."""
    begin, end = fields.start.copy(), fields.stop.copy()
    places = Places(begin, end, np.full(len(fields), -1), [])
    shared = np.flatnonzero(~fields.alone)
    end[shared] = fields.end[shared, 7]
    # The first of several begins with the message.
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
        parts[1][:, _DATE] = 0
        joined = np.concatenate(parts, axis=1)
        prefixes = np.ascontiguousarray(joined).view(np.dtype((np.void, joined.shape[1])))[:, 0]
        kinds, kind_of = np.unique(prefixes, return_inverse=True)
        places.before[rows] = kind_of.reshape(-1) + len(places.parts)
        places.parts.extend(kind.tobytes() for kind in kinds)
    return places
