"""References that live on: append, rename, check, convert."""

from __future__ import annotations

import json
import os
import shutil

import h5py
import numpy as np
import pytest

import virtualzarr as vz
from virtualzarr.errors import (
    MismatchError,
    PublishError,
    SourceChangedError,
    UnsupportedError,
)
from virtualzarr.references.append import append
from virtualzarr.references.check import check_references
from virtualzarr.references.convert import convert_references
from virtualzarr.references.kerchunk import scan
from virtualzarr.references.publish import publish
from virtualzarr.references.rename import rename_paths
from virtualzarr.stores import atomic_files

pytest.importorskip("pyarrow")

FORMS = ["json", "parq"]


def write(path, start, count=4, *, stacked=False, axis=0, fill=None):
    """A file of some hours, like those that arrive."""
    with h5py.File(path, "w") as file:
        rows = np.arange(start, start + count)
        values = (rows[:, None] * 10 + np.arange(6)).astype("f4")
        chunks = (2, 3)
        if axis:
            values, chunks = values.T, (3, 2)
        file["time"] = rows.astype("i8")
        file["y"] = np.arange(6.0)
        air = file.create_dataset("air", data=values, chunks=chunks, compression="gzip")
        for name in ("time", "y"):
            file[name].make_scale(name)
        air.dims[axis].attach_scale(file["time"])
        air.dims[1 - axis].attach_scale(file["y"])
        air.attrs["units"] = "K"
        file.attrs["history"] = f"made {start}"
    return path


@pytest.fixture
def files(tmp_path):
    return [write(tmp_path / f"day{i}.nc", 4 * i) for i in range(4)]


def same(one, other):
    """Compare two hierarchies in everything that is read from them."""
    assert set(one) == set(other)
    assert one.attrs == other.attrs
    for name in one:
        a, b = one[name], other[name]
        assert a.dims == b.dims
        assert a.attrs == b.attrs
        assert a.metadata.zarr_format == b.metadata.zarr_format
        np.testing.assert_array_equal(a[...], b[...])


@pytest.mark.parametrize(("form", "axis"), [(form, 0) for form in FORMS] + [("json", 1)])
def test_appending_gives_what_publishing_all_gives(tmp_path, form, axis):
    files = [write(tmp_path / f"{i}.nc", 4 * i, axis=axis) for i in range(4)]
    grown, whole = tmp_path / f"grown.{form}", tmp_path / f"whole.{form}"
    publish(vz.virtualize(files[:2], "time"), grown, record_size=3)
    append(grown, files[2], "time")
    append(grown, files[3:], "time")
    publish(vz.virtualize(files, "time"), whole, record_size=3)
    same(vz.open(grown), vz.open(whole))
    assert vz.open(grown)["time"][:].tolist() == list(range(16))
    for name in ("air", "time", "y"):
        assert vz.open(grown)[name].manifest == vz.open(whole)[name].manifest


def test_parquet_rewrites_only_the_last_records(tmp_path, files):
    refs = tmp_path / "refs.parq"
    publish(vz.virtualize(files[:2], "time"), refs, record_size=3)
    before = {path: path.stat().st_ino for path in refs.rglob("*.parq")}
    old = vz.open(refs)  # nothing of it read yet
    append(refs, files[2:], "time")
    after = {path: path.stat().st_ino for path in refs.rglob("*.parq")}
    changed = {str(path.relative_to(refs)) for path in after if before.get(path) != after[path]}
    # Four chunks of air to a file of two by two, so eight before, in records of three.
    assert changed == {"air/refs.2.parq", "air/refs.3.parq", "air/refs.4.parq", "air/refs.5.parq",
                       "time/refs.0.parq", "time/refs.1.parq"}  # fmt: skip
    assert old["air"][:].tolist() == vz.open(refs)["air"][:8].tolist()


