"""Groups are joined variable by variable, and what does not fit is named."""

from __future__ import annotations

import numpy as np
import pytest

import virtualzarr as vz
from tests.combine.helpers import RAW, ZLIB, numbers, virtual_array
from virtualzarr import Group
from virtualzarr.combine.attributes import MEANING_ATTRIBUTES, combine_attributes, is_same_value
from virtualzarr.combine.value_checks import is_equal
from virtualzarr.errors import MismatchError


def coordinate(name, values, dtype="f8", **attrs):
    return virtual_array(np.asarray(values, dtype), dims=(name,), attrs=attrs, path=name)


def scalar(value, name="s", **attrs):
    return virtual_array(np.array(value), path=name, attrs=attrs)


def day(times, y=(0, 1), **changes):
    """Return a group with data over time and y, and their coordinates."""
    air = numbers((len(times), len(y)), start=10 * int(times[0]))
    members = {
        "time": coordinate("time", times, units="h"),
        "y": coordinate("y", y),
        "air": virtual_array(air, (2, 2), pipeline=ZLIB, dims=("time", "y"), path="air"),
        "mask": virtual_array(numbers((2,)), dims=("y",), path="mask"),
        "crs": scalar(7, "crs"),
        **changes,
    }
    members = {name: node for name, node in members.items() if node is not None}
    return Group({"title": "t", "history": str(times)}, members)


def test_variables_with_the_dimension_are_joined_and_others_kept():
    days = [day([0, 1, 2]), day([3]), day([4, 5])]
    joined = vz.concat(days, dim="time")
    assert list(joined) == ["time", "y", "air", "mask", "crs"]
    np.testing.assert_array_equal(joined["time"][...], np.arange(6))
    np.testing.assert_array_equal(joined["air"][...], np.concatenate([g["air"][...] for g in days]))
    assert (joined["mask"].shape, joined["crs"][...], joined["air"].path) == ((2,), 7, "air")
    assert joined.attrs == {"title": "t"}


def test_along_an_axis():
    parts = [Group({}, {"a": virtual_array(numbers((2, n))), "b": scalar(3)}) for n in (3, 4)]
    joined = vz.concat(parts, axis=-1)
    assert (joined["a"].shape, joined["b"][...]) == ((2, 7), 3)


def test_groups_in_groups():
    days = [Group({"a": i}, {"in": Group({"b": 1, "c": i}, {"deep": day([i])})}) for i in range(3)]
    joined = vz.concat(days, dim="time")
    assert joined["in/deep/time"][...].tolist() == [0, 1, 2]
    assert joined["in/deep/air"].path == "in/deep/air"
    assert (joined.attrs, joined["in"].attrs) == ({}, {"b": 1})
    with pytest.raises(MismatchError, match="in/deep/y") as caught:
        vz.concat([days[0], Group({}, {"in": Group({}, {"deep": day([1], y=(0, 2))})})], dim="time")
    assert caught.value.variable == "in/deep/y"


def test_a_variable_that_is_not_everywhere():
    with pytest.raises(MismatchError, match="it is not in input 1") as caught:
        vz.concat([day([0]), day([1], crs=None), day([2])], dim="time")
    assert caught.value.variable == "crs"
    with pytest.raises(MismatchError, match="it is not in input 0"):
        vz.concat([day([0]), day([1], extra=scalar(1))], dim="time")


def test_an_array_here_and_a_group_there():
    with pytest.raises(MismatchError, match="input 1 has kind Group, but input 0 has Array"):
        vz.concat([day([0]), day([1], crs=Group())], dim="time")


def test_refused_variables_stay_refused():
    whole, poor = day([0]), day([1], crs=None)
    poor.skipped["crs"] = "no codec"
    inner = Group({}, {"in": poor}, skipped={"in/crs": "no codec"})
    joined = vz.concat([whole, poor], dim="time")
    assert "crs" not in joined
    assert joined.skipped == {"crs": "no codec (in input 1)"}
    joined = vz.concat([Group({}, {"in": whole}), inner], dim="time")
    assert "in/crs" not in joined
    assert joined.skipped == {"in/crs": "no codec (in input 1)"}


@pytest.mark.parametrize(
    ("first", "second", "why"),
    [
        ([0, 1, 2], [2, 3], "overlap"),
        ([0, 1, 2], [1.5], "overlap"),
        ([0, 1], [0, 1], "overlap"),
        ([0], [0], "overlap"),
        ([3, 4], [0, 1], "order"),
        ([0, 1], [3, 2], "other way"),
        ([1, 0], [3, 2], "order"),
        ([1, 0], [2, 3], "other way"),
    ],
)
def test_coordinates_that_do_not_follow(first, second, why):
    with pytest.raises(MismatchError, match=why) as caught:
        vz.concat([day(first), day(second)], dim="time")
    message = str(caught.value)
    assert caught.value.variable == "time"
    assert f"{float(second[0])}" in message
    assert "(h)" in message
    assert "input 1" in message


