"""Models of zarr-python's arrays and groups, through the documents it writes for them."""

from __future__ import annotations

from typing import Any

from virtualzarr.metadata import loads_json


def is_foreign(node: Any) -> bool:
    """Tell whether something is an array or a group of zarr-python."""
    return type(node).__module__.startswith("zarr.") and hasattr(node, "metadata")


def document_of(node: Any, depth: int | None) -> dict[str, Any]:
    """Return the JSON object of ZEP 6 for an array or a group of zarr-python."""
    from zarr.core.buffer import default_buffer_prototype

    written = node.metadata.to_buffer_dict(default_buffer_prototype())
    documents = {name: loads_json(data.to_bytes()) for name, data in written.items()}
    main = next(name for name in ("zarr.json", ".zarray", ".zgroup") if name in documents)
    document: dict[str, Any] = documents[main]
    document.pop("consolidated_metadata", None)
    if main != "zarr.json":
        document["attributes"] = documents.get(".zattrs", {})
    if "shape" not in document and (depth is None or depth > 0):
        left = None if depth is None else depth - 1
        document["members"] = {name: document_of(inner, left) for name, inner in node.members()}
    return document