def test_a_reader_of_parquet_notices_that_all_was_replaced(tmp_path):
    files = [write(tmp_path / f"{i}.nc", 4 * i, axis=1) for i in range(2)]
    refs = tmp_path / "refs.parq"
    publish(vz.virtualize(files[0]), refs)
    old = vz.open(refs)
    with pytest.raises(PublishError, match="new folder"):
        append(refs, files[1], "time")
    publish(vz.virtualize(files, "time"), refs, overwrite=True)
    with pytest.raises(SourceChangedError, match="written anew"):
        old["air"][:]
    assert vz.open(refs)["air"].shape == (6, 8)


def test_folders_are_replaced_also_where_they_cannot_be_exchanged(tmp_path, monkeypatch):
    files = [write(tmp_path / f"{i}.nc", 4 * i, axis=1) for i in range(2)]
    refs = tmp_path / "refs.parq"
    publish(vz.virtualize(files[0]), refs)
    monkeypatch.setattr(atomic_files, "exchange_names", lambda one, other: False)
    publish(vz.virtualize(files, "time"), refs, overwrite=True)
    assert vz.open(refs)["air"].shape == (6, 8)
    assert not list(tmp_path.glob(".*"))


@pytest.mark.parametrize("form", FORMS)
def test_the_same_file_twice(tmp_path, files, form):
    refs = tmp_path / f"refs.{form}"
    publish(vz.virtualize(files[:2], "time"), refs)
    with pytest.raises(MismatchError, match=r"there already.*day1\.nc"):
        append(refs, files[1:3], "time")
    assert vz.open(refs)["time"].shape == (8,)
    append(refs, files[1:3], "time", duplicates="skip")
    assert vz.open(refs)["time"][:].tolist() == list(range(12))
    assert append(refs, files[:3], "time", duplicates="skip") is None


@pytest.mark.parametrize("form", [*FORMS, "zarr"])
def test_the_same_hierarchy_twice(tmp_path, form):
    days = [tmp_path / f"day{i}" for i in range(3)]
    for i, day in enumerate(days):
        group = vz.create_group(day)
        group.create_array("a", data=np.arange(4) + 4 * i, chunks=2, dimension_names=["t"])
    refs = tmp_path / f"refs.{form}"
    publish(
        vz.virtualize(days[:2], "t"),
        refs,
        **({"reference_format": "native"} if form == "zarr" else {}),
    )
    with pytest.raises(MismatchError, match=r"there already.*day1"):
        append(refs, days[1], "t")
    append(refs, days[2], "t")
    assert vz.open(refs)["a"][...].tolist() == list(range(12))


@pytest.mark.parametrize("form", [*FORMS, "icechunk"])
def test_what_is_there_is_copied_if_what_is_new_decodes_otherwise(tmp_path, form):
    if form == "icechunk":
        pytest.importorskip("icechunk", minversion="2")
    for i, unit in enumerate(["hours", "minutes"]):
        group = vz.create_group(tmp_path / f"day{i}")
        values = np.array([0, 1]) if i == 0 else np.array([90, 180])
        time = group.create_array("time", data=values, compressors=None, chunks=1,
                                  dimension_names=["time"])  # fmt: skip
        time.attrs["units"] = f"{unit} since 2000-01-01"
    refs = tmp_path / f"refs.{form}"
    publish(vz.virtualize(tmp_path / "day0"), refs)
    if form == "parq":  # other codecs under open readers
        with pytest.raises(PublishError, match="new folder"):
            append(refs, tmp_path / "day1", "time", harmonize=True, copy=True)
        return
    append(refs, tmp_path / "day1", "time", harmonize=True, copy=True)
    again = vz.open(refs)["time"]
    assert (again.attrs["units"], again[...].tolist()) == (
        "minutes since 2000-01-01",
        [0, 60, 90, 180],
    )


def _write_bounded(path, time, bounds, unit):
    group = vz.create_group(path)
    shape = {"time": ("time",), "edges": ("time", "n")}
    for name, values in (("time", np.array(time)), ("edges", np.array(bounds))):
        # 64-bit integers have no common data type with floats.
        values = values.astype("i4" if values.dtype.kind == "i" else "f8")
        group.create_array(name, data=values, dimension_names=shape[name])
    group["time"].attrs.update({"units": f"{unit} since 2000-01-01", "bounds": "edges"})
    return path


