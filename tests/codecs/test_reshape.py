from __future__ import annotations

import numpy as np
import pytest

from virtualzarr.codecs import Pipeline, make
from virtualzarr.errors import CodecError, UnsupportedError

BYTES = {"name": "bytes", "configuration": {"endian": "little"}}


def pipeline(shape, *more):
    return Pipeline.from_v3([{"name": "reshape", "configuration": {"shape": shape}}, *more, BYTES])


@pytest.mark.parametrize(
    ("shape", "encoded"),
    [
        *[([[0, 1], [2], 3], (20, 6, 3)), ([-1], (360,)), ([[0, 1, 2, 3]], (360,))],
        *[([2, 2, [1], -1], (2, 2, 5, 18)), ([4, [1], -1], (4, 5, 18)), ([[], 360], (1, 360))],
        ([[0], 5, [2, 3]], (4, 5, 18)),
    ],
)
def test_shapes(shape, encoded):
    block = np.arange(360, dtype="i4").reshape(4, 5, 6, 3)
    turned = {"name": "transpose", "configuration": {"order": list(range(len(encoded)))[::-1]}}
    made = pipeline(shape, turned).for_block(block.shape, "i4")
    data = made.encode(block)
    assert data == block.reshape(encoded).T.tobytes()
    assert made.decode(data).tolist() == block.tolist()
    out = np.empty((2, 5, 6, 1), "i4")
    made.decode_into(data, out, (slice(0, 4, 2), slice(None), slice(None), slice(1, 2)))
    assert out.tolist() == block[::2, :, :, 1:2].tolist()


@pytest.mark.parametrize(
    "shape",
    [[[1], [0]], [[1, 0], 18], [[2, 3], 10, [0, 1]], [-1, -1], [0], [1.0], [[True]], [-2], "C",
     [[0], [0]]],
)  # fmt: skip
def test_shapes_that_break_the_specification(shape):
    with pytest.raises(CodecError, match="reshape"):
        make("reshape", shape=shape)


@pytest.mark.parametrize(
    "shape",
    [[361], [7, -1], [[0], 6, 5, [3]], [4, [2], -1], [[4], -1], [[0], [2], -1], [[0, 2], -1]],
)
def test_shapes_that_do_not_fit_the_block(shape):
    made = pipeline(shape)
    if shape == [[0], 6, 5, [3]]:  # nothing asks for the axes that are not named
        assert made.for_block((4, 5, 6, 3), "i4").nbytes == 1440
        return
    with pytest.raises(CodecError, match="reshape"):
        made.for_block((4, 5, 6, 3), "i4")


def test_blocks_without_elements_and_axes():
    made = pipeline([1, -1]).for_block((), "i4")
    assert made.decode(made.encode(np.array(7, "i4"))) == 7
    assert pipeline([[0, 1]]).for_block((0, 3), "i4").decode(b"").shape == (0, 3)


def test_forms():
    chain = pipeline([[0, 1], -1])
    assert chain.to_v3()[0] == {"name": "reshape", "configuration": {"shape": [[0, 1], -1]}}
    with pytest.raises(UnsupportedError, match="no v2 form"):
        chain.to_v2("i4", 2)
    assert chain.decoding_key("i4") != pipeline([-1, [1]]).decoding_key("i4")
    assert hash(chain) == hash(pipeline([[0, 1], -1]))
