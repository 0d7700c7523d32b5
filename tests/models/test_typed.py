"""Attributes and members of declared types, checked wherever a model comes from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NotRequired, TypedDict

import pytest

import virtualzarr as vz
from virtualzarr.errors import MetadataError, UnsupportedError
from virtualzarr.models import v2, v3


@dataclass
class Units:
    units: str
    range: tuple[float, float] | None = None


class Dims(TypedDict):
    _ARRAY_DIMENSIONS: list[str]
    units: NotRequired[str]


class Title(TypedDict):
    title: str


class Ice(TypedDict):
    ice: v3.ArraySpec[Units]


class Members(TypedDict):
    air: v3.ArraySpec[Units]
    inner: NotRequired[v3.GroupSpec[Any, Ice]]
    other: NotRequired[v3.ArraySpec | v3.GroupSpec[Title]]


class Weather(v3.GroupSpec[Title, Members]):
    """A declared hierarchy."""


class Many(v3.GroupSpec[Any, Mapping[str, v3.ArraySpec[Units]]]):
    """Any number of arrays with units."""


def array(attributes=None, models=v3):
    return models.ArraySpec.new(shape=4, dtype="u1", attributes=attributes or {"units": "K"})


def test_attributes():
    x = v3.ArraySpec.new(shape=4, dtype="u1", attributes=Units("K", (0, 1)))
    assert x.metadata.attributes == {"units": "K", "range": [0, 1]}
    again = v3.ArraySpec.from_json(x.to_json(), Units)
    assert again.attributes == Units("K", (0, 1))
    assert again == x
    for wrong in ({}, {"units": 1}, {"units": "K", "range": [1]}, {"units": "K", "more": 1}):
        with pytest.raises(MetadataError, match="attributes"):
            v3.ArraySpec.from_json({**x.to_json(), "attributes": wrong}, Units)
    named = v2.ArraySpec.new(shape=4, dtype="u1", attributes={}, dimension_names=["t"])
    dims = v2.ArraySpec.from_json(named.to_json(), Dims).attributes
    assert dims == {"_ARRAY_DIMENSIONS": ["t"]}
    assert named.metadata.dimension_names == ("t",)


def test_members():
    inner = v3.GroupSpec(members={"ice": array()})
    other = v3.GroupSpec(attributes={"title": "deep"})
    members = {"air": array(), "inner": inner, "other": other}
    weather = Weather(attributes={"title": "t"}, members=members)
    plain = v3.GroupSpec(attributes={"title": "t"}, members=members)
    assert weather == plain
    assert hash(weather) == hash(plain)
    store = {}
    weather.create(store)
    found = [
        Weather.read(store),
        Weather.read(vz.open(store)),
        Weather.cast(plain),
        Weather.from_json(plain.to_json()),
        Weather.from_flat(plain.to_flat()),
        Weather.from_metadata(vz.open(consolidated(store)).metadata),
        v3.GroupSpec.from_json(plain.to_json(), Title, Members),
    ]
    for spec in found:
        assert spec == weather
        assert spec.members["air"].attributes == Units("K")
        assert spec.members["inner"].members["ice"].attributes == Units("K")
        assert spec.members["other"].attributes == {"title": "deep"}
    changed = found[0].replace(attributes={"title": "u"})
    assert isinstance(changed, Weather)
    assert changed.members["air"].attributes == Units("K")


def consolidated(store):
    vz.open_group(store).consolidate_metadata()
    return store


@pytest.mark.parametrize(
    ("members", "message"),
    [
        ({}, "members: air: this mandatory member is missing"),
        ({"air": array(), "ice": array()}, "members: ice: Members has no such member"),
        ({"air": array({"a": 1})}, "members: air: attributes: units: this mandatory"),
        ({"air": array({"units": 1})}, "members: air: attributes: units: must be str, not 1"),
        ({"air": v3.GroupSpec()}, "members: air: must be an array of Zarr v3"),
        ({"air": array(), "inner": array()}, "members: inner: must be a group of Zarr v3"),
        ({"air": array(), "inner": v3.GroupSpec()}, "members: inner: members: ice: this mandatory"),
        ({"air": array(), "other": v3.GroupSpec()}, "members: other: must be "),
        ({"air": array(models=v2)}, "members: air: is of Zarr v2"),
    ],
)
def test_members_that_are_not_as_declared(members, message):
    with pytest.raises(MetadataError, match=message):
        Weather(attributes={"title": "t"}, members=members)
    if "Zarr v2" in message:
        return
    plain = v3.GroupSpec(attributes={"title": "t"}, members=members)
    store = {}
    plain.create(store)
    for wrong in (
        lambda: Weather.cast(plain),
        lambda: Weather.from_json(plain.to_json()),
        lambda: Weather.read(store),
    ):
        with pytest.raises(MetadataError, match=message):
            wrong()


def test_members_of_any_name():
    many = Many(members={"a": array(), "b": array()})
    assert Many.from_json(many.to_json()).members["b"].attributes == Units("K")
    with pytest.raises(MetadataError, match="members: c: attributes: more"):
        Many(members={"c": array({"units": "K", "more": 1})})


def test_what_nobody_looked_at_is_not_checked():
    store = {}
    v3.GroupSpec(attributes={"title": "t"}).create(store)
    assert Weather.read(store, depth=0).members is None
    with pytest.raises(MetadataError, match="attributes: title"):
        Weather.from_json(v3.GroupSpec(members=None).to_json())


def test_declarations_that_cannot_be_checked():
    class Odd(v3.GroupSpec[dict[str, set[int]]]):
        pass

    with pytest.raises(UnsupportedError, match="annotation set"):
        Odd(attributes={"a": [1]})


def test_declarations_in_functions():
    class Local(TypedDict):
        a: int

    class Outer(TypedDict):
        local: Local

    with pytest.raises(UnsupportedError, match="annotations of Outer cannot be read"):
        v3.GroupSpec.from_json(v3.GroupSpec(attributes={"local": {"a": 1}}).to_json(), Outer)
