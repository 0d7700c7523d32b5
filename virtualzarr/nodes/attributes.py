"""Attributes of stored nodes: what is set is written at once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, MutableMapping
from typing import Any

from virtualzarr.nodes.documents import update_attributes
from virtualzarr.stores import Store

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
