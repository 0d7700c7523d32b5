"""Files of rows, and datasets of them, for tests."""

from __future__ import annotations

import h5py
import numpy as np


def write(path, start, count=4, chunk=3, width=5, value=None, **options):
    """Write a file of some rows; return the values.

    `step`, `units`, `extra` (a second variable), `attrs` (of air), `cut` (the chunk length along
    x), `dtype` and `compression` are other ways in which files differ.
    """
    times = start + np.arange(count) * options.get("step", 1)
    values = times[:, None] * 100 + np.arange(width)
    values = values if value is None else np.full(values.shape, value)
    values = values.astype(options.get("dtype", "f4"))
    with h5py.File(path, "w") as file:
        file["x"] = np.arange(width)
        file["x"].make_scale("x")
        if options.get("coordinate", True):
            file.create_dataset("time", data=times, chunks=(count,), maxshape=(None,))
            file["time"].attrs["units"] = options.get("units", "hours since 2000-01-01")
        else:
            file.create_dataset("time", data=np.zeros(count, "S1"), maxshape=(None,))
        file["time"].make_scale("time")
        names = ["air", *(["extra"] if options.get("extra") else [])]
        for name in names:
            array = file.create_dataset(
                name, data=values + (1000 if name == "extra" else 0),
                chunks=(chunk, options.get("cut", 2)),
                compression=options.get("compression", "gzip"), maxshape=(None, width),
            )  # fmt: skip
            array.dims[0].attach_scale(file["time"])
            array.dims[1].attach_scale(file["x"])
            array.attrs.update(options.get("attrs", {}))
        file.attrs["title"] = "weather"
    return values


def expect(times, width=5):
    """Return the values that files have by default."""
    return np.array(times)[:, None] * 100.0 + np.arange(width)
