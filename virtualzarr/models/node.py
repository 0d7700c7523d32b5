"""Base class of the models of arrays and groups: documents, types, comparison, creation."""

from __future__ import annotations

import functools
import inspect
import json
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Self, cast, get_args, get_origin

from virtualzarr.errors import UnsupportedError
from virtualzarr.metadata import ArrayMetadata, GroupMetadata
from virtualzarr.metadata.compare_documents import compare_documents
from virtualzarr.metadata.json_documents import is_same_json
from virtualzarr.metadata.node_documents import Documents, to_documents, to_json

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    from virtualzarr.array import Array
    from virtualzarr.hierarchy.group import Group

    N = TypeVar("N", default=Array | Group, covariant=True)
else:
    from typing import TypeVar

    N = TypeVar("N", covariant=True)


class NodeSpec(ABC, Generic[N]):
    """The structure of an array or of a group with its members, without data and without a store.

    It is metadata, as documents of one Zarr format spell them. Two models are equal where their
    JSON forms are.

    Source: ZEP 6, Zarr object models.

    Attributes
    ----------
    attributes
        A mapping, or a dataclass.
    extra : mapping
        Members of the document that mean nothing to this package.
    metadata : ArrayMetadata or GroupMetadata
        The same, as the engine has it.
    """

    zarr_format: ClassVar[int]
    node_type: ClassVar[str]
    document: ClassVar[str]
    """The name of the document that makes a node."""
    _kinds: ClassVar[tuple[Any, ...]] = ()
    """What a subclass declares attributes, and members, to be."""

    metadata: ArrayMetadata | GroupMetadata

    def __init_subclass__(cls, **options: Any) -> None:
        # Type arguments exist at run time only in __orig_bases__; a TypeVar there is undeclared.
        super().__init_subclass__(**options)
        for base in vars(cls).get("__orig_bases__", ()):
            origin = get_origin(base)
            if isinstance(origin, type) and issubclass(origin, NodeSpec):
                kinds = get_args(base)
                cls._kinds = tuple(None if isinstance(kind, TypeVar) else kind for kind in kinds)

    # -- documents ---------------------------------------------------------------------------

    @classmethod
    @abstractmethod
    def from_documents(cls, documents: Mapping[str, Any]) -> Self:
        """Return the model that documents have, by the names they are stored under.

        Raises
        ------
        MetadataError, UnsupportedError
            A document breaks its specification, or needs what this package does not have; the
            message names the member.
        """

    @classmethod
    def _check_format(cls, metadata: ArrayMetadata | GroupMetadata) -> None:
        if metadata.zarr_format != cls.zarr_format:
            raise UnsupportedError(
                f"the {cls.node_type} is of Zarr v{metadata.zarr_format}, the model of "
                f"v{cls.zarr_format}; convert the model"
            )

    def to_documents(self) -> Documents:
        """Return the documents of the node alone, by the names they are stored under."""
        return to_documents(self.metadata)

    @abstractmethod
    def to_json(self) -> dict[str, Any]:
        """Return the model as the JSON object of ZEP 6."""

    def to_flat(self) -> dict[str, NodeSpec[Any]]:
        """Return the models of this node, at "", and of all nodes in it by path."""
        return {"": self}

    @functools.cached_property
    def _json(self) -> dict[str, Any]:
        # Members are spelled out when first asked for: most models are only passed on.
        return to_json(self.metadata)

    # -- types -------------------------------------------------------------------------------

    @classmethod
    @abstractmethod
    def cast(cls, node: Any, *kinds: Any) -> Self:
        """Return a model as one of this class, with attributes and members of declared types.

        Parameters
        ----------
        node : NodeSpec
        *kinds : type
            Of the attributes, and for groups of the members; by default what the class declares.

        Raises
        ------
        MetadataError
            It is another kind of node, or something in it is not of its type.
        """

    @classmethod
    def _declared(cls, *kinds: Any) -> tuple[Any, ...]:
        """Return the types of attributes and members: those given, or those of the class."""
        defaults, explicit = (*cls._kinds, None, None), (*kinds, None, None)
        return tuple(defaults[i] if explicit[i] is None else explicit[i] for i in range(2))

    @classmethod
    def read(cls, node: Any, path: str = "", *, depth: int | None = None, **options: Any) -> Self:
        """Return the model of a hierarchy, checked to be one of this class.

        The parameters are those of `virtualzarr.models.hierarchy.read`.

        Examples
        --------
        >>> from typing import TypedDict
        >>> import virtualzarr as vz
        >>> from virtualzarr.models import v3
        >>> class Title(TypedDict):
        ...     title: str
        >>> class Titled(v3.GroupSpec[Title]):
        ...     pass
        >>> Titled.read(vz.create_group({}, attributes={"title": "weather"})).attributes["title"]
        'weather'
        >>> Titled.read(vz.create_group({}))
        Traceback (most recent call last):
        virtualzarr.errors.MetadataError: attributes: title: this mandatory member is missing
        """
        from virtualzarr.models.hierarchy import read

        return cls.cast(read(node, path, depth=depth, **options))

    # -- comparison --------------------------------------------------------------------------

    def differences(
        self, other: Any, *, include: Collection[str] | None = None, exclude: Collection[str] = ()
    ) -> list[str]:
        """Return in what another hierarchy differs from this one, a line for each member.

        Members of a group that one of the two does not know (``members=None``) are not compared.

        Parameters
        ----------
        other : NodeSpec, Array, Group, or what `virtualzarr.open` opens
        include, exclude : collection of str, optional
            Names of members of nodes, such as ``"attributes"`` or ``"shape"``: only these, or all
            but these, are compared.

        Examples
        --------
        >>> from virtualzarr.models import v3
        >>> a = v3.ArraySpec.new(shape=(4, 6), dtype="i4", attributes={"units": "K"})
        >>> b = v3.ArraySpec.new(shape=(5, 6), dtype="i4", chunks=(4, 6), attributes={})
        >>> for line in a.differences(b):
        ...     print(line)
        /: attributes: units: 'K' here, missing there
        /: shape: [4, 6] here, [5, 6] there
        """
        # Imported here, as what opens targets needs models to return.
        if not isinstance(other, NodeSpec):
            from virtualzarr.models.hierarchy import read

            other = read(other)
        return list(compare_documents(self.to_json(), other.to_json(), include, exclude))

    def like(
        self, other: Any, *, include: Collection[str] | None = None, exclude: Collection[str] = ()
    ) -> bool:
        """Tell whether another hierarchy has the same structure; see `differences`."""
        return not self.differences(other, include=include, exclude=exclude)

    def to_format(self, zarr_format: int, *, new_keys: bool = False) -> Any:
        """Return the model of the same hierarchy in another Zarr format, with plain attributes.

        Chunks stay where they are: their keys are the same.

        Parameters
        ----------
        zarr_format : {2, 3}
        new_keys : bool
            Whether chunks get the keys that are usual in that format, instead.

        Raises
        ------
        UnsupportedError
            Something has no exact form there; the message names the first such member.

        Examples
        --------
        >>> from virtualzarr.models import v2
        >>> old = v2.ArraySpec.new(shape=(4, 6), dtype=">i4", attributes={}, dimension_names="xy")
        >>> new = old.to_format(3)
        >>> new.data_type, new.dimension_names, new.chunk_key_encoding["name"]
        ('int32', ('x', 'y'), 'v2')
        >>> new.to_format(2) == old
        True
        """
        from virtualzarr.models.convert import convert

        return convert(self, zarr_format, new_keys=new_keys)

    # -- stores ------------------------------------------------------------------------------

    def create(
        self,
        store: Any,
        path: str = "",
        *,
        overwrite: bool = False,
        consolidate: bool = False,
        storage_options: dict[str, Any] | None = None,
    ) -> N:
        """Make the hierarchy in a store, groups before what is in them.

        Parameters
        ----------
        store : path, URL, mutable mapping or store
        path : str
            Where in the store; groups above it that are not there are made.
        overwrite : bool
            Whether a node that is there already is deleted, with everything in it.
        consolidate : bool
            Whether the metadata of a group are consolidated at the end.

        Raises
        ------
        NodeExistsError
            There is a node already.

        Examples
        --------
        >>> from virtualzarr.models import v3
        >>> array = v3.ArraySpec.new(shape=(4, 6), dtype="i4", attributes={})
        >>> model = v3.GroupSpec(attributes={}, members={"x": array})
        >>> model.create({})
        <Group: 1 member>
        """
        from virtualzarr.models.hierarchy import create

        options = {"overwrite": overwrite, "consolidate": consolidate}
        return cast(N, create(self, store, path, storage_options=storage_options, **options))

    # -- values ------------------------------------------------------------------------------

    def replace(self, **changes: Any) -> Self:
        """Return a copy with some members changed."""
        # Through __init__: what is changed is checked against what stays.
        values = {name: getattr(self, name) for name in parameters(type(self))}
        return type(self)(**{**values, **changes})

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(f"{name}: a model does not change; replace() returns one that differs")

    def __repr__(self) -> str:
        values = (f"{name}={getattr(self, name)!r}" for name in parameters(type(self)))
        return f"{type(self).__name__}({', '.join(values)})"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, NodeSpec):
            return NotImplemented
        return is_same_json(self.to_json(), other.to_json())

    def __hash__(self) -> int:
        # Equal models must have one hash: members in any order are one object.
        return hash(json.dumps(self.to_json(), sort_keys=True))


@functools.cache
def parameters(model: type[NodeSpec]) -> tuple[str, ...]:
    """Return the names of the parameters that a class of models is made with."""
    return tuple(inspect.signature(model).parameters)
