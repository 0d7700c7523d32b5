"""What the README says of this package in its comparison: read right, or refused by name."""

from __future__ import annotations

from pathlib import Path

import h5py
import numpy as np
import pytest

import virtualzarr as vz
from virtualzarr.errors import (
    MismatchError,
    SkippedVariableWarning,
    UnsupportedError,
    VirtualZarrError,
)

RANDOM = np.random.default_rng(0)


def write(path, start=0, hours=12, chunk=4, dtype="f4", attrs=None, file_attrs=None, **options):
    """One file: hours from `start` on, `air` in chunks; `empty` writes no values of it."""
    empty = options.pop("empty", False)
    with h5py.File(path, "w") as file:
        file["time"] = np.arange(start, start + hours, dtype="f8")
        file["time"].attrs["units"] = (file_attrs or {}).get("units", "hours since 2000-01-01")
        file["time"].make_scale("time")
        chunks = None if chunk is None else (chunk, 5)
        air = file.create_dataset("air", (hours, 5), dtype, chunks=chunks, **options)
        air.attrs.update(attrs or {})
        if not empty:
            air[...] = (RANDOM.normal(size=(hours, 5)) * 100).astype(dtype)
        air.dims[0].attach_scale(file["time"])
    return path


def pair(folder, first=None, second=None):
    """Two files that follow one another and differ in the options given."""
    first, second = first or {}, second or {}
    start = first.get("hours", 12)
    one = write(folder / "a.h5", **first)
    return [one, write(folder / "b.h5", **({"start": start} | second))]


def truth(paths, name="air"):
    parts = []
    for path in paths:
        with h5py.File(path) as file:
            parts.append(file[name][...])
    return np.concatenate(parts)


GZIP = {"compression": "gzip", "shuffle": True}


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ({"chunk": 4}, {"chunk": 6}),
        ({"hours": 10, "chunk": 4}, {}),
        ({"hours": 10, "chunk": 4, **GZIP}, {"chunk": 5, **GZIP}),
        ({"compression_opts": 1, **GZIP}, {"compression_opts": 9, **GZIP}),
        ({"empty": True, **GZIP}, GZIP),
        (GZIP, {"empty": True, **GZIP}),
        ({"dtype": "<f4"}, {"dtype": ">f4"}),
        ({"dtype": "f4"}, {"dtype": "f8"}),
        ({"dtype": "i4"}, {"dtype": "f4"}),
        ({"compression": "gzip"}, GZIP),
        ({"shuffle": True}, {}),
    ],
)
def test_joined(tmp_path, first, second):
    paths = pair(tmp_path, first, second)
    joined = vz.virtualize(paths, "time")
    np.testing.assert_array_equal(joined["air"][...], truth(paths))
    np.testing.assert_array_equal(joined["time"][...], truth(paths, "time"))


MISSING = {"empty": True, **GZIP}


@pytest.mark.parametrize(
    ("first", "second", "named"),
    [
        ({"dtype": "i8"}, {"dtype": "f8"}, "air"),
        ({"fillvalue": 1.0, **MISSING}, {"fillvalue": 2.0, **MISSING}, "fill"),
        ({"attrs": {"scale_factor": 0.1}}, {"attrs": {"scale_factor": 0.2}}, "scale_factor"),
        ({"attrs": {"add_offset": 1.0}}, {}, "add_offset"),
        ({"attrs": {"_FillValue": 1.0}}, {"attrs": {"_FillValue": 2.0}}, "_FillValue"),
        ({}, {"file_attrs": {"units": "hours since 2000-01-02"}}, "units"),
        ({}, {"start": 6}, "time"),
        ({"start": 12}, {"start": 0}, "time"),
    ],
)  # fmt: skip
def test_refused_to_be_joined(tmp_path, first, second, named):
    paths = pair(tmp_path, first, second)
    with pytest.raises(MismatchError, match=named) as caught:
        vz.virtualize(paths, "time")
    assert "b.h5" in str(caught.value)
    assert "a.h5" in str(caught.value)


