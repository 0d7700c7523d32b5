"""The metadata document of a stored array, read anew and changed without losing what others say."""

from __future__ import annotations

from typing import Any

from virtualzarr.errors import MismatchError, NodeNotFoundError, VirtualZarrError
from virtualzarr.hierarchy import join, refresh_consolidated
from virtualzarr.metadata import (
    ArrayMetadata,
    array_to_v2,
    array_to_v3,
    dumps_json,
    loads_json,
    parse_array_v2,
    parse_array_v3,
)
from virtualzarr.stores import Store

_DOCUMENTS = {2: ".zarray", 3: "zarr.json"}


def load(store: Store, path: str, zarr_format: int) -> ArrayMetadata:
    """Read the metadata of an array.

    Raises
    ------
    NodeNotFoundError
        There is none any more.
    """
    return _parsed(store, path, zarr_format, store.get(join(path, _DOCUMENTS[zarr_format])))


def change(
    store: Store, path: str, expected: ArrayMetadata, changes: dict[str, Any]
) -> ArrayMetadata:
    """Change some members of a stored array's document, as one atomic step.

    Parameters
    ----------
    expected : ArrayMetadata
        What the changes are made from.
    changes : dict
        Members of `ArrayMetadata`, but neither attributes nor dimension names.

    Returns
    -------
    ArrayMetadata
        The metadata that are stored now: whatever else others changed meanwhile is kept.

    Raises
    ------
    MismatchError
        The shape is to be changed, but somebody else has changed it since it was read.
    """
    version = expected.zarr_format
    key = join(path, _DOCUMENTS[version])
    result, document = expected, {}

    def rewrite(old: bytes | None) -> bytes:
        nonlocal result, document
        found = _parsed(store, path, version, old)
        if "shape" in changes and (found.shape, found.grid) != (expected.shape, expected.grid):
            raise MismatchError(
                f"the array was resized from {expected.shape} to {found.shape} in the meantime; "
                "open it again",
                file=store.uri,
                variable=path,
            )
        result = found.replace(**changes)
        document = array_to_v3(result) if version == 3 else array_to_v2(result)[0]
        return dumps_json(document)

    store.update(key, rewrite)
    refresh_consolidated(store, path, {_DOCUMENTS[version]: document}, version, subtree=False)
    return result


def _parsed(store: Store, path: str, zarr_format: int, data: bytes | None) -> ArrayMetadata:
    if data is None:
        raise NodeNotFoundError("the array is not there any more", file=store.uri, variable=path)
    try:
        if zarr_format == 3:
            return parse_array_v3(loads_json(data))
        zattrs = store.get(join(path, ".zattrs"))
        return parse_array_v2(loads_json(data), None if zattrs is None else loads_json(zattrs))
    except VirtualZarrError as error:
        raise error.at(file=store.uri, variable=path) from error.__cause__
