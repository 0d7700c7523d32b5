"""Reads of an array: by which grid, through which cache, and what their errors say."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

from grids.selection import Mode
from virtualzarr.array.chunk_source import ManifestChunks
from virtualzarr.array.read.cached_blocks import CachedBlocks
from virtualzarr.array.read.chunk_cache import resolve_cache
from virtualzarr.array.read.engine import read
from virtualzarr.array.read.layers import read_layers
from virtualzarr.array.read.shards import elements_of_blocks, project_whole_shards
from virtualzarr.errors import SourceNotFoundError, VirtualZarrError, as_memory_error
from virtualzarr.stores.fingerprints import LengthError

if TYPE_CHECKING:
    from virtualzarr.array.array import Array


def read_selection(
    array: Array,
    selection: Any,
    mode: Mode,
    out: NDArray[Any] | None = None,
    *,
    may_be_whole: bool = True,
) -> NDArray[Any]:
    """Read a selection of an array.

    Parameters
    ----------
    out : array, optional
        What is read into, which is then returned.
    may_be_whole : bool
        Whether remote shards of which all is selected may be read whole, as chunks.
    """
    if (layers := getattr(array.chunk_source, "layers", None)) is not None:
        return read_layers(array, layers, selection, mode, out)
    metadata, source = array._resolve_shards()
    cache, lookup, projection = resolve_cache(array.cache_policy), None, None
    # A missing sub-chunk is an error only where each is looked up.
    may_be_whole = may_be_whole and cache is None and array.fill_missing
    if may_be_whole and metadata is not array.metadata:
        projection = project_whole_shards(array.metadata, array.chunk_source, selection, mode)
    if projection is not None:
        metadata, source = array.metadata, array.chunk_source
    elif mode == "block" and metadata is not array.metadata:
        # Blocks are shards, which the resolved grid does not have: select their elements.
        selection, mode = elements_of_blocks(array.grid, selection), "basic"
    if cache is not None:
        # A function: reads that are faster uncached never call it, and so check no versions.
        lookup = partial(CachedBlocks, cache, array.cache_policy.data_valid_since())
    try:
        return read(
            metadata,
            source,
            projection or metadata.grid.project(selection, mode),
            variable=array.path,
            fill_missing=array.fill_missing,
            out=out,
            cache_lookup=lookup,
        )
    except LengthError:
        if projection is None:
            raise
        # Some writers leave large gaps in shards: by the index, only what is wanted comes.
        return read_selection(array, selection, mode, out, may_be_whole=False)
    except SourceNotFoundError as error:
        if not isinstance(array.chunk_source, ManifestChunks):
            raise
        explained = array.chunk_source.explain_missing(error)
        raise explained.at(variable=error.variable, chunk=error.chunk) from error.__cause__
    except MemoryError as error:
        # Ours names what was too large already; numpy's names a shape and no variable.
        if isinstance(error, VirtualZarrError):
            raise
        raise as_memory_error(error, variable=array.path or "/") from error
