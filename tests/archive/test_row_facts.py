"""Facts of files that templates fit: equal to those of their groups in everything."""

import shutil

import h5py
import netCDF4
import numpy as np
import pytest

import virtualzarr as vz
from tests.archive.archives import make_old, write
from virtualzarr.archive import row_facts
from virtualzarr.archive.facts import FileFacts
from virtualzarr.archive.row_facts import RowFacts
from virtualzarr.batches import Row
from virtualzarr.ingest.scan_files import scan_rows

OPTIONS = {"format": None, "on_error": "warn", "storage_options": None}


def archive(folder, odd=5, **options):
    """Write files by patching copies of one: what is compared is not the same in all."""
    first = write(str(folder / "0.nc"), 0.0, 4, **options)
    files = [first] + [shutil.copy(first, folder / f"{k}.nc") for k in range(1, 8)]
    for k, file in enumerate(map(str, files)):
        with h5py.File(file, "a") as data:
            data["time"][...] = 24 * k + 6 * np.arange(4)
            data["x"][...] = (1, 2, 3, 4 + (k == 6))
            data["air"].attrs.modify("scale_factor", 0.25 if k == odd else 0.5)
    make_old(map(str, files))
    return list(map(str, files))


@pytest.mark.parametrize("times", ["f8", "i4"])
@pytest.mark.parametrize("odd", [1, 2, 5])  # made a template of, fitted first, later
def test_facts_of_rows_are_those_of_groups(tmp_path, monkeypatch, odd, times):
    files = archive(tmp_path, odd, time_type=times)
    made = []
    monkeypatch.setattr(row_facts.FileFacts, "of", counting(made, FileFacts.of))
    rows = [one for one in scan_rows(files, OPTIONS) if isinstance(one, Row)]
    facts = RowFacts()
    for row in rows:
        one, parsed = facts.of(row, lambda: "hdf5"), FileFacts.of(row.group(), "hdf5")
        assert (one.properties, one.axes, one.places) == (
            parsed.properties, parsed.axes, parsed.places
        )  # fmt: skip
    assert sum(row.source is not None for row in rows) >= 3
    # Those that are alike were not made by a group.
    assert len(made) - len(rows) < len(rows)


def counting(made, function):
    def of(group, format):
        made.append(group)
        return function(group, format)

    return of


def test_properties_are_shared_by_files_that_are_alike(tmp_path):
    rows = [one for one in scan_rows(archive(tmp_path), OPTIONS) if isinstance(one, Row)]
    facts = RowFacts()
    made = [facts.of(row, lambda: "hdf5") for row in rows if row.source is not None]
    assert len({id(one.properties) for one in made}) < len(made)
    lows = [one.axes["time"].low for one in made]
    np.testing.assert_array_equal(lows, sorted(set(lows)))


def test_facts_of_files_whose_chunks_are_at_the_same_places(tmp_path):
    """As those of netCDF-3 are, which a survey took for copies of the first one."""
    files = []
    for number in range(8):
        files.append(str(tmp_path / f"{number}.nc"))
        with netCDF4.Dataset(files[-1], "w", format="NETCDF3_CLASSIC") as data:
            data.createDimension("time", 3)
            data.createDimension("x", 1000)
            data.createVariable("time", "f8", ("time",))[:] = 3 * number + np.arange(3)
            data["time"].units = "days since 2000-01-01"
            data.createVariable("air", "f4", ("time", "x"))[:] = number
    make_old(files)
    report = vz.survey(files, dim="time", progress=False)
    assert report.anomalies == ()
    assert [era.files for era in report.eras] == [8]
    assert report.formats == {"netcdf3": 8}
    rows = [one for one in scan_rows(files, OPTIONS) if isinstance(one, Row)]
    assert sum(row.source is not None for row in rows) >= 4
    facts = RowFacts()
    lows = [facts.of(row, lambda: "netcdf3").axes["time"].low for row in rows]
    assert len({*lows}) == len(rows)
