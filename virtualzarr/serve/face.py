"""Faces of a hierarchy: its documents in one Zarr format, and the arrays behind its chunk keys."""

from __future__ import annotations

import math
import re
import threading
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from grids import RegularGrid, SeparableGrid
from virtualzarr.array import Array
from virtualzarr.codecs.sharding import find_sharding
from virtualzarr.errors import MetadataError, UnsupportedError, VirtualZarrError
from virtualzarr.hierarchy.group import Group
from virtualzarr.metadata import ArrayMetadata, check_name
from virtualzarr.metadata.portable import is_fill_mask
from virtualzarr.references import portable
from virtualzarr.references.ome_version import in_zarr_format
from virtualzarr.serve.cells import (
    MAX_ENCODED_CELL,
    MAX_SINGLE_CELL,
    common_length,
    shorten_lengths,
    single_cell_length,
    split_lengths,
)
from virtualzarr.serve.codecs import (
    FaceName,
    encoding_pipeline,
    find_checksum,
    is_in_every_client,
    rewrapped_pipeline,
    zarr_format_of,
)
from virtualzarr.serve.messages import MAX_PART
from virtualzarr.serve.served_array import Choice, ServedArray, Stored
from virtualzarr.serve.tags import digest
from virtualzarr.virtual.contiguous import uncompressed_layout

_NUMBER = re.compile("0|[1-9][0-9]{0,18}")
_CUT_BY_CLIENTS = re.compile(r"[#?%\x00-\x1f\x7f]")
_PADDING = 4096


def _check_url_part(name: str) -> None:
    """Refuse names that clients write into URLs as they are, and so ask for something else.

    The answer 404 is a chunk of fill values for them, or there is another array of that name.
    """
    if (match := _CUT_BY_CLIENTS.search(name)) is not None:
        raise UnsupportedError(
            f"clients do not escape {match[0]!r} in URLs, and read fill values then; rename it "
            "(Group.rename), or publish it"
        )
    if len(name.encode()) > MAX_PART:
        raise UnsupportedError(f"its name is longer than {MAX_PART} bytes")


class SharedReferences:
    """References of the arrays of a hierarchy, loaded once for all faces."""

    def __init__(self) -> None:
        self._loaded: dict[tuple[str, tuple[int, ...] | None], Stored] = {}
        self._lock = threading.Lock()

    def get(self, path: str, array: Array, split: tuple[int, ...] | None) -> Stored:
        """Return the references of an array, with uncompressed blocks cut to some lengths."""
        with self._lock:
            key = path, split
            if key not in self._loaded:
                self._loaded[key] = Stored(array, split)
            return self._loaded[key]


