"""Base class of the models of groups, of either Zarr format."""

from __future__ import annotations

import functools
from abc import abstractmethod
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Self

from virtualzarr.errors import MetadataError, UnsupportedError, error_context
from virtualzarr.metadata import ArrayMetadata, GroupMetadata, check_name, normalize_path
from virtualzarr.metadata.create.group import create_group_metadata
from virtualzarr.metadata.json_documents import as_object, member, require_format
from virtualzarr.metadata.node_documents import parse_group, split_json, to_json
from virtualzarr.models.array import NOTHING, A, ArraySpecBase
from virtualzarr.models.node import NodeSpec
from virtualzarr.models.typed import validate

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    from virtualzarr.hierarchy.group import Group

    _Node = NodeSpec[Group]
    M = TypeVar("M", bound=Mapping[str, object] | None, default=Any, covariant=True)
else:
    from typing import TypeVar

    _Node = NodeSpec
    M = TypeVar("M", covariant=True)


class GroupSpecBase(_Node, Generic[A, M]):
    """The structure of a group: its attributes, and the models of its members.

    Parameters
    ----------
    attributes
        A mapping, or a dataclass.
    members : mapping of str to model, or None
        For type checkers also a TypedDict, which names them. None says that nobody looked, as at
        the depth where a reading of a hierarchy stopped.
    extra : mapping
        Further members of the document.
    """

    node_type: ClassVar[str] = "group"
    metadata: GroupMetadata

    if not TYPE_CHECKING:

        def __class_getitem__(cls, kinds: Any) -> Any:
            # As type checkers have it: whoever declares attributes only has members of any kind.
            kinds = kinds if isinstance(kinds, tuple) else (kinds,)
            missing = len(cls.__parameters__) - len(kinds)
            return super().__class_getitem__((*kinds, *[Any] * missing))

    def __init__(
        self, *, attributes: A = NOTHING, members: M = NOTHING, extra: Mapping[str, Any] = NOTHING
    ) -> None:
        metadata = create_group_metadata(attributes, self.zarr_format, extra)
        # Copies, as models do not change, and the caller's mappings may.
        values: Any = dict(attributes) if isinstance(attributes, Mapping) else attributes
        nodes: Any = None if members is None else dict(members)
        vars(self).update(metadata=metadata, attributes=values, members=nodes)
        for name, node in (nodes or {}).items():
            self._check(name, node)
        if any(self._declared()):
            self.cast(self)

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
    @abstractmethod
    def _types(cls) -> tuple[type[ArraySpecBase[Any]], type[GroupSpecBase[Any, Any]]]:
        """Return the classes of members whose types are not declared."""

    @functools.cached_property
    def attributes(self) -> A:
        """A mapping, or a dataclass."""
        return self._json["attributes"]

    @functools.cached_property
    def members(self) -> M:
        """The models of members by name; None where nobody looked."""
        consolidated = self.metadata.consolidated
        if consolidated is None:
            return None  # type: ignore[return-value]
        # A model without the broken member would be created without it: an error instead.
        for error in consolidated.skipped.values():
            raise error
        array, group = self._types()
        nodes = {
            path: array._of(node)
            if isinstance(node, ArrayMetadata)
            else group._of(node, members={})
            for path, node in consolidated.nodes.items()
            if path
        }
        return nest(nodes, group.empty).members

    @property
    def extra(self) -> Mapping[str, Any]:
        """Further members of the document."""
        return self.metadata.extra

    @classmethod
    def _of(cls, metadata: GroupMetadata, *kinds: Any, **fields: Any) -> Self:
        """Return the model of metadata, with members if they are given."""
        # Past __init__, which parses and checks: metadata have been checked already.
        spec = object.__new__(cls)
        vars(spec).update(metadata=metadata, **fields)
        attributes, members = cls._declared(*kinds)
        if attributes is not None:
            with member("attributes"):
                vars(spec)["attributes"] = validate(dict(metadata.attributes), attributes)
        if members is not None and spec.members is not None:
            with member("members"):
                vars(spec)["members"] = validate(spec.members, members)
        return spec

    @classmethod
    def from_documents(cls, documents: Mapping[str, Any]) -> Self:
        """Return the model that documents have, by the names they are stored under."""
        return cls._of(parse_group(documents, cls.zarr_format))

    @classmethod
    def from_json(
        cls,
        document: Mapping[str, Any],
        attributes: Callable[..., A] | None = None,
        members: type[M] | None = None,
    ) -> Self:
        """Return the model that a JSON object of ZEP 6 has, or a group's metadata document.

        Metadata that are consolidated in a v3 document are the members, where it has no others.

        Parameters
        ----------
        document : mapping
        attributes : type, optional
            What the attributes of the group itself are read as, and checked to be: a dataclass or
            a TypedDict.
        members : type, optional
            What the members are read as, and checked to be: a TypedDict of models.

        Raises
        ------
        MetadataError, UnsupportedError
            As for metadata documents; the message names the member, and the node.

        Examples
        --------
        >>> from typing import TypedDict
        >>> from virtualzarr.models import v3
        >>> Members = TypedDict("Members", {"a": v3.GroupSpec})
        >>> document = {"zarr_format": 3, "node_type": "group", "attributes": {}, "members": {}}
        >>> v3.GroupSpec.from_json(document, members=Members)
        Traceback (most recent call last):
        virtualzarr.errors.MetadataError: members: a: this mandatory member is missing
        """
        # Depth is bounded by Python's stack only: that error becomes one about the document.
        try:
            # By the plain class first: members are of declared types only once they are cast.
            plain = cls._types()[1]._from_json(document, "")
        except RecursionError as error:
            raise MetadataError("the hierarchy is nested too deeply") from error
        return cls.cast(plain, attributes, members)

    @classmethod
    def _from_json(cls, document: Any, path: str) -> Self:
        with error_context(variable=path or "/"):
            document = as_object(document)
            require_format(document, cls.zarr_format)
            members = document.pop("members", None)
            documents = split_json(_metadata_names(document), cls.document)
            metadata = parse_group(documents, cls.zarr_format)
            with member("members"):
                inner = None if members is None else as_object(members)
                for name in inner or ():
                    check_name(name, cls.zarr_format)
        if inner is None:
            return cls._of(metadata)
        nodes = {name: cls._member(node, f"{path}/{name}") for name, node in inner.items()}
        return cls._of(metadata, members=nodes)

    @classmethod
    def _member(cls, document: Any, path: str) -> NodeSpec:
        # v2 has no node_type in its JSON: in ZEP 6, too, only a shape tells arrays.
        is_array = isinstance(document, Mapping) and (
            document.get("node_type") == "array" or "shape" in document
        )
        if not is_array:
            return cls._from_json(document, path)
        with error_context(variable=path):
            return cls._types()[0].from_json(document)

    @classmethod
    def from_metadata(
        cls,
        metadata: GroupMetadata,
        attributes: Callable[..., A] | None = None,
        members: type[M] | None = None,
    ) -> Self:
        """Return the model of a group's metadata, with those that are consolidated in them."""
        cls._check_format(metadata)
        return cls._of(metadata, attributes, members)

    @classmethod
    def cast(cls, node: Any, *kinds: Any) -> Self:
        """Return a model as one of this class, with attributes and members of declared types."""
        if not isinstance(node, GroupSpecBase) or node.zarr_format != cls.zarr_format:
            raise MetadataError(f"must be a group of Zarr v{cls.zarr_format}")
        return cls._of(node.metadata, *kinds, members=node.members)

    @classmethod
    def empty(cls) -> Self:
        """Return a group with nothing in it."""
        return cls._of(GroupMetadata(zarr_format=cls.zarr_format), members={})

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
        root = nest(nodes, cls._types()[1].empty)
        if root.node_type != "group":
            raise MetadataError(f"the root must be a v{cls.zarr_format} group")
        return cls.cast(root)

    def to_flat(self) -> dict[str, NodeSpec]:
        """Return the models of this group and of all nodes in it by path, groups without members.

        The members of a group that are not known (None) stay so.
        """
        flat: dict[str, NodeSpec] = {}
        # A stack, onto which members go reversed, so that they come off in their order.
        remaining: list[tuple[str, NodeSpec]] = [("", self)]
        while remaining:
            path, node = remaining.pop()
            flat[path] = node
            if isinstance(node, GroupSpecBase) and node.members is not None:
                flat[path] = node._types()[1]._of(node.metadata, members={})
                members: list[tuple[str, NodeSpec]] = list(node.members.items())
                remaining += [(f"{path}/{name}".lstrip("/"), m) for name, m in reversed(members)]
        return flat

    def to_json(self) -> dict[str, Any]:
        """Return the model as the JSON object of ZEP 6."""
        document = _model_names(to_json(self.metadata))
        members: Any = self.members
        if members is not None:
            document["members"] = {name: node.to_json() for name, node in members.items()}
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
        name = _free_name(extra)
        return {name if key == "members" else key: value for key, value in extra.items()}
    if "_members" in extra:
        raise UnsupportedError(
            "_members: in the JSON of a model that name stands for a renamed 'members', "
            "which the group's document does not have"
        )
    return dict(extra)


