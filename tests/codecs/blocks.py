"""Blocks to encode, and chains to encode them with."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from virtualzarr.codecs import make

PLAIN = ["?", "i1", "u1", "i2", "u4", "i8", "f2", "f4", "f8", "c8", "c16", "M8[s]", "m8[ns]"]
TEXT = ["S1", "S5", "U1", "U3"]
STRUCTURED = [
    np.dtype([("a", "i2"), ("b", "f8")]),
    np.dtype([("a", ">i2"), ("b", "u1"), ("c", ">f4", (2,))]),
    np.dtype([("a", ">i2"), ("b", "<f4")]),
    np.dtype({"names": ["x", "y"], "formats": ["u1", ">u4"], "offsets": [1, 4], "itemsize": 12}),
]
DTYPES = [np.dtype(name) for name in PLAIN + TEXT] + STRUCTURED


def block_of(dtype, shape, seed=0):
    """Return a block of arbitrary but legal elements, some of them equal to their neighbours."""
    rng = np.random.default_rng(seed)
    size = int(np.prod(shape))
    if dtype.kind == "b":
        return np.asarray(rng.integers(0, 2, shape), bool)
    if dtype.kind == "U":
        letters = np.array(["", "a", "é", "日本語"])
        return np.asarray(letters[rng.integers(0, 4, shape)], dtype)
    raw = rng.integers(0, 256, size * dtype.itemsize, dtype="u1")
    raw[rng.random(raw.size) < 0.5] = 7
    return raw.view(dtype).reshape(shape)


def same(a, b):
    """Whether two arrays agree in shape, dtype and every bit of their elements."""
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    if a.dtype.names is not None:
        return all(same(a[name], b[name]) for name in a.dtype.names)
    return a.tobytes() == b.tobytes()


def serializer(dtype, endian="little"):
    return make("bytes", endian=endian)


shapes = st.lists(st.integers(1, 6), min_size=0, max_size=3).map(tuple)
dtypes = st.sampled_from(DTYPES)


@st.composite
def selections(draw, shape):
    """Draw an index of slices (of any step) and index arrays, one per axis."""
    index = []
    for length in shape:
        kind = draw(st.sampled_from(["all", "slice", "reversed", "list"]))
        if kind == "all":
            index.append(slice(None))
        elif kind == "list" and not any(isinstance(part, np.ndarray) for part in index):
            picks = st.lists(st.integers(0, length - 1), min_size=1, max_size=4)
            index.append(np.array(draw(picks)))
        elif kind == "reversed":
            index.append(slice(None, None, -draw(st.integers(1, 2))))
        else:
            start = draw(st.integers(0, length - 1))
            index.append(
                slice(start, draw(st.integers(start + 1, length)), draw(st.integers(1, 3)))
            )
    return tuple(index)


def strided(shape, dtype):
    """Return an array of that shape whose memory is neither contiguous nor in order."""
    backing = np.zeros(tuple(2 * n + 1 for n in shape), dtype)
    view = backing[(..., *(slice(2 * n - 1, None, -2) for n in shape))]
    assert view.shape == tuple(shape)
    return view