class Face:
    """A hierarchy as one face has it.

    Parameters
    ----------
    node : Group or Array
    name : {"v3", "v2", "native-grids"}
    stored : SharedReferences
        References of the same hierarchy, which all its faces share.
    choices : mapping of str to Choice, optional
        What was chosen for arrays of an earlier version, by path.
    growing : str, optional
        The dimension along which rows are appended.

    Attributes
    ----------
    documents : dict of bytes by key
    arrays : dict of ServedArray by path
    skipped : dict of str by path
        Why arrays are not in it.
    """

    def __init__(
        self,
        node: Group | Array,
        name: FaceName,
        stored: SharedReferences,
        choices: Mapping[str, Choice] | None = None,
        growing: str | None = None,
    ) -> None:
        self.name, self.growing = name, growing
        self.zarr_format = zarr_format_of(name)
        self.arrays: dict[str, ServedArray] = {}
        self.skipped: dict[str, str] = {}
        self._stored = stored
        self._choices = choices or {}
        self._tags: dict[str, str] = {}
        documents = []
        spelled = in_zarr_format(node, self.zarr_format)
        nodes: list[tuple[str, Group | Array]] = [("", spelled)]
        if isinstance(spelled, Group):
            nodes += spelled.members(max_depth=None)
        for path, member in nodes:
            try:
                documents.append((path, self._describe(path, member)))
            except VirtualZarrError as error:
                self.skipped[path] = error.message
        if not documents or documents[0][0]:
            raise UnsupportedError(f"{name}: {self.skipped[''] if self.skipped else 'nothing'}")
        # Some clients ask for the size first: a padded document seldom has another size when it has
        # grown in between, and what is cut off then are spaces.
        self.documents = {
            key: document + b" " * (-len(document) % _PADDING)
            for key, document in portable.consolidate(documents, self.zarr_format).items()
        }

    @property
    def choices(self) -> dict[str, Choice]:
        """What was chosen for each array."""
        return {path: array.choice for path, array in self.arrays.items()}

    def tag_document(self, key: str) -> str:
        """Return the entity tag of a document."""
        tag = self._tags.get(key)
        if tag is None:
            tag = self._tags[key] = digest(self.documents[key])
        return tag

    def find(self, parts: Sequence[str]) -> bytes | tuple[ServedArray, tuple[int, ...]] | None:
        """Return a document, or the array and the cell of a chunk key; None for anything else."""
        document = self.documents.get("/".join(parts))
        if document is not None:
            return document
        cut = len(parts) - 1
        if self.zarr_format == 3:
            # What lies behind the last "c" is numbers: arrays may be called "c", too.
            tails = [i for i, part in enumerate(parts) if part == "c"]
            if not tails:
                return None
            cut = tails[-1]
        array = self.arrays.get("/".join(parts[:cut]))
        if array is None:
            return None
        numbers = parts[cut + 1 :] if self.zarr_format == 3 else parts[cut].split(".")
        if self.zarr_format == 2 and not array.metadata.ndim:
            return (array, ()) if numbers == ["0"] else None
        if not all(_NUMBER.fullmatch(number) for number in numbers):
            return None
        return array, tuple(map(int, numbers))

    def _describe(self, path: str, node: Group | Array) -> portable.Documents:
        for name in path.split("/") if path else ():
            check_name(name, self.zarr_format)
            _check_url_part(name)
        if isinstance(node, Group):
            return portable.documents_of_group(node.attributes, self.zarr_format).documents
        choice = self._choices.get(path)
        if choice is None or not _still_fits(choice, node):
            choice = self._choose(node)
        metadata = _declare(node.metadata, choice)
        fills = self.zarr_format == 2 and not is_fill_mask(metadata)
        documents = self._document(metadata, fills)
        if documents is None:
            # The codecs of the source have no exact form here: those of the face do.
            choice = self._choose(node, encodes=True)
            metadata = _declare(node.metadata, choice)
            documents = self._document(metadata, fills, last=True)
            assert documents is not None
        split = self._split_lengths(node, choice)
        stored = partial(self._stored.get, path, node, split)
        self.arrays[path] = ServedArray(node, metadata, choice, stored, fills)
        return documents

    def _document(
        self, metadata: ArrayMetadata, fills: bool, last: bool = False
    ) -> portable.Documents | None:
        if self.zarr_format == 2:
            why = portable.obstacle_in_v2(metadata, missing=not fills)
        else:
            why = portable.obstacle_in_v3(metadata)
        if why is not None:
            if last:
                raise UnsupportedError(why)
            return None
        if self.zarr_format == 2:
            return portable.documents_v2(metadata, missing=not fills).documents
        return portable.documents_v3(metadata).documents

    def _choose(self, array: Array, encodes: bool = False) -> Choice:
        """Choose grid and codecs of an array."""
        metadata = array.metadata
        if self.name == "native-grids":
            if encodes or portable.private_codec(metadata) is not None:
                return Choice(None, encoding_pipeline(metadata, self.name))
            return Choice(None, metadata.pipeline)
        passes = is_in_every_client(metadata, self.name) and not encodes
        pipeline, rewraps = metadata.pipeline, False
        if not passes:
            other = None if encodes or self.name == "v2" else rewrapped_pipeline(metadata)
            rewraps = other is not None and self._may_rewrap(array)
            pipeline = other if rewraps and other else encoding_pipeline(metadata, self.name)
        return Choice(self._choose_lengths(array, passes or rewraps), pipeline, rewraps)

    def _may_rewrap(self, array: Array) -> bool:
        """Tell whether chunks of an array are cells, and small enough if they are to be checked."""
        # Cells of short arrays with one axis are several chunks: those are encoded anew.
        if self._is_one_cell(array):
            return False
        nbytes = math.prod(self._choose_lengths(array, True)) * array.metadata.itemsize
        return nbytes <= MAX_ENCODED_CELL or find_checksum(array.metadata.pipeline) is None

    def _choose_lengths(self, array: Array, passes: bool) -> tuple[int, ...]:
        grid, itemsize = array.grid, array.metadata.itemsize
        growing = self._grows(array)
        if self._is_one_cell(array):
            return (single_cell_length(array.shape[0], growing[0]),)
        if not isinstance(grid, SeparableGrid):
            return shorten_lengths([max(n, 1) for n in array.shape], itemsize)
        sharding = find_sharding(array.metadata.pipeline)
        if sharding is not None:
            lengths: tuple[int, ...] = tuple(sharding.chunk_shape)
        else:
            pairs = zip(grid.axes, growing, strict=True)
            lengths = tuple(common_length(axis, grows) for axis, grows in pairs)
        if not passes:
            return shorten_lengths(lengths, itemsize)
        if self._is_uncompressed(array):
            return split_lengths(grid.axes, lengths, itemsize)
        return lengths

    def _grows(self, array: Array) -> list[bool]:
        return [name is not None and name == self.growing for name in array.dims]

    def _is_one_cell(self, array: Array) -> bool:
        """Tell whether several chunks of an array are served as one."""
        several = array.ndim == 1 and (array.grid.ncells > 1 or self._grows(array)[0])
        return several and array.nbytes <= MAX_SINGLE_CELL

    @staticmethod
    def _is_uncompressed(array: Array) -> bool:
        layout = uncompressed_layout(array.metadata.pipeline, array.dtype, array.ndim)
        return layout is not None and len(array.metadata.pipeline.codecs) == 1

    def _split_lengths(self, array: Array, choice: Choice) -> tuple[int, ...] | None:
        """Return to which lengths uncompressed blocks are to be cut, if any are longer."""
        grid = array.grid
        if choice.lengths is None or not isinstance(grid, SeparableGrid):
            return None
        if not self._is_uncompressed(array) or not array.size:
            return None
        longest = [int(axis.runs()[0].max(initial=1)) for axis in grid.axes]
        longer = any(a > b for a, b in zip(longest, choice.lengths, strict=True))
        nbytes = int(np.prod(longest, dtype=object)) * array.metadata.itemsize
        return choice.lengths if longer and nbytes > MAX_ENCODED_CELL else None


