"""What the documents of a published hierarchy say, so that zarr-python and xarray read it right.

What fill values and attributes look like is said in `virtualzarr.metadata.portable`; this module
says which arrays each Zarr format describes exactly, and how documents are consolidated.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from grids import RegularGrid, SeparableGrid
from virtualzarr.array import Array
from virtualzarr.codecs import Pipeline
from virtualzarr.codecs.sharding import Sharding
from virtualzarr.errors import MetadataError, UnsupportedError
from virtualzarr.metadata import (
    ArrayMetadata,
    GroupMetadata,
    KeyEncoding,
    array_to_v2,
    array_to_v3,
    check_name,
    dumps_json,
    group_to_v2,
    group_to_v3,
    parse_array_v2,
    parse_array_v3,
)
from virtualzarr.metadata.model import has_codec
from virtualzarr.metadata.portable import (
    as_exact_mask,
    as_strict_attributes,
    get_mask,
    is_fill_mask,
    to_portable_v2,
    to_portable_v3,
)

OWN = "virtualzarr."
"""What the names of codecs begin with that only this package knows."""

TRUNCATE = "virtualzarr.truncate"
"""The codec that zarr-python and numcodecs find by entry point, where this package is installed."""

IMAGES = "imagecodecs_"
"""What the names of codecs begin with that zarr-python has once imagecodecs has registered them."""

PLUGINS = frozenset({TRUNCATE, IMAGES})
"""What the names of codecs begin with that readers have who installed, and registered, plug-ins."""

NO_PLUGINS: frozenset[str] = frozenset()

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
    notes : tuple of str
        What could not be said to other readers as it is.
    """

    documents: Documents
    notes: tuple[str, ...] = ()


def private_codec(metadata: ArrayMetadata, plugins: frozenset[str] = NO_PLUGINS) -> str | None:
    """Why other readers cannot decode any chunk of an array, or None where they can.

    Parameters
    ----------
    plugins : frozenset of str
        Those of `PLUGINS` that readers have.
    """
    images = [] if IMAGES in plugins else list_image_codecs(metadata.pipeline)
    if images:
        # Where all metadata are in one document, it parses them as a whole.
        return (
            f"zarr-python has no codec {images[0]} before readers register it, and opens nothing "
            "of its group; plugin_codecs=True says that they do"
        )
    # numcodecs' shuffle takes whole elements only; HDF5's, and so ours, also bytes that end with a
    # part of one, which a variable-length serializer makes.
    serialized = False
    for codec in metadata.pipeline.codecs:
        if codec.name.startswith(OWN) and not (codec.name == TRUNCATE and TRUNCATE in plugins):
            return f"the codec {codec.name} is known to this package only"
        if codec.name == "numcodecs.shuffle":
            size = int(codec.configuration.get("elementsize", 4))
            if not serialized or metadata.itemsize % size:
                return (
                    "numcodecs shuffles whole elements only, and these may end with a part of one"
                )
        # Blocks that are longer than their cell are longer by whole elements.
        serialized = codec.kind == "array_bytes" or (serialized and codec.name == TRUNCATE)
    return None


def list_image_codecs(pipeline: Pipeline) -> list[str]:
    """Return the names of codecs that readers have to register first, also those in shards."""
    names = []
    for codec in pipeline.codecs:
        if codec.name.startswith(IMAGES):
            names.append(codec.name)
        elif isinstance(codec, Sharding):
            names += list_image_codecs(codec.pipeline)
    return names


def has_plugin_codecs(arrays: Iterable[Array]) -> bool:
    """Tell whether arrays were published for readers that have the codecs of plug-ins."""
    pipelines = [array.metadata.pipeline for array in arrays]
    return any(
        has_codec(pipeline, TRUNCATE) or list_image_codecs(pipeline) for pipeline in pipelines
    )


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


def chunk_shape(metadata: ArrayMetadata) -> tuple[int, ...]:
    """The one shape of all chunks of an array with a regular grid."""
    grid = format_of_array(metadata).grid
    assert isinstance(grid, RegularGrid)
    return grid.chunk_shape


