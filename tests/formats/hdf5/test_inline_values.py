"""Values that lie in heaps, or point to objects: copied when the file is scanned."""

from __future__ import annotations

import json

import h5py
import numpy as np
import pytest

from tests.formats.hdf5.helpers import low_level, scan_all
from virtualzarr import config
from virtualzarr.errors import UnsupportedError
from virtualzarr.formats.hdf5 import scan


@pytest.fixture
def path(tmp_path):
    return tmp_path / "a.h5"


@pytest.mark.parametrize("base", ["<i4", ">f8", "u1", "?", "<c8"])
@pytest.mark.parametrize("chunks", [None, (2,)])
def test_sequences_of_numbers(path, base, chunks):
    parts = [np.arange(n).astype(base) for n in (3, 0, 1, 7)]
    with h5py.File(path, "w") as file:
        dataset = file.create_dataset("x", (5,), h5py.vlen_dtype(np.dtype(base)), chunks=chunks)
        for k, part in enumerate(parts):
            dataset[k] = part
    array = scan_all(path)["x"]
    assert array.dtype == object
    assert "bytes, kept with the references" in array.info
    assert array.manifest.sources[0].is_inline
    for actual, part in zip(array[...], [*parts, []], strict=True):
        assert actual.dtype == np.dtype(base).newbyteorder("=")
        assert actual.tolist() == list(part)


def test_sequences_in_further_axes(path):
    tid = h5py.h5t.array_create(h5py.h5t.vlen_create(h5py.h5t.STD_I32LE), (2,))
    with h5py.File(path, "w") as file:
        low_level(file, "x", (3,), tid)
    assert scan_all(path)["x"].shape == (3, 2)


def test_many_values_are_read_in_parts(path):
    texts = np.array([f"{k}" for k in range(3 * 5000)], object).reshape(3, 5000)
    with h5py.File(path, "w") as file:
        file.create_dataset("wide", data=texts, dtype=h5py.string_dtype())
        file.create_dataset("long", data=texts.T, dtype=h5py.string_dtype())
        file.create_dataset("flat", data=texts.ravel(), dtype=h5py.string_dtype())
        file.create_dataset("empty", (0, 4), h5py.string_dtype())
    group = scan_all(path)
    assert (group["wide"][...] == texts).all()
    assert (group["long"][...] == texts.T).all()
    assert (group["flat"][...] == texts.ravel()).all()
    assert group["empty"].shape == (0, 4)


def test_sequences_of_other_things_are_json(path):
    nested = h5py.vlen_dtype(h5py.vlen_dtype(np.dtype("i4")))
    with h5py.File(path, "w") as file:
        dataset = file.create_dataset("texts", (2,), h5py.vlen_dtype(h5py.string_dtype()))
        dataset[0] = np.array(["a", "é"], object)
        tid = h5py.h5t.py_create(nested, logical=True)
        low_level(file, "nested", (2,), tid)
        records = h5py.vlen_dtype(np.dtype([("a", "i4"), ("b", "f8")]))
        dataset = file.create_dataset("records", (1,), records)
        dataset[0] = np.array([(1, 0.5)], [("a", "i4"), ("b", "f8")])
    group = scan_all(path)
    assert [json.loads(text) for text in group["texts"][...]] == [["a", "é"], []]
    assert [json.loads(text) for text in group["nested"][...]] == [[], []]
    assert json.loads(group["records"][0]) == [{"a": 1, "b": 0.5}]


