"""The tree of links in an HDF5 file: which objects there are, under which names."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from virtualzarr.errors import SourceError, UnsupportedError, VirtualZarrError

_MAX_DEPTH = 64
_MAX_NODES = 1_000_000
# Links to groups that were listed already under another name: more than this is no archive.
_MAX_REPEATS = 10_000
_MAX_HOPS = 32

Refuse = Callable[[str, VirtualZarrError], None]


@dataclass
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
    """

    path: str
    target: bytes
    address: int
    children: list[Node] | None = None

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
    fid : h5py.h5f.FileID
    refuse : callable
        Called with the path of each link that leads nowhere useful, and the reason as error.
    """

    fid: Any
    refuse: Refuse
    _nodes: int = 0
    _repeats: int = 0
    _seen: set[int] = field(default_factory=set)

    def root(self) -> Node:
        """List everything that can be reached.

        Raises
        ------
        SourceError
            If there is no root group.
        """
        from h5py import h5o

        try:
            address = h5o.get_info(self.fid, b"/").addr
        except (KeyError, OSError, RuntimeError, ValueError) as error:
            raise SourceError(f"HDF5 cannot open the root group: {error}") from error
        node = Node("", b"/", address, [])
        self._fill(node, (node.address,))
        return node

    def _fill(self, group: Node, above: tuple[int, ...]) -> None:
        from h5py import h5o

        self._seen.add(group.address)
        assert group.children is not None
        taken: set[str] = set()
        try:
            gid = h5o.open(self.fid, group.target)
            links = _links(gid)
        except (KeyError, OSError, RuntimeError, ValueError) as error:
            self.refuse(group.path, SourceError(f"HDF5 cannot list the group: {error}"))
            return
        for name, kind in links:
            shown = _shown(name, taken)
            path = f"{group.path}/{shown}".lstrip("/")
            try:
                node = self._follow(group, gid, name, kind, path)
                if node is not None and node.children is not None:
                    self._check(node, above)
            except UnsupportedError as error:
                self.refuse(path, error)
                continue
            if node is not None:
                group.children.append(node)
                if node.children is not None:
                    self._fill(node, (*above, node.address))

    def _follow(self, group: Node, gid: Any, name: bytes, kind: int, path: str) -> Node | None:
        """Return the node that a link leads to; None for a named datatype."""
        from h5py import h5l, h5o

        self._nodes += 1
        if self._nodes > _MAX_NODES:
            raise UnsupportedError(f"the file has more than {_MAX_NODES} links")
        if path.rsplit("/", 1)[-1] in (".", ".."):
            raise UnsupportedError("a Zarr path cannot hold this name")
        hard = kind == h5l.TYPE_HARD
        target = _joined(group.target, name) if hard else self._resolve(group.target, name)
        try:
            info = h5o.get_info(gid, name) if hard else h5o.get_info(self.fid, target)
        except (KeyError, OSError, RuntimeError, ValueError) as error:
            raise UnsupportedError(f"HDF5 cannot open the object: {error}") from error
        if info.type == h5o.TYPE_GROUP:
            return Node(path, target, info.addr, [])
        return Node(path, target, info.addr) if info.type == h5o.TYPE_DATASET else None

    def _check(self, node: Node, above: tuple[int, ...]) -> None:
        """Refuse to enter a group that holds itself, or what no real file holds."""
        if node.address in above:
            raise UnsupportedError("the link leads back to a group that holds it")
        if len(above) >= _MAX_DEPTH:
            raise UnsupportedError(f"groups are nested more than {_MAX_DEPTH} deep")
        if node.address in self._seen:
            self._repeats += 1
            if self._repeats > _MAX_REPEATS:
                raise UnsupportedError(f"more than {_MAX_REPEATS} links lead to known groups")

    def _resolve(self, start: bytes, name: bytes) -> bytes:
        """Follow soft links to a path of hard links, never leaving the file.

        HDF5 itself would open whatever other file an external link on the way names.
        """
        from h5py import h5l, h5o

        done = start
        todo = [name]
        hops = 0
        while todo:
            part = todo.pop()
            if part in (b"", b"."):
                continue
            try:
                group = h5o.open(self.fid, done)
                kind = group.links.get_info(part).type
            except (KeyError, OSError, RuntimeError, ValueError, AttributeError) as error:
                reason = f"a soft link leads to nothing at {_quoted(part)}"
                raise UnsupportedError(reason) from error
            if kind == h5l.TYPE_HARD:
                done = _joined(done, part)
                continue
            if kind == h5l.TYPE_EXTERNAL:
                raise UnsupportedError(_foreign(*group.links.get_val(part)))
            if kind != h5l.TYPE_SOFT:
                raise UnsupportedError("user-defined links are not supported")
            value: bytes = group.links.get_val(part)
            hops += 1
            if hops > _MAX_HOPS:
                raise UnsupportedError("a soft link leads to itself, or through too many others")
            done = b"/" if value.startswith(b"/") else done
            todo += reversed(value.split(b"/"))
        return done


def _joined(path: bytes, name: bytes) -> bytes:
    return path.rstrip(b"/") + b"/" + name


def _foreign(file: bytes, path: bytes) -> str:
    return f"an external link leads to {_quoted(path)} in {_quoted(file)}; scan that file itself"


def _quoted(name: bytes) -> str:
    return repr(name.decode("utf-8", "backslashreplace"))


def _links(gid: Any) -> list[tuple[bytes, int]]:
    """Return name and kind of the links of a group, in the order of creation if that is kept."""
    from h5py import h5, h5p

    found: list[tuple[bytes, int]] = []

    def note(name: bytes, info: Any) -> None:
        found.append((name, info.type))

    order = h5.INDEX_NAME
    if gid.get_create_plist().get_link_creation_order() & h5p.CRT_ORDER_TRACKED:
        order = h5.INDEX_CRT_ORDER
    gid.links.iterate(note, info=True, idx_type=order)
    return found


def _shown(name: bytes, taken: set[str]) -> str:
    """Return a link's name as text, distinct from those in `taken`, which it is added to."""
    shown = name.decode("utf-8", "backslashreplace")
    while shown in taken:
        shown += "_"
    taken.add(shown)
    return shown
