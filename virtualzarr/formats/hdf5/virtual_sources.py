"""Sources of virtual datasets, opened through links and other files without the HDF5 library."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from virtualzarr.config import config
from virtualzarr.errors import SourceError
from virtualzarr.formats.hdf5.context import FileContext
from virtualzarr.formats.hdf5.describe import Description
from virtualzarr.formats.hdf5.virtual_mappings import UNLIMITED, AxisSelection, Mapping
from virtualzarr.formats.hdf5.walk import ExternalTarget


class VirtualSources:
    """The datasets that one virtual dataset is made of, each looked for once.

    Parameters
    ----------
    context : FileContext
        The file that the virtual dataset is in.
    read : callable
        Gets what describes a source and the file it is in; returns its values.
    """

    def __init__(
        self, context: FileContext, read: Callable[[Description, FileContext], Any]
    ) -> None:
        self.context = context
        self._read = read
        self._shapes: dict[tuple[bytes, bytes], tuple[int, ...] | None] = {}
        self._values: dict[tuple[bytes, bytes], Any] = {}

    def shape(self, mapping: Mapping) -> tuple[int, ...] | None:
        """Return the stored shape of a source, None where there is none."""
        key = mapping.source()
        if key not in self._shapes:
            with _open_source(self.context, *key) as source:
                self._shapes[key] = None if source is None else source[0].shape
        return self._shapes[key]

    def values(self, mapping: Mapping) -> Any:
        """Return the values of a source, None where there is none.

        Raises `AccessError` if it may not be reached; `VirtualZarrError` if it cannot be read.
        """
        key = mapping.source()
        if key not in self._values:
            with _open_source(self.context, *key) as source:
                self._values[key] = None if source is None else self._read(*source)
        return self._values[key]


@contextmanager
def _open_source(
    origin: FileContext, file: bytes, dataset: bytes
) -> Iterator[tuple[Description, FileContext] | None]:
    """Find a dataset by the names of its file and its path, through links of all kinds."""
    with ExitStack() as stack:
        context: FileContext | None = origin.enter(origin.file)
        if file != b".":
            context = _open_file(origin, file, "HDF5_VDS_PREFIX", stack)
        # External links on the way lead to further files, each looked for from the one that names
        # it.
        target: Any = ExternalTarget(file, dataset)
        while context is not None and isinstance(target, ExternalTarget):
            inside, path = context, target.path
            target = inside.file.walker.find(path)
            if isinstance(target, ExternalTarget):
                context = _open_file(inside, target.file, "HDF5_EXT_PREFIX", stack)
        if context is None or target is None:
            yield None  # HDF5 takes it for not yet written
        else:
            name = target[0].decode("utf-8", "backslashreplace").lstrip("/")
            yield context.file.describe(target[1], name, target[0]), context


def _open_file(
    context: FileContext, name: bytes, variable: str, stack: ExitStack
) -> FileContext | None:
    """Open a file that another names, None where there is none."""
    source = context.find_linked_file(name.decode("utf-8", "surrogateescape"), variable)
    if source is None:
        return None
    try:
        return context.enter(stack.enter_context(context.open(source.uri)))
    except SourceError as error:
        raise SourceError(
            f"a source of the virtual dataset cannot be opened: {error.message}"
        ) from error


def expand_mappings(
    mappings: list[Mapping], shape: tuple[int, ...], sources: VirtualSources
) -> tuple[tuple[int, ...], list[Mapping]]:
    """Return the present shape of a virtual dataset, and its mappings without patterns.

    As in HDF5, a dataset with selections without end is as long as what is there of its sources:
    along such an axis, as the longest.

    Raises `VirtualZarrError` if a source cannot be looked for, or there are too many.

    Parameters
    ----------
    shape : tuple of int
        As stored.
    """
    plain: list[Mapping] = []
    now: dict[int, int] = {}
    least = [0] * len(shape)
    for mapping in mappings:
        # `H5D_VDS_LAST_AVAILABLE`, the library's default view: as long as the longest source.
        axis = mapping.inside.unlimited_axis
        for other, stop in mapping.inside.ends.items():
            least[other] = max(least[other], stop)
        if axis is None:
            plain.append(mapping)
            continue
        if mapping.is_pattern:
            blocks = _list_blocks(mapping, sources)
            plain += blocks
            config.limits.check("virtual_mappings", len(plain), "mappings of a virtual dataset")
            reach = max((block.inside.ends[axis] for block in blocks), default=0)
        else:
            plain.append(mapping)
            reach = _measure_reach(mapping, axis, sources.shape(mapping))
        now[axis] = max(now.get(axis, 0), reach)
    return tuple(max(now[k], least[k]) if k in now else n for k, n in enumerate(shape)), plain


def _list_blocks(mapping: Mapping, sources: VirtualSources) -> list[Mapping]:
    """Return the mappings of a pattern, up to the first source that is not there."""
    blocks: list[Mapping] = []
    while True:
        block = mapping.block(len(blocks))
        if sources.shape(block) is None:
            return blocks
        blocks.append(block)
        config.limits.check("virtual_mappings", len(blocks), "mappings of a virtual dataset")


def _measure_reach(mapping: Mapping, axis: int, source_shape: tuple[int, ...] | None) -> int:
    """Return how far a selection without end goes, given the shape of its source."""
    other = mapping.outside.unlimited_axis
    inside, outside = mapping.inside.parts, mapping.outside.parts
    if source_shape is None:
        return 0
    if other is None or inside is None or outside is None or other >= len(source_shape):
        raise SourceError("only one of two selections of a virtual dataset is without end")
    count = _count_elements(outside[other], source_shape[other])
    start, stride, _, block = inside[axis]
    if not count:
        return 0
    if block in (UNLIMITED, stride):
        return start + count
    # The last block may be filled in part: the extent then ends inside it, not behind its stride.
    complete, partial = divmod(count, block)
    return start + (complete * stride + partial if partial else (complete - 1) * stride + block)


def _count_elements(part: AxisSelection, extent: int) -> int:
    """Return how many elements a selection without end has along an axis of this extent."""
    start, stride, _, block = part
    if start >= extent:
        return 0
    if block in (UNLIMITED, stride):
        return extent - start
    blocks = -(-(extent - start) // stride)
    return (blocks - 1) * block + min(extent - start - (blocks - 1) * stride, block)
