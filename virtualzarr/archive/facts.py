"""Facts of a scanned file: what is compared with other files, as JSON, and its fingerprints."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

import numpy as np

from virtualzarr.archive.axis import axis_facts
from virtualzarr.array import Array
from virtualzarr.codecs import Pipeline
from virtualzarr.combine.attributes import MEANING_ATTRIBUTES, attribute_dtype
from virtualzarr.hierarchy.group import Group
from virtualzarr.metadata.dimension_names import real_name

MAX_COORDINATE_BYTES = 16 << 20
"""Coordinates that are larger are not read: their values are not compared."""

STRUCTURE = ("data type", "byte order", "dimensions", "filters", "fill value")
COORDINATES = ("values", "reversed values")

Properties = dict[str, dict[str, Any]]
"""What is compared of each variable, by its path and the name of the property."""


@dataclass(frozen=True)
class FileFacts:
    """What a survey needs of a file that was scanned.

    Parameters
    ----------
    format : str
    properties : dict
        What is compared with other files, by variable.
    axes : dict
        Extent, order and steps of each dimension coordinate, by its path.
    digest : str
        Of all of its metadata and of where its chunks lie: other files have other ones, if they are
        not copies.
    """

    format: str
    properties: Properties
    axes: dict[str, dict[str, Any]]
    digest: str

    @classmethod
    def of(cls, group: Group, format: str) -> FileFacts:
        """Return the facts of a group that a scan returned; small coordinates are read."""
        properties: Properties = {}
        axes: dict[str, dict[str, Any]] = {}
        digest = blake2b(digest_size=16)
        for path, node in iter_nodes(group):
            digest.update(f"{path} {dict(node.attrs)!r}".encode())
            if isinstance(node, Group):
                properties |= {f"{path}/{name}".strip("/"): {"skipped": why}
                               for name, why in node.skipped.items()}  # fmt: skip
                continue
            for column in (node.manifest.offset, node.manifest.length):
                digest.update(np.ascontiguousarray(column).tobytes())
            properties[path] = _describe(node)
            if is_coordinate(node) and node.nbytes <= MAX_COORDINATE_BYTES:
                values = node.read()
                axes[path] = axis_facts(values, node)
                properties[path] |= _digest_values(values)
        return cls(format, properties, axes, digest.hexdigest())

    @classmethod
    def from_json(cls, properties: Properties, document: Any) -> FileFacts:
        """Return facts as `to_json` gave them, with the properties."""
        format, axes, digest = document
        return cls(format, properties, axes, digest)

    def to_json(self) -> list[Any]:
        """Return all but the properties, which many files share."""
        return [self.format, self.axes, self.digest]

    def fingerprints(self) -> tuple[str, str, str]:
        """Return digests of structure, of meaning, and of the values of coordinates.

        Lengths are in none of them: which dimension is joined is not known.
        """
        parts: list[list[Any]] = [[], [], []]
        for path, properties in sorted(self.properties.items()):
            for name, value in sorted(properties.items()):
                if name.startswith("length along"):
                    continue
                structural = name in STRUCTURE or name.startswith(("chunk along", "skipped"))
                part = 0 if structural else 2 if name in COORDINATES else 1
                parts[part].append([path, name, value])
            parts[0].append([path])
        structure, meaning, coordinates = (digest_json(part) for part in parts)
        return structure, meaning, coordinates


def digest_json(value: Any) -> str:
    """Return the digest of a JSON value.

    Examples
    --------
    >>> digest_json(1) == digest_json(1.0)
    False
    """
    return digest_text(json.dumps(value, sort_keys=True, separators=(",", ":")))


def digest_text(text: str) -> str:
    """Return the digest of a text."""
    return blake2b(text.encode(), digest_size=16).hexdigest()


def iter_nodes(group: Group) -> Iterator[tuple[str, Array | Group]]:
    """Yield path and node of a group and of all arrays and groups in it."""
    yield group.path, group
    for name in group:
        node = group[name]
        if isinstance(node, Group):
            yield from iter_nodes(node)
        else:
            yield node.path, node


def is_coordinate(array: Array) -> bool:
    """Tell whether an array has the values of the dimension of its name, or is one number."""
    name = array.path.rpartition("/")[2]
    return array.dtype.kind in "iufSU" and (array.dims == (name,) or array.ndim == 0)


def _describe(array: Array) -> dict[str, Any]:
    """Return what is compared of an array, but for values."""
    metadata = array.metadata
    dims = [real_name(dim) for dim in array.dims]
    properties: dict[str, Any] = {
        "data type": str(metadata.dtype),
        "byte order": metadata.pipeline.serializer.configuration.get("endian"),
        "dimensions": dims,
        "filters": _describe_codecs(metadata.pipeline),
        "fill value": _describe_fill(metadata.fill_value),
    }
    others = {json.dumps(_describe_codecs(d.pipeline)) for d in array.manifest.decoders}
    others -= {json.dumps(properties["filters"])}
    if others:
        properties["filters"] = [*properties["filters"], f"or {', or '.join(sorted(others))}"]
    chunks = getattr(metadata.grid, "chunk_shape", None)
    for axis, length in enumerate(array.shape):
        dim = dims[axis] or f"axis {axis}"
        properties[f"length along {dim}"] = length
        chunk = None if chunks is None else int(chunks[axis])
        # A chunk that has all there is says nothing of how longer files would be cut.
        properties[f"chunk along {dim}"] = None if chunk is None or chunk >= length else chunk
    return properties | _describe_meaning(metadata.attributes)


def _describe_fill(value: Any) -> str:
    # Of another data type, but the same number: that is one difference, and not two.
    is_number = isinstance(value, np.number) and value.dtype != np.longdouble
    return repr(value.item()) if is_number else repr(value)


def _describe_codecs(pipeline: Pipeline) -> list[str]:
    """Return the codecs that decode chunks, without what does not matter for that."""
    described = []
    for codec in pipeline.codecs:
        if codec is not pipeline.serializer:
            fields = codec.decoding_fields
            members = sorted(codec.configuration if fields is None else fields)
            values = [f"{name}={codec.configuration.get(name)!r}" for name in members]
            name = codec.name.removeprefix("numcodecs.")
            described.append(f"{name}({', '.join(values)})" if values else name)
    return described


def _describe_meaning(attributes: Mapping[str, Any]) -> dict[str, Any]:
    meaning = {}
    for name in MEANING_ATTRIBUTES:
        if name in attributes:
            value = attributes[name]
            # Equal numbers of other types are not the same for who calculates with them.
            is_factor = name in ("scale_factor", "add_offset") and isinstance(value, int | float)
            meaning[name] = f"{value!r} ({attribute_dtype(value)})" if is_factor else repr(value)
    return meaning


def _digest_values(values: Any) -> dict[str, Any]:
    ways = {"values": values, "reversed values": values[::-1] if values.ndim else values}
    return {
        name: blake2b(np.ascontiguousarray(way).tobytes(), digest_size=16).hexdigest()
        for name, way in ways.items()
    }
