"""Record files in Parquet, read when a chunk in them is asked for, and kept in an LRU cache."""

from __future__ import annotations

import base64
import binascii
import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from grids import Projection
from virtualzarr.array.chunk_source import LocatedChunks, ManifestChunks, open_source
from virtualzarr.errors import (
    BadReferenceError,
    UnsupportedError,
    VirtualZarrError,
    import_optional,
)
from virtualzarr.manifest import Manifest, Source, Sources
from virtualzarr.references.kerchunk.columns import squeeze_constant
from virtualzarr.stores.files import ByteFile
from virtualzarr.stores.forks import ForkSafeLock
from virtualzarr.stores.lru_cache import LRUCache

Ints = npt.NDArray[np.int64]

CACHED = 16
"""So many record files of an array are kept."""

SERIES = "virtualzarr.series"
"""Name, in the metadata of record files, of the text that those written together share."""

_MOST_BYTES = 1 << 32
_CELLS_ALWAYS_FINE = 1 << 27
_CELLS_PER_REFERENCE = 256
_BASE64 = b"base64:"
_NONE = -1
_UNREAD = object()  # None is a record file that does not exist
_TEXTS = ("null", "string", "large_string", "binary", "large_binary")


def pyarrow_parquet() -> Any:
    """The module `pyarrow.parquet`.

    Raises `MissingDependencyError` if it is not installed.
    """
    problem = "references in Parquet need pyarrow: pip install 'virtualzarr[parquet]'"
    return import_optional("pyarrow.parquet", problem)


@dataclass(frozen=True)
class Record:
    """The references of one file: rows of `sources`, -1 where there is none, and ranges."""

    sources: list[Source]
    source: npt.NDArray[np.int32]
    offset: Ints
    length: Ints
    series: str | None = None


def read_record(data: Any, size: int, source_of: Callable[[str], Source]) -> Record:
    """Read one record file.

    Raises `BadReferenceError` if it is no Parquet file, or one without the columns of references.

    Parameters
    ----------
    data : buffer
        The file.
    size : int
        Most references it may hold.
    source_of : callable
        The source that a URL means.
    """
    parquet = pyarrow_parquet()
    import pyarrow

    try:
        file = parquet.ParquetFile(
            pyarrow.BufferReader(data),
            read_dictionary=["path", "raw"],
            page_checksum_verification=True,
        )
        _check_size(file.metadata, size, len(data))
        # Other columns may be there, of any type: they are not read.
        columns = [name for name in ("path", "offset", "size", "raw") if name in file.schema.names]
        table = file.read(columns).combine_chunks().unify_dictionaries()
        series = (file.metadata.metadata or {}).get(SERIES.encode())
        return _record(table, source_of, None if series is None else series.decode())
    except VirtualZarrError:
        raise
    except (pyarrow.ArrowException, OSError, ValueError, LookupError, ArithmeticError) as error:
        raise BadReferenceError(f"no Parquet file of references: {error}") from error


def _check_size(metadata: Any, size: int, nbytes: int) -> None:
    """Refuse a file that says it is larger than one of references can be, before it is read."""
    if metadata.num_rows > size:
        raise BadReferenceError(f"{metadata.num_rows} references in a file of at most {size}")
    total = sum(metadata.row_group(i).total_byte_size for i in range(metadata.num_row_groups))
    if total > _MOST_BYTES:
        raise BadReferenceError(f"a file of {nbytes} bytes that unpacks to {total}")


