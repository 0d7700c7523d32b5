"""Chunks longer than their cell, cut by a codec that zarr-python finds by entry point."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import h5py
import numpy as np
import pytest

import virtualzarr as vz
from tests.references.arrays import BIG, LITTLE, SHUFFLE4, VALUES, ZLIB, virtual
from virtualzarr.array import Array
from virtualzarr.codecs import Pipeline
from virtualzarr.errors import PublishError
from virtualzarr.hierarchy.group import Group
from virtualzarr.manifest import Decoder
from virtualzarr.references.publish import preview, publish

zarr = pytest.importorskip("zarr")
pytest.importorskip("fsspec")
pytestmark = [pytest.mark.interop, pytest.mark.filterwarnings("ignore")]

ROOT = Path(__file__).parents[2]
ZARR = tuple(int(part) for part in zarr.__version__.split(".")[:2])
TRANSPOSE = {"name": "transpose", "configuration": {"order": [1, 0]}}

READ = """
import sys, fsspec, numpy, zarr
zarr.config.set({"array.rectilinear_chunks": True}) if hasattr(zarr, "config") else None
fs = fsspec.filesystem("reference", fo=sys.argv[1], asynchronous=True)
store = zarr.storage.FsspecStore(fs, read_only=True, path="")
group = zarr.open(store, mode="r")
numpy.savez(sys.argv[2], **{name: array[...] for name, array in group.arrays()})
assert "virtualzarr.hierarchy.group" not in sys.modules
"""


def read_elsewhere(refs, tmp_path):
    """What zarr-python reads in a process that knows this package by its entry points only."""
    points = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]
    info = tmp_path / "site" / "virtualzarr-0.dist-info"
    info.mkdir(parents=True, exist_ok=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: virtualzarr\nVersion: 0\n")
    lines = [
        line
        for group, names in points.items()
        for line in (f"[{group}]", *(f"{name} = {place}" for name, place in names.items()))
    ]
    (info / "entry_points.txt").write_text("\n".join(lines))
    path = os.pathsep.join([str(info.parent), str(ROOT)])
    arguments = [sys.executable, "-W", "ignore", "-c", READ, str(refs), str(tmp_path / "out.npz")]
    subprocess.run(arguments, check=True, env={**os.environ, "PYTHONPATH": path}, cwd=tmp_path)
    return np.load(tmp_path / "out.npz")


def beginning(file, codecs, rows, order=(0, 1)):
    """An array whose only chunk is stored with more rows along the axis that is stored first."""
    values = VALUES if order == (0, 1) else VALUES.T
    whole = virtual(file, values, values.shape, codecs)
    axis = order[0]
    shape = tuple(rows if i == axis else n for i, n in enumerate(values.shape))
    grid = type(whole.grid)(shape, shape)
    metadata = whole.metadata.replace(shape=shape, grid=grid)
    decoder = Decoder(Pipeline(codecs), values.shape)
    manifest = whole.manifest.replace(decoders=(decoder,), decoder=0)
    return Array.from_manifest(metadata, manifest, "x"), values[: shape[0], : shape[1]]


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_only_the_beginning_counts(tmp_path, zarr_format):
    made = {
        "zlib": beginning(tmp_path / "a", [LITTLE, ZLIB], 3),
        "shuffled": beginning(tmp_path / "b", [BIG, SHUFFLE4, ZLIB], 1),
        "f_order": beginning(tmp_path / "c", [TRANSPOSE, LITTLE, ZLIB], 2, (1, 0)),
    }
    group = Group({}, {name: array for name, (array, _) in made.items()})
    with pytest.raises(PublishError, match="part of a larger block"):
        publish(group, tmp_path / "refs.json")
    report = publish(group, tmp_path / "refs.json", plugin_codecs=True, zarr_format=zarr_format)
    assert (report.copied, report.zarr_format) == (0, zarr_format)
    assert any("installed" in note for note in report.notes)
    found = read_elsewhere(tmp_path / "refs.json", tmp_path)
    again = vz.open(tmp_path / "refs.json")
    for name, (array, want) in made.items():
        assert (array[...] == want).all()
        assert (found[name] == want).all()
        assert (again[name][...] == want).all()


def test_what_is_cut_along_another_axis_still_needs_a_copy(tmp_path):
    array, _ = beginning(tmp_path / "a", [LITTLE, ZLIB], 3, (1, 0))
    with pytest.raises(PublishError, match="part of a larger block"):
        publish(Group({}, {"x": array}), tmp_path / "refs.json", plugin_codecs=True)
    assert preview(Group({}, {"x": array}), "refs.json", plugin_codecs=True).copied == 1


def hourly(path, start, count=24):
    """A file whose chunks are as long as netCDF makes those of an unlimited dimension."""
    with h5py.File(path, "w") as file:
        values = np.arange(start, start + count).astype("i4")
        file.create_dataset("time", data=values, maxshape=(None,), chunks=(1024,), compression=1)
        file["time"].make_scale("time")
    return path


def test_long_chunks_of_short_files(tmp_path):
    files = [hourly(tmp_path / f"{i}.nc", 24 * i) for i in range(3)]
    publish(vz.virtualize(files[:2], "time"), tmp_path / "refs.json", plugin_codecs=True)
    vz.append(tmp_path / "refs.json", files[2], "time")
    again = vz.open(tmp_path / "refs.json")
    assert again["time"][:].tolist() == list(range(72))
    assert again["time"].metadata.zarr_format == 2
    found = read_elsewhere(tmp_path / "refs.json", tmp_path)
    assert found["time"].tolist() == list(range(72))
    vz.rename_paths(tmp_path / "refs.json", {str(tmp_path): "/elsewhere"})


@pytest.mark.skipif(ZARR < (3, 4), reason="zarr-python reads rectilinear grids")
def test_files_of_several_lengths(tmp_path):
    files = [hourly(tmp_path / "0.nc", 0, 24), hourly(tmp_path / "1.nc", 24, 7)]
    files.append(hourly(tmp_path / "2.nc", 31, 24))
    group = vz.virtualize(files, "time")
    report = publish(group, tmp_path / "refs.json", plugin_codecs=True, inline=0)
    assert (report.copied, report.zarr_format) == (0, 3)
    assert read_elsewhere(tmp_path / "refs.json", tmp_path)["time"].tolist() == list(range(55))


def test_too_short_a_block_is_an_error():
    from virtualzarr.codecs import make
    from virtualzarr.errors import CodecError
    from virtualzarr.integrations.truncate_codec import NumcodecsTruncate

    with pytest.raises(ValueError, match="needs 3"):
        NumcodecsTruncate(3).decode(b"ab")
    codec = Pipeline(["bytes", make("virtualzarr.truncate")]).for_block((3,), np.dtype("u1"))
    with pytest.raises(CodecError, match="needs 3"):
        codec.decode(b"ab")
    with pytest.raises(CodecError, match="longest"):
        make("virtualzarr.truncate", longest=-1)
