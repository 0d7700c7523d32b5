"""Object headers and messages, hostile ones too."""

from __future__ import annotations

import struct

import h5py
import pytest

from tests.formats.hdf5.helpers import objects_of, source_of
from virtualzarr.errors import SourceError
from virtualzarr.formats.hdf5 import header
from virtualzarr.formats.hdf5.byte_source import UnknownStructureError
from virtualzarr.formats.hdf5.layout_message import parse_layout
from virtualzarr.formats.hdf5.messages import Filter, parse_filters
from virtualzarr.formats.hdf5.superblock import Superblock


def read(raw):
    (parsed,) = source_of(raw).run([header.read(Superblock(0, size=len(raw)), 0)])
    return parsed


@pytest.mark.parametrize("block", [0, 512])
@pytest.mark.parametrize(
    ("libver", "options", "index"),
    [
        ("earliest", {}, "B-tree v1"),
        ("latest", {}, "fixed array"),
        ("latest", {"maxshape": (None, 8)}, "extensible array"),
        ("latest", {"maxshape": (None, None)}, "B-tree v2"),
        ("latest", {"chunks": (8, 8)}, "single chunk"),
    ],
)
def test_layouts_and_filters_of_real_headers(tmp_path, libver, options, index, block):
    path = tmp_path / "a.h5"
    with h5py.File(path, "w", libver=libver, userblock_size=block) as file:
        options = {"chunks": (2, 2), "compression": "gzip", "shuffle": True, **options}
        dataset = file.create_dataset("x", (8, 8), "i4", **options)
        dataset.attrs.update({f"a{k}": k for k in range(30)})
        address = h5py.h5o.get_info(dataset.id).addr
    parsed = objects_of(path)[address]
    assert parsed.kind == "dataset"
    assert (parsed.layout.index, parsed.layout.chunk) == (index, options["chunks"])
    assert parsed.layout.itemsize == 4
    filters = parse_filters(parsed.header.messages[header.FILTERS])
    assert [(step.number, step.values) for step in filters] == [(2, (4,)), (1, (4,))]
    assert [one.name for one in parsed.attributes] == sorted(f"a{k}" for k in range(30))


def test_filters_with_many_parameters(tmp_path):
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        dataset = file.create_dataset("x", (8,), "i4", chunks=(4,), scaleoffset=0)
        address = h5py.h5o.get_info(dataset.id).addr
    (step,) = parse_filters(objects_of(path)[address].header.messages[header.FILTERS])
    assert (step.number, len(step.values)) == (6, 20)


def test_both_versions_of_the_filter_message():
    values = struct.pack("<3I", 7, 8, 9)
    first = (
        bytes([1, 1]) + bytes(6) + struct.pack("<HHHH", 32000, 8, 1, 3) + b"lzf\0".ljust(8, b"\0")
    )
    assert parse_filters(first + values + bytes(4)) == (Filter(32000, "lzf", (7, 8, 9)),)
    second = bytes([2, 2]) + struct.pack("<HHH", 2, 0, 0) + struct.pack("<HHHH", 32000, 4, 1, 3)
    assert parse_filters(second + b"lzf\0" + values) == (
        Filter(2, "", ()), Filter(32000, "lzf", (7, 8, 9)),
    )  # fmt: skip


@pytest.mark.parametrize(
    "raw",
    [
        b"\0",
        b"OHDR\x02",
        b"\x01" + bytes(3) + struct.pack("<III", 1, 1 << 31, 0),
        b"\x01" + bytes(3) + struct.pack("<III", 1, 16, 0),
        b"\x07" + bytes(30),
        b"OHDR\x02\x03" + struct.pack("<Q", 1 << 60) + bytes(20),
        b"OHDR\x02\x00" + bytes([8, 0x10, 16, 0, 0, 0, 0, 0]) + bytes(8),
    ],
)
def test_broken_headers(raw):
    with pytest.raises((SourceError, UnknownStructureError)):
        read(raw)


def test_continuations_in_a_circle_end():
    body = struct.pack("<HHB3x", 0x10, 16, 0) + struct.pack("<QQ", 16, 24)
    raw = b"\x01" + bytes(3) + struct.pack("<III", 1, 24, 0) + body
    with pytest.raises(SourceError, match="more than 4096 blocks"):
        read(raw)


@pytest.mark.parametrize("flags", [0, 0x80])
def test_messages_that_must_be_known(flags):
    raw = b"\x01" + bytes(3) + struct.pack("<III", 1, 8, 0) + struct.pack("<HHB3x", 99, 0, flags)
    if flags:
        with pytest.raises(UnknownStructureError, match="message 99"):
            read(raw)
    else:
        assert read(raw).messages == {99: b""}


@pytest.mark.parametrize(
    "body",
    [
        b"\x04",
        b"\x04\x02\x00\x02\x01",
        bytes([4, 2, 0, 255, 255]),
        bytes([3, 2, 3]) + bytes(8),
        bytes([3, 2, 1]) + bytes(12),
        bytes([3, 0, 9, 0]) + bytes(8),
        bytes([1, 2, 2]) + bytes(20),
    ],
)
def test_broken_layout_messages(body):
    with pytest.raises(SourceError):
        parse_layout(body, Superblock(0))


@pytest.mark.parametrize(
    "body", [b"\x09" + bytes(20), bytes([4, 2, 0, 2, 1, 8, 8, 77]) + bytes(20), b"\x03\x07"]
)
def test_unknown_layout_messages(body):
    with pytest.raises(UnknownStructureError, match=r"layout|chunk index"):
        parse_layout(body, Superblock(0))


@pytest.mark.parametrize(
    "body", [b"\x02\x01", b"\x01\x01" + bytes(9), b"\x02\x01" + struct.pack("<HHH", 1, 0, 60000)]
)
def test_broken_filter_messages(body):
    with pytest.raises(SourceError, match="filter message"):
        parse_filters(body)


def test_unknown_filter_messages():
    with pytest.raises(UnknownStructureError, match="filter message version 3"):
        parse_filters(b"\x03\x01" + bytes(20))
