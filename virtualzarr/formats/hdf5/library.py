"""The HDF5 library, asked by name for what the reader of this package does not know."""

from __future__ import annotations

import logging
from contextlib import ExitStack
from typing import Any

from virtualzarr.errors import SourceError
from virtualzarr.formats.hdf5.links import Link
from virtualzarr.manifest import Source
from virtualzarr.stores.files import filesystem, is_url

_REMOTE_BLOCK = 256 * 1024
_REMOTE_BLOCKS = 256
H5PY_ERRORS = (TypeError, ValueError, OSError, RuntimeError, KeyError, OverflowError, MemoryError)

_log = logging.getLogger(__name__)


class Library:
    """One file as h5py sees it, opened when it is first asked.

    Parameters
    ----------
    source : Source

    Attributes
    ----------
    asked : list of (str, str)
        For what it was asked: the path, and what the reader does not know.
    """

    def __init__(self, source: Source) -> None:
        self.source = source
        self.asked: list[tuple[str, str]] = []
        self._stack = ExitStack()
        self._fid: Any = None

    def __enter__(self) -> Library:
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def ask(self, path: str, reason: str) -> None:
        """Note that the library is asked."""
        self.asked.append((path, reason))
        _log.info("%s: /%s is read with h5py: %s", self.source.uri, path, reason)

    @property
    def fid(self) -> Any:
        """The open file.

        Raises
        ------
        SourceError
            If HDF5 cannot open it.
        """
        if self._fid is None:
            import h5py

            try:
                file = h5py.File(self._raw(), "r")
            except (OSError, ValueError, RuntimeError) as error:
                uri = self.source.uri
                raise SourceError(f"HDF5 cannot open the file: {error}", file=uri) from error
            self._fid = self._stack.enter_context(file).id
        return self._fid

    def _raw(self) -> Any:
        if not is_url(self.source.uri):
            return self.source.uri
        fs, path = filesystem(self.source.uri, self.source.storage_options)
        cache = {"maxblocks": _REMOTE_BLOCKS}
        file = fs.open(
            path, "rb", block_size=_REMOTE_BLOCK, cache_type="blockcache", cache_options=cache
        )
        return self._stack.enter_context(file)

    def open(self, target: bytes) -> Any:
        """Open an object by its path.

        Raises
        ------
        SourceError
        """
        from h5py import h5o

        try:
            return h5o.open(self.fid, target)
        except H5PY_ERRORS as error:
            raise SourceError(f"HDF5 cannot read it: {error}") from error

    def kind(self, target: bytes) -> tuple[str, int]:
        """Return what an object is ("group", "dataset" or "type"), and its address.

        Raises
        ------
        SourceError
        """
        from h5py import h5o

        try:
            info = h5o.get_info(self.fid, target)
        except H5PY_ERRORS as error:
            raise SourceError(f"HDF5 cannot open the object: {error}") from error
        kinds = {h5o.TYPE_GROUP: "group", h5o.TYPE_DATASET: "dataset"}
        return kinds.get(info.type, "type"), info.addr

    def links(self, target: bytes) -> list[Link]:
        """Return the links of a group, in the order of creation if that is kept, else by name.

        Raises
        ------
        SourceError
        """
        from h5py import h5, h5l, h5o, h5p

        kinds = {h5l.TYPE_HARD: "hard", h5l.TYPE_SOFT: "soft", h5l.TYPE_EXTERNAL: "external"}
        found: list[Link] = []
        try:
            gid = h5o.open(self.fid, target)

            def note(name: bytes, info: Any) -> None:
                kind, address, value = kinds.get(info.type, "user-defined"), 0, b""
                if kind == "hard":
                    address = h5o.get_info(gid, name).addr
                elif kind == "soft":
                    value = gid.links.get_val(name)
                elif kind == "external":
                    value = b"\0".join(gid.links.get_val(name)) + b"\0"
                found.append(Link(name, kind, address, value))

            order = h5.INDEX_NAME
            if gid.get_create_plist().get_link_creation_order() & h5p.CRT_ORDER_TRACKED:
                order = h5.INDEX_CRT_ORDER
            gid.links.iterate(note, info=True, idx_type=order)
        except H5PY_ERRORS as error:
            raise SourceError(f"HDF5 cannot list the group: {error}") from error
        return found
