"""JSON Schemas of models, generated from the signatures of their classes.

``python -m virtualzarr.models.schema specs`` writes them into a folder.
"""

from __future__ import annotations

import json
import sys
import types
from collections.abc import Mapping, Sequence
from inspect import signature
from pathlib import Path
from typing import (
    Any,
    Literal,
    NotRequired,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
    is_typeddict,
)

from virtualzarr.models import v2, v3
from virtualzarr.models.typed import required_keys

_MODULES: dict[int, Any] = {2: v2, 3: v3}
_PLAIN = {str: "string", bool: "boolean", type(None): "null"}
_OPTIONAL = {
    "type": "object",
    "required": ["must_understand"],
    "properties": {"must_understand": {"const": False}},
}
_NODE = {"anyOf": [{"$ref": "#/$defs/ArraySpec"}, {"$ref": "#/$defs/GroupSpec"}]}


def schema(zarr_format: int) -> dict[str, Any]:
    """Return the JSON Schema of the models of a Zarr format, of an array or of a group.

    What a schema cannot say, such as that ranks agree, the models themselves check.

    Examples
    --------
    >>> schema(3)["$defs"]["ArraySpec"]["properties"]["shape"]
    {'type': 'array', 'items': {'type': 'integer', 'minimum': 0}}
    """
    module = _MODULES[zarr_format]
    # Shared by reference, as a group has members that are groups.
    definitions: dict[str, Any] = {}
    for model in (module.ArraySpec, module.GroupSpec):
        definitions[model.__name__] = _of_model(model, definitions)
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"Zarr object model, v{zarr_format}",
        "description": "Generated from virtualzarr.models; see ZEP 6.",
        **_NODE,
        "$defs": dict(sorted(definitions.items())),
    }


def _of_model(model: Any, definitions: dict[str, Any]) -> dict[str, Any]:
    hints = get_type_hints(model.__init__, include_extras=True)
    fields = [field for field in signature(model).parameters.values() if field.name != "extra"]
    properties: dict[str, Any] = {"zarr_format": {"const": model.zarr_format}}
    required = ["zarr_format"]
    # v2 documents have no node_type: the name of the file is what tells.
    if model.zarr_format == 3:
        properties["node_type"] = {"const": model.node_type}
        required.append("node_type")
    for field in fields:
        properties[field.name] = _of_hint(hints[field.name], definitions)
        if field.name != "attributes" and field.default is field.empty:
            required.append(field.name)
    result = {
        "title": f"{model.__name__} of Zarr v{model.zarr_format}",
        "description": (model.__doc__ or "").partition("\n")[0],
        "type": "object",
        "required": required,
        "properties": properties,
    }
    return result | _further(model, properties)


def _further(model: Any, properties: dict[str, Any]) -> dict[str, Any]:
    """Say which further members there may be, and what is read leniently."""
    # The examples of ZEP 6 say {} for no filters, and are read (`metadata.repair`).
    if "filters" in properties:
        properties["filters"]["anyOf"].append({"type": "object", "maxProperties": 0})
    if model.zarr_format == 2:
        # Nothing but its shape tells an array from a group.
        return {} if "shape" in properties else {"not": {"required": ["shape"]}}
    if model.node_type == "group":
        properties["consolidated_metadata"] = {"type": ["object", "null"]}
    # v3 core specification: unknown members must say that they need not be understood.
    return {"additionalProperties": _OPTIONAL}


def _of_hint(hint: Any, definitions: dict[str, Any]) -> dict[str, Any]:
    origin, items = get_origin(hint), get_args(hint)
    if hint is Any:
        return {}
    if isinstance(hint, TypeVar):
        if hint.__name__ == "M":  # members
            return {"anyOf": [{"type": "object", "additionalProperties": _NODE}, {"type": "null"}]}
        return {"type": "object"}
    if is_typeddict(hint):
        return _of_typed_dict(hint, definitions)
    if origin is NotRequired:
        return _of_hint(items[0], definitions)
    if origin in (Union, types.UnionType):
        if any(map(is_typeddict, items)):  # which says more than a mapping of anything
            items = tuple(item for item in items if get_origin(item) is not Mapping)
        if len(items) == 1:
            return _of_hint(items[0], definitions)
        return {"anyOf": [_of_hint(item, definitions) for item in items]}
    if origin is Literal:
        return {"enum": list(items)}
    if origin is Sequence:
        inner = _of_hint(items[0], definitions)
        return {"type": "array", **({"items": inner} if inner else {})}
    if origin is Mapping:
        inner = _of_hint(items[1], definitions)
        return {"type": "object", **({"additionalProperties": inner} if inner else {})}
    # All integers in signatures are lengths of axes and chunks.
    if hint is int:
        return {"type": "integer", "minimum": 0}
    return {"type": _PLAIN[hint]}


def _of_typed_dict(hint: Any, definitions: dict[str, Any]) -> dict[str, Any]:
    if hint.__name__ not in definitions:
        hints = get_type_hints(hint, include_extras=True)
        definitions[hint.__name__] = {
            "title": hint.__name__,
            "description": (hint.__doc__ or "").partition("\n")[0],
            "type": "object",
            "required": sorted(required_keys(hint)),
            "properties": {name: _of_hint(inner, definitions) for name, inner in hints.items()},
        }
    return {"$ref": f"#/$defs/{hint.__name__}"}


def write(folder: Path) -> None:
    """Write the schemas of both formats into a folder."""
    for zarr_format in _MODULES:
        text = json.dumps(schema(zarr_format), indent=2)
        (folder / f"models-v{zarr_format}.schema.json").write_text(f"{text}\n")


if __name__ == "__main__":
    write(Path(sys.argv[1]))
