"""Documents to build tests from."""

from __future__ import annotations

from typing import Any


def zarray(**changes: Any) -> dict[str, Any]:
    document: dict[str, Any] = {
        "shape": [4, 3],
        "chunks": [2, 2],
        "dtype": "<f4",
        "fill_value": 0.0,
        "order": "C",
        "filters": None,
        "dimension_separator": ".",
        "compressor": {"id": "zlib", "level": 1},
        "zarr_format": 2,
    }
    return without(document | changes)


def zarr_json(**changes: Any) -> dict[str, Any]:
    document: dict[str, Any] = {
        "shape": [4, 3],
        "data_type": "float32",
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [2, 2]}},
        "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
        "fill_value": 0.0,
        "codecs": [{"name": "bytes", "configuration": {"endian": "little"}}],
        "attributes": {},
        "zarr_format": 3,
        "node_type": "array",
        "storage_transformers": [],
    }
    return without(document | changes)


class Absent:
    """The value of a member that a document is not to have."""


def without(document: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in document.items() if value is not Absent}
