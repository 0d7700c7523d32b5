"""What models of groups have in common, of either Zarr format."""

from __future__ import annotations

import dataclasses
from abc import abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Generic, Self, TypeVar, cast

from virtualzarr.errors import MetadataError, UnsupportedError, VirtualZarrError
from virtualzarr.metadata import ArrayMetadata, GroupMetadata, check_name
from virtualzarr.metadata.documents import as_object, member, require_format
from virtualzarr.models.array import ArraySpecBase
from virtualzarr.models.attributes import attributes_json, typed_attributes
from virtualzarr.models.flat import nested
from virtualzarr.models.node import NodeSpec

A = TypeVar("A")
M = TypeVar("M", bound=NodeSpec)


class GroupSpecBase(NodeSpec, Generic[A, M]):
    """The structure of a group: its attributes, and the models of its members.

    Attributes
    ----------
    attributes
        A mapping, or a dataclass.
    members : mapping of str to model, or None
        None says that nobody looked, as at the depth where a reading of a hierarchy stopped.
    extra : mapping
        Further members of the document.
    metadata : GroupMetadata
        The same without the members, as the engine has it.
    """

    node_type: ClassVar[str] = "group"
    array_type: ClassVar[type[ArraySpecBase[Any]]]
    attributes: A
    members: Mapping[str, M] | None
    extra: Mapping[str, Any]
    metadata: GroupMetadata

    @classmethod
    @abstractmethod
    def _parse(cls, document: Mapping[str, Any]) -> GroupMetadata: ...

    @classmethod
    @abstractmethod
    def _written(cls, metadata: GroupMetadata) -> dict[str, Any]: ...

    def __post_init__(self) -> None:
        attributes = attributes_json(self.attributes)
        metadata = GroupMetadata(attributes, self.zarr_format, dict(self.extra))
        metadata = self._parse(self._written(metadata))  # refuses what no document may have
        for name in self.extra:
            if name not in metadata.extra:
                raise MetadataError(f"extra: {name} cannot be a further member of a group")
        _set = object.__setattr__
        if isinstance(self.attributes, Mapping):
            _set(self, "attributes", dict(self.attributes))
        _set(self, "extra", dict(metadata.extra))
        _set(self, "metadata", metadata)
        if self.members is not None:
            _set(self, "members", dict(self.members))
            for name, node in self.members.items():
                self._check(name, node)

    def _check(self, name: str, node: Any) -> None:
        with member("members"):
            check_name(name, self.zarr_format)
            if not isinstance(node, NodeSpec):
                raise MetadataError(f"{name}: must be a model, not {type(node).__name__}")
            if node.zarr_format != self.zarr_format:
                raise MetadataError(
                    f"{name}: is of Zarr v{node.zarr_format}, the group of v{self.zarr_format}"
                )

    @classmethod
    def from_json(
        cls, document: Mapping[str, Any], attributes: Callable[..., A] | None = None
    ) -> Self:
        """Return the model that a JSON object of ZEP 6 has, or a group's metadata document.

        Metadata that are consolidated in a v3 document are the members, where it has no others.

        Parameters
        ----------
        document : mapping
        attributes : type, optional
            What the attributes of the group itself are read as, and checked to be: a dataclass or
            a TypedDict.

        Raises
        ------
        MetadataError, UnsupportedError
            As for metadata documents; the message names the member, and the node.
        """
        try:
            return cls._from_json(document, attributes, "")
        except RecursionError as error:
            raise MetadataError("the hierarchy is nested too deeply") from error

    @classmethod
    def _from_json(cls, document: Any, attributes: Callable[..., A] | None, path: str) -> Self:
        try:
            document = as_object(document)
            require_format(document, cls.zarr_format)
            found = document.pop("members", None)
            metadata = cls._parse(_metadata_names(document))
            typed = typed_attributes(metadata.attributes, attributes)
            with member("members"):
                inner = None if found is None else as_object(found)
        except VirtualZarrError as error:
            raise error.at(variable=path or "/") from error.__cause__
        if inner is None:
            return cls.from_metadata(metadata, attributes)
        members: dict[str, NodeSpec] = {
            name: cls._member_from_json(node, f"{path}/{name}") for name, node in inner.items()
        }
        return cls._make(typed, members, metadata.extra)

    @classmethod
    def _member_from_json(cls, document: Any, path: str) -> NodeSpec:
        is_array = isinstance(document, Mapping) and (
            document.get("node_type") == "array" or "shape" in document
        )
        if not is_array:
            return cls._from_json(document, None, path)
        try:
            return cls.array_type.from_json(document)
        except VirtualZarrError as error:
            raise error.at(variable=path) from error.__cause__

    @classmethod
    def from_metadata(
        cls, metadata: GroupMetadata, attributes: Callable[..., A] | None = None
    ) -> Self:
        """Return the model of a group's metadata, with those that are consolidated in them."""
        if metadata.zarr_format != cls.zarr_format:
            raise UnsupportedError(
                f"the group is of Zarr v{metadata.zarr_format}, the model of v{cls.zarr_format}; "
                "convert the model"
            )
        members: Any = None
        if metadata.consolidated is not None:
            for error in metadata.consolidated.refused.values():
                raise error
            nodes = {
                path: cls._node(node) for path, node in metadata.consolidated.nodes.items() if path
            }
            members = nested(nodes, cls.empty).members
        typed = typed_attributes(metadata.attributes, attributes)
        return cls._make(typed, members, metadata.extra)

    @classmethod
    def _node(cls, metadata: ArrayMetadata | GroupMetadata) -> NodeSpec:
        if isinstance(metadata, ArrayMetadata):
            return cls.array_type.from_metadata(metadata)
        model = cls.from_metadata(metadata.replace(consolidated=None))
        return model.replace(members={})

    @classmethod
    def empty(cls) -> Self:
        """Return a group with nothing in it."""
        return cls._make({}, {}, {})

    @classmethod
    def _make(cls, attributes: Any, members: Any, extra: Mapping[str, Any]) -> Self:
        return cast(Any, cls)(attributes=attributes, members=members, extra=extra)

    @classmethod
    def from_flat(cls, nodes: Mapping[str, NodeSpec]) -> Self:
        """Return the group made of models by path, the root's being "".

        Groups that are not given, but are above others, are put in without attributes.

        Raises
        ------
        MetadataError
            A node is below an array, or the root is one.

        Examples
        --------
        >>> from virtualzarr.models import v3
        >>> x = v3.ArraySpec.new(shape=(4, 6), dtype="i4", attributes={})
        >>> list(v3.GroupSpec.from_flat({"a/b/x": x}).to_flat())
        ['', 'a', 'a/b', 'a/b/x']
        """
        root = nested(nodes, cls.empty)
        if not isinstance(root, cls):
            raise MetadataError(f"the root must be a v{cls.zarr_format} group")
        return root

    def to_flat(self) -> dict[str, NodeSpec]:
        """Return the models of this group and of all nodes in it by path, groups without members.

        The members of a group that are not known (None) stay so.
        """
        flat: dict[str, NodeSpec] = {}
        left: list[tuple[str, NodeSpec]] = [("", self)]
        while left:
            path, node = left.pop()
            flat[path] = node
            if isinstance(node, GroupSpecBase) and node.members is not None:
                flat[path] = node.replace(members={})
                below: list[tuple[str, NodeSpec]] = list(node.members.items())
                left += [(f"{path}/{name}".lstrip("/"), m) for name, m in reversed(below)]
        return flat

    def replace(self, **changes: Any) -> Self:
        """Return a copy with some members changed."""
        return dataclasses.replace(cast(Any, self), **changes)

    def to_json(self) -> dict[str, Any]:
        """Return the model as the JSON object of ZEP 6."""
        written = self._written(self.metadata)
        first = [name for name in ("zarr_format", "node_type", "attributes") if name in written]
        head: dict[str, Any] = {name: written.pop(name) for name in first}
        document: dict[str, Any] = {**head, **_model_names(written)}
        if self.members is not None:
            document["members"] = {name: node.to_json() for name, node in self.members.items()}
        return document


def _model_names(extra: Mapping[str, Any]) -> dict[str, Any]:
    """Rename a further member called `members`, which in a model is something else.

    Source: ZEP 6: underscores are put before it until the name is free.

    Raises
    ------
    UnsupportedError
        There is `_members` without `members`: it would be taken for the renamed one.
    """
    if "members" in extra:
        name = _free(extra)
        return {name if key == "members" else key: value for key, value in extra.items()}
    if "_members" in extra:
        raise UnsupportedError(
            "_members: in the JSON of a model that name stands for a renamed 'members', "
            "which the group's document does not have"
        )
    return dict(extra)


def _metadata_names(document: Mapping[str, Any]) -> dict[str, Any]:
    """Give the member that a model had to rename its own name `members` again."""
    name = _free(document).removeprefix("_")
    if name == "members":
        return dict(document)
    return {"members" if key == name else key: value for key, value in document.items()}


def _free(names: Mapping[str, Any]) -> str:
    name = "_members"
    while name in names:
        name = f"_{name}"
    return name
