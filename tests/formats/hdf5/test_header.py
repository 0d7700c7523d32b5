"""Object headers and messages, hostile ones too."""

from __future__ import annotations

import struct

import h5py
import pytest

from virtualzarr.errors import SourceError
from virtualzarr.formats.hdf5 import header
from virtualzarr.formats.hdf5.header import ChunkLayout, Filter, HeaderBytes


def of_file(path):
    raw = path.read_bytes()
    with h5py.File(path) as file:
        plist = file.id.get_create_plist()
        sizes, base = plist.get_sizes(), plist.get_userblock()
    return HeaderBytes(lambda offset, length: raw[offset : offset + length], base, *sizes)


def of_bytes(raw):
    return HeaderBytes(lambda offset, length: raw[offset : offset + length], 0, 8, 8)


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
        made = file.create_dataset("x", (8, 8), "i4", **options)
        made.attrs.update({f"a{k}": k for k in range(30)})
        address = h5py.h5o.get_info(made.id).addr
    found = header.find(of_file(path), address, header.LAYOUT, header.FILTERS)
    assert header.chunk_layout(found[header.LAYOUT]) == ChunkLayout(index)
    filters = header.filters(found[header.FILTERS])
    assert [(step.number, step.values) for step in filters] == [(2, (4,)), (1, (4,))]


def test_filters_with_many_parameters(tmp_path):
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        made = file.create_dataset("x", (8,), "i4", chunks=(4,), scaleoffset=0)
        address = h5py.h5o.get_info(made.id).addr
    found = header.find(of_file(path), address, header.FILTERS)
    (step,) = header.filters(found[header.FILTERS])
    assert (step.number, len(step.values)) == (6, 20)


def test_both_versions_of_the_filter_message():
    values = struct.pack("<3I", 7, 8, 9)
    first = (
        bytes([1, 1]) + bytes(6) + struct.pack("<HHHH", 32000, 8, 1, 3) + b"lzf\0".ljust(8, b"\0")
    )
    assert header.filters(first + values + bytes(4)) == [Filter(32000, "lzf", (7, 8, 9))]
    second = bytes([2, 2]) + struct.pack("<HHH", 2, 0, 0) + struct.pack("<HHHH", 32000, 4, 1, 3)
    assert header.filters(second + b"lzf\0" + values) == [
        Filter(2, "", ()), Filter(32000, "lzf", (7, 8, 9)),
    ]  # fmt: skip


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"OHDR",
        b"\x01" + bytes(3) + struct.pack("<III", 1, 1 << 31, 0),
        b"\x01" + bytes(3) + struct.pack("<III", 1, 16, 0),
        b"\x07" + bytes(30),
        b"OHDR\x02\x03" + struct.pack("<Q", 1 << 60) + bytes(20),
        b"OHDR\x02\x00" + bytes([8, 0x10, 16, 0, 0, 0, 0, 0]) + bytes(8),
    ],
)
def test_broken_headers(raw):
    with pytest.raises(SourceError):
        header.find(of_bytes(raw), 0, header.LAYOUT)


def test_continuations_in_a_circle_end():
    body = struct.pack("<HHB3x", 0x10, 16, 0) + struct.pack("<QQ", 16, 24)
    raw = b"\x01" + bytes(3) + struct.pack("<III", 1, 24, 0) + body
    with pytest.raises(SourceError, match="more than 4096 blocks"):
        header.find(of_bytes(raw), 0, header.LAYOUT)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\x04",
        b"\x04\x02\x00\x02\x01",
        b"\x09" + bytes(20),
        bytes([4, 2, 0, 1, 1, 8, 77]),
        bytes([4, 2, 0, 255, 255]),
    ],
)
def test_broken_layout_messages(body):
    with pytest.raises(SourceError, match="layout message"):
        header.chunk_layout(body)


@pytest.mark.parametrize("body", [b"", b"\x02", b"\x02\x01", b"\x03\x01" + bytes(20),
                                  b"\x02\x01" + struct.pack("<HHH", 1, 0, 60000)])  # fmt: skip
def test_broken_filter_messages(body):
    with pytest.raises(SourceError, match="filter message"):
        header.filters(body)
