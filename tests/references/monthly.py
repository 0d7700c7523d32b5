"""Files as archives of climate models have them: time in long chunks, data in short ones."""

from __future__ import annotations

from pathlib import Path

import h5py
import numpy as np

STEPS, LONG = 60, 50


def write_months(folder: Path, count: int = 3, *, steps: int = STEPS, short: int = 1) -> list[Path]:
    """Write files of `steps` steps; chunks along time are of 50 steps, but of `short` in `tas`."""
    folder.mkdir(exist_ok=True)
    random = np.random.default_rng(7)
    paths = [folder / f"tas_{number}.nc" for number in range(count)]
    for number, path in enumerate(paths):
        first = number * steps
        time = np.arange(first, first + steps, dtype="f8")
        with h5py.File(path, "w") as file:
            made = {
                "time": file.create_dataset("time", data=time, chunks=(LONG,), maxshape=(None,)),
                "y": file.create_dataset("y", data=np.arange(16, dtype="f4")),
                "x": file.create_dataset("x", data=np.arange(32, dtype="f4")),
            }
            for name, scale in made.items():
                scale.make_scale(name)
            bounds = file.create_dataset(
                "time_bnds", data=time[:, None] + [-0.5, 0.5], chunks=(LONG, 2), maxshape=(None, 2)
            )
            tas = file.create_dataset(
                "tas", data=random.normal(size=(steps, 16, 32)).astype("f4"), shuffle=True,
                chunks=(short, 16, 32), maxshape=(None, 16, 32), compression="gzip",
            )  # fmt: skip
            crs = file.create_dataset("crs", data=np.int32(1))
            crs.attrs["grid_mapping_name"] = "latitude_longitude"
            time_scale = made["time"]
            time_scale.attrs["units"] = "days since 2000-01-01"
            time_scale.attrs["bounds"] = "time_bnds"
            tas.attrs["grid_mapping"] = "crs"
            bounds.dims[0].attach_scale(time_scale)
            for axis, name in enumerate(("time", "y", "x")):
                tas.dims[axis].attach_scale(made[name])
    return paths
