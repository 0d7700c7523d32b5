"""Elements of every kind, written, appended, resized and read again: to the bit as in numpy."""

from __future__ import annotations

import numpy as np
import pytest

import virtualzarr as vz
from virtualzarr.errors import ChunkNotFoundError, UnsupportedError
from virtualzarr.stores import MemoryStore

ml_dtypes = pytest.importorskip("ml_dtypes")
RECORD = np.dtype([("a", "<f4"), ("b", "<i2"), ("c", [("d", "u1"), ("t", "<M8[s]")])])
RECORD_V2 = np.dtype([("a", ">f4"), ("b", "<i2", (2,)), ("c", [("d", "u1"), ("t", ">M8[s]")], 2)])


def bits(dtype, *values):
    """Return elements of a dtype with given bits."""
    dtype = np.dtype(dtype)
    return np.array(values, f"u{dtype.itemsize}").view(dtype)


# For each name: a dtype, and elements of which the first is the fill value.
ELEMENTS = {
    "bool": np.array([True, False]),
    "u8": np.array([2**64 - 1, 0, 2**63], "u8"),
    "i8": np.array([-(2**63), 0, 2**63 - 1], "i8"),
    "f2": bits("f2", 0x7E01, 0x7E00, 0xFE01, 0, 0x8000),
    "f4": bits("f4", 0x7FC00001, 0x7FC00000, 0xFFC00001, 0x7F800000, 0),
    "f8": bits("f8", 1 << 63, 0, 0x7FF0000000000000, 0x7FF8000000000000),
    "c8": bits("f4", 0x7FC00001, 1 << 31, 0x7FC00000, 1 << 31, 0x7FC00001, 0).view("c8"),
    "c16": np.array([complex("nan-infj"), 0j, -0j, complex("nan+infj")]),
    "S3": np.array([b"ab", b"abc", b"", b"a"], "S3"),
    "U3": np.array(["äb", "äbc", "", "\U0001f600"], "U3"),
    "V3": np.array([b"\x01\0\xff", b"\0\0\0", b"\x01\0\xfe"], "V3"),
    "M8": np.array(["NaT", 0, -(2**63) + 1, 5], "M8[10us]"),
    "M8 not NaT": np.array([7, "NaT", 0], "M8[ns]"),
    "m8": np.array(["NaT", 0, 77], "m8[25s]"),
    "record": np.array([(-0.0, 1, (2, "NaT")), (0.0, 1, (2, "NaT")), (np.nan, 0, (0, 0))], RECORD),
    "record-v2": np.frombuffer(bytes(range(26 * 3)), RECORD_V2),
    "str": np.array(["fill", "", "other", "more\0"], object),
    "bytes": np.array([b"\0", b"", b"other", b"\0\0"], object),
    "bfloat16": bits(ml_dtypes.bfloat16, 0x7FC1, 0x7FC0, 0x8000, 0),
    "float8_e5m2": bits(ml_dtypes.float8_e5m2, 0x7F, 0x7E, 0x80, 0),
    "int4": np.array([-8, 0, 7], ml_dtypes.int4),
}
LAYOUTS = {
    "v3": {"chunks": (2, 3)},
    "v2": {"chunks": (2, 3), "zarr_format": 2, "dimension_separator": "."},
    "uneven": {"chunks": [[1, 3, 1], [2, 4]]},
    "sharded": {"chunks": (2, 2), "shards": (4, 4)},
    "F": {"chunks": (2, 3), "order": "F"},
}
V3_ONLY_PAYLOADS = ("f2", "f4", "c8", "bfloat16", "float8_e5m2")


CASES = [(n, k) for n in ELEMENTS for k in LAYOUTS if n != "record-v2" or k == "v2"]


def same(got, want):
    """Whether arrays are equal to the bit."""
    assert got.shape == want.shape
    if want.dtype.hasobject:
        assert got.tolist() == want.tolist()
    else:
        assert got.dtype == (want.dtype if want.dtype.names else want.dtype.newbyteorder("="))
        assert got.astype(want.dtype).tobytes() == want.tobytes()


def full(shape, fill, dtype):
    """Do what `numpy.full` does, which cuts zeros off text and bytes that are objects."""
    result = np.empty(shape, dtype)
    result.reshape(-1)[:] = [fill] * result.size if dtype.hasobject else fill
    return result


def is_fill(part, fill):
    """Whether all of an array is the fill value, to the bit."""
    if part.dtype.hasobject:
        return all(item == fill for item in part.ravel())
    return part.tobytes() == full(part.shape, fill, part.dtype).tobytes()


