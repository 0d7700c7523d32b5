"""Opening of stored arrays and groups, lazy members of groups, and creation of groups."""

from __future__ import annotations

from collections.abc import ItemsView, Iterator, Mapping
from dataclasses import dataclass
from itertools import compress
from typing import Any, TypeVar

from virtualzarr.array import Array
from virtualzarr.config import config
from virtualzarr.errors import MetadataError, NodeNotFoundError, UnsupportedError
from virtualzarr.hierarchy.group import Group
from virtualzarr.hierarchy.resolve import Mode, resolve
from virtualzarr.keywords import strict_keywords
from virtualzarr.metadata import ArrayMetadata, Consolidated, GroupMetadata, normalize_path
from virtualzarr.metadata.create.group import create_group_metadata
from virtualzarr.nodes.documents import MARKERS, NO_MEMBERS, read_node, validate_path
from virtualzarr.nodes.replace_documents import settle_pending
from virtualzarr.nodes.vanished import check_group_not_vanished, count_renewals
from virtualzarr.nodes.write_nodes import write_node
from virtualzarr.stores import Store
from virtualzarr.stores.location import Location
from virtualzarr.stores.renewals import ask_again
from virtualzarr.stores.store import is_remote
from virtualzarr.stores.thread_pools import run_each
from virtualzarr.stores.upgraded import check_not_upgraded

T = TypeVar("T")


def open_hierarchy(
    store: Store,
    path: str = "",
    *,
    zarr_format: int | None = None,
    location: Location | None = None,
    use_consolidated: bool | None = None,
) -> Array | Group:
    """Open the array or group under a path of a store, v3 before v2 if no format is asked for.

    Parameters
    ----------
    store : Store
    path : str
    zarr_format : int, optional
    location : Location, optional
        Which files manifests in the store may refer to.
    use_consolidated : bool, optional
        Whether members of a group are what its consolidated metadata say, and not what the members'
        own documents say. By default they are in stores that are only read: where there are
        writers, they may not be up to date.

    Raises
    ------
    NodeNotFoundError
        If nothing is stored there.
    MetadataError
        If a document breaks its specification, or consolidated metadata are asked for that a group
        does not have.
    """
    path = normalize_path(path)
    metadata = read_node(store, path, zarr_format)
    settle_pending(store, path, metadata)
    return build_node(metadata, store, path, location, use_consolidated)


def build_node(
    metadata: ArrayMetadata | GroupMetadata,
    store: Store,
    path: str,
    location: Location | None = None,
    use_consolidated: bool | None = None,
) -> Array | Group:
    """Return the array or group that metadata read from a path of a store describe.

    Raises
    ------
    MetadataError
        Consolidated metadata are asked for that a group does not have.
    """
    if isinstance(metadata, ArrayMetadata):
        return Array.from_store(metadata, store, path, location, is_stored=True)
    writable = getattr(store, "writable", False)
    if use_consolidated is False or (use_consolidated is None and writable):
        metadata = metadata.replace(consolidated=None)
    elif use_consolidated and metadata.consolidated is None:
        raise MetadataError(
            "use_consolidated: the group has no consolidated metadata",
            file=store.uri,
            variable=path or "/",
        )
    return group_of(metadata, store, path, location, use_consolidated)


def group_of(
    metadata: GroupMetadata,
    store: Store,
    path: str,
    location: Location | None = None,
    use_consolidated: bool | None = None,
) -> Group:
    """Return the group that metadata describe, whose members lie below a path of a store."""
    members = StoredMembers(store, path, metadata, location, use_consolidated)
    return Group(metadata.attributes, members, path)


