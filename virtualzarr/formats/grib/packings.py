"""Packings of GRIB values: unsupported ones are skipped when scanned, not when read."""

from __future__ import annotations

import numpy as np

from virtualzarr.codecs.grib.check_message import explain_unsupported
from virtualzarr.errors import UnsupportedError
from virtualzarr.formats.grib.index import Fields, Ints, Note, Steps
from virtualzarr.formats.paging import Gather

_HEAD = 20
"""Bytes of section 5 of edition 2 up to octet 20, the bits of a value (octets 10-11: template)."""

_HEAD1 = 11
"""Bytes of section 4 of edition 1 up to octet 11, the bits of a value."""


def check_packings(fields: Fields, note: Note) -> Steps:
    """Parse: note fields that cannot be unpacked, and return their numbers."""
    template, bits = np.zeros(len(fields), np.int64), np.zeros(len(fields), np.int64)
    for edition, section, least in ((1, 4, _HEAD1), (2, 5, _HEAD)):
        begin = fields.begin[:, section]
        rows = np.flatnonzero(
            (fields.edition == edition) & (fields.end[:, section] - begin >= least)
        )
        if not len(rows):
            continue
        head = (yield Gather(begin[rows], least)).astype(np.int64)
        if edition == 1:
            # Octet 4 flags (code table 11): spherical harmonics 128, complex packing 64, additional
            # flags 16. The width of a value is at octet 11 of simple packing only; the others are
            # left to ecCodes.
            bits[rows] = np.where(head[:, 3] & 0xD0, 0, head[:, 10])
        else:
            template[rows], bits[rows] = head[:, 9] * 256 + head[:, 10], head[:, 19]
    return _note_unsupported(fields, template, bits, note)


def _note_unsupported(fields: Fields, template: Ints, bits: Ints, note: Note) -> Ints:
    # One check for each distinct pair of template and width: there are a handful in any file.
    pairs, which = np.unique(np.stack([template, bits], axis=1), axis=0, return_inverse=True)
    reasons = [explain_unsupported(*pair) for pair in pairs.tolist()]
    unsupported = np.flatnonzero(np.array([bool(reason) for reason in reasons])[which.reshape(-1)])
    for number in unsupported.tolist():
        reason = reasons[int(which.reshape(-1)[number])]
        note(f"message at byte {int(fields.start[number])}", UnsupportedError(reason))
    return unsupported
