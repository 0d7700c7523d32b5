"""Types whose stored bytes are no elements of numpy: the HDF5 library converts them."""

from __future__ import annotations

import base64
import contextlib
import struct

import h5py
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fidelity.compare import difference
from tests.formats.hdf5.helpers import assert_same, low_level, scan_all
from virtualzarr.codecs import Pipeline, codec_from_v3, make
from virtualzarr.codecs.hdf5.library_type import type_message
from virtualzarr.errors import CodecError, UnsupportedError, VirtualZarrError
from virtualzarr.formats.hdf5.attribute_values import as_array
from virtualzarr.formats.hdf5.datatype import decode_type
from virtualzarr.formats.hdf5.element_type import make_element_type


def integer(size, precision, offset, signed, big):
    """Return an HDF5 integer type."""
    tid = (h5py.h5t.STD_I64LE if signed else h5py.h5t.STD_U64LE).copy()
    tid.set_order(h5py.h5t.ORDER_BE if big else h5py.h5t.ORDER_LE)
    tid.set_precision(precision)
    tid.set_offset(0)
    tid.set_size(size)
    tid.set_offset(offset)
    return tid


@settings(max_examples=100, deadline=None)
@given(data=st.data(), signed=st.booleans(), big=st.booleans())
def test_integers_of_any_precision(data, signed, big):
    size = data.draw(st.integers(1, 8))
    precision = data.draw(st.integers(1 + signed, 8 * size))
    offset = data.draw(st.integers(0, 8 * size - precision))
    order = "big" if big else "little"
    used = (1 << precision) - 1 << offset  # HDF5 writes zeros around
    numbers = data.draw(st.lists(st.integers(0, used), min_size=3, max_size=3))
    raw = b"".join((number & used).to_bytes(size, order) for number in numbers)
    codec = make(
        "virtualzarr.hdf5_type",
        datatype=type_message(integer(size, precision, offset, signed, big)),
    )
    assert codec_from_v3(codec.to_v3()) == codec
    decoded = Pipeline([codec]).for_block((3,), "i8" if signed else "u8").decode(raw)
    for k in range(3):
        number = int.from_bytes(raw[k * size :][:size], order)
        number = number >> offset & (1 << precision) - 1
        if signed and number >> precision - 1:
            number -= 1 << precision
        assert decoded[k] == number


def test_big_endian_integers_keep_their_sign(tmp_path):
    """They have as many bytes as those of numpy, but fewer bits; also in compounds and arrays."""
    tid = h5py.h5t.create(h5py.h5t.COMPOUND, 16)
    tid.insert(b"a", 0, integer(4, 20, 0, True, True))
    tid.insert(b"b", 4, integer(2, 9, 0, True, False))
    tid.insert(b"c", 8, h5py.h5t.array_create(integer(4, 31, 0, True, True), (2,)))
    values = np.array(
        [(-(1 << 19), -5, [-1, 7]), ((1 << 19) - 1, 255, [1 << 29, -(1 << 30)])], tid.dtype
    )
    with h5py.File(tmp_path / "a.h5", "w") as file:
        for name, member in (("x", "a"), ("y", None)):
            dataset = low_level(file, name, (2,), tid if member is None else tid.get_member_type(0))
            dataset[...] = values if member is None else values[member]
    group = assert_same(tmp_path / "a.h5")
    assert group["x"][...].tolist() == [-(1 << 19), (1 << 19) - 1]


def short_float():
    tid = h5py.h5t.IEEE_F32LE.copy()
    tid.set_fields(26, 20, 6, 0, 20)
    tid.set_precision(27)
    return tid


def make_compound():
    tid = h5py.h5t.create(h5py.h5t.COMPOUND, 32)
    tid.insert(b"odd", 1, integer(4, 12, 4, True, True))
    tid.insert(b"text", 8, h5py.h5t.py_create(np.dtype("S5")))
    tid.insert(b"list", 16, h5py.h5t.array_create(integer(2, 9, 3, False, False), (3, 2)))
    return tid


