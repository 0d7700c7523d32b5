"""Schema of a dataset: documents of its arrays and groups, and the options it was made with.

Source: ``specs/dataset.md``, *Schemas*.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from virtualzarr.array import Array
from virtualzarr.combine.attributes import MEANING_ATTRIBUTES
from virtualzarr.dataset import objects
from virtualzarr.dataset.operations import Protocol
from virtualzarr.dataset.segment import name_source
from virtualzarr.dataset.snapshot import Named, Snapshot
from virtualzarr.errors import MismatchError, NodeNotFoundError, SourceNotFoundError
from virtualzarr.hierarchy.group import Group
from virtualzarr.metadata import (
    ArrayMetadata,
    GroupMetadata,
    attribute_dtypes,
    dumps_json,
    json_attributes,
    with_dtypes,
)
from virtualzarr.metadata.node_documents import from_documents, to_documents
from virtualzarr.metadata.portable import as_strict_attributes

_ABSENT: Any = object()


class OutdatedError(MismatchError):
    """Another commit changed what a change was prepared by: it has to be prepared anew."""


class SchemaChangedError(OutdatedError):
    """Another commit changed the arrays or attributes that a change relies on."""


@dataclass(frozen=True)
class Schema:
    """Documents of all nodes, and how they came about.

    Attributes
    ----------
    nodes : mapping of str to JSON
        The Zarr v3 document of each node by path, the root's is "".
    growing : str
        The dimension along which rows come and go.
    dtypes : mapping of str to mapping
        By path, the data types of attributes that JSON does not say.
    options : mapping of str to JSON
        Options by which files became the first rows: later ones are treated alike.
    callables : sequence of str
        Options that were functions, which cannot be stored: they have to be given again.
    relative : bool
        Whether source files are named relative to the dataset's folder, where there is a way.
    """

    nodes: Mapping[str, Any] = field(default_factory=dict)
    growing: str = ""
    dtypes: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    callables: tuple[str, ...] = ()
    relative: bool = False

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Schema:
        """Read what `to_json` returned."""
        return cls(
            dict(document["nodes"]),
            str(document["growing"]),
            dict(document["dtypes"]),
            dict(document.get("options", {})),
            tuple(document.get("callables", ())),
            document.get("relative") is True,
        )

    def to_json(self) -> dict[str, Any]:
        """Return the schema as JSON."""
        document = {
            "growing": self.growing,
            "nodes": dict(self.nodes),
            "dtypes": dict(self.dtypes),
            "options": dict(self.options),
            "callables": list(self.callables),
        }
        return document | ({"relative": True} if self.relative else {})

    def name_file(self, uri: str, folder: str) -> str:
        """Return what a source file is called in a dataset of a folder."""
        return name_source(uri, folder, self.relative)

    @cached_property
    def _metadata(self) -> dict[str, ArrayMetadata | GroupMetadata]:
        result: dict[str, ArrayMetadata | GroupMetadata] = {}
        for path, document in self.nodes.items():
            with objects.parse_errors(f"schemas:{path}"):
                metadata = from_documents({"zarr.json": document})
                dtypes = self.dtypes.get(path, {})
                metadata.attributes.update(with_dtypes(metadata.attributes, dtypes))
            result[path] = metadata
        return result

    @property
    def arrays(self) -> dict[str, ArrayMetadata]:
        """Metadata of the arrays by path."""
        return {p: m for p, m in self._metadata.items() if isinstance(m, ArrayMetadata)}

    @property
    def groups(self) -> dict[str, dict[str, Any]]:
        """Attributes of the groups by path."""
        return {
            path: dict(metadata.attributes)
            for path, metadata in self._metadata.items()
            if not isinstance(metadata, ArrayMetadata)
        }

    @property
    def axes(self) -> dict[str, tuple[int, int]]:
        """By path of each array that grows, how many axes it has and which of them grows."""
        result = {}
        for path, document in self.nodes.items():
            with objects.parse_errors(f"schemas:{path}"):
                names = document.get("dimension_names") or ()
                if self.growing in names:
                    result[path] = (len(names), names.index(self.growing))
        return result

    def with_nodes(self, group: Group, paths: Collection[str] | None = None) -> Schema:
        """Return a schema with the nodes of a group, or some, in place of those of their paths."""
        nodes, dtypes = dict(self.nodes), dict(self.dtypes)
        for path, node in [("", group), *group.members(None)]:
            if paths is not None and path not in paths:
                continue
            dtypes.pop(path, None)
            if own_dtypes := attribute_dtypes(node.attrs):
                dtypes[path] = own_dtypes
            if isinstance(node, Array):
                nodes[path] = to_documents(node.metadata)["zarr.json"]
            else:
                attributes, _ = as_strict_attributes(node.attrs)
                nodes[path] = to_documents(GroupMetadata(attributes, 3))["zarr.json"]
        return replace(self, nodes=nodes, dtypes=dtypes)

    def with_attributes(
        self, path: str, attributes: Mapping[str, Any], delete: Collection[str] = ()
    ) -> Schema:
        """Return a schema with other attributes of a node; those that are not named stay.

        Raises
        ------
        NodeNotFoundError
            There is no such node, or no attribute of a name to delete.
        """
        path = path.strip("/")
        if path not in self.nodes:
            raise NodeNotFoundError(f"there is no array or group {path!r}")
        new = json_attributes(attributes)
        strict, _ = as_strict_attributes(new)
        old = dict(self.nodes[path].get("attributes", {}))
        if missing := [name for name in delete if name not in old]:
            raise NodeNotFoundError(f"there is no attribute {missing[0]!r} of {path or '/'!r}")
        merged = {name: value for name, value in old.items() if name not in delete} | strict
        dtypes = {n: d for n, d in self.dtypes.get(path, {}).items() if n not in {*delete, *new}}
        dtypes |= attribute_dtypes(new)
        nodes = {**self.nodes, path: {**self.nodes[path], "attributes": merged}}
        return replace(self, nodes=nodes, dtypes={**self.dtypes, path: dtypes})

    def check_unchanged(self, base: Schema, path: str, names: Collection[str]) -> None:
        """Refuse to change attributes that are not what they were in another schema.

        Raises
        ------
        MismatchError
            One was changed since.
        """
        path = path.strip("/")
        for name in names if self is not base else ():
            if not _is_same(_attribute(self, path, name), _attribute(base, path, name)):
                raise MismatchError(
                    f"another commit has changed the attribute {name!r}; refresh(), look, and "
                    "change it again",
                    variable=path or None,
                )

    def check_meaning(self, base: Schema) -> None:
        """Refuse what was prepared by another schema if its numbers mean something else here.

        Raises
        ------
        SchemaChangedError
            An array of that schema is not here, or has other attributes that say what numbers mean.
        """
        for path, document in base.nodes.items():
            if _meaning(document) != _meaning(self.nodes.get(path, {})):
                raise SchemaChangedError(
                    "another commit changed what the numbers of an array mean", variable=path
                )


def _attribute(schema: Schema, path: str, name: str) -> Any:
    return schema.nodes.get(path, {}).get("attributes", {}).get(name, _ABSENT)


def _meaning(document: Mapping[str, Any]) -> dict[str, Any]:
    attributes = document.get("attributes", {})
    meaning = {name: attributes[name] for name in MEANING_ATTRIBUTES if name in attributes}
    return {name: value for name, value in document.items() if name != "attributes"} | {
        "meaning": meaning
    }


def merge_schemas(base: Schema, ours: Schema, theirs: Schema) -> Schema:
    """Return what two changes of one schema make together.

    Raises
    ------
    SchemaChangedError
        Both changed the same attribute, or the same array, in different ways.

    Examples
    --------
    >>> base = Schema({"": {"attributes": {}}})
    >>> one, two = (base.with_attributes("", {name: 1}) for name in "ab")
    >>> merge_schemas(base, one, two).nodes[""]["attributes"]
    {'b': 1, 'a': 1}
    """
    nodes: dict[str, Any] = {}
    for path in dict.fromkeys([*theirs.nodes, *ours.nodes]):
        values = [schema.nodes.get(path, _ABSENT) for schema in (base, ours, theirs)]
        nodes[path] = _merge_documents(path, *values)
    dtypes: dict[str, Any] = {}
    for path in nodes:
        first, second, third = (s.dtypes.get(path, {}) for s in (base, ours, theirs))
        if merged := _merge_members(path, first, second, third):
            dtypes[path] = merged
    options = _merge_members("", base.options, ours.options, theirs.options)
    return Schema(
        {path: node for path, node in nodes.items() if node is not _ABSENT},
        theirs.growing, dtypes, options, theirs.callables, theirs.relative,
    )  # fmt: skip


def _is_same(a: Any, b: Any) -> bool:
    """Tell whether two values are written alike; Python's 1, 1.0 and True are equal."""
    if a is _ABSENT or b is _ABSENT:
        return a is b
    return bool(dumps_json(a) == dumps_json(b))


