"""Attributes of stored nodes: a mapping that writes each change through to the store."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, MutableMapping
from functools import partial
from typing import Any

from virtualzarr.errors import NodeNotFoundError
from virtualzarr.metadata import dumps_json
from virtualzarr.metadata.create import to_plain_json
from virtualzarr.metadata.json_documents import is_same_json
from virtualzarr.metadata.storage_transformers import change_attributes
from virtualzarr.metadata.v2 import DIMENSIONS
from virtualzarr.nodes.consolidated import refresh_written
from virtualzarr.nodes.documents import Document, check_writable, join, load_document
from virtualzarr.stores import Store
from virtualzarr.stores.upgraded import is_dataset_root, upgraded_error

_NODES_OF_V2 = (".zarray", ".zgroup")

Change = Callable[[dict[str, Any]], Mapping[str, Any]]


class Attributes(MutableMapping[str, Any]):
    """The attributes of a stored array or group.

    Reading shows what was stored when the node was opened. Every change is made to what is stored
    now, as one atomic step: changes of others to other attributes are kept, and shown afterwards.

    Examples
    --------
    >>> import virtualzarr as vz
    >>> group = vz.create_group({})
    >>> group.attrs["title"] = "weather"
    >>> group.attrs.update(year=2024, source="model")
    >>> group.attrs
    {'title': 'weather', 'year': 2024, 'source': 'model'}
    """

    def __init__(self, values: dict[str, Any], store: Store, path: str, zarr_format: int) -> None:
        self._values = values  # shared with the metadata of the node
        self._store = store
        self._path = path
        self._zarr_format = zarr_format

    def _change(self, change: Change) -> None:
        new = update_attributes(self._store, self._path, self._zarr_format, change)
        # In place, as the metadata of the node share the dictionary.
        self._values.clear()
        self._values.update(new)

    def __getitem__(self, name: str) -> Any:
        return self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __setitem__(self, name: str, value: Any) -> None:
        self._change(lambda stored: stored | {name: value})

    def __delitem__(self, name: str) -> None:
        if name not in self._values:
            raise KeyError(name)
        self._change(lambda stored: {k: v for k, v in stored.items() if k != name})

    def update(self, *args: Any, **values: Any) -> None:
        """Set several attributes in one step."""
        new = dict(*args, **values)
        self._change(lambda stored: stored | new)

    def put(self, values: Mapping[str, Any]) -> None:
        """Replace all attributes by others."""
        new = dict(values)
        self._change(lambda stored: new)

    def clear(self) -> None:
        """Remove all attributes."""
        self.put({})

    def asdict(self) -> dict[str, Any]:
        """Return the attributes as a dictionary of its own."""
        return dict(self._values)

    def __repr__(self) -> str:
        return repr(self._values)


def update_attributes(store: Store, path: str, zarr_format: int, change: Change) -> dict[str, Any]:
    """Replace the attributes of a node by what `change` returns for those that are stored.

    Nothing comes in between, as far as the store guarantees that; the rest of the document stays.

    Returns
    -------
    dict
        The attributes that are stored now.
    """
    check_writable(store)
    result: dict[str, Any] = {}
    documents: dict[str, Document] = {}
    name = "zarr.json" if zarr_format == 3 else ".zattrs"

    def rewrite(old: bytes | None) -> bytes:
        result.clear()  # another writer was quicker
        document: Document = {} if old is None else load_document(old, store, path)
        if zarr_format == 2:
            # .zattrs also has the dimension names, which are no attributes but must survive.
            names = {k: v for k, v in document.items() if k == DIMENSIONS}
            stored = {k: v for k, v in document.items() if k != DIMENSIONS}
            result.update(_apply_change(change, stored))
            document = dict(result) if DIMENSIONS in result else result | names
        elif old is None:
            raise _gone_error(store, path)
        elif is_dataset_root(old):
            raise upgraded_error(store.uri)
        else:
            result.update(change_attributes(document, partial(_apply_change, change)))
        documents[name] = document
        return dumps_json(document)

    if zarr_format == 2 and all(store.get(join(path, key)) is None for key in _NODES_OF_V2):
        raise _gone_error(store, path)  # whose attributes another node of the name would get
    store.update(join(path, name), rewrite)
    refresh_written(store, path, documents, zarr_format)
    return result


def _gone_error(store: Store, path: str) -> NodeNotFoundError:
    return NodeNotFoundError(f"no Zarr array or group at {path!r} any more", file=store.uri)


def _apply_change(change: Change, stored: dict[str, Any]) -> dict[str, Any]:
    """Return new attributes; only stored ones may have NaN and others JSON has no token for."""
    # NaN in JSON is read by Python and few others: what exists is kept, and no more is written.
    new: dict[str, Any] = to_plain_json(change(dict(stored)))
    old = {name: stored[name] for name in new if name in stored}
    changed = {k: value for k, value in new.items() if not is_same_json(old.get(k, {}), value)}
    dumps_json({"attributes": changed}, allow_nan=False)
    return new
