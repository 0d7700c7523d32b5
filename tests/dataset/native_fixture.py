"""The hierarchy of version 1 of the native form that is kept as a fixture, and how it was made.

``python -m tests.dataset.native_fixture`` writes it again; that is never done, as the fixture
stands for what older packages have written.
"""

from __future__ import annotations

import os
import tempfile
import zipfile
from pathlib import Path

import h5py
import numpy as np

FIXTURE = Path(__file__).parent / "fixtures" / "native-v1.zip"

DATE = 1_600_000_000
"""When the source files were modified, whenever they are unpacked."""


def expected():
    """Return values and attributes of the arrays by path."""
    rows = np.arange(9)
    air = rows[:, None] * 10.0 + np.arange(4)
    air[3, 1:3] = -1  # was written over references
    data = (rows * 2).astype("i2")
    data[0] = 99
    return {
        "time": (rows.astype("f8"), {"units": "days since 2000-01-01", "axis": "T"}),
        "air": (air.astype("f4"), {"units": "K"}),
        "data": (data, {}),  # named as a folder of datasets is
        "y": (np.arange(4) * 0.5, {"units": "m"}),
        "more/wind": ((air * 0 + rows[:, None]).astype("f4"), {}),
    }


def unpack(folder):
    """Unpack the hierarchy and its sources; return its path."""
    with zipfile.ZipFile(FIXTURE) as archive:
        archive.extractall(folder)
    for path in Path(folder).glob("*.h5"):
        os.utime(path, (DATE, DATE))
    return Path(folder) / "v1.zarr"


def write_source(path, start, count):
    rows = np.arange(start, start + count)
    with h5py.File(path, "w") as file:
        scale = file.create_dataset("time", data=rows.astype("f8"), maxshape=(None,), chunks=(3,))
        scale.make_scale("time")
        scale.attrs.update(units="days since 2000-01-01", axis="T")
        air = rows[:, None] * 10.0 + np.arange(4)
        y = file.create_dataset("y", data=np.arange(4) * 0.5)
        y.make_scale("y")
        y.attrs["units"] = "m"
        arrays = {"air": air.astype("f4"), "data": (rows * 2).astype("i2"),
                  "more/wind": (air * 0 + rows[:, None]).astype("f4")}  # fmt: skip
        for name, values in arrays.items():
            one = file.create_dataset(
                name, data=values, maxshape=(None, *values.shape[1:]),
                chunks=(3, *values.shape[1:]), compression="gzip", shuffle=True,
            )  # fmt: skip
            one.dims[0].attach_scale(scale)
            if values.ndim == 2:
                one.dims[1].attach_scale(y)
        file["air"].attrs["units"] = "K"
    os.utime(path, (DATE, DATE))


def build(folder):
    """Make the hierarchy as version 1 of the form has it."""
    import virtualzarr as vz

    for number in range(3):
        write_source(folder / f"{number}.h5", 3 * number, 3)
    target = folder / "v1.zarr"
    # An attribute of the group, too.
    group = vz.virtualize([folder / "0.h5"], "time")
    group = vz.Group({"title": "kept", "level": 0.1}, {n: group[n] for n in group})
    group.publish(target, relative=True)
    for number in (1, 2):
        vz.append(target, str(folder / f"{number}.h5"), "time")
    writable = vz.open(target, mode="r+")
    writable["air"][3, 1:3] = -1
    writable["data"][0] = 99
    return target


def main():
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        build(folder)
        FIXTURE.parent.mkdir(exist_ok=True)
        with zipfile.ZipFile(FIXTURE, "w", zipfile.ZIP_DEFLATED) as archive:
            for path in sorted(folder.rglob("*")):
                if path.is_file() and not path.name.endswith("__lock"):
                    archive.write(path, path.relative_to(folder))


if __name__ == "__main__":
    main()
