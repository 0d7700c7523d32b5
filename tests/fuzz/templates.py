"""Files that are alike, damaged: scanned by a template, they must be what a scan of them is.

`python -m tests.fuzz templates --seconds 900` flips bytes of small files of several libraries, with
and without right checksums, and cuts them off.
"""

from __future__ import annotations

import random
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from tests.fuzz.repair import repaired
from virtualzarr.batches import Row
from virtualzarr.errors import VirtualZarrError, count_warnings
from virtualzarr.formats.templates.recorder import Recorder
from virtualzarr.formats.templates.template import Template
from virtualzarr.ingest.detect import scan
from virtualzarr.ingest.differences import find_difference
from virtualzarr.stores.location import Location


def make_template(path: Path | str) -> Template | str:
    """Return the template of a file, or why there is none."""
    recorder = Recorder()
    before = count_warnings()
    group = scan(path, recorder=recorder)
    if count_warnings() > before:
        return "warnings"
    try:
        return Template(group, recorder, recorder.source)
    except (ValueError, VirtualZarrError) as error:
        return str(error)


def read_one(template: Template, path: Path | str) -> Row | None:
    """Scan a file by a template; None if it does not fit."""
    (scanned,) = template.read([Location.of(path)])
    return scanned


def compare(template: Template, path: Path | str) -> tuple[bool, str]:
    """Return whether a template fits a file, and in what its result differs from a scan."""
    scanned = read_one(template, path)
    if scanned is None:
        return False, ""
    before = count_warnings()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            parsed = scan(path)
    except VirtualZarrError as error:
        return True, f"a scan fails: {error}"
    if count_warnings() > before:
        return True, "a scan warns"
    return True, find_difference(scanned.group(), parsed)


@dataclass(frozen=True)
class Kind:
    """How a library writes files that are alike: called with path, random numbers and a number."""

    name: str
    write: Callable[[Path, np.random.Generator, int], None]


def _write_h5py(libver: str) -> Callable[[Path, np.random.Generator, int], None]:
    def write(path: Path, rng: np.random.Generator, number: int) -> None:
        with h5py.File(path, "w", libver=libver) as file:
            file.attrs["number"] = number
            file.attrs["when"] = np.bytes_(f"2026-01-{number:02d}")
            shapes = {"x": (4, 6), "long": (40, 6), "one": (4, 6)}
            chunks = {"x": (2, 3), "long": (2, 3), "one": (4, 6)}
            for name, shape in shapes.items():
                limits = {"x": (None, 6), "long": (None, 6), "one": (4, 6)}[name]
                dataset = file.create_dataset(
                    name, shape, "i4", chunks=chunks[name], maxshape=limits, compression="gzip"
                )
                dataset.attrs["scale"] = np.float32(number)
            file.create_dataset("fixed", (6, 6), "i4", chunks=(2, 3), compression="gzip")
            file.create_dataset("plain", (5,), "f8")
            file.create_dataset("both", (4, 4), "i2", chunks=(2, 2), maxshape=(None, None))
            file.create_group("inner").create_dataset("deep", (3,), "i2")
            for name in ("x", "long", "one", "fixed", "both"):
                file[name][...] = rng.integers(0, 1 << 14, file[name].shape)
            file["plain"][...] = rng.random(5)
            file["inner/deep"][...] = number

    return write


def _write_netcdf4(path: Path, rng: np.random.Generator, number: int) -> None:
    import netCDF4

    with netCDF4.Dataset(path, "w") as file:
        for name in range(12):  # so many that they lie in a heap
            file.setncattr(f"note_{name}", f"{name} of {number:03d}")
        file.createDimension("time", None)
        file.createDimension("x", 6)
        time = file.createVariable("time", "f8", ("time",))
        time.units = f"hours since 2000-01-{number:02d}"
        name = file.createVariable("name", "S1", ("x",))
        air = file.createVariable(
            "air", "i2", ("time", "x"), zlib=True, shuffle=True, chunksizes=(2, 6), fill_value=-9
        )
        air.add_offset = float(number)
        time[:] = np.arange(5) + number
        air[:] = rng.integers(0, 99, (5, 6))
        name[:] = np.array(list("abcdef"), "S1")


