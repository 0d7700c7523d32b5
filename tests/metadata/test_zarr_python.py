"""Documents that zarr-python writes are read as it reads them, and it reads the ones we write."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest

from virtualzarr.metadata import (
    array_to_v2,
    array_to_v3,
    consolidated_to_v2,
    dumps_json,
    group_to_v3,
    loads_json,
    parse_array_v2,
    parse_array_v3,
    parse_consolidated_v2,
    parse_group_v3,
)
from virtualzarr.metadata.dtypes import vlen_kind

zarr = pytest.importorskip("zarr", minversion="3.0")
pytestmark = [
    pytest.mark.interop,
    pytest.mark.filterwarnings("ignore::zarr.errors.UnstableSpecificationWarning"),
    pytest.mark.filterwarnings("ignore::zarr.errors.ZarrUserWarning"),
]

NAN = float("nan")
CASES: list[tuple[Any, Any]] = [
    ("?", True),
    *((f"{kind}{size}", 0) for kind in "iu" for size in (1, 2, 4, 8)),
    ("i8", -(2**63)),
    ("u8", 2**64 - 1),
    (">i4", 7),
    *((f"{order}f{size}", value) for order in "<>" for size in (2, 4, 8) for value in (NAN, 0.1)),
    ("f8", -0.0),
    ("f4", math.inf),
    ("f2", -math.inf),
    ("c8", complex(NAN, -math.inf)),
    ("c16", 1 - 2j),
    (">c16", 1 - 2j),
    ("M8[10us]", np.datetime64("NaT")),
    ("<M8[ns]", np.datetime64(5, "ns")),
    ("m8[s]", np.timedelta64(5, "s")),
    ("S5", b"ab"),
    ("V3", b"abc"),
    ("<U4", "hé"),
    (">U4", "hé"),
    (str, "é"),
]
RECORD = np.dtype([("a", "<i4"), ("b", [("x", "S2"), ("y", "<f8")])])
MIXED = np.dtype([("a", "<i4"), ("b", ">f4")])


def create(zarr_format, dtype, **options):
    """Return the documents zarr-python writes for an array, and the array."""
    store = zarr.storage.MemoryStore()
    defaults = {"shape": (5, 3), "chunks": (2, 3), "attributes": {"a": [1, NAN]}}
    array = zarr.create_array(store, dtype=dtype, zarr_format=zarr_format, **defaults | options)
    return {key: loads_json(value.to_bytes()) for key, value in store._store_dict.items()}, array


def parse(documents):
    if "zarr.json" in documents:
        return parse_array_v3(documents["zarr.json"])
    return parse_array_v2(documents[".zarray"], documents[".zattrs"])


def write(metadata):
    """Return the array that zarr-python opens from the documents we write."""
    if metadata.zarr_format == 3:
        documents = {"zarr.json": array_to_v3(metadata)}
    else:
        documents = dict(zip((".zarray", ".zattrs"), array_to_v2(metadata), strict=True))
    raw = {k: zarr.core.buffer.cpu.Buffer.from_bytes(dumps_json(v)) for k, v in documents.items()}
    return documents, zarr.open_array(zarr.storage.MemoryStore(raw), mode="r")


def written_by(array):
    """Return the documents of an array as text: NaN does not equal NaN, but its text does."""
    prototype = zarr.core.buffer.default_buffer_prototype()
    documents = array.metadata.to_buffer_dict(prototype)
    return {key: value.to_bytes() for key, value in documents.items()}


def assert_same(metadata, array):
    assert metadata.shape == array.shape
    assert metadata.grid.chunk_shape == array.chunks
    kind = vlen_kind(metadata.dtype)
    if kind is None:
        assert metadata.dtype == array.dtype.newbyteorder("=") or metadata.dtype == array.dtype
    else:
        assert kind is (str if array.dtype.kind == "T" or array.dtype == object else bytes)
    expected = array.fill_value
    if metadata.fill_value is None or kind is not None:
        assert metadata.fill_value == expected
    else:
        expected = np.asarray(expected, metadata.dtype)
        assert np.asarray(metadata.fill_value, metadata.dtype).tobytes() == expected.tobytes()


@pytest.mark.parametrize("zarr_format", [2, 3])
@pytest.mark.parametrize(("dtype", "fill_value"), CASES, ids=str)
def test_both_directions(zarr_format, dtype, fill_value):
    documents, array = create(zarr_format, dtype, fill_value=fill_value)
    metadata = parse(documents)
    assert_same(metadata, array)
    ours, reopened = write(metadata)
    assert_same(metadata, reopened)
    assert written_by(reopened) == written_by(array)
    assert list(map(list, ours.values())) == [list(documents[key]) for key in ours]
    theirs = json.dumps({key: documents[key] for key in ours})
    # An empty configuration says nothing, but zarr-python writes it for vlen-utf8.
    assert json.dumps(ours) == theirs.replace(', "configuration": {}', "")


@pytest.mark.parametrize("dtype", [RECORD, MIXED], ids=str)
def test_records_of_v2(dtype):
    documents, array = create(2, dtype)
    metadata = parse(documents)
    assert_same(metadata, array)
    assert [metadata.dtype[name] for name in dtype.names] == [dtype[name] for name in dtype.names]
    assert json.dumps(array_to_v2(metadata)) == json.dumps(list(documents.values()))
    if dtype is MIXED:  # zarr-python up to 3.1 does not open the nested ones it writes
        assert written_by(write(metadata)[1]) == written_by(array)


def test_records_of_v3():
    documents, array = create(3, RECORD)
    metadata = parse(documents)
    assert_same(metadata, array)
    written = array_to_v3(metadata)
    assert written["data_type"]["name"] == "struct"
    assert parse_array_v3(written).dtype == RECORD
    if documents["zarr.json"]["data_type"]["name"] == "struct":  # zarr-python knows it from 3.2
        assert_same(metadata, write(metadata)[1])


@pytest.mark.parametrize("name", ["bytes", "variable_length_bytes"])
def test_variable_length_bytes(name):
    documents, _ = create(3, "i1")
    document = documents["zarr.json"] | {
        "data_type": name,
        "fill_value": "AQI=",
        "codecs": [{"name": "vlen-bytes", "configuration": {}}],
    }
    metadata = parse_array_v3(document)
    assert metadata.fill_value == b"\1\2"
    _, reopened = write(metadata)
    assert reopened.fill_value == b"\1\2"


@pytest.mark.parametrize("zarr_format", [2, 3])
@pytest.mark.parametrize("separator", "./")
def test_chunk_keys(zarr_format, separator):
    name = "default" if zarr_format == 3 else "v2"
    options = {"chunk_key_encoding": {"name": name, "separator": separator}}
    documents, array = create(zarr_format, "i4", **options)
    encoding = parse(documents).key_encoding
    cells = np.argwhere(np.ones((3, 1)))
    expected = [array.metadata.encode_chunk_key(tuple(map(int, cell))) for cell in cells]
    assert encoding.keys(cells) == expected


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_no_dimensions_and_no_elements(zarr_format):
    for shape in ((), (0, 3)):
        documents, array = create(zarr_format, "f4", shape=shape, chunks=shape and (1, 3))
        metadata = parse(documents)
        assert_same(metadata, array)
        assert written_by(write(metadata)[1]) == written_by(array)
        if not shape:
            assert metadata.key_encoding.key(()) == array.metadata.encode_chunk_key(())


def test_dimension_names():
    for names in (["y", "x"], ["y", None], ["x", "x"], None):
        documents, _ = create(3, "f4", dimension_names=names)
        metadata = parse(documents)
        assert metadata.dimension_names == (tuple(names) if names else None)
        assert array_to_v3(metadata).get("dimension_names") == names


def test_order_f():
    documents, array = create(2, "f4", order="F")
    metadata = parse(documents)
    assert written_by(write(metadata)[1]) == written_by(array)
    v3 = metadata.as_format(3)
    assert array_to_v3(v3)["codecs"][0] == {"name": "transpose", "configuration": {"order": [1, 0]}}
    assert write(v3)[1].metadata.codecs[0].order == (1, 0)


@pytest.mark.parametrize("bits", [0x7FC00001, 0xFFC00000, 0x80000000])
def test_zarr_python_reads_our_hexadecimal_floats(bits):
    documents, _ = create(3, "f4")
    value = np.uint32(bits).view("f4")
    fill = write(parse(documents).replace(fill_value=value))[1].fill_value
    assert fill.view("u4") == bits


def hierarchy(zarr_format):
    store = zarr.storage.MemoryStore()
    root = zarr.create_group(store, zarr_format=zarr_format, attributes={"a": math.inf})
    root.create_array("x", shape=(4,), chunks=(2,), dtype="f4", fill_value=NAN)
    root.create_group("g/h").create_array("y", shape=(), chunks=(), dtype="i2")
    zarr.consolidate_metadata(store)
    return store, root


def test_consolidated_v2():
    store, _ = hierarchy(2)
    consolidated = parse_consolidated_v2(loads_json(store._store_dict[".zmetadata"].to_bytes()))
    assert consolidated.skipped == {}
    assert set(consolidated.nodes) == {"", "x", "g", "g/h", "g/h/y"}
    raw = dumps_json(consolidated_to_v2(consolidated))
    ours = zarr.storage.MemoryStore(
        store._store_dict | {".zmetadata": zarr.core.buffer.cpu.Buffer.from_bytes(raw)}
    )
    reopened = zarr.open_consolidated(ours)
    assert set(reopened.metadata.consolidated_metadata.flattened_metadata) == {
        *("x", "g", "g/h", "g/h/y")
    }
    assert reopened["g/h/y"].dtype == np.int16
    assert reopened.attrs["a"] == math.inf


def test_consolidated_v3():
    store, _ = hierarchy(3)
    group = parse_group_v3(loads_json(store._store_dict["zarr.json"].to_bytes()))
    assert group.consolidated.skipped == {}
    assert set(group.consolidated.nodes) == {"x", "g", "g/h", "g/h/y"}
    raw = zarr.core.buffer.cpu.Buffer.from_bytes(dumps_json(group_to_v3(group)))
    reopened = zarr.open_group(zarr.storage.MemoryStore({"zarr.json": raw}), mode="r")
    assert reopened["g/h/y"].dtype == np.int16
    assert np.isnan(reopened["x"].fill_value)
