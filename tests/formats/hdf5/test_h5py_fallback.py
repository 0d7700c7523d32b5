"""What the reader does not know is read with h5py, by name and for that object only."""

from __future__ import annotations

import logging

import h5py
import numpy as np
import pytest

from tests.formats.hdf5.helpers import assert_same
from virtualzarr.formats.hdf5 import attributes, describe, indexes, links, superblock
from virtualzarr.formats.hdf5.byte_source import UnknownStructureError


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        data = np.arange(60).reshape(6, 10)
        file.create_dataset(
            "g/x", data=data, chunks=(2, 3), compression="gzip", maxshape=(None, 10)
        )
        file["g/y"] = data
        file["g/x"].attrs["units"] = "K"
        file["z"] = h5py.SoftLink("/g/x")
    return path


def unknown(*args):
    """Stand for a parser that meets what it does not know."""
    raise UnknownStructureError("something of version 9")
    yield


@pytest.mark.parametrize(
    ("module", "name"),
    [
        (superblock, "read"),
        (links, "read"),
        (attributes, "read"),
        (indexes, "read"),
    ],
)
def test_h5py_is_asked(path, monkeypatch, caplog, module, name):
    caplog.set_level(logging.INFO, logger="virtualzarr.formats.hdf5.h5py_fallback")
    assert_same(path)
    assert not caplog.records
    monkeypatch.setattr(module, name, unknown)
    if module is superblock:
        # Chunks may have other filters at the edges: h5py does not tell.
        with pytest.raises(NotImplementedError, match="layout is not known"):
            assert_same(path)
        return
    group = assert_same(path)
    assert group["z"].attrs["units"] == "K"
    assert any("something of version 9" in record.getMessage() for record in caplog.records)


def test_other_objects_are_not_affected(path, monkeypatch, caplog):
    caplog.set_level(logging.INFO, logger="virtualzarr.formats.hdf5.h5py_fallback")

    def parse_filters(body):
        raise UnknownStructureError("filter message version 9")

    monkeypatch.setattr(describe, "parse_filters", parse_filters)
    assert_same(path)
    paths = {record.getMessage().split(": ")[1].split()[0] for record in caplog.records}
    assert paths == {"/g/x", "/z"}