@dataclass(eq=False, repr=False)
class StoredMembers(Mapping[str, "Array | Group"]):
    """The members of a stored group, read when they are asked for.

    Attributes
    ----------
    store : Store
    path : str
    metadata : GroupMetadata
    """

    store: Store
    path: str
    metadata: GroupMetadata
    location: Location | None
    use_consolidated: bool | None

    def __post_init__(self) -> None:
        # True was about this group's document: groups below need not have any of their own.
        self.use_consolidated = None if self.use_consolidated else self.use_consolidated
        self._names: list[str] | None = None

    def _join(self, name: str) -> str:
        return f"{self.path}/{name}" if self.path else name

    def __getitem__(self, name: str) -> Array | Group:
        path = self._join(name)
        consolidated = self.metadata.consolidated
        if consolidated is None:
            options: Any = {"location": self.location, "use_consolidated": self.use_consolidated}
            # The group's own format first: fewer requests than looking for both at each member.
            try:
                return open_hierarchy(
                    self.store, path, zarr_format=self.metadata.zarr_format, **options
                )
            except NodeNotFoundError:
                return open_hierarchy(self.store, path, **options)
        if name in consolidated.skipped:
            # The error object lives as long as the group: a traceback would keep frames alive.
            raise consolidated.skipped[name].with_traceback(None)
        metadata = consolidated.nodes.get(name)
        if isinstance(metadata, ArrayMetadata):
            return Array.from_store(metadata, self.store, path, self.location, is_stored=True)
        if metadata is None and name not in self._list_names():
            raise KeyError(name)
        # Consolidated metadata of v2 need not list groups that only contain others.
        group = metadata or GroupMetadata(zarr_format=self.metadata.zarr_format)
        inner = Consolidated(
            _select_below(consolidated.nodes, name), _select_below(consolidated.skipped, name)
        )
        group = group.replace(consolidated=inner)
        return group_of(group, self.store, path, self.location, self.use_consolidated)

    def items(self) -> ItemsView[str, Array | Group]:
        """Return pairs of names and members, of which a remote store is asked for many at once."""
        return _StoredItems(self)

    def open_side_by_side(self) -> Iterator[tuple[str, Array | Group]]:
        """Yield names and members."""
        if self.metadata.consolidated is not None or not is_remote(self.store):
            yield from ItemsView(self)
            return
        names, count = self._list_names(), config.requests
        for start in range(0, len(names), count):
            some = names[start : start + count]
            for name, node in zip(some, run_each(self._try_to_open, some, True), strict=True):
                if isinstance(node, Exception):
                    raise node  # after those before it
                yield name, node

    def _try_to_open(self, name: str) -> Array | Group | Exception:
        try:
            return self[name]
        except Exception as error:
            return error

    def _list_names(self) -> list[str]:
        # Where there are writers, names may come and go.
        if self._names is None or getattr(self.store, "writable", False):
            consolidated = self.metadata.consolidated
            if consolidated is not None:
                paths = [*consolidated.nodes, *consolidated.skipped]
                self._names = sorted({path.split("/", 1)[0] for path in paths if path})
            else:
                self._names = self._find_names()
        return self._names

    def _find_names(self) -> list[str]:
        """Return the names below which the store has nodes.

        Raises
        ------
        UnsupportedError
            The store cannot list: not even the group's own document is in the listing.
        """
        # A web server may answer every listing with nothing: an empty group must be told from that,
        # and a listing that works has at least the group's own document.
        listed = list(self.store.list_dir(self.path))
        documents = NO_MEMBERS[self.metadata.zarr_format]
        candidates = [name for name in listed if name not in documents]
        others = {*candidates}

        def find_more() -> None:
            renewals = count_renewals(self.store)
            names = sorted(others)
            are_nodes = run_each(self._is_node, names, is_remote(self.store))
            others.difference_update(compress(names, are_nodes))
            if others and is_remote(self.store):
                check_group_not_vanished(self.store, self.path, renewals)

        ask_again(find_more)
        names = [name for name in candidates if name not in others]
        if not names:
            check_not_upgraded(self.store, self.path, is_group=True)
        if not names and not set(MARKERS) & {*listed}:
            raise UnsupportedError(
                "the server does not list what the group holds; name the members, "
                "or consolidate the metadata",
                file=self.store.uri,
                variable=self.path or "/",
            )
        return names

    def _is_node(self, name: str) -> bool:
        # A folder without documents may be anything, such as chunks of an array in the root.
        keys = (f"{self._join(name)}/{marker}" for marker in MARKERS)
        return any(self.store.get(key) is not None for key in keys)

    def __iter__(self) -> Iterator[str]:
        return iter(self._list_names())

    def __len__(self) -> int:
        return len(self._list_names())


class _StoredItems(ItemsView[str, "Array | Group"]):
    """Names and members of a stored group."""

    def __init__(self, members: StoredMembers) -> None:
        super().__init__(members)
        self._members = members

    def __iter__(self) -> Iterator[tuple[str, Array | Group]]:
        return self._members.open_side_by_side()


def _select_below(nodes: Mapping[str, T], name: str) -> dict[str, T]:
    """Return the nodes below a name, by their paths from there."""
    # With the slash: what begins with "a" may lie in "ab".
    start = f"{name}/"
    return {path[len(start) :]: node for path, node in nodes.items() if path.startswith(start)}


@strict_keywords()
def create_group(
    store: Any,
    *,
    path: str | None = None,
    zarr_format: int | None = None,
    overwrite: bool = False,
    attributes: Mapping[str, Any] | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> Group:
    """Make a group in a store.

    Parameters
    ----------
    store : path, URL, mutable mapping or store
    path : str, optional
        Path within the store; groups above it that are not there are made. The root by default.
    zarr_format : {3, 2}
    overwrite : bool
        Whether a node that is there already is deleted, with everything in it.
    attributes : mapping, optional
    storage_options : mapping, optional
        For the file system of a URL.

    Raises
    ------
    NodeExistsError
        There is a node already.
    AccessError
        The store can only be read.

    Examples
    --------
    >>> import virtualzarr as vz
    >>> vz.create_group({}, path="a/b", attributes={"title": "weather"})
    <Group a/b: 0 members>
    """
    mode: Mode = "w" if overwrite else "w-"
    resolved = resolve(store, path or "", mode, storage_options=storage_options)
    metadata = create_group_metadata(attributes or {}, zarr_format or 3)
    validate_path(resolved.path, metadata.zarr_format)
    write_node(resolved.store, resolved.path, metadata, overwrite=overwrite)
    return group_of(metadata, resolved.store, resolved.path)


@strict_keywords()
def open_group(
    store: Any,
    path: str = "",
    *,
    mode: Mode | None = None,
    zarr_format: int | None = None,
    attributes: Mapping[str, Any] | None = None,
    use_consolidated: bool | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> Group:
    """Open a group, or make it.

    Parameters
    ----------
    store, path, mode, zarr_format, storage_options
        As for `open_array`.
    attributes : mapping, optional
        Attributes of a group that is made.
    use_consolidated : bool, optional
        As for `open`.

    Raises
    ------
    NodeNotFoundError, NodeExistsError
        There is no group, or there is a node already, as the mode has it.

    Examples
    --------
    >>> import virtualzarr as vz
    >>> vz.open_group({})
    <Group: 0 members>
    """
    resolved = resolve(store, path, mode, storage_options=storage_options, zarr_format=zarr_format)
    metadata = resolved.read("group")
    if metadata is None:
        options: Any = {"zarr_format": zarr_format, "attributes": attributes}
        options["overwrite"] = resolved.mode == "w"
        created = resolved.make(lambda: create_group(resolved.store, path=resolved.path, **options))
        if created is not None:
            return created
        metadata = resolved.read("group")
    group = build_node(metadata, resolved.store, resolved.path, use_consolidated=use_consolidated)
    assert isinstance(group, Group)
    return group
