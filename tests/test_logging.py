"""What is logged, by whom, and how loud."""

from __future__ import annotations

import logging

import h5py
import numpy as np
import pytest

import virtualzarr as vz


@pytest.fixture
def files(tmp_path):
    paths = []
    for i in range(3):
        paths.append(tmp_path / f"{i}.h5")
        with h5py.File(paths[-1], "w") as file:
            file["x"] = np.arange(4) + 4 * i
            file["x"].dims[0].label = "t"
    return paths


def test_rooms_have_loggers_of_their_own(tmp_path, files, caplog):
    caplog.set_level(logging.DEBUG, "virtualzarr")
    vz.virtualize(files[:2], "t").publish(tmp_path / "refs.json")
    vz.append(tmp_path / "refs.json", files[2], "t")
    vz.copy(tmp_path / "refs.json", tmp_path / "x.zarr")
    found = {(record.name, record.levelname) for record in caplog.records}
    assert {
        ("virtualzarr.formats.hdf5", "DEBUG"),
        ("virtualzarr.ingest.scan_files", "INFO"),
        ("virtualzarr.references.write_plan", "INFO"),
        ("virtualzarr.stores.locks", "DEBUG"),
        ("virtualzarr.references.portable_form", "INFO"),
        ("virtualzarr.rechunk.copy", "INFO"),
    } <= found
    assert {level for _, level in found} == {"DEBUG", "INFO"}
    assert all(name.startswith("virtualzarr.") for name, _ in found)
    assert any(str(files[2]) in record.getMessage() for record in caplog.records)


def test_reports_are_texts(tmp_path, files):
    report = vz.virtualize(files[:2], "t").publish(tmp_path / "refs.json")
    lines = str(report).splitlines()
    assert lines[0].startswith(f"{tmp_path / 'refs.json'}: ")
    assert lines[1] == "  1 array in 1 group, 2 references"
    assert repr(report) == str(report)
    assert (
        str(vz.check_references(tmp_path / "refs.json")) == "2 ok, 0 changed, 0 missing, 0 unknown"
    )
    copied = vz.copy(tmp_path / "refs.json", tmp_path / "x.zarr")
    assert str(copied).splitlines()[0] == "1 array, 1 group"
