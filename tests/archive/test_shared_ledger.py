"""One ledger for surveys, virtualization and appends: what comes of it is what a scan returns."""

import contextlib
import os
import sqlite3
import warnings
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor

import h5py
import netCDF4
import numpy as np
import pytest
import xarray as xr

import virtualzarr as vz
from tests.archive.archives import make_old, write, write_archive
from virtualzarr.batches import Row, Schema
from virtualzarr.batches.stored import dump_schema, load_schema
from virtualzarr.errors import LedgerError, LedgerWarning, UnsupportedError
from virtualzarr.ingest import noted_scans
from virtualzarr.ingest.detect import scan
from virtualzarr.ingest.differences import find_difference
from virtualzarr.ingest.ledger import Ledger
from virtualzarr.ingest.versions import take_version
from virtualzarr.metadata import numpy_attributes


@pytest.fixture(scope="module")
def archive(tmp_path_factory):
    return write_archive(tmp_path_factory.mktemp("archive"), 12)


@pytest.fixture
def scanned(monkeypatch):
    """Return a list of the files that are scanned."""
    from virtualzarr.archive import inventory

    files, scan_items = [], noted_scans.scan_items

    def count(some, *arguments, **options):
        files.extend(os.path.basename(file) for file in some)
        return scan_items(some, *arguments, **options)

    for module in (noted_scans, inventory):
        monkeypatch.setattr(module, "scan_items", count)
    return files


def test_virtualize_scans_only_what_is_new(tmp_path, archive, scanned):
    path = tmp_path / "air.ledger"
    direct = vz.virtualize(archive, "time")
    first = vz.virtualize(archive[:8], "time", ledger=path)
    assert len(scanned) == 8
    assert find_difference(first, vz.virtualize(archive[:8], "time")) == ""
    scanned.clear()
    again = vz.virtualize(archive, "time", ledger=path)
    assert scanned == [os.path.basename(file) for file in archive[8:]]
    assert find_difference(again, direct) == ""
    scanned.clear()
    assert find_difference(vz.virtualize(archive, "time", ledger=path), direct) == ""
    assert scanned == []
    np.testing.assert_array_equal(again["air"][...], direct["air"][...])


def test_surveys_and_appends_share_what_was_scanned(tmp_path, archive, scanned):
    path = tmp_path / "air.ledger"
    vz.virtualize(archive[:4], "time", ledger=path).publish(tmp_path / "air.json")
    scanned.clear()
    report = vz.survey(archive[:4], ledger=path)
    assert (scanned, report.reused, report.anomalies) == ([], 4, ())
    report = vz.survey(archive, ledger=path)
    assert (len(scanned), report.reused) == (8, 4)
    scanned.clear()
    vz.append(tmp_path / "air.json", archive[4:6], "time", ledger=path)
    dataset = vz.create_dataset(tmp_path / "air.dataset", archive[:4], "time", ledger=path)
    dataset = dataset.append(archive[4:], ledger=path)
    assert scanned == []
    direct = vz.virtualize(archive, "time")
    np.testing.assert_array_equal(dataset.group["air"][...], direct["air"][...])
    np.testing.assert_array_equal(vz.open(tmp_path / "air.json")["air"][...], direct["air"][:24])
    # Where a ledger is, is no matter of the dataset.
    assert "ledger" not in vz.Dataset(tmp_path / "air.dataset").schema.options


@pytest.mark.parametrize("executor", [ThreadPoolExecutor, ProcessPoolExecutor])
def test_what_workers_scan_is_noted(tmp_path, archive, scanned, executor):
    path = tmp_path / "air.ledger"
    with executor(2) as workers:
        vz.virtualize(archive, "time", ledger=path, parallel=workers)
    scanned.clear()
    again = vz.virtualize(archive, "time", ledger=path)
    assert scanned == []
    assert find_difference(again, vz.virtualize(archive, "time")) == ""


def write_odd(path):
    """Write a file with a variable that is much shorter than its unlimited dimension."""
    with h5py.File(path, "w") as file:
        file.create_dataset("time", (2**40,), "i1", maxshape=(None,), chunks=(1,)).make_scale("t")
        for name in ("air", "odd"):
            dataset = file.create_dataset(name, (2,), "i1", maxshape=(None,), chunks=(1,),
                                          fillvalue=3)  # fmt: skip
            dataset.dims[0].attach_scale(file["time"])
        file["odd"][0] = 1
    make_old([str(path)])
    return str(path)


def test_skipped_variables_are_told_each_time(tmp_path, scanned):
    file, path = write_odd(tmp_path / "odd.h5"), tmp_path / "odd.ledger"
    told = []
    for _ in range(2):
        with pytest.warns(UserWarning, match="could not be virtualized") as caught:
            group = vz.virtualize(file, ledger=path, on_error="warn")
        told.append([str(each.message) for each in caught])
        assert sorted(group) == ["air", "time"]
        assert list(group.skipped) == ["odd"]
    assert scanned == ["odd.h5"]
    assert told[0] == told[1]
    with pytest.raises(UnsupportedError):
        vz.virtualize(file, ledger=path)


