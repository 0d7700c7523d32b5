"""Writer of references in Parquet: a folder of record files, and the metadata that name them."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor

from virtualzarr.config import config
from virtualzarr.errors import PublishError
from virtualzarr.metadata import dumps_json, loads_json
from virtualzarr.references.kerchunk.fingerprints import Fingerprints
from virtualzarr.references.kerchunk.read_parquet import FINGERPRINTS, METADATA, record_name
from virtualzarr.references.kerchunk.write_json import dumps
from virtualzarr.references.kerchunk.write_records import RECORD_SIZE, record_tables, write_table
from virtualzarr.references.write_plan import WriteTask
from virtualzarr.stores.atomic_files import AtomicFolder, write_errors


def write_parquet(
    task: WriteTask,
    *,
    record_size: int | None = None,
    keep: Mapping[str, int] | None = None,
    series: str | None = None,
) -> int:
    """Write a folder of references.

    Parameters
    ----------
    keep, series : mapping of int by path, and str, optional
        Of a folder that is there: how many cells of each array stay as they are, and what its
        records say of themselves. Only records with others are written.

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
    with AtomicFolder(task.location, growing=growing) as target:
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
                    pool.submit(write_table, table, target.file(record_name(path, number)), series)
                    for number, table in tables
                ]
                for future in work:
                    future.result()
                task.advance(counts.references - before)
        target.write(FINGERPRINTS, dumps(Fingerprints.document(plan.sources())).encode())
        metadata = loads_json(task.documents[METADATA])
        assert isinstance(metadata, dict)
        # Readers compare the series in the records with this one, and so notice a folder that was
        # replaced under them.
        ours = {"series": series} | ({"relative": True} if task.relative else {})
        metadata |= {"record_size": size, "virtualzarr": ours}
        target.write(METADATA, dumps_json(metadata, indent=None))
        # The metadata last: who reads meanwhile finds records that hold what they held, and more.
        target.commit(last=METADATA)
    return target.nbytes
