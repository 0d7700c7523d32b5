"""TIFF files beside tifffile: many tiles and pages, near and far; publishing, reading."""

from __future__ import annotations

import struct
import tempfile
import zlib
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import tifffile

from benchmarks._table import Row, alternate, row
from benchmarks.hdf5_scan import far

THREADS = 2


def write_tiles(path: Path, side: int) -> None:
    """Write one page of side x side tiles, each of 16 x 16 samples."""
    raw = zlib.compress(bytes(256))
    shape = (16 * side, 16 * side)
    tifffile.imwrite(
        path, (raw for _ in range(side * side)), shape=shape, dtype="u1", tile=(16, 16),
        compression="zlib", metadata=None,
    )  # fmt: skip


def write_pages(path: Path, pages: int) -> None:
    """Write many pages of one strip each, with a directory of their own."""
    raw = zlib.compress(bytes(256))
    entries = [(256, 16), (257, 16), (258, 8), (259, 8), (262, 1), (277, 1), (278, 16)]
    size = len(raw) + 2 + 12 * (len(entries) + 2) + 4
    with path.open("wb") as file:
        file.write(b"II*\0" + struct.pack("<I", 8 + len(raw)))
        for page in range(pages):
            at = 8 + page * size
            tags = sorted([*entries, (273, at), (279, len(raw))])
            following = at + size + len(raw) if page < pages - 1 else 0
            table = b"".join(struct.pack("<HHII", code, 4, 1, value) for code, value in tags)
            file.write(raw + struct.pack("<H", len(tags)) + table + struct.pack("<I", following))


def write_image(path: Path, megabytes: int) -> None:
    """Write an image of noisy slopes in deflated tiles of 512 KiB."""
    rng = np.random.default_rng(0)
    side = round((megabytes * (1 << 20) / 2) ** 0.5 / 512) * 512
    slopes = (np.cumsum(rng.integers(-3, 5, (512, 512)), 1) & 0xFFFF).astype("u2")
    tile = zlib.compress(slopes.tobytes(), 6)
    tiles = (side // 512) ** 2
    tifffile.imwrite(
        path, (tile for _ in range(tiles)), shape=(side, side), dtype="u2", tile=(512, 512),
        compression="zlib", metadata=None,
    )  # fmt: skip


def write_stack(path: Path, pages: int) -> None:
    """Write many pages of compressed noise, each between its directory and the next."""
    rng = np.random.default_rng(0)
    with tifffile.TiffWriter(path) as tiff:
        for page in rng.integers(0, 256, (pages, 1, 1700), "u1"):
            tiff.write(page, contiguous=False, metadata=None, compression="zlib")


def scan(path: Path | str) -> Any:
    """Scan the file."""
    from virtualzarr.formats import tiff

    return tiff.scan(path)["0"]


def parse(path: Path) -> list[Any]:
    """Let tifffile find the places of all strips and tiles."""
    with tifffile.TiffFile(path) as tiff:
        pages = [page for series in tiff.series for page in series if page is not None]
        return [(page.dataoffsets, page.databytecounts) for page in pages]


def parse_far(url: str) -> list[Any]:
    """Do the same over a link, with large blocks of which none is forgotten."""
    from fsspec.core import open as open_far

    options = {
        "block_size": 1 << 20,
        "cache_type": "blockcache",
        "cache_options": {"maxblocks": 999},
    }
    with open_far(url, "rb", **options) as file, tifffile.TiffFile(file) as tiff:
        pages = [page for series in tiff.series for page in series if page is not None]
        return [(page.dataoffsets, page.databytecounts) for page in pages]


def fsspec(path: Path, target: Path) -> None:
    """Let tifffile write references."""
    with tifffile.imread(path, aszarr=True) as store:
        store.write_fsspec(target, "file://")


def publish(path: Path, target: Path) -> None:
    """Scan and write references."""
    from virtualzarr.formats import tiff

    tiff.scan(path).publish(target)


def read(array: Any) -> None:
    """Read everything through references."""
    array[...]


def imread(path: Path) -> None:
    """Read everything with tifffile."""
    tifffile.imread(path, maxworkers=THREADS)


def run(quick: bool = False) -> list[Row]:
    """Measure."""
    from virtualzarr.config import config

    side, pages, megabytes = (100, 1000, 64) if quick else (317, 10_000, 1024)
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        tiles, many, image = (Path(folder, f"{name}.tif") for name in ("tiles", "pages", "image"))
        write_tiles(tiles, side)
        write_pages(many, pages)
        write_image(image, megabytes)
        for name, path, target in (
            (f"{side * side:,} tiles", tiles, "<= 0.05 s"),
            (f"{pages:,} pages", many, "<= 2 x tifffile"),
        ):
            times = alternate({"ours": partial(scan, path), "tifffile": partial(parse, path)})
            rows.append(row(f"scan {name}", times, target))
        out = {tool: Path(folder, f"{tool}.json") for tool in ("ours", "tifffile")}
        times = alternate(
            {
                "ours": partial(publish, tiles, out["ours"]),
                "tifffile": partial(fsspec, tiles, out["tifffile"]),
            }
        )
        rows.append(row(f"scan and publish {side * side:,} tiles", times))
        write_stack(Path(folder, "stack.tif"), pages)
        with far(folder) as url:
            for name, path in (("tiles", tiles), ("pages", Path(folder, "stack.tif"))):
                place = f"{url}/{path.name}"
                works = {"ours": partial(scan, place), "tifffile": partial(parse_far, place)}
                count = side * side if name == "tiles" else pages
                rows.append(row(f"scan {count:,} {name}, 20 ms away", alternate(works), "<= 0.9 s"))
        array = scan(image)
        before, config.threads = config.threads, THREADS
        try:
            times = alternate({"ours": partial(read, array), "tifffile": partial(imread, image)})
        finally:
            config.threads = before
        rows.append(row(f"read {megabytes:,} MiB of deflate, {THREADS} threads", times, "<= 1 x"))
    return rows
