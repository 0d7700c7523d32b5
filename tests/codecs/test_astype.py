"""Elements stored in another dtype decode to the same values, or not at all."""

from __future__ import annotations

import numpy as np
import pytest

from virtualzarr.codecs import Pipeline, make
from virtualzarr.errors import CodecError, UnsupportedError


def decoded(values, dtype, **more):
    """Store values as they are, and decode them to another dtype."""
    stored = np.array(values)
    chain = Pipeline(
        [
            make("virtualzarr.astype", data_type=stored.dtype.str, **more),
            make("bytes", endian="little"),
        ]
    )
    little = stored.astype(stored.dtype.newbyteorder("<"))
    return chain.for_block(stored.shape, dtype).decode(little.tobytes())


@pytest.mark.parametrize(
    ("values", "dtype"),
    [
        (np.array([b"ab", b"c"], "S2"), "S5"),
        (np.array(["ab", "é"], "U2"), "U5"),
        (np.array([1, 2, np.nan], "f4"), "c16"),
        (np.array(["2000-01-01", "NaT"], "M8[D]"), "M8[ns]"),
        (np.array([1, 2], "m8[h]"), "m8[s]"),
    ],
)
def test_values_are_kept(values, dtype):
    np.testing.assert_array_equal(decoded(values, dtype), values.astype(dtype))


@pytest.mark.parametrize(
    ("values", "dtype"),
    [
        (np.array([1.5]), "i4"),
        (np.array([1.0, 16777217.0]), "f4"),
        (np.array([b"abc"]), "S2"),
        (np.array(["3000-01-01"], "M8[D]"), "M8[ns]"),
        (np.array([300]), "u1"),
    ],
)
def test_values_that_change_are_an_error_unless_that_is_asked_for(values, dtype):
    with pytest.raises(CodecError, match="is not the same as"):
        decoded(values, dtype)
    np.testing.assert_array_equal(decoded(values, dtype, lossy=True), values.astype(dtype))


def test_what_cannot_be_cast_is_refused():
    with pytest.raises(CodecError, match="does not cast"):
        make("virtualzarr.astype", data_type="O")
    with pytest.raises(CodecError, match="data_type"):
        make("virtualzarr.astype", data_type="nonsense")
    with pytest.raises(UnsupportedError):
        Pipeline([make("virtualzarr.astype", data_type="<i2"), make("bytes")]).to_v2("i4", 1)
