"""Checksums, against those that the HDF5 library wrote."""

from __future__ import annotations

import struct

import h5py
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.formats.hdf5.helpers import objects_of
from virtualzarr.errors import SourceError
from virtualzarr.formats.hdf5 import checksum
from virtualzarr.formats.hdf5.checksum import (
    _hash_one,
    compute_checksums,
    find_damaged_blocks,
    find_damaged_rows,
)


@pytest.fixture(params=["the library's", "ours"], autouse=True)
def whose(request, monkeypatch):
    """Run every test with the function of the HDF5 library, and with our own."""
    if request.param == "ours":
        monkeypatch.setattr(checksum, "_load_library_function", lambda: None)
    elif checksum._load_library_function() is None:
        pytest.skip("this build of the HDF5 library does not let its function be called")


def test_known_values():
    # Of the algorithm's own test program.
    assert compute_checksums([b"Four score and seven years ago"]) == [0x17770551]
    assert compute_checksums([b""]) == [0xDEADBEEF]


@given(st.lists(st.binary(max_size=80), max_size=60))
def test_ours_are_the_librarys(blocks):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(checksum, "_load_library_function", lambda: None)
        ours = compute_checksums(blocks)
    assert compute_checksums(blocks) == ours


def test_the_library_wrote_the_same(tmp_path):
    path = tmp_path / "a.h5"
    h5py.File(path, "w", libver="latest").close()
    head = path.read_bytes()[:48]
    assert struct.unpack("<I", head[44:]) == tuple(compute_checksums([head[:44]]))


@given(st.lists(st.binary(max_size=80), max_size=60))
def test_many_at_once_are_as_one_by_one(blocks):
    assert compute_checksums(blocks) == [_hash_one(block) for block in blocks]


@given(st.lists(st.binary(min_size=1, max_size=30), min_size=1, max_size=9), st.data())
def test_rows_that_are_wrong(blocks, data):
    rows = np.full((len(blocks), 40), 77, np.uint8)
    ends = []
    for row, block in zip(rows, blocks, strict=True):
        raw = block + struct.pack("<I", _hash_one(block))
        row[: len(raw)] = np.frombuffer(raw, np.uint8)
        ends.append(len(raw))
    assert find_damaged_rows(rows, np.array(ends)).tolist() == []
    broken = data.draw(st.integers(0, len(blocks) - 1))
    rows[broken, data.draw(st.integers(0, ends[broken] - 1))] ^= 1
    assert find_damaged_rows(rows, np.array(ends)).tolist() == [broken]


@given(st.lists(st.binary(max_size=30), min_size=1, max_size=9), st.integers(1, 4), st.data())
def test_blocks_of_rows_that_are_wrong(blocks, count, data):
    parts = [block + struct.pack("<I", _hash_one(block)) for block in blocks]
    gaps = data.draw(st.lists(st.integers(0, 5), min_size=len(parts), max_size=len(parts)))
    starts, row = [], b""
    for part, gap in zip(parts, gaps, strict=True):
        starts.append(len(row) + gap)
        row += bytes(gap) + part
    stops = np.array(starts) + [len(part) for part in parts]
    rows = np.tile(np.frombuffer(row, np.uint8), (count, 1))
    assert find_damaged_blocks(rows, np.array(starts), stops).tolist() == [False] * count
    broken = data.draw(st.integers(0, count - 1))
    block = data.draw(st.integers(0, len(parts) - 1))
    rows[broken, data.draw(st.integers(starts[block], int(stops[block]) - 1))] ^= 1
    expected = [number == broken for number in range(count)]
    assert find_damaged_blocks(rows, np.array(starts), stops).tolist() == expected


def test_only_what_is_damaged_is_lost(tmp_path):
    path = tmp_path / "a.h5"
    with h5py.File(path, "w", libver="latest") as file:
        for name in "abc":
            file.create_dataset(name, data=[1, 2, 3])
        addresses = {name: h5py.h5o.get_info(file[name].id).addr for name in "abc"}
    raw = bytearray(path.read_bytes())
    raw[addresses["b"] + 12] ^= 1
    path.write_bytes(raw)
    objects = objects_of(path)
    headers = {name: objects[address].header for name, address in addresses.items()}
    assert isinstance(headers["b"], SourceError)
    assert "checksum" in headers["b"].message
    assert headers["a"].kind == headers["c"].kind == "dataset"


@pytest.mark.parametrize("address", [20, 36, 44])
def test_a_damaged_superblock(tmp_path, address):
    path = tmp_path / "a.h5"
    h5py.File(path, "w", libver="latest").close()
    raw = bytearray(path.read_bytes())
    raw[address] ^= 64
    path.write_bytes(raw)
    with pytest.raises(SourceError, match="superblock at 0 is damaged"):
        objects_of(path)


@pytest.mark.parametrize("count", [2, 20])
def test_ends_outside_their_rows_are_not_followed(count):
    rows = np.zeros((count, 16), np.uint8)
    assert find_damaged_rows(rows, np.full(count, 10_000_000)).tolist() == list(range(count))
    assert find_damaged_rows(rows, np.zeros(count, np.int64)).tolist() == list(range(count))
