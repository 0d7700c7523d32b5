"""Dask arrays over arrays, one task a chunk that carries the references of that chunk."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from virtualzarr.errors import MissingDependencyError
from virtualzarr.keywords import strict_keywords

if TYPE_CHECKING:
    import dask.array

    from virtualzarr.array import Array


@strict_keywords()
def to_dask(array: Array, chunks: Any = None, *, name: Any = None) -> dask.array.Array:
    """Return an array as a lazy dask array.

    Parameters
    ----------
    array : Array
    chunks : optional
        Chunks as `dask.array.from_array` takes them; by default the array's own, equal or not.
    name : str or False, optional
        Name of the dask array. By default derived from the array and all its references; False
        makes a random one, which is quicker for millions of references.

    Raises
    ------
    MissingDependencyError
        If dask is not installed.
    GridError
        If the array has more chunks than dask can list.

    Examples
    --------
    >>> import virtualzarr
    >>> array = virtualzarr.open("runs.nc")["air"]  # doctest: +SKIP
    >>> to_dask(array).chunks  # doctest: +SKIP
    ((4, 4, 2), (100,))
    """
    try:
        import dask.array
    except ImportError as error:
        raise MissingDependencyError("dask is needed; install virtualzarr[xarray]") from error
    if chunks is None:
        # dask wants a length even where there is nothing.
        grid: Any = array.grid
        chunks = tuple(lengths or (0,) for lengths in grid.chunks)
    from virtualzarr.integrations.dask_blocks import Sliceable, has_many_references, make_graph

    as_dask: Any = dask.array.from_array
    lazy = as_dask(Sliceable(array), chunks=chunks, name=name)
    # Not where dask plans queries, an experiment that has expressions instead of graphs.
    if type(lazy).__module__ != "dask.array.core" or not has_many_references(array):
        return lazy
    graph = make_graph(array, lazy.name, lazy.chunks)
    as_dask = dask.array.Array
    return as_dask(graph, lazy.name, lazy.chunks, meta=lazy._meta)
