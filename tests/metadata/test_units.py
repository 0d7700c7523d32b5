"""Units of dimensions: as TensorStore reads and writes them, and with the axes they belong to."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import virtualzarr as vz
from virtualzarr.errors import MetadataError, MismatchError
from virtualzarr.metadata.dimension_units import format_unit

UNITS = ["nm", "4nm", [4, "nm"], " 4  nm", "1e3nm", "0.5", "", [1, ""], "-2 s", [0.1, "nm/px"], 3]
UNITS += [None, [1e30, "m"], [1000000.0, "m"], [np.float32(0.5), "m"]]


@pytest.mark.parametrize("unit", UNITS, ids=repr)
def test_units_are_written_as_tensorstore_does(unit: Any, tmp_path: Any) -> None:
    ts = pytest.importorskip("tensorstore")
    ours = vz.create_array(tmp_path / "a", shape=(4,), dtype="u1", dimension_units=[unit])
    (text,) = ours.dimension_units
    spec = {"driver": "zarr3", "kvstore": {"driver": "file", "path": f"{tmp_path}/a/"}}
    (read,) = ts.open(spec).result().dimension_units
    spec["kvstore"] = {"driver": "file", "path": f"{tmp_path}/b/"}
    given = tuple(unit) if isinstance(unit, list) else unit
    theirs = ts.open(spec, create=True, dtype=ts.uint8, shape=[4], dimension_units=[given]).result()
    assert read == theirs.dimension_units[0]
    assert vz.open(tmp_path / "b").dimension_units == (text,)


def test_long_numbers_are_not_cut() -> None:
    assert format_unit((0.123456789, "nm")) == "0.123456789 nm"
    assert float((format_unit((0.1 + 0.2, "m")) or "").split()[0]) == 0.1 + 0.2


@pytest.mark.parametrize("unit", [True, [1, 2], {}, ["a", "b"], ["4", "nm"]])
def test_what_is_no_unit_is_refused(unit: Any) -> None:
    with pytest.raises(MetadataError, match="a unit is text"):
        vz.create_array({}, shape=(4,), dtype="u1", dimension_units=[unit])


@pytest.mark.parametrize("stored", ["nm", ["nm"], [1, 2], None])
def test_stored_units_must_be_one_for_each_dimension(stored: Any) -> None:
    array = vz.create_array({}, shape=(2, 3), dtype="u1", attributes={"dimension_units": stored})
    with pytest.raises(MetadataError, match="dimension_units"):
        _ = array.dimension_units


def test_units_are_a_constraint(tmp_path: Any) -> None:
    vz.create_array(tmp_path, shape=(2,), dtype="u1", dimension_units=["4 nm"])
    assert vz.open_array(tmp_path, dimension_units=["4nm"]).dimension_units == ("4 nm",)
    with pytest.raises(MismatchError, match="dimension_units"):
        vz.open_array(tmp_path, dimension_units=["5 nm"])


def test_units_go_with_their_axes() -> None:
    array = vz.create_array({}, shape=(2, 3), dtype="u1", dimension_units=["s", "4 nm"])
    assert vz.create_array({}, shape=(2, 3), dtype="u1").dimension_units == (None, None)
    assert array.lazy.transpose().dimension_units == ("4 nm", "s")
    assert array.lazy[0].dimension_units == ("4 nm",)
    assert array.lazy[:, None].dimension_units == ("s", None, "4 nm")
    assert array.lazy.expand_dims(2).dimension_units == ("s", "4 nm", None)
    assert vz.stack([array, array], axis=1).dimension_units == ("s", None, "4 nm")
    assert vz.concat([array, array]).dimension_units == ("s", "4 nm")
    other = vz.create_array({}, shape=(2, 3), dtype="u1", dimension_units=["s", "5 nm"])
    with pytest.raises(MismatchError, match="dimension_units"):
        vz.concat([array, other])