@pytest.mark.parametrize(
    ("unit", "time", "bounds"),
    [
        ("hours", [72.0, 96.0], [[60.0, 84], [84, 108]]),  # both have a form in days
        ("hours", [72, 96], [[60, 84], [84, 108]]),  # halves of days are no integers
        ("hours", [60, 84], [[48, 72], [72, 96]]),  # as for their bounds, which are
        ("days", [2.5, 3.5], [[2, 3], [3, 4]]),  # times in the stored unit, but not of its kind
        ("days", [2, 3], [[1.5, 2.5], [2.5, 3.5]]),
    ],
)
@pytest.mark.parametrize("form", ["json", "zarr"])
def test_bounds_are_counted_as_their_times_or_say_otherwise(tmp_path, form, unit, time, bounds):
    xr = pytest.importorskip("xarray")
    old = _write_bounded(tmp_path / "old", [0, 1], [[0, 1], [1, 2]], "days")
    new = _write_bounded(tmp_path / "new", time, bounds, unit)
    refs = tmp_path / f"refs.{form}"
    publish(vz.open(old), refs)
    try:
        append(refs, new, "time", harmonize=True, **({} if form == "zarr" else {"copy": True}))
    except MismatchError:
        assert form == "zarr"  # where what is stored keeps its attributes
        return
    grown = vz.open(refs)
    units = dict(grown["time"].attrs), {**grown["time"].attrs, **grown["edges"].attrs}
    for name, attributes in zip(("time", "edges"), units, strict=True):
        expected = [0, 1, *time] if name == "time" else [[0, 1], [1, 2], *bounds]
        dates = [
            xr.coding.times.decode_cf_datetime(np.array(part, "f8"), f"{word} since 2000-01-01")
            for part, word in ((expected[:2], "days"), (expected[2:], unit))
        ]
        np.testing.assert_array_equal(
            xr.coding.times.decode_cf_datetime(grown[name][...], attributes["units"]),
            np.concatenate(dates),
        )


@pytest.mark.parametrize("form", FORMS)
def test_a_changed_file_is_not_added(tmp_path, files, form):
    refs = tmp_path / f"refs.{form}"
    publish(vz.virtualize(files[:2], "time"), refs)
    write(files[1], 4, 5)
    with pytest.raises(SourceChangedError, match="publish anew"):
        append(refs, files[1], "time", duplicates="skip")


@pytest.mark.parametrize("form", FORMS)
def test_files_without_the_dimension_are_stacked(tmp_path, form):
    files = []
    for i in range(3):
        files.append(tmp_path / f"{i}.nc")
        with h5py.File(files[-1], "w") as file:
            file["x"] = np.full((2, 3), i)
    refs = tmp_path / f"refs.{form}"
    publish(vz.virtualize(files[:2], "run"), refs)
    append(refs, files[2], "run")
    assert vz.open(refs)["x"][:, 0, 0].tolist() == [0, 1, 2]


@pytest.mark.parametrize("form", FORMS)
def test_an_interrupted_append_leaves_what_was_there(tmp_path, files, form, monkeypatch):
    """Whatever the last file was that was put in place."""
    refs = tmp_path / f"refs.{form}"
    publish(vz.virtualize(files[:2], "time"), refs, record_size=3)
    kept = tmp_path / "kept"
    (shutil.copytree if form == "parq" else shutil.copy)(refs, kept)
    want = vz.open(refs)["air"][:]
    for allowed in range(12):
        (shutil.rmtree if form == "parq" else os.remove)(refs)
        (shutil.copytree if form == "parq" else shutil.copy)(kept, refs)
        left = allowed

        def replace(source, target, real=os.replace):
            nonlocal left
            left -= 1
            if left < 0:
                raise KeyboardInterrupt
            real(source, target)

        with monkeypatch.context() as patch:
            patch.setattr(atomic_files.os, "replace", replace)
            try:
                append(refs, files[2:], "time")
            except KeyboardInterrupt:
                stopped = True
            else:
                stopped = False
        found = vz.open(refs)["air"]
        assert found.shape == ((8, 6) if stopped else (16, 6))
        np.testing.assert_array_equal(found[:8], want)
        assert not list(tmp_path.glob(".*.part"))
        if not stopped:
            break
    assert not stopped


