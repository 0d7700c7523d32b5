"""Metadata document of a stored array: read again when it changed, and changed atomically."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from grids import RectilinearGrid
from virtualzarr.errors import MismatchError, NodeNotFoundError, error_context
from virtualzarr.metadata import ArrayMetadata, dumps_json, loads_json
from virtualzarr.metadata.node_documents import parse_array, to_documents
from virtualzarr.metadata.storage_transformers import fit_transformers
from virtualzarr.nodes.consolidated import refresh_written
from virtualzarr.nodes.documents import join
from virtualzarr.stores import Store
from virtualzarr.stores.renamed_document import DOCUMENTS

ParsedDocument = tuple[bytes, ArrayMetadata]
"""A document as stored, and the metadata it was parsed into: equal bytes are not parsed again."""

LONG = 64
"""Grids with more runs of chunk lengths than this are written without a line for each."""


def load_metadata(
    store: Store, path: str, zarr_format: int, cached: ParsedDocument | None
) -> ParsedDocument:
    """Read the metadata of an array.

    Parameters
    ----------
    cached : bytes and ArrayMetadata, or None
        What was read before: returned if the stored bytes are the same.

    Raises
    ------
    NodeNotFoundError
        There is no such array any more.
    """
    data = store.get(join(path, DOCUMENTS[zarr_format]))
    return _parse(store, path, zarr_format, data, cached)


def change_metadata(
    store: Store,
    path: str,
    expected: ArrayMetadata,
    changes: Callable[[ArrayMetadata], dict[str, Any]],
    cached: ParsedDocument | None,
) -> ParsedDocument:
    """Change some members of a stored array's document, as one atomic step.

    Parameters
    ----------
    expected : ArrayMetadata
        What the changes are made from.
    changes : callable
        Returns members of `ArrayMetadata`, but neither attributes nor dimension names, from what
        is stored.
    cached : bytes and ArrayMetadata, or None
        As for `load_metadata`.

    Returns
    -------
    bytes, ArrayMetadata
        What is stored now: whatever else others changed meanwhile stays.

    Raises
    ------
    MismatchError
        The shape is to be changed, but somebody else has changed it since it was read.
    """
    version = expected.zarr_format
    name = DOCUMENTS[version]
    result: ParsedDocument = b"", expected
    document: dict[str, Any] = {}

    def rewrite(old: bytes | None) -> bytes:
        nonlocal result, document
        # A store may call this again when another writer was quicker: all of it starts from what
        # is stored at that moment, never from `expected`.
        stored = _parse(store, path, version, old, cached)[1]
        members = changes(stored)
        if "shape" in members and (stored.shape, stored.grid) != (expected.shape, expected.grid):
            raise MismatchError(
                f"the array was resized from {expected.shape} to {stored.shape} in the meantime; "
                "open it again",
                file=store.uri,
                variable=path,
            )
        new = fit_transformers(stored.replace(**members))
        document = to_documents(new)[name]
        data = dumps_json(document, indent=None if _has_long_grid(new) else 2)
        result = data, new
        return data

    store.update(join(path, name), rewrite)
    refresh_written(store, path, {name: document}, version)
    return result


def _has_long_grid(metadata: ArrayMetadata) -> bool:
    grid = metadata.grid
    return isinstance(grid, RectilinearGrid) and sum(len(a.edges) for a in grid.axes) > LONG


def _parse(
    store: Store, path: str, zarr_format: int, data: bytes | None, cached: ParsedDocument | None
) -> ParsedDocument:
    if data is None:
        raise NodeNotFoundError("the array is not there any more", file=store.uri, variable=path)
    if cached is not None and cached[0] == data:
        return cached
    with error_context(file=store.uri, variable=path):
        documents = {DOCUMENTS[zarr_format]: loads_json(data)}
        if zarr_format == 2 and (zattrs := store.get(join(path, ".zattrs"))) is not None:
            documents[".zattrs"] = loads_json(zattrs)
        return data, parse_array(documents, zarr_format)
