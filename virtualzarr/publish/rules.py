"""What the documents of a published hierarchy say, so that zarr-python and xarray read it right.

xarray takes the `fill_value` of a v2 array for `_FillValue` and masks it, and takes the attribute
`_FillValue` of a v3 array in an encoding of its own. What follows from that is worked out in
``specs/reference-file.md``; this module is its rules.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from grids import RegularGrid, SeparableGrid
from virtualzarr.errors import MetadataError, UnsupportedError
from virtualzarr.metadata import (
    ArrayMetadata,
    GroupMetadata,
    KeyEncoding,
    array_to_v2,
    array_to_v3,
    dumps_json,
    encode_fill_attribute,
    group_to_v2,
    group_to_v3,
    parse_array_v2,
    parse_array_v3,
    to_scalar,
)

FILL = "_FillValue"
OWN = "virtualzarr."
"""What the names of codecs begin with that only this package knows."""

TRUNCATE = "virtualzarr.truncate"
"""The codec that zarr-python and numcodecs find by entry point, where this package is installed."""

BITORDER = "imagecodecs_bitorder"

_VIEWING = ("delta", "fixedscaleoffset", "quantize", "astype")
"""Filters of numcodecs that take bytes for elements of the dtype they are configured with."""

KEYS = {2: KeyEncoding("v2"), 3: KeyEncoding()}
"""How chunk keys are written in each format."""

Documents = dict[str, dict[str, Any]]


@dataclass(frozen=True)
class Published:
    """What of one array's metadata is published.

    Attributes
    ----------
    documents : dict
        By the last part of their keys, such as ``.zarray``.
    dropped : str or None
        Why the attribute `_FillValue` had to be left out.
    """

    documents: Documents
    dropped: str | None = None


def own_codecs(metadata: ArrayMetadata, plugins: bool = False) -> str | None:
    """Why other readers cannot decode any chunk of an array, or None where they can.

    Parameters
    ----------
    plugins : bool
        Whether readers find codecs of this package by its entry points.
    """
    serialized = False
    for codec in metadata.pipeline.codecs:
        if codec.name.startswith(OWN) and not (plugins and codec.name == TRUNCATE):
            return f"the codec {codec.name} is known to this package only"
        if codec.name == "numcodecs.shuffle":
            size = int(codec.configuration.get("elementsize", 4))
            if not serialized or metadata.itemsize % size:
                return (
                    "numcodecs shuffles whole elements only, and these may end with a part of one"
                )
        serialized = codec.kind == "array_bytes"
    return None


def mask_value(metadata: ArrayMetadata) -> Any:
    """What xarray would mask in an array: its `_FillValue`, or the fill value of a v2 document."""
    if metadata.zarr_format == 2 and metadata.fill_value is not None:
        return metadata.fill_value
    return metadata.attributes.get(FILL)


def fill_is_mask(metadata: ArrayMetadata) -> bool:
    """Whether the fill value is exactly what xarray masks anyway."""
    fill, mask = metadata.fill_value, mask_value(metadata)
    if fill is None or mask is None:
        return False
    if mask is fill:
        return True
    try:
        scalar = to_scalar(mask, metadata.dtype)
    except (MetadataError, TypeError):
        return False
    if isinstance(mask, (int, float)) and not isinstance(mask, bool):
        # A rounded attribute masks other numbers than the unrounded one.
        plain = scalar.item()
        exact = plain == mask or (plain != plain and mask != mask)
        return bool(exact and (scalar == fill or (scalar != scalar and fill != fill)))
    return bool(np.all(scalar == fill))


def format_of_array(metadata: ArrayMetadata) -> ArrayMetadata:
    """The metadata with a regular grid where the grid amounts to one: more readers know it."""
    grid = metadata.grid
    if isinstance(grid, SeparableGrid) and not isinstance(grid, RegularGrid) and grid.is_regular:
        edges = [int(axis.uniform or 1) for axis in grid.axes]
        return metadata.replace(grid=RegularGrid(grid.shape, edges))
    return metadata


def is_regular(metadata: ArrayMetadata) -> bool:
    """Whether all chunks of an array have one shape."""
    grid = metadata.grid
    return isinstance(grid, RegularGrid) or (isinstance(grid, SeparableGrid) and grid.is_regular)


def not_v2(metadata: ArrayMetadata, missing: bool) -> str | None:
    """Why v2 documents cannot describe an array so that foreign readers read it right, or None.

    Parameters
    ----------
    missing : bool
        Whether the array has cells without a chunk.
    """
    if missing and not fill_is_mask(metadata):
        return (
            "chunks are missing, and their fill value is not its _FillValue: xarray would mask it"
        )
    if metadata.dtype.names is not None and _has_subarrays(metadata.dtype):
        return "zarr-python reads no structured elements with arrays in them"
    try:
        documents_v2(metadata, missing)
    except (UnsupportedError, MetadataError) as error:
        return error.message
    return None


def _has_subarrays(dtype: np.dtype) -> bool:
    if dtype.names is not None:
        return any(_has_subarrays(dtype[name]) for name in dtype.names)
    return dtype.subdtype is not None


def not_v3(metadata: ArrayMetadata) -> str | None:
    """Why v3 documents cannot describe an array so that others read it right, or None."""
    if any(c.name == BITORDER and c.kind == "bytes_bytes" for c in metadata.pipeline.codecs):
        return f"zarr-python knows the codec {BITORDER} of arrays, not of bytes"
    if views_big_endian(metadata):
        return "zarr-python takes big-endian elements behind filters of numcodecs for little-endian"
    try:
        documents_v3(metadata)
    except (UnsupportedError, MetadataError) as error:
        return error.message
    return None


def views_big_endian(metadata: ArrayMetadata) -> bool:
    """Whether big-endian elements go through filters of numcodecs, which forget that in v3."""
    names = [codec.name.removeprefix("numcodecs.") for codec in metadata.pipeline.codecs]
    big = metadata.pipeline.serializer.configuration.get("endian") == "big"
    return big and any(name in _VIEWING for name in names)


def documents_v2(metadata: ArrayMetadata, missing: bool) -> Published:
    """The documents `.zarray` and `.zattrs`.

    The fill value is null, which xarray does not mask, unless it is what xarray masks anyway.
    """
    fill = metadata.fill_value if missing or fill_is_mask(metadata) else None
    extra = metadata.extra if metadata.zarr_format == 2 else {}
    plain = metadata.replace(zarr_format=2, key_encoding=KEYS[2], fill_value=fill, extra=extra)
    zarray, zattrs = array_to_v2(plain)
    _check_again(metadata, parse_array_v2(zarray, zattrs))
    return Published({".zarray": zarray, ".zattrs": zattrs})


def documents_v3(metadata: ArrayMetadata) -> Published:
    """The document `zarr.json`, with `_FillValue` as xarray wants it there."""
    mask = mask_value(metadata)
    attributes, dropped = dict(metadata.attributes), None
    if mask is not None:
        attributes.pop(FILL, None)
        if is_encodable(mask, metadata.dtype):
            attributes[FILL] = encode_fill_attribute(mask, metadata.dtype)
        else:
            dropped = f"xarray cannot read the {FILL} {mask!r} of a v3 array of {metadata.dtype}"
    extra = metadata.extra if metadata.zarr_format == 3 else {}
    plain = format_of_array(metadata).replace(
        zarr_format=3,
        key_encoding=KEYS[3],
        attributes=attributes,
        extra=extra,
        storage_transformers=(),
    )
    document = array_to_v3(plain)
    _check_again(metadata, parse_array_v3(document))
    return Published({"zarr.json": document}, dropped)


def _check_again(metadata: ArrayMetadata, read: ArrayMetadata) -> None:
    """Refuse documents that, read again, would describe other elements."""
    dtype = metadata.dtype
    same = read.shape == metadata.shape and read.dtype == dtype
    if not same or read.pipeline.decoding_key(dtype) != metadata.pipeline.decoding_key(dtype):
        raise UnsupportedError("the document would not describe the array's chunks exactly")


def is_encodable(mask: Any, dtype: np.dtype) -> bool:
    """Whether xarray decodes the attribute of such an array to the very same value."""
    if mask is None:
        return False
    if isinstance(mask, np.generic):
        mask = mask.item()
    number = isinstance(mask, (int, float)) and not isinstance(mask, bool)
    if dtype.kind == "f":
        return number
    if dtype.kind == "c":
        return isinstance(mask, complex) or number
    if dtype.kind in "iu":
        return number and math.isfinite(mask) and mask == int(mask)
    return dtype.kind == "b" and mask in (0, 1)


def documents_of_group(attributes: dict[str, Any], zarr_format: int) -> Documents:
    """The documents of a group."""
    if zarr_format == 3:
        return {"zarr.json": group_to_v3(GroupMetadata(attributes, 3))}
    zgroup, zattrs = group_to_v2(GroupMetadata(attributes, 2))
    return {".zgroup": zgroup, ".zattrs": zattrs}


def consolidate(nodes: Iterable[tuple[str, Documents]], zarr_format: int) -> dict[str, bytes]:
    """All documents by their keys, and once more in one, which spares readers a listing of keys.

    Parameters
    ----------
    nodes : iterable of (path, documents)
        The root first; its path is "".
    """
    keyed = {
        f"{path}/{name}" if path else name: document
        for path, documents in nodes
        for name, document in documents.items()
    }
    if zarr_format == 2:
        whole = {"zarr_consolidated_format": 1, "metadata": keyed}
        keyed = {".zmetadata": whole, **keyed}
    elif keyed["zarr.json"]["node_type"] == "group":
        below = {key.removesuffix("/zarr.json"): document for key, document in keyed.items()}
        del below["zarr.json"]
        inline = {"kind": "inline", "must_understand": False, "metadata": below}
        keyed["zarr.json"] = {**keyed["zarr.json"], "consolidated_metadata": inline}
    return {key: dumps_json(document, indent=None) for key, document in keyed.items()}
