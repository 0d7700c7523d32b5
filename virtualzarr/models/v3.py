"""Models of Zarr v3 arrays and groups."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, NotRequired, TypedDict

from virtualzarr.models.array import NOTHING, A, ArraySpecBase
from virtualzarr.models.group import GroupSpecBase, M


class NamedConfig(TypedDict):
    """The name of something that documents refer to, and how it is configured."""

    name: str
    configuration: NotRequired[Mapping[str, Any] | None]


class ArraySpec(ArraySpecBase[A]):
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
    document: ClassVar[str] = "zarr.json"

    def __init__(
        self,
        *,
        attributes: A = NOTHING,
        shape: Sequence[int],
        data_type: str | NamedConfig,
        chunk_grid: str | NamedConfig,
        chunk_key_encoding: str | NamedConfig,
        fill_value: Any,
        codecs: Sequence[str | NamedConfig],
        storage_transformers: Sequence[str | NamedConfig] | None = (),
        dimension_names: Sequence[str | None] | None = None,
        extra: Mapping[str, Any] = NOTHING,
    ) -> None:
        members = {
            "shape": shape,
            "data_type": data_type,
            "chunk_grid": chunk_grid,
            "chunk_key_encoding": chunk_key_encoding,
            "fill_value": fill_value,
            "codecs": codecs,
            "storage_transformers": storage_transformers,
            "dimension_names": dimension_names,
        }
        self._build(attributes, extra, members)

    @property
    def data_type(self) -> str | NamedConfig:
        """The data type."""
        return self._json["data_type"]

    @property
    def chunk_grid(self) -> NamedConfig:
        """How the array is cut into chunks."""
        return self._json["chunk_grid"]

    @property
    def chunk_key_encoding(self) -> NamedConfig:
        """How the keys of chunks are spelled."""
        return self._json["chunk_key_encoding"]

    @property
    def codecs(self) -> tuple[NamedConfig, ...]:
        """How chunks become bytes."""
        # A tuple, as the list is the model's own, and models do not change.
        return tuple(self._json["codecs"])

    @property
    def storage_transformers(self) -> tuple[NamedConfig, ...]:
        """What stands between the array and its keys."""
        return tuple(self._json["storage_transformers"])

    @property
    def dimension_names(self) -> tuple[str | None, ...] | None:
        """One name for each axis, None for one without."""
        return self.metadata.dimension_names


class GroupSpec(GroupSpecBase[A, M]):
    """The structure of a Zarr v3 group, and of everything in it.

    Source: ZEP 6; Zarr v3 core specification, group metadata.

    Examples
    --------
    >>> model = GroupSpec(attributes={"title": "weather"}, members={"a": GroupSpec(attributes={})})
    >>> model.to_json()["members"]["a"]
    {'zarr_format': 3, 'node_type': 'group', 'attributes': {}, 'members': {}}
    """

    zarr_format: ClassVar[int] = 3
    document: ClassVar[str] = "zarr.json"

    @classmethod
    def _types(cls) -> tuple[type[ArraySpecBase[Any]], type[GroupSpecBase[Any, Any]]]:
        return ArraySpec, GroupSpec