@pytest.mark.parametrize(
    ("first", "second", "kind"),
    [
        ({"fillvalue": 1.0, **MISSING}, {"fillvalue": 2.0, **MISSING}, "f4"),
        ({"attrs": {"scale_factor": 0.5}}, {"attrs": {"scale_factor": 0.25}}, "f8"),
        ({"attrs": {"add_offset": 1.0}}, {}, "f8"),
        ({"attrs": {"_FillValue": 1.0}}, {"attrs": {"_FillValue": 2.0}}, "f4"),
        ({}, {"start": 0, "file_attrs": {"units": "hours since 2000-01-02"}}, "f4"),
    ],
)
def test_joined_on_request(tmp_path, first, second, kind):
    paths = pair(tmp_path, first, second)
    joined = vz.virtualize(paths, "time", harmonize=True)
    parts = []
    for path in paths:
        with h5py.File(path) as file:
            air = file["air"]
            values = air[...].astype(kind)
            values[values == air.attrs.get("_FillValue", np.nan)] = np.nan
            parts.append(values * air.attrs.get("scale_factor", 1) + air.attrs.get("add_offset", 0))
    assert joined["air"].dtype == kind
    np.testing.assert_array_equal(joined["air"][...], np.concatenate(parts))
    hours = joined["time"][...]
    assert (
        np.ptp(hours) == 23 * (1 if hours.dtype.kind == "f" else 3600 * 10**9) or "start" in second
    )


def read(path, name="a"):
    return vz.open(path)[name][...]


def test_compact_datasets(tmp_path):
    path = tmp_path / "a.h5"
    plist = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    plist.set_layout(h5py.h5d.COMPACT)
    data = np.arange(1000, dtype="i4")
    with h5py.File(path, "w") as file:
        space = h5py.h5s.create_simple(data.shape)
        dataset = h5py.h5d.create(file.id, b"a", h5py.h5t.STD_I32LE, space, plist)
        dataset.write(h5py.h5s.ALL, h5py.h5s.ALL, data)
    np.testing.assert_array_equal(read(path), data)


def test_external_storage_and_virtual_datasets(tmp_path):
    path = tmp_path / "a.h5"
    (tmp_path / "raw").write_bytes(np.arange(4, dtype="i4").tobytes())
    with h5py.File(path, "w") as file:
        file.create_dataset("external", (4,), "i4", external=[(str(tmp_path / "raw"), 0, 16)])
        layout = h5py.VirtualLayout((4,), "i4")
        layout[:] = h5py.VirtualSource(str(path), "good", (4,))
        file["good"] = np.arange(4)
        file.create_virtual_dataset("virtual", layout)
    group = vz.open(path)
    assert set(group) == {"external", "good", "virtual"}
    assert all(group[name][...].tolist() == [0, 1, 2, 3] for name in group)


def test_links(tmp_path):
    with h5py.File(tmp_path / "b.h5", "w") as file:
        file["x"] = np.arange(6)
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["far"] = h5py.ExternalLink("b.h5", "/x")
        file["gone"] = h5py.ExternalLink("c.h5", "/x")
        file["dangling"] = h5py.SoftLink("/none")
        file["group/up"] = file["/"]
    with pytest.warns(SkippedVariableWarning):
        group = vz.virtualize(tmp_path / "a.h5", on_error="warn")
    assert group.skipped.keys() == {"gone", "dangling", "group/up"}
    assert group["far"][...].tolist() == [0, 1, 2, 3, 4, 5]


def test_chunks_that_skipped_a_filter(tmp_path):
    path = tmp_path / "a.h5"
    data = np.arange(100, dtype="i4")
    with h5py.File(path, "w") as file:
        dataset = file.create_dataset("a", (100,), "i4", chunks=(50,), shuffle=True)
        dataset[:] = data
        dataset.id.write_direct_chunk((50,), data[50:].tobytes(), filter_mask=1)
    np.testing.assert_array_equal(read(path), data)


