"""Whether a block holds nothing but the fill value, to the bit."""

from __future__ import annotations

from typing import Any

import numpy as np

from virtualzarr.codecs.base import U1, Block


def is_filled(block: Block, fill: Any) -> bool:
    """Tell whether every element has the very bits of the fill value.

    A NaN of another payload, or a zero of another sign, is not the fill value: leaving it out
    would lose it.

    Examples
    --------
    >>> is_filled(np.zeros(3), 0.0), is_filled(np.array([0.0, -0.0]), 0.0)
    (True, False)
    """
    if not block.size:
        return True
    if block.dtype.hasobject:
        return all(type(value) is type(fill) and value == fill for value in block.flat)
    want = np.asarray(fill, block.dtype).reshape(1)
    width = want.itemsize
    if width == 0:
        return True
    first: Any = (slice(0, 1),) * block.ndim
    if block[(*first, ...)].tobytes() != want.tobytes():
        return False
    flat = np.ascontiguousarray(block).reshape(-1)
    if width in (1, 2, 4, 8):
        same = flat.view(f"u{width}") == want.view(f"u{width}")
    else:
        same = flat.view(U1).reshape(-1, width) == want.view(U1)
    return bool(same.all())
