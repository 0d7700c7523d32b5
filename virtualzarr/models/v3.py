"""Models of Zarr v3 arrays and groups."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Generic, NotRequired, TypedDict, TypeVar

from virtualzarr.metadata import (
    ArrayMetadata,
    GroupMetadata,
    array_to_v3,
    group_to_v3,
    parse_array_v3,
    parse_group_v3,
)
from virtualzarr.models import repair
from virtualzarr.models.array import ArraySpecBase
from virtualzarr.models.group import GroupSpecBase
from virtualzarr.models.node import NodeSpec

A = TypeVar("A")
M = TypeVar("M", bound=NodeSpec)


class NamedConfig(TypedDict):
    """The name of something that documents refer to, and how it is configured."""

    name: str
    configuration: NotRequired[Mapping[str, Any] | None]


@dataclass(frozen=True, eq=False, kw_only=True)
class ArraySpec(ArraySpecBase[A], Generic[A]):
    """The structure of a Zarr v3 array.

    Source: ZEP 6; Zarr v3 core specification, array metadata.

    Raises
    ------
    MetadataError, UnsupportedError
        The members do not agree, or need something that this package does not have.

    Examples
    --------
    >>> model = ArraySpec(
    ...     attributes={"units": "K"},
    ...     shape=(4, 6),
    ...     data_type="uint8",
    ...     chunk_grid={"name": "regular", "configuration": {"chunk_shape": [2, 6]}},
    ...     chunk_key_encoding="default",
    ...     fill_value=0,
    ...     codecs=["bytes"],
    ... )
    >>> model.codecs
    ({'name': 'bytes'},)
    >>> model.replace(fill_value=300)
    Traceback (most recent call last):
    virtualzarr.errors.MetadataError: zarr.json: fill_value: 300 is outside the range of uint8
    """

    zarr_format: ClassVar[int] = 3
    attributes: A
    shape: tuple[int, ...]
    data_type: str | NamedConfig
    chunk_grid: str | NamedConfig
    chunk_key_encoding: str | NamedConfig
    fill_value: Any
    codecs: tuple[str | NamedConfig, ...]
    storage_transformers: tuple[str | NamedConfig, ...] | None = ()
    dimension_names: tuple[str | None, ...] | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)
    metadata: ArrayMetadata = field(init=False, repr=False)

    @classmethod
    def _repaired(cls, document: Mapping[str, Any]) -> dict[str, Any]:
        return repair.early_names(document)

    @classmethod
    def _parse(cls, document: Mapping[str, Any]) -> ArrayMetadata:
        return parse_array_v3(document)

    @classmethod
    def _written(cls, metadata: ArrayMetadata) -> dict[str, Any]:
        return array_to_v3(metadata)


@dataclass(frozen=True, eq=False, kw_only=True)
class GroupSpec(GroupSpecBase[A, M], Generic[A, M]):
    """The structure of a Zarr v3 group, and of everything in it.

    Source: ZEP 6; Zarr v3 core specification, group metadata.

    Examples
    --------
    >>> model = GroupSpec(attributes={"title": "weather"}, members={"a": GroupSpec(attributes={})})
    >>> model.to_json()["members"]["a"]
    {'zarr_format': 3, 'node_type': 'group', 'attributes': {}, 'members': {}}
    """

    zarr_format: ClassVar[int] = 3
    array_type: ClassVar[type[ArraySpecBase[Any]]] = ArraySpec
    attributes: A
    members: Mapping[str, M] | None = field(default_factory=dict)
    extra: Mapping[str, Any] = field(default_factory=dict)
    metadata: GroupMetadata = field(init=False, repr=False)

    @classmethod
    def _parse(cls, document: Mapping[str, Any]) -> GroupMetadata:
        return parse_group_v3(document)

    @classmethod
    def _written(cls, metadata: GroupMetadata) -> dict[str, Any]:
        written = group_to_v3(metadata)
        return {**metadata.extra, **written}