def _record(table: Any, source_of: Callable[[str], Source], series: str | None) -> Record:
    rows = table.num_rows
    names = table.column_names
    source = np.full(rows, _NONE, np.int32)
    offset, length = (_integers(table, name) for name in ("offset", "size"))
    if (offset < 0).any() or (length < 0).any():
        raise BadReferenceError("an offset or a size is negative")
    sources: list[Source] = []
    if "path" in names:
        code, texts = _dictionary_codes(table, "path")
        # The URL of an inline chunk is not looked at.
        sources = [source_of(text) if text else Source.inline(b"") for text in _texts(texts)]
        source[:] = code
        empty = np.array([source.is_inline for source in sources] + [True])
        source[empty[code]] = _NONE
        # fsspec's convention: offset and size 0 mean the whole file.
        length[(offset == 0) & (length == 0)] = -1
    if "raw" in names:
        code, texts = _dictionary_codes(table, "raw")
        inline = code >= 0
        heap, start, size = _heap(texts)
        if inline.any():
            source[inline] = len(sources)
            offset[inline], length[inline] = start[code[inline]], size[code[inline]]
            sources.append(Source.inline(heap))
    offset[source < 0] = length[source < 0] = 0
    return Record(sources, source, offset, length, series)


def _integers(table: Any, name: str) -> Ints:
    """A column of whole numbers; where there are nulls, fastparquet wrote floats."""
    if name not in table.column_names:
        return np.zeros(table.num_rows, np.int64)
    import pyarrow

    kind = table[name].type
    if not (pyarrow.types.is_integer(kind) or pyarrow.types.is_floating(kind)):
        raise BadReferenceError(f"the column {name!r} holds {kind}")
    column = table[name].combine_chunks().fill_null(0).to_numpy(zero_copy_only=False)
    with np.errstate(invalid="ignore"):
        numbers = np.array(column.astype(np.int64))
    if (numbers != column).any():
        raise BadReferenceError(f"the column {name!r} holds numbers that are no byte counts")
    return numbers


def _dictionary_codes(table: Any, name: str) -> tuple[Ints, Any]:
    """Row of the distinct values for each row, -1 for null, and these values."""
    import pyarrow

    column = table[name].combine_chunks()
    kind = getattr(column.type, "value_type", column.type)
    if not any(getattr(pyarrow.types, f"is_{one}")(kind) for one in _TEXTS):
        raise BadReferenceError(f"the column {name!r} holds {kind}")
    if pyarrow.types.is_null(kind):
        return np.full(table.num_rows, _NONE), pyarrow.array([], pyarrow.binary())
    # URLs repeat: each distinct one becomes Python text once.
    if not pyarrow.types.is_dictionary(column.type):
        column = column.dictionary_encode()
    code = column.indices.fill_null(_NONE).to_numpy(zero_copy_only=False).astype(np.int64)
    values = column.dictionary
    valid = values.is_valid().to_numpy(zero_copy_only=False)
    if not valid.all():
        code[~np.append(valid, True)[code]] = _NONE
    return code, values


def _texts(values: Any) -> list[str]:
    import pyarrow

    texts = values.cast(pyarrow.string()).to_pylist()
    return ["" if text is None else text for text in texts]


def _heap(values: Any) -> tuple[bytes, Ints, Ints]:
    """Distinct inline chunks side by side, and where each is."""
    import pyarrow

    chunks = [chunk or b"" for chunk in values.cast(pyarrow.binary()).to_pylist()]
    chunks = [_from_base64(chunk) if chunk.startswith(_BASE64) else chunk for chunk in chunks]
    size = np.array([len(chunk) for chunk in chunks], np.int64)
    return b"".join(chunks), np.cumsum(size) - size, size


def _from_base64(chunk: bytes) -> bytes:
    try:
        return base64.b64decode(chunk[len(_BASE64) :], validate=True)
    except binascii.Error as error:
        raise BadReferenceError(f"the inline data do not decode: {error}") from error


