"""Values in heaps as this package's own reader has them, against h5py."""

from __future__ import annotations

import contextlib
import logging
import struct

import h5py
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.formats.hdf5.helpers import low_level, scan_all
from virtualzarr import config
from virtualzarr.array import Array
from virtualzarr.errors import (
    SkippedVariableWarning,
    SourceError,
    UnsupportedError,
    VirtualZarrError,
)
from virtualzarr.formats.hdf5 import heaps, inline_values, scan
from virtualzarr.formats.hdf5.open_file import open_hdf5

TEXT = h5py.string_dtype()
PADDINGS = (h5py.h5t.STR_NULLTERM, h5py.h5t.STR_NULLPAD, h5py.h5t.STR_SPACEPAD)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "a.h5"


@pytest.fixture
def library_requests(caplog):
    """Return what tells which objects h5py was asked for since the last time."""
    caplog.set_level(logging.INFO, logger="virtualzarr.formats.hdf5.h5py_fallback")

    def names():
        actual = {record.getMessage().split(": ")[1].split()[0] for record in caplog.records}
        caplog.clear()
        return actual

    return names


def assert_as_h5py(path, library_requests, names=(), only=None):
    """Check that all values are those h5py gives, and that only some were asked of the library."""
    group = scan_all(path)
    assert library_requests() == {f"/{name}" for name in names}
    with h5py.File(path, "r+") as file:  # fill values in heaps are read only so
        paths = {}
        file.visititems(lambda name, node: paths.update({h5py.h5o.get_info(node.id).addr: name}))
        for name, node in group.members(max_depth=None):
            if isinstance(node, Array) and 0 not in node.shape and name in (only or [name]):
                dtype, shape, data, pipeline = inline_values.read(file[name].id, paths)
                assert (node.dtype, node.shape) == (dtype, shape), name
                assert node.metadata.pipeline == pipeline
                assert node.manifest.sources[0].data == data, name
    return group


@pytest.mark.parametrize("libver", ["earliest", "v110", "latest"])
@pytest.mark.parametrize("block", [0, 1024])
def test_texts_of_every_kind(path, library_requests, libver, block):
    texts = np.array(["a", "", "grün", "x" * 5000, "a b  ", "日本"], object)
    with h5py.File(path, "w", libver=libver, userblock_size=block) as file:
        for padding in PADDINGS:
            for charset in (h5py.h5t.CSET_ASCII, h5py.h5t.CSET_UTF8):
                tid = h5py.h5t.C_S1.copy()
                tid.set_size(h5py.h5t.VARIABLE)
                tid.set_strpad(padding)
                tid.set_cset(charset)
                dataset = low_level(file, f"{padding}{charset}", (6,), tid)
                dataset[...] = [text.encode() for text in texts]
        options = {"compression": "gzip", "shuffle": True}
        dataset = file.create_dataset(
            "cut", (5, 7), TEXT, chunks=(2, 3), maxshape=(None, 9), **options
        )
        dataset[1:4, 2:6] = np.resize(texts, (3, 4))
        file.create_dataset("filled", (3, 5), TEXT, chunks=(2, 2), fillvalue="nothing")[0, 0] = "x"
        file.create_dataset("whole", (3,), TEXT, fillvalue="nothing")
        file.create_dataset("empty", (0, 3), TEXT)
        file["scalar"] = "one"
        low_level(file, "compact", (6,), tid, layout=h5py.h5d.COMPACT)[...] = texts
        tid = h5py.h5t.array_create(h5py.h5t.py_create(TEXT, logical=True), (2, 3))
        low_level(file, "inner", (4,), tid)
    group = assert_as_h5py(path, library_requests)
    assert group["filled"][...].tolist()[0] == ["x", "nothing", "nothing", "nothing", "nothing"]
    assert group["inner"].shape == (4, 2, 3)
    assert group["cut"][3, 5] == "日本"


NUMBERS = ["i1", "<u2", ">i4", "<f4", ">f8", "?", "<c8", "<f2"]


@pytest.mark.parametrize("base", NUMBERS)
def test_sequences_of_every_kind(path, library_requests, base):
    random = np.random.default_rng(0)
    with h5py.File(path, "w") as file:
        dataset = file.create_dataset("x", (9,), h5py.vlen_dtype(np.dtype(base)), chunks=(4,))
        for k in (0, 1, 2, 5, 8):
            dataset[k] = (random.normal(size=k) * 100).astype(base)
    group = assert_as_h5py(path, library_requests)
    assert [len(item) for item in group["x"][...]] == [0, 1, 2, 0, 0, 5, 0, 0, 8]


