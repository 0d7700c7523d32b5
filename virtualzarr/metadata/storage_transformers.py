"""Registry of Zarr v3 storage transformers, and the documents' member that lists them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol

from virtualzarr.errors import UnsupportedError
from virtualzarr.metadata.json_documents import as_list, as_object, member, short

if TYPE_CHECKING:
    from virtualzarr.metadata.model import ArrayMetadata

# name: module, imported on first use, as it is in a room above this one
_BUILTIN = {"virtualzarr.manifest": "virtualzarr.references.native.storage_transformer"}
_registered: dict[str, Transformer] = {}


class Transformer(Protocol):
    """Interface of a storage transformer: a module with these functions, or an object."""

    def check(self, metadata: ArrayMetadata) -> None:
        """Raise a MetadataError or UnsupportedError for a configuration that is wrong."""
        ...

    def fit(self, metadata: ArrayMetadata) -> dict[str, Any]:
        """Return the transformer's object as it must be after the array's shape has changed."""
        ...

    def change_attributes(
        self,
        configuration: Mapping[str, Any],
        attributes: Mapping[str, Any],
        change: Callable[[dict[str, Any]], dict[str, Any]],
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the configuration, and the attributes, after a change of attributes."""
        ...

    def chunks(self, metadata: ArrayMetadata, store: Any, path: str, location: Any = None) -> Any:
        """Return the chunks of an array in a store, as `virtualzarr.array.chunk_source.Chunks`."""
        ...


def get_transformer(metadata: ArrayMetadata) -> Transformer:
    """Return the storage transformer of an array that has one."""
    return _find_transformer(metadata.storage_transformers[0]["name"])


def _find_transformer(name: Any) -> Transformer:
    transformer = _registered.get(name) if isinstance(name, str) else None
    if transformer is None and isinstance(name, str) and name in _BUILTIN:
        transformer = _registered[name] = import_module(_BUILTIN[name])
    if transformer is None:
        raise UnsupportedError(f"the storage transformer {short(name)}")
    return transformer


def transformers_from_v3(value: Any) -> tuple[dict[str, Any], ...]:
    """Read the member `storage_transformers` of an array's document.

    Source: Zarr v3 core specification, storage transformers. An unknown one changes what the keys
    mean, so it is refused, whatever it says of having to be understood.

    Raises
    ------
    UnsupportedError
        A transformer is unknown, or there are several.
    """
    transformers = []
    with member("storage_transformers"):
        for i, entry in enumerate(as_list(value)):
            with member(f"[{i}]"):
                entry = dict(as_object({"name": entry} if isinstance(entry, str) else entry))
                _find_transformer(entry.get("name"))
                configuration = entry.get("configuration")
                if not isinstance(configuration, Mapping | None):
                    as_object(configuration)
                transformers.append(
                    {"name": entry["name"], "configuration": dict(configuration or {})}
                )
        if len(transformers) > 1:
            raise UnsupportedError("more than one storage transformer")
    return tuple(transformers)


def check_transformers(metadata: ArrayMetadata) -> None:
    """Raise for transformers whose configuration does not fit the array."""
    if metadata.storage_transformers:
        with member("storage_transformers"), member("[0]"), member("configuration"):
            get_transformer(metadata).check(metadata)


def fit_transformers(metadata: ArrayMetadata) -> ArrayMetadata:
    """Return the metadata of an array that was resized, with transformers that fit."""
    if not metadata.storage_transformers:
        return metadata
    return metadata.replace(storage_transformers=(get_transformer(metadata).fit(metadata),))


def change_attributes(
    document: dict[str, Any], change: Callable[[dict[str, Any]], dict[str, Any]]
) -> dict[str, Any]:
    """Change the attributes in a v3 document, and in its transformers; return them."""
    # On the document, not the model: attributes are changed within one update of the store, which
    # must not lose members that only the document has.
    old = dict(document.get("attributes") or {})
    entries = transformers_from_v3(document.get("storage_transformers", []))
    if not entries:
        document["attributes"] = change(old)
        return document["attributes"]
    name, configuration = entries[0]["name"], entries[0]["configuration"]
    configuration, attributes = _find_transformer(name).change_attributes(
        configuration, old, change
    )
    document["storage_transformers"] = [{"name": name, "configuration": configuration}]
    document["attributes"] = attributes
    return attributes