def test_a_dry_run_writes_nothing_and_says_what_is_copied(tmp_path, files):
    refs = tmp_path / "refs.json"
    publish(vz.virtualize(files[:2], "time"), refs)
    before = refs.read_bytes()
    found = append(refs, files[2:], "time", dry_run=True)
    lines = {line.path: line for line in found.lines}
    assert (lines["air"].chunks, lines["air"].virtual, lines["air"].copied) == (16, 16, 0)
    assert refs.read_bytes() == before
    partial = write(tmp_path / "odd.nc", 8, 3)
    again = append(refs, [partial, write(tmp_path / "next.nc", 11)], "time", dry_run=True)
    assert again.copied or again.skipped or again.zarr_format == 3
    assert "air" in again.table()


def test_what_cannot_be_published_leaves_what_was_there(tmp_path, files):
    refs = tmp_path / "refs.parq"
    publish(vz.virtualize(files[:2], "time"), refs)
    odd = [write(tmp_path / "odd.nc", 8, 3), write(tmp_path / "next.nc", 11)]
    with pytest.raises(PublishError, match="air"):
        append(refs, odd, "time")
    assert vz.open(refs)["air"].shape == (8, 6)


def test_somebody_else_writes_meanwhile(tmp_path, files, monkeypatch):
    refs = tmp_path / "refs.json"
    publish(vz.virtualize(files[:2], "time"), refs)
    from virtualzarr.references import portable_form

    def slow(*args, real=portable_form.make_plan, **options):
        monkeypatch.setattr(portable_form, "make_plan", real)
        publish(vz.virtualize(files[:1]), refs)
        return real(*args, **options)

    monkeypatch.setattr(portable_form, "make_plan", slow)
    append(refs, files[2], "time")  # to what the other has left
    expected = vz.virtualize([files[0], files[2]], "time")["air"][...]
    np.testing.assert_array_equal(vz.open(refs)["air"][...], expected)


@pytest.mark.parametrize("form", [*FORMS, "zarr"])
@pytest.mark.parametrize("dry_run", [True, False])
def test_names_that_no_source_has_are_an_error(tmp_path, files, form, dry_run):
    refs = tmp_path / f"refs.{form}"
    publish(vz.virtualize(files[:2], "time"), refs)
    nothing = {"/nowhere": "/somewhere", str(tmp_path / "day"): "/x"}
    with pytest.raises(MismatchError, match=f"no source is '/nowhere' .* lie in '{tmp_path}'"):
        rename_paths(refs, nothing, dry_run=dry_run)
    assert rename_paths(refs, {}, dry_run=dry_run) == {}
    assert rename_paths(refs, {str(files[0]): str(files[0])}, dry_run=dry_run) == {}
    assert rename_paths(refs, lambda name: name, dry_run=dry_run) == {}
    assert rename_paths(refs, {"/old": str(tmp_path)}, dry_run=dry_run) == {}  # as it is already


@pytest.mark.parametrize("old", ["", "/"])
@pytest.mark.parametrize("new", ["", "/"])
def test_folders_are_renamed_with_and_without_a_slash_at_the_end(tmp_path, files, old, new):
    refs = tmp_path / "refs.json"
    publish(vz.virtualize(files[:2], "time"), refs)
    names = rename_paths(refs, {f"{tmp_path}{old}": f"s3://bucket{new}"})
    assert names == {str(file): f"s3://bucket/{file.name}" for file in files[:2]}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("zarr_format", [2, 3])