TYPES = {
    "nbit": lambda: integer(4, 24, 0, True, False),
    "shifted": lambda: integer(2, 12, 4, False, True),
    "float": short_float,
    "long double": h5py.h5t.NATIVE_LDOUBLE.copy,
    "make_compound": make_compound,
    "array": lambda: h5py.h5t.array_create(integer(4, 20, 3, True, False), (2, 3)),
}


@pytest.mark.parametrize("name", TYPES)
@pytest.mark.parametrize(
    "options",
    [{}, {"chunk": ((3,),)}, {"chunk": ((3,),), "nbit": ()},
     {"chunk": ((3,),), "nbit": (), "deflate": 1}, {"layout": h5py.h5d.COMPACT}],
    ids=["contiguous", "chunked", "nbit", "nbit and deflate", "compact"],
)  # fmt: skip
def test_what_h5py_reads(tmp_path, name, options):
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        if "nbit" in options:
            options = {k: v for k, v in options.items() if k not in ("nbit", "deflate")}
            options["filter"] = (h5py.h5z.FILTER_NBIT, 0, ())
        dataset = low_level(file, "x", (5,), TYPES[name](), **options)
        dtype = dataset.dtype
        raw = bytearray(np.random.default_rng(0).integers(1, 100, 5 * dtype.itemsize, "u1"))
        if dtype.base.kind in "iu":
            dataset[...] = np.frombuffer(raw, "u1")[: dataset[...].size].reshape(dataset[...].shape)
        elif dtype.kind == "f":
            dataset[...] = np.frombuffer(raw, "u1")[:5] / 4
        else:
            dataset[...] = np.frombuffer(raw, dtype)
    array = assert_same(path)["x"]
    assert np.any(array[...] != np.zeros((), array.dtype))


@pytest.mark.parametrize("size", [3, 5, 6, 7])
@pytest.mark.parametrize("inside", [False, True])
def test_sizes_that_h5py_has_no_type_for(tmp_path, size, inside):
    path = tmp_path / "a.h5"
    tid = integer(size, 8 * size, 0, True, False)
    if inside:
        outer = h5py.h5t.create(h5py.h5t.COMPOUND, size + 2)
        outer.insert(b"n", 1, tid)
        tid = outer
    raw = np.frombuffer(np.random.default_rng(0).bytes(4 * tid.get_size()), "u1").copy()
    with h5py.File(path, "w") as file:
        dataset = low_level(file, "x", (4,), tid)
        dataset.id.write(h5py.h5s.ALL, h5py.h5s.ALL, raw, mtype=tid)
    array = scan_all(path)["x"]
    numbers = array[...]["n"] if inside else array[...]
    bare = raw.reshape(4, -1)[:, 1 : 1 + size] if inside else raw.reshape(4, -1)
    assert numbers.dtype == ("i4" if size == 3 else "i8")
    assert numbers.tolist() == [int.from_bytes(b, "little", signed=True) for b in bare.tolist()]


def test_vax_floats(tmp_path):
    path = tmp_path / "a.h5"
    tid = h5py.h5t.IEEE_F32LE.copy()
    tid.set_ebias(0x81)
    tid.set_order(h5py.h5t.ORDER_VAX)
    # 1.5 and -0.25 as F floats: 16-bit words, the first with sign and exponent.
    raw = np.array([0x40C0, 0, 0xBF80, 0], "<u2").view("u1")
    with h5py.File(path, "w") as file:
        dataset = low_level(file, "x", (2,), tid)
        dataset.id.write(h5py.h5s.ALL, h5py.h5s.ALL, raw, mtype=tid)
    # The library writes version 1 of the message, in which this byte order means another.
    path.write_bytes(path.read_bytes().replace(b"\x11\x61\x1f\x00", b"\x31\x61\x1f\x00"))
    assert scan_all(path)["x"][...].tolist() == [1.5, -0.25]


@pytest.mark.parametrize(
    "configuration",
    [{}, {"datatype": "?"}, {"datatype": "AAAA"}, {"datatype": 5}, {"datatype": "", "more": 1}],
)
def test_bad_messages(configuration):
    with pytest.raises(CodecError, match="hdf5_type"):
        make("virtualzarr.hdf5_type", **configuration)


