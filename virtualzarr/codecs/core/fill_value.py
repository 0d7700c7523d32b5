"""Blocks of the fill value: built, and recognized bit by bit."""

from __future__ import annotations

from typing import Any

import numpy as np

from virtualzarr.codecs.core.base import U1, Block
from virtualzarr.codecs.core.numbers import clear_padding
from virtualzarr.codecs.core.scratch import allocate


def full_block(shape: tuple[int, ...], fill: Any, dtype: np.dtype[Any]) -> Block:
    """Return a new block that is all fill value.

    Of elements that are objects, `numpy.full` would cut zeros off the end of text and bytes, and
    spread lists over several elements.

    Examples
    --------
    >>> full_block((2,), b"\\0", np.dtype(object)), np.full(2, b"\\0", object)
    (array([b'\\x00', b'\\x00'], dtype=object), array([b'', b''], dtype=object))
    """
    block = allocate(shape, dtype)
    if dtype.hasobject:
        # A scalar box: `copyto` then takes the object as it is, be it a list or text.
        box = np.empty((), dtype)
        box[()] = fill
        fill = box
    np.copyto(block, fill, casting="unsafe")
    return block


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
    # Without the padding of structures, in which equal elements differ.
    want = clear_padding(np.asarray(fill, block.dtype).reshape(1))
    width = want.itemsize
    if width == 0:
        return True
    # Most blocks differ in their first element: those cost nothing more.
    first: Any = (slice(0, 1),) * block.ndim
    if clear_padding(block[(*first, ...)]).tobytes() != want.tobytes():
        return False
    flat = clear_padding(np.ascontiguousarray(block)).reshape(-1)
    # Compared as integers: NaN differs from itself as a float, and -0.0 does not from 0.0.
    if width in (1, 2, 4, 8):
        same = flat.view(f"u{width}") == want.view(f"u{width}")
    else:
        same = flat.view(U1).reshape(-1, width) == want.view(U1)
    return bool(same.all())
