"""Fallback to the HDF5 library for structures that this package does not parse.

It runs in a process of its own (`virtualzarr.formats.hdf5.library_worker`): what is unusual may as
well be damaged, and that may end the process.
"""

from __future__ import annotations

import io
import logging
import pickle
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import NDArray

from virtualzarr import errors
from virtualzarr.codecs import Pipeline, make
from virtualzarr.config import config
from virtualzarr.errors import SourceError, VirtualZarrError
from virtualzarr.formats.hdf5.external_file_list import Slot
from virtualzarr.formats.hdf5.layout_message import Layout
from virtualzarr.formats.hdf5.links import Link
from virtualzarr.formats.hdf5.messages import Dataspace, Filter
from virtualzarr.manifest import Source
from virtualzarr.metadata import STRING
from virtualzarr.redaction import hide_in_url
from virtualzarr.stores.files import RemoteFile, is_url
from virtualzarr.worker import Worker, WorkerCrashError, WorkerRefusalError

if TYPE_CHECKING:
    from virtualzarr.formats.hdf5.indexes import ChunkIndex
    from virtualzarr.formats.hdf5.inline_values import InlineValues

H5PY_ERRORS = (TypeError, ValueError, OSError, RuntimeError, KeyError, OverflowError, MemoryError)

_log = logging.getLogger(__name__)
worker = Worker("virtualzarr.formats.hdf5.library_worker")


@dataclass
class DatasetFacts:
    """What the library says of a dataset.

    Parameters
    ----------
    datatype : str
        Message of the datatype, in base64.
    fill : array or VirtualZarrError, optional
        The fill value; None where the user gave none.
    """

    space: Dataspace
    datatype: str
    layout: Layout
    external: tuple[Slot, ...]
    filters: tuple[Filter, ...] | VirtualZarrError
    fill: NDArray[Any] | VirtualZarrError | None
    never_filled: bool


class Library:
    """One file as the HDF5 library sees it.

    Attributes
    ----------
    asked : list of (str, str)
        For what it was asked: the path, and what the reader does not know.
    """

    def __init__(self, source: Source) -> None:
        self.source = source
        self.asked: list[tuple[str, str]] = []

    def record_request(self, path: str, reason: str) -> None:
        """Note that the library is asked."""
        self.asked.append((path, reason))
        uri = hide_in_url(self.source.uri)
        _log.info("%s: /%s is read with h5py: %s", uri, path, reason)

    def open(self, target: bytes) -> LibraryObject:
        """Return an object by its path."""
        return LibraryObject(self, target)

    def kind(self, target: bytes) -> tuple[str, int]:
        """Return what an object is ("group", "dataset" or "type"), and its address."""
        return cast("tuple[str, int]", self.call_worker("kind", target))

    def links(self, target: bytes) -> list[Link]:
        """Return the links of a group, in the order of creation if that is kept, else by name."""
        return cast("list[Link]", self.call_worker("links", target))

    def call_worker(self, operation: str, *arguments: Any) -> Any:
        """Carry out an operation of `h5py_dataset` in the worker.

        Raises
        ------
        VirtualZarrError
            What went wrong there; `SourceError` if the library has crashed.
        """
        uri, remote = self.source.uri, is_url(self.source.uri)
        file = RemoteFile(self.source.location, self.source.fingerprint) if remote else None
        size = (self.source.size or 0) if remote else 0
        path = None if remote else uri
        # Files elsewhere are read by this process on the worker's behalf: credentials stay here.
        request = pickle.dumps((path, size, config.inline_bytes, operation, arguments))
        try:
            answer = worker.ask(
                request, None if file is None else lambda a, n: bytes(file.read(a, a + n))
            )
        except WorkerRefusalError as error:
            raise SourceError(f"HDF5 cannot read it: {error}", file=uri) from error
        except WorkerCrashError as error:
            raise SourceError(
                f"the HDF5 library crashed: the file is damaged ({error})", file=uri
            ) from error
        result = _AnswerUnpickler(io.BytesIO(answer)).load()
        if isinstance(result, VirtualZarrError):
            raise result
        return result


class LibraryObject:
    """An object of a file, in the process that the HDF5 library runs in. All may raise errors.

    Parameters
    ----------
    target : bytes
        Path through hard links only.
    """

    def __init__(self, library: Library, target: bytes) -> None:
        self._library, self._target = library, target

    def space(self) -> Dataspace:
        """Return the dataspace of a dataset."""
        return cast("Dataspace", self._library.call_worker("space", self._target))

    def facts(self, layout: Layout | None, base: int) -> DatasetFacts:
        """Return what is to be known of a dataset."""
        return cast("DatasetFacts", self._library.call_worker("facts", self._target, layout, base))

    def index(self, layout: Layout) -> ChunkIndex | None:
        """Return the chunk index of a dataset, None where no chunk is stored."""
        return cast("ChunkIndex | None", self._library.call_worker("index", self._target, layout))

    def attributes(self) -> list[tuple[str, Any]]:
        """Return names and values of the attributes of an object, or why they cannot be read."""
        return cast("list[tuple[str, Any]]", self._library.call_worker("attributes", self._target))

    def read_inline(self, names: Mapping[int, str]) -> InlineValues:
        """Return the values of a dataset that lie in heaps; `names` are paths by address."""
        dtype, shape, data, codecs = self._library.call_worker(
            "read_inline", self._target, dict(names)
        )
        if isinstance(dtype, str):
            dtype = STRING if dtype == "text" else np.dtype(object)
        return dtype, shape, data, Pipeline([make(name, **how) for name, how in codecs])


_CLASSES = {
    "virtualzarr.formats.hdf5.h5py_fallback": ("DatasetFacts",),
    "virtualzarr.formats.hdf5.messages": ("Dataspace", "Filter"),
    "virtualzarr.formats.hdf5.layout_message": ("Layout",),
    "virtualzarr.formats.hdf5.external_file_list": ("Slot",),
    "virtualzarr.formats.hdf5.links": ("Link",),
    "virtualzarr.formats.hdf5.indexes.columns": ("ChunkIndex",),
    "virtualzarr.formats.hdf5.attribute_values": ("Address",),
    "virtualzarr.formats.hdf5.byte_source": ("UnknownStructureError",),
    "virtualzarr.errors": tuple(vars(errors)),
    "numpy": ("ndarray", "dtype"),
    "numpy._core.multiarray": ("_reconstruct", "scalar"),
    "numpy.core.multiarray": ("_reconstruct", "scalar"),
    "copyreg": ("_reconstructor",),
    "_codecs": ("encode",),
    "builtins": ("int", "object"),
}


class _AnswerUnpickler(pickle.Unpickler):
    """Reads answers of a process that a damaged file may have got the better of: data alone."""

    def find_class(self, module: str, name: str) -> Any:
        # The worker parsed a file that may have taken it over: its pickles must not run code here.
        if name not in _CLASSES.get(module, ()):
            raise pickle.UnpicklingError(f"{module}.{name} is no part of an answer")
        return super().find_class(module, name)
