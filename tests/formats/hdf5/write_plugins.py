"""Writes one file for each filter of hdf5plugin: ``python -m ...write_plugins FOLDER``.

In a process of its own: netCDF4 brings plugins for an HDF5 library of its own.
"""

from __future__ import annotations

import sys
from pathlib import Path

import h5py
import hdf5plugin
import numpy as np

SHAPE, CHUNKS = (7, 10), (3, 4)


def values(dtype):
    """Return numbers that compress a little."""
    noise = np.random.default_rng(0).normal(size=SHAPE) * 100
    return np.round(noise).cumsum(axis=1).astype(dtype)


def cases():
    """Return options of `create_dataset` by name."""
    blosc = ("blosclz", "lz4", "lz4hc", "snappy", "zlib", "zstd")
    made = {f"blosc-{name}-{k}": hdf5plugin.Blosc(name, 5, k) for name in blosc for k in range(3)}
    made |= {f"bitshuffle-{name}": hdf5plugin.Bitshuffle(cname=name)
             for name in ("none", "lz4", "zstd")}  # fmt: skip
    made["bitshuffle-blocks"] = hdf5plugin.Bitshuffle(nelems=8, cname="lz4")
    made |= {"lz4": hdf5plugin.LZ4(), "lz4-blocks": hdf5plugin.LZ4(nbytes=16)}
    made |= {"zstd": hdf5plugin.Zstd(), "zstd-negative": hdf5plugin.Zstd(clevel=-3)}
    made |= {"bzip2": hdf5plugin.BZip2(), "zfp": hdf5plugin.Zfp(), "sz3": hdf5plugin.SZ3()}
    return made


if __name__ == "__main__":
    for name, options in cases().items():
        for dtype in ("<f4", ">i2", "u1"):
            if name in ("zfp", "sz3") and dtype != "<f4":
                continue
            with h5py.File(Path(sys.argv[1], f"{name}-{np.dtype(dtype).name}.h5"), "w") as file:
                made = file.create_dataset("x", SHAPE, dtype, chunks=CHUNKS, **options)
                made[...] = values(dtype)
