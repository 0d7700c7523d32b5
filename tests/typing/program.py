"""What users write, with their types: checked by mypy, and run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NotRequired, TypedDict

import numpy as np
import numpy.typing as npt

import virtualzarr as vz
from virtualzarr.models import v2, v3
from virtualzarr.models.hierarchy import read


@dataclass
class Units:
    """Attributes as a dataclass."""

    units: str


class Title(TypedDict):
    """Attributes as a typed dict."""

    title: str


class Ice(TypedDict):
    """Members of a group."""

    ice: v3.ArraySpec[Units]


class Members(TypedDict):
    """Members of another, some of which may be missing."""

    air: v3.ArraySpec[Units]
    inner: NotRequired[v3.GroupSpec[Any, Ice]]


class Weather(v3.GroupSpec[Title, Members]):
    """A hierarchy that is declared."""


def models() -> None:
    """Make, write, read and compare declared hierarchies."""
    air = v3.ArraySpec.new(shape=(4, 6), dtype="f4", attributes=Units("K"))
    inner = v3.GroupSpec(members=Ice(ice=air))
    weather = Weather(attributes={"title": "t"}, members={"air": air, "inner": inner})
    array: vz.Array = air.create({})
    group: vz.Group = weather.create({})
    again: Weather = Weather.read(group)
    units: str = again.members["air"].attributes.units
    shape: tuple[int, ...] = Weather.from_json(weather.to_json()).members["air"].shape
    typed = v3.GroupSpec.from_json(weather.to_json(), Title, Members)
    title: str = typed.attributes["title"]
    assert (units, shape, title, array.shape) == ("K", (4, 6), "t", (4, 6))
    assert "inner" in again.members
    assert again.members["inner"].members["ice"].attributes == Units("K")
    assert again == weather == typed == read(group)
    flat: dict[str, vz.models.NodeSpec] = weather.to_flat()
    lines: list[str] = v3.GroupSpec().differences(v3.GroupSpec.from_flat(flat))
    same: bool = weather.like(group, exclude={"attributes"})
    assert (len(lines), same) == (3, True)


def old() -> None:
    """Models of Zarr v2, with members of any name and one type."""
    x = v2.ArraySpec(
        attributes=Units("K"),
        shape=[4],
        chunks=[2],
        dtype="<i4",
        compressor={"id": "zstd", "level": 0},
        fill_value=0,
    )
    group = v2.GroupSpec(members={"x": x, "y": x})
    alike: v2.GroupSpec[Any, Mapping[str, v2.ArraySpec[Units]]] = group
    chunks: tuple[int, ...] = alike.members["y"].chunks
    assert chunks == (2,)


def wrong(air: v3.ArraySpec[Units], plain: v3.ArraySpec[dict[str, str]], weather: Weather) -> None:
    """What type checkers refuse: a comment that is not needed is an error."""
    Weather(attributes={"title": "t"}, members={"air": plain})  # type: ignore[typeddict-item]
    Weather(attributes={"title": "t"}, members={})  # type: ignore[typeddict-item]
    Weather(attributes={"title": 1}, members={"air": air})  # type: ignore[typeddict-item]
    Weather(members={"air": air, "no": air})  # type: ignore[typeddict-unknown-key]
    print(weather.members["no"])  # type: ignore[typeddict-item]
    print(weather.members["air"].attributes.title)  # type: ignore[attr-defined]
    print(weather.surprise)  # type: ignore[attr-defined]
    vz.open_array({}, "x", mode="q")  # type: ignore[arg-type]
    vz.create_array({}, shapes=(3,))  # type: ignore[call-arg]
    print(weather.create({}).shape)  # type: ignore[attr-defined]


def arrays(path: str) -> None:
    """Arrays and groups in a store."""
    group = vz.create_group(path, attributes={"title": "t"})
    x = group.create_array("x", shape=(4, 6), dtype="f4", chunks=[[1, 3], 6])
    x[...] = np.ones((4, 6))
    x.append(np.ones((2, 6)))
    x.resize((3, 6))
    x.attrs["units"] = "K"
    values: npt.NDArray[Any] = x[1:, 0]
    values = x.oindex[[0, 2], :]
    assert values.shape == (2, 6)
    shape: tuple[int, ...] = x.shape
    found = vz.open(path, mode="r+")
    assert isinstance(found, vz.Group)
    for _name, node in found.members(max_depth=None):
        assert node.metadata.zarr_format == 3
    assert found.metadata.attributes == {"title": "t"}
    again: vz.Array = vz.open_array(path, "x", mode="r", shape=shape)
    joined = vz.concat([x, again], axis=0)
    layout = vz.ChunkLayout(chunk_elements=1000)
    made = group.create_hierarchy({"y": v3.ArraySpec.new(shape=9, dtype="f4", layout=layout)})
    threads: int = vz.config.threads
    assert made["y"].path == "y"
    assert threads > 0
    assert joined.metadata.shape == (6, 6)