class RecordChunks(ManifestChunks):
    """Chunks of an array whose references lie in record files, which are read when needed.

    Parameters
    ----------
    shape : tuple of int
        Cells along each axis.
    record_size : int
        References in each file but the last.
    read : callable
        Returns the record of a number; None where there is no such file: chunks never written.
    """

    def __init__(
        self, shape: tuple[int, ...], record_size: int, read: Callable[[int], Record | None]
    ) -> None:
        self.shape = tuple(shape)
        self.record_size = record_size
        self._read = read
        self._whole: Manifest | None = None
        self._files, self._pins = {}, {}
        self._table: list[Source] = []
        self._rows: dict[Source, int] = {}
        self._lock = ForkSafeLock()
        self._records: LRUCache[int, tuple[Any, ...] | None] = LRUCache(CACHED)

    @property
    def manifest(self) -> Manifest:  # type: ignore[override]
        """All references; record files not read yet are read now."""
        if self._whole is None:
            ncells = math.prod(self.shape)
            if ncells > _CELLS_ALWAYS_FINE:
                self._check_dense(ncells)
            source, offset, length = self._take(np.arange(ncells))
            source, offset, length = (
                squeeze_constant(column.reshape(self.shape)) for column in (source, offset, length)
            )
            self._whole = Manifest(self.shape, Sources(self._table), source, offset, length)
        return self._whole

    def _check_dense(self, ncells: int) -> None:
        count = -(-ncells // self.record_size)
        if count > _CELLS_ALWAYS_FINE // _CELLS_PER_REFERENCE:
            raise UnsupportedError(f"{ncells} cells in {count} record files are too many to load")

    def locate(self, projection: Projection) -> LocatedChunks:
        """Find the chunks of the cells that a projection touches; missing ones are left out."""
        cells = projection.cells()
        flat = np.zeros(len(cells), np.int64)
        for axis, count in enumerate(self.shape):
            flat = flat * count + cells[:, axis]
        source, offset, length = self._take(flat)
        present = np.flatnonzero(source >= 0)
        return LocatedChunks(
            present, source[present].astype(np.int64), offset[present], length[present], self._file
        )

    def _take(self, flat: Ints) -> tuple[npt.NDArray[np.int32], Ints, Ints]:
        """The references of cells by their C-order numbers."""
        record, row = np.divmod(flat, self.record_size)
        columns = (np.full(len(flat), _NONE, np.int32), *np.zeros((2, len(flat)), np.int64))
        # Cells in C order, the usual case, cut into slices; others are gathered record by record.
        if len(record) and (record[1:] >= record[:-1]).all():
            cuts = [0, *(np.flatnonzero(np.diff(record)) + 1).tolist(), len(record)]
            parts: Any = (slice(a, b) for a, b in pairwise(cuts))
        else:
            parts = (np.flatnonzero(record == number) for number in np.unique(record).tolist())
        for part in parts:
            number = int(record[part][0])
            loaded = self._record(number)
            if loaded is None:
                continue
            if int(row[part].max()) >= len(loaded[0]):
                raise BadReferenceError(
                    f"record {number} has only {len(loaded[0])} references: it lacks some"
                )
            for column, values in zip(columns, loaded, strict=True):
                column[part] = values[row[part]]
        return columns

    def _record(self, number: int) -> tuple[Any, ...] | None:
        """The columns of a record, with sources by their rows in the table of all."""
        # Held while reading, too, so that threads that want one record read it once.
        with self._lock:
            columns = self._records.get(number, _UNREAD)
            if columns is not _UNREAD:
                return columns
            record, columns = self._read(number), None
            if record is not None:
                rows = [self._row(source) for source in record.sources]
                source = np.array([*rows, _NONE], np.int32)[record.source]
                columns = (source, record.offset, record.length)
            self._records.put(number, columns)
            return columns

    def _row(self, source: Source) -> int:
        row = self._rows.get(source)
        if row is None:
            self._table.append(source)
            row = self._rows[source] = len(self._table) - 1
        return row

    def _open_file(self, row: int) -> ByteFile:
        return open_source(self._table[row])

    def __reduce__(self) -> tuple[Any, ...]:
        return RecordChunks, (self.shape, self.record_size, self._read)
