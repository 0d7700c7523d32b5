"""Scanning GRIB files of ten thousand messages, beside cfgrib, and decoding beside ecCodes."""

from __future__ import annotations

import tempfile
from functools import partial
from pathlib import Path

import numpy as np

from benchmarks._table import Row, alternate, row


def write(path: Path, edition: int, steps: int) -> bytes:
    """Write ten parameters on 25 levels, each at some steps; return one of the messages."""
    import eccodes

    handle = eccodes.codes_new_from_samples(
        f"regular_ll_pl_grib{edition}", eccodes.CODES_PRODUCT_GRIB
    )
    values = np.random.default_rng(0).random(eccodes.codes_get_size(handle, "values"))
    eccodes.codes_set_values(handle, values)
    with open(path, "wb") as file:
        for name in ("t", "u", "v", "q", "z", "r", "w", "d", "vo", "pv"):
            eccodes.codes_set(handle, "shortName", name)
            for level in range(25):
                eccodes.codes_set(handle, "level", 1000 - 30 * level)
                for step in range(steps):
                    eccodes.codes_set(handle, "step", step)
                    eccodes.codes_write(handle, file)
    one: bytes = eccodes.codes_get_message(handle)
    return one


def ours(path: Path) -> None:
    """Scan the file."""
    from virtualzarr.formats.grib import scan

    assert scan(path)["t"].ndim == 4


def cfgrib(path: Path) -> None:
    """Index the file, and make a dataset of it."""
    import cfgrib as package

    assert "t" in package.open_file(path, indexpath="").variables


def decode_ours(message: bytes, size: int) -> None:
    """Decode one field."""
    from virtualzarr.codecs import make
    from virtualzarr.codecs.core.base import ChunkSpec

    make("virtualzarr.grib").decode(message, ChunkSpec((size,), np.dtype("f8")))


def decode_eccodes(message: bytes) -> None:
    """Decode one field."""
    import eccodes

    handle = eccodes.codes_new_from_message(message)
    eccodes.codes_get_values(handle)
    eccodes.codes_release(handle)


def field_of_a_million(packing: str) -> bytes:
    """Return a message of a million points."""
    import eccodes

    handle = eccodes.codes_new_from_samples("regular_ll_pl_grib2", eccodes.CODES_PRODUCT_GRIB)
    eccodes.codes_set(handle, "Ni", 1000)
    eccodes.codes_set(handle, "Nj", 1000)
    eccodes.codes_set_values(handle, np.random.default_rng(0).random(10**6).cumsum())
    eccodes.codes_set(handle, "packingType", packing)
    one: bytes = eccodes.codes_get_message(handle)
    return one


def run(quick: bool = False) -> list[Row]:
    """Time all."""
    rows = []
    steps = 4 if quick else 40
    with tempfile.TemporaryDirectory() as folder:
        for edition in (1, 2):
            path = Path(folder, f"{edition}.grib")
            write(path, edition, steps)
            works = {"ours": partial(ours, path), "cfgrib": partial(cfgrib, path)}
            name = f"scan {250 * steps:,} messages of edition {edition}"
            rows.append(row(name, alternate(works, 1 if quick else 2), "<= 0.2 x cfgrib"))
    for packing in ("grid_simple", "grid_ccsds", "grid_complex_spatial_differencing"):
        message = field_of_a_million(packing)
        times = alternate(
            {
                "ours": partial(decode_ours, message, 10**6),
                "ecCodes": partial(decode_eccodes, message),
            },
            5,
        )
        rows.append(row(f"decode a million points, {packing}", times, "<= 1.3 x ecCodes"))
    return rows
