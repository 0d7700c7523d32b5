"""Values of GRIB fields, decoded by ecCodes."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from virtualzarr.codecs.core.base import Buffer, as_view
from virtualzarr.codecs.grib import message as messages
from virtualzarr.codecs.grib.base import _Grib
from virtualzarr.codecs.grib.check_message import check_packing, check_packing1
from virtualzarr.codecs.grib.eccodes_library import read_values
from virtualzarr.codecs.grib.worker import ask_worker


class Field(_Grib):
    """The values of one field (``virtualzarr.grib``), NaN where the bitmap says there is none.

    The bytes are a message, or that part of a message of several fields that ends with the field's
    values. Members of the configuration, all optional:

    * ``before``: base64 of a byte, the discipline, and of sections of the message that are the
      field's, but lie before the bytes;
    * ``order``: how the points follow each other: in ``"rows"``, as nearly everywhere, in
      ``"columns"``, or in ``"alternating rows"`` or ``"alternating columns"``, of which every
      second runs backwards.
    """

    def _compute(self, data: Buffer, size: int) -> NDArray[np.float64]:
        data = as_view(data)
        if data[:4] == b"GRIB" and data[7:8] == b"\x01":
            checked = check_packing1(messages.sections1(data), size)
        else:
            discipline, sections = messages.field_sections(data, self._before)
            checked = check_packing(sections, size)
            if not messages.is_single(data):
                data = messages.message(discipline, sections)
        return read_values(data, size) if checked else ask_worker(data, "values", size)
