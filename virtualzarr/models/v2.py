"""Models of Zarr v2 arrays and groups."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal, TypedDict

from virtualzarr.models.array import NOTHING, A, ArraySpecBase
from virtualzarr.models.group import GroupSpecBase, M


class CodecConfig(TypedDict):
    """The configuration of a codec of numcodecs, whose other members depend on `id`."""

    id: str


class ArraySpec(ArraySpecBase[A]):
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
    document: ClassVar[str] = ".zarray"

    def __init__(
        self,
        *,
        attributes: A = NOTHING,
        shape: Sequence[int],
        chunks: Sequence[int],
        dtype: str | Sequence[Any],
        compressor: CodecConfig | Mapping[str, Any] | None,
        fill_value: Any,
        order: Literal["C", "F"] = "C",
        filters: Sequence[CodecConfig | Mapping[str, Any]] | None = None,
        dimension_separator: Literal[".", "/"] = ".",
        extra: Mapping[str, Any] = NOTHING,
    ) -> None:
        members = {
            "shape": shape,
            "chunks": chunks,
            "dtype": dtype,
            "compressor": compressor,
            "fill_value": fill_value,
            "order": order,
            "filters": filters,
            "dimension_separator": dimension_separator,
        }
        self._build(attributes, extra, members)

    @property
    def chunks(self) -> tuple[int, ...]:
        """Elements of a chunk along each axis."""
        # A tuple, as the list is the model's own, and models do not change.
        return tuple(self._json["chunks"])

    @property
    def dtype(self) -> str | list[Any]:
        """The data type with its byte order; fields of structured ones."""
        return self._json["dtype"]

    @property
    def compressor(self) -> CodecConfig | None:
        """The codec after the filters."""
        return self._json["compressor"]

    @property
    def order(self) -> Literal["C", "F"]:
        """In which order the elements of a chunk are stored."""
        return self._json["order"]

    @property
    def filters(self) -> tuple[CodecConfig, ...] | None:
        """The codecs before the compressor."""
        filters = self._json["filters"]
        return None if filters is None else tuple(filters)

    @property
    def dimension_separator(self) -> Literal[".", "/"]:
        """What stands between the numbers in the keys of chunks."""
        return self._json["dimension_separator"]


class GroupSpec(GroupSpecBase[A, M]):
    """The structure of a Zarr v2 group, and of everything in it.

    Source: ZEP 6; Zarr v2 specification, groups.

    Examples
    --------
    >>> GroupSpec(attributes={"title": "weather"}).to_json()
    {'zarr_format': 2, 'attributes': {'title': 'weather'}, 'members': {}}
    """

    zarr_format: ClassVar[int] = 2
    document: ClassVar[str] = ".zgroup"

    @classmethod
    def _types(cls) -> tuple[type[ArraySpecBase[Any]], type[GroupSpecBase[Any, Any]]]:
        return ArraySpec, GroupSpec