def _merge_documents(path: str, base: Any, ours: Any, theirs: Any) -> Any:
    if _is_same(ours, base) or _is_same(ours, theirs):
        return theirs
    if _is_same(theirs, base):
        return ours
    if any(document is _ABSENT for document in (base, ours, theirs)):
        raise SchemaChangedError("two commits changed an array in different ways", variable=path)
    merged = _merge_members(path, base, {**ours, "attributes": {}}, {**theirs, "attributes": {}},
                            skip="attributes")  # fmt: skip
    first, second, third = (document.get("attributes", {}) for document in (base, ours, theirs))
    return {**merged, "attributes": _merge_members(path, first, second, third)}


def _merge_members(
    path: str,
    base: Mapping[str, Any],
    ours: Mapping[str, Any],
    theirs: Mapping[str, Any],
    skip: str | None = None,
) -> dict[str, Any]:
    """Merge two changes of one mapping, name by name."""
    result: dict[str, Any] = {}
    for name in dict.fromkeys([*theirs, *ours]):
        if name == skip:
            continue
        before, our_value, their_value = (each.get(name, _ABSENT) for each in (base, ours, theirs))
        if _is_same(our_value, before) or _is_same(our_value, their_value):
            value = their_value
        elif _is_same(their_value, before):
            value = our_value
        else:
            raise SchemaChangedError(
                f"two commits changed {name!r} in different ways", variable=path or None
            )
        if value is not _ABSENT:
            result[name] = value
    return result


def read_schema(state: Snapshot) -> Protocol[Schema]:
    """Read the schema of a version."""
    return (yield from read_named_schema(state.schema))


def read_named_schema(named: Named | None) -> Protocol[Schema]:
    """Read a schema by its name; an empty one where there is none."""
    if named is None:
        return Schema()
    (data,) = yield from objects.read([named])
    with objects.parse_errors(named.name):
        return Schema.from_json(objects.decode(data))


def read_base_schema(named: Named | None) -> Protocol[Schema]:
    """Read the schema that a change was prepared by, where the newest one is another.

    Raises
    ------
    OutdatedError
        A vacuum has deleted it since.
    """
    try:
        return (yield from read_named_schema(named))
    except SourceNotFoundError as error:
        raise OutdatedError("a vacuum has deleted the schema that it was prepared by") from error
