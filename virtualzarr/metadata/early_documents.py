"""Repairs of documents of drafts: spellings of the examples of ZEP 6 that no Zarr format has."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from virtualzarr.metadata.dtypes_v2 import dtype_from_v2
from virtualzarr.metadata.dtypes_v3 import dtype_to_v3

_BYTE_ORDERS = {"<": "little", ">": "big"}


def empty_filters(document: Mapping[str, Any]) -> dict[str, Any]:
    """Read the v2 filters `{}` as none."""
    if document.get("filters") == {}:
        return {**document, "filters": None}
    return dict(document)


def early_names(document: Mapping[str, Any]) -> dict[str, Any]:
    """Read a v3 data type in v2's spelling, such as `|u1`, and the codec name `GZip`.

    Documents of that age also lack the codec that turns elements into bytes: it is inserted with
    the byte order of the data type.
    """
    # Early drafts of v3 had v2's data types, with a byte order; final v3 has it in that codec.
    data_type = document.get("data_type")
    if not isinstance(data_type, str) or data_type[:1] not in ("|", "<", ">"):
        return dict(document)
    stored = dtype_from_v2(data_type)
    codecs = document.get("codecs")
    if isinstance(codecs, list | tuple):
        codecs = [_lower(codec) for codec in codecs]
        if not any(codec.get("name") == "bytes" for codec in codecs if isinstance(codec, dict)):
            endian = _BYTE_ORDERS.get(data_type[0])
            configuration = {"configuration": {"endian": endian}} if endian else {}
            codecs.insert(0, {"name": "bytes", **configuration})
    return {**document, "data_type": dtype_to_v3(stored.newbyteorder("=")), "codecs": codecs}


def _lower(codec: Any) -> Any:
    if isinstance(codec, Mapping) and isinstance(codec.get("name"), str):
        return {**codec, "name": codec["name"].lower()}
    return codec
