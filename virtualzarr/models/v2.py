"""Models of Zarr v2 arrays and groups."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Generic, Literal, TypedDict, TypeVar

from virtualzarr.metadata import (
    ArrayMetadata,
    GroupMetadata,
    array_to_v2,
    group_to_v2,
    parse_array_v2,
    parse_group_v2,
)
from virtualzarr.models import repair
from virtualzarr.models.array import ArraySpecBase
from virtualzarr.models.group import GroupSpecBase
from virtualzarr.models.node import NodeSpec

A = TypeVar("A")
M = TypeVar("M", bound=NodeSpec)


class CodecConfig(TypedDict):
    """The configuration of a codec of numcodecs, whose other members depend on `id`."""

    id: str


@dataclass(frozen=True, eq=False, kw_only=True)
class ArraySpec(ArraySpecBase[A], Generic[A]):
    """The structure of a Zarr v2 array; its attributes are those of `.zattrs`.

    Source: ZEP 6; Zarr v2 specification, array metadata.

    Raises
    ------
    MetadataError, UnsupportedError
        The members do not agree, or need something that this package does not have.

    Examples
    --------
    >>> model = ArraySpec(
    ...     attributes={},
    ...     shape=(4, 6),
    ...     chunks=(2, 6),
    ...     dtype="<i4",
    ...     compressor={"id": "zstd", "level": 0},
    ...     fill_value=0,
    ... )
    >>> model.replace(chunks=(2,))
    Traceback (most recent call last):
    virtualzarr.errors.MetadataError: .zarray: chunks: chunk_shape has 1 entries, but the array \
has 2 axes
    """

    zarr_format: ClassVar[int] = 2
    attributes: A
    shape: tuple[int, ...]
    chunks: tuple[int, ...]
    dtype: str | tuple[Any, ...]
    compressor: CodecConfig | None
    fill_value: Any
    order: Literal["C", "F"] = "C"
    filters: tuple[CodecConfig, ...] | None = None
    dimension_separator: Literal[".", "/"] = "."
    extra: Mapping[str, Any] = field(default_factory=dict)
    metadata: ArrayMetadata = field(init=False, repr=False)

    @classmethod
    def _repaired(cls, document: Mapping[str, Any]) -> dict[str, Any]:
        return repair.empty_filters(document)

    @classmethod
    def _parse(cls, document: Mapping[str, Any]) -> ArrayMetadata:
        zarray = {name: value for name, value in document.items() if name != "attributes"}
        return parse_array_v2(zarray, document.get("attributes"))

    @classmethod
    def _written(cls, metadata: ArrayMetadata) -> dict[str, Any]:
        zarray, zattrs = array_to_v2(metadata)
        return {**zarray, "attributes": zattrs}


@dataclass(frozen=True, eq=False, kw_only=True)
class GroupSpec(GroupSpecBase[A, M], Generic[A, M]):
    """The structure of a Zarr v2 group, and of everything in it.

    Source: ZEP 6; Zarr v2 specification, groups.

    Examples
    --------
    >>> GroupSpec(attributes={"title": "weather"}).to_json()
    {'zarr_format': 2, 'attributes': {'title': 'weather'}, 'members': {}}
    """

    zarr_format: ClassVar[int] = 2
    array_type: ClassVar[type[ArraySpecBase[Any]]] = ArraySpec
    attributes: A
    members: Mapping[str, M] | None = field(default_factory=dict)
    extra: Mapping[str, Any] = field(default_factory=dict)
    metadata: GroupMetadata = field(init=False, repr=False)

    @classmethod
    def _parse(cls, document: Mapping[str, Any]) -> GroupMetadata:
        zgroup = {name: value for name, value in document.items() if name != "attributes"}
        return parse_group_v2(zgroup, document.get("attributes"))

    @classmethod
    def _written(cls, metadata: GroupMetadata) -> dict[str, Any]:
        zgroup, zattrs = group_to_v2(metadata)
        return {**zgroup, "attributes": zattrs}
