"""Read engine: locate chunks, coalesce byte ranges, fetch, decode straight into the output.

`read` locates the chunks of a projection and makes a `ReadRequest` of them, which does the rest.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from grids import Projection
from virtualzarr.array.chunk_source import ChunkSource, LocatedChunks
from virtualzarr.array.read.cached_blocks import CacheLookup
from virtualzarr.array.read.output import allocate, check_out, format_cell, resolve_fill
from virtualzarr.array.read.request import ReadRequest
from virtualzarr.config import config
from virtualzarr.errors import ChunkNotFoundError, OutOfMemoryError, VirtualZarrError
from virtualzarr.metadata import ArrayMetadata
from virtualzarr.stores.renewals import ask_again


def read(
    metadata: ArrayMetadata,
    chunk_source: ChunkSource,
    projection: Projection,
    *,
    variable: str = "",
    fill_missing: bool = True,
    out: NDArray[Any] | None = None,
    cache_lookup: CacheLookup | None = None,
    is_nested: bool = False,
) -> NDArray[Any]:
    """Read what a projection selects.

    Parameters
    ----------
    out : array, optional
        Output, which is then returned: chunks are decoded straight into it, except for points
        spread over several axes of an array that is not contiguous.
    cache_lookup : CacheLookup, optional
        Looks up decoded chunks in a cache, and adds those that are not in it.
    is_nested : bool
        Whether it is called by a task, which must not wait for others that have not begun.

    Raises
    ------
    ValueError
        `out` has another shape or dtype, or cannot be written to.
    ChunkNotFoundError
        If a chunk is missing and `fill_missing` is false.
    SourceError, CodecError
        If bytes cannot be read or do not decode; the error names file, variable and chunk.
    UnsupportedError
        If these are more chunks than `config.limits.chunks_read`.
    """
    if out is not None:
        check_out(out, projection.shape, metadata.dtype)
    work = partial(
        _read, metadata, chunk_source, projection, variable=variable, fill_missing=fill_missing,
        out=out, cache_lookup=cache_lookup, is_nested=is_nested,
    )  # fmt: skip
    return ask_again(work)


def _read(
    metadata: ArrayMetadata,
    chunk_source: ChunkSource,
    projection: Projection,
    *,
    variable: str,
    fill_missing: bool,
    out: NDArray[Any] | None,
    cache_lookup: CacheLookup | None,
    is_nested: bool,
) -> NDArray[Any]:
    """Do what `read` does, once."""
    # First, since the columns of located chunks may take as much memory as the output.
    output = allocate(projection, metadata.dtype, variable) if out is None else None
    config.limits.check("chunks_read", len(projection), "chunks of one read", variable or "/")
    try:
        locate = getattr(chunk_source, "locate_to_read", chunk_source.locate)
        located: LocatedChunks = locate(projection)
    except VirtualZarrError as error:
        error.at(variable=variable)
        raise
    except MemoryError as error:
        problem = f"there is no memory to look for the {len(projection)} chunks that are selected"
        raise OutOfMemoryError(problem, variable=variable) from error
    if not fill_missing and len(located) < len(projection):
        # Chunk sources leave missing chunks out: one of them is enough to name in the error.
        missing = np.setdiff1d(np.arange(len(projection)), located.cell)[:1]
        name = format_cell(projection.cells(missing)[0])
        raise ChunkNotFoundError("the chunk is missing", variable=variable, chunk=name)
    fill = resolve_fill(metadata)
    if output is None:
        output = projection.spread(np.asarray(out))
    # Filling all of it at once is cheaper than filling each missing chunk.
    if len(located) < len(projection):
        np.copyto(output, fill, casting="unsafe")
    if len(located):
        request = ReadRequest(
            metadata, located, projection, output, fill, variable, fill_missing, cache_lookup,
            is_nested, partial(read, is_nested=True),
        )  # fmt: skip
        request.run(is_new=out is None and len(located) == len(projection))
        if request.missing:
            request.confirm_missing()
    if out is None:
        return projection.finish(output)
    # `spread` gives a view of `out` unless its layout cannot be viewed as the work shape.
    if not np.may_share_memory(output, out):
        out[...] = projection.finish(output)
    return out