def test_enumerations_and_odd_numbers_in_sequences(path, library_requests):
    enum = h5py.enum_dtype({"A": 1, "B": 2}, basetype="i2")
    odd = h5py.h5t.STD_I32LE.copy()
    odd.set_precision(28)
    with h5py.File(path, "w") as file:
        file.create_dataset("enum", (2,), h5py.vlen_dtype(enum))[0] = np.array([1, 2, 1], "i2")
        dataset = low_level(file, "odd", (2,), h5py.h5t.vlen_create(odd))
        dataset[1] = np.array([5, -7], "i4")
    group = assert_as_h5py(path, library_requests)
    assert group["odd"][1].tolist() == [5, -7]


def test_what_holds_other_things(path, library_requests):
    inner = np.dtype([("name", TEXT), ("size", ">i2")])
    record = np.dtype(
        [("n", "<i4"), ("text", TEXT), ("to", h5py.ref_dtype), ("in", inner),
         ("list", h5py.vlen_dtype(np.dtype("f4"))), ("pair", TEXT, (2,)), ("flat", "f8", (3,))]
    )  # fmt: skip
    with h5py.File(path, "w") as file:
        file["group/target"] = ["t"]
        refs = file.create_dataset("refs", (2, 2), h5py.ref_dtype)
        refs[0, 1], refs[1, 0] = file["group/target"].ref, file["group"].ref
        dataset = file.create_dataset("records", (3,), record, chunks=(2,))
        row = np.zeros(1, record)
        row["n"], row["text"], row["to"] = 7, "grün", file["group/target"].ref
        row["in"]["name"], row["in"]["size"] = "inside", -2
        row["list"][0] = np.array([0.5, 2], "f4")
        row["pair"][0] = ["a", "bc"]
        row["flat"] = [1, 2, 3]
        dataset[1] = row[0]
        lists = file.create_dataset("texts", (3,), h5py.vlen_dtype(TEXT))
        lists[0] = np.array(["a", "é"], object)
        file.create_dataset("rows", (2,), h5py.vlen_dtype(np.dtype([("a", "i4"), ("b", "f8")])))[
            0
        ] = np.array([(1, 0.5), (2, 1.5)], np.dtype([("a", "i4"), ("b", "f8")]))
        nested = h5py.h5t.vlen_create(h5py.h5t.vlen_create(h5py.h5t.STD_I32LE))
        low_level(file, "nested", (2,), nested)
    group = assert_as_h5py(path, library_requests)
    assert group["refs"][...].tolist() == [["", "/group/target"], ["/group", ""]]
    assert group["records"][1]["flat"].tolist() == [1, 2, 3]
    assert group["rows"][0] == '[{"a": 1, "b": 0.5}, {"a": 2, "b": 1.5}]'


def test_what_only_h5py_reads(path, library_requests):
    with h5py.File(path, "w") as file:
        file["x"] = np.arange(6)
        file["gone"] = [1]
        file["lost/kept"] = [1]
        refs = file.create_dataset("unnamed", (1,), h5py.ref_dtype)
        dataset = file.create_dataset(None, (1,))
        refs[0] = dataset.ref
        file["good"] = "text"
    with pytest.raises(UnsupportedError, match="what is not there"):
        scan(path)
    assert "/unnamed" in library_requests()


@pytest.mark.parametrize("libver", ["earliest", "v110", "latest"])
def test_references_to_regions(path, library_requests, libver):
    mask = np.zeros((10, 12), bool)
    mask[3, 4] = mask[5, 6] = mask[0, 0] = True
    picked = [np.s_[0:2, 1:3], ([0, 2, 5], 1), np.s_[...], np.s_[::3, ::4], mask, np.s_[4:4, :]]
    with h5py.File(path, "w", libver=libver) as file:
        file["g/x"] = np.arange(120).reshape(10, 12)
        dataset = file.create_dataset("refs", (9,), h5py.regionref_dtype)
        for k, part in enumerate(picked):
            dataset[k] = file["g/x"].regionref[part]
        dataset[8] = dataset[0]
        pair = np.dtype([("n", "i2"), ("to", h5py.regionref_dtype)])
        dataset = file.create_dataset("pairs", (2,), pair)
        dataset[1] = np.array([(5, file["g/x"].regionref[1:4:2, 2])], pair)[0]
    group = assert_as_h5py(path, library_requests, only=("refs", "pairs"))
    assert group["refs"][0] == '{"path": "/g/x", "blocks": [[[0, 1], [1, 2]]]}'
    assert group["refs"][7] == "null"
    raw = bytearray(path.read_bytes())
    for offset in range(collections(raw)[0], collections(raw)[0] + 200):
        for bit in (0, 3, 7):
            raw[offset] ^= 1 << bit
            path.write_bytes(raw)
            with contextlib.suppress(VirtualZarrError):
                scan(path)
            raw[offset] ^= 1 << bit


