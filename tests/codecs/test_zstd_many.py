"""Frames decoded many at once: the same bytes as one by one, and nothing that is not right."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from virtualzarr.codecs import make

zstandard = pytest.importorskip("zstandard")
CODEC = make("zstd", level=3, checksum=False)
SIZE = 1000


def frame(data, *, checksum=False, stated=True):
    made = zstandard.ZstdCompressor(write_checksum=checksum, write_content_size=stated)
    if stated:
        return made.compress(data)
    compressor = made.compressobj()
    return compressor.compress(data) + compressor.flush()


def content(seed):
    return bytes((i * i + seed * i // 3) % 251 for i in range(SIZE))


@given(st.lists(st.tuples(st.integers(0, 255), st.booleans(), st.booleans()), min_size=1))
def test_all_come_out(frames):
    data = [frame(content(n), checksum=c, stated=s) for n, c, s in frames]
    many = CODEC.decode_many(data, SIZE)
    assert many is not None
    assert [bytes(many[i]) for i in range(len(data))] == [content(n) for n, _, _ in frames]


@pytest.mark.parametrize("checksum", [False, True])
@pytest.mark.parametrize("stated", [False, True])
def test_what_is_not_one_frame_of_the_size_is_left_to_others(checksum, stated):
    good = frame(content(0), checksum=checksum, stated=stated)
    short = frame(content(0)[:-1], checksum=checksum, stated=stated)
    long = frame(content(0) + b"x", checksum=checksum, stated=stated)
    for bad in (short, long, good + b"\0", good * 2, good[:-1], good[:30], b"", b"x" + good[1:]):
        assert CODEC.decode_many([good, bad, good], SIZE) is None
    assert CODEC.decode_many([good], SIZE) is not None


@given(st.binary(max_size=60), st.integers(0, 200))
def test_noise_does_no_harm(noise, at):
    good = frame(content(1))
    for bad in (noise, good[:at] + noise + good[at + len(noise) :]):
        many = CODEC.decode_many([bad], SIZE)
        if many is not None:
            assert bytes(many[0]) == bytes(CODEC.decode(bad, SIZE, SIZE))


def test_nothing_is_left_to_others():
    assert CODEC.decode_many([], SIZE) is None
