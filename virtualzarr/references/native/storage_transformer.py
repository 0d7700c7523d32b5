"""The storage transformer `virtualzarr.manifest`: what an array's document says of its manifest.

Source: ``specs/manifest-storage.md``.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from virtualzarr.errors import MetadataError, UnsupportedError
from virtualzarr.metadata import DTYPE_NAMES, ArrayMetadata, attribute_dtypes, with_dtypes
from virtualzarr.metadata.json_documents import (
    as_lengths,
    as_list,
    as_object,
    member,
    require,
    short,
)
from virtualzarr.stores import Store
from virtualzarr.stores.location import Location

if TYPE_CHECKING:
    from virtualzarr.references.native.manifest_chunks import NativeChunks

NAME = "virtualzarr.manifest"
VERSION = 1

FOLDER = "__manifest"
"""What lies under this name below an array belongs to its manifest: v3 reserves such names."""

_MOST_MARKS = 1 << 26
"""A chunk of the record of natively stored cells has no more elements."""

_MEMBERS = {"version", "axis", "parts", "native", "relative", "dtypes", "floats"}
_DTYPES = {"dtypes": DTYPE_NAMES, "floats": frozenset({"float16", "float32"})}
"""Members that say which data types attributes have; the second is that of older documents."""

_PART = re.compile(r"[0-9A-Za-z][0-9A-Za-z_-]{0,63}")


@dataclass(frozen=True)
class Stretch:
    """The cells that one part of a manifest has references for: a box, one after the other.

    Attributes
    ----------
    name : str or None
        Of the part; None for cells without references.
    shape : tuple of int
        Cells along each axis, from the first one on; along the axis of growth, from where the
        stretch before this one ends.
    """

    name: str | None
    shape: tuple[int, ...]


@dataclass(frozen=True)
class Configuration:
    """The transformer's configuration.

    Attributes
    ----------
    axis : int
        Along which the parts follow one another.
    native : tuple of int or None
        Chunk shape of the record of cells that are stored natively; None if none ever was.
    relative : bool
        Whether new parts name their sources relative to the array.
    dtypes : dict of str to str
        The data type of attributes that are numbers, or lists of such, where they come from: by
        which packed data are decoded, and what is masked, depends on that.
    """

    axis: int = 0
    parts: tuple[Stretch, ...] = ()
    native: tuple[int, ...] | None = None
    relative: bool = False
    dtypes: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, metadata: ArrayMetadata) -> Configuration:
        """Read the configuration of an array.

        Raises `MetadataError` if it breaks its specification, or does not fit the array;
        `UnsupportedError` if it is of a later version.
        """
        grid_shape = metadata.grid.grid_shape
        # The registry has checked the name; everything else is checked here, before a part is
        # looked for.
        value = as_object(metadata.storage_transformers[0]["configuration"])
        require(value, "version", "axis", "parts")
        if type(value["version"]) is not int or value["version"] != VERSION:
            raise UnsupportedError(f"version: {short(value['version'])}; known is {VERSION}")
        if unknown := set(value) - _MEMBERS:
            raise MetadataError(f"unknown members {', '.join(map(short, sorted(unknown)))}")
        axis = value["axis"]
        if type(axis) is not int or not 0 <= axis < max(1, len(grid_shape)):
            raise MetadataError(f"axis: {short(axis)} is no axis of the array")
        with member("parts"):
            parts = tuple(
                _stretch(entry, f"[{i}]", grid_shape)
                for i, entry in enumerate(as_list(value["parts"]))
            )
            # Fewer cells than the array has are fine: it was resized, or written to natively.
            if grid_shape and sum(part.shape[axis] for part in parts) > grid_shape[axis]:
                raise MetadataError(f"they have more than the array's {grid_shape[axis]} cells")
            if not grid_shape and len(parts) > 1:
                raise MetadataError("an array without axes has one chunk")
        native = None
        if value.get("native") is not None:
            with member("native"):
                native = as_lengths(value["native"])
                # A record whose chunk is huge would be read whole for each cell.
                large = math.prod(native) > _MOST_MARKS
                if len(native) != len(grid_shape) or 0 in native or large:
                    raise MetadataError(f"{list(native)} is no chunk shape of the array's cells")
        relative = value.get("relative", False)
        if not isinstance(relative, bool):
            raise MetadataError(f"relative: must be true or false, not {short(relative)}")
        return cls(axis, parts, native, relative, _parse_dtypes(value))

    def to_json(self) -> dict[str, Any]:
        """Return the transformer's object."""
        parts = [{"name": part.name, "shape": list(part.shape)} for part in self.parts]
        value: dict[str, Any] = {"version": VERSION, "axis": self.axis, "parts": parts}
        if self.native is not None:
            value["native"] = list(self.native)
        if self.relative:
            value["relative"] = True
        if self.dtypes:
            value["dtypes"] = dict(self.dtypes)
        return {"name": NAME, "configuration": value}

    @property
    def length(self) -> int:
        """Cells along the axis of growth that belong to parts."""
        return sum(part.shape[self.axis] for part in self.parts if part.shape)

    def cut(self, grid_shape: Sequence[int]) -> Configuration:
        """Return the configuration without cells that lie outside of a grid."""
        parts, left = [], grid_shape[self.axis] if grid_shape else 1
        for part in self.parts:
            shape = tuple(map(min, part.shape, grid_shape))
            if shape:
                # Parts that end behind the grid are clipped, those that begin there dropped;
                # their files stay for who reads the old documents.
                along = min(part.shape[self.axis], left)
                shape = (*shape[: self.axis], along, *shape[self.axis + 1 :])
                left -= along
                if not along:
                    continue
            parts.append(Stretch(part.name, shape))
        return replace(self, parts=tuple(parts))


