"""Link tree of an HDF5 file: its groups and datasets by path."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from virtualzarr.config import config
from virtualzarr.errors import SourceError, UnsupportedError, VirtualZarrError
from virtualzarr.formats.hdf5.byte_source import UnknownStructureError
from virtualzarr.formats.hdf5.h5py_fallback import Library
from virtualzarr.formats.hdf5.links import Link
from virtualzarr.formats.hdf5.objects import Objects

_MAX_DEPTH = 64
_MAX_NODES = 1_000_000
_MAX_HOPS = 32

Refuse = Callable[[str, VirtualZarrError], None]


class DanglingLinkError(UnsupportedError):
    """A link, or a path, leads to nothing."""


@dataclass(frozen=True)
class ExternalTarget:
    """What an external link leads to.

    Parameters
    ----------
    file, path : bytes
        As stored: name of the file, and path of the object in it.
    """

    file: bytes
    path: bytes


@dataclass
class WalkCounts:
    """How much a walk has met; shared by those of several files."""

    nodes: int = 0
    repeats: int = 0


@dataclass(slots=True)
class Node:
    """One dataset or group under one of its names.

    Parameters
    ----------
    path : str
        Name from the root, without a leading slash; names that are not UTF-8 are escaped.
    target : bytes
        Path to open it by; leads through hard links only.
    address : int
        Address of its object header.
    children : list of Node, optional
        None for a dataset.
    external : ExternalTarget, optional
        Where it is if that is another file; then nothing else is known of it.
    """

    path: str
    target: bytes
    address: int
    children: list[Node] | None = None
    external: ExternalTarget | None = None

    @property
    def name(self) -> str:
        """Last part of the path."""
        return self.path.rsplit("/", 1)[-1]

    def walk(self) -> Iterator[Node]:
        """Yield the node and all nodes below it."""
        yield self
        for child in self.children or ():
            yield from child.walk()


@dataclass
class Walker:
    """Lists the objects of a file.

    Parameters
    ----------
    objects : Objects, optional
        None where even the superblock is not known.
    library : Library
        Lists the groups that `objects` does not know.
    refuse : callable
        Called with the path of each link that leads nowhere useful, and the reason as error.
    types : dict
        Path of each named datatype that was met, by address: references may point to them.
    """

    objects: Objects | None
    library: Library
    refuse: Refuse
    limits: WalkCounts = field(default_factory=WalkCounts)
    types: dict[int, str] = field(default_factory=dict)
    _seen: set[int] = field(default_factory=set)
    _listed: dict[int, dict[bytes, Link]] = field(default_factory=dict)

    def list_all(self) -> Node:
        """List everything that can be reached.

        Raises `SourceError` if there is no root group.
        """
        if self.objects is None:
            kind, address = self.library.kind(b"/")
        else:
            address = self.objects.superblock.root
            kind = self._kind(address, b"/")
        if kind != "group":
            raise SourceError("the file has no root group")
        self._links(address, b"/")
        node = Node("", b"/", address, [])
        self._fill(node, (address,))
        return node

    def list_from(
        self, target: bytes, path: str, above: tuple[int, ...]
    ) -> Node | ExternalTarget | None:
        """List what can be reached from one object.

        Raises `VirtualZarrError` if there is no such object.

        Parameters
        ----------
        target : bytes
            Path of the object in this file.
        path : str
            What users see instead.
        above : tuple of int
            Addresses of the groups that hold it, -1 for those of other files.

        Returns
        -------
        Node, ExternalTarget or None
            None for a named datatype.
        """
        target_ = self._resolve(b"/", self._root, target)
        if isinstance(target_, ExternalTarget):
            return target_
        node = self._node(*target_, path)
        if node is not None and node.children is not None:
            self._check(node, above)
            self._fill(node, (*above, node.address))
        return node

    def find(self, path: bytes) -> tuple[bytes, int] | ExternalTarget | None:
        """Find a dataset by a path from the root, through soft links too, within the file.

        Raises `VirtualZarrError` if it is no dataset, a group on the way cannot be listed, or a
        link is of an unknown kind.

        Returns
        -------
        (bytes, int), ExternalTarget or None
            Its path through hard links, and its address; where it is if that is another file; None
            where there is none.
        """
        try:
            resolved = self._resolve(b"/", self._root, path)
        except DanglingLinkError:
            return None
        if isinstance(resolved, ExternalTarget):
            return resolved
        target, address = resolved
        if self._kind(address, target) != "dataset":
            raise UnsupportedError(f"{_quote(path)} is no dataset")
        return resolved

    def _kind(self, address: int, target: bytes) -> str:
        """Return what an object is."""
        if self.objects is None:
            return self.library.kind(target)[0]
        object_ = self.objects[address]
        if isinstance(object_.header, UnknownStructureError):
            self.library.record_request(_decode_name(target), object_.header.message)
            return self.library.kind(target)[0]
        if isinstance(object_.header, VirtualZarrError):
            raise UnsupportedError(f"the object cannot be opened: {object_.header.message}")
        return object_.kind

    def _links(self, address: int, target: bytes) -> dict[bytes, Link]:
        """Return the links of a group by name."""
        if address not in self._listed:
            object_ = None if self.objects is None else self.objects[address]
            if object_ is None or isinstance(object_.header, UnknownStructureError):
                links: Sequence[Link] | VirtualZarrError = self.library.links(target)
            else:
                links = object_.links
            if isinstance(links, UnknownStructureError):
                self.library.record_request(_decode_name(target), links.message)
                links = self.library.links(target)
            if isinstance(links, VirtualZarrError):
                raise SourceError(f"the group cannot be listed: {links.message}")
            self._listed[address] = {link.name: link for link in links}
        return self._listed[address]

    def _fill(self, group: Node, above: tuple[int, ...]) -> None:
        self._seen.add(group.address)
        assert group.children is not None
        taken: set[str] = set()
        try:
            links = self._links(group.address, group.target)
        except VirtualZarrError as error:
            self.refuse(group.path, error)
            return
        for link in links.values():
            name = _make_unique_name(link.name, taken)
            path = f"{group.path}/{name}" if group.path else name
            try:
                node = self._follow(group, link, path, name)
                if node is not None and node.children is not None:
                    self._check(node, above)
            except VirtualZarrError as error:
                self.refuse(path, error)
                continue
            if node is not None:
                group.children.append(node)
                if node.children is not None:
                    self._fill(node, (*above, node.address))

    def _follow(self, group: Node, link: Link, path: str, name: str) -> Node | None:
        """Return the node that a link leads to; None for a named datatype."""
        self.limits.nodes += 1
        if self.limits.nodes > _MAX_NODES:
            raise UnsupportedError(f"the file has more than {_MAX_NODES} links")
        if name in ("", ".", "..") or "/" in name or "\0" in name:
            raise UnsupportedError("a Zarr path cannot hold this name")
        if link.kind == "hard":
            return self._node(_join_path(group.target, link.name), link.address, path)
        target = self._resolve(group.target, group.address, link.name)
        if isinstance(target, ExternalTarget):
            return Node(path, b"", -1, external=target)
        return self._node(*target, path)

    def _node(self, target: bytes, address: int, path: str) -> Node | None:
        """Return what is at an address, without what is in it; None for a named datatype."""
        kind = self._kind(address, target)
        if kind == "group":
            return Node(path, target, address, [])
        if kind == "dataset":
            return Node(path, target, address)
        # Committed datatypes are links in HDF5, yet nothing that Zarr can show.
        self.types.setdefault(address, _decode_name(target).lstrip("/"))
        return None

    def _check(self, node: Node, above: tuple[int, ...]) -> None:
        """Refuse to enter a group that holds itself, or what no real file holds."""
        # Hard links may make circles: groups are directed graphs in HDF5, trees in Zarr.
        if node.address in above:
            raise UnsupportedError("the link leads back to a group that holds it")
        if len(above) >= _MAX_DEPTH:
            raise UnsupportedError(f"groups are nested more than {_MAX_DEPTH} deep")
        # Groups under several names are listed under each. Ten groups that each link the next one
        # twice are a thousand paths: that is bounded by the number of repeats.
        if node.address in self._seen:
            self.limits.repeats += 1
            config.limits.check(
                "repeated_links", self.limits.repeats, "links that lead to groups listed before"
            )

    def _resolve(
        self, resolved: bytes, address: int, path: bytes
    ) -> tuple[bytes, int] | ExternalTarget:
        """Follow a path, and soft links on it, to a path of hard links and an address.

        The file is never left: HDF5 itself would open whatever file an external link on the way
        names.
        """
        pending = path.split(b"/")[::-1]
        hops = 0
        while pending:
            part = pending.pop()
            if part in (b"", b"."):
                continue
            link = None
            if self._kind(address, resolved) == "group":
                link = self._links(address, resolved).get(part)
            if link is None:
                raise DanglingLinkError(f"the link leads to nothing at {_quote(part)}")
            if link.kind == "hard":
                resolved, address = _join_path(resolved, part), link.address
                continue
            # Whether another file may be opened at all is for `LinkedFiles` and its location to
            # decide.
            if link.kind == "external":
                return _parse_external_link(link.value, pending)
            if link.kind != "soft":
                raise UnsupportedError("user-defined links are not supported")
            hops += 1
            if hops > _MAX_HOPS:
                raise UnsupportedError("a soft link leads to itself, or through too many others")
            if link.value.startswith(b"/"):
                resolved, address = b"/", self._root
            # What is left of the path is followed after the soft link's own path, as a stack.
            pending += reversed(link.value.split(b"/"))
        return resolved, address

    @property
    def _root(self) -> int:
        if self.objects is None:
            return self.library.kind(b"/")[1]
        return self.objects.superblock.root


def _join_path(path: bytes, name: bytes) -> bytes:
    return path.rstrip(b"/") + b"/" + name


def _parse_external_link(value: bytes, pending: list[bytes]) -> ExternalTarget:
    """Return what an external link says, and what of a path was still to be followed."""
    file, path = (*value.split(b"\0"), b"", b"")[:2]
    return ExternalTarget(file, b"/".join([path, *reversed(pending)]))


def _quote(name: bytes) -> str:
    return repr(_decode_name(name))


def _decode_name(name: bytes) -> str:
    return name.decode("utf-8", "backslashreplace")


def _make_unique_name(name: bytes, taken: set[str]) -> str:
    """Return a link's name as text, distinct from those in `taken`, which it is added to."""
    text = _decode_name(name)
    # Escapes of bytes that are not UTF-8 may collide with a name that has such a backslash.
    while text in taken:
        text += "_"
    taken.add(text)
    return text