def _write_h5netcdf(path: Path, rng: np.random.Generator, number: int) -> None:
    import h5netcdf

    with h5netcdf.File(path, "w") as file:
        file.dimensions = {"x": 8}
        file.attrs["title"] = "alike"
        values = file.create_variable("v", ("x",), "f4", chunks=(4,), compression="gzip")
        values.attrs["number"] = np.int16(number)
        values[:] = rng.integers(0, 5, 8)


def _write_netcdf3(form: str) -> Callable[[Path, np.random.Generator, int], None]:
    def write(path: Path, rng: np.random.Generator, number: int) -> None:
        import netCDF4

        with netCDF4.Dataset(path, "w", format=form) as file:
            file.title, file.when = "alike", f"2026-01-{number:02d}"
            file.createDimension("time", None)
            file.createDimension("x", 7)
            for name, dims in {"flag": ("time", "x"), "air": ("time", "x"), "x": ("x",)}.items():
                variable = file.createVariable(name, "i2" if name == "flag" else "f4", dims)
                variable.units, variable.valid_range = "K", np.array([0, number], "i2")
                variable.scale_factor = float(number)
                shape = (4, 7) if len(dims) > 1 else 7
                variable[:] = rng.integers(0, 99, shape)
            file.createVariable("plain", "i1", ("x",))[:] = rng.integers(0, 99, 7)
            file.createVariable("room", "f8", ("x",) * 3)[:] = rng.random((7, 7, 7))

    return write


def _write_tiff(**options: Any) -> Callable[[Path, np.random.Generator, int], None]:
    def write(path: Path, rng: np.random.Generator, number: int) -> None:
        import tifffile

        tiepoint = (33922, 12, 6, (0, 0, 0, 4e5, 5e6, 0), True)
        scale = (33550, 12, 3, (10.0, 10.0, 0.0), True)
        metadata = f"<GDALMetadata>{number:03d}</GDALMetadata>"
        keywords = {
            "tile": (16, 16), "compression": "zlib", "metadata": None,
            "datetime": f"2026:01:{number:02d} 00:00:00",
            "extratags": [tiepoint, scale, (42112, 2, len(metadata) + 1, metadata, True)],
        } | options  # fmt: skip
        bigtiff, overviews = keywords.pop("bigtiff", False), keywords.pop("subifds", 0)
        with tifffile.TiffWriter(path, bigtiff=bigtiff) as file:
            shape = keywords.pop("shape", (60, 70))
            image = rng.integers(0, 1 << 12, shape, "u2")
            file.write(image, subifds=overviews, **keywords)
            if overviews:
                file.write(image[::2, ::2], subfiletype=1, **keywords)

    return write


KINDS = [
    Kind("h5py earliest", _write_h5py("earliest")),
    Kind("h5py v110", _write_h5py("v110")),
    Kind("h5py latest", _write_h5py("latest")),
    Kind("netCDF4", _write_netcdf4),
    Kind("h5netcdf", _write_h5netcdf),
    Kind("netCDF-3", _write_netcdf3("NETCDF3_CLASSIC")),
    Kind("netCDF-3 of 64 bits", _write_netcdf3("NETCDF3_64BIT_OFFSET")),
    Kind("CDF-5", _write_netcdf3("NETCDF3_64BIT_DATA")),
    Kind("TIFF", _write_tiff()),
    Kind("TIFF of strips", _write_tiff(tile=None, rowsperstrip=7, predictor=True)),
    Kind("BigTIFF", _write_tiff(bigtiff=True, compression="zstd")),
    Kind("TIFF of planes", _write_tiff(shape=(3, 40, 50), photometric="rgb")),
    Kind("TIFF of pages", _write_tiff(shape=(3, 40, 50), photometric="minisblack")),
    Kind("TIFF with an overview", _write_tiff(subifds=1)),
    Kind("TIFF without compression", _write_tiff(compression=None)),
]


