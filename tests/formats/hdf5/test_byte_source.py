"""What parsers get, near and far, and in how many rounds."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.formats.hdf5.helpers import source_of
from virtualzarr.config import config
from virtualzarr.errors import SourceError
from virtualzarr.formats.hdf5.byte_source import GAP, PAGE, Gather, LocalPages, read_exactly

FIRST = config.tuning.remote_header_bytes
RAW = np.random.default_rng(0).bytes(3 * FIRST + 77)


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    path = tmp_path_factory.mktemp("source") / "raw"
    path.write_bytes(RAW)
    return str(path)


def make_parser(*requests):
    """Ask for one thing after the other, and return copies of all."""
    answers = []
    for one in requests:
        got = yield one
        answers.append([bytes(part) for part in got] if isinstance(one, list) else np.array(got))
    return answers


PLACES = st.integers(0, len(RAW) + 10) | st.integers(FIRST - 5, FIRST + 5) | st.just(1 << 62)
REQUESTS = st.tuples(PLACES, st.integers(0, 3 * PAGE))
WANTED = (
    REQUESTS
    | st.lists(REQUESTS, max_size=4)
    | st.builds(
        lambda places, length: Gather(np.array(places, np.int64), length),
        st.lists(PLACES, min_size=1, max_size=5),
        st.integers(1, 40),
    )
)


@given(st.lists(st.lists(WANTED, max_size=4), max_size=4), st.sampled_from([0, 512]))
def test_near_and_far_are_the_same(path, programs, base):
    near, far = LocalPages(path), source_of(RAW)
    for source in (near, far):
        source.rebase(base)
    for ours, theirs in zip(
        near.run([make_parser(*p) for p in programs]),
        far.run([make_parser(*p) for p in programs]),
        strict=True,
    ):
        for a, b in zip(ours, theirs, strict=True):
            assert np.array_equal(a, b) if isinstance(a, np.ndarray) else a == b
    for requests, answers in zip(
        programs, near.run([make_parser(*p) for p in programs]), strict=True
    ):
        for one, got in zip(requests, answers, strict=True):
            if type(one) is tuple:
                start = base + one[0]
                assert got.tobytes() == RAW[start : start + one[1]]


def test_what_waits_is_fetched_together():
    source = source_of(RAW)
    assert (source.rounds, source.requests, source.nbytes) == (1, 1, FIRST)
    far = [FIRST + k * (GAP + 4 * PAGE) for k in range(5)]
    source.run([make_parser((address, 10), (address + 20, 10)) for address in far])
    assert (source.rounds, source.requests) == (2, 1 + 5)
    # Nothing is fetched twice, and what is near is fetched with it.
    source.run([make_parser((address, 10)) for address in far])
    assert source.rounds == 2
    source = source_of(RAW)
    source.run([make_parser((FIRST + k * GAP // 2, 10)) for k in range(5)])
    assert (source.rounds, source.requests) == (2, 1 + 1)


def test_spawned_parsers_join_the_rounds():
    source = source_of(RAW)
    done = []

    def parser(depth):
        yield from read_exactly(FIRST + (GAP + 2 * PAGE) * depth, 5, "thing")
        if depth < 3:
            source.spawn(parser(depth + 1))
            source.spawn(parser(depth + 1))
        done.append(depth)

    source.run([parser(0)])
    assert sorted(done) == [0, 1, 1, *[2] * 4, *[3] * 8]
    assert source.rounds == 5


@pytest.mark.parametrize("far", [False, True])
def test_what_cannot_be(path, far):
    source = source_of(RAW) if far else LocalPages(path)
    for requests in [(-1, 5), (5, -1), (0, 1 << 40), [(0, 5), (-3, 1)]]:
        with pytest.raises(SourceError, match="claims"):
            source.run([make_parser(requests)])
    with pytest.raises(SourceError, match="ends inside the thing at"):
        source.run([read_exactly(len(RAW) - 3, 4, "thing")])


def test_files_that_shrink_meanwhile():
    source = source_of(RAW)
    source._fetch = lambda ranges: [b"" for _ in ranges]
    with pytest.raises(SourceError, match="0 were sent"):
        source.run([make_parser((2 * FIRST, 5))])
