"""Inputs of several data types: promoted where no value is lost, refused or cast otherwise."""

from __future__ import annotations

import itertools

import h5py
import numpy as np
import pytest

import virtualzarr as vz
from tests.combine.helpers import ZLIB, numbers, virtual_array
from virtualzarr.combine.dtypes import common_dtype
from virtualzarr.errors import CodecError, MismatchError, UnsupportedError

NUMBERS = [np.dtype(f"{kind}{size}") for kind in "iu" for size in (1, 2, 4, 8)]
NUMBERS += [np.dtype(name) for name in ("f2", "f4", "f8", "c8", "c16")]


PAIRS = list(itertools.combinations_with_replacement(NUMBERS, 2))


@pytest.mark.parametrize(("a", "b"), PAIRS, ids=str)
def test_every_number_of_both_is_there(a, b):
    common = common_dtype([a, b])
    assert common == common_dtype([b, a])
    exact = True
    for dtype in (a, b):
        if dtype.kind in "iu":
            low, high = np.iinfo(dtype).min, np.iinfo(dtype).max
            extremes = np.array([low, low + 1, high - 1, high], dtype)
            wide = extremes.astype(np.promote_types(a, b))
            exact &= [int(n.real) for n in wide] == extremes.tolist()
    assert (common is not None) == exact
    assert common is None or common == np.promote_types(a, b)


@pytest.mark.parametrize(
    ("dtypes", "common"),
    [
        (("S3", "S5"), "S5"),
        (("U3", "U2"), "U3"),
        (("S3", "U3"), None),
        (("M8[s]", "M8[ns]"), "M8[ns]"),
        (("m8[D]", "m8[h]"), "m8[h]"),
        (("m8[M]", "m8[D]"), None),
        (("M8[s]", "m8[s]"), None),
        (("?", "u1"), None),
        (([("a", "i2")], [("a", "i4")]), None),
    ],
)
def test_others(dtypes, common):
    found = common_dtype([np.dtype(dtype) for dtype in dtypes])
    assert found == (None if common is None else np.dtype(common))


def pair(first, second, **attrs):
    """Two arrays of two data types."""
    return [virtual_array(numbers((3,), dtype), (2,), attrs=attrs) for dtype in (first, second)]


@pytest.mark.parametrize("name", ["scale_factor", "add_offset", "_Unsigned"])
def test_packed_numbers_are_not_promoted(name):
    with pytest.raises(MismatchError, match="data type int32"):
        vz.concat(pair("i2", "i4", **{name: "true" if name == "_Unsigned" else 1.0}))


def test_a_mark_of_missing_values_goes_on_being_one():
    with pytest.raises(MismatchError, match=r"_FillValue 1e.20, which is no float32"):
        vz.concat(pair("f4", "f8", _FillValue=1e20))
    assert vz.concat(pair("f4", "f8", _FillValue=-9999.0)).dtype == "f8"


def test_what_is_asked_for_is_cast():
    first, second = pair("i8", "f8")
    joined = vz.concat([first, second], dtype="f4")
    assert joined.dtype == "f4"
    assert joined[...].tolist() == [1, 2, 3, 1, 2, 3]
    halves = virtual_array(np.array([1.5, -2.5]), (2,), pipeline=ZLIB)
    assert vz.concat([halves, halves], dtype="i2")[...].tolist() == [1, -2, 1, -2]
    with pytest.raises(ValueError, match="for arrays"):
        vz.concat([vz.Group({}, {"x": halves})], dim="x", dtype="f4")


def test_times_beyond_the_finer_unit_are_an_error_when_read():
    far = virtual_array(np.array(["3000-01-01"], "M8[D]"), (1,))
    near = virtual_array(np.array(["2000-01-01"], "M8[ns]"), (1,))
    joined = vz.concat([far, near])
    assert joined[1] == np.datetime64("2000-01-01", "ns")
    with pytest.raises(CodecError, match="is not the same"):
        joined[0]


def test_cells_beyond_counting_are_refused():
    tiles = [virtual_array(numbers((2, 30)), (2, edge), pipeline=ZLIB) for edge in (2, 3)]
    with (
        vz.config.limits.set(derived_cells=39),
        pytest.raises(UnsupportedError, match="would be 40, with at most 39 allowed"),
    ):
        vz.concat(tiles)
    assert vz.concat(tiles).nchunks == 40


@pytest.mark.parametrize("stored", ["U3", "S3"])
def test_text_becomes_no_numbers(stored):
    text = vz.create_array({}, data=np.array(["", "1"], stored))
    with pytest.raises(UnsupportedError, match="is not cast to float64"):
        vz.concat([text, text], dtype="f8")
    assert vz.concat([text, text], dtype="U5")[...].tolist() == ["", "1", "", "1"]


def test_wider_floats_keep_the_bits_of_nan():
    odd = np.array([0x7FC00001, 0x7F800001, 0xFFC12345], "u4").view("f4")
    narrow, wide = virtual_array(odd, (3,)), virtual_array(np.array([1.0]), (1,))
    joined = vz.concat([narrow, wide])[:3]
    with np.errstate(invalid="ignore"):
        assert joined.view("u8").tolist() == odd.astype("f8").view("u8").tolist()


@pytest.mark.skipif(np.dtype("g").itemsize <= 8, reason="there is no long double here")
@pytest.mark.parametrize("other", ["f4", "f8", "i8", "u8", "i1"])
def test_long_doubles_are_joined_with_others(tmp_path, other):
    """Which Zarr has no name for, but HDF5 has."""
    values = np.array([1, 100], other)
    values[1] = np.iinfo(other).max if values.dtype.kind in "iu" else 0.1
    longs = np.array([1.5, np.longdouble(1) / 3])
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["other"], file["long"] = values, longs
    group = vz.virtualize(tmp_path / "a.h5")
    joined = vz.concat([group["other"], group["long"]])
    assert joined.dtype == longs.dtype
    np.testing.assert_array_equal(joined[...], np.concatenate([values.astype("g"), longs]))
