"""Chosen chunk shapes: worked examples, what always holds, and TensorStore's own numbers."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from grids import ChunkLayout, GridError
from grids.layout import DEFAULT_ELEMENTS, nearest_divisor, nearest_multiple

SHAPE = (1000, 2000, 3000)
CUBE = (64, 64, 64)


@pytest.mark.parametrize(
    ("wishes", "read", "write"),
    [
        ({}, (101, 101, 101), (101, 101, 101)),
        ({"chunk_shape": (100, 200, 300)}, (100, 200, 300), (100, 200, 300)),
        ({"chunk_aspect_ratio": (1, 2, 2)}, (64, 128, 128), (64, 128, 128)),
        (
            {"chunk_aspect_ratio": (1, 2, 2), "chunk_elements": 2_000_000},
            (79, 159, 159),
            (79, 159, 159),
        ),
        ({"chunk_aspect_ratio": (1, 0, 2.5)}, (74, 74, 187), (74, 74, 187)),
        ({"chunk_shape": (64, -1, None)}, (64, 2000, 8), (64, 2000, 8)),
        (
            {
                "chunk_aspect_ratio": (2, 1, 1),
                "read_chunk_elements": 2_000_000,
                "write_chunk_elements": 1_000_000_000,
            },
            (200, 100, 100),
            (1000, 1000, 1000),
        ),
        (
            {"read_chunk_shape": CUBE, "write_chunk_shape": (512,) * 3},
            CUBE,
            (512,) * 3,
        ),
        ({"read_chunk_shape": (10,) * 3}, (10,) * 3, (100,) * 3),
        ({"write_chunk_elements": 100_000}, (101,) * 3, (101,) * 3),
    ],
)
def test_worked_examples(wishes, read, write):
    assert ChunkLayout(**wishes).choose(SHAPE) == (read, write)


@pytest.mark.parametrize(
    ("shape", "wishes", "read", "write"),
    [
        ((), {}, (), ()),
        ((0, 5), {"chunk_elements": 5}, (1, 5), (1, 5)),
        ((0, 5), {"chunk_shape": (-1, -1)}, (1, 5), (1, 5)),
        ((10, 5), {"chunk_shape": (100, 100)}, (100, 100), (100, 100)),
        ((2**60, 2**60), {}, (1024, 1024), (1024, 1024)),
        ((20000,), {"read_chunk_shape": (64,), "write_chunk_shape": (-1,)}, (64,), (19968,)),
        ((20000,), {"read_chunk_shape": (3,), "write_chunk_elements": 100}, (3,), (99,)),
        ((20000,), {"write_chunk_shape": (30,), "read_chunk_elements": 20}, (15,), (30,)),
    ],
)
def test_other_shapes(shape, wishes, read, write):
    assert ChunkLayout(**wishes).choose(shape) == (read, write)


def test_elements_that_count_as_several():
    for each in (1, 6, 100, 10**7):
        read, write = ChunkLayout(chunk_elements=10_000).choose(SHAPE, each=each)
        assert read == write
        assert each * math.prod(read) <= max(10_000, each)
        assert math.prod(n + 1 for n in read) * each > 10_000
    assert ChunkLayout(chunk_shape=(5, 6, 7)).choose(SHAPE, each=1000)[0] == (5, 6, 7)


def test_preferences_give_way():
    tens, other = (10, 10, 10), (15, 20, 20)
    soft_write = ChunkLayout(read_chunk_shape=tens, soft=ChunkLayout(write_chunk_shape=other))
    assert soft_write.choose(SHAPE) == (tens, (10, 20, 20))
    soft_read = ChunkLayout(write_chunk_shape=other, soft=ChunkLayout(read_chunk_shape=tens))
    assert soft_read.choose(SHAPE) == ((5, 10, 10), other)
    assert soft_read.choose(SHAPE, shards=False) == (other, other)


@pytest.mark.parametrize(
    ("wishes", "shards", "message"),
    [
        (
            {"read_chunk_shape": (10, 10, 10), "write_chunk_shape": (20, 15, 20)},
            True,
            "axis 1: write chunks of 15 are not a multiple of read chunks of 10",
        ),
        (
            {"read_chunk_shape": (10, 10, 10), "write_chunk_shape": (20, 20, 20)},
            False,
            "chunk shape, axis 0: 20 is demanded, and also 10",
        ),
        ({"chunk_shape": CUBE, "write_chunk_shape": (128, 64, 64)}, True, "128 .* also 64"),
        ({"chunk_elements": 32, "read_chunk_elements": 64}, True, "elements: 64 .* also 32"),
        ({"chunk_aspect_ratio": (1, 2, 3), "read_chunk_aspect_ratio": (1, 4, 0)}, True, "axis 1"),
        ({"chunk_shape": (1, 1)}, True, "chunk_shape has 2 entries for 3 axes"),
    ],
)
def test_contradictions(wishes, shards, message):
    with pytest.raises(GridError, match=message):
        ChunkLayout(**wishes).choose(SHAPE, shards=shards)


@pytest.mark.parametrize(
    "wishes",
    [
        {"chunk_shape": (-2,)},
        {"chunk_shape": (1.5,)},
        {"chunk_shape": 5},
        {"chunk_elements": 0},
        {"chunk_elements": True},
        {"chunk_aspect_ratio": (-1,)},
        {"chunk_aspect_ratio": (math.nan,)},
        {"chunk_aspect_ratio": ("wide",)},
        {"inner_order": (0, 0)},
        {"soft": {"chunk_elements": 1}},
    ],
)
def test_malformed(wishes):
    with pytest.raises(GridError):
        ChunkLayout(**wishes)


def test_of_mappings():
    layout = ChunkLayout.from_params({"inner_order": [1, 0], "soft": {"chunk_elements": 100}})
    assert layout.choose((50, 50)) == ((10, 10), (10, 10))
    assert layout.choose_order(2) == (1, 0)
    with pytest.raises(GridError, match="inner_order"):
        layout.choose_order(3)
    with pytest.raises(GridError, match="chunk_size"):
        ChunkLayout.from_params({"chunk_size": 5})
    with pytest.raises(GridError, match="mapping"):
        ChunkLayout.from_params(5)
    assert ChunkLayout.from_params(layout) is layout


def test_preferred_inner_order():
    preferred = ChunkLayout(inner_order=(1, 0))
    assert ChunkLayout(soft=preferred).choose_order(2) == (1, 0)
    assert ChunkLayout(inner_order=(0, 1), soft=preferred).choose_order(2) == (0, 1)
    assert ChunkLayout().choose_order(2) is None


@given(st.integers(1, 3000), st.integers(1, 4000))
def test_nearest(number, target):
    divisors = [d for d in range(1, number + 1) if number % d == 0]
    assert nearest_divisor(number, target) == min(divisors, key=lambda d: (abs(d - target), d))
    multiples = range(number, number + target + 1, number)
    assert nearest_multiple(number, target) == min(multiples, key=lambda m: (abs(m - target), m))


def test_divisors_of_large_numbers():
    prime = 2**31 - 1
    assert nearest_divisor(prime, 2**20) == 1
    with pytest.raises(GridError, match="divisors"):
        nearest_divisor(2**61 - 1, 2**20)


@st.composite
def cases(draw):
    """A shape, and the constraints on its chunks."""
    extents = st.one_of(st.integers(0, 8), st.integers(0, 30000))
    shape = draw(st.lists(extents, min_size=1, max_size=4))
    count = len(shape)
    edges = st.lists(
        st.one_of(st.sampled_from([0, 0, -1, 1, 10, 64]), st.integers(1, 300)),
        min_size=count,
        max_size=count,
    )
    ratio = st.sampled_from([0.5, 1.0, 2.0, 3.0])
    ratios = st.just([draw(ratio)] * count) if draw(st.booleans()) else st.none()
    elements = st.integers(1, 5_000_000)
    wishes = {}
    for name, soft in itertools.product(("chunk", "read_chunk", "write_chunk"), (False, True)):
        members = {"shape": edges, "elements": elements, "aspect_ratio": ratios}
        for member, values in members.items():
            if draw(st.integers(0, 5)) == 0 and (value := draw(values)) is not None:
                wishes[f"{name}_{member}", soft] = value
    return tuple(shape), wishes


def layout_of(wishes):
    hard, soft = (
        {name: value for (name, is_soft), value in wishes.items() if is_soft is kind}
        for kind in (False, True)
    )
    return ChunkLayout(**hard, soft=ChunkLayout(**soft) if soft else None)


@given(cases())
def test_chosen_shapes_fit(case):
    shape, wishes = case
    layout = layout_of(wishes)
    try:
        read, write = layout.choose(shape)
    except GridError:
        assume(False)
    assert all(r >= 1 and w % r == 0 for r, w in zip(read, write, strict=True))
    if not any(name.endswith("shape") for name, _ in wishes):
        elements = [value for (name, _), value in wishes.items() if name.endswith("elements")]
        assert math.prod(read) <= max([*elements, DEFAULT_ELEMENTS])
        assert all(r <= max(1, n) for r, n in zip(read, shape, strict=True))


@pytest.mark.interop
@settings(deadline=None)
@given(cases(), st.sampled_from(["zarr", "zarr3"]))
def test_tensorstore_chooses_the_same(case, driver):
    ts = pytest.importorskip("tensorstore")
    shape, wishes = case
    wanted = {f"{name}_soft_constraint" if soft else name: v for (name, soft), v in wishes.items()}
    try:
        theirs = ts.open(
            {"driver": driver, "kvstore": {"driver": "memory"}},
            create=True,
            dtype=ts.uint8,
            shape=shape,
            chunk_layout=ts.ChunkLayout(**wanted),
        ).result()
    except ValueError as error:
        # It limits how many sub-chunks a shard may have, which is no matter of shapes.
        assume("number of chunks" not in str(error) and "shard" not in str(error).lower())
        with pytest.raises(GridError):
            layout_of(wishes).choose(shape, shards=driver == "zarr3")
        return
    chosen = theirs.chunk_layout
    found = layout_of(wishes).choose(shape, shards=driver == "zarr3")
    if len({r for (n, _), v in wishes.items() if n.endswith("ratio") for r in v}) <= 1:
        assert found == (chosen.read_chunk.shape, chosen.write_chunk.shape)