def _still_fits(choice: Choice, array: Array) -> bool:
    return choice.lengths is None or len(choice.lengths) == array.ndim


def _declare(metadata: ArrayMetadata, choice: Choice) -> ArrayMetadata:
    """Return the metadata of an array in a face."""
    changes: dict[str, Any] = {"pipeline": choice.pipeline, "extra": {}}
    if choice.lengths is not None:
        changes["grid"] = RegularGrid(metadata.shape, choice.lengths)
    if choice.pipeline is not metadata.pipeline:
        changes["dtype"] = portable.without_gaps(metadata.dtype)
    return metadata.replace(storage_transformers=(), **changes)


def make_faces(
    node: Group | Array,
    names: Sequence[FaceName],
    earlier: Mapping[str, Face] | None = None,
    growing: str | None = None,
) -> tuple[dict[str, Face], dict[str, str]]:
    """Return the faces of a hierarchy by name, and why others cannot be.

    Parameters
    ----------
    earlier : mapping of str to Face, optional
        Those of an earlier version, whose grids and codecs stay.
    """
    stored = SharedReferences()
    faces: dict[str, Face] = {}
    skipped: dict[str, str] = {}
    for name in names:
        choices = earlier[name].choices if earlier and name in earlier else None
        try:
            faces[name] = Face(node, name, stored, choices, growing)
        except (UnsupportedError, MetadataError) as error:
            skipped[name] = error.message
    return faces, skipped
