"""Documents: the vectors of the specification, round trips, and hostile input."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given

import grids
from grids import GridError, RectilinearGrid, RegularGrid
from tests.grids.brute import expanded, separable, traced

SPECS = Path(__file__).parents[2] / "specs"
VECTORS = json.loads((SPECS / "vectors" / "rectilinear-grid.json").read_text())


def described(vector):
    return vector.get("description") or vector["reason"]


@pytest.mark.parametrize("vector", VECTORS["valid"], ids=described)
def test_valid_documents(vector):
    grid = grids.from_json(vector["chunk_grid"], vector["shape"])
    assert grid.shape == tuple(vector["shape"])
    assert grid.grid_shape == tuple(vector["grid_shape"])
    if vector["edges"] is not None:
        assert [expanded(axis) for axis in grid.axes] == vector["edges"]
    assert grid.to_json() == vector["written"]
    assert grids.from_json(vector["written"], vector["shape"]) == grid


@pytest.mark.parametrize("vector", VECTORS["invalid"], ids=described)
def test_invalid_documents(vector):
    with pytest.raises(GridError):
        grids.from_json(vector["chunk_grid"], vector["shape"])


@pytest.mark.parametrize("vector", VECTORS["resized"], ids=described)
def test_resized_documents(vector):
    grid = grids.from_json(vector["chunk_grid"], vector["shape"]).resize(vector["new_shape"])
    assert grid.to_json() == vector["written"]


def test_the_schema_tells_well_formed_documents():
    jsonschema = pytest.importorskip("jsonschema")
    schema = json.loads((SPECS / "rectilinear-grid.schema.json").read_text())
    jsonschema.Draft202012Validator.check_schema(schema)
    validator = jsonschema.Draft202012Validator(schema)
    for vector in VECTORS["valid"]:
        if vector["chunk_grid"]["name"] == "rectilinear":
            assert validator.is_valid(vector["chunk_grid"]), described(vector)
    for vector in VECTORS["invalid"]:
        assert validator.is_valid(vector["chunk_grid"]) == vector["form"], described(vector)


@given(separable())
def test_round_trip(grid):
    document = json.loads(json.dumps(grid.to_json()))
    again = grids.from_json(document, grid.shape)
    assert again == grid
    assert type(again) is type(grid)
    assert again.to_json() == document


@given(separable(min_axes=1))
def test_no_other_mixture_of_runs_and_edges_is_shorter(grid):
    """Runs do not interact, so it is enough to try both forms of each."""
    if grid.is_regular:
        return
    for axis, written in zip(
        grid.axes, grid.to_json()["configuration"]["chunk_shapes"], strict=True
    ):
        if axis.regular:
            continue
        best = 0
        for edge, count in zip(axis.edges.tolist(), axis.counts.tolist(), strict=True):
            plain = json.dumps([edge] * count, separators=(",", ":"))[1:-1]
            run = json.dumps([edge, count], separators=(",", ":"))
            best += min(len(plain), len(run))
        commas_and_brackets = max(len(axis.edges) - 1, 0) + 2
        assert len(json.dumps(written, separators=(",", ":"))) == best + commas_and_brackets


def test_written_documents_hold_plain_numbers():
    grid = RectilinearGrid(np.array([4, 6]), [np.array([1, 3]), np.int32(5)])
    text = json.dumps(grid.to_json())
    assert text == (
        '{"name": "rectilinear", "configuration": {"kind": "inline", "chunk_shapes": [[1, 3], 5]}}'
    )
    regular = RegularGrid(np.array([4, 6]), (np.uint8(2), np.int64(3)))
    assert json.dumps(regular.to_json()["configuration"]) == '{"chunk_shape": [2, 3]}'


@pytest.mark.parametrize(
    ("entry", "where"),
    [([4, 0], "axis 1"), ([4], "axis 1"), (True, "axis 1"), ([[4, 1, 1]], r"\[length, count\]")],
)
def test_errors_name_the_axis(entry, where):
    with pytest.raises(GridError, match=where):
        RectilinearGrid((5, 5), [5, entry])
    with pytest.raises(GridError, match="chunk_shape, axis 1"):
        RegularGrid((5, 5), (5, entry))


HOSTILE = [
    [10**18, 10**18],
    [[1, 10**18], [10**18, 10**18]],
    [[[1] * 100_000, 1]],
    ["x" * 100_000],
    [[1, 1, *range(100_000)]],
    [{str(i): i for i in range(50_000)}],
]


@pytest.mark.parametrize("entry", HOSTILE, ids=range(len(HOSTILE)))
def test_hostile_documents_cost_nothing(entry):
    document = {
        "name": "rectilinear",
        "configuration": {"kind": "inline", "chunk_shapes": [[entry]]},
    }

    def skipped():
        with pytest.raises(GridError) as error:
            grids.from_json(document, (7,))
        return error

    error, peak = traced(skipped)
    assert len(str(error.value)) < 500
    assert peak < 200_000


def test_a_billion_cells_are_read_and_written_as_runs():
    document = {
        "name": "rectilinear",
        "configuration": {"kind": "inline", "chunk_shapes": [[[1, 10**9]], [[2, 10**9]]]},
    }
    grid = grids.from_json(document, (10**9, 2 * 10**9))
    assert grid.ncells == 10**18
    assert grid.to_json() == document
    with pytest.raises(GridError, match="too many to list"):
        _ = grid.chunks


def test_bad_collections():
    for shapes in ("55", {5, 6}, {5: 6}, 5, None):
        with pytest.raises(GridError, match="must be a list"):
            RegularGrid((5, 5), shapes)
        with pytest.raises(GridError, match="must be a list"):
            RectilinearGrid((5, 5), shapes)
        with pytest.raises(GridError, match="must be a list"):
            RegularGrid(shapes, (5, 5))
    with pytest.raises(GridError, match="extent of axis 1 must be an integer, not nan"):
        RegularGrid((5, math.nan), (5, 5))
