"""Data types of other packages."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import sys

import numpy as np
import pytest

import virtualzarr as vz
from tests.metadata.helpers import zarr_json, zarray
from virtualzarr.errors import MetadataError, UnsupportedError
from virtualzarr.metadata import (
    DataType,
    array_to_v2,
    array_to_v3,
    dtype_from_v2,
    dtype_from_v3,
    dtype_to_v2,
    dtype_to_v3,
    dtypes_plugins,
    parse_array_v2,
    parse_array_v3,
    register_data_type,
)


def fixed_dtype(digits):
    return np.dtype("i8", metadata={"fixed": digits})


FIXED = DataType(
    "fixed_point",
    parse=lambda configuration: fixed_dtype(configuration["digits"]),
    describe=lambda dtype: (
        {"digits": dtype.metadata["fixed"]} if "fixed" in (dtype.metadata or {}) else None
    ),
    fill_from_json=lambda value, dtype: np.int64(
        round(float(value) * 10 ** dtype.metadata["fixed"])
    ),
    fill_to_json=lambda value, dtype: str(int(value) / 10 ** dtype.metadata["fixed"]),
)
DOCUMENT = {"name": "fixed_point", "configuration": {"digits": 2}}


@pytest.fixture(autouse=True)
def known(monkeypatch):
    """Let tests register data types without a trace."""
    monkeypatch.setattr(dtypes_plugins, "_registered", {})
    monkeypatch.setattr(dtypes_plugins, "_is_pending", True)


@pytest.fixture
def entry_point(tmp_path, monkeypatch):
    """Return a function that installs a distribution with an entry point for a data type."""

    def install(name, target):
        folder = tmp_path / "plugin-1.0.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: plugin\nVersion: 1.0\n")
        text = f"[{dtypes_plugins.ENTRY_POINTS}]\n{name} = {target}\n"
        (folder / "entry_points.txt").write_text(text)
        monkeypatch.syspath_prepend(str(tmp_path))
        importlib.invalidate_caches()

    return install


def check():
    document = zarr_json(data_type=DOCUMENT, fill_value="1.25")
    metadata = parse_array_v3(document)
    assert metadata.dtype == np.dtype("i8")
    assert metadata.fill_value == 125
    assert array_to_v3(metadata)["data_type"] == DOCUMENT
    assert array_to_v3(metadata)["fill_value"] == "1.25"
    block = np.array([[1, 2], [3, 4]])
    codec = metadata.pipeline.for_block((2, 2), metadata.dtype)
    assert codec.decode(codec.encode(block)).tolist() == block.tolist()


def test_a_registered_data_type():
    with pytest.raises(UnsupportedError, match=r"'fixed_point'; .*register_data_type can add it"):
        dtype_from_v3(DOCUMENT)
    register_data_type(FIXED)
    check()
    assert dtype_to_v3(np.dtype("i8")) == "int64"


def test_a_data_type_from_an_entry_point(entry_point, monkeypatch):
    entry_point("fixed_point", f"{__name__}:FIXED")
    monkeypatch.setitem(sys.modules, __name__, sys.modules[__name__])
    check()


def test_a_dtype_finds_its_entry_point(entry_point, monkeypatch):
    entry_point("fixed_point", f"{__name__}:FIXED")
    monkeypatch.setitem(sys.modules, __name__, sys.modules[__name__])
    assert dtype_to_v3(fixed_dtype(3)) == {"name": "fixed_point", "configuration": {"digits": 3}}


def test_known_data_types_do_not_look_for_entry_points(monkeypatch):
    def refuse(**_):
        raise AssertionError("looked for entry points")

    monkeypatch.setattr(importlib.metadata, "entry_points", refuse)
    assert dtype_to_v3(dtype_from_v3("float32")) == "float32"


CENTS = DataType(
    "cents",
    parse=lambda configuration: np.dtype(">i4", metadata={"cents": True}),
    describe=lambda dtype: {} if "cents" in (dtype.metadata or {}) else None,
    fill_from_json=lambda value, dtype: np.int32(round(value * 100)),
    fill_to_json=lambda value, dtype: int(value) / 100,
    v2=True,
)


@pytest.mark.parametrize("way", ["registered", "entry point"])
def test_a_data_type_of_v2(way, entry_point, monkeypatch):
    document = zarray(dtype="cents", fill_value=1.25)
    with pytest.raises(MetadataError, match="'cents' is no v2 data type"):
        parse_array_v2(document)
    if way == "registered":
        register_data_type(CENTS)
    else:
        entry_point("cents", f"{__name__}:CENTS")
        monkeypatch.setitem(sys.modules, __name__, sys.modules[__name__])
    metadata = parse_array_v2(document)
    assert metadata.dtype == np.dtype("i4")
    assert metadata.fill_value == 125
    written = array_to_v2(metadata)[0]
    assert (written["dtype"], written["fill_value"]) == ("cents", 1.25)
    array = vz.create_array({}, shape=3, dtype=metadata.dtype, zarr_format=2, compressors=None)
    array[...] = [1, 2, 3]
    store = array.chunk_source.store
    assert store.get("0") == np.array([1, 2, 3], "<i4").tobytes()
    assert CENTS.describe(vz.open(store).dtype) == {}


def test_a_data_type_that_v2_does_not_have(monkeypatch):
    register_data_type(FIXED)
    with pytest.raises(MetadataError, match="'fixed_point' is no v2 data type"):
        dtype_from_v2("fixed_point")
    assert dtype_to_v2(fixed_dtype(2)) == "<i8"
    register_data_type(dataclasses.replace(FIXED, v2=True))
    with pytest.raises(UnsupportedError, match="fixed_point has no configuration in v2"):
        dtype_to_v2(fixed_dtype(2))


@pytest.mark.parametrize("target", ["no_such_module:FIXED", "json:loads"])
def test_an_entry_point_that_is_no_data_type(entry_point, target):
    entry_point("fixed_point", target)
    with pytest.raises(MetadataError, match="plug-in for data type 'fixed_point'"):
        dtype_from_v3(DOCUMENT)
