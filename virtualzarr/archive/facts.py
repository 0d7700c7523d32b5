"""Facts of a scanned file: what is compared with other files, as JSON, and its fingerprints."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

import numpy as np

from virtualzarr.archive.axis import AxisFacts
from virtualzarr.array import Array
from virtualzarr.codecs import Codec, Pipeline
from virtualzarr.combine.attributes import MEANING_ATTRIBUTES, attribute_dtype
from virtualzarr.hierarchy.group import Group
from virtualzarr.manifest import Manifest
from virtualzarr.metadata.dimension_names import real_name

MAX_COORDINATE_BYTES = 16 << 20
"""Coordinates that are larger are not read: their values are not compared."""

LOSSY_ATTRIBUTES = (
    "_QuantizeBitGroomNumberOfSignificantDigits",
    "_QuantizeGranularBitRoundNumberOfSignificantDigits",
    "_QuantizeBitRoundNumberOfSignificantBits",
    "quantization_nsd", "quantization_nsb", "least_significant_digit",
)  # fmt: skip
"""Attributes that say how exact values were before they were compressed: netCDF, NCO, netCDF4."""

_LOSSY_CODECS = frozenset(
    ["bitround", "quantize", "fixedscaleoffset", "scaleoffset", "scale_offset", "zfp", "zfpy",
     "sz", "sz3", "truncate", "hdf5_scaleoffset", "hdf5_zfp", "fits_quantized"]
)  # fmt: skip

COMPARED = frozenset((*MEANING_ATTRIBUTES, *LOSSY_ATTRIBUTES))
"""Attributes that are compared."""

Properties = dict[str, dict[str, Any]]
"""What is compared of each variable, by its path and the name of the property."""

Places = tuple[int, int]
"""Sums of addresses and of lengths of all chunks: other files have others, or are copies."""

_MODULUS = 1 << 62


@dataclass(frozen=True, slots=True)
class FileFacts:
    """What a survey needs of a file that was scanned.

    Parameters
    ----------
    format : str
    properties : dict
        What is compared with other files, by variable, but for values of coordinates. Files that
        are alike share one.
    axes : dict
        Facts of each coordinate, by its path.
    places : (int, int)
        See `Places`.
    """

    format: str
    properties: Properties
    axes: dict[str, AxisFacts]
    places: Places

    @classmethod
    def of(cls, group: Group, format: str) -> FileFacts:
        """Return the facts of a group that a scan returned; small coordinates are read."""
        properties: Properties = {}
        axes: dict[str, AxisFacts] = {}
        places = (0, 0)
        for path, node in iter_nodes(group):
            if isinstance(node, Group):
                properties |= {f"{path}/{name}".strip("/"): {"skipped": why}
                               for name, why in node.skipped.items()}  # fmt: skip
                continue
            places = add_places(places, node.manifest)
            properties[path] = _describe(node)
            if is_coordinate(node) and node.nbytes <= MAX_COORDINATE_BYTES:
                axes[path] = AxisFacts.of(node.read(), node.metadata.attributes)
        return cls(format, properties, axes, places)

    @classmethod
    def from_json(
        cls, properties: Properties, document: Any, axes: dict[str, AxisFacts]
    ) -> FileFacts:
        """Return facts as `to_json` gave them.

        Parameters
        ----------
        properties : dict
        document : list
        axes : dict
            Facts by their text: those of static coordinates are the same in most files, and made
            once.
        """
        format, texts, places = document
        axis_facts = {}
        for path, text in texts.items():
            if text not in axes:
                axes[text] = AxisFacts.from_json(json.loads(text))
            axis_facts[path] = axes[text]
        return cls(format, properties, axis_facts, tuple(places))

    def to_json(self) -> list[Any]:
        """Return all but the properties, which many files share."""
        axes = {path: json.dumps(axis.to_json()) for path, axis in self.axes.items()}
        return [self.format, axes, list(self.places)]


def add_places(places: Places, manifest: Manifest) -> Places:
    """Return sums of addresses and lengths with those of a manifest."""
    if not manifest.nrefs or manifest.sources[0].is_inline:
        return places
    stored = np.asarray(manifest.source) >= 0
    columns = (np.asarray(column)[stored] for column in (manifest.offset, manifest.length))
    first, second = (int(column.sum()) for column in columns)
    return (places[0] + first) % _MODULUS, (places[1] + second) % _MODULUS


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
    manifest = array.manifest
    if 0 < manifest.nrefs < manifest.ncells:
        properties["chunks"] = "some are not there"
    if lossy := _describe_lossy(array):
        properties["lossy"] = lossy
    return properties | _describe_meaning(metadata.attributes)


def _describe_lossy(array: Array) -> list[str]:
    """Return what says how exact values were before they were compressed."""
    attributes = array.metadata.attributes
    texts = [f"{name}={attributes[name]!r}" for name in LOSSY_ATTRIBUTES if name in attributes]
    codecs = [codec for codec in array.metadata.pipeline.codecs if _is_lossy(codec)]
    return [*texts, *map(repr, codecs)]


def _is_lossy(codec: Codec) -> bool:
    return codec.name.rpartition(".")[2].lower() in _LOSSY_CODECS


def _describe_fill(value: Any) -> str:
    # Of another data type, but the same number: that is one difference, and not two.
    is_number = isinstance(value, np.number) and value.dtype != np.longdouble
    return repr(value.item()) if is_number else repr(value)


def _describe_codecs(pipeline: Pipeline) -> list[str]:
    """Return the codecs that decode chunks, without what does not matter for that."""
    described = []
    for codec in pipeline.codecs:
        if _is_lossy(codec):
            described.append(codec.name.removeprefix("numcodecs."))
        elif codec is not pipeline.serializer:
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
