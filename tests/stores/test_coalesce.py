"""Planned reads cover every range, merge what is close, and stay short."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from virtualzarr.stores.coalesce import plan_reads

ranges = st.lists(
    st.tuples(st.integers(0, 3), st.integers(0, 500), st.integers(-1, 60)), max_size=30
)


@given(ranges, st.integers(0, 40), st.integers(1, 300))
def test_plan_covers_every_range_once(ranges, gap, limit):
    file, offset, length = np.array(ranges, dtype=np.int64).reshape(-1, 3).T
    plan = plan_reads(file, offset, length, gap=gap, limit=limit)
    assert sorted(plan.order.tolist()) == list(range(len(ranges)))
    for read in range(len(plan)):
        chosen = plan.order[plan.first[read] : plan.first[read + 1]]
        assert len(chosen)
        assert set(file[chosen]) == {plan.file[read]}
        assert plan.start[read] == offset[chosen].min()
        if (length[chosen] < 0).any():
            assert (length[chosen] < 0).all()
            assert len(set(offset[chosen].tolist())) == 1
            assert plan.stop[read] == -1
            continue
        assert plan.stop[read] == (offset + length)[chosen].max()
        assert offset[chosen].max() - plan.start[read] < limit
        # No gap within a read is longer than allowed; what another read holds, too, is no gap.
        same = np.flatnonzero((file == plan.file[read]) & (length >= 0))
        for start in np.unique(offset[chosen]).tolist():
            before = same[offset[same] < start]
            reach = max([plan.start[read], *(offset + length)[before]])
            assert start - reach <= gap


@given(ranges, st.integers(0, 40))
def test_reads_apart_are_further_than_the_gap(ranges, gap):
    file, offset, length = np.array(ranges, dtype=np.int64).reshape(-1, 3).T
    plan = plan_reads(file, offset, np.abs(length), gap=gap, limit=10**9)
    same = plan.file[1:] == plan.file[:-1]
    assert (plan.start[1:] - plan.stop[:-1] > gap)[same].all()


@given(ranges, st.integers(0, 40), st.integers(1, 300), st.data())
def test_equal_ranges_follow_one_another_in_one_read(ranges, gap, limit, data):
    ranges = ranges + data.draw(
        st.lists(st.sampled_from(ranges), max_size=20) if ranges else st.just([])
    )
    file, offset, length = np.array(ranges, dtype=np.int64).reshape(-1, 3).T
    kind = np.array([data.draw(st.integers(0, 1)) for _ in ranges], dtype=np.int64)
    plan = plan_reads(file, offset, length, gap=gap, limit=limit, kind=kind)
    read = np.repeat(np.arange(len(plan)), np.diff(plan.first))
    seen = [(*ranges[i], kind[i]) for i in plan.order.tolist()]
    assert plan.repeats == (len({key[:2] for key in seen}) < len(seen) and len(seen) > 1)
    for key in set(seen):
        places = [i for i, other in enumerate(seen) if other == key]
        assert places == list(range(places[0], places[0] + len(places)))
        assert len(set(read[places].tolist())) == 1


@given(
    st.lists(st.integers(1, 90), min_size=2, max_size=40)
    | st.tuples(st.integers(1, 90), st.integers(2, 40)).map(lambda pair: [pair[0]] * pair[1]),
    *[st.integers(0, 60), st.integers(0, 60), st.integers(1, 300)],
    *[st.sampled_from([1, 1, 2, 3]), st.randoms(use_true_random=False)],
)
def test_records_are_planned_as_in_any_other_order(steps, length, gap, limit, files, random):
    file = np.sort(np.arange(len(steps)) % files)
    offset = np.cumsum(steps) - 20 * file
    offset -= offset.min()
    lengths = np.full_like(offset, length)
    order = random.sample(range(len(steps)), len(steps))
    plan = plan_reads(file, offset, lengths, gap=gap, limit=limit)
    other = plan_reads(file[order], offset[order], lengths, gap=gap, limit=limit)
    assert (offset[plan.order] == offset[order][other.order]).all()
    for column in ("first", "file", "start", "stop"):
        np.testing.assert_array_equal(getattr(plan, column), getattr(other, column))