def find_alike(kind: Kind, folder: Path, most: int = 24) -> tuple[Template, Path] | None:
    """Write files until one fits the template of another; None if none of so many does."""
    templates: list[Template] = []
    for number in range(1, most):
        path = folder / f"{kind.name.replace(' ', '-')}-{number}.h5"
        kind.write(path, np.random.default_rng(number), number)
        for template in templates:
            if read_one(template, path) is not None:
                return template, path
        made = make_template(path)
        if isinstance(made, Template):
            templates.append(made)
    return None


def list_places(template: Template, path: Path, free: bool = False) -> list[int]:
    """Return all bytes of a file that a template reads, or only those that it does not compare."""
    data, row = path.read_bytes(), bytearray(template.image.nbytes)
    places: list[int] = []
    for pointer, start, low, high in template.image.parts:
        if pointer >= 0:
            start += int.from_bytes(row[pointer : pointer + 8], "little")
        row[low:high] = data[start : start + high - low]
        which = range(high - low)
        if free:
            which = np.flatnonzero(template.mask[low:high] == 0).tolist()
        places += [start + place for place in which]
    return places


def flip(path: Path, place: int, value: int) -> None:
    """Change a byte of a file."""
    with open(path, "r+b") as file:
        file.seek(place)
        old = file.read(1)[0]
        file.seek(place)
        file.write(bytes([old ^ value]))


def damage(
    template: Template, path: Path, places: Iterator[tuple[int, int]]
) -> Iterator[tuple[str, bool, str]]:
    """Yield what was done to a file, whether the template fits, and what differs from a scan."""
    for place, value in places:
        flip(path, place, value)
        fits, difference = compare(template, path)
        flip(path, place, value)
        yield f"byte {place} ^ {value}", fits, difference


def damage_checked(
    template: Template, path: Path, chance: random.Random, count: int
) -> Iterator[tuple[str, bool, str]]:
    """Flip bytes, often such as may differ, and repair checksums; yield as `damage` does."""
    whole = path.read_bytes()
    places = list_places(template, path), list_places(template, path, free=True)
    for _ in range(count):
        raw = bytearray(whole)
        flips = [
            (chance.choice(chance.choice(places)), chance.randrange(1, 256))
            for _ in range(chance.choice((1, 1, 1, 2, 5)))
        ]
        for place, value in flips:
            raw[place] ^= value
        path.write_bytes(repaired(bytes(raw)))
        yield f"{flips}, repaired", *compare(template, path)
    path.write_bytes(whole)


def cut(template: Template, path: Path, sizes: Iterator[int]) -> Iterator[tuple[str, bool, str]]:
    """Yield what comes of a file at other lengths, as `damage` does."""
    whole = path.read_bytes()
    for size in sizes:
        path.write_bytes(whole[:size].ljust(size, b"\0"))
        fits, difference = compare(template, path)
        yield f"{size} bytes", fits, difference
    path.write_bytes(whole)


def look(chance: random.Random, seconds: float) -> Iterator[tuple[str, str, str]]:
    """Damage files for a time; yield where a template and a scan disagree: kind, damage, how."""
    end = time.monotonic() + seconds
    with tempfile.TemporaryDirectory() as folder:
        pairs = [(kind.name, find_alike(kind, Path(folder))) for kind in KINDS]
        while time.monotonic() < end:
            for name, pair in pairs:
                if pair is None:
                    yield name, "", "no two files are alike"
                    return
                for what, _, difference in _damage_somehow(*pair, chance):
                    if difference:
                        yield name, what, difference


def _damage_somehow(
    template: Template, path: Path, chance: random.Random
) -> Iterator[tuple[str, bool, str]]:
    places = list_places(template, path)
    some = [(chance.choice(places), chance.randrange(1, 256)) for _ in range(200)]
    sizes = [chance.randrange(path.stat().st_size + 99) for _ in range(10)]
    yield from damage(template, path, iter(some))
    yield from damage_checked(template, path, chance, 200)
    yield from cut(template, path, iter(sizes))
