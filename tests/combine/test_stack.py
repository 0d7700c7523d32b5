"""Stacked arrays hold what numpy's stack of their values holds, whatever their codecs."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import virtualzarr as vz
from grids import RectilinearGrid, RegularGrid
from tests.combine.helpers import BIG, RAW, SHUFFLED, ZLIB, numbers, virtual_array
from tests.combine.test_concat import edges
from virtualzarr.codecs import Pipeline, make
from virtualzarr.codecs.core.widen import widen_pipeline
from virtualzarr.errors import MismatchError
from virtualzarr.manifest import Decoder

LITTLE = make("bytes", endian="little")
LZW = make("numcodecs.zlib", level=1)


def chain(*names, **configuration):
    """Return a pipeline from names, all but the first with defaults."""
    return Pipeline([make(names[0], **configuration), *[make(name) for name in names[1:]]])


def image(name, **configuration):
    return Pipeline([make(f"imagecodecs_{name}", **configuration)])


ANY_RANK = {
    "raw": RAW,
    "big": BIG,
    "zlib": ZLIB,
    "shuffle": SHUFFLED,
    "F": Pipeline([make("transpose", order="F"), LITTLE]),
    "numcodecs.delta": Pipeline([make("numcodecs.delta", dtype="<i4"), LITTLE, LZW]),
    "delta, last axis": Pipeline([make("imagecodecs_delta"), LITTLE, LZW]),
    "delta, first axis": Pipeline([make("imagecodecs_delta", axis=0), LITTLE]),
    "bitshuffle": image("bitshuffle"),
    "byteshuffle": image("byteshuffle"),
    "F, delta": Pipeline([make("transpose", order="F"), make("imagecodecs_delta", axis=0), LITTLE]),
}
THREE_AXES = {
    "transposed": Pipeline([make("transpose", order=[1, 2, 0]), LITTLE]),
    "transposed twice": Pipeline(
        [make("transpose", order=[1, 2, 0]), make("transpose", order=[0, 2, 1]), LITTLE, LZW]
    ),
    "delta, middle axis": Pipeline([make("imagecodecs_delta", axis=-2, dist=1), LITTLE]),
    "transposed, delta": Pipeline(
        [make("transpose", order=[2, 0, 1]), make("imagecodecs_delta", axis=1), LITTLE]
    ),
    "transposed between": Pipeline(
        [
            make("imagecodecs_delta", axis=1),
            make("transpose", order=[2, 0, 1]),
            make("imagecodecs_xor", axis=-1),
            LITTLE,
        ]
    ),
}


@st.composite
def cases(draw):
    ndim = draw(st.integers(0, 3))
    shape = tuple(draw(st.integers(1, 5)) for _ in range(ndim))
    chunks = [draw(edges(n)) for n in shape]
    chains = [*ANY_RANK.values(), *(THREE_AXES.values() if ndim == 3 else ())]
    pipeline = draw(st.sampled_from(chains[:4] if ndim == 0 else chains))
    values = [numbers(shape, "i4", start=1000 * i) for i in range(draw(st.integers(1, 4)))]
    arrays = []
    for data in values:
        missing = ()
        if draw(st.booleans()) and draw(st.booleans()):
            data[...] = 9
            missing = tuple(np.ndindex(virtual_array(data, chunks).grid.grid_shape))
        arrays.append(virtual_array(data, chunks, pipeline=pipeline, fill_value=9, missing=missing))
    return arrays, values, draw(st.integers(-ndim - 1, ndim))


@settings(max_examples=100, deadline=None)
@given(cases())
def test_it_holds_what_numpy_would(case):
    arrays, values, axis = case
    stacked = vz.stack(arrays, axis=axis)
    np.testing.assert_array_equal(stacked[...], np.stack(values, axis=axis))
    assert stacked.manifest.canonical.all()


@pytest.mark.parametrize("name", THREE_AXES | ANY_RANK)
@pytest.mark.parametrize("axis", range(4))
def test_every_chain_at_every_axis(name, axis):
    pipeline = (THREE_AXES | ANY_RANK)[name]
    values = [numbers((3, 4, 5), "i4", start=start) for start in (7, 5000)]
    arrays = [virtual_array(data, (2, 4, 3), pipeline=pipeline) for data in values]
    stacked = vz.stack(arrays, axis=axis)
    np.testing.assert_array_equal(stacked[...], np.stack(values, axis=axis))


@pytest.mark.parametrize("axis", range(3))
@pytest.mark.parametrize(
    ("pipeline", "dtype"),
    [
        (image("png"), "u1"),
        (image("jpegls"), "u1"),
        (image("jpegxl", lossless=True), "u1"),
        (image("jpeg2k", reversible=True), "u2"),
        (image("lerc"), "f4"),
        (image("floatpred"), "f4"),
        (image("packints", bitspersample=16, runlen=5), "u2"),
        (image("float24"), "f4"),
    ],
    ids=lambda case: case.codecs[0].name if isinstance(case, Pipeline) else case,
)
def test_images(pipeline, dtype, axis):
    values = [numbers((4, 5), dtype, start=start) for start in (0, 100)]
    arrays = [virtual_array(data, (4, 5), pipeline=pipeline) for data in values]
    stacked = vz.stack(arrays, axis=axis)
    np.testing.assert_array_equal(stacked[...], np.stack(values, axis=axis))


def test_the_reversed_order_stays_reversed():
    pipeline = Pipeline([make("transpose", order="F"), LITTLE])
    for axis in range(3):
        wide = widen_pipeline(pipeline, axis, 2)
        assert wide.codecs[0].configuration["order"] == [2, 1, 0]
        assert wide.to_v2("i4", 3)["order"] == "F"


def test_a_chain_without_axes_stays_as_it_is():
    assert widen_pipeline(SHUFFLED, 1, 2) == SHUFFLED


def test_a_codec_that_counts_axes_goes_on_seeing_those_it_knows():
    values = numbers((4, 4), "f4")
    codecs = Pipeline([make("reshape", shape=[[0, 1]]), make("bytes", endian="little")])
    parts = [virtual_array(values + i, pipeline=codecs) for i in range(2)]
    for axis in range(3):
        stacked = vz.stack(parts, axis=axis)
        expected = np.stack([values, values + 1], axis=axis)
        np.testing.assert_array_equal(stacked[...], expected)
        np.testing.assert_array_equal(stacked[:, 1:, 0], expected[:, 1:, 0])


def test_grids_and_dimensions():
    part = virtual_array(numbers((5, 4)), (2, 4), dims=("y", "x"))
    stacked = vz.stack([part] * 3, dim="time")
    assert stacked.grid == RegularGrid((3, 5, 4), (1, 2, 4))
    assert stacked.dims == ("time", "y", "x")
    assert vz.stack([part], axis=-1).dims == ("y", "x", None)
    odd = virtual_array(numbers((5,)), [[2, 3]])
    assert vz.stack([odd, odd], 1, dim="t").dims == (None, "t")
    assert vz.stack([odd, odd]).grid == RectilinearGrid((2, 5), [1, [2, 3]])
    assert vz.stack([odd, odd]).dims == (None, None)
    with pytest.raises(ValueError, match="new axis 2"):
        vz.stack([odd, odd], axis=2)


def test_decoders_of_inputs_are_widened():
    values = numbers((2, 3, 4))
    chain = THREE_AXES["transposed"]
    part = virtual_array(values, (2, 2, 4), pipeline=chain)
    plain = virtual_array(values, (2, 2, 4))
    odd = vz.Array.from_manifest(
        plain.metadata,
        part.manifest.replace(
            decoders=[Decoder(chain), Decoder(chain, (2, 2, 4))],
            decoder=np.array([0, 1]).reshape(1, 2, 1),
        ),
    )
    for axis in range(4):
        stacked = vz.stack([plain, odd], axis=axis)
        np.testing.assert_array_equal(stacked[...], np.stack([values, values], axis=axis))


def test_a_stack_of_concatenations_and_back():
    values = numbers((2, 7, 3))
    rows = [
        vz.concat(
            [
                virtual_array(v[:4], (3, 3), pipeline=ZLIB),
                virtual_array(v[4:], (3, 3), pipeline=ZLIB),
            ]
        )
        for v in values
    ]
    stacked = vz.stack(rows)
    np.testing.assert_array_equal(stacked[...], values)
    np.testing.assert_array_equal(vz.concat([stacked, stacked], 1)[...], np.tile(values, (1, 2, 1)))


def test_lengths_must_be_equal():
    with pytest.raises(MismatchError, match="length along axis 0"):
        vz.stack([virtual_array(numbers((n,))) for n in (3, 4)])