@pytest.mark.parametrize("many", [1, 10**9])
def test_many_collections(path, library_requests, monkeypatch, many):
    """One after the other, and side by side."""
    monkeypatch.setattr(config.tuning, "hdf5_vectorized_heaps", many)
    random = np.random.default_rng(0)
    with h5py.File(path, "w") as file:
        dataset = file.create_dataset("x", (3000,), TEXT, chunks=(100,))
        other = file.create_dataset("y", (3000,), h5py.vlen_dtype("u1"), chunks=(100,))
        for start in range(0, 3000, 100):
            sizes = random.integers(0, 60, 100)
            dataset[start : start + 100] = ["é" * n for n in sizes]
            part = np.empty(100, object)
            part[:] = [np.arange(n, dtype="u1") for n in sizes]
            other[start : start + 100] = part
        dataset[17], dataset[2900] = "z" * 9000, ""
        dataset[5:500:7] = "written again"
    assert_as_h5py(path, library_requests)


@given(
    texts=st.lists(st.text(max_size=40), min_size=1, max_size=40),
    chunk=st.integers(1, 9),
    again=st.lists(st.tuples(st.integers(0, 39), st.text(max_size=90)), max_size=5),
)
@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_texts(path, texts, chunk, again):
    texts = [text.replace("\0", "") for text in texts]
    with h5py.File(path, "w") as file:
        dataset = file.create_dataset("x", (len(texts),), TEXT, chunks=(min(chunk, len(texts)),))
        dataset[...] = texts
        for k, text in again:
            if k < len(texts):
                dataset[k] = texts[k] = text.replace("\0", "")
    assert scan_all(path)["x"][...].tolist() == texts


def test_text_ends_before_a_nul_and_is_utf8(path):
    with h5py.File(path, "w") as file:
        dataset = file.create_dataset("x", (2,), TEXT)
        dataset[...] = ["abcdef", "é"]
    raw = path.read_bytes()
    path.write_bytes(raw.replace(b"abcdef", b"ab\0def"))
    with h5py.File(path) as file:
        assert file["x"][0] == b"ab"
    assert scan_all(path)["x"][...].tolist() == ["ab", "é"]
    path.write_bytes(raw.replace("é".encode(), b"\xc3x").replace(b"abcdef", b"abcde\xc3"))
    with pytest.raises(UnsupportedError, match="not UTF-8"):
        scan(path)


def test_over_a_link(path, http_server, library_requests):
    """All variables in the same few rounds, and h5py is not library_requests."""
    random, first = np.random.default_rng(0), config.tuning.remote_header_bytes
    with h5py.File(path, "w") as file:
        datasets = [file.create_dataset(f"v{k}", (300,), TEXT, chunks=(50,)) for k in range(20)]
        datasets.append(file.create_dataset("n", (300,), h5py.vlen_dtype("f8"), chunks=(50,)))
        for start in range(0, 300, 50):
            file[f"between{start}"] = np.frombuffer(random.bytes(first), "u1")
            for dataset in datasets[:-1]:
                dataset[start : start + 50] = [f"{k} {dataset.name}" for k in range(50)]
            part = np.empty(50, object)
            part[:] = [random.normal(size=k % 5) for k in range(50)]
            datasets[-1][start : start + 50] = part
    url = f"{http_server(path.parent)}/{path.name}"
    with open_hdf5(url) as file:
        before = file.data.rounds
    rounds = []

    with pytest.MonkeyPatch.context() as patch:
        from virtualzarr.formats.hdf5.byte_source import PageCache

        load = PageCache.load

        def counted(self, requests):
            load(self, requests)
            rounds.append(self.rounds)

        patch.setattr(PageCache, "load", counted)
        far = scan_all(url)
    assert rounds[-1] <= before + 3
    assert not library_requests()
    local = scan_all(path)
    for name in local:
        assert far[name].metadata == local[name].metadata
        if not name.startswith("between"):
            assert far[name].manifest.sources[0].data == local[name].manifest.sources[0].data


