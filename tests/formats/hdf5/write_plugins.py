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
    options = {
        f"blosc-{name}-{k}": hdf5plugin.Blosc(name, 5, k) for name in blosc for k in range(3)
    }
    options |= {f"bitshuffle-{name}": hdf5plugin.Bitshuffle(cname=name)
             for name in ("none", "lz4", "zstd")}  # fmt: skip
    options["bitshuffle-blocks"] = hdf5plugin.Bitshuffle(nelems=8, cname="lz4")
    options |= {"lz4": hdf5plugin.LZ4(), "lz4-blocks": hdf5plugin.LZ4(nbytes=16)}
    options |= {"zstd": hdf5plugin.Zstd(), "zstd-negative": hdf5plugin.Zstd(clevel=-3)}
    options |= {"bzip2": hdf5plugin.BZip2()}
    return options


def lossy():
    """Return dtype and options, by name, of filters that lose digits."""
    lossy_filters = {"sz3": hdf5plugin.SZ3(absolute=0.1), "sz": hdf5plugin.SZ(absolute=0.1)}
    lossy_filters["sperr"] = hdf5plugin.Sperr(absolute=0.1)
    cases = {name: ("<f4", options) for name, options in lossy_filters.items()}
    modes = {"rate": {"rate": 8}, "precision": {"precision": 12}, "accuracy": {"accuracy": 0.5},
             "reversible": {"reversible": True},
             "expert": {"minbits": 1, "maxbits": 16658, "maxprec": 20, "minexp": -10}}  # fmt: skip
    for name, mode in modes.items():
        for dtype in ("<f4", ">f4", "<f8", "<i4", ">i8"):
            if mode != {"accuracy": 0.5} or np.dtype(dtype).kind == "f":
                cases[f"zfp-{name}-{dtype[1:]}-{dtype[0] == '<'}"] = dtype, hdf5plugin.Zfp(**mode)
    for dtype in ("u1", "<u2"):
        for components in ("", 2, 3, 4):
            cases[f"fcidecomp-{dtype[-2:]}{components}"] = dtype, hdf5plugin.FciDecomp()
    for dtype in ("<f4", ">i2", "u1"):
        for name, options in (("plain", {}), ("shuffle", {"filters": 1}), ("bits", {"filters": 2})):
            cases[f"blosc2-{name}-{np.dtype(dtype).name}"] = dtype, hdf5plugin.Blosc2(**options)
    return cases


def write_lossy(folder):
    """Write the files, and what h5py reads from them."""
    for name, (dtype, options) in lossy().items():
        path = Path(folder, f"lossy-{name}.h5")
        image = name.startswith("fcidecomp")  # which leaves small chunks as they are
        shape, chunks = ((70, 100), (32, 40)) if image else (SHAPE, CHUNKS)
        if image and name[-2] in "12":  # several components
            shape, chunks = ((int(name[-1]), *part) for part in (shape, chunks))
        with h5py.File(path, "w") as file:
            dataset = file.create_dataset("x", shape, dtype, chunks=chunks, **options)
            dataset[...] = np.arange(dataset.size).reshape(shape) % 60 if image else values(dtype)
        with h5py.File(path) as file:
            np.save(path.with_suffix(".npy"), file["x"][...])


if __name__ == "__main__":
    for name, options in cases().items():
        for dtype in ("<f4", ">i2", "u1"):
            with h5py.File(Path(sys.argv[1], f"{name}-{np.dtype(dtype).name}.h5"), "w") as file:
                dataset = file.create_dataset("x", SHAPE, dtype, chunks=CHUNKS, **options)
                dataset[...] = values(dtype)
    write_lossy(sys.argv[1])