def _stretch(entry: Any, label: str, grid_shape: tuple[int, ...]) -> Stretch:
    with member(label):
        entry = as_object(entry)
        require(entry, "name", "shape")
        name = entry["name"]
        if name is not None and not (isinstance(name, str) and _PART.fullmatch(name)):
            raise MetadataError(f"name: {short(name)} cannot be the name of a part")
        with member("shape"):
            shape = as_lengths(entry["shape"])
            if len(shape) != len(grid_shape):
                raise MetadataError(f"{len(shape)} axes, but the array has {len(grid_shape)}")
            if any(n > m for n, m in zip(shape, grid_shape, strict=True)):
                raise MetadataError(f"{list(shape)} is more than the array's {list(grid_shape)}")
        return Stretch(name, shape)


def _parse_dtypes(configuration: Mapping[str, Any]) -> dict[str, str]:
    """Return the data types of attributes that a configuration says.

    Raises `MetadataError` if there is no such data type.
    """
    dtypes: dict[str, str] = {}
    for key, names in _DTYPES.items():
        with member(key):
            recorded = as_object(configuration.get(key, {}))
            for name, dtype in recorded.items():
                if not isinstance(dtype, str) or dtype not in names:
                    raise MetadataError(
                        f"{short(name)}: {short(dtype)} is none of {', '.join(sorted(names))}"
                    )
        dtypes |= recorded
    return dtypes


def check(metadata: ArrayMetadata) -> None:
    """Raise for a configuration that is wrong, and take over what it says of attributes."""
    dtypes = Configuration.of(metadata).dtypes
    metadata.attributes.update(with_dtypes(metadata.attributes, dtypes))


def change_attributes(
    configuration: Mapping[str, Any],
    attributes: Mapping[str, Any],
    change: Callable[[dict[str, Any]], dict[str, Any]],
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return a configuration, and attributes, after a change of attributes.

    Those that are not changed keep their data types; of the others, nothing is said any more.
    """
    new = change(with_dtypes(attributes, _parse_dtypes(configuration)))
    dtypes = attribute_dtypes(new)
    others = {name: value for name, value in configuration.items() if name not in _DTYPES}
    return others | ({"dtypes": dtypes} if dtypes else {}), new


def fit(metadata: ArrayMetadata) -> dict[str, Any]:
    """Return the transformer's object without the cells that the array has lost."""
    grid_shape = metadata.grid.grid_shape
    value = metadata.storage_transformers[0]["configuration"]
    parts = tuple(Stretch(part["name"], tuple(part["shape"])) for part in value["parts"])
    cut = Configuration(value["axis"], parts).cut(grid_shape).to_json()["configuration"]
    return {"name": NAME, "configuration": {**value, "parts": cut["parts"]}}


def chunks(
    metadata: ArrayMetadata, store: Store, path: str, location: Location | None = None
) -> NativeChunks:
    """Return the chunks of an array, of which nothing is read yet."""
    from virtualzarr.references.native.manifest_chunks import NativeChunks

    return NativeChunks(metadata, store, path, location)
