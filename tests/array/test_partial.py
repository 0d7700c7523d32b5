"""Partial reads of uncompressed blocks: every selection, few bytes, bounded reads."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from virtualzarr.array.read.partial import UncompressedBlock, plan_box, plan_points
from virtualzarr.stores.files import InlineFile

PAD = 13


class CountingFile(InlineFile):
    __slots__ = ("reads",)

    def __init__(self, data):
        super().__init__(data)
        self.reads = []

    def read(self, start, stop):
        self.reads.append((start, stop))
        return super().read(start, stop)


def block_of(data):
    file = CountingFile(bytes(PAD) + data.tobytes() + bytes(PAD))
    return file, UncompressedBlock(data.shape, data.dtype)


@st.composite
def boxes(draw):
    shape = tuple(draw(st.lists(st.integers(1, 9), min_size=0, max_size=4)))
    data = (
        np.arange(np.prod(shape, dtype=int))
        .reshape(shape)
        .astype(draw(st.sampled_from(["<i4", ">i8", "u1"])))
    )
    select = []
    for n in shape:
        if draw(st.booleans()):
            start = draw(st.integers(0, n))
            select.append(slice(start, draw(st.integers(start, n)), draw(st.integers(1, 4))))
        else:
            select.append(
                np.array(draw(st.lists(st.integers(0, n - 1), max_size=6)), dtype=np.int64)
            )
    return data, select


@given(boxes(), st.integers(0, 64), st.integers(1, 512))
def test_pieces_of_a_box_place_every_element(case, gap, limit):
    data, select = case
    file, block = block_of(data)
    indices = [np.arange(n)[s] for n, s in zip(data.shape, select, strict=True)]
    expected = data[np.ix_(*indices)] if indices else data
    out = np.full(expected.shape, 77, data.dtype.newbyteorder("="))
    for piece in plan_box(block, select, gap, limit):
        piece.run(file, PAD, data.dtype, out)
    np.testing.assert_array_equal(out, expected)
    for start, stop in file.reads:
        assert stop - start <= 2 * limit + data.dtype.itemsize


@given(st.lists(st.tuples(st.integers(0, 6), st.integers(0, 4)), max_size=20), st.integers(0, 40))
def test_points(points, gap):
    data = np.arange(35, dtype="<f8").reshape(7, 5)
    file, block = block_of(data)
    rows, columns = np.array(points, dtype=np.int64).reshape(-1, 2).T
    out = np.full(len(points), np.nan)
    for piece in plan_points(block, [rows, columns], gap, 100):
        piece.run(file, PAD, data.dtype, out)
    np.testing.assert_array_equal(out, data[rows, columns])


def test_only_what_is_needed_is_read():
    data = np.arange(1000 * 1000, dtype="<u2").reshape(1000, 1000)
    file, block = block_of(data)
    out = np.empty((3, 2), data.dtype)
    select = [slice(100, 700, 200), slice(10, 12)]
    for piece in plan_box(block, select, 64, 1 << 20):
        piece.run(file, PAD, data.dtype, out)
    np.testing.assert_array_equal(out, data[100:700:200, 10:12])
    assert [stop - start for start, stop in file.reads] == [4, 4, 4]


def test_far_rows_within_near_planes_are_read_apart():
    data = np.arange(4 * 1000 * 10, dtype="<u2").reshape(4, 1000, 10)
    file, block = block_of(data)
    out = np.empty((4, 2, 10), data.dtype)
    for piece in plan_box(block, [slice(0, 4), slice(0, 1000, 999), slice(0, 10)], 64, 1 << 20):
        piece.run(file, PAD, data.dtype, out)
    np.testing.assert_array_equal(out, data[:, ::999])
    # The last row of a plane touches the first of the next.
    assert sum(stop - start for start, stop in file.reads) <= 8 * 20 + 3 * 64


def test_a_dense_native_piece_needs_no_scratch():
    data = np.arange(64 * 64, dtype=np.dtype("f8").newbyteorder("=")).reshape(64, 64)
    file, block = block_of(data)
    out = np.empty_like(data)
    for piece in plan_box(block, [slice(0, 64), slice(0, 64)], 64, 4096):
        piece.run(file, PAD, data.dtype, out)
    np.testing.assert_array_equal(out, data)


def test_a_block_that_reaches_past_its_file_is_an_error():
    data = np.zeros((10, 10))
    file = InlineFile(bytes(PAD) + data.tobytes()[:-1])
    block = UncompressedBlock(data.shape, data.dtype)
    out = np.empty_like(data)
    (piece,) = plan_box(block, [slice(0, 10), slice(0, 10)], 0, 10**6)
    with pytest.raises(OSError, match="needed"):
        piece.run(file, PAD, data.dtype, out)
