"""Fields become variables, and variables groups that have one set of coordinates."""

from __future__ import annotations

import itertools
import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import virtualzarr as vz
from tests.formats.grib.helpers import eccodes, outcomes, small
from virtualzarr.errors import PublishError, SkippedVariableWarning, SourceError
from virtualzarr.formats.grib import products as products_module


def write(path, *raw):
    path.write_bytes(b"".join(raw))
    return path


def names(group):
    return sorted(path for path, node in group.members(None)
                  if isinstance(node, vz.Array) and "GRIB_shortName" in node.attrs)  # fmt: skip


@pytest.mark.parametrize("edition", [1, 2])
def test_cubes_with_holes(tmp_path, edition):
    """Any order of messages makes the same cube; what is not there is NaN."""
    every = list(itertools.product((20200101, 20200102), (0, 6, 12), (1000, 850, 500)))
    there = [place for number, place in enumerate(every) if number % 5 != 2]
    random.Random(0).shuffle(there)
    raw = [
        small(100 * step + level + date % 10, edition=edition, dataDate=date, step=step,
              level=level)
        for date, step, level in there
    ]  # fmt: skip
    group = vz.open(write(tmp_path / "a.grib", *raw))
    array = group["t"]
    assert array.dims == ("time", "step", "isobaricInhPa", "latitude", "longitude")
    assert array.shape == (2, 3, 3, 2, 3)
    assert group["isobaricInhPa"][...].tolist() == [1000, 850, 500]
    assert group["step"][...].tolist() == [0, 6, 12]
    values = array[...]
    for (i, date), (j, step), (k, level) in itertools.product(
        enumerate((20200101, 20200102)), enumerate((0, 6, 12)), enumerate((1000, 850, 500))
    ):
        expected = 100 * step + level + date % 10
        if (date, step, level) not in there:
            expected = np.nan
        assert np.allclose(values[i, j, k], expected, rtol=1e-6, equal_nan=True)
    assert outcomes(tmp_path / "a.grib") == []


def test_members(tmp_path):
    raw = [small(n, productDefinitionTemplateNumber=1, number=n, step=s)
           for n, s in itertools.product((3, 1, 2), (0, 1))]  # fmt: skip
    group = vz.open(write(tmp_path / "a.grib", *raw))
    assert group["number"][...].tolist() == [1, 2, 3]
    assert group["t"].dims[:2] == ("number", "step")
    assert group["t"][:, 0, 0, 0].tolist() == [1, 2, 3]
    assert outcomes(tmp_path / "a.grib") == []


def test_groups_of_what_does_not_fit(tmp_path):
    on_levels = [small(1, level=level) for level in (850, 500)]
    surface = [
        small(2, shortName="sp"),
        small(3, shortName="2t"),
        small(4, shortName="10u"),
        small(5, shortName="t", typeOfLevel="hybrid", level=1),
    ]
    assert names(vz.open(write(tmp_path / "a.grib", *on_levels, *surface[:2]))) == [
        "sp",
        "t",
        "t2m",
    ]
    assert names(vz.open(write(tmp_path / "b.grib", *on_levels, *surface))) == [
        "heightAboveGround/10/u10", "heightAboveGround/2/t2m", "hybrid/t", "isobaricInhPa/t",
        "surface/sp",
    ]  # fmt: skip
    other_grid = small(6, Ni=2, Nj=3, shortName="u", level=500)
    assert names(vz.open(write(tmp_path / "c.grib", *on_levels, other_grid))) == [
        "grid_1/t", "grid_2/u",
    ]  # fmt: skip
    other_levels = [small(7, shortName="u", level=level) for level in (850, 300)]
    assert names(vz.open(write(tmp_path / "d.grib", *on_levels, *other_levels))) == [
        "850_to_300/u", "850_to_500/t",
    ]  # fmt: skip
    for each in "abcd":
        assert outcomes(tmp_path / f"{each}.grib") == []


def test_accumulations_and_what_tells_fields_apart(tmp_path):
    def rain(start, stop, number):
        return small(number, shortName="tp", productDefinitionTemplateNumber=8,
                     stepType="accum", stepRange=f"{start}-{stop}")  # fmt: skip

    path = write(tmp_path / "a.grib", *[rain(0, stop, stop) for stop in (1, 2, 3)])
    group = vz.open(path)
    assert group["step"][...].tolist() == [1, 2, 3]
    assert outcomes(path) == []
    # Over one hour, and since the beginning, at the same time.
    both = [rain(0, 2, 2), rain(0, 3, 3), rain(1, 2, 20), rain(2, 3, 30), small(9, shortName="sp")]
    path = write(tmp_path / "b.grib", *both)
    assert outcomes(path) == []
    lengths = [f"accum/lengthOfTimeRange_{hours}/tp" for hours in (1, 2, 3)]
    assert names(vz.open(path)) == [*lengths, "instant/sp"]
    assert vz.open(path)[lengths[0]].dims[0] == "step"
    soil = [
        small(top, shortName="sot", typeOfLevel="depthBelowLandLayer", topLevel=top, bottomLevel=to)
        for top, to in ((0, 1), (0, 2), (1, 2))
    ]
    path = write(tmp_path / "c.grib", *soil)
    assert outcomes(path) == []
    assert sum(vz.open(path)[name].manifest.nrefs for name in names(vz.open(path))) == 3


