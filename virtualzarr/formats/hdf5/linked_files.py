"""Files of one scan: the one that is scanned, and the targets of its external links."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import dataclass

from virtualzarr.codecs.hdf5.check_datatype import ARRAY, COMPOUND, REFERENCE, SEQUENCE
from virtualzarr.config import config
from virtualzarr.errors import SourceError, UnsupportedError, VirtualZarrError
from virtualzarr.formats.hdf5 import header
from virtualzarr.formats.hdf5.attributes import AttributeReader
from virtualzarr.formats.hdf5.byte_source import PageCache
from virtualzarr.formats.hdf5.context import FileContext
from virtualzarr.formats.hdf5.dataset import read_vlen
from virtualzarr.formats.hdf5.datatype import get_class
from virtualzarr.formats.hdf5.dimensions import Naming
from virtualzarr.formats.hdf5.h5py_fallback import H5PY_ERRORS
from virtualzarr.formats.hdf5.open_file import OpenFile, open_hdf5
from virtualzarr.formats.hdf5.walk import ExternalTarget, Node, Refuse, WalkCounts, Walker
from virtualzarr.manifest import Source
from virtualzarr.stores.files import filesystem, is_url
from virtualzarr.stores.location import Location

# Datatypes whose elements may point elsewhere.
_WITH_POINTERS = (COMPOUND, REFERENCE, SEQUENCE, ARRAY)
_MAX_HOPS = 16
# Files that no link is being followed to are closed when more than this are open.
_MAX_OPEN = 64
_MAX_PREFETCHED = 32

GroupKey = tuple[str, int]
"""A file, and the address of a group in it."""


@dataclass
class LinkedFile:
    """One open file."""

    key: str
    file: OpenFile
    walker: Walker
    naming: Naming
    context: FileContext
    attributes: AttributeReader
    stack: ExitStack

    def prefetch_vlen(self, root: Node) -> None:
        """Read what is to be copied of a file elsewhere all at once, not dataset by dataset."""
        if self.file.objects is None or not isinstance(self.file.data, PageCache):
            return
        parsers = {}
        for node in root.walk():
            if node.children is not None or node.external is not None:
                continue
            try:
                message = self.file.objects.messages(node.address)[header.TYPE]
                if get_class(message) in _WITH_POINTERS:
                    description = self.file.describe(node.address, node.path, node.target)
                    if description.element.has_pointers and not description.external:
                        parsers[node.address] = read_vlen(description, self.context)
            except (VirtualZarrError, *H5PY_ERRORS):
                continue  # said when the dataset itself is read
        self.file.read_all_vlen(parsers)


class LinkedFiles:
    """The files of one scan, each opened once.

    Parameters
    ----------
    location : Location
        Which files may be reached.
    refuse : callable
        Gets a file and returns what is called with path and error of what cannot be had of it.
    """

    def __init__(self, location: Location, refuse: Callable[[OpenFile], Refuse]) -> None:
        self.location = location
        self.limits = WalkCounts()
        self._refuse = refuse
        self._open: dict[str, LinkedFile] = {}
        self._sources: dict[tuple[str, bytes], Source | None] = {}

    def open_root(self, file: OpenFile) -> tuple[LinkedFile, Node]:
        """Take the file that is scanned, and list what is in it."""
        walker = Walker(file.objects, file.library, self._refuse(file), self.limits)
        root = walker.list_all()
        part = self._make_linked_file(file, walker, root, walker.types, ExitStack())
        self._open[part.key] = part
        part.prefetch_vlen(root)
        self._prefetch_files(part, root)
        return part, root

    def follow(
        self, part: LinkedFile, node: Node, above: tuple[GroupKey, ...]
    ) -> tuple[LinkedFile, Node] | None:
        """Follow an external link; None if it leads to a named datatype.

        Raises `VirtualZarrError` if it leads nowhere, or where it may not.

        Parameters
        ----------
        part : LinkedFile
            The file that holds the link.
        above : tuple of GroupKey
            The groups that hold the link.
        """
        self._evict({part.key} | {key for key, _ in above})
        target: Node | ExternalTarget | None = node.external
        for _ in range(_MAX_HOPS):
            assert isinstance(target, ExternalTarget)
            part = self._open_target(part, target)
            # Addresses are only comparable within a file; -1, which no object has, keeps the depth
            # counted.
            ancestors = tuple([address if key == part.key else -1 for key, address in above])
            try:
                target = part.walker.list_from(target.path, node.path, ancestors)
            except VirtualZarrError as error:
                raise error.at(file=part.file.source.uri) from error.__cause__
            if not isinstance(target, ExternalTarget):
                if target is None:
                    return None
                part.prefetch_vlen(target)
                self._prefetch_files(part, target)
                return part, target
        raise UnsupportedError("an external link leads to itself, or through too many others")

    def _prefetch_files(self, part: LinkedFile, root: Node) -> None:
        """Open what a file elsewhere links to side by side, not one after the other."""
        uri = part.file.source.uri
        if not is_url(uri) or "::" in uri:
            return
        if not filesystem(part.file.source.location)[0].async_impl:
            return
        # One request latency for each file, one after the other, would dominate the scan of a
        # master file with hundreds of links: they are opened side by side, bounded by
        # `config.requests`.
        targets = {node.external.file: node.external for node in root.walk() if node.external}
        unopened = [
            target for target in targets.values() if (part.key, target.file) not in self._sources
        ]

        def attempt(outside: ExternalTarget) -> None:
            with suppress(VirtualZarrError, *H5PY_ERRORS):  # said when the link is followed
                self._open_target(part, outside)

        if len(unopened) > 1:
            with ThreadPoolExecutor(min(config.requests, len(unopened))) as pool:
                list(pool.map(attempt, unopened[:_MAX_PREFETCHED]))

    def _open_target(self, part: LinkedFile, outside: ExternalTarget) -> LinkedFile:
        """Return the file that an external link names."""
        displayed = outside.file.decode("utf-8", "backslashreplace")
        link = part.key, outside.file
        if link not in self._sources:
            name = outside.file.decode("utf-8", "surrogateescape")
            self._sources[link] = part.context.find_linked_file(name, "HDF5_EXT_PREFIX")
        source = self._sources[link]
        if source is None:
            raise UnsupportedError(
                f"an external link leads to the file {displayed!r}, which is not there"
            )
        key = _canonical_uri(source.uri)
        if key not in self._open:
            stack = ExitStack()
            try:
                file = stack.enter_context(open_hdf5(source.location))
                linked = self._open_linked(file, stack)
                if self._open.setdefault(key, linked) is not linked:
                    stack.close()  # another thread was faster
            except VirtualZarrError as error:
                stack.close()
                raise SourceError(
                    f"an external link leads to {displayed!r}: {error.message}"
                ) from error
        return self._open[key]

    def _open_linked(self, file: OpenFile, stack: ExitStack) -> LinkedFile:
        # Names of what references point to are those of all objects, whether linked to or not.
        # With counts of its own: listing all objects for names is not what the limits are about.
        unlimited = Walker(file.objects, file.library, _ignore)
        root = unlimited.list_all()
        walker = Walker(file.objects, file.library, self._refuse(file), self.limits)
        return self._make_linked_file(file, walker, root, unlimited.types, stack)

    def _make_linked_file(
        self, file: OpenFile, walker: Walker, root: Node, types: Mapping[int, str], stack: ExitStack
    ) -> LinkedFile:
        paths: dict[int, str] = {}
        nodes = [node for node in root.walk() if node.external is None]
        # The names by hard links come first, as in HDF5.
        for node in nodes:
            if node.target[1:] == node.path.encode():
                paths.setdefault(node.address, node.path)
        for node in nodes:
            paths.setdefault(node.address, node.path)
        paths.update(types)
        context = FileContext(
            file, self.location, lambda uri: open_hdf5(self.location.locate(uri)), paths
        )
        return LinkedFile(
            _canonical_uri(file.source.uri),
            file,
            walker,
            Naming(paths),
            context,
            AttributeReader(paths),
            stack,
        )

    def _evict(self, needed: set[str]) -> None:
        """Close files if many are open."""
        for key in [key for key in self._open if key not in needed]:
            if len(self._open) < _MAX_OPEN:
                return
            self._open.pop(key).stack.close()

    def close(self) -> None:
        """Close all files that links led to."""
        for part in self._open.values():
            part.stack.close()
        self._open.clear()


def _canonical_uri(uri: str) -> str:
    return uri if is_url(uri) else os.path.realpath(uri)


def _ignore(path: str, error: VirtualZarrError) -> None:
    """Leave it to the walk that users see to say what is wrong."""
