"""Metadata of arrays and groups, independent of the Zarr format of their documents."""

from __future__ import annotations

import dataclasses
import math
import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from grids import ChunkGrid, SeparableGrid
from virtualzarr.errors import MetadataError, UnsupportedError, VirtualZarrError
from virtualzarr.metadata import fill
from virtualzarr.metadata.chunk_key_encoding import KeyEncoding
from virtualzarr.metadata.dtypes import BYTES, STRING, vlen_kind
from virtualzarr.metadata.json_documents import MAX_EXTENT, MAX_NDIM, is_same_json, member, short

if TYPE_CHECKING:
    from virtualzarr.codecs import Pipeline

_ELEMENTS = {
    "vlen-utf8": "strings, the data type is byte strings",
    "vlen-bytes": "byte strings, the data type is strings",
}
_DEFAULT_KEYS = KeyEncoding()
_VLEN_CODECS = {"vlen-utf8": STRING, "vlen-bytes": BYTES}


@dataclass(frozen=True, eq=False)
class ArrayMetadata:
    """Everything about an array but where its chunks are.

    Parameters
    ----------
    shape : tuple of int
    dtype : numpy dtype
        In native byte order; a structured one keeps the byte order of each field. Variable-length
        data types are `dtypes.STRING` and `dtypes.BYTES`.
    grid : ChunkGrid
        The chunk grid; `grid.shape` is `shape`.
    pipeline : Pipeline
        The codecs that decode a chunk to a block of elements.
    fill_value : optional
        The value of elements never written: anything that `dtype` represents, as a numpy scalar
        (str or bytes for variable-length data types). None is the null of v2, and reads as zero.
    dimension_names : sequence of str or None, optional
        One name for each axis, None for one without; not necessarily distinct.
    attributes : dict
        JSON values.
    zarr_format : {2, 3}
    key_encoding : KeyEncoding
    extra : dict
        Members of the document without meaning to this package, kept for writing it back.
    storage_transformers : tuple of dict
        Storage transformers, v3 only; see `metadata.storage_transformers`.

    Raises
    ------
    MetadataError
        The parts do not agree.
    """

    shape: tuple[int, ...]
    dtype: np.dtype
    grid: ChunkGrid
    pipeline: Pipeline
    fill_value: Any = None
    dimension_names: tuple[str | None, ...] | None = None
    attributes: dict[str, Any] = field(default_factory=dict)
    zarr_format: int = 3
    key_encoding: KeyEncoding = _DEFAULT_KEYS
    extra: dict[str, Any] = field(default_factory=dict)
    storage_transformers: tuple[dict[str, Any], ...] = ()

    def __post_init__(self) -> None:
        # Everything is checked here, once, and not by those who create it: documents, users and
        # scanners get the same errors, and readers need no checks.
        _set = object.__setattr__
        _set(self, "shape", _check_shape(self.shape))
        _set(self, "dtype", _check_dtype(self.dtype, self.pipeline))
        if tuple(self.grid.shape) != self.shape:
            raise MetadataError(
                f"the chunk grid is of an array of shape {tuple(self.grid.shape)}, "
                f"the array has shape {self.shape}"
            )
        if self.pipeline.serializer.needs_fill and isinstance(self.grid, SeparableGrid):
            with member("codecs"):
                self.pipeline.check_edges([axis.edges for axis in self.grid.axes])
        with member("fill_value"):
            _set(self, "fill_value", fill.to_scalar(self.fill_value, self.dtype))
            self.pipeline.check_fill(self.fill_value, self.dtype)
        if self.dimension_names is not None:
            _set(self, "dimension_names", _check_names(self.dimension_names, len(self.shape)))
        if self.zarr_format not in (2, 3):
            raise UnsupportedError(f"zarr_format {short(self.zarr_format)}; known are 2 and 3")
        _set(self, "attributes", dict(self.attributes))
        _set(self, "extra", dict(self.extra))

    def replace(self, **changes: Any) -> ArrayMetadata:
        """Return a copy with some members changed; a new shape needs a new grid, too."""
        return dataclasses.replace(self, **changes)

    def with_attributes(self, attributes: dict[str, Any]) -> ArrayMetadata:
        """Return a copy with other attributes; nothing else is checked again."""
        other = object.__new__(type(self))
        other.__dict__.update(self.__dict__, attributes=dict(attributes))
        return other

    def as_format(self, zarr_format: int) -> ArrayMetadata:
        """Return the metadata of a new array of the same content in another Zarr format.

        Its chunks lie under the keys of that format: no use for an array that has chunks in a
        store, unless they are moved.
        """
        if zarr_format == self.zarr_format:
            return self
        keys = KeyEncoding("v2") if zarr_format == 2 else KeyEncoding()
        return self.replace(
            zarr_format=zarr_format, key_encoding=keys, extra={}, storage_transformers=()
        )

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def itemsize(self) -> int:
        """Bytes of one element; for variable-length data types those of a pointer."""
        return self.dtype.itemsize

    @property
    def effective_fill(self) -> Any:
        """The fill value, or where there is none, the default of the data type."""
        return fill.default_fill(self.dtype) if self.fill_value is None else self.fill_value

    @property
    def nbytes(self) -> int:
        """Bytes of all elements."""
        return self.size * self.itemsize

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ArrayMetadata):
            return NotImplemented
        return (
            self._key() == other._key()
            and vlen_kind(self.dtype) == vlen_kind(other.dtype)
            and fill.is_same_fill(self.fill_value, other.fill_value)
            and is_same_json(self.attributes, other.attributes)
            and is_same_json(self.extra, other.extra)
            and is_same_json([*self.storage_transformers], [*other.storage_transformers])
        )

    def __hash__(self) -> int:
        return hash(self._key())

    def _key(self) -> tuple[Any, ...]:
        return (
            *(self.shape, self.dtype, self.grid, self.pipeline),
            *(self.dimension_names, self.zarr_format, self.key_encoding),
        )


