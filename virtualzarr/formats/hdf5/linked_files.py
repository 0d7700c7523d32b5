"""The files that one scan reads: the one it was asked for, and those that external links name."""

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
from virtualzarr.formats.hdf5.context import Surroundings
from virtualzarr.formats.hdf5.dataset import copying
from virtualzarr.formats.hdf5.datatype import kind
from virtualzarr.formats.hdf5.dimensions import Naming
from virtualzarr.formats.hdf5.h5py_fallback import H5PY_ERRORS
from virtualzarr.formats.hdf5.open_file import OpenFile, opened
from virtualzarr.formats.hdf5.unsupported import PageCache
from virtualzarr.formats.hdf5.walk import Limits, Node, Outside, Refuse, Walker
from virtualzarr.manifest import Source
from virtualzarr.stores.files import filesystem, is_url
from virtualzarr.stores.location import Location

# Datatypes whose elements may point elsewhere.
_POINTING = (COMPOUND, REFERENCE, SEQUENCE, ARRAY)
_MAX_HOPS = 16
# Files that no link is being followed to are closed when more than this are open.
_MAX_OPEN = 64
_AHEAD = 32

Place = tuple[str, int]
"""A file, and the address of a group in it."""


@dataclass
class Part:
    """One open file."""

    key: str
    file: OpenFile
    walker: Walker
    naming: Naming
    near: Surroundings
    attributes: AttributeReader
    stack: ExitStack

    def read_ahead(self, root: Node) -> None:
        """Read what is to be copied of a file elsewhere all at once, not dataset by dataset."""
        if self.file.objects is None or not isinstance(self.file.data, PageCache):
            return
        parsers = {}
        for node in root.walk():
            if node.children is not None or node.outside is not None:
                continue
            try:
                message = self.file.objects.messages(node.address)[header.TYPE]
                if kind(message) in _POINTING:
                    described = self.file.describe(node.address, node.path, node.target)
                    if described.element.elsewhere and not described.external:
                        parsers[node.address] = copying(described, self.near)
            except (VirtualZarrError, *H5PY_ERRORS):
                continue  # said when the dataset itself is read
        self.file.copy_all(parsers)


class Parts:
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
        self.limits = Limits()
        self._refuse = refuse
        self._open: dict[str, Part] = {}
        self._sources: dict[tuple[str, bytes], Source | None] = {}

    def first(self, file: OpenFile) -> tuple[Part, Node]:
        """Take the file that is scanned, and list what is in it."""
        walker = Walker(file.objects, file.library, self._refuse(file), self.limits)
        root = walker.root()
        part = self._part(file, walker, root, walker.types, ExitStack())
        self._open[part.key] = part
        part.read_ahead(root)
        self._open_ahead(part, root)
        return part, root

    def follow(self, part: Part, node: Node, above: tuple[Place, ...]) -> tuple[Part, Node] | None:
        """Follow an external link; None if it leads to a named datatype.

        Parameters
        ----------
        part : Part
            The file that holds the link.
        node : Node
        above : tuple of Place
            The groups that hold the link.

        Raises
        ------
        VirtualZarrError
            If it leads nowhere, or where it may not.
        """
        self._close({part.key} | {key for key, _ in above})
        found: Node | Outside | None = node.outside
        for _ in range(_MAX_HOPS):
            assert isinstance(found, Outside)
            part = self._named(part, found)
            here = tuple([address if key == part.key else -1 for key, address in above])
            try:
                found = part.walker.below(found.path, node.path, here)
            except VirtualZarrError as error:
                raise error.at(file=part.file.source.uri) from error.__cause__
            if not isinstance(found, Outside):
                if found is None:
                    return None
                part.read_ahead(found)
                self._open_ahead(part, found)
                return part, found
        raise UnsupportedError("an external link leads to itself, or through too many others")

    def _open_ahead(self, part: Part, root: Node) -> None:
        """Open what a file elsewhere links to side by side, not one after the other."""
        uri = part.file.source.uri
        if not is_url(uri) or not filesystem(part.file.source.location)[0].async_impl:
            return
        found = {node.outside.file: node.outside for node in root.walk() if node.outside}
        wanted = [out for out in found.values() if (part.key, out.file) not in self._sources]

        def attempt(outside: Outside) -> None:
            with suppress(VirtualZarrError, *H5PY_ERRORS):  # said when the link is followed
                self._named(part, outside)

        if len(wanted) > 1:
            with ThreadPoolExecutor(min(config.requests, len(wanted))) as pool:
                list(pool.map(attempt, wanted[:_AHEAD]))

    def _named(self, part: Part, outside: Outside) -> Part:
        """Return the file that an external link names."""
        shown = outside.file.decode("utf-8", "backslashreplace")
        known = part.key, outside.file
        if known not in self._sources:
            name = outside.file.decode("utf-8", "surrogateescape")
            self._sources[known] = part.near.beside(name, "HDF5_EXT_PREFIX")
        source = self._sources[known]
        if source is None:
            raise UnsupportedError(
                f"an external link leads to the file {shown!r}, which is not there"
            )
        key = _key(source.uri)
        if key not in self._open:
            stack = ExitStack()
            try:
                file = stack.enter_context(opened(source.location))
                made = self._other(file, stack)
                if self._open.setdefault(key, made) is not made:
                    stack.close()  # another thread was faster
            except VirtualZarrError as error:
                stack.close()
                raise SourceError(
                    f"an external link leads to {shown!r}: {error.message}"
                ) from error
        return self._open[key]

    def _other(self, file: OpenFile, stack: ExitStack) -> Part:
        # Names of what references point to are those of all objects, whether linked to or not.
        whole = Walker(file.objects, file.library, _ignore)
        root = whole.root()
        walker = Walker(file.objects, file.library, self._refuse(file), self.limits)
        return self._part(file, walker, root, whole.types, stack)

    def _part(
        self,
        file: OpenFile,
        walker: Walker,
        root: Node,
        types: Mapping[int, str],
        stack: ExitStack,
    ) -> Part:
        paths: dict[int, str] = {}
        nodes = [node for node in root.walk() if node.outside is None]
        # The names by hard links come first, as in HDF5.
        for node in nodes:
            if node.target[1:] == node.path.encode():
                paths.setdefault(node.address, node.path)
        for node in nodes:
            paths.setdefault(node.address, node.path)
        paths.update(types)
        near = Surroundings(
            file, self.location, lambda uri: opened(self.location.locate(uri)), paths
        )
        return Part(
            _key(file.source.uri), file, walker, Naming(paths), near, AttributeReader(paths), stack
        )

    def _close(self, needed: set[str]) -> None:
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


def _key(uri: str) -> str:
    return uri if is_url(uri) else os.path.realpath(uri)


def _ignore(path: str, error: VirtualZarrError) -> None:
    """Leave it to the walk that users see to say what is wrong."""