def test_the_same_field_twice_is_refused_by_name(tmp_path):
    path = write(tmp_path / "a.grib", small(1, shortName="u"), *[small(n) for n in (1, 2)])
    size = len(small(1))
    with pytest.raises(SourceError, match=f"bytes {size} and {2 * size} are of the same field"):
        vz.open(path)
    with pytest.warns(SkippedVariableWarning):
        group = vz.open(path, on_error="warn")
    assert names(group) == ["u"]
    assert list(group.skipped) == ["isobaricInhPa/t"]


def test_a_message_twice_counts_once(tmp_path):
    first, second, other = small(1, step=1), small(2, step=2), small(9, step=2)
    path = write(tmp_path / "a.grib", first, second, first, second, b"xx", second)
    assert vz.open(path)["t"][:, 0, 0].tolist() == [1, 2]
    assert outcomes(path) == []
    with pytest.raises(SourceError, match="of the same field"):
        vz.open(write(tmp_path / "b.grib", first, second, second, other))


def test_fields_too_few_for_a_cube_are_listed(tmp_path):
    raw = [small(n, step=n, level=n + 1, dataDate=20000101 + n) for n in range(28)]
    group = vz.open(write(tmp_path / "a.grib", *raw[::-1]))
    assert group["t"].dims == ("field", "latitude", "longitude")
    assert group["t"][:, 0, 0].tolist() == list(range(28))
    for name, first in (("step", 0), ("isobaricInhPa", 1)):
        assert group[name].dims == ("field",)
        assert group[name][...].tolist() == list(range(first, first + 28))
    assert outcomes(tmp_path / "a.grib") == []


def test_parameters_without_a_name(tmp_path):
    raw = [small(n, discipline=0, parameterCategory=2, parameterNumber=n) for n in (200, 201)]
    group = vz.open(write(tmp_path / "a.grib", *raw))
    assert names(group) == []
    assert group["unknown_0_2_200"].attrs["GRIB_parameter"] == [0, 2, 200]
    assert group["unknown_0_2_201"][0, 0] == 201
    assert outcomes(tmp_path / "a.grib") == []


@settings(max_examples=12, deadline=None)
@given(
    st.lists(
        st.fixed_dictionaries(
            {
                "edition": st.sampled_from([1, 2]),
                "dataDate": st.sampled_from([19000101, 19991231, 20000229, 20240701]),
                "dataTime": st.sampled_from([0, 1230, 2359]),
                "shortName": st.sampled_from(["t", "u", "2t", "sp"]),
                "step": st.integers(0, 250),
            }
        ),
        min_size=1, max_size=6, unique_by=lambda keys: tuple(map(str, keys.values())),
    )
)  # fmt: skip
def test_any_fields(tmp_path_factory, many):
    """Every field is found under its own name, time, step and level, as ecCodes has those."""
    path = tmp_path_factory.getbasetemp() / "any.grib"
    write(path, *[small(number, **dict(keys)) for number, keys in enumerate(many)])
    assert outcomes(path) == []


@settings(max_examples=12, deadline=None)
@given(
    template=st.sampled_from([0, 1, 2, 8, 11, 12]),
    units=st.sampled_from([0, 1, 2, 10, 11, 12, 13]),
    starts=st.lists(st.integers(0, 40), min_size=1, max_size=4, unique=True),
    length=st.integers(0, 12),
    members=st.lists(st.integers(0, 50), min_size=1, max_size=3, unique=True),
)
def test_kinds_of_edition_2(tmp_path_factory, template, units, starts, length, members):
    """What is taken from the bytes of many messages is what ecCodes says of each of them."""
    path = tmp_path_factory.getbasetemp() / "kinds.grib"
    raw = []
    for start, member in itertools.product(starts, members):
        keys = {"productDefinitionTemplateNumber": template, "indicatorOfUnitOfTimeRange": units,
                "forecastTime": start}  # fmt: skip
        if template in (1, 11):
            keys["number"] = member
        elif member != members[0]:
            continue
        if template >= 8:
            keys |= {"typeOfStatisticalProcessing": 1, "indicatorOfUnitForTimeRange": units,
                     "lengthOfTimeRange": length}  # fmt: skip
        raw.append(small(start, **keys))
    write(path, *raw)
    assert outcomes(path) == []
    seconds = {0: 60, 1: 3600, 2: 86400, 10: 10800, 11: 21600, 12: 43200, 13: 1}[units]
    ends = [(start + (length if template >= 8 else 0)) * seconds / 3600 for start in starts]
    assert np.atleast_1d(vz.open(path)["step"][...]).tolist() == sorted(ends)