@dataclass(frozen=True)
class Consolidated:
    """Consolidated metadata: those of all nodes below a group, in one document.

    Attributes
    ----------
    nodes : dict
        Metadata by path relative to the group.
    skipped : dict
        The error for each path whose metadata is broken or not supported, raised when that node
        is opened: one broken node does not close a hierarchy.
    """

    nodes: dict[str, ArrayMetadata | GroupMetadata] = field(default_factory=dict)
    skipped: dict[str, VirtualZarrError] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class GroupMetadata:
    """Everything about a group but its members.

    Parameters
    ----------
    attributes : dict
        JSON values.
    zarr_format : {2, 3}
    extra : dict
        Members of the document without meaning to this package, kept for writing it back.
    consolidated : Consolidated, optional
        The metadata of all nodes below, where the group's document has it.
    """

    attributes: dict[str, Any] = field(default_factory=dict)
    zarr_format: int = 3
    extra: dict[str, Any] = field(default_factory=dict)
    consolidated: Consolidated | None = None

    def __post_init__(self) -> None:
        if self.zarr_format not in (2, 3):
            raise UnsupportedError(f"zarr_format {short(self.zarr_format)}; known are 2 and 3")
        object.__setattr__(self, "attributes", dict(self.attributes))
        object.__setattr__(self, "extra", dict(self.extra))

    def replace(self, **changes: Any) -> GroupMetadata:
        """Return a copy with some members changed."""
        return dataclasses.replace(self, **changes)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, GroupMetadata):
            return NotImplemented
        return (
            self.zarr_format == other.zarr_format
            and self.consolidated == other.consolidated
            and is_same_json(self.attributes, other.attributes)
            and is_same_json(self.extra, other.extra)
        )

    def __hash__(self) -> int:
        return hash((self.zarr_format, tuple(sorted(self.attributes))))


def _check_shape(shape: Sequence[int]) -> tuple[int, ...]:
    try:
        lengths = tuple(operator.index(length) for length in shape)
    except TypeError as error:
        raise MetadataError(f"shape: must be integers, not {short(shape)}") from error
    if not all(0 <= length <= MAX_EXTENT for length in lengths):
        raise MetadataError(f"shape: must be between 0 and 2^63-1, not {short(lengths)}")
    if len(lengths) > MAX_NDIM:
        raise UnsupportedError(f"{len(lengths)} dimensions; numpy arrays have at most {MAX_NDIM}")
    return lengths


def _check_dtype(dtype: Any, pipeline: Pipeline) -> np.dtype:
    """Return a dtype checked; an object one as text or bytes, by its codec."""
    # numpy has one object dtype for both; which one it is decides fill values and documents.
    dtype = np.dtype(dtype)
    if dtype.kind == "O" and vlen_kind(dtype) is None:
        return next((d for name, d in _VLEN_CODECS.items() if has_codec(pipeline, name)), dtype)
    for name, expected in _VLEN_CODECS.items() if dtype.kind == "O" else ():
        if vlen_kind(expected) is not vlen_kind(dtype) and has_codec(pipeline, name):
            raise MetadataError(f"codecs: {name} makes {_ELEMENTS[name]}")
    if dtype.names is None and not dtype.isnative:
        raise MetadataError(
            f"the dtype {dtype} is not native; the pipeline has the byte order, use "
            f"{dtype.newbyteorder('=')}"
        )
    return dtype


def has_codec(pipeline: Pipeline, name: str) -> bool:
    """Tell whether a codec of that name is in the pipeline, or in its shards."""
    return any(
        codec.name == name or _has_inner_codec(codec.configuration, name)
        for codec in pipeline.codecs
    )


def _has_inner_codec(configuration: Mapping[str, Any], name: str) -> bool:
    """Tell whether a codec of that name is among those that a shard is configured with."""
    for codec in configuration.get("codecs", ()):
        if codec == name or (
            isinstance(codec, Mapping)
            and (codec["name"] == name or _has_inner_codec(codec.get("configuration", {}), name))
        ):
            return True
    return False


def _check_names(names: Sequence[str | None], ndim: int) -> tuple[str | None, ...]:
    if isinstance(names, str) or not all(n is None or isinstance(n, str) for n in names):
        raise MetadataError(f"dimension_names: must be strings or null, not {short(names)}")
    if len(names) != ndim:
        raise MetadataError(f"dimension_names: {len(names)} names for {ndim} dimensions")
    return tuple(names)
