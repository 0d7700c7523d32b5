"""Writer of references in Parquet: a folder of record files, and the metadata that name them.

Records are built from a manifest by numpy and Arrow without a Python loop.
"""

from __future__ import annotations

import base64
import secrets
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import numpy.typing as npt

from virtualzarr.config import config
from virtualzarr.errors import PublishError
from virtualzarr.manifest import Manifest, Sources
from virtualzarr.metadata import dumps_json, loads_json
from virtualzarr.references.kerchunk.create_folder import create_folder
from virtualzarr.references.kerchunk.fingerprints import Fingerprints
from virtualzarr.references.kerchunk.read_parquet import FINGERPRINTS, record_name
from virtualzarr.references.kerchunk.read_records import SERIES, pyarrow_parquet
from virtualzarr.references.kerchunk.write_json import dumps, flat_reader
from virtualzarr.references.parquet_folder import METADATA
from virtualzarr.references.report import Counts
from virtualzarr.references.write_plan import WriteTask
from virtualzarr.stores.atomic_files import AtomicFolder, write_errors

Ints = npt.NDArray[np.int64]
Rows = npt.NDArray[np.int32]
Mask = npt.NDArray[np.bool_]

RECORD_SIZE = 100_000
"""References in a record file: what readers take in at once."""

_BASE64 = b"base64:"