def compressed(path, **options):
    data = np.tile(np.arange(100, dtype="i4"), 10)
    with h5py.File(path, "w") as file:
        file.create_dataset("a", data=data, chunks=(300,), **options)
    return data


@pytest.mark.parametrize(
    "options", [{"fletcher32": True, **GZIP}, {"compression": "lzf"}, {"scaleoffset": 0}]
)
def test_filters(tmp_path, options):
    data = compressed(tmp_path / "a.h5", **options)
    np.testing.assert_array_equal(read(tmp_path / "a.h5"), data)


@pytest.mark.parametrize("name", ["LZ4", "Bitshuffle", "Blosc2", "Zfp", "SZ3"])
def test_filters_of_plugins(tmp_path, name):
    hdf5plugin = pytest.importorskip("hdf5plugin")
    compressed(tmp_path / "a.h5", compression=getattr(hdf5plugin, name)())
    with h5py.File(tmp_path / "a.h5") as file:
        np.testing.assert_array_equal(read(tmp_path / "a.h5"), file["a"][...])


def test_short_last_strips(tmp_path):
    tifffile = pytest.importorskip("tifffile")
    data = RANDOM.integers(0, 255, (50, 64)).astype("u1")
    tifffile.imwrite(tmp_path / "a.tif", data, rowsperstrip=16)
    group = vz.open(tmp_path / "a.tif")
    (name,) = group
    np.testing.assert_array_equal(group[name][...], data)


def test_tiff_of_many_kinds(tmp_path):
    tifffile = pytest.importorskip("tifffile")
    path = tmp_path / "a.tif"
    smooth = np.tile(np.arange(64, dtype="u1")[:, None, None], (1, 96, 3))
    options = {"photometric": "ycbcr", "compression": "jpeg", "tile": (16, 16), "metadata": None}
    with tifffile.TiffWriter(path) as tiff:
        tiff.write(smooth, subifds=1, **options)
        tiff.write(smooth[::2, ::2], subfiletype=1, **options)
        tiff.write(smooth[..., 0] > 30, compression="zlib", metadata=None)
    group = vz.open(path)
    with tifffile.TiffFile(path) as tiff:
        images, bits = tiff.series
        for level, image in enumerate(images.levels):
            np.testing.assert_array_equal(group[f"0/{level}"][...], image.asarray())
        np.testing.assert_array_equal(group["1"][...], bits.asarray())


def test_references_with_gen_and_in_f_order(tmp_path):
    data = np.arange(24, dtype="<i4").reshape(4, 6)
    (tmp_path / "raw").write_bytes(data[:2].tobytes("F") + data[2:].tobytes("F"))
    zarray = (
        '{"zarr_format": 2, "shape": [4, 6], "chunks": [2, 6], "dtype": "<i4", "order": "F", '
        '"compressor": null, "filters": null, "fill_value": 0}'
    )
    references = {
        "version": 1,
        "refs": {".zgroup": '{"zarr_format": 2}', "a/.zarray": zarray},
        "gen": [
            {
                "key": "a/{{i}}.0",
                "url": str(tmp_path / "raw"),
                "offset": "{{i * 48}}",
                "length": "48",
                "dimensions": {"i": {"stop": 2}},
            }
        ],
    }
    np.testing.assert_array_equal(read(references), data)


def test_every_refusal_is_an_error_of_this_package():
    assert issubclass(MismatchError, VirtualZarrError)
    assert issubclass(UnsupportedError, VirtualZarrError)


def test_what_is_there_is_not_listed_as_missing():
    readme = (Path(__file__).parents[2] / "README.md").read_text("utf-8")
    missing = readme.split("### What is not there yet", 1)[1].split("\n## ", 1)[0]
    assert vz.config.disk_cache_bytes > 0
    assert "disk" not in missing
    assert "by themselves are not there" not in missing