def obstacle_in_v2(metadata: ArrayMetadata, missing: bool) -> str | None:
    """Why v2 documents cannot describe an array so that foreign readers read it right, or None.

    Parameters
    ----------
    missing : bool
        Whether the array has cells without a chunk.
    """
    # In v2, xarray takes fill_value for _FillValue, and masks what is only missing in the file.
    if missing and not is_fill_mask(metadata):
        return (
            "chunks are missing, and their fill value is not its _FillValue: xarray would mask it"
        )
    if (why := _not_readable(metadata, 2)) is not None:
        return why
    # Checked for all arrays, as a mask is applied whether chunks are missing or not.
    if swaps_mask(metadata):
        return "xarray swaps the bytes of the _FillValue of big-endian integers with _Unsigned"
    if missing and metadata.dtype.names is not None:
        return "chunks are missing, and xarray fails for structured fill values"
    if metadata.dtype.names is not None and _has_subarrays(metadata.dtype):
        return "zarr-python reads no structured elements with arrays in them"
    if metadata.dtype != without_gaps(metadata.dtype):
        return "zarr-python takes the bytes between the fields of structured elements for fields"
    # What is left is found out by writing the documents and reading them again.
    try:
        documents_v2(metadata, missing)
    except (UnsupportedError, MetadataError) as error:
        return error.message
    return None


def _not_readable(metadata: ArrayMetadata, zarr_format: int) -> str | None:
    """Why others have no codec or data type of that name in a format, or None."""
    is_text = any(has_codec(metadata.pipeline, name) for name in ("vlen-utf8", "vlen-bytes"))
    if metadata.dtype.hasobject and metadata.dtype.names is None and not is_text:
        return "zarr-python has no data type for such objects, and opens nothing of their group"
    for codec in metadata.pipeline.codecs:
        if not codec.is_portable(zarr_format):
            return f"others do not decode what the codec {codec.name} does in Zarr v{zarr_format}"
    return None


def are_misread(metadata: ArrayMetadata, zarr_format: int) -> bool:
    """Tell whether others would read chunks wrong, or not at all, in documents of a format."""
    if _not_readable(metadata, zarr_format) is not None:
        return True
    return views_big_endian(metadata) if zarr_format == 3 else swaps_mask(metadata)


def without_gaps(dtype: np.dtype) -> np.dtype:
    """The data type without bytes between its fields, or after them."""
    if dtype.names is None:
        return dtype
    return np.dtype([(name, without_gaps(dtype[name])) for name in dtype.names])


def _has_subarrays(dtype: np.dtype) -> bool:
    if dtype.names is not None:
        return any(_has_subarrays(dtype[name]) for name in dtype.names)
    return dtype.subdtype is not None


def reserved_name(path: str) -> str | None:
    """Why nodes of v3 cannot have a path, which may be one of v2, or None."""
    try:
        for name in path.split("/") if path else ():
            check_name(name, 3)
    except MetadataError as error:
        return f"{error.message}; rename it, or write Zarr v2, where it is not"
    return None


def obstacle_in_v3(metadata: ArrayMetadata) -> str | None:
    """Why v3 documents cannot describe an array so that others read it right, or None."""
    if (why := _not_readable(metadata, 3)) is not None:
        return why
    if views_big_endian(metadata):
        return "zarr-python takes big-endian elements behind filters of numcodecs for little-endian"
    if not _has_plain_shards(metadata):
        return (
            "zarr-python compares sub-chunks of shards behind a transpose with chunks before it, "
            "and opens nothing of the hierarchy"
        )
    try:
        documents_v3(metadata)
    except (UnsupportedError, MetadataError) as error:
        return error.message
    return None


def _has_plain_shards(metadata: ArrayMetadata) -> bool:
    """Tell whether sub-chunks divide chunks also if transposes before a shard are overlooked."""
    serializer, grid = metadata.pipeline.serializer, metadata.grid
    if not isinstance(serializer, Sharding) or not isinstance(grid, SeparableGrid):
        return True
    pairs = zip(grid.axes, serializer.chunk_shape, strict=True)
    return not any((axis.runs()[0] % length).any() for axis, length in pairs)


def views_big_endian(metadata: ArrayMetadata) -> bool:
    """Whether big-endian elements go through filters of numcodecs, which forget that in v3."""
    # numcodecs' filters in v3 get bytes and view them as the dtype of their configuration, which
    # zarr-python makes little-endian.
    names = [codec.name.removeprefix("numcodecs.") for codec in metadata.pipeline.codecs]
    big = metadata.pipeline.serializer.configuration.get("endian") == "big"
    return big and any(name in _VIEWING for name in names)