@pytest.mark.parametrize(
    "tid", [h5py.h5t.STD_REF_OBJ, h5py.h5t.vlen_create(h5py.h5t.STD_I32LE)], ids=["ref", "vlen"]
)
def test_pointers_are_never_followed(tid):
    """Bytes of a chunk taken as pointers into memory would crash, or worse."""
    codec = make("virtualzarr.hdf5_type", datatype=type_message(tid))
    with pytest.raises(CodecError, match="pointers or references"):
        Pipeline([codec]).for_block((1,), "i8").decode(bytes([1]) * tid.get_size())


def test_numbers_outside_their_elements_are_refused():
    """The HDF5 library converts them, and writes past their end."""
    message = bytearray(base64.b64decode(type_message(h5py.h5t.STD_I16LE)))
    message[10:12] = (4096).to_bytes(2, "little")
    codec = make("virtualzarr.hdf5_type", datatype=base64.b64encode(message).decode())
    with pytest.raises(CodecError, match="bits outside"):
        Pipeline([codec]).for_block((1,), "i8").decode(bytes(2))


@settings(max_examples=100, deadline=None)
@given(message=st.binary(min_size=8, max_size=40), head=st.sampled_from([b"", b"\x10", b"\x16"]))
def test_any_message_decodes_or_fails_clearly(message, head):
    message = (head + message)[: len(message)]
    try:
        codec = make("virtualzarr.hdf5_type", datatype=base64.b64encode(message).decode())
        size = codec.compute_encoded_size(type("", (), {"size": 1})())
        if size < 1 << 16:
            Pipeline([codec]).for_block((1,), "f8").decode(bytes(size))
    except (CodecError, UnsupportedError):
        pass


@pytest.mark.parametrize("version_and_class", [0x31, 0x32, 0x33, 0x34, 0x35])
def test_enumerations_of_other_values_than_integers(version_and_class):
    """The HDF5 library makes none, but reads them from damaged files."""
    kind = version_and_class & 15
    bits = b"\x20\x1f\0" if kind == 1 else bytes(3)
    properties = {
        1: struct.pack("<HH4BI", 0, 32, 23, 8, 0, 23, 127),
        2: b"\x20\0",
        4: b"\0\0\x20\0",
    }
    base = struct.pack("<B3sI", version_and_class, bits, 4) + properties.get(kind, b"")
    message = struct.pack("<BHBI", 0x38, 1, 0, 4) + base + b"a\0" + bytes(4)
    with pytest.raises(UnsupportedError, match="enumerations"):
        make_element_type(decode_type(message))
    with contextlib.suppress(TypeError, VirtualZarrError):
        as_array(message, bytes(4), 1)


def test_types_are_found_once_not_for_each_chunk(tmp_path, monkeypatch):
    """Finding the type of a compound costs far more than converting a small chunk."""
    odd = h5py.h5t.STD_I8LE.copy()
    odd.set_precision(4)
    tid = h5py.h5t.create(h5py.h5t.COMPOUND, 16)
    tid.insert(b"a", 0, odd)
    tid.insert(b"b", 8, h5py.h5t.IEEE_F64BE)
    with h5py.File(tmp_path / "a.h5", "w") as file:
        dcpl = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        dcpl.set_chunk((1,))
        space = h5py.h5s.create_simple((50,))
        dataset = h5py.Dataset(h5py.h5d.create(file.id, b"x", tid, space, dcpl))
        values = np.zeros(50, dataset.dtype)
        values["a"], values["b"] = np.arange(50) % 8, np.arange(50) / 3
        dataset[...] = values
    array = scan_all(tmp_path / "a.h5")["x"]
    calls = []
    create = h5py.h5t.py_create
    monkeypatch.setattr(h5py.h5t, "py_create", lambda *args: (calls.append(args), create(*args))[1])
    assert difference(array[...], values) is None
    assert len(calls) <= 1
