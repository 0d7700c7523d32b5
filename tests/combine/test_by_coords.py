"""Groups put in order by their coordinates, merged, and filled where something is missing."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import virtualzarr as vz
from tests.combine.helpers import ZLIB, numbers, virtual_array
from virtualzarr import Group
from virtualzarr.combine.coordinates import coordinate_array, coordinate_values
from virtualzarr.errors import MismatchError

xr = pytest.importorskip("xarray")


def group(attrs: dict[str, Any] | None = None, **variables: Any) -> Group:
    """A group of variables, each given by dimensions, values, and maybe attributes."""
    members = {}
    for name, (dims, values, *rest) in variables.items():
        values = np.asarray(values)
        chunks = tuple(max(1, n // 2) for n in values.shape)
        members[name] = virtual_array(
            values, chunks, pipeline=ZLIB, dims=tuple(dims), path=name, attrs=dict(*rest)
        )
    return Group(attrs or {}, members)


def dataset(node: Group) -> Any:
    return xr.Dataset(
        {name: (node[name].dims, node[name][...]) for name in node}, attrs=dict(node.attrs)
    )


def same(ours: Group, theirs: Any) -> None:
    assert set(ours) == set(theirs.variables)
    for name in ours:
        variable = theirs[name].transpose(*ours[name].dims)
        np.testing.assert_array_equal(ours[name][...], variable.values)


@st.composite
def tiles(draw: st.DrawFn) -> list[Group]:
    """Tiles of a plane, in any order."""
    cuts = [draw(st.lists(st.integers(1, 3), min_size=1, max_size=3)) for _ in range(2)]
    falling = draw(st.booleans())
    rows, columns = sum(cuts[0]), sum(cuts[1])
    y, x = np.arange(rows) * 10, np.arange(columns) + 0.5
    y = y[::-1] if falling else y
    values = numbers((rows, columns), "f4")
    found, first = [], 0
    for height in cuts[0]:
        left = 0
        for width in cuts[1]:
            part = slice(first, first + height), slice(left, left + width)
            found.append(
                group(
                    a=(("y", "x"), values[part]),
                    y=(("y",), y[part[0]]),
                    x=(("x",), x[part[1]]),
                    z=((), np.int32(5)),
                )
            )
            left += width
        first += height
    return draw(st.permutations(found))


@given(tiles())
def test_tiles_find_their_places(parts: list[Group]) -> None:
    # One row of a single tile tells xarray nothing of the order; it is told by more.
    ours = vz.combine_by_coords(parts, ["y", "x"])
    theirs = xr.combine_by_coords([dataset(part).drop_vars("z") for part in parts])
    theirs = theirs.sortby("y", ascending=ours["y"].shape[0] < 2 or ours["y"][0] < ours["y"][1])
    same(ours, theirs.assign(z=5))


def row(start: int, stop: int, step: int = 1, **more: Any) -> Group:
    t = np.arange(start, stop, step)
    return group(t=(("t",), t), v=(("t",), t * 10.0), **more)


def test_inputs_are_sorted() -> None:
    joined = vz.combine_by_coords([row(4, 7), row(0, 2), row(2, 4)])
    assert joined["t"][...].tolist() == list(range(7))
    assert joined["v"][...].tolist() == [10 * n for n in range(7)]


def test_groups_of_the_same_place_are_merged() -> None:
    one, two = row(0, 2), row(0, 2)
    other = Group({}, {"w": two["v"].with_path("w"), "t": two["t"]})
    joined = vz.combine_by_coords([row(2, 3, w=(("t",), [7.0])), one, other])
    assert joined["v"][...].tolist() == [0, 10, 20]
    assert joined["w"][...].tolist() == [0, 10, 7]


@pytest.mark.parametrize(
    ("how", "expected"), [("first", [0, 10, 20, 3, 4]), ("last", [0, 1, 2, 3, 4])]
)
def test_overlaps_are_resolved_as_told(how: str, expected: list[int]) -> None:
    first = row(0, 3)
    second = group(t=(("t",), np.arange(1, 5)), v=(("t",), np.arange(1.0, 5)))
    with pytest.raises(MismatchError, match=r'overlaps.*overlap="first"'):
        vz.combine_by_coords([second, first])
    joined = vz.combine_by_coords([second, first], overlap=how)
    assert joined["t"][...].tolist() == [0, 1, 2, 3, 4]
    assert joined["v"][...].tolist() == expected


@given(
    st.lists(st.tuples(st.integers(0, 12), st.integers(1, 6)), min_size=1, max_size=5),
    st.sampled_from(["first", "last"]),
    st.booleans(),
)
def test_overlaps_lose_no_coordinate(spans: list[tuple[int, int]], how: str, falling: bool) -> None:
    parts = []
    for number, (start, length) in enumerate(spans):
        t = np.arange(start, start + length)
        t = t[::-1] if falling else t
        parts.append(group(t=(("t",), t), v=(("t",), np.full(length, float(number)))))
    try:
        joined = vz.combine_by_coords(parts, ["t"], overlap=how)
    except MismatchError:
        return
    t, v = joined["t"][...], joined["v"][...]
    assert sorted(t.tolist()) == sorted({n for s, m in spans for n in range(s, s + m)})
    assert (np.diff(t) < 0).all() if len(t) > 1 and t[0] > t[-1] else (np.diff(t) > 0).all()
    for time, number in zip(t, v, strict=True):
        start, length = spans[int(number)]
        assert start <= time < start + length


def test_coordinates_between_others_are_not_left_out() -> None:
    with pytest.raises(MismatchError, match="lies between"):
        vz.combine_by_coords([row(0, 6, 2), row(1, 7, 2)], overlap="first")


def test_gaps_are_found_and_filled() -> None:
    parts = [row(0, 6, 2), row(10, 14, 2)]
    assert vz.combine_by_coords(parts)["t"][...].tolist() == [0, 2, 4, 10, 12]
    with pytest.raises(MismatchError, match="from 4 to 10"):
        vz.combine_by_coords(parts, gaps="raise")
    joined = vz.combine_by_coords(parts, gaps="fill")
    assert joined["t"][...].tolist() == [0, 2, 4, 6, 8, 10, 12]
    np.testing.assert_array_equal(joined["v"][...], [0, 20, 40, np.nan, np.nan, 100, 120])
    with pytest.raises(MismatchError, match="even steps"):
        vz.combine_by_coords([row(0, 6, 2), row(11, 15, 2)], gaps="fill")


@pytest.mark.parametrize("dtype", ["f4", "f8"])
def test_gaps_of_floats_are_filled_where_that_is_exact(dtype: str) -> None:
    def floats(start: float, stop: float, step: float) -> Group:
        t = np.arange(start, stop, step).astype(dtype)
        return group(t=(("t",), t), v=(("t",), t.astype("f8")))

    for step in (0.25, 6.0, 31.0):
        parts = [floats(-2 * step, 2 * step, step), floats(5 * step, 7 * step, step)]
        joined = vz.combine_by_coords(parts, gaps="fill")
        expected = (np.arange(-2, 7) * step).astype(dtype)
        assert joined["t"].dtype == dtype
        np.testing.assert_array_equal(joined["t"][...], expected)
        missing = np.isnan(joined["v"][...])
        assert missing.tolist() == [False] * 4 + [True] * 3 + [False] * 2
    large = 2.0 ** np.finfo(dtype).nmant
    for start, step in ((0.0, 0.1), (0.0, 1 / 3), (large, 2.0)):
        parts = [
            floats(start, start + 2 * step, step),
            floats(start + 5 * step, start + 6.5 * step, step),
        ]
        with pytest.raises(MismatchError, match="not exact"):
            vz.combine_by_coords(parts, gaps="fill")


def test_times_in_other_units_are_put_in_order() -> None:
    def days(values: list[int], units: str) -> Group:
        return group(t=(("t",), values, {"units": units}), v=(("t",), np.array(values, "f8")))

    parts = [days([48, 72], "hours since 2000-01-01"), days([0, 1], "days since 2000-01-01")]
    with pytest.raises(MismatchError, match="units"):
        vz.combine_by_coords(parts)
    joined = vz.combine_by_coords(parts, harmonize="time")
    assert joined["v"][...].tolist() == [0, 1, 48, 72]
    assert joined["t"].attrs["units"] == "hours since 2000-01-01"
    assert joined["t"][...].tolist() == [0, 24, 48, 72]


def test_a_lacking_tile_is_an_error_or_missing_values() -> None:
    parts = [
        group(a=(("y", "x"), [[10.0 * y + x]]), y=(("y",), [y]), x=(("x",), [x]))
        for y, x in ((0, 0), (0, 1), (1, 1))
    ]
    with pytest.raises(MismatchError, match="no input with y 1 to 1, x 0 to 0"):
        vz.combine_by_coords(parts)
    joined = vz.combine_by_coords(parts, missing="fill")
    np.testing.assert_array_equal(joined["a"][...], [[0, 1], [np.nan, 11]])


def test_overlaps_of_stores_are_resolved(tmp_path: Any) -> None:
    for number, start in enumerate((0, 3)):
        node = vz.create_group(tmp_path / f"{number}.zarr")
        rows = np.arange(start, start + 5)
        node.create_array("t", data=rows, chunks=(2,), dimension_names=["t"])
        node.create_array("a", data=rows + 10 * number, chunks=(2,), dimension_names=["t"])
    files = [tmp_path / "0.zarr", tmp_path / "1.zarr"]
    for how, expected in (
        ("first", [0, 1, 2, 3, 4, 15, 16, 17]),
        ("last", [0, 1, 2, *range(13, 18)]),
    ):
        joined = vz.virtualize(files, "t", combine="by_coords", overlap=how)
        assert joined["a"][...].tolist() == expected


@pytest.mark.parametrize("t", [[1, 3, 2], [1, 1], [1.0, np.nan]])
def test_coordinates_must_be_sorted(t: list[float]) -> None:
    odd = group(t=(("t",), t), v=(("t",), np.zeros(len(t))))
    with pytest.raises(MismatchError, match="not sorted"):
        vz.combine_by_coords([odd, row(5, 7)])


def test_coordinates_that_are_missing_have_no_place() -> None:
    first = group(t=(("t",), np.array([-9, 1]), {"_FillValue": -9}))
    with pytest.raises(MismatchError, match="missing somewhere"):
        vz.combine_by_coords([first, group(t=(("t",), np.array([2, 3]), {"_FillValue": -9}))])


def test_unsigned_coordinates_are_put_in_their_order() -> None:
    spans = [(130, 132), (126, 128)]
    parts = [
        group(
            t=(("t",), np.arange(*span).astype("u1").view("i1"), {"_Unsigned": "true"}),
            v=(("t",), np.arange(*span) * 1.0),
        )
        for span in spans
    ]
    joined = vz.combine_by_coords(parts, gaps="fill")
    assert joined["t"][...].view("u1").tolist() == list(range(126, 132))
    np.testing.assert_array_equal(joined["v"][...], [126, 127, np.nan, np.nan, 130, 131])
    assert vz.concat(parts[::-1], dim="t")["v"][...].tolist() == [126, 127, 130, 131]


@pytest.mark.parametrize("dims", [None, ["t"]])
@pytest.mark.parametrize("gaps", ["allow", "fill"])
def test_inputs_without_any_coordinates_add_nothing(dims: Any, gaps: str) -> None:
    for parts in ([row(2, 4), row(0, 0), row(0, 2)], [row(0, 0), row(0, 4)], [row(0, 4)]):
        joined = vz.combine_by_coords(parts, dims, gaps=gaps)
        assert joined["v"][...].tolist() == [0, 10, 20, 30]
    assert vz.combine_by_coords([row(0, 0), row(3, 3)], dims, gaps=gaps)["v"].shape == (0,)
    with pytest.raises(MismatchError, match="values in"):
        vz.combine_by_coords([row(0, 2, z=((), 1)), row(0, 0, z=((), 2))], dims, gaps=gaps)


def test_a_tile_without_any_coordinates_lies_beside_others() -> None:
    def tile(t: int, n: int, x: int) -> Group:
        return group(
            t=(("t",), np.arange(t, t + n)), x=(("x",), [x]), v=(("t", "x"), np.full((n, 1), t + x))
        )

    parts = [tile(1, 1, 0), tile(0, 0, 10), tile(0, 1, 0), tile(0, 1, 10), tile(1, 1, 10)]
    assert vz.combine_by_coords(parts)["v"][...].tolist() == [[0, 10], [1, 11]]
    with pytest.raises(MismatchError, match="no input beside it"):
        vz.combine_by_coords([*parts, tile(0, 0, 20)], missing="fill")


def test_what_runs_the_other_way_is_found() -> None:
    back = group(t=(("t",), [9, 8]), v=(("t",), [0.0, 0]))
    with pytest.raises(MismatchError, match="falls in"):
        vz.combine_by_coords([row(0, 3), back])


def test_without_coordinates_there_is_no_order() -> None:
    with pytest.raises(MismatchError, match="no dimension with coordinates"):
        vz.combine_by_coords([group(v=(("t",), [1.0])), group(v=(("t",), [2.0]))])
    with pytest.raises(MismatchError, match="no coordinate u"):
        vz.combine_by_coords([row(0, 2), row(2, 4)], ["u"])
    with pytest.raises(ValueError, match="overlap is one of"):
        vz.combine_by_coords([row(0, 2)], overlap="both")


# -- variables that are not everywhere ------------------------------------------------------------


def test_variables_that_are_not_everywhere() -> None:
    parts = [row(0, 2), row(2, 5, w=(("t",), [1.0, 2, 3])), row(5, 6, k=((), np.int16(4)))]
    with pytest.raises(MismatchError, match="w: it is not in input 0"):
        vz.concat(parts, dim="t")
    filled = vz.concat(parts, dim="t", missing="fill")
    np.testing.assert_array_equal(filled["w"][...], [np.nan, np.nan, 1, 2, 3, np.nan])
    assert filled["k"][...] == 4
    dropped = vz.concat(parts, dim="t", missing="drop")
    assert sorted(dropped) == ["t", "v"]
    assert sorted(dropped.skipped) == ["k", "w"]


def test_what_is_filled_is_what_readers_take_for_missing() -> None:
    counted = {"_FillValue": -1}
    parts = [row(0, 2), row(2, 4, n=(("t",), np.array([7, 8], "i2"), counted))]
    assert vz.concat(parts, dim="t", missing="fill")["n"][...].tolist() == [-1, -1, 7, 8]
    parts[1] = row(2, 4, n=(("t",), np.array([7, 8], "i2")))
    with pytest.raises(MismatchError, match="no _FillValue"):
        vz.concat(parts, dim="t", missing="fill")


def test_marks_that_no_element_can_be_are_not_put_in() -> None:
    there = group(t=(("t",), [0]), v=(("t",), np.array([1], "i2"), {"missing_value": -99999}))
    with pytest.raises(MismatchError, match="no _FillValue"):
        vz.concat([there, group(t=(("t",), [1]))], dim="t", missing="fill")


def test_groups_that_are_not_everywhere_are_filled() -> None:
    inner = Group({}, {"deep": row(2, 4)["v"].with_path("inner/deep")})
    parts = [row(0, 2), Group({}, {**row(2, 4), "inner": inner})]
    filled = vz.concat(parts, dim="t", missing="fill")
    np.testing.assert_array_equal(filled["inner/deep"][...], [np.nan, np.nan, 20, 30])


# -- merging --------------------------------------------------------------------------------------


def test_variables_are_merged_if_they_are_equal() -> None:
    one = group({"a": 1, "b": 1}, x=(("x",), [1, 2]), p=(("x",), [1.0, 2]))
    two = group({"a": 1, "b": 2}, x=(("x",), [1, 2]), q=(("x",), [3.0, 4]))
    merged = vz.merge([one, two])
    same(merged, xr.merge([dataset(one), dataset(two)]))
    assert merged.attrs == {"a": 1}
    other = group(x=(("x",), [1, 3]), r=(("x",), [0.0, 0]))
    with pytest.raises(MismatchError, match="values in input 1"):
        vz.merge([one, other])
    assert vz.merge([one, other], compat="override")["x"][...].tolist() == [1, 2]
    assert sorted(vz.merge([one, other], compat="minimal")) == ["p", "r"]


def test_dimensions_must_have_one_length() -> None:
    with pytest.raises(MismatchError, match="dimension x has length 2 in p, but 3 in q"):
        vz.merge([group(p=(("x",), [1, 2])), group(q=(("x",), [1, 2, 3]))])


def test_groups_within_groups_are_merged() -> None:
    one = Group({}, {"in": group(p=(("x",), [1, 2]))})
    two = Group({}, {"in": group(q=(("x",), [3, 4]))})
    assert list(vz.merge([one, two])["in"]) == ["p", "q"]  # type: ignore[arg-type]
    with pytest.raises(MismatchError, match="kind"):
        vz.merge([one, group(**{"in": (("x",), [1])})])


# -- coordinates of new dimensions ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "numbers", "attributes"),
    [
        ([1, 2], [1, 2], {}),
        ([0.5, 2], [0.5, 2], {}),
        (["a", "bc"], ["a", "bc"], {}),
        (np.array(["2000-01-02", "2000-01-05"], "M8[ns]"), [10958, 10961], "days since 1970-01-01"),
        (np.array(["2000-01-02T01"], "M8[s]"), [262993], "hours since 1970-01-01"),
        (np.array([90], "m8[s]"), [90], "seconds"),
    ],
)
def test_coordinates_become_variables(values: Any, numbers: Any, attributes: Any) -> None:
    groups = [Group() for _ in values]
    made = coordinate_array("t", coordinate_values(values, groups, ["x"] * len(groups)))
    assert made[...].tolist() == numbers
    assert made.dims == ("t",)
    assert made.attrs.get("units", {}) == attributes


def test_odd_coordinates_are_refused() -> None:
    groups = [Group(), Group()]
    with pytest.raises(ValueError, match="3 coordinates for 2 inputs"):
        coordinate_values([1, 2, 3], groups, ["a", "b"])
    for odd in ([1, "a"], [1j, 2], [[1], [2]], [None, 1]):
        with pytest.raises(ValueError, match="one kind"):
            coordinate_values(odd, groups, ["a", "b"])
    with pytest.raises(ValueError, match="no data type has all"):
        coordinate_values([2**60 + 1, 0.5], groups, ["a", "b"])
    with pytest.raises(ValueError, match="1678"):
        coordinate_array("t", np.array(["3000-01-01"], "M8[D]"))
    with pytest.raises(ValueError, match="no time"):
        coordinate_array("t", np.array(["NaT"], "M8[D]"))