def _metadata_names(document: Mapping[str, Any]) -> dict[str, Any]:
    """Give the member that a model had to rename its own name `members` again."""
    name = _free_name(document).removeprefix("_")
    if name == "members":
        return dict(document)
    return {"members" if key == name else key: value for key, value in document.items()}


def _free_name(names: Mapping[str, Any]) -> str:
    name = "_members"
    while name in names:
        name = f"_{name}"
    return name


def nest(nodes: Mapping[str, NodeSpec], empty: Callable[[], Any]) -> Any:
    """Return the root of a hierarchy, with groups put in where none is given.

    Parameters
    ----------
    nodes : mapping
        By path, in any order.
    empty : callable
        Returns a new group.
    """
    by_path: dict[str, NodeSpec] = {}
    for path, node in nodes.items():
        path = normalize_path(path)
        if path in by_path:
            raise MetadataError(f"{path or '/'}: two models are given for one path")
        by_path[path] = node
    by_path.setdefault("", empty())
    # Up to the root from every node: any group on the way may have been left out.
    for path in list(by_path):
        while path:
            path = path.rpartition("/")[0]
            if by_path.setdefault(path, empty()).node_type == "array":
                raise MetadataError(f"{path or '/'}: is an array, but there is a node below it")
    # From the deepest up: models do not change, so a group is complete before it is put into
    # another. Members of one group stay in the order given.
    members: dict[str, dict[str, NodeSpec]] = {}
    for path in sorted(by_path, key=lambda path: (path == "", -path.count("/"))):
        model: Any = by_path[path]
        if path in members:
            model = model.replace(members={**(model.members or {}), **members[path]})
        if not path:
            return model
        parent, _, name = path.rpartition("/")
        members.setdefault(parent, {})[name] = model
    raise AssertionError("the root is always there")
