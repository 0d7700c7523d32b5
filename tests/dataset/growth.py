"""Costs of appends as a dataset grows: CPU time, bytes, writes and the size of the head.

Groups of one file each are virtual arrays of files that are not there, so that nothing but the
appends is measured. Files are not synced: that is the disk's time, not the CPU's.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from unittest import mock

import numpy as np

from virtualzarr.array import Array
from virtualzarr.dataset import segment_opener
from virtualzarr.dataset.create import create_dataset
from virtualzarr.dataset.directory import Directory
from virtualzarr.dataset.operations import Get, Put, Replace
from virtualzarr.dataset.storage import Storage
from virtualzarr.hierarchy.group import Group
from virtualzarr.manifest import Manifest
from virtualzarr.manifest.sources import Source, Sources
from virtualzarr.metadata.node_documents import from_documents
from virtualzarr.stores.files import ByteFile
from virtualzarr.stores.location import Location


def build_group(
    first: int,
    variables: int = 10,
    rows: int = 1,
    size: int = 8,
    *,
    step: int = 1,
    chunk: int = 1,
    files: int = 1,
    width: int | None = None,
) -> Group:
    """Return what scanning files gives, each with a part of some rows: variables of so many rows
    and columns to a chunk.
    """
    width = width or size
    count, each = rows // chunk, rows // files
    names = [f"/data/2031/satellite-{first + step * each * k:012d}.nc" for k in range(files)]
    members = {"time": _array("time", (rows,), (chunk,), "int64", ["time"])}
    values = first + step * np.arange(rows, dtype="<i8")
    manifest = Manifest(
        (count,), Sources([Source.inline(values.tobytes())]), 0, 8 * chunk * np.arange(count),
        8 * chunk,
    )  # fmt: skip
    members["time"] = Array.from_manifest(members["time"].metadata, manifest, "time")
    source, row = np.divmod(np.arange(count)[:, None], each // chunk)
    table = Sources(map(Source, names))
    for k in range(variables):
        array = _array(f"v{k}", (rows, size), (chunk, width), "float32", ["time", "x"])
        columns = np.arange(-(-size // width))
        offset = 4096 + 1000 * k + 4 * chunk * (size * row + width * columns)
        shape = count, len(columns)
        sources = np.broadcast_to(source, shape)
        manifest = Manifest(shape, table, sources, offset, 4 * chunk * width)
        members[f"v{k}"] = Array.from_manifest(array.metadata, manifest, f"v{k}")
    return Group({}, members, "")


def _array(
    path: str, shape: tuple[int, ...], chunks: tuple[int, ...], dtype: str, dims: list[str]
) -> Array:
    document = {
        "zarr_format": 3, "node_type": "array", "shape": list(shape), "data_type": dtype,
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": list(chunks)}},
        "chunk_key_encoding": {"name": "default"}, "fill_value": 0,
        "codecs": [{"name": "bytes", "configuration": {"endian": "little"}}],
        "dimension_names": dims, "attributes": {"units": "1"},
    }  # fmt: skip
    metadata = from_documents({"zarr.json": document})
    return Array.from_manifest(
        metadata, Manifest.missing([-(-n // c) for n, c in zip(shape, chunks, strict=True)]), path
    )


@dataclass
class Costs:
    """What commits cost, one number for each."""

    seconds: list[float] = field(default_factory=list)
    nbytes: list[int] = field(default_factory=list)
    writes: list[int] = field(default_factory=list)

    def describe(self, number: int, window: int, head: int) -> str:
        """Return a line on the last commits."""
        seconds = sorted(self.seconds[-window:])
        nbytes, writes = self.nbytes[-window:], self.writes[-window:]
        times = [statistics.mean(seconds), seconds[int(0.99 * (len(seconds) - 1))], seconds[-1]]
        counts = [int(statistics.mean(nbytes)), max(nbytes), max(writes), head]
        row = [str(number), *(f"{each:.1f}" for each in times), *map(str, counts)]
        return " ".join(f"{cell:>9}" for cell in row)


def skip_sync(descriptor: int) -> None:
    """Do nothing: a mock would list its calls, which each collection of garbage looks through."""


@contextmanager
def count_writes() -> Iterator[list[int]]:
    """Count bytes and writes of all directories, head included; nothing is synced."""
    counts = [0, 0, 0]
    real = Storage.perform

    def perform(self: Storage, operation: object, has_turn: bool = False) -> object:
        for one in operation if isinstance(operation, list) else [operation]:
            if isinstance(one, Put | Replace):
                counts[0] += len(one.data)
                counts[1] += 1
            if isinstance(one, Replace):
                counts[2] = len(one.data)
        return real(self, operation, has_turn)

    with (
        mock.patch.object(Storage, "perform", perform),
        mock.patch("os.fsync", skip_sync),
    ):
        yield counts


@contextmanager
def count_reads() -> Iterator[list[str]]:
    """List the objects of directories that are read, segments included."""
    names: list[str] = []
    real, real_open = Directory.get, segment_opener.open_file

    def get(self: Directory, operation: Get) -> tuple[bytes, str] | None:
        names.append(operation.name)
        return real(self, operation)

    def open_file(location: Location) -> ByteFile:
        names.append(location.uri)
        return real_open(location)

    with (
        mock.patch.object(Directory, "get", get),
        mock.patch.object(segment_opener, "open_file", open_file),
    ):
        yield names


COLUMNS = ("files", "mean ms", "p99 ms", "max ms", "bytes", "max bytes", "writes", "head")


def measure(folder: Path, stops: list[int], window: int = 1000) -> None:
    """Append groups one by one, and print what the last ones before each stop cost.

    What comes before those is appended by thousands: segments are as many then as merges leave.
    """
    print(" ".join(f"{name:>9}" for name in COLUMNS))
    costs = Costs()
    with count_writes() as counts:
        dataset = create_dataset(folder / "growing", build_group(0), "time")
        number = 1
        for stop in stops:
            while number + 1000 + window <= stop:
                dataset = dataset.append(build_group(number, rows=1000, files=1000))
                number += 1000
            while number <= stop:
                counts[:2] = 0, 0
                group = build_group(number)
                start = time.process_time()
                dataset = dataset.append(group)
                costs.seconds.append(1000 * (time.process_time() - start))
                costs.nbytes.append(counts[0])
                costs.writes.append(counts[1])
                number += 1
            print(costs.describe(stop, window, counts[2]), flush=True)
