"""What the elements are."""

from __future__ import annotations

import h5py
import numpy as np
import pytest

from tests.formats.hdf5.helpers import assert_same, low_level, scan_all
from virtualzarr.config import config
from virtualzarr.errors import SkippedVariableWarning, UnsupportedError
from virtualzarr.formats.hdf5 import scan

PLAIN = [f"{order}{kind}{size}" for order in "<>" for kind in "iu" for size in (1, 2, 4, 8)]
PLAIN += [f"{order}f{size}" for order in "<>" for size in (2, 4, 8)]
PAIR = np.dtype([("a", ">i4"), ("b", "S3")])
PLAIN += ["<c8", ">c8", "<c16", ">c16", "?", "S1", "S7", "V3"]


@pytest.mark.parametrize("dtype", PLAIN)
@pytest.mark.parametrize("chunks", [None, (2, 3)])
def test_plain_types_bit_for_bit(tmp_path, dtype, chunks):
    path = tmp_path / "a.h5"
    dtype = np.dtype(dtype)
    raw = np.random.default_rng(0).bytes(20 * dtype.itemsize)  # NaNs of all kinds among them
    data = np.frombuffer(raw, dtype).reshape(4, 5)
    if dtype.kind == "b":
        data = np.frombuffer(raw, "u1").reshape(4, 5) > 127
    with h5py.File(path, "w") as file:
        file.create_dataset("x", data=data, chunks=chunks)
    array = assert_same(path)["x"]
    assert array.dtype == dtype.newbyteorder("=")


def test_fill_values_of_all_types(tmp_path):
    path = tmp_path / "a.h5"
    fills = {
        "i": (">i4", -3), "f": (">f8", np.nan), "c": ("<c8", 1 - 2j), "b": ("?", True),
        "s": ("S4", b"ab"), "h": ("<f2", 0.1),
        "st": (PAIR, np.array((5, b"abc"), PAIR)),
    }  # fmt: skip
    with h5py.File(path, "w") as file:
        for name, (dtype, fill) in fills.items():
            file.create_dataset(name, (3,), dtype, fillvalue=fill, chunks=(2,))
    assert_same(path)


@pytest.mark.parametrize(
    "padding", [h5py.h5t.STR_NULLTERM, h5py.h5t.STR_NULLPAD, h5py.h5t.STR_SPACEPAD]
)
@pytest.mark.parametrize("chunk", [{}, {"chunk": ((3,),), "deflate": 1}])
def test_string_paddings(tmp_path, padding, chunk):
    path = tmp_path / "a.h5"
    texts = [b"ab\0cd  x", b"\0bcdefgh", b"abcdefgh", b" a  \0\0  ", b"        ", b"\0" * 8]
    tid = h5py.h5t.C_S1.copy()
    tid.set_size(8)
    tid.set_strpad(padding)
    with h5py.File(path, "w") as file:
        dataset = low_level(file, "x", (6,), tid, **chunk)
        dataset.id.write(h5py.h5s.ALL, h5py.h5s.ALL, np.array(texts, "S8"), mtype=tid)
    assert_same(path)


@pytest.mark.parametrize("padding", [h5py.h5t.STR_NULLTERM, h5py.h5t.STR_SPACEPAD])
@pytest.mark.parametrize("chunk", [{}, {"chunk": ((3,),), "deflate": 1}])
@pytest.mark.parametrize("clean", [True, False])
def test_small_datasets_of_clean_strings_need_no_codec(
    tmp_path, padding, chunk, clean, monkeypatch
):
    path = tmp_path / "a.h5"
    tid = h5py.h5t.C_S1.copy()
    tid.set_size(4)
    tid.set_strpad(padding)
    dirty = b"ab\0c" if padding == h5py.h5t.STR_NULLTERM else b"ab  "
    values = np.array([b"ab", b"abcd", b"ab" if clean else dirty, b""], "S4")
    with h5py.File(path, "w") as file:
        stored = low_level(file, "x", (4,), tid, **chunk)
        stored.id.write(h5py.h5s.ALL, h5py.h5s.ALL, values, mtype=tid)
    names = [codec.name for codec in assert_same(path)["x"].metadata.pipeline.codecs]
    assert ("virtualzarr.strings" in names) == (not clean)
    monkeypatch.setattr(config.tuning, "hdf5_checked_string_bytes", 15)
    names = [codec.name for codec in assert_same(path)["x"].metadata.pipeline.codecs]
    assert "virtualzarr.strings" in names


