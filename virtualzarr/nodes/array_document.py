"""The metadata document of a stored array, read anew and changed without losing what others say."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from grids import RectilinearGrid
from virtualzarr.errors import MismatchError, NodeNotFoundError, VirtualZarrError
from virtualzarr.metadata import ArrayMetadata, dumps_json, loads_json
from virtualzarr.metadata.node_documents import parse_array, to_documents
from virtualzarr.metadata.storage_transformers import fitted
from virtualzarr.nodes.documents import join, refresh_consolidated
from virtualzarr.stores import Store
from virtualzarr.stores.renamed_document import DOCUMENTS

Known = tuple[bytes, ArrayMetadata]
"""A document and what it says: who appends often need not read the same text again and again."""

LONG = 64
"""Grids with more runs of edges than this are written without a line for each."""


def load(store: Store, path: str, zarr_format: int, known: Known | None) -> Known:
    """Read the metadata of an array.

    Raises
    ------
    NodeNotFoundError
        There is none any more.
    """
    data = store.get(join(path, DOCUMENTS[zarr_format]))
    return _parsed(store, path, zarr_format, data, known)


def change(
    store: Store,
    path: str,
    expected: ArrayMetadata,
    changes: Callable[[ArrayMetadata], dict[str, Any]],
    known: Known | None,
) -> Known:
    """Change some members of a stored array's document, as one atomic step.

    Parameters
    ----------
    expected : ArrayMetadata
        What the changes are made from.
    changes : callable
        Returns members of `ArrayMetadata`, but neither attributes nor dimension names, from what
        is stored.

    Returns
    -------
    bytes, ArrayMetadata
        What is stored now: whatever else others changed meanwhile is kept.

    Raises
    ------
    MismatchError
        The shape is to be changed, but somebody else has changed it since it was read.
    """
    version = expected.zarr_format
    key = join(path, DOCUMENTS[version])
    result: Known = b"", expected
    document: dict[str, Any] = {}

    def rewrite(old: bytes | None) -> bytes:
        nonlocal result, document
        found = _parsed(store, path, version, old, known)[1]
        wanted = changes(found)
        if "shape" in wanted and (found.shape, found.grid) != (expected.shape, expected.grid):
            raise MismatchError(
                f"the array was resized from {expected.shape} to {found.shape} in the meantime; "
                "open it again",
                file=store.uri,
                variable=path,
            )
        new = fitted(found.replace(**wanted))
        document = to_documents(new)[DOCUMENTS[version]]
        data = dumps_json(document, indent=None if _is_long(new) else 2)
        result = data, new
        return data

    store.update(key, rewrite)
    refresh_consolidated(store, path, {DOCUMENTS[version]: document}, version, subtree=False)
    return result


def _is_long(metadata: ArrayMetadata) -> bool:
    grid = metadata.grid
    return isinstance(grid, RectilinearGrid) and sum(len(a.edges) for a in grid.axes) > LONG


def _parsed(
    store: Store, path: str, zarr_format: int, data: bytes | None, known: Known | None
) -> Known:
    if data is None:
        raise NodeNotFoundError("the array is not there any more", file=store.uri, variable=path)
    if known is not None and known[0] == data:
        return known
    try:
        documents = {DOCUMENTS[zarr_format]: loads_json(data)}
        if zarr_format == 2 and (zattrs := store.get(join(path, ".zattrs"))) is not None:
            documents[".zattrs"] = loads_json(zattrs)
        return data, parse_array(documents, zarr_format)
    except VirtualZarrError as error:
        error.at(file=store.uri, variable=path)
        raise
