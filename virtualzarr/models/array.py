"""Base class of the models of arrays, of either Zarr format."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Self

from virtualzarr.errors import MetadataError
from virtualzarr.keywords import strict_keywords
from virtualzarr.metadata import ArrayMetadata
from virtualzarr.metadata.create import ArrayParams, create_array_metadata, to_plain_json
from virtualzarr.metadata.create.group import to_json_attributes
from virtualzarr.metadata.json_documents import member
from virtualzarr.metadata.node_documents import array_from_json, parse_array, to_json
from virtualzarr.models.node import NodeSpec
from virtualzarr.models.typed import validate

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    from virtualzarr.array import Array

    _Node = NodeSpec[Array]
    A = TypeVar("A", default=Any)
else:
    from typing import TypeVar

    _Node = NodeSpec
    A = TypeVar("A")

NOTHING: Any = MappingProxyType({})


class ArraySpecBase(_Node, Generic[A]):
    """The structure of an array: the members of its document, checked against one another."""

    node_type: ClassVar[str] = "array"
    metadata: ArrayMetadata

    def _build(self, attributes: A, extra: Mapping[str, Any], members: dict[str, Any]) -> None:
        """Check the parameters of a new model against one another."""
        head = {"zarr_format": self.zarr_format, "node_type": self.node_type}
        document = {
            **extra,
            **head,
            **to_plain_json(members),
            "attributes": to_json_attributes(attributes),
        }
        # v2 tells arrays from groups by the name of the document.
        if self.zarr_format == 2:
            del document["node_type"]
        # By the parser of stored documents: what a model accepts is what can be opened.
        metadata = array_from_json(document, self.zarr_format)
        # What the parser gave a meaning is no further member, and would be lost among the extra.
        for name in extra:
            if name not in metadata.extra:
                raise MetadataError(f"extra: {name} cannot be a further member of an array")
        values: Any = dict(attributes) if isinstance(attributes, Mapping) else attributes
        # Past __setattr__, which refuses: models do not change after this.
        vars(self).update(metadata=metadata, attributes=values)
        with member("attributes"):
            validate(document["attributes"], self._declared()[0])

    @classmethod
    def _of(cls, metadata: ArrayMetadata, *kinds: Any) -> Self:
        """Return the model of metadata, whose members are spelled out when they are asked for."""
        # Past __init__: metadata are checked already, and members are spelled out lazily.
        spec = object.__new__(cls)
        vars(spec)["metadata"] = metadata
        kind = cls._declared(*kinds)[0]
        if kind is not None:
            with member("attributes"):
                vars(spec)["attributes"] = validate(spec._json["attributes"], kind)
        return spec

    @functools.cached_property
    def attributes(self) -> A:
        """A mapping, or a dataclass; of v2 with the dimension names in them."""
        return self._json["attributes"]

    @property
    def extra(self) -> Mapping[str, Any]:
        """Members of the document that mean nothing to this package."""
        return self.metadata.extra

    @property
    def shape(self) -> tuple[int, ...]:
        """Elements along each axis."""
        return self.metadata.shape

    @property
    def fill_value(self) -> Any:
        """What elements never written are, in JSON."""
        return self._json["fill_value"]

    @classmethod
    def from_documents(cls, documents: Mapping[str, Any]) -> Self:
        """Return the model that documents have, by the names they are stored under."""
        return cls._of(parse_array(documents, cls.zarr_format))

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
        return cls._of(array_from_json(document, cls.zarr_format), attributes)

    @classmethod
    def from_metadata(
        cls, metadata: ArrayMetadata, attributes: Callable[..., A] | None = None
    ) -> Self:
        """Return the model of an array's metadata.

        Raises
        ------
        UnsupportedError
            They have no form in documents, or are of the other Zarr format: that is for
            `to_format`.
        """
        cls._check_format(metadata)
        spec = cls._of(metadata, attributes)
        assert spec._json  # made now, so that what has no form is refused now
        return spec

    @classmethod
    def cast(cls, node: Any, *kinds: Any) -> Self:
        """Return a model as one of this class, with attributes of the declared type."""
        if not isinstance(node, ArraySpecBase) or node.zarr_format != cls.zarr_format:
            raise MetadataError(f"must be an array of Zarr v{cls.zarr_format}")
        return cls._of(node.metadata, *kinds)

    @classmethod
    @strict_keywords(ArrayParams)
    def new(cls, *, attributes: A = NOTHING, **params: Any) -> Self:
        """Return the model of a new array, from the arguments of `virtualzarr.create_array`.

        Whatever is left open is chosen, such as chunks and codecs.
        """
        plain = to_json_attributes(attributes)
        members: Any = {**params, "attributes": plain, "zarr_format": cls.zarr_format}
        spec = cls.from_metadata(create_array_metadata(members))
        if not isinstance(attributes, Mapping):  # those have dimension names in v2's attributes
            vars(spec)["attributes"] = attributes
        return spec

    def to_json(self) -> dict[str, Any]:
        """Return the model as the JSON object of ZEP 6."""
        return to_json(self.metadata)
