"""What models of arrays have in common, of either Zarr format."""

from __future__ import annotations

import dataclasses
from abc import abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Generic, Self, TypeVar, cast

import numpy as np

from virtualzarr.errors import MetadataError, UnsupportedError
from virtualzarr.metadata import ArrayMetadata
from virtualzarr.metadata.documents import as_object, require, require_format
from virtualzarr.metadata.new import Wishes, new_array
from virtualzarr.models.attributes import attributes_json, typed_attributes
from virtualzarr.models.node import NodeSpec

A = TypeVar("A")


class ArraySpecBase(NodeSpec, Generic[A]):
    """The structure of an array: the members of its document, checked against one another.

    Attributes
    ----------
    attributes
        A mapping, or a dataclass.
    extra : mapping
        Members of the document that mean nothing to this package.
    metadata : ArrayMetadata
        The same, as the engine has it.
    """

    node_type: ClassVar[str] = "array"
    attributes: A
    extra: Mapping[str, Any]
    metadata: ArrayMetadata

    @classmethod
    @abstractmethod
    def _repaired(cls, document: Mapping[str, Any]) -> dict[str, Any]: ...

    @classmethod
    @abstractmethod
    def _parse(cls, document: Mapping[str, Any]) -> ArrayMetadata: ...

    @classmethod
    @abstractmethod
    def _written(cls, metadata: ArrayMetadata) -> dict[str, Any]: ...

    def __post_init__(self) -> None:
        names = self._names()
        document = {name: getattr(self, name) for name in names}
        document = {name: value for name, value in document.items() if name != "extra"}
        document["attributes"] = attributes_json(self.attributes)
        document = {**self.extra, **self._head(), **_plain(document)}
        metadata = self._parse(self._repaired(document))
        # As it is written again: what means the same is the same.
        written = self._written(metadata)
        for name in names:
            if name not in ("attributes", "extra"):
                object.__setattr__(self, name, _frozen(written.get(name)))
        if isinstance(self.attributes, Mapping):
            object.__setattr__(self, "attributes", dict(self.attributes))
        for name in self.extra:
            if name not in metadata.extra:
                raise MetadataError(f"extra: {name} cannot be a further member of an array")
        object.__setattr__(self, "extra", dict(metadata.extra))
        object.__setattr__(self, "metadata", metadata)

    @classmethod
    def _names(cls) -> list[str]:
        return [field.name for field in dataclasses.fields(cast(Any, cls)) if field.init]

    @classmethod
    def _head(cls) -> dict[str, Any]:
        kind = {"node_type": cls.node_type} if cls.zarr_format == 3 else {}
        return {"zarr_format": cls.zarr_format, **kind}

    @classmethod
    def from_json(
        cls, document: Mapping[str, Any], attributes: Callable[..., A] | None = None
    ) -> Self:
        """Return the model that a JSON object of ZEP 6 has, or a metadata document.

        Parameters
        ----------
        document : mapping
        attributes : type, optional
            What the attributes are read as, and checked to be: a dataclass or a TypedDict.

        Raises
        ------
        MetadataError, UnsupportedError
            As for the metadata documents of arrays; the message names the member.
        """
        document = as_object(document)
        require_format(document, cls.zarr_format)
        require(document, "shape")
        parsed = cls._parse(cls._repaired(document))
        return cls._of(parsed, attributes)

    @classmethod
    def _of(cls, metadata: ArrayMetadata, attributes: Callable[..., A] | None) -> Self:
        written = cls._written(metadata)
        values = {name: written[name] for name in cls._names() if name in written}
        values["extra"] = metadata.extra
        values["attributes"] = typed_attributes(written.get("attributes", {}), attributes)
        return cast(Any, cls)(**values)

    @classmethod
    def from_metadata(
        cls, metadata: ArrayMetadata, attributes: Callable[..., A] | None = None
    ) -> Self:
        """Return the model of an array's metadata.

        Raises
        ------
        UnsupportedError
            They are of the other Zarr format: that is for `to_v2` and `to_v3`.
        """
        if metadata.zarr_format != cls.zarr_format:
            raise UnsupportedError(
                f"the array is of Zarr v{metadata.zarr_format}, the model of v{cls.zarr_format}; "
                "convert the model"
            )
        return cls._of(metadata, attributes)

    @classmethod
    def new(cls, *, attributes: A, **wishes: Any) -> Self:
        """Return the model of a new array, from the arguments of `virtualzarr.create_array`.

        Whatever is left open is chosen, such as chunks and codecs.
        """
        plain = attributes_json(attributes)
        wanted = Wishes(**wishes, attributes=plain, zarr_format=cls.zarr_format)
        model = cls._of(new_array(wanted), None)
        if isinstance(attributes, Mapping):
            return model  # which has dimension names in v2's attributes
        return model.replace(attributes=attributes)

    def replace(self, **changes: Any) -> Self:
        """Return a copy with some members changed."""
        return dataclasses.replace(cast(Any, self), **changes)

    def to_json(self) -> dict[str, Any]:
        """Return the model as the JSON object of ZEP 6."""
        written = self._written(self.metadata)
        for name in self._head():
            written.pop(name)
        attributes = written.pop("attributes")
        return {**self._head(), "attributes": attributes, **written}


def _plain(value: Any) -> Any:
    """Return a value with lists for tuples, and numpy's numbers as Python's."""
    if isinstance(value, Mapping):
        return {name: _plain(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value.item() if isinstance(value, np.generic) else value


def _frozen(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value