def test_coordinates_may_fall_and_repeat_within_an_input():
    vz.concat([day([5, 4]), day([3]), day([2, 1])], dim="time")
    vz.concat([day([0, 0, 1]), day([2, 2])], dim="time")
    vz.concat([day([3]), day([2]), day([1])], dim="time")


def test_missing_coordinates_are_not_compared():
    nan = float("nan")
    for gap, attrs in ((nan, {}), (-1, {"_FillValue": -1}), (-1, {"missing_value": -1.0})):
        days = [day([0], time=coordinate("time", times, units="h", **attrs))
                for times in ([gap], [gap, 0], [gap])]  # fmt: skip
        days = [Group({}, {"time": g["time"]}) for g in days]
        assert vz.concat(days, dim="time")["time"].shape == (4,)


def test_text_has_no_order():
    arrays = [virtual_array(np.array(names, "S1"), dims=("id",), path="id", fill_value=b"")
              for names in (["b", "c"], ["a"])]  # fmt: skip
    parts = [Group({}, {"id": array}) for array in arrays]
    assert vz.concat(parts, dim="id")["id"][...].tolist() == [b"b", b"c", b"a"]


@pytest.mark.parametrize("name", ["y", "mask", "crs"])
def test_what_lacks_the_dimension_must_be_equal(name):
    changed = {
        "y": coordinate("y", [1, 0]),
        "mask": virtual_array(numbers((2,), start=5), dims=("y",)),
        "crs": scalar(8),
    }[name]
    with pytest.raises(MismatchError, match="values in input 1 are not those in input 0") as caught:
        vz.concat([day([0]), day([1], **{name: changed})], dim="time")
    assert caught.value.variable == name


def test_what_lacks_the_dimension_may_be_stored_in_other_ways():
    mask = virtual_array(numbers((2,)), (1,), pipeline=ZLIB, dims=("y",))
    nan = virtual_array(np.array(np.nan, "f4"))
    missing = virtual_array(np.array(np.nan, "f4"), missing=[()], fill_value=np.nan)
    joined = vz.concat([day([0], crs=nan), day([1], crs=missing, mask=mask)], dim="time")
    assert np.isnan(joined["crs"][...])
    assert joined["mask"].metadata.pipeline == RAW


def stored_in(zarr_format, values, fill_value=None, **attrs):
    """Return an array along y of a Zarr store."""
    options = {"dimension_names": ["y"], "attributes": attrs, "fill_value": fill_value}
    return vz.create_array({}, data=np.asarray(values), zarr_format=zarr_format, **options)


def test_what_is_masked_of_what_lacks_the_dimension_is_compared():
    """As that of joined variables, however each format spells it."""
    same = [
        stored_in(2, [0.0, 1.0], np.nan),
        stored_in(3, [0.0, 1.0], 0.0, _FillValue="AAAAAAAA+H8="),
        coordinate("y", [0, 1], _FillValue=float("nan")),
        coordinate("y", [0, 1]),
    ]
    joined = vz.concat([day([i], mask=one) for i, one in enumerate(same)], dim="time")
    assert joined["mask"][...].tolist() == [0, 1]
    backwards = vz.concat([day([i], mask=one) for i, one in enumerate(same[1::-1])], dim="time")
    assert np.isnan(backwards["mask"].attrs["_FillValue"])
    other = [stored_in(2, [0, 1], 0), stored_in(3, [0, 1], 0)]
    for pair in (other, other[::-1]):
        with pytest.raises(MismatchError, match="_FillValue") as caught:
            vz.concat([day([i], mask=one) for i, one in enumerate(pair)], dim="time")
        assert caught.value.variable == "mask"


def test_attributes_of_what_lacks_the_dimension():
    units = scalar(7, units="m"), scalar(7, units="km")
    with pytest.raises(MismatchError, match="'km', but input 0 has 'm'"):
        vz.concat([day([i], crs=crs) for i, crs in enumerate(units)], dim="time")
    notes = scalar(7, note=1, kept=2), scalar(7, note=2, kept=2)
    joined = vz.concat([day([i], crs=crs) for i, crs in enumerate(notes)], dim="time")
    assert joined["crs"].attrs == {"kept": 2}