def test_rename(tmp_path, files, form, zarr_format):
    if form == "parq" and zarr_format == 3:
        pytest.skip("Parquet is of Zarr v2")
    refs = tmp_path / f"refs.{form}"
    group = vz.virtualize(files, "time")
    publish(group, refs, zarr_format=zarr_format)
    moved = tmp_path / "moved"
    moved.mkdir()
    names = {str(file): str(moved / file.name) for file in files}
    assert rename_paths(refs, {str(tmp_path): str(moved)}, dry_run=True) == names
    assert vz.open(refs)["air"].shape == (16, 6)
    for file in files:
        file.rename(moved / file.name)
    assert rename_paths(refs, {str(tmp_path): str(moved), "/elsewhere": "/nowhere"}) == names
    found = vz.open(refs)
    assert found["air"][:, 0].tolist() == [i * 10 for i in range(16)]
    assert found["air"].metadata.zarr_format == zarr_format
    assert rename_paths(refs, lambda name: name.replace("moved", "away"))
    assert {s.uri for s in vz.open(refs)["air"].manifest.sources} == {
        str(tmp_path / "away" / file.name) for file in files
    }


def test_the_longest_prefix_counts_and_ends_at_a_slash(tmp_path):
    refs = tmp_path / "refs.json"
    document = {
        ".zgroup": '{"zarr_format":2}',
        "x/.zarray": {
            "zarr_format": 2, "shape": [3], "chunks": [1], "dtype": "|u1", "compressor": None,
            "filters": None, "fill_value": None, "order": "C",
        },
        "x/0": ["s3://a/b/c.nc", 0, 1], "x/1": ["s3://a/bc.nc", 0, 1], "x/2": ["s3://a/d", 0, 1],
    }  # fmt: skip
    refs.write_text(json.dumps(document))
    rename_paths(refs, {"s3://a": "gs://z", "s3://a/b": "s3://new", "s3://a/d": "s3://e/f"})
    uris = [source.uri for source in vz.open(refs)["x"].manifest.sources]
    assert uris == ["s3://new/c.nc", "gs://z/bc.nc", "s3://e/f"]


@pytest.mark.parametrize("form", FORMS)
def test_relative_references_move_with_their_sources(tmp_path, files, form, monkeypatch):
    here = tmp_path / "here"
    (here / "data").mkdir(parents=True)
    for file in files[:2]:
        shutil.copy2(file, here / "data" / file.name)
    refs = here / f"refs.{form}"
    publish(vz.virtualize(str(here / "data" / "*.nc"), "time"), refs, relative=True)
    there = tmp_path / "there"
    shutil.copytree(here, there, copy_function=shutil.copy)  # which gives new dates
    shutil.rmtree(here)
    refs = there / f"refs.{form}"
    assert vz.open(refs)["time"][:].tolist() == list(range(8))
    assert check_references(refs).good
    shutil.copy2(files[2], there / "data" / files[2].name)
    append(refs, there / "data" / files[2].name, "time")
    assert b"/there" not in (refs if form == "json" else refs / "fingerprints.json").read_bytes()
    assert vz.open(refs)["time"][:].tolist() == list(range(12))
    monkeypatch.chdir(there)
    fsspec = pytest.importorskip("fsspec")
    pytest.importorskip("fastparquet")
    fs = fsspec.filesystem("reference", fo=str(refs))
    assert len(fs.cat("air/0.0")) > 0


@pytest.mark.parametrize("form", FORMS)
def test_check(tmp_path, files, form):
    refs = tmp_path / f"refs.{form}"
    publish(vz.virtualize(files, "time"), refs)
    assert len(check_references(refs).ok) == 4
    files[0].unlink()
    write(files[1], 4, 500)
    now = files[2].stat()
    os.utime(files[2], ns=(now.st_atime_ns, now.st_mtime_ns + 10))
    found = check_references(refs)
    assert found.missing == (str(files[0]),)
    assert set(found.changed) == {str(files[1]), str(files[2])}
    assert "size in bytes" in found.changed[str(files[1])]
    assert "modification time" in found.changed[str(files[2])]
    assert found.ok == (str(files[3]),)
    assert not found.good
    for number in (1, 2):
        with pytest.raises(SourceChangedError, match=files[number].name):
            vz.open(refs)["air"][4 * number]


