"""Materialized chunks: decoded, encoded canonically, and stored for readers that need them so."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import chain, islice
from typing import Any

import numpy as np
import numpy.typing as npt

from virtualzarr.array import Array
from virtualzarr.array.cut_array import cut_box
from virtualzarr.array.executors import map_in_order
from virtualzarr.codecs import Pipeline, make
from virtualzarr.config import config
from virtualzarr.errors import PublishError, VirtualZarrError
from virtualzarr.manifest import Manifest, Source, Sources
from virtualzarr.metadata import ArrayMetadata, default_fill
from virtualzarr.metadata.create.codecs import common_serializer
from virtualzarr.references.portable import NO_PLUGINS, TRUNCATE, private_codec

Ints = npt.NDArray[np.int64]

PART_BYTES = 1 << 24
"""Bytes of elements that a worker decodes and encodes at a time."""

_RUN_BYTES = 1 << 22
"""Bytes of elements that a thread reads at a time."""

REVERSIBLE = frozenset(
    ["bytes", "transpose", "vlen-utf8", "vlen-bytes", "gzip", "zstd", "blosc", "crc32c"]
    + [f"numcodecs.{name}" for name in
       ("zlib", "gzip", "zstd", "blosc", "lz4", "bz2", "lzma", "shuffle", "crc32", "crc32c",
        "adler32", "fletcher32", "jenkins_lookup3")]
)  # fmt: skip
"""Codecs that give back what they were given. Others may be lossy, or encode nothing at all."""


_COPIES = re.compile(r"\.[0-9a-f]{16}\.chunks$|/chunks/[0-9A-HJKMNP-TV-Z]{20}$")


def is_copy(uri: str) -> bool:
    """Tell whether a source is a file beside references with copied chunks, or Icechunk's own.

    Examples
    --------
    >>> is_copy("/data/air.0123456789abcdef.chunks"), is_copy("/data/air.nc")
    (True, False)
    """
    return _COPIES.search(uri) is not None


def reversible(metadata: ArrayMetadata, plugins: frozenset[str] = NO_PLUGINS) -> bool:
    """Whether an array's codecs encode without loss, and other readers have them."""
    names = {codec.name for codec in metadata.pipeline.codecs}
    return names <= REVERSIBLE | {TRUNCATE} and private_codec(metadata, plugins) is None


def plain_pipeline(metadata: ArrayMetadata) -> Pipeline:
    """Codecs that every reader has: the elements, compressed with zstd."""
    serializer = common_serializer(metadata.dtype)
    return Pipeline([serializer, make("zstd", level=3, checksum=False)])


def encode_exactly(metadata: ArrayMetadata, block: npt.NDArray[Any]) -> bytes:
    """The chunk of a block, after a look at whether it decodes to the very same elements.

    Raises `PublishError` if the array's codecs change them.
    """
    # Encoders are not all lossless, and not all say so: what counts is what decoding gives back.
    codec = metadata.pipeline.for_block(block.shape, metadata.dtype, metadata.fill_value)
    data = bytes(codec.encode(block))
    if not _same(codec.decode(data), block):
        raise PublishError("the array's codecs do not give back what they encode")
    return data


def _same(a: npt.NDArray[Any], b: npt.NDArray[Any]) -> bool:
    # Objects have no bytes of their own to compare; NaN inside of them does not occur in text.
    if a.dtype.hasobject:
        return bool(a.tolist() == b.tolist())
    if a.dtype.names is not None:
        # Not by bytes: those between fields have no meaning.
        return all(_same(a[name], b[name]) for name in a.dtype.names)
    # By bytes, so that NaN payloads and the sign of zero count.
    return a.tobytes() == b.tobytes()


