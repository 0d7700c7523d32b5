"""Groups as users hold them: named arrays and groups, with attributes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from virtualzarr.array import Array
from virtualzarr.errors import NodeNotFoundError

if TYPE_CHECKING:
    from virtualzarr.publish import PublishReport

Node = "Array | Group"


class Group(Mapping[str, "Array | Group"]):
    """Named arrays and groups.

    Parameters
    ----------
    attributes : mapping
    members : mapping of str to Array or Group
        May be lazy: nodes are asked for when they are used.
    path : str
        Name within the hierarchy.
    refused : mapping of str to str
        Variables that could not be virtualized, by path, and why.

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
        refused: Mapping[str, str] | None = None,
    ) -> None:
        self.attributes = dict(attributes or {})
        self.path = path
        self.refused = dict(refused or {})
        self._members = {} if members is None else members

    @property
    def attrs(self) -> dict[str, Any]:
        """The group's attributes."""
        return self.attributes

    @property
    def name(self) -> str:
        """Last part of the path."""
        return self.path.rsplit("/", 1)[-1]

    def __getitem__(self, path: str) -> Array | Group:
        """Return the member under a name, or a path of names with ``/`` between them."""
        node: Array | Group = self
        for name in path.strip("/").split("/"):
            try:
                if not isinstance(node, Group):
                    raise KeyError(name)
                node = node._members[name]
            except KeyError as error:
                raise self._not_found(path) from error
        return node.with_path(self._join(path))

    def _not_found(self, path: str) -> NodeNotFoundError:
        reason = self.refused.get(path.strip("/"))
        if reason:
            return NodeNotFoundError(f"{path!r} could not be virtualized: {reason}")
        names = ", ".join(list(self)[:10]) or "nothing"
        return NodeNotFoundError(f"no array or group {path!r} in /{self.path}; there is {names}")

    def _join(self, path: str) -> str:
        return f"{self.path}/{path.strip('/')}".strip("/")

    def with_path(self, path: str) -> Group:
        """Return the same group under another name."""
        return Group(self.attributes, self._members, path, self.refused)

    def __iter__(self) -> Iterator[str]:
        return iter(self._members)

    def __len__(self) -> int:
        return len(self._members)

    def __contains__(self, path: object) -> bool:
        try:
            self[str(path)]
        except NodeNotFoundError:
            return False
        return True

    def arrays(self) -> Iterator[tuple[str, Array]]:
        """Yield names and arrays among the direct members."""
        for name in self:
            node = self[name]
            if isinstance(node, Array):
                yield name, node

    def groups(self) -> Iterator[tuple[str, Group]]:
        """Yield names and groups among the direct members."""
        for name in self:
            node = self[name]
            if isinstance(node, Group):
                yield name, node

    def members(self, max_depth: int | None = 0) -> Iterator[tuple[str, Array | Group]]:
        """Yield paths and nodes below this group, each group before what is in it.

        Parameters
        ----------
        max_depth : int or None
            How many groups deep to go; 0 yields direct members only, None everything.
        """
        for name in self:
            node = self[name]
            yield name, node
            if isinstance(node, Group) and max_depth != 0:
                deeper = None if max_depth is None else max_depth - 1
                for path, inner in node.members(deeper):
                    yield f"{name}/{path}", inner

    def tree(self) -> str:
        """Return a picture of the hierarchy in text.

        Examples
        --------
        >>> print(Group({}, {"inner": Group({}, {})}).tree())
        /
        └── inner
        """
        return "\n".join([f"/{self.path}", *self._branches()])

    def _branches(self) -> Iterator[str]:
        for i, name in enumerate(self, 1):
            node = self[name]
            fork, stem = ("└── ", "    ") if i == len(self) else ("├── ", "│   ")
            facts = f" {node.shape} {node.dtype}" if isinstance(node, Array) else ""
            yield f"{fork}{name}{facts}"
            if isinstance(node, Group):
                yield from (stem + line for line in node._branches())

    @property
    def info(self) -> str:
        """What there is to know of the group, a line each."""
        nodes = [node for _, node in self.members(max_depth=None)]
        arrays = [node for node in nodes if isinstance(node, Array)]
        rows = {
            "Name": f"/{self.path}",
            "Arrays": len(arrays),
            "Groups": len(nodes) - len(arrays),
            "Chunks": sum(array.nchunks for array in arrays),
            "Bytes": f"{sum(array.nbytes for array in arrays):,}",
            "Refused": len(self.refused),
        }
        return "\n".join(f"{name:<11}: {value}" for name, value in rows.items())

    def publish(self, path: Any, *, copy: bool = False, **options: Any) -> PublishReport:
        """Write a reference file that other tools open; see `virtualzarr.publish.publish`."""
        from virtualzarr.publish import publish

        return publish(self, path, copy=copy, **options)

    def __repr__(self) -> str:
        plural = "" if len(self) == 1 else "s"
        name = f" {self.path}" if self.path else ""
        refused = f", {len(self.refused)} refused" if self.refused else ""
        return f"<Group{name}: {len(self)} member{plural}{refused}>"