def test_sources_of_which_nothing_was_noted(tmp_path, files):
    publish(vz.virtualize(files[0]), tmp_path / "refs.json")
    document = json.loads((tmp_path / "refs.json").read_text())
    assert check_references(scan({"version": 1, "refs": document["refs"]})).unknown == (
        str(files[0]),
    )


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("other", FORMS)
def test_convert(tmp_path, files, form, other):
    source, target = tmp_path / f"a.{form}", tmp_path / f"b.{other}"
    group = vz.virtualize(files, "time")
    publish(group, source)
    found = convert_references(source, target, dry_run=True)
    assert (found.reference_format, target.exists()) == (
        {"parq": "parquet"}.get(other, other),
        False,
    )
    convert_references(source, target)
    same(vz.open(source), vz.open(target))
    with pytest.raises(ValueError, match="the same"):
        convert_references(target, target)


@pytest.mark.parametrize("form", FORMS)
def test_references_at_urls(tmp_path, form):
    fsspec = pytest.importorskip("fsspec")
    memory, place = fsspec.filesystem("memory"), f"/{tmp_path.name}-{form}"
    urls = []
    for i in range(3):
        write(tmp_path / f"{i}.nc", 4 * i)
        urls.append(f"memory:/{place}/data/{i}.nc")
        memory.pipe(f"{place}/data/{i}.nc", (tmp_path / f"{i}.nc").read_bytes())
    refs = f"memory:/{place}/refs.{form}"
    publish(vz.virtualize(urls[:2], "time"), refs, relative=True)
    append(refs, urls[2], "time")
    assert vz.open(refs)["air"][:, 0].tolist() == [i * 10 for i in range(12)]
    text = memory.cat(
        f"{place}/refs.{form}" if form == "json" else f"{place}/refs.parq/fingerprints.json"
    )
    assert b'"data/2.nc"' in text
    assert check_references(refs).good
    memory.pipe(f"{place}/data/0.nc", b"short")
    assert list(check_references(refs).changed) == urls[:1]
    if form == "parq":
        with pytest.raises(PublishError, match="another place"):
            publish(vz.virtualize(urls[1]), refs)


def test_what_has_no_references_is_not_appended_to(files):
    with pytest.raises(UnsupportedError, match="hdf5"):
        append(files[0], files[1], "time")


def test_xarray_opens_folders_of_references(tmp_path, files):
    xr = pytest.importorskip("xarray")
    from virtualzarr.integrations.xarray_backend import VirtualZarrBackendEntrypoint

    publish(vz.virtualize(files, "time"), tmp_path / "refs.parq")
    dataset = xr.open_dataset(tmp_path / "refs.parq", engine=VirtualZarrBackendEntrypoint)
    assert dataset.air.sel(time=5).values.tolist() == [50, 51, 52, 53, 54, 55]


def write_times(path, values, units, dtype="i4", calendar=None, fill=None):
    """Write a netCDF4 file with times, their bounds, and a variable on them."""
    netCDF4 = pytest.importorskip("netCDF4")
    values = np.array(values)
    with netCDF4.Dataset(path, "w") as file:
        file.createDimension("time", None)
        file.createDimension("n", 2)
        options = {"chunksizes": (1,), "compression": "zlib", "fill_value": fill}
        time = file.createVariable("time", dtype, ("time",), **options)
        time.units, time.bounds = units, "edges"
        if calendar:
            time.calendar = calendar
        time[:] = values
        edges = file.createVariable("edges", dtype, ("time", "n"), chunksizes=(1, 2))
        edges[:] = np.stack([values, values + (values[1] - values[0])], 1)
        file.createVariable("x", "f4", ("time",), chunksizes=(1,))[:] = np.arange(len(values))
    return path


