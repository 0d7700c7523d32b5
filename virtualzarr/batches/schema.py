"""Schema of a batch: the group of each of its files, without what differs between them."""

from __future__ import annotations

import io
import pickle
import struct
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b
from typing import Any

import numpy as np
from numpy.typing import NDArray

from virtualzarr.array import Array
from virtualzarr.array.file_layout import FileLayout
from virtualzarr.array.read.cache_policy import CachePolicy
from virtualzarr.hierarchy.group import Group
from virtualzarr.manifest import Manifest, Source, Sources
from virtualzarr.metadata import ArrayMetadata

Ints = NDArray[np.int64]
Attributes = Mapping[str, Mapping[str, Any]]
"""Attributes by path of the node, and name."""


@dataclass(frozen=True)
class ChunkColumns:
    """Which columns of a batch say where the chunks of an array are.

    Parameters
    ----------
    start, stop : int
        The columns of its addresses, one for each chunk, and of their lengths.
    cells : int64 array, optional
        The cell of each, in C order; None where that is its own number.
    has_lengths : bool
        Whether lengths are taken from the columns; if not, they are those of the schema.
    """

    start: int
    stop: int
    cells: Ints | None = None
    has_lengths: bool = True

    def fill(self, column: Any, numbers: Ints) -> Ints:
        """Return a column of a manifest with the numbers of one file in its cells."""
        some = numbers[self.start : self.stop]
        if self.cells is None:
            return some.reshape(column.shape)
        filled = np.array(column, np.int64)
        filled.reshape(-1)[self.cells] = some
        return filled


@dataclass(frozen=True)
class ArraySchema:
    """An array without attributes; its manifest is that of the file the schema was made of.

    Parameters
    ----------
    columns : ChunkColumns, optional
        None where the chunks of each file are at the same places.
    """

    path: str
    metadata: ArrayMetadata
    manifest: Manifest
    layout: FileLayout | None
    columns: ChunkColumns | None

    @property
    def refers_to_file(self) -> bool:
        """Whether chunks are in the file: else they are in the references, or nowhere."""
        sources = self.manifest.sources
        return bool(len(sources)) and not sources[0].is_inline

    def build_manifest(self, sources: Sources | None, addresses: Ints, lengths: Ints) -> Manifest:
        """Return where the chunks are in a file, which `sources` are; None for the schema's own."""
        old, columns = self.manifest, self.columns
        if sources is None or not self.refers_to_file:
            return old
        offset, length = old.offset, old.length
        if columns is not None:
            offset = columns.fill(offset, addresses)
            length = columns.fill(length, lengths) if columns.has_lengths else length
        unchanged = (old.source, offset, length, old.decoders, old.decoder, old.origin)
        return Manifest(old.shape, sources, *unchanged)

    def describe(self) -> Any:
        """Return all but where the chunks of the recorded file are, to be pickled."""
        old, columns = self.manifest, self.columns
        inline = [source.data for source in old.sources]
        layout = (old.shape, inline, old.source, tuple(old.decoders), old.decoder, old.origin)
        places: Any = None
        if columns is None:
            places = old.offset, old.length
        elif columns.cells is not None or not columns.has_lengths:
            numbers = np.zeros(columns.stop, np.int64)
            offset = columns.fill(old.offset, numbers)
            length = columns.fill(old.length, numbers) if columns.has_lengths else old.length
            places = columns.cells, offset, length
        span = columns and (columns.start, columns.stop, columns.has_lengths)
        return self.path, self.metadata, self.layout, layout, span, places