def encode_chunks(
    array: Array, metadata: ArrayMetadata, cells: Ints, parallel: Any = None
) -> Iterator[bytes]:
    """The chunks of some cells as `metadata` declares them, in order.

    Parameters
    ----------
    cells : int64 array
        C-order numbers of cells.
    parallel : concurrent.futures.Executor or dask.distributed.Client, optional
        Whose workers decode and encode; by default threads of this process do.
    """
    if parallel is not None:
        parts = _split(array, metadata, cells)
        for chunks in map_in_order(_encode_part, parts, parallel, name=lambda part: part[0].path):
            yield from chunks
        return

    # Threads, as codecs release the interpreter's lock; in order, as offsets in the file follow
    # from it.
    runs = _list_runs(metadata, cells.tolist())
    with ThreadPoolExecutor(config.threads) as pool:
        # In batches, so that no more than some are in memory.
        while batch := list(islice(runs, 2 * config.threads)):
            yield from chain.from_iterable(pool.map(partial(_encode_run, array, metadata), batch))


def _list_runs(metadata: ArrayMetadata, numbers: Sequence[int]) -> Iterator[list[int]]:
    """Yield neighbours along the last axis with several cells, which are read together."""
    grid = metadata.grid
    row = next((count for count in reversed(grid.grid_shape) if count > 1), 1)
    run, nbytes = list[int](), 0
    for number in numbers:
        # Cells may be of any sizes, and objects, such as texts, of any length.
        size = math.prod(grid.cell_shape(_find_cell(grid.grid_shape, number))) * metadata.itemsize
        size = _RUN_BYTES if metadata.dtype.hasobject else size
        ends = run and (number != run[-1] + 1 or number % row == 0 or nbytes + size > _RUN_BYTES)
        if ends:
            yield run
            run, nbytes = [], 0
        run.append(number)
        nbytes += size
    if run:
        yield run


def _encode_run(array: Array, metadata: ArrayMetadata, numbers: Sequence[int]) -> list[bytes]:
    """Return the chunks of neighbours; elsewhere, their bytes are requested side by side."""
    grid = metadata.grid
    cells = [_find_cell(grid.grid_shape, number) for number in numbers]
    low = grid.cell_origin(cells[0])
    last = zip(grid.cell_origin(cells[-1]), grid.cell_extent(cells[-1]), strict=True)
    high = tuple(origin + extent for origin, extent in last)
    try:
        values = np.asarray(array[tuple(map(slice, low, high))], dtype=metadata.dtype)
    except VirtualZarrError:  # of which one of them?
        return [_encode_numbered(array, metadata, number) for number in numbers]
    values = values.reshape(tuple(map(int.__sub__, high, low)))
    return [_encode_named(array, metadata, cell, values, low) for cell in cells]


Part = tuple[Array, ArrayMetadata, list[int]]


