"""Checksums: known values, foreign writers, and that damage is found."""

from __future__ import annotations

import h5py
import numcodecs
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from virtualzarr.codecs import checksums, make
from virtualzarr.errors import CodecError

_THEIRS = ("crc32", "crc32c", "adler32", "fletcher32", "jenkins_lookup3")
NAMES = ["crc32c", *(f"numcodecs.{name}" for name in _THEIRS)]


def theirs(name, **options):
    return numcodecs.get_codec({"id": name.removeprefix("numcodecs."), **options})


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=30, deadline=None)
@given(st.binary(min_size=1, max_size=300))
def test_against_numcodecs(name, raw):
    codec = make(name)
    data = bytes(codec.encode(raw))
    assert data == bytes(theirs(name).encode(np.frombuffer(raw, "u1")))
    assert bytes(codec.decode(data, len(raw), len(raw))) == raw
    assert codec.compute_encoded_size(len(raw)) == len(data)


@pytest.mark.parametrize("name", ["numcodecs.crc32", "numcodecs.crc32c", "numcodecs.adler32"])
@pytest.mark.parametrize("location", ["start", "end"])
def test_locations(name, location):
    raw = b"some bytes"
    codec = make(name, location=location)
    data = bytes(codec.encode(raw))
    assert data == bytes(theirs(name, location=location).encode(np.frombuffer(raw, "u1")))
    assert bytes(codec.decode(data, None, 99)) == raw
    with pytest.raises(CodecError, match="location"):
        make(name, location="middle")


@pytest.mark.parametrize("name", NAMES)
def test_every_flipped_bit_is_found(name):
    raw = bytes(range(40))
    codec = make(name)
    data = bytes(codec.encode(raw))
    for position in range(8 * len(data)):
        bad = bytearray(data)
        bad[position // 8] ^= 1 << position % 8
        with pytest.raises(CodecError, match=f"{name}: the checksum"):
            codec.decode(bytes(bad), len(raw), len(raw))
    for size in (0, 3):
        with pytest.raises(CodecError, match="too few"):
            codec.decode(data[:size], None, 99)
    with pytest.raises(CodecError, match="decoded 40 bytes, the block needs 41"):
        codec.decode(data, 41, 41)


def test_known_values():
    assert checksums.compute_crc32c(b"123456789") == 0xE3069283
    assert make("crc32c").checksum(b"123456789") == 0xE3069283
    raw = np.random.default_rng(0).integers(0, 256, 999).astype("u1").tobytes()
    assert checksums.compute_crc32c(raw) == make("crc32c").checksum(raw)


def test_lookup3_seed_and_prefix():
    raw = np.arange(50, dtype="u1")
    codec = make("numcodecs.jenkins_lookup3", initval=77, prefix=[1, 2, 3])
    other = numcodecs.get_codec({"id": "jenkins_lookup3", "initval": 77, "prefix": b"\1\2\3"})
    assert bytes(codec.encode(raw)) == bytes(other.encode(raw))


def test_numcodecs_functions_serve_without_imagecodecs(monkeypatch):
    raw = bytes(range(101))
    fast = [make(name).checksum(raw) for name in NAMES[-2:]]
    monkeypatch.setattr(checksums, "_h5checksums", checksums._numcodecs_checksums)
    assert [make(name).checksum(raw) for name in NAMES[-2:]] == fast


@pytest.mark.parametrize("size", [1, 2, 3, 4, 721, 1441])
@pytest.mark.parametrize("value", [0, 255])
def test_fletcher32_of_hdf5(tmp_path, size, value):
    # Sums of zeros and of all ones are where implementations differ.
    block = np.full(size, value, "u1")
    with h5py.File(tmp_path / "a.h5", "w") as file:
        dataset = file.create_dataset("x", data=block, chunks=(size,), fletcher32=True)
        file.flush()
        _, data = dataset.id.read_direct_chunk((0,))
    assert bytes(make("numcodecs.fletcher32").decode(data, size, size)) == block.tobytes()


def test_fletcher32_in_the_variants_hdf5_takes_for_equal():
    raw = bytes(range(64))
    codec = make("numcodecs.fletcher32")
    check = codec.checksum(raw)
    swapped = (check & 0x00FF00FF) << 8 | (check >> 8) & 0x00FF00FF
    assert bytes(codec.decode(raw + swapped.to_bytes(4, "little"), 64, 64)) == raw
    zeros = bytes(8)
    assert codec.checksum(zeros) in (0, 0xFFFFFFFF)
    for stored in (0, 0xFFFF, 0xFFFF0000, 0xFFFFFFFF):
        assert bytes(codec.decode(zeros + stored.to_bytes(4, "little"), 8, 8)) == zeros
