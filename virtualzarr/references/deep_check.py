"""Deep checks: digests of source files that were noted, and all chunks decoded."""

from __future__ import annotations

import math
from collections.abc import Iterator

from virtualzarr.array import Array
from virtualzarr.array.chunk_source import open_source
from virtualzarr.errors import SourceNotFoundError, VirtualZarrError
from virtualzarr.hierarchy.group import Group
from virtualzarr.manifest import Source
from virtualzarr.references.inventory import list_arrays
from virtualzarr.stores.digests import is_comparable_digest, require_size, sample_digest
from virtualzarr.stores.files import take_fingerprint

READ_BYTES = 64 * 1024 * 1024
"""About so much of an array is read at once."""

Box = tuple[tuple[int, int], ...]


def compare_digest(source: Source) -> str:
    """Return what of a file differs from the digest that was noted; "" if nothing does."""
    if source.digest is None or not is_comparable_digest(source.digest):
        return ""
    size = require_size(take_fingerprint(source.location).size, source.uri)
    if sample_digest(open_source(source), size) == source.digest:
        return ""
    return "its bytes are others, though size and date are the same"


def find_undecodable(node: Group | Array) -> dict[str, str]:
    """Return what is wrong with files of which a chunk cannot be read, the first such of each."""
    failures: dict[str, str] = {}
    for path, array in list_arrays(node).items():
        all_cells = tuple((0, count) for count in array.grid.grid_shape)
        if array.is_virtual and 0 not in array.shape:
            for error in _failures(array, all_cells):
                if not isinstance(error, SourceNotFoundError):
                    failures.setdefault(error.at(variable=path).file or path, str(error))
    return failures


def _failures(array: Array, box: Box) -> Iterator[VirtualZarrError]:
    """Read the cells of a box; where that fails, its halves, down to single cells."""
    axis = max(range(len(box)), key=lambda i: box[i][1] - box[i][0], default=0)
    cells = math.prod(stop - start for start, stop in box)
    # Halved until what fails is one chunk: reading all chunks one by one would cost a decode call
    # and a request each.
    if cells == 1 or _nbytes(array, box) <= READ_BYTES:
        try:
            array[_region(array, box)]
            return
        except VirtualZarrError as error:
            if cells == 1:
                yield error
                return
    start, stop = box[axis]
    for half in ((start, (start + stop) // 2), ((start + stop) // 2, stop)):
        yield from _failures(array, (*box[:axis], half, *box[axis + 1 :]))


def _region(array: Array, box: Box) -> tuple[slice, ...]:
    """Return the elements of a box of cells."""
    if not box:
        return ()
    first = array.grid.cell_origin(tuple(start for start, _ in box))
    last = tuple(stop - 1 for _, stop in box)
    ends = zip(array.grid.cell_origin(last), array.grid.cell_shape(last), array.shape, strict=True)
    stops = (min(origin + length, extent) for origin, length, extent in ends)
    return tuple(map(slice, first, stops))


def _nbytes(array: Array, box: Box) -> int:
    return math.prod(s.stop - s.start for s in _region(array, box)) * array.dtype.itemsize