def test_long_values_are_compared_in_parts(monkeypatch):
    monkeypatch.setattr(vz.config.tuning, "compared_bytes", 64)
    values = numbers((50, 4), "f8")
    other = values.copy()
    other[47, 2] = np.nan

    def parts(second):
        masks = [virtual_array(v, (7, 4), pipeline=ZLIB) for v in (values, second)]
        return [day([i], mask=mask) for i, mask in enumerate(masks)]

    assert vz.concat(parts(values.copy()), dim="time")["mask"].shape == (50, 4)
    with pytest.raises(MismatchError, match="values"):
        vz.concat(parts(other), dim="time")


def test_structures_are_compared_field_by_field():
    dtype = np.dtype({"names": ["a", "b"], "formats": ["<f4", "(2,)<i2"], "itemsize": 10})
    same = [virtual_array(np.array([(np.nan, (1, 2))], dtype), fill_value=None) for _ in range(2)]
    vz.concat([day([i], mask=mask) for i, mask in enumerate(same)], dim="time")
    other = virtual_array(np.array([(np.nan, (1, 3))], dtype), fill_value=None)
    with pytest.raises(MismatchError, match="values"):
        vz.concat([day([0], mask=same[0]), day([1], mask=other)], dim="time")


def test_the_dimension_must_exist():
    with pytest.raises(ValueError, match="stack"):
        vz.concat([day([0]), day([1])], dim="level")
    with pytest.raises(ValueError, match="give dim"):
        vz.concat([day([0]), day([1])])
    with pytest.raises(ValueError, match="give dim"):
        vz.stack([day([0]), day([1])])


def test_problems_of_several_variables_name_each():
    with pytest.raises(MismatchError) as caught:
        vz.concat([day([0]), day([1], y=(5, 6), crs=scalar(8))], dim="time")
    lines = str(caught.value).splitlines()
    assert [line.split(":")[0].strip() for line in lines[1:3]] == ["y", "crs"]
    assert 'compat="override"' in lines[3]


def image(number, **changes):
    members = {
        "x": coordinate("x", [0, 1, 2]),
        "data": virtual_array(numbers((2, 3), start=10 * number), dims=("y", "x"),
                              attrs={"coordinates": "lon time"}),
        "lon": virtual_array(numbers((2, 3)), dims=("y", "x")),
        "time": scalar(float(number), "time"),
        "crs": scalar(7),
        **changes,
    }  # fmt: skip
    return Group({"title": "t"}, members)


def test_a_new_dimension():
    stacked = vz.stack([image(i) for i in range(3)], dim="time")
    assert {name: array.dims for name, array in stacked.arrays()} == {
        "x": ("x",),
        "data": ("time", "y", "x"),
        "lon": ("y", "x"),
        "time": ("time",),
        "crs": (),
    }
    expected = np.stack([numbers((2, 3), start=10 * i) for i in range(3)])
    np.testing.assert_array_equal(stacked["data"][...], expected)
    assert stacked["time"][...].tolist() == [0, 1, 2]
    assert stacked["time"].path == "time"


def test_auxiliary_coordinates_that_differ_are_stacked():
    other = image(1, lon=virtual_array(numbers((2, 3), start=5), dims=("y", "x")), crs=scalar(8))
    stacked = vz.stack([image(0), other], dim="time")
    assert stacked["lon"].dims == ("time", "y", "x")
    assert stacked["crs"][...].tolist() == [7, 8]


def test_coordinates_of_a_stack():
    with pytest.raises(MismatchError, match="values") as caught:
        vz.stack([image(0), image(1, x=coordinate("x", [2, 1, 0]))], dim="time")
    assert caught.value.variable == "x"
    with pytest.raises(MismatchError, match="order") as caught:
        vz.stack([image(0), image(2), image(1)], dim="time")
    assert caught.value.variable == "time"
    with pytest.raises(MismatchError, match="too few"):
        vz.stack([image(0), image(1)], axis=3, dim="time")


def test_attributes():
    assert is_same_value({"a": [1, 2.0]}, {"a": [1.0, 2]})
    assert not is_same_value({"a": 1}, {"b": 1})
    assert not is_same_value([1], [1, 2])
    assert not is_same_value("1", 1)
    assert combine_attributes([{"a": 1}, {"a": 2}, {"a": 1}]) == {}
    assert len(set(MEANING_ATTRIBUTES)) == len(MEANING_ATTRIBUTES)


def test_lists_of_numbers_are_compared_as_such():
    def lists(*values):
        block = np.empty(len(values), object)
        block[:] = [np.array(value, "i4") for value in values]
        return block

    assert is_equal(lists([1, 2], []), lists([1, 2], []))
    assert not is_equal(lists([1, 2], []), lists([1, 3], []))
    assert not is_equal(lists([1, 2], [3]), lists([1, 2], []))
    texts = np.array(["a", "b"], object)
    assert is_equal(texts, texts.copy())
    assert not is_equal(texts, texts[::-1])