class Schema:
    """A group of files that are alike, and which columns of a batch go where in it.

    Attributes
    ----------
    path : str
    attributes : dict
        As JSON, of the file the schema was made of.
    members : dict
        Schemas of groups, and for each array what it is and the schema of its attributes.
    """

    def __init__(
        self, path: str, attributes: Mapping[str, Any], skipped: Mapping[str, str]
    ) -> None:
        self.path, self.skipped = path, dict(skipped)
        # Copies: groups are given to users, who may change what is in them.
        self.attributes = copy_json(dict(attributes))
        self._frozen: dict[str, Any] | None = None
        self._key: bytes | None = None
        self._dumped: bytes | None = None
        # Most attributes are not lists or objects, of which each group needs its own.
        self._nested = [name for name, value in attributes.items() if type(value) in (list, dict)]
        self.members: dict[str, Schema | tuple[ArraySchema, Schema]] = {}

    @classmethod
    def of(cls, group: Group, columns: Mapping[str, ChunkColumns] | None = None) -> Schema:
        """Return the schema of a group that a scan returned, with columns by path of the array."""
        schema = cls(group.path, group.attributes, group.skipped)
        for name in group:
            node = group[name]
            if isinstance(node, Group):
                schema.members[name] = cls.of(node, columns)
            else:
                planned = (columns or {}).get(node.path)
                metadata = node.metadata.with_attributes({})
                array = ArraySchema(node.path, metadata, node.manifest, node.file_layout, planned)
                schema.members[name] = array, cls(node.path, node.metadata.attributes, {})
        return schema

    def list_uris(self) -> set[str]:
        """Return the files that references of the schema's own manifests point into."""
        uris: set[str] = set()
        for member in self.members.values():
            if isinstance(member, Schema):
                uris |= member.list_uris()
            else:
                uris |= {one.uri for one in member[0].manifest.sources if not one.is_inline}
        return uris

    @property
    def frozen(self) -> dict[str, Any]:
        """Attributes as what is equal only if they are the same to the bit, and can be hashed."""
        if self._frozen is None:
            self._frozen = {name: freeze(value) for name, value in self.attributes.items()}
        return self._frozen

    @property
    def key(self) -> bytes:
        """Digest of all but the values of attributes and the file that it was made of.

        Files of schemas with one key are alike, and have the same columns.
        """
        if self._key is None:
            self._key = blake2b(_dump_plainly(self._describe()), digest_size=32).digest()
        return self._key

    def dump(self) -> bytes:
        """Return the schema as bytes for another process, which `load_pickled` makes one of."""
        if self._dumped is None:
            self._dumped = pickle.dumps(self)
        return self._dumped

    def _describe(self) -> Any:
        members = {
            name: member._describe()
            if isinstance(member, Schema)
            else (member[0].describe(), member[1]._describe())
            for name, member in self.members.items()
        }
        return self.path, self.skipped, list(self.attributes), members

    def drop(self, paths: Collection[str], start: str = "") -> Schema:
        """Return the schema without some nodes; `start` comes before names in `paths`."""
        skipped = {k: why for k, why in self.skipped.items() if f"{start}{k}" not in paths}
        schema = Schema(self.path, self.attributes, skipped)
        for name, member in self.members.items():
            path = f"{start}{name}"
            if path not in paths:
                schema.members[name] = (
                    member.drop(paths, f"{path}/") if isinstance(member, Schema) else member
                )
        return schema

    def iter_nodes(self) -> Iterator[Schema]:
        """Yield the schemas of all nodes: this one, and those of groups and arrays below."""
        yield self
        for member in self.members.values():
            yield from (member if isinstance(member, Schema) else member[1]).iter_nodes()

    def find_attributes(self, path: str) -> Mapping[str, Any]:
        """Return the attributes of a node; raises `KeyError` if there is none at the path."""
        if path == self.path:
            return self.attributes
        for member in self.members.values():
            node = member if isinstance(member, Schema) else member[1]
            if path == node.path or (path.startswith(f"{node.path}/") and node.members):
                return node.find_attributes(path)
        raise KeyError(path)

    def build(
        self, source: Source | None, addresses: Ints, lengths: Ints, attributes: Attributes
    ) -> Group:
        """Return the group of a file.

        Parameters
        ----------
        source : Source, optional
            The file; None for the one that the schema was made of.
        addresses, lengths : int64 array, shape (columns,)
            Of its chunks.
        attributes : mapping
            Those that are others than in the schema.
        """
        # One table for the references into one file: all arrays share it.
        sources = None if source is None else Sources([source])
        row = (sources, addresses, lengths, attributes)
        return self._build(row, CachePolicy())

    def _build(self, row: tuple[Any, Ints, Ints, Attributes], policy: CachePolicy) -> Group:
        *places, attributes = row
        members: dict[str, Array | Group] = {}
        for name, member in self.members.items():
            if isinstance(member, Schema):
                members[name] = member._build(row, policy)
                continue
            schema, node = member
            metadata = schema.metadata.with_attributes(node._copy_attributes(attributes))
            manifest = schema.build_manifest(*places)
            array = Array.from_manifest(metadata, manifest, schema.path, policy)
            array.file_layout = schema.layout
            members[name] = array
        return Group(self._copy_attributes(attributes), members, self.path, self.skipped)

    def _copy_attributes(self, changed: Attributes) -> dict[str, Any]:
        """Return attributes of which nothing is shared."""
        attributes = dict(self.attributes)
        for name in self._nested:
            attributes[name] = copy_json(attributes[name])
        for name, value in changed.get(self.path, {}).items():
            attributes[name] = copy_json(value)
        return attributes


@lru_cache(maxsize=256)
def load_pickled(data: bytes) -> Schema:
    """Return the schema that another process dumped; the same one each time."""
    schema: Schema = pickle.loads(data)
    return schema


def _dump_plainly(value: Any) -> bytes:
    """Return a pickle that is the same for equal values, whether or not parts are one object."""
    file = io.BytesIO()
    pickler = pickle.Pickler(file, pickle.HIGHEST_PROTOCOL)
    # References to what came before tell which parts are one object: equal schemas that were
    # scanned and that another process sent differ in that.
    pickler.fast = True
    pickler.dump(value)
    return file.getvalue()


def freeze(value: Any) -> Any:
    """Return what is equal for JSON values that are the same to the bit, and can be hashed.

    Examples
    --------
    >>> freeze(0.0) == freeze(-0.0), freeze([1]) == freeze([True]), freeze({}) == freeze({})
    (False, False, True)
    """
    kind = type(value)
    if kind is str:
        return value
    if kind is list:
        return list, *map(freeze, value)
    if isinstance(value, Mapping):
        return dict, *((name, freeze(item)) for name, item in value.items())
    if isinstance(value, float):
        return kind, struct.pack("<d", value)
    return kind, repr(value)


def copy_json(value: Any) -> Any:
    """Return a JSON value of which nothing is shared.

    Examples
    --------
    >>> value = {"a": [1]}
    >>> copy_json(value)["a"] is value["a"]
    False
    """
    if type(value) is list:
        return [copy_json(item) if type(item) in (list, dict) else item for item in value]
    if type(value) is dict:
        return {key: copy_json(item) for key, item in value.items()}
    return value