def test_what_differs_only_in_time_is_asked_once(tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr(products_module, "read_kind", lambda *a, _ask=products_module.read_kind: (
        asked.append(a), _ask(*a))[1])  # fmt: skip
    every = list(itertools.product(range(5), (20200101, 20200102)))
    for edition in (1, 2):
        raw = [small(s, step=s, dataDate=date, edition=edition) for s, date in every]
        vz.open(write(tmp_path / "a.grib", *raw))
        assert len(asked) == edition


def test_joined_along_time(tmp_path):
    for day in (1, 2, 3):
        raw = [small(10 * day + hour, dataDate=20200100 + day, dataTime=100 * hour, shortName=name)
               for name in ("t", "u") for hour in (0, 6)]  # fmt: skip
        write(tmp_path / f"{day}.grib", *raw)
    files = [vz.open(tmp_path / f"{day}.grib") for day in (1, 2, 3)]
    joined = vz.concat(files, dim="time")
    assert joined["t"].shape == (6, 2, 3)
    assert joined["t"][:, 0, 0].tolist() == [10, 16, 20, 26, 30, 36]
    assert np.diff(joined["time"][...]).tolist() == [6 * 3600, 18 * 3600] * 2 + [6 * 3600]
    assert np.array_equal(joined["valid_time"][...], joined["time"][...])
    again = vz.virtualize(str(tmp_path / "*.grib"), concat_dim="time")
    assert np.array_equal(again["u"][...], joined["u"][...])


def test_joined_along_a_step_that_is_new(tmp_path):
    for step in (0, 6):
        write(tmp_path / f"{step}.grib", *[small(step, step=step, level=n) for n in (500, 850)])
    joined = vz.virtualize(str(tmp_path / "*.grib"), concat_dim="step")
    assert joined["t"].dims == ("step", "isobaricInhPa", "latitude", "longitude")
    assert joined["step"][...].tolist() == [0, 6]
    assert joined["latitude"].shape == (2,)
    assert joined["t"][:, 0, 0, 0].tolist() == [0, 6]


def test_published_as_copies_only(tmp_path):
    xarray = pytest.importorskip("xarray")
    group = vz.open(write(tmp_path / "a.grib", *[small(n, step=n) for n in range(3)]))
    with pytest.raises(PublishError, match=r"virtualzarr\.grib"):
        group.publish(tmp_path / "a.json")
    report = group.publish(tmp_path / "b.json", copy=True)
    assert report.copied == 3
    theirs = xarray.open_dataset(
        "reference://", engine="zarr", chunks=None,
        backend_kwargs={"consolidated": False, "storage_options": {"fo": str(tmp_path / "b.json")}},
    )  # fmt: skip
    assert np.array_equal(theirs["t"].values, group["t"][...])


def set_keys(raw, **keys):
    """Return a message with keys that have to be set in this order."""
    handle = eccodes.codes_new_from_message(raw)
    for key, value in keys.items():
        eccodes.codes_set(handle, key, value)
    found = eccodes.codes_get_message(handle)
    eccodes.codes_release(handle)
    return found


def test_layers_whose_bounds_are_fractions(tmp_path):
    layers = [(33, 100), (44, 72), (44, 100), (72, 94)]
    path = write(tmp_path / "a.grib", *[
        set_keys(small(top + below / 1000), typeOfFirstFixedSurface=104,
                 scaleFactorOfFirstFixedSurface=2, scaledValueOfFirstFixedSurface=top,
                 typeOfSecondFixedSurface=104, scaleFactorOfSecondFixedSurface=2,
                 scaledValueOfSecondFixedSurface=below)
        for top, below in layers
    ])  # fmt: skip
    assert outcomes(path) == []
    found = {}
    for name, array in vz.open(path).members(None):
        if name.endswith("/t"):
            levels = vz.open(path)[name.rpartition("/")[0] + "/sigmaLayer"][...]
            below = array.attrs["GRIB_bottomLevel"]
            for top, value in zip(np.atleast_1d(levels), array[...].reshape(-1, 6), strict=True):
                found[round(100 * top), round(100 * below)] = round(float(value[0]), 3)
    assert found == {pair: pair[0] + pair[1] / 1000 for pair in layers}


def test_probabilities_of_several_thresholds(tmp_path):
    thresholds = [(254, 2), (254, 3), (127, 2), (508, 2)]
    path = write(tmp_path / "a.grib", *[
        set_keys(small(value, shortName="tp", productDefinitionTemplateNumber=9),
                 probabilityType=1, scaleFactorOfUpperLimit=factor, scaledValueOfUpperLimit=value)
        for value, factor in thresholds
    ])  # fmt: skip
    assert outcomes(path) == []
    found = {
        array.attrs["GRIB_upperLimit"]: array[...].flat[0]
        for _, array in vz.open(path).members(None)
        if isinstance(array, vz.Array) and "GRIB_upperLimit" in array.attrs
    }
    assert found == {2.54: 254, 0.254: 254, 1.27: 127, 5.08: 508}