def test_files_that_depend_on_others_are_scanned_each_time(tmp_path, scanned):
    with h5py.File(tmp_path / "inner.h5", "w") as file:
        file["air"] = np.arange(4.0)
    with h5py.File(tmp_path / "outer.h5", "w") as file:
        file["air"] = h5py.ExternalLink("inner.h5", "air")
        file["gone"] = h5py.ExternalLink("gone.h5", "air")
    files = [str(tmp_path / "outer.h5")]
    make_old([*files, str(tmp_path / "inner.h5")])
    for _ in range(2):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            vz.virtualize(files, ledger=tmp_path / "a.ledger", on_error="warn")
    assert scanned == ["outer.h5", "outer.h5"]


def test_bad_files_are_errors_each_time(tmp_path, scanned):
    good = write(str(tmp_path / "a.nc"), 0.0)
    bad = tmp_path / "b.nc"
    bad.write_bytes(b"\x89HDF\r\n\x1a\n" + bytes(20))
    make_old([good, str(bad)])
    path = tmp_path / "air.ledger"
    for _ in range(2):
        with pytest.raises(vz.errors.VirtualZarrError, match=r"b\.nc"):
            vz.virtualize([good, bad], "time", ledger=path)
    assert scanned == ["a.nc", "b.nc", "b.nc"]
    with pytest.warns(UserWarning, match="left out"):
        vz.virtualize([good, bad], "time", ledger=path, bad_files="skip")


def test_scans_with_other_limits_are_others(tmp_path, archive, scanned):
    path = tmp_path / "air.ledger"
    vz.virtualize(archive[0], ledger=path)
    with vz.config.set(inline_bytes=1000):
        vz.virtualize(archive[0], ledger=path)
    assert len(scanned) == 2


def test_damaged_batches_are_told_and_scanned_again(tmp_path, archive, scanned):
    path = tmp_path / "air.ledger"
    direct = vz.virtualize(archive, "time", ledger=path)
    connection = sqlite3.connect(path)
    connection.execute("UPDATE batch SET columns = substr(columns, 1, 20) WHERE rowid = 1")
    connection.commit()
    connection.close()
    with pytest.warns(LedgerWarning, match="its batch has changed"):
        again = vz.virtualize(archive, "time", ledger=path)
    assert find_difference(again, direct) == ""
    for count in (len(archive), 2 * len(archive)):  # of that batch, no file is noted any more
        with warnings.catch_warnings():
            warnings.simplefilter("error", LedgerWarning)
            assert vz.survey(archive, ledger=path).reused >= count - len(archive)


@pytest.mark.parametrize(("table", "change"), [
    *(("file", change) for change in (
        "batch = (SELECT hash FROM batch ORDER BY hash LIMIT 1), row = 0", "row = 1 - row % 2",
        "batch = NULL, error = '[\"truncated\", \"it is\"]'", "nskipped = 1 - nskipped",
        "facts = (SELECT facts FROM file ORDER BY key DESC LIMIT 1)", "facts = CAST(x'ff' AS TEXT)",
        "properties = 'x'", "digest = NULL", "run = 3 - run")),
    *(("properties", change) for change in ("body = '{}'", "hash = 'x'", "body = NULL")),
    *(("schema", change) for change in ("body = x'00'", "hash = x'00'")),
    *(("batch", change) for change in ("columns = x'00'", "schema = x'00'", "hash = rowid")),
])  # fmt: skip
def test_nothing_that_is_damaged_is_believed(tmp_path, archive, table, change):
    files = [*archive, write(str(tmp_path / "z.nc"), 1000.0, 3)]
    # What was just written would be noted anew at some time within the test, or not.
    make_old(files[-1:])
    path = tmp_path / "air.ledger"
    direct, report = vz.virtualize(archive, "time"), vz.survey(files).to_json()
    vz.survey(files, ledger=path)
    vz.virtualize(archive, "time", ledger=path)
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute(f"UPDATE OR REPLACE {table} SET {change}")
        connection.commit()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", LedgerWarning)
        for _ in range(2):
            assert find_difference(vz.virtualize(archive, "time", ledger=path), direct) == ""
            again = vz.survey(files, ledger=path).to_json()
            assert {**again, "reused": 0} == {**report, "reused": 0}
    with warnings.catch_warnings():
        warnings.simplefilter("error", LedgerWarning)
        assert vz.survey(files, ledger=path).reused >= len(archive)


@pytest.mark.parametrize("seed", range(8))
def test_bits_that_flip_change_no_result(tmp_path, archive, seed):
    path = tmp_path / "air.ledger"
    direct, report = vz.virtualize(archive, "time"), vz.survey(archive).to_json()
    vz.survey(archive, ledger=path)
    random, data = np.random.default_rng(seed), bytearray(path.read_bytes())
    for place in random.integers(4096, len(data), 20):
        data[place] ^= 1 << random.integers(8)
    path.write_bytes(data)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", LedgerWarning)
        for work, expected in (
            (lambda: vz.virtualize(archive, "time", ledger=path), None),
            (lambda: {**vz.survey(archive, ledger=path).to_json(), "reused": 0}, report),
        ):
            try:
                result = work()
            except LedgerError:  # SQLite itself cannot read on
                continue
            if expected is None:
                assert find_difference(result, direct) == ""
            else:
                assert result == {**expected, "reused": 0}