def make(name, layout, **options):
    elements = ELEMENTS[name]
    dtype = {"str": str, "bytes": bytes}.get(name, elements.dtype)
    fill = elements[0]
    if layout == "v2" and name in V3_ONLY_PAYLOADS:
        fill = elements[1]  # v2 has no form for other NaN
    return vz.create_array(
        MemoryStore(), shape=(5, 6), dtype=dtype, fill_value=fill, **LAYOUTS[layout], **options
    ), full((5, 6), fill, elements.dtype)


def check(array, model):
    """Check the elements, again when opened anew, and that nothing but fill is not stored."""
    same(array[...], model)
    again = vz.open_array(array.chunk_source.store, mode="r")
    same(again[...], model)
    fill = array.fill_value
    same(full(1, again.fill_value, model.dtype), full(1, fill, model.dtype))
    there = array.chunk_exists()
    for cell in np.ndindex(there.shape):
        corner, extent = array.grid.cell_origin(cell), array.grid.cell_extent(cell)
        part = model[tuple(slice(i, i + n) for i, n in zip(corner, extent, strict=True))]
        assert there[cell] == (not is_fill(part, fill))


@pytest.mark.parametrize(("name", "layout"), CASES)
def test_elements(name, layout):
    rng = np.random.default_rng([*(name + layout).encode()])
    elements = ELEMENTS[name]
    array, model = make(name, layout)

    def some(shape):
        chosen = elements[: rng.integers(1, len(elements) + 1)]
        return chosen[rng.integers(0, len(chosen), shape)]

    check(array, model)
    for _ in range(8):
        rows, columns = sorted(rng.integers(0, 6, 2)), sorted(rng.integers(0, 7, 2))
        place = slice(*rows), slice(*columns)
        array[place] = model[place] = some(model[place].shape)
        points = rng.integers(0, 5, 3), rng.integers(0, 6, 3)
        array.vindex[points] = model[points] = some(())
        picked = np.unique(points[0]), np.unique(points[1])
        value = some((len(picked[0]), 1))
        array.oindex[picked] = value
        model[np.ix_(*picked)] = value
        check(array, model)
        mask = rng.random(model.shape) < 0.5
        array[mask] = model[mask] = some(())
        array[1, ::-2] = model[1, ::-2] = elements[0]
        check(array, model)
    more = some((3, 6))
    array.append(more)
    model = np.concatenate([model, more], dtype=model.dtype)
    check(array, model)
    array.resize((4, 5))
    array.resize((6, 7))
    cut, model = model, full((6, 7), array.fill_value, model.dtype)
    model[:4, :5] = cut[:4, :5]
    check(array, model)


@pytest.mark.parametrize(("name", "layout"), CASES)
def test_chunks_of_fill(name, layout):
    """Stored when that is asked for, and only then missing ones are what was never written."""
    array, model = make(name, layout, write_empty_chunks=True, fill_missing=False)
    with pytest.raises(ChunkNotFoundError):
        array[0, 0]
    array[:2] = model[0, 0]
    same(array[:1], model[:1])
    with pytest.raises(ChunkNotFoundError):
        array[...]
    assert array.chunk_exists()[0].all()
    assert not array.chunk_exists()[-1].any()
    array[3, 4] = ELEMENTS[name][-1]
    model[3, 4] = ELEMENTS[name][-1]
    same(array[3:4, 4:5], model[3:4, 4:5])
    filled = vz.open_array(array.chunk_source.store, mode="r+")
    same(filled[...], model)
    filled[...] = model[0, 0]
    assert not filled.chunk_exists().any()


@pytest.mark.parametrize(
    ("codec", "elements"),
    [
        ({"id": "json2"}, [{"a": [1, None]}, [1, 2], "text", 1.5, None]),
        ({"id": "msgpack2"}, [{"a": [1, None]}, [1, 2], "text", b"\0", None]),
        ({"id": "vlen-array", "dtype": "<i4"}, [np.arange(n, dtype="i4") for n in (2, 0, 1, 3, 2)]),
    ],
    ids=["json2", "msgpack2", "vlen-array"],
)
def test_objects_of_v2(codec, elements):
    """Made with the codec as a filter; an element may be a list, which is not spread."""
    if codec["id"] == "msgpack2":
        pytest.importorskip("msgpack")
    values = np.empty(5, object)
    values[:] = elements
    array = vz.create_array(
        {}, shape=5, chunks=2, dtype=object, filters=[codec], fill_value=None, zarr_format=2
    )
    array[...] = values
    array[1:4] = values[1:4][::-1]
    values[1:4] = values[1:4][::-1].copy()
    for found in (array, vz.open(array.chunk_source.store)):
        for got, want in zip(found[...].tolist(), values.tolist(), strict=True):
            assert type(got) is type(want)
            assert np.array_equal(got, want) if isinstance(want, np.ndarray) else got == want
    with pytest.raises(UnsupportedError, match="Python objects"):
        vz.create_array({}, shape=5, dtype=object, zarr_format=2)