def collections(raw):
    """Return where the global heap's collections start."""
    places, at = [], raw.find(b"GCOL")
    while at >= 0:
        places.append(at)
        at = raw.find(b"GCOL", at + 1)
    return places


@pytest.mark.parametrize("many", [1, 10**9])
def test_broken_heaps(path, monkeypatch, many):
    monkeypatch.setattr(config.tuning, "hdf5_vectorized_heaps", many)
    with h5py.File(path, "w") as file:
        for k in range(3):
            file.create_dataset(f"x{k}", data=["abc", "d" * 3000], dtype=TEXT)
    raw = path.read_bytes()
    first = collections(raw)[0]
    for offset, value, message in [
        (first, b"GCOX", "no global heap"),
        (first + 8, struct.pack("<Q", 1 << 62), "fit into the file"),
        (first + 8, struct.pack("<Q", 8), "no object|fit into"),
        (first + 16, b"\x09", "no object 1"),
        (first + 24, struct.pack("<Q", 1 << 62), "reaches over the end"),
        (first + 24, struct.pack("<Q", (1 << 64) - 8), "reaches over the end"),
        (first + 24, struct.pack("<Q", 2), "longer than|reaches over"),
    ]:
        path.write_bytes(raw[:offset] + value + raw[offset + len(value) :])
        with pytest.raises(SourceError, match=message):
            scan(path)


def test_flipped_bits_are_errors_or_what_h5py_reads(path):
    with h5py.File(path, "w") as file:
        file.create_dataset("x", data=["abc", "de", ""], dtype=TEXT)
        file.create_dataset("n", (2,), h5py.vlen_dtype("<i2"))[0] = np.arange(4, dtype="i2")
    raw = path.read_bytes()
    (start,) = collections(raw)
    pointers = raw.find(struct.pack("<Q", start)) - 4
    texts = raw.find(b"abc", start), raw.find(b"de", start)
    data = [*range(texts[0], texts[0] + 3), *range(texts[1], texts[1] + 2)]
    count = 0
    for offset in [*range(start, start + 100), *range(pointers, pointers + 48)]:
        for bit in (0, 4, 7):
            damaged = bytearray(raw)
            damaged[offset] ^= 1 << bit
            path.write_bytes(damaged)
            try:
                actual = scan(path)["x"][...].tolist()
            except VirtualZarrError:
                continue
            count += 1
            if offset in data:
                with h5py.File(path) as file:
                    assert actual == [item.decode() for item in file["x"][...]]
            elif start <= offset < start + 100:
                assert actual == ["abc", "de", ""], (offset - start, bit)
            else:  # h5py hangs on some of these
                assert set(actual) <= {"", "a", "ab", "abc", "d", "de"}
    assert count > 20


def test_more_than_is_allowed_is_not_even_fetched(path, monkeypatch):
    with h5py.File(path, "w") as file:
        dataset = file.create_dataset("x", (40_000,), TEXT, fillvalue="x" * 1000)
        assert dataset[-1] == b"x" * 1000
    monkeypatch.setattr(config, "inline_bytes", 1 << 20)
    monkeypatch.setattr(heaps.GlobalHeap, "get_all", None)
    with pytest.raises(UnsupportedError, match="too many to copy"):
        scan(path)


def test_what_goes_wrong_costs_one_dataset(path, http_server, monkeypatch):
    with h5py.File(path, "w") as file:
        file.create_dataset("bad", data=["a", "b"], dtype=TEXT)
        file.create_dataset("good", (2,), h5py.vlen_dtype("i2"))

    def broken(parts, shape):
        raise ValueError("whatever h5py raises")

    monkeypatch.setattr(inline_values, "encode_texts", broken)
    for offset in (path, f"{http_server(path.parent)}/{path.name}"):
        with pytest.warns(SkippedVariableWarning, match="whatever h5py raises"):
            group = scan(offset, on_error="warn")
        assert set(group) == {"good"}


def test_chunks_absurdly_larger_than_their_dataset(path, monkeypatch):
    with h5py.File(path, "w") as file:
        options = {"chunks": (1 << 20,), "maxshape": (None,), "compression": "gzip"}
        file.create_dataset("x", (3,), TEXT, **options)[0] = "x"
    monkeypatch.setattr(config, "inline_bytes", 1 << 20)
    with pytest.raises(UnsupportedError, match="too many to copy"):
        scan(path)
    monkeypatch.setattr(config, "inline_bytes", 1 << 26)
    assert scan(path)["x"][...].tolist() == ["x", "", ""]