def _split(array: Array, metadata: ArrayMetadata, cells: Ints) -> Iterator[Part]:
    """Yield some cells at a time, with an array of which these can be read."""
    grid = metadata.grid
    shape = grid.cell_shape((0,) * metadata.ndim) if len(cells) else ()
    size = math.prod(shape) * max(metadata.itemsize, 1)
    step = max(1, PART_BYTES // max(size, 1))
    metadata = metadata.with_attributes({})
    array = array.replace(array.metadata.with_attributes({}))
    for first in range(0, len(cells), step):
        some = cells[first : first + step]
        corners = np.unravel_index(some, grid.grid_shape) if grid.grid_shape else ()
        boxes = [
            [grid.cell_origin(corner), grid.cell_extent(corner)]
            for corner in (tuple(int(of(axis)) for axis in corners) for of in (np.min, np.max))
        ]
        low = boxes[0][0]
        high = tuple(start + length for start, length in zip(*boxes[1], strict=True))
        yield cut_box(array, low, high), metadata, some.tolist()


def _encode_part(part: Part) -> list[bytes]:
    array, metadata, numbers = part
    return [_encode_numbered(array, metadata, number) for number in numbers]


def _find_cell(shape: Sequence[int], number: int) -> tuple[int, ...]:
    return tuple(int(i) for i in np.unravel_index(number, shape)) if shape else ()


def _encode_numbered(array: Array, metadata: ArrayMetadata, number: int) -> bytes:
    cell = _find_cell(metadata.grid.grid_shape, number)
    return _encode_named(array, metadata, cell, array, (0,) * metadata.ndim)


def _encode_named(
    array: Array,
    metadata: ArrayMetadata,
    cell: tuple[int, ...],
    values: Any,
    corner: tuple[int, ...],
) -> bytes:
    """Encode a cell of values that begin at a corner of an array; errors name it."""
    try:
        return encode_cell(values, metadata, cell, corner)
    except VirtualZarrError as error:
        chunk = ".".join(map(str, cell)) or "0"
        raise error.at(variable=array.path, chunk=chunk) from error.__cause__


def encode_cell(
    values: Any, metadata: ArrayMetadata, cell: tuple[int, ...], corner: tuple[int, ...]
) -> bytes:
    """One chunk: the cell's elements, filled up to its declared shape, encoded."""
    grid = metadata.grid
    origin, extent, shape = grid.cell_origin(cell), grid.cell_extent(cell), grid.cell_shape(cell)
    where = tuple(
        slice(o - low, o - low + n) for o, low, n in zip(origin, corner, extent, strict=True)
    )
    block = np.asarray(values[where], dtype=metadata.dtype).reshape(extent)
    # Chunks at the end of the grid are stored at full size in Zarr: the rest is fill values.
    if extent != shape:
        full = fill_block(metadata, shape)
        full[tuple(slice(n) for n in extent)] = block
        block = full
    return encode_exactly(metadata, block)


def fill_block(metadata: ArrayMetadata, shape: tuple[int, ...]) -> npt.NDArray[Any]:
    """A block of the array's fill value."""
    fill = metadata.fill_value
    block = np.empty(shape, metadata.dtype)
    block[...] = default_fill(metadata.dtype) if fill is None else fill
    return block


def copy_chunks(
    array: Array,
    metadata: ArrayMetadata,
    cells: Ints,
    start: int,
    write: Callable[[bytes], object],
    parallel: Any = None,
) -> tuple[Ints, Ints]:
    """Write the chunks of some cells to a file that has `start` bytes; see `encode_chunks`.

    Returns
    -------
    offset, length : int64 arrays
        Where they are.
    """
    length = np.empty(len(cells), np.int64)
    for row, chunk in enumerate(encode_chunks(array, metadata, cells, parallel)):
        write(chunk)
        length[row] = len(chunk)
    return start + np.cumsum(length) - length, length


def with_copies(
    manifest: Manifest, cells: Ints, source: Source, offset: Any, length: Any
) -> Manifest:
    """The manifest with the references of some cells replaced; all of it is canonical then."""
    shape = manifest.shape
    columns = []
    # Columns may be broadcast constants: only here, where some cells differ, they are written
    # out.
    for name, values in (("source", len(manifest.sources)), ("offset", offset), ("length", length)):
        column = np.array(np.asarray(getattr(manifest, name)).reshape(-1))
        column[cells] = values
        columns.append(column.reshape(shape))
    sources = Sources([*manifest.sources, source])
    return Manifest(shape, sources, columns[0], columns[1], columns[2])


def note_read_versions(manifests: Mapping[str, Manifest]) -> dict[str, Manifest]:
    """Return manifests whose sources have the version that was read of them, if none was noted."""
    # Arrays share tables, which are large, and go on sharing them.
    tables: dict[int, list[Manifest]] = {}
    for each in manifests.values():
        tables.setdefault(id(each.sources), []).append(each)
    noted = {}
    for key, sharing in tables.items():
        table = sharing[0].sources
        # What arrays were cut from, or joined with, may have others that do not matter here.
        is_used = table.find_used(*(np.asarray(each.source) for each in sharing))
        noted[key] = table.with_read_versions(is_used)
    return {path: each.replace(sources=noted[id(each.sources)]) for path, each in manifests.items()}


def rename_sources(manifest: Manifest, name: Callable[[str], str]) -> Manifest:
    """Return a manifest with other names for its sources; a copy has only the size in common."""
    sources = (
        source
        if source.is_inline or (new := name(source.uri)) == source.uri
        else source.with_uri(new)
        for source in manifest.sources
    )
    return manifest.replace(sources=Sources(sources))
