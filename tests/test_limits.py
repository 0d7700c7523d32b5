"""Limits: what they refuse, how they are raised, and errors for want of memory."""

from __future__ import annotations

import json

import numpy as np
import pytest

import virtualzarr as vz
from virtualzarr import config
from virtualzarr.array.read import array_read
from virtualzarr.errors import OutOfMemoryError, UnsupportedError
from virtualzarr.formats import npy


def test_there_are_no_others():
    with pytest.raises(AttributeError, match="there is no limit 'refs'; there are references"):
        config.limits.refs = 5


def test_misspelt_settings_are_refused():
    with pytest.raises(AttributeError, match="no setting 'thread'; is 'threads' meant"):
        config.thread = 3
    before = config.threads
    with pytest.raises(AttributeError, match="no setting 'retry'"):
        config.set(threads=before + 1, retry=3)
    assert config.threads == before


def test_settings_hold_without_a_with_statement():
    before = config.threads
    changed = config.set(threads=before + 1)
    assert config.threads == before + 1
    with changed:
        assert config.threads == before + 1
    assert config.threads == before


def test_a_limit_can_be_raised(monkeypatch):
    document = {".zarray": json.dumps({
        "zarr_format": 2, "shape": [100], "chunks": [1], "dtype": "|u1", "compressor": None,
        "fill_value": 7, "order": "C", "filters": None,
    }).encode()}  # fmt: skip
    monkeypatch.setattr(config.limits, "chunks_read", 99)
    array = vz.open(document)
    assert array[:99].tolist() == [7] * 99
    with pytest.raises(UnsupportedError, match=r"100 chunks of one read.*limits\.chunks_read"):
        array[...]
    config.limits.chunks_read = 100
    assert array[...].tolist() == [7] * 100


def test_references_of_a_document(monkeypatch):
    document = {".zgroup": '{"zarr_format": 2}'}
    for name in "ab":
        document[f"{name}/.zarray"] = json.dumps({
            "zarr_format": 2, "shape": [100], "chunks": [1], "dtype": "|u1", "compressor": None,
            "fill_value": 7, "order": "C", "filters": None,
        })  # fmt: skip
        document[f"{name}/3"] = "x"
    assert vz.open(document)["b"][:5].tolist() == [7, 7, 7, ord("x"), 7]
    monkeypatch.setattr(config.limits, "references", 199)
    with pytest.raises(UnsupportedError, match=r"limits\.references.*variable b"):
        vz.open(document)


def test_want_of_memory_says_where(tmp_path, monkeypatch):
    np.save(tmp_path / "a.npy", np.arange(5))

    def fail(*args, **options):
        raise MemoryError("Unable to allocate 8 EiB")

    array = vz.open(tmp_path / "a.npy")["data"]
    monkeypatch.setattr(array_read, "read", fail)
    with pytest.raises(OutOfMemoryError, match=r"not enough memory: Unable.*variable data"):
        array[...]
    monkeypatch.setattr(npy, "scan", fail)
    with pytest.raises(MemoryError, match=r"not enough memory.*file .*a\.npy"):
        vz.open(tmp_path / "a.npy")