@pytest.mark.parametrize("form", [*FORMS, "zarr"])
@pytest.mark.parametrize(
    ("old", "new"),
    [
        (([0, 1], "days since 2000-01-01"), ([24, 48], "hours since 2000-01-02")),
        (([0, 1], "hours since 2000-01-01"), ([1, 2], "days since 2000-01-01", "f8")),
        (([0, 1], "days since 2000-01-01", "f8"), ([36, 60], "hours since 2000-01-01")),
        (([0, 1], "days since 2000-01-01"),
         ([2, 3], "days since 2000-01-01", "f4", "proleptic_gregorian")),
        (([0, 1], "days since 2000-01-01", "i4", "noleap"),
         ([48, 72], "hours since 2000-01-01", "f8", "365_day")),
        (([0, 1], "days since 2000-01-01", "i4", None, -1), ([2, 3], "days since 2000-01-01")),
    ],
)  # fmt: skip
def test_times_are_appended_in_the_stored_unit(tmp_path, form, old, new):
    xr = pytest.importorskip("xarray")
    files = [write_times(tmp_path / f"{i}.nc", *parts) for i, parts in enumerate((old, new))]
    refs = tmp_path / f"refs.{form}"
    publish(vz.open(files[0]), refs)
    before = vz.open(refs)["time"]
    append(refs, files[1], "time", harmonize="time")
    after = vz.open(refs)["time"]
    assert (after.dtype, after.attrs) == (before.dtype, before.attrs)
    assert (after.metadata.pipeline, after.chunks) == (before.metadata.pipeline, (1,))
    decode = xr.coders.CFDatetimeCoder(use_cftime=True)
    theirs = [xr.open_dataset(file, decode_times=decode) for file in files]
    with xr.open_dataset(refs, engine="virtualzarr", decode_times=decode) as ours:
        for name in ("time", "edges", "x"):
            expected = np.concatenate([one[name].values for one in theirs])
            assert ours[name].values.tolist() == expected.tolist()
    for one in theirs:
        one.close()


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    "new",
    [
        ([30, 54], "hours since 2000-01-01"),
        ([2, 3], "days since 2000-01-01", "i4", "360_day"),
        ([2**33, 2**33 + 1], "days since 2000-01-01", "i8"),
        ([-1, 2], "days since 2000-01-01"),
    ],
)
def test_times_that_have_no_exact_form_are_refused(tmp_path, form, new):
    """No integer, another calendar, too large, or what means missing."""
    old = write_times(tmp_path / "0.nc", [0, 1], "days since 2000-01-01", "i4", None, -1)
    refs = tmp_path / f"refs.{form}"
    publish(vz.open(old), refs)
    with pytest.raises((MismatchError, PublishError)):
        append(refs, write_times(tmp_path / "1.nc", *new), "time", harmonize="time")
    assert vz.open(refs)["time"][...].tolist() == [0, 1]


def test_missing_values_of_references_by_others(tmp_path):
    """VirtualiZarr makes the file's fill value that of Zarr v2, which readers mask."""
    netCDF4 = pytest.importorskip("netCDF4")
    fills = {"f": (None, 9.969209968386869e36), "nan": (np.nan, "NaN"), "i": (None, -2147483647),
             "own": (-9, -9), "none": (None, None), "floats": (None, "NaN")}  # fmt: skip
    files = [tmp_path / f"{i}.nc" for i in range(2)]
    for i, path in enumerate(files):
        with netCDF4.Dataset(path, "w") as file:
            file.createDimension("time", None)
            for name, (fill, _) in fills.items():
                dtype = "i4" if name in ("i", "own") else "f4"
                variable = file.createVariable(
                    name, dtype, ("time",), chunksizes=(2,), fill_value=fill
                )
                variable[:] = [i, i + 1]
    refs = tmp_path / "refs.json"
    publish(vz.open(files[0]), refs, zarr_format=2)
    document = json.loads(refs.read_text())
    for name, (_, fill) in fills.items():
        place = f"{name}/.zarray"
        document["refs"][place] = json.dumps(
            json.loads(document["refs"][place]) | {"fill_value": fill}
        )
        document["refs"].pop(".zmetadata", None)
    refs.write_text(json.dumps(document))
    append(refs, files[1], "time")
    after = json.loads(refs.read_text())["refs"]
    for name, (_, fill) in fills.items():
        found = json.loads(after[f"{name}/.zarray"])["fill_value"]
        assert found == fill or {found, fill} == {None, "NaN"}
        assert vz.open(refs)[name][...].tolist() == [0, 1, 1, 2]
    with netCDF4.Dataset(files[1], "a") as file:
        file["own"].setncattr("scale_factor", 2.0)
    shutil.copy(files[1], tmp_path / "2.nc")
    with pytest.raises(MismatchError, match="scale_factor"):
        append(refs, tmp_path / "2.nc", "time")


