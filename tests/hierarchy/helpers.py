"""Stored documents, and codecs as documents have them."""

from __future__ import annotations

import json

BYTES = {"name": "bytes", "configuration": {"endian": "little"}}
ZSTD = {"name": "zstd", "configuration": {"level": 0, "checksum": False}}


def document(store, key="zarr.json"):
    return json.loads(store[key])