def record_tables(
    manifest: Manifest, size: int, counts: Counts, first: int = 0
) -> Iterator[tuple[int, Any]]:
    """Yield the records of an array, with their numbers, from that of some cell on.

    Parameters
    ----------
    manifest : Manifest
        All references canonical.
    size : int
        References in a record.
    counts : Counts
        Grows by what there is in the records.
    first : int
        The C-order number of a cell.

    Yields
    ------
    int, pyarrow.Table
    """
    pyarrow_parquet()
    if not manifest.ncells:
        return
    columns = [
        flat_reader(column, manifest.shape)
        for column in (manifest.source, manifest.offset, manifest.length)
    ]
    urls = _Urls(manifest.sources)
    # From the record on that holds the first new cell; earlier ones are full, and stay.
    for number in range(first // size, -(-manifest.ncells // size)):
        start, stop = number * size, min((number + 1) * size, manifest.ncells)
        source, offset, length = (np.array(column(start, stop)) for column in columns)
        counts.references += int(np.count_nonzero(source >= 0))
        yield number, _table(urls, source, offset, length, counts)


class _Urls:
    """The URLs of a table of sources as an Arrow array; an inline source has the empty one."""

    def __init__(self, sources: Sources) -> None:
        import pyarrow

        self.sources = sources
        self.is_inline = np.array([source.is_inline for source in sources], bool)
        self.texts = pyarrow.array([source.uri for source in sources] + [""], pyarrow.string())

    def coded(self, source: Rows, inline: Mask) -> Any:
        """The URL of each row as a dictionary of those that are used."""
        import pyarrow

        row = np.where(inline, len(self.sources), source)
        # The dictionary of a record has only its own URLs, or each record would repeat those of
        # all files.
        used = np.zeros(len(self.texts), bool)
        used[row[row >= 0]] = True
        rank = np.cumsum(used) - 1
        code = rank[row].astype(np.int32)
        indices = pyarrow.array(code, mask=row < 0) if (row < 0).any() else pyarrow.array(code)
        texts = self.texts.take(pyarrow.array(np.flatnonzero(used)))
        return pyarrow.DictionaryArray.from_arrays(indices, texts)


def _table(urls: _Urls, source: Rows, offset: Ints, length: Ints, counts: Counts) -> Any:
    """One record as fsspec reads it."""
    import pyarrow

    present = source >= 0
    inline = present.copy()
    inline[present] = urls.is_inline[source[present]]
    raw = _raw(urls.sources, source, offset, length, inline)
    counts.inlined += int(np.count_nonzero(inline))
    # Offset and size 0 mean the whole file; an empty range must not.
    offset[(length == 0) & (offset == 0)] = 1
    no_range = (length < 0) | inline | ~present
    offset[no_range] = length[no_range] = 0
    text, whole_number = pyarrow.string(), pyarrow.int64()
    coded = pyarrow.dictionary(pyarrow.int32(), text)
    schema = pyarrow.schema(
        [
            pyarrow.field("path", coded, nullable=not present.all()),
            pyarrow.field("offset", whole_number, nullable=False),
            pyarrow.field("size", whole_number, nullable=False),
            pyarrow.field("raw", raw.type),
        ]
    )
    columns = [urls.coded(source, inline), pyarrow.array(offset), pyarrow.array(length), raw]
    return pyarrow.Table.from_arrays(columns, schema=schema)


def _raw(sources: Sources, source: Rows, offset: Ints, length: Ints, inline: Mask) -> Any:
    """The inline chunks as a dictionary, null elsewhere."""
    import pyarrow

    binary = pyarrow.binary()
    if not inline.any():
        return pyarrow.nulls(len(source), binary)
    rows = np.flatnonzero(inline)
    places = np.stack([source[rows], offset[rows], length[rows]], axis=1)
    # Equal inline chunks, such as those of fill values, are stored once in a record.
    distinct, which = np.unique(places, axis=0, return_inverse=True)
    chunks = []
    for row, start, size in distinct.tolist():
        data = sources[row].data or b""
        chunk = data[start:] if size < 0 else data[start : start + size]
        # What begins so, readers decode.
        chunks.append(_BASE64 + base64.b64encode(chunk) if chunk.startswith(_BASE64) else chunk)
    code = np.zeros(len(source), np.int32)
    code[rows] = which.reshape(-1)
    indices = pyarrow.array(code, mask=~inline)
    return pyarrow.DictionaryArray.from_arrays(indices, pyarrow.array(chunks, binary))


def write_table(table: Any, file: Any, series: str) -> None:
    """Write a record, and what it says of itself, as a file that fastparquet and pyarrow read."""
    with pyarrow_parquet().ParquetWriter(
        file,
        table.schema,
        compression="zstd",
        use_dictionary=["path", "raw"],
        # By these, fastparquet knows that there are no nulls, and makes no floats.
        write_statistics=["offset", "size"],
        write_page_checksum=True,
        store_schema=False,
    ) as writer:
        writer.write_table(table, row_group_size=max(1, table.num_rows))
        writer.add_key_value_metadata({SERIES: series})


def write_parquet(
    task: WriteTask,
    *,
    record_size: int | None = None,
    keep: Mapping[str, int] | None = None,
    series: str | None = None,
    target: Any = None,
) -> int:
    """Write a folder of references.

    Parameters
    ----------
    keep, series : mapping of int by path, and str, optional
        Of a folder that is there: how many cells of each array stay as they are, and what its
        records say of themselves. Only records with others are written.
    target : ConditionalObject, optional
        The metadata, in an object store in which only one of several publishers succeeds.

    Returns
    -------
    int
        Bytes written.
    """
    plan, counts, uri = task.plan, task.counts, task.location.uri
    if "{" in uri or "}" in uri:
        raise PublishError(
            "fsspec reads no references in a folder with braces in its name", file=uri
        )
    # An existing folder keeps its record size: cells are found in records by division.
    size = record_size or RECORD_SIZE
    growing = keep is not None
    series = series or secrets.token_hex(8)
    with AtomicFolder(task.location, growing=growing) as folder:
        with write_errors(uri), ThreadPoolExecutor(config.threads) as pool:
            for path, array in plan.arrays.items():
                first = (keep or {}).get(path, 0)
                if growing and first >= array.manifest.ncells:
                    continue
                before = counts.references
                tables = record_tables(array.manifest, size, counts, first)
                # Arrow compresses without the interpreter's lock: records are written side by
                # side.
                work = [
                    pool.submit(write_table, table, folder.file(record_name(path, number)), series)
                    for number, table in tables
                ]
                for future in work:
                    future.result()
                task.advance(counts.references - before)
        fingerprints = {"series": series, **Fingerprints.document(plan.sources())}
        folder.write(FINGERPRINTS, dumps(fingerprints).encode())
        metadata = loads_json(task.documents[METADATA])
        assert isinstance(metadata, dict)
        # Readers compare the series in the records with this one, and so notice a folder that was
        # replaced under them.
        ours: dict[str, Any] = {"series": series, "receipt": task.receipt}
        ours |= {"relative": True} if task.relative else {}
        metadata |= {"record_size": size, "virtualzarr": ours}
        folder.write(METADATA, dumps_json(metadata, indent=None))
        # The metadata last: who reads meanwhile finds records that hold what they held, and more.
        if target is None:
            folder.commit(last=METADATA)
        else:
            create_folder(target, folder.list_files(), series, METADATA)
    return folder.nbytes