@pytest.mark.parametrize("form", [*FORMS, "zarr"])
def test_a_misspelt_dimension_is_named(tmp_path, files, form):
    publish(vz.virtualize(files[:2], "time"), tmp_path / f"air.{form}")
    with pytest.raises(ValueError, match="no array has a dimension 'tmie'; is 'time' meant"):
        append(tmp_path / f"air.{form}", files[2], "tmie")


def test_reports_of_the_native_form_count_what_was_appended(tmp_path, files):
    publish(vz.virtualize(files[:2], "time"), tmp_path / "air.zarr")
    report = append(tmp_path / "air.zarr", files[2], "time")
    assert "0 " not in report.text().replace(str(tmp_path), "")


def test_appends_need_the_name_of_a_dimension(tmp_path, files):
    vz.virtualize(files[:1]).publish(tmp_path / "refs.json")
    with pytest.raises(TypeError, match="the name of a dimension, not 0"):
        vz.append(tmp_path / "refs.json", files[1:], 0)


def _write_typed(path, dtype, start, kind):
    """Four hours of a type, in chunks of three, the last of which is shorter."""
    rows = np.arange(start, start + 4)
    values = (rows[:, None] * 6 + np.arange(6)).astype(dtype)
    if kind == "delta":
        filters = [{"name": "numcodecs.delta", "configuration": {"dtype": str(values.dtype)}}]
        group = vz.create_group(path.with_suffix(".zarr"))
        options = {"dimension_names": ["time", "x"], "filters": filters if dtype != "f4" else None}
        group.create_array("time", data=rows, dimension_names=["time"])
        group.create_array("flags", data=values, chunks=(3, 6), **options)
        return path.with_suffix(".zarr")
    with h5py.File(path, "w") as file:
        file["time"] = rows
        file["time"].make_scale("time")
        packing = {"compression": "gzip", "shuffle": True} if kind == "shuffled" else {}
        file.create_dataset("flags", data=values, chunks=(3, 6), **packing)
        file["flags"].dims[0].attach_scale(file["time"])
    return path


@pytest.mark.parametrize("kind", ["plain", "shuffled", "delta"])
@pytest.mark.parametrize("zarr_format", [2, 3])
@pytest.mark.parametrize(("old", "new"), [("u1", "f4"), ("i1", "u1")])
def test_wider_elements_are_appended_to_single_bytes(tmp_path, kind, zarr_format, old, new):
    """The codecs that readers have open are of the old type: single bytes have no byte order."""
    types = (old, new, old)
    files = [
        _write_typed(tmp_path / f"{i}.h5", dtype, 4 * i, kind) for i, dtype in enumerate(types)
    ]
    target = tmp_path / "grown.json"
    first = vz.virtualize(files[:1], "time")
    publish(first, target, regular=True, copy=True, zarr_format=zarr_format)
    for file in files[1:]:
        append(target, file, "time", copy=True)
    got, want = vz.open(target)["flags"], vz.virtualize(files, "time")["flags"]
    assert got.dtype == want.dtype
    assert got[...].tobytes() == want[...].tobytes()
    zarr = pytest.importorskip("zarr", "3")
    fsspec = pytest.importorskip("fsspec")
    mapper = fsspec.get_mapper("reference://", fo=str(target), remote_protocol="file")
    store = zarr.storage.FsspecStore.from_mapper(mapper, read_only=True)
    np.testing.assert_array_equal(zarr.open_group(store, mode="r")["flags"][...], want[...])


def test_folders_of_parquet_take_no_other_elements(tmp_path):
    files = [
        _write_typed(tmp_path / f"{i}.h5", dtype, 4 * i, "plain")
        for i, dtype in enumerate(["u1", "f4"])
    ]
    publish(vz.virtualize(files[:1], "time"), tmp_path / "a.parq", copy=True)
    with pytest.raises(PublishError, match="its elements are uint8 and would be float32"):
        append(tmp_path / "a.parq", files[1], "time", copy=True)
