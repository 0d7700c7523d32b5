"""Archives of small netCDF-4 files, alike but for what a test plants."""

import os
import time
from datetime import datetime, timedelta

import netCDF4
import numpy as np

EPOCH = datetime(2000, 1, 1)


def write(path, first, nrows=6, step=6.0, *, times=None, x=(1, 2, 3, 4), **options):
    """Write a file of `nrows` times in hours since 2000; `change(dataset)` comes last."""
    units = options.get("units", "hours since 2000-01-01")
    names = options.get("names", ("air", "sea_a", "sea_b"))
    with netCDF4.Dataset(path, "w") as data:
        data.history = f"written as {os.path.basename(path)} " + "x" * (hash(path) % 9)
        data.createDimension("time", None)
        data.createDimension("x", len(x))
        time_ = data.createVariable("time", options.get("time_type", "f8"), ("time",))
        time_.units = units
        if "calendar" in options:
            time_.calendar = options["calendar"]
        time_[:] = first + step * np.arange(nrows) if times is None else times
        nrows = len(time_)
        data.createVariable("x", "f4", ("x",))[:] = x
        dims = options.get("dims", ("time", "x"))
        for name in names:
            special = options if name in options.get("only", names) else {}
            air = data.createVariable(
                name, special.get("dtype", "<i2"), dims, zlib=True,
                shuffle=special.get("shuffle", False), fill_value=special.get("fill", -9),
                chunksizes=special.get("chunks", (1, len(x))),
                endian=special.get("endian", "native"),
            )  # fmt: skip
            air.scale_factor = special.get("scale", 0.5)
            air.units = special.get("variable_units", "K")
            air.set_auto_maskandscale(False)
            shape = tuple(nrows if dim == "time" else len(x) for dim in dims)
            air[:] = np.arange(np.prod(shape)).reshape(shape) + int(first)
    return path


def write_archive(folder, count=24, **special):
    """Write files of a day; options of single ones by ``_NUMBER``, or of all from one on."""
    files = []
    for k in range(count):
        options = special.get(f"_{k}", {})
        options = {**{n: v for n, v in special.items() if n[0] != "_"}, **options}
        files.append(write(str(folder / f"day{k:03}.nc"), 24.0 * k, 4, **options))
    make_old(files)
    return files


def make_old(files):
    """Date files back: those just written may change without another date."""
    then = time.time() - 100
    for file in files:
        if os.path.exists(file):
            os.utime(file, (then, then))


def months(folder, count=16, first=10, whole=False):
    """Write files of months from November 2003 on, of a row each day: 28 to 31.

    `first` is another month, and with `whole` each has all in one chunk.
    """
    files = []
    for k in range(count):
        year, month = 2003 + (first + k) // 12, (first + k) % 12 + 1
        start = datetime(year, month, 1)
        stop = datetime(year + month // 12, month % 12 + 1, 1)
        hours = (start - EPOCH) / timedelta(hours=1)
        path = str(folder / f"air_{year}_{month}.nc")
        days = (stop - start).days
        files.append(write(path, hours, days, 24.0, chunks=(days if whole else 8, 4)))
    make_old(files)
    return files
