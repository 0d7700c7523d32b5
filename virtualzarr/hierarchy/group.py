"""The Group class: named arrays and groups, with attributes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, MutableMapping
from typing import TYPE_CHECKING, Any, TypeVar, Unpack, overload

from virtualzarr.array import Array
from virtualzarr.array.read.cache_policy import CachePolicy
from virtualzarr.display import text as group_text
from virtualzarr.errors import MissingPropertyError, NodeNotFoundError, VirtualZarrError
from virtualzarr.hierarchy.create import create_array, open_array
from virtualzarr.hierarchy.resolve import resolve
from virtualzarr.keywords import strict_keywords
from virtualzarr.metadata import GroupMetadata, normalize_path
from virtualzarr.metadata.create import ArrayParams
from virtualzarr.metadata.create.group import create_group_metadata
from virtualzarr.nodes import copy_nodes, write_nodes
from virtualzarr.nodes.attributes import Attributes
from virtualzarr.nodes.consolidated import consolidate
from virtualzarr.nodes.documents import validate_path
from virtualzarr.nodes.publishable import Publishable

if TYPE_CHECKING:
    from virtualzarr.models.node import NodeSpec
    from virtualzarr.stores import Store

CACHING = {"cache", "recheck_cached_metadata", "recheck_cached_data"}

Node = "Array | Group"
T = TypeVar("T", bound="Array | Group")


class Group(Mapping[str, "Array | Group"], Publishable):
    """Named arrays and groups.

    Parameters
    ----------
    attributes : mapping
    members : mapping of str to Array or Group
        May be lazy: nodes are asked for when they are used.
    path : str
        Name within the hierarchy.
    skipped : mapping of str to str
        Variables that could not be virtualized, by path, and why.

    Attributes
    ----------
    ignored_keys : int
        Keys of a reference file that are neither metadata nor chunks in an array's grid.

    Examples
    --------
    >>> g = Group({"title": "weather"}, {"inner": Group({}, {})})
    >>> g["inner"], list(g)
    (<Group inner: 0 members>, ['inner'])
    """

    def __init__(
        self,
        attributes: Mapping[str, Any] | None = None,
        members: Mapping[str, Array | Group] | None = None,
        path: str = "",
        skipped: Mapping[str, str] | None = None,
    ) -> None:
        self.attributes = dict(attributes or {})
        self.path = path
        self.skipped = dict(skipped or {})
        self.ignored_keys = 0
        self.cache_policy: CachePolicy | None = None  # what the arrays in it are read with
        self._members = {} if members is None else members

    @property
    def attrs(self) -> MutableMapping[str, Any]:
        """The group's attributes; of a stored group, what is set is written at once."""
        # Only the members of stored groups have a store: a group itself is any mapping of nodes.
        store = getattr(self._members, "store", None)
        if store is None:
            return self.attributes
        return Attributes(self.attributes, store, self.path, self.zarr_format)

    @property
    def metadata(self) -> GroupMetadata:
        """What the group's document says, or would say if the group were stored."""
        stored: GroupMetadata = getattr(self._members, "metadata", None) or GroupMetadata()
        # Attributes were set after the document was read: those here are newer.
        return stored.replace(attributes=self.attributes)

    @property
    def zarr_format(self) -> int:
        """The Zarr format of a stored group; 3 for others."""
        metadata = getattr(self._members, "metadata", None)
        return 3 if metadata is None else metadata.zarr_format

    @property
    def store(self) -> Store:
        """The store that the group lies in.

        Raises
        ------
        MissingPropertyError
            It lies in none: it is virtual. (This is an `AttributeError`, too: ``hasattr`` tells.)
        """
        store = getattr(self._members, "store", None)
        if store is None:
            raise MissingPropertyError(
                "the group is not stored, so that its members cannot be changed; "
                "virtualzarr.create_group makes one that is",
                variable=self.path or "/",
            )
        return store

    @property
    def name(self) -> str:
        """Last part of the path."""
        return self.path.rsplit("/", 1)[-1]

    @overload
    def __getitem__(self, path: str) -> Array | Group: ...
    @overload
    def __getitem__(self, path: list[str]) -> Group: ...
    def __getitem__(self, path: str | list[str]) -> Array | Group:
        """Return the member under a name, or a path of names with ``/`` between them.

        For a list of names, the group of these members only, which is not stored.
        """
        if isinstance(path, list):
            return self._select(path)
        if not isinstance(path, str):
            raise TypeError(f"a member is named by text, not by {type(path).__name__}")
        node: Array | Group = self
        names = [name for name in path.split("/") if name]
        for name in names:
            # An array on the way, as in "x/y", is told as any other path that leads nowhere.
            try:
                if not isinstance(node, Group):
                    raise KeyError(name)
                node = node._members[name]
            except KeyError as error:
                raise self._not_found_error(path) from error
        return self._with_cache_policy(node.with_path(self._join("/".join(names))))

    def _select(self, names: list[str]) -> Group:
        if inner := [name for name in names if "/" in str(name).strip("/")]:
            raise ValueError(f"{inner[0]!r} lies in an inner group: choose there, or drop others")
        # Through the group itself, so that a missing name is its error, with a hint.
        members = {name.strip("/"): self[name] for name in names}
        selected = Group(self.attributes, members, self.path)
        selected.cache_policy = self.cache_policy
        return selected

    def _ipython_key_completions_(self) -> list[str]:
        """Return the names that are offered where a key is typed."""
        return list(self)

    def _not_found_error(self, path: str) -> NodeNotFoundError:
        reason = self.skipped.get(path.strip("/"))
        if reason:
            return NodeNotFoundError(f"{path!r} could not be virtualized: {reason}")
        try:
            hint = f"there is {', '.join(list(self)[:10]) or 'nothing'}"
        except VirtualZarrError as error:
            hint = error.message  # a store that cannot list must not hide what is missing
        return NodeNotFoundError(f"no array or group {path!r} in /{self.path}; {hint}")

    def _join(self, path: str) -> str:
        return f"{self.path}/{path.strip('/')}".strip("/")

    def with_path(self, path: str) -> Group:
        """Return the same group under another name."""
        return self.replace(path=path)

    def replace(
        self,
        attributes: Mapping[str, Any] | None = None,
        members: Mapping[str, Array | Group] | None = None,
        *,
        path: str | None = None,
        skipped: Mapping[str, str] | None = None,
    ) -> Group:
        """Return a group with other parts; whatever is not given is that of this group.

        Examples
        --------
        >>> Group({"title": "weather"}, path="a").replace({"title": "climate"})
        <Group a: 0 members>
        """
        group = Group(
            self.attributes if attributes is None else attributes,
            self._members if members is None else members,
            self.path if path is None else path,
            self.skipped if skipped is None else skipped,
        )
        group.cache_policy = self.cache_policy
        group.ignored_keys = self.ignored_keys
        return group

    def map_arrays(self, function: Callable[[Array], Array]) -> Group:
        """Return a group with what a function makes of each array, also in groups further down.

        Parameters
        ----------
        function : callable
            Gets an array and returns an array; nothing else changes.

        Examples
        --------
        >>> import virtualzarr as vz
        >>> group = vz.create_group({})
        >>> x = group.create_array("inner/x", shape=(4,), dtype="i2")
        >>> group.map_arrays(lambda array: array.lazy[:2])["inner/x"]
        <Array inner/x (2,) int16, 1 chunk, virtual>
        """
        members: dict[str, Array | Group] = {}
        for name in self:
            node = self[name]
            members[name] = function(node) if isinstance(node, Array) else node.map_arrays(function)
        return self.replace(members=members)

    def __iter__(self) -> Iterator[str]:
        return iter(self._members)

    def __len__(self) -> int:
        return len(self._members)

    def __contains__(self, path: object) -> bool:
        try:
            # By opening the member, not by listing: many web servers cannot list.
            return isinstance(path, str) and self[path] is not None
        except NodeNotFoundError:
            return False

    # -- editing -----------------------------------------------------------------------------

    @strict_keywords(create_array, ArrayParams)
    def create_array(self, name: str, **options: Any) -> Array:
        """Make an array in this group; see `virtualzarr.create_array` for the options.

        Examples
        --------
        >>> import virtualzarr as vz
        >>> group = vz.create_group({})
        >>> group.create_array("inner/x", shape=(4, 6), dtype="f4")
        <Array inner/x (4, 6) float32, 1 chunk>
        >>> print(group.tree())
        /
        └── inner
            └── x (4, 6) float32
        """
        # A hierarchy is of one format: readers of v2 do not see nodes of v3, and the reverse.
        options.setdefault("zarr_format", self.zarr_format)
        array = create_array(self.store, name=self._member_path(name), **options)
        return array if CACHING & options.keys() else self._with_cache_policy(array)

    def create_group(
        self,
        name: str,
        *,
        attributes: Mapping[str, Any] | None = None,
        overwrite: bool = False,
        zarr_format: int | None = None,
    ) -> Group:
        """Make a group in this group; see `virtualzarr.create_group`."""
        metadata = create_group_metadata(attributes or {}, zarr_format or self.zarr_format)
        path = validate_path(self._member_path(name), metadata.zarr_format)
        write_nodes.write_node(self.store, path, metadata, overwrite=overwrite)
        return self._group_at(path)

    def create_hierarchy(
        self, nodes: Mapping[str, NodeSpec], *, overwrite: bool = False
    ) -> dict[str, Array | Group]:
        """Make arrays and groups in this group from their models, groups with what is in them.

        Parameters
        ----------
        nodes : mapping
            Models by path, relative to this group; groups between that are not given are made.
        overwrite : bool
            Whether nodes that are there already are deleted, with everything in them.

        Returns
        -------
        dict
            What was made, by the same paths.

        Raises
        ------
        NodeExistsError
            There is a node already.

        Examples
        --------
        >>> import virtualzarr as vz
        >>> x = vz.models.v3.ArraySpec.new(shape=(4, 6), dtype="f4", attributes={})
        >>> group = vz.create_group({})
        >>> group.create_hierarchy({"a/x": x, "y": x})
        {'a/x': <Array a/x (4, 6) float32, 1 chunk>, 'y': <Array y (4, 6) float32, 1 chunk>}
        """
        # A group before what is in it, however they are given.
        for name in sorted(nodes, key=lambda name: normalize_path(name).split("/")):
            path = validate_path(self._member_path(name), nodes[name].zarr_format)
            inner = {below: node.metadata for below, node in nodes[name].to_flat().items()}
            write_nodes.write_hierarchy(self.store, path, inner, overwrite=overwrite)
        return {name: self[normalize_path(name)] for name in nodes}

    @strict_keywords(ArrayParams)
    def require_array(self, name: str, **params: Unpack[ArrayParams]) -> Array:
        """Return an array of this group, made if it is not there.

        Raises
        ------
        MismatchError
            It is there, but not as asked for; the message has both values of whatever differs.
        """
        params.setdefault("zarr_format", self.zarr_format)
        array = open_array(self.store, self._member_path(name), mode="a", **params)
        self._repair(array.path, array.metadata.zarr_format)
        return self._with_cache_policy(array)

    def _repair(self, path: str, zarr_format: int) -> None:
        """Let readers find a member: who made it may have been cut short."""
        if getattr(self.store, "writable", False):
            write_nodes.complete_node(self.store, path, zarr_format)

    def _with_cache_policy(self, node: T) -> T:
        """Let an array or group be read with what this group was opened with."""
        # Nodes are opened anew at each access: what a user chose in open() has to follow them.
        if self.cache_policy is not None:
            node.cache_policy = self.cache_policy
        return node

    def require_group(
        self,
        name: str,
        *,
        attributes: Mapping[str, Any] | None = None,
        zarr_format: int | None = None,
    ) -> Group:
        """Return a group in this group, made if it is not there."""
        zarr_format = zarr_format or self.zarr_format
        resolved = resolve(self.store, self._member_path(name), "a", zarr_format=zarr_format)
        # None if nothing is there; an array there is an error, and never replaced.
        if resolved.read("group") is None:
            options: Any = {"attributes": attributes, "zarr_format": zarr_format}
            created = resolved.make(lambda: self.create_group(name, **options))
            if created is not None:
                return created
            resolved.read("group")
        self._repair(resolved.path, zarr_format)
        return self._group_at(resolved.path)

    def _group_at(self, path: str) -> Group:
        # As any member is opened, so that it gets the path and the cache policy of one.
        node = self[path[len(self.path) :]]
        assert isinstance(node, Group)
        return node

    def delete(self, name: str) -> None:
        """Delete a member with everything in it; also ``del group[name]``.

        Raises
        ------
        NodeNotFoundError
            There is none.
        """
        write_nodes.delete_node(self.store, self._member_path(name))

    __delitem__ = delete

    def move(self, source: str, target: str) -> None:
        """Give a member another path in this group, with everything in it.

        In a directory that is one step, unless symbolic links in it would lead to something else.
        Else all its keys are copied, then deleted: whoever reads meanwhile finds one of the two, or
        both. Nobody is to write to it meanwhile: that is an error where it is noticed, and a chunk
        of the same size as before is not.

        Raises
        ------
        NodeExistsError
            There is a node at the target, or chunks that a copy left which was cut short.
        WriteError
            The target is complete, but the source cannot be deleted.
        """
        copy_nodes.move_node(
            self.store,
            self._member_path(source),
            validate_path(self._member_path(target), self.zarr_format),
        )

    def rename(self, name_dict: Mapping[str, str] | None = None, **names: str) -> Group:
        """Return a group with variables and dimensions called otherwise, as in xarray.

        Nothing is copied, and nothing that is stored changes (`move` does that). Names hold in
        groups further down, too, and attributes that refer to variables (``coordinates``,
        ``bounds``) follow.

        Parameters
        ----------
        name_dict : mapping, optional
            New names by old ones.
        **names : str
            The same.

        Raises
        ------
        ValueError
            Two variables, or two dimensions of one, would be called the same.

        Examples
        --------
        >>> import virtualzarr as vz
        >>> group = vz.create_group({})
        >>> x = group.create_array("x", shape=(3,), dtype="f4", dimension_names=["x"])
        >>> group.rename(x="lon")["lon"].dims
        ('lon',)
        """
        # Renaming is a join's tool, of a room above: imported when it is called.
        from virtualzarr.combine.rename import rename_members

        return rename_members(self, {**(name_dict or {}), **names})

    def copy(self, source: str, target: str) -> None:
        """Copy a member, with everything in it, to another path in this group.

        Raises
        ------
        NodeExistsError
            There is a node at the target, or chunks that a copy left which was cut short.
        """
        copy_nodes.copy_node(
            self.store,
            self._member_path(source),
            validate_path(self._member_path(target), self.zarr_format),
        )

    def consolidate_metadata(self) -> None:
        """Write the metadata of everything in this group into one document.

        In v2 that is `.zmetadata`, in v3 it is in the group's `zarr.json`. Whoever opens the group
        for reading then needs one request. Later changes through this package keep it up to date.
        """
        consolidate(self.store, self.path)

    def _member_path(self, name: str) -> str:
        """Return the path of a member to be changed."""
        path = normalize_path(name)
        if not path:
            raise ValueError(f"{name!r} is not the name of a member")
        return self._join(path)

    # -- what is in it -----------------------------------------------------------------------

    def arrays(self) -> Iterator[tuple[str, Array]]:
        """Yield names and arrays among the direct members."""
        return ((name, node) for name, node in self.members() if isinstance(node, Array))

    def groups(self) -> Iterator[tuple[str, Group]]:
        """Yield names and groups among the direct members."""
        return ((name, node) for name, node in self.members() if isinstance(node, Group))

    def members(self, max_depth: int | None = 0) -> Iterator[tuple[str, Array | Group]]:
        """Yield paths and nodes below this group, each group before what is in it.

        Parameters
        ----------
        max_depth : int or None
            How many groups deep to go; 0 yields direct members only, None everything.
        """
        if max_depth is not None and max_depth < 0:
            raise ValueError(f"max_depth must be 0 or more, or None, not {max_depth}")
        for name, member in self._members.items():
            node = self._with_cache_policy(member.with_path(self._join(name)))
            yield name, node
            if isinstance(node, Group) and max_depth != 0:
                deeper = None if max_depth is None else max_depth - 1
                for path, inner in node.members(deeper):
                    yield f"{name}/{path}", inner

    def tree(self, level: int | None = None) -> str:
        """Return a picture of the hierarchy in text.

        Parameters
        ----------
        level : int, optional
            How many levels to show below this group; all of them by default.

        Examples
        --------
        >>> print(Group({}, {"inner": Group({}, {})}).tree())
        /
        └── inner
        """
        return group_text.tree(self, level)

    @property
    def info(self) -> str:
        """What there is to know of the group, a line each."""
        return group_text.info(self)

    def _repr_html_(self) -> str:
        from virtualzarr.display.html import group_html

        return group_html(self)

    def __repr__(self) -> str:
        return group_text.representation(self)