def swaps_mask(metadata: ArrayMetadata) -> bool:
    """Tell whether xarray masks another number in v2 than the one that is meant.

    Of a signed integer with `_Unsigned` it looks at the fill value, in the byte order of the
    array's data type, as at an unsigned one in that of the machine.
    """
    signed = metadata.dtype.kind == "i" and metadata.attributes.get("_Unsigned") == "true"
    if not signed or metadata.pipeline.serializer.configuration.get("endian") != "big":
        return False
    # A mask whose bytes read the same both ways, such as 0 or -1, is not harmed.
    mask = as_exact_mask(get_mask(metadata), metadata.dtype)
    return mask is not None and bool(mask.byteswap() != mask)


def documents_v2(metadata: ArrayMetadata, missing: bool) -> Published:
    """The documents `.zarray` and `.zattrs`.

    Parameters
    ----------
    missing : bool
        Whether the array has cells without a chunk.
    """
    portable = to_portable_v2(metadata, missing)
    extra = metadata.extra if metadata.zarr_format == 2 else {}
    plain = portable.metadata.replace(zarr_format=2, key_encoding=KEYS[2], extra=extra)
    zarray, zattrs = array_to_v2(plain)
    _check_again(metadata, parse_array_v2(zarray, zattrs))
    return Published({".zarray": zarray, ".zattrs": zattrs}, portable.notes)


def documents_v3(metadata: ArrayMetadata) -> Published:
    """The document `zarr.json`."""
    portable = to_portable_v3(metadata)
    extra = metadata.extra if metadata.zarr_format == 3 else {}
    plain = format_of_array(portable.metadata).replace(
        zarr_format=3, key_encoding=KEYS[3], extra=extra, storage_transformers=()
    )
    document = array_to_v3(plain)
    _check_again(metadata, parse_array_v3(document))
    return Published({"zarr.json": document}, portable.notes)


def _check_again(metadata: ArrayMetadata, read: ArrayMetadata) -> None:
    """Refuse documents that, read again, would describe other elements."""
    # A document is read back by our own parser: what others read can differ only where the
    # specification is open.
    dtype = metadata.dtype
    # The byte order of fields in memory means nothing: codecs say how they are stored.
    same = read.shape == metadata.shape and read.dtype.newbyteorder("=") == dtype.newbyteorder("=")
    if not same or read.pipeline.decoding_key(read.dtype) != metadata.pipeline.decoding_key(dtype):
        raise UnsupportedError("the document would not describe the array's chunks exactly")


def documents_of_group(attributes: dict[str, Any], zarr_format: int) -> Published:
    """The documents of a group."""
    strict, notes = as_strict_attributes(attributes)
    if zarr_format == 3:
        return Published({"zarr.json": group_to_v3(GroupMetadata(strict, 3))}, notes)
    zgroup, zattrs = group_to_v2(GroupMetadata(strict, 2))
    return Published({".zgroup": zgroup, ".zattrs": zattrs}, notes)


def consolidate(nodes: Iterable[tuple[str, Documents]], zarr_format: int) -> dict[str, bytes]:
    """All documents by their keys, and once more in one, which spares readers a listing of keys.

    Parameters
    ----------
    nodes : iterable of (path, documents)
        The root first; its path is "".
    """
    # By keys as in a store, so that the same text serves documents and their consolidated copy.
    keyed = {
        f"{path}/{name}" if path else name: document
        for path, documents in nodes
        for name, document in documents.items()
    }
    if zarr_format == 2:
        consolidated = {"zarr_consolidated_format": 1, "metadata": keyed}
        keyed = {".zmetadata": consolidated, **keyed}
    # In v3, consolidated metadata are a member of the root group's own document;
    # must_understand=false lets others ignore it.
    elif keyed["zarr.json"]["node_type"] == "group":
        below = {key.removesuffix("/zarr.json"): document for key, document in keyed.items()}
        del below["zarr.json"]
        inline = {"kind": "inline", "must_understand": False, "metadata": below}
        keyed["zarr.json"] = {**keyed["zarr.json"], "consolidated_metadata": inline}
    return {
        key: dumps_json(document, indent=None, allow_nan=False) for key, document in keyed.items()
    }