def test_padded_strings_inside_other_types(tmp_path):
    path = tmp_path / "a.h5"
    text = h5py.h5t.C_S1.copy()
    text.set_size(4)
    compound = h5py.h5t.create(h5py.h5t.COMPOUND, 30)
    compound.insert(b"number", 2, h5py.h5t.STD_I16BE)
    compound.insert(b"texts", 6, h5py.h5t.array_create(text, (2, 2)))
    compound.insert(b"text", 24, text)
    array = h5py.h5t.array_create(text, (3,))
    raw = np.frombuffer(np.random.default_rng(0).bytes(60).replace(b"a", b"\0"), "u1")
    with h5py.File(path, "w") as file:
        stored = low_level(file, "compound", (2,), compound)
        stored.id.write(h5py.h5s.ALL, h5py.h5s.ALL, raw.copy(), mtype=compound)
        stored = low_level(file, "array", (5,), array)
        stored.id.write(h5py.h5s.ALL, h5py.h5s.ALL, raw.copy(), mtype=array)
    assert_same(path)


COMPOUNDS = {
    "packed": np.dtype([("a", "<i4"), ("b", "<f8")]),
    "big": np.dtype([("a", ">i4"), ("b", ">f8")]),
    "mixed": np.dtype([("a", ">i4"), ("b", "<f8"), ("c", "u1")]),
    "padded": np.dtype(
        {"names": ["a", "b"], "formats": ["<i2", "S5"], "offsets": [4, 10], "itemsize": 24}
    ),
    "aligned": np.dtype([("a", "u1"), ("b", "<f8")], align=True),
    "nested": np.dtype([("a", [("x", "<f4"), ("y", ">u2")]), ("b", "<i4", (2, 3))]),
    "complex inside": np.dtype([("z", "<c8"), ("flag", "?")]),
}


@pytest.mark.parametrize("name", COMPOUNDS)
@pytest.mark.parametrize("options", [{}, {"chunks": (2,), "compression": "gzip", "shuffle": True}])
def test_compounds(tmp_path, name, options):
    path = tmp_path / "a.h5"
    dtype = COMPOUNDS[name]
    raw = bytearray(np.random.default_rng(0).bytes(5 * dtype.itemsize))
    data = np.frombuffer(raw, dtype).copy()
    if "flag" in dtype.names:
        data["flag"] = [True, False, True, True, False]
    with h5py.File(path, "w") as file:
        file.create_dataset("x", data=data, **options)
    assert_same(path)


def test_complex_numbers_with_padding(tmp_path):
    path = tmp_path / "a.h5"
    compound = h5py.h5t.create(h5py.h5t.COMPOUND, 16)
    compound.insert(b"r", 0, h5py.h5t.IEEE_F32LE)
    compound.insert(b"i", 8, h5py.h5t.IEEE_F32LE)
    with h5py.File(path, "w") as file:
        low_level(file, "x", (2,), compound)[...] = [1 + 2j, 3 - 4j]
    assert_same(path)


def test_native_complex_numbers(tmp_path):
    if not hasattr(h5py.h5t, "COMPLEX_IEEE_F32LE"):
        pytest.skip("HDF5 before 2.0 has no complex numbers")
    path = tmp_path / "a.h5"
    with h5py.File(path, "w", libver="latest") as file:
        for name in ("F32LE", "F64BE"):
            stored = low_level(file, name, (3,), getattr(h5py.h5t, f"COMPLEX_IEEE_{name}"))
            stored[...] = [1 + 2j, -3j, 4]
    assert_same(path)