def test_references_are_paths(path):
    with h5py.File(path, "w") as file:
        file["group/x"] = np.arange(12).reshape(3, 4)
        refs = file.create_dataset("refs", (2, 2), h5py.ref_dtype)
        refs[0, 0], refs[1, 1] = file["group/x"].ref, file["group"].ref
        regions = file.create_dataset("regions", (4,), h5py.regionref_dtype)
        regions[0] = file["group/x"].regionref[0:2, 1:3]
        regions[1] = file["group/x"].regionref[[0, 2], 1]
        regions[2] = file["group/x"].regionref[...]
    group = scan_all(path)
    assert group["refs"][...].tolist() == [["/group/x", ""], ["", "/group"]]
    actual = [json.loads(text) for text in group["regions"][...]]
    assert actual[0] == {"path": "/group/x", "blocks": [[[0, 1], [1, 2]]]}
    assert actual[1] == {"path": "/group/x", "blocks": [[[0, 1], [0, 1]], [[2, 1], [2, 1]]]}
    assert actual[2] == {"path": "/group/x"}
    assert actual[3] is None


def test_references_to_what_was_deleted_are_refused(path):
    with h5py.File(path, "w") as file:
        file["x"] = [1]
        file.create_dataset("refs", data=file["x"].ref, dtype=h5py.ref_dtype)
        del file["x"]
    with pytest.raises(UnsupportedError, match="not there"):
        scan(path)


def test_compounds_with_text_references_and_sequences(path):
    inner = np.dtype([("name", h5py.string_dtype()), ("size", ">i2")])
    dtype = np.dtype(
        [("n", "<i4"), ("text", h5py.string_dtype()), ("to", h5py.ref_dtype), ("in", inner),
         ("list", h5py.vlen_dtype(np.dtype("f4"))), ("pair", h5py.string_dtype(), (2,))]
    )  # fmt: skip
    with h5py.File(path, "w") as file:
        file["target"] = [1]
        dataset = file.create_dataset("x", (3,), dtype, chunks=(2,))
        row = np.zeros(1, dtype)
        row["n"], row["text"], row["to"] = 7, "grün", file["target"].ref
        row["in"]["name"], row["in"]["size"] = "inside", -2
        row["list"][0] = np.array([0.5, 2], "f4")
        row["pair"][0] = ["a", "bc"]
        dataset[1] = row[0]
    values = scan_all(path)["x"][...]
    assert values["n"].tolist() == [0, 7, 0]
    assert values["text"].tolist() == ["", "grün", ""]
    assert values["to"].tolist() == ["", "/target", ""]
    assert values["in"]["name"].tolist() == ["", "inside", ""]
    assert values["in"]["size"].tolist() == [0, -2, 0]
    assert values["pair"].tolist() == [["", ""], ["a", "bc"], ["", ""]]
    assert json.loads(values["list"][1]) == [0.5, 2]


@pytest.mark.parametrize("kind", ["text", "numbers", "records", "refs"])
def test_too_much_is_refused_until_more_is_allowed(path, kind, monkeypatch):
    dtypes = {
        "text": h5py.string_dtype(),
        "numbers": h5py.vlen_dtype(np.dtype("i4")),
        "records": np.dtype([("a", h5py.string_dtype())]),
        "refs": h5py.ref_dtype,
    }
    with h5py.File(path, "w") as file:
        dataset = file.create_dataset("x", (100,), dtypes[kind])
        if kind == "text":
            dataset[...] = "x" * 20
        elif kind == "numbers":
            dataset[0] = np.arange(600)
        elif kind == "records":
            dataset[0] = np.array([("x" * 500,)], dtypes[kind])[0]
    monkeypatch.setattr(config, "inline_bytes", 500)
    with pytest.raises(UnsupportedError, match="inline_bytes"):
        scan(path)
    monkeypatch.setattr(config, "inline_bytes", 1 << 20)
    assert scan_all(path)["x"].shape == (100,)


def test_one_text_named_often_is_noticed_before_memory_is_full(path, monkeypatch):
    """Elements may point to the same place, so that a small file is large when read."""
    with h5py.File(path, "w") as file:
        dataset = file.create_dataset("x", (40_000,), h5py.string_dtype(), fillvalue="x" * 1000)
        assert dataset[-1] == b"x" * 1000
    monkeypatch.setattr(config, "inline_bytes", 1 << 20)
    with pytest.raises(UnsupportedError, match="too many to copy"):
        scan(path)