def test_nothing_is_noted_under_uris_with_signatures(tmp_path, archive):
    group = scan(archive[0])
    for array in (group["air"],):
        source = array.manifest.sources[0].with_uri("https://me:hidden@host/a.nc")
        array.manifest.sources._rows = (source,)
    with Ledger(tmp_path / "a.ledger", {}) as ledger:
        ledger.put("https://me:hidden@host/a.nc", take_version(archive[0]), Row.of(group))
        (entry,) = ledger.find(["https://host/a.nc"], [take_version(archive[0])])
    assert entry is None or entry.batch is None
    assert b"hidden" not in (tmp_path / "a.ledger").read_bytes()


def test_stored_schemas_are_data_and_no_programs(archive):
    body = dump_schema(Schema.of(scan(archive[0])))
    rebuilt = load_schema(body).build(None, np.empty(0, int), np.empty(0, int), {})
    assert find_difference(rebuilt, scan(archive[0])) == ""
    for size in range(0, len(body) - 1, 37):
        with pytest.raises((ValueError, KeyError, vz.errors.VirtualZarrError)):
            load_schema(body[:size])


def test_what_a_ledger_tells_is_what_scans_tell(tmp_path):
    special = {
        "_3": {"units": "hours since 2000-01-02", "times": [48, 54, 60, 66]},
        "_5": {"x": (1, 2, 3, 5)},
        "_6": {"scale": 0.25, "only": ["air"]},
        "_7": {"times": [168, 174, 174, 186]},
        "_8": {"names": ("air", "ice")},
    }
    special |= {f"_{k}": {"shuffle": True} for k in range(12, 18)}
    files = write_archive(tmp_path, 18, **special)
    os.unlink(files.pop(10))
    path = tmp_path / "air.ledger"
    direct = vz.survey(files)
    assert len({each.kind for each in direct.anomalies}) > 6
    for reused in (0, 17):
        report = vz.survey(files, ledger=path)
        assert report.reused == reused
        assert (report.eras, report.anomalies) == (direct.eras, direct.anomalies)
        assert (report.listing, report.strands) == (direct.listing, direct.strands)


def _write_packed(path, number, *, scale, kind=np.float32):
    with netCDF4.Dataset(path, "w") as file:
        file.createDimension("time", None)
        file.createVariable("time", "f8", ("time",))[:] = [number]
        packed = file.createVariable("v", "i2", ("time",))
        packed.set_auto_maskandscale(False)
        packed.scale_factor, packed.missing_value = kind(scale), np.int16(-9)
        packed.flags = np.array([1, number], "u1")
        packed[:] = number
    os.utime(path, (1e9, 1e9))
    return str(path)


def test_numbers_of_attributes_keep_their_types(tmp_path):
    """What data are unpacked to depends on them: CF conventions, section 8.1."""
    ledger = tmp_path / "some.ledger"
    files = [_write_packed(tmp_path / f"{n}.nc", n, scale=0.1) for n in range(6)]
    for known in (files[:4], files):  # files that are noted are joined with new ones
        plain = vz.virtualize(known, "time")
        for _ in range(2):
            noted = vz.virtualize(known, "time", ledger=ledger)
            assert find_difference(noted, plain) == ""
            opened = xr.open_dataset(noted, engine="virtualzarr")["v"]
            assert opened.dtype == "f4"
    files.append(_write_packed(tmp_path / "6.nc", 6, scale=0.5, kind=np.float64))
    files.append(_write_packed(tmp_path / "7.nc", 7, scale=0.5, kind=np.float32))
    scanned = [vz.virtualize(file) for file in files]
    for _ in range(2):
        for one, plain in zip(
            [vz.virtualize(file, ledger=ledger) for file in files], scanned, strict=True
        ):
            assert find_difference(one, plain) == ""


def test_numbers_that_are_none_keep_their_bits(tmp_path):
    odd = np.array([np.nan, -np.nan, np.inf, -0.0], "f4")
    odd.view("u4")[0] |= 5  # what a NaN carries
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["v"] = np.arange(3.0)
        file["v"].attrs["odd"] = odd
        file["v"].attrs["one"] = odd[1]
        file["v"].attrs["table"] = np.array([[1, 2], [3, 4]], "i2")
    os.utime(tmp_path / "a.h5", (1e9, 1e9))
    for _ in range(2):
        attributes = numpy_attributes(
            vz.virtualize(tmp_path / "a.h5", ledger=tmp_path / "some.ledger")["v"].attrs
        )
        assert attributes["odd"].tobytes() == odd.tobytes()
        assert attributes["one"].tobytes() == odd[1].tobytes()
        assert [[one.dtype for one in row] for row in attributes["table"]] == [["i2"] * 2] * 2
