"""The two example documents of ZEP 6."""

from __future__ import annotations

from typing import Any

V3: dict[str, Any] = {
    "zarr_format": 3,
    "node_type": "group",
    "attributes": {"foo": 42, "bar": False},
    "members": {
        "array": {
            "zarr_format": 3,
            "node_type": "array",
            "attributes": {"baz": [1, 2, 3]},
            "shape": [1000, 1000],
            "data_type": "|u1",
            "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [1000, 100]}},
            "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
            "fill_value": 0,
            "codecs": [{"name": "GZip", "configuration": {"level": 1}}],
            "storage_transformers": None,
            "dimension_names": ["rows", "columns"],
        }
    },
}

V2: dict[str, Any] = {
    "zarr_format": 2,
    "attributes": {"foo": 42, "bar": False},
    "members": {
        "foo": {
            "zarr_format": 2,
            "shape": [1000, 1000],
            "chunks": [100, 100],
            "dtype": "|u1",
            "compressor": None,
            "fill_value": 0,
            "order": "C",
            "dimension_separator": "/",
            "filters": {},
            "attributes": {"baz": True},
        }
    },
}
