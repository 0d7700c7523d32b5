"""Selections within chunks, as the read engine applies them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray


def shift_selection(chunk_sel: Sequence[Any], origin: NDArray[np.int32]) -> tuple[Any, ...]:
    """Shift a selection within a cell by the origin of the cell in its decoded block."""
    return tuple(
        slice(s.start + o, s.stop + o, s.step) if isinstance(s, slice) else s + o
        for s, o in zip(chunk_sel, origin.tolist(), strict=True)
    )


def is_all_slices(selection: tuple[Any, ...]) -> bool:
    """Tell whether a selection is all slices: it gives a view, in order, without repeats."""
    for item in selection:  # noqa: SIM110 - it is faster, and run for each chunk
        if type(item) is not slice:
            return False
    return True


def format_cell(cell: NDArray[np.int64]) -> str:
    """Return the name of a chunk for error messages: its indices in the grid, with dots."""
    return ".".join(str(index) for index in cell.tolist()) or "0"
