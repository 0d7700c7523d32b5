"""Grids of other kinds, known by name."""

from __future__ import annotations

import importlib.metadata
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

import grids
from grids import Axis, GridError, SeparableGrid
from grids import grid as registry
from tests.grids import brute


class GeometricGrid(SeparableGrid):
    """Along each axis every cell is twice as long as the one before."""

    __slots__ = ("first",)
    name = "geometric"
    first: tuple[int, ...]

    def __init__(self, shape: Sequence[int], first: Sequence[int]) -> None:
        axes = []
        for extent, edge in zip(shape, first, strict=True):
            edges = [edge]
            while sum(edges) < extent:
                edges.append(2 * edges[-1])
            axes.append(Axis(extent, edges))
        super().__init__(axes)
        object.__setattr__(self, "first", tuple(first))

    @classmethod
    def from_configuration(
        cls, configuration: Mapping[str, Any], shape: tuple[int, ...]
    ) -> GeometricGrid:
        return cls(shape, configuration["first"])

    def with_axes(self, axes: Sequence[Axis]) -> GeometricGrid:
        return GeometricGrid([axis.extent for axis in axes], self.first)

    def to_json(self) -> dict[str, Any]:
        return {"name": self.name, "configuration": {"first": list(self.first)}}

    def __reduce__(self) -> tuple[Any, ...]:
        return GeometricGrid, (self.shape, self.first)


DOCUMENT = {"name": "geometric", "configuration": {"first": [1, 3]}}


@pytest.fixture(autouse=True)
def known(monkeypatch):
    """Let tests register grids without a trace."""
    monkeypatch.setattr(registry, "_factories", dict(registry._factories))


@pytest.fixture
def entry_points(tmp_path, monkeypatch):
    """Return a function that installs a distribution with one entry point for a grid."""

    def install(name, target):
        folder = tmp_path / f"{name}-1.0.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        (folder / "entry_points.txt").write_text(f"[virtualzarr.grids]\n{name} = {target}\n")
        monkeypatch.syspath_prepend(str(tmp_path))
        importlib.invalidate_caches()

    return install


def check_geometric(grid):
    assert isinstance(grid, GeometricGrid)
    assert grid.grid_shape == (4, 2)
    assert grid.chunks == ((1, 2, 4, 3), (3, 4))
    assert grid.to_json() == DOCUMENT
    assert grid.resize((31, 7)).grid_shape == (5, 2)
    array = brute.numbered(grid.shape)
    brute.check(grid, (slice(None, None, -2), 5), "basic", array[::-2, 5])


def test_a_registered_grid():
    with pytest.raises(
        GridError, match=r"'geometric' is not supported; supported are: .*rectilinear"
    ):
        grids.from_json(DOCUMENT, (10, 7))
    grids.register("geometric", GeometricGrid.from_configuration)
    check_geometric(grids.from_json(DOCUMENT, (10, 7)))


def test_a_grid_from_an_entry_point(entry_points, monkeypatch):
    entry_points("geometric", f"{__name__}:GeometricGrid.from_configuration")
    monkeypatch.setitem(sys.modules, __name__, sys.modules[__name__])
    check_geometric(grids.from_json(DOCUMENT, (10, 7)))


def test_known_grids_do_not_look_for_entry_points(monkeypatch):
    def refuse(**_):
        raise AssertionError("looked for entry points")

    monkeypatch.setattr(importlib.metadata, "entry_points", refuse)
    assert grids.from_json(grids.RegularGrid((4,), (2,)).to_json(), (4,)).grid_shape == (2,)


def test_an_entry_point_that_does_not_load(entry_points):
    entry_points("broken", "no_such_module:factory")
    with pytest.raises(GridError, match="plug-in for chunk grid 'broken' does not load") as error:
        grids.from_json({"name": "broken"}, (4,))
    assert isinstance(error.value.__cause__, ModuleNotFoundError)


@pytest.mark.parametrize("made", [None, "grid", grids.RegularGrid((5,), (2,))])
def test_a_factory_that_makes_something_else(made):
    grids.register("odd", lambda configuration, shape: made)
    with pytest.raises(GridError, match="plug-in for chunk grid 'odd' returned"):
        grids.from_json({"name": "odd"}, (4,))


def test_third_party_grids_are_combined():
    grid = GeometricGrid((10, 7), (1, 3))
    joined = grids.concatenate([grid, grid], axis=0)
    assert joined == grids.RectilinearGrid((20, 7), [[1, 2, 4, 3, 1, 2, 4, 8], [3, 6]])
    assert grid == GeometricGrid((10, 7), (1, 3))
    assert grid != grids.RectilinearGrid((10, 7), [[1, 2, 4, 8], [3, 6]])
    assert grid.has_same_cells(grids.RectilinearGrid((10, 7), [[1, 2, 4, 8], [3, 6]]))