def test_array_types_are_further_axes(tmp_path):
    path = tmp_path / "a.h5"
    inner = h5py.h5t.array_create(h5py.h5t.STD_I16BE, (2, 3))
    outer = h5py.h5t.array_create(inner, (4,))
    data = np.arange(5 * 24, dtype=">i2").reshape(5, 4, 2, 3)
    with h5py.File(path, "w") as file:
        stored = low_level(file, "contiguous", (5,), outer)
        stored.id.write(h5py.h5s.ALL, h5py.h5s.ALL, data, mtype=outer)
        stored = low_level(file, "chunked", (5,), outer, chunk=((2,),), deflate=1)
        stored.id.write(h5py.h5s.ALL, h5py.h5s.ALL, data, mtype=outer)
        low_level(file, "missing", (5,), outer, chunk=((2,),))
    group = assert_same(path)
    assert group["chunked"].shape == (5, 4, 2, 3)
    assert group["chunked"].chunks == (2, 4, 2, 3)


def test_enumerations(tmp_path):
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        kinds = h5py.enum_dtype({"land": 1, "open sea": 2, "ice": 7}, "u1")
        file.create_dataset("x", data=np.array([1, 2, 7, 2], "u1"), dtype=kinds)
        file.create_dataset("flags", data=[True, False])
        wide = h5py.enum_dtype({"FALSE": 0, "TRUE": 1}, "i4")
        file.create_dataset("wide", data=np.array([0, 1], "i4"), dtype=wide)
    group = scan_all(path)
    assert group["x"][...].tolist() == [1, 2, 7, 2]
    assert group["x"].dtype == np.uint8
    assert group["x"].attrs == {"flag_values": [1, 2, 7], "flag_meanings": "land open_sea ice"}
    assert group["flags"].dtype == bool
    assert group["flags"][...].tolist() == [True, False]
    assert group["flags"].attrs == {}
    assert group["wide"][...].tolist() == [0, 1]


def test_opaque_and_bitfields(tmp_path):
    path = tmp_path / "a.h5"
    times = np.array(["2000-01-01", "NaT", "1970-01-01T00:00:01"], "M8[ns]")
    with h5py.File(path, "w") as file:
        file["times"] = times.astype(h5py.opaque_dtype(times.dtype))
        file["steps"] = np.array([1, -5], "m8[s]").astype(h5py.opaque_dtype(np.dtype("m8[s]")))
        file["raw"] = np.frombuffer(b"abcdef", "V3")
        stored = low_level(file, "bits", (3,), h5py.h5t.STD_B16LE)
        stored.id.write(
            h5py.h5s.ALL, h5py.h5s.ALL, np.array([1, 2, 3], "<u2"), stored.id.get_type()
        )
    group = assert_same(path)
    assert group["times"].dtype == times.dtype
    assert group["bits"].dtype == np.uint16


def test_variable_length_strings_are_copied(tmp_path):
    path = tmp_path / "a.h5"
    texts = np.array([["a", "", "grün"], ["日本", "x" * 5000, "é"]], object)
    with h5py.File(path, "w") as file:
        file.create_dataset("x", data=texts, dtype=h5py.string_dtype())
        file.create_dataset(
            "z", data=texts, dtype=h5py.string_dtype(), chunks=(1, 2), compression=1
        )
        file.create_dataset("scalar", data="one")
        file.create_dataset("never", (3,), h5py.string_dtype(), chunks=(1,))
    group = assert_same(path)
    assert group["x"][1, 0] == "日本"
    assert group["x"].manifest.sources[0].is_inline


def test_variable_length_bytes_that_are_no_text_are_refused(tmp_path):
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        file.create_dataset("x", data=[b"\xff\xfe"], dtype=h5py.string_dtype("ascii"))
    with pytest.raises(UnsupportedError, match="not UTF-8"):
        scan(path)


def test_times_are_refused_by_name(tmp_path):
    path = tmp_path / "a.h5"
    inside = h5py.h5t.create(h5py.h5t.COMPOUND, 8)
    inside.insert(b"when", 0, h5py.h5t.UNIX_D32LE)
    with h5py.File(path, "w") as file:
        low_level(file, "x", (2,), h5py.h5t.UNIX_D32LE)
        low_level(file, "y", (2,), inside)
        file["good"] = [1, 2]
    with pytest.warns(SkippedVariableWarning, match="times"):
        group = scan(path, on_error="warn")
    assert list(group) == ["good"]
    assert_same(path, group)
