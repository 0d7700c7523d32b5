"""zfpy, pcodec and categorize, against numcodecs."""

from __future__ import annotations

import contextlib
import json
import sys

import numcodecs
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import virtualzarr as vz
from virtualzarr.codecs import Pipeline, make
from virtualzarr.errors import CodecError, MissingDependencyError, UnsupportedError

ZFPY = [
    {"mode": 4, "tolerance": 0.01, "rate": -1, "precision": -1},
    {"mode": 4, "tolerance": -1, "rate": -1, "precision": -1},  # without loss
    {"mode": 2, "tolerance": -1, "rate": 12.0, "precision": -1},
    {"mode": 3, "tolerance": -1, "rate": -1, "precision": 14},
]
PCODEC = [
    {"level": 8},
    {"level": 1, "mode_spec": "classic", "delta_spec": "none"},
    {"level": 4, "delta_spec": "try_consecutive", "delta_encoding_order": 2},
    {"level": 3, "delta_encoding_order": 1, "equal_pages_up_to": 20},
]
CASES = [("zfpy", c) for c in ZFPY] + [("pcodec", c) for c in PCODEC]


def numbers(dtype, shape):
    values = np.random.default_rng(1).normal(scale=1000, size=shape).cumsum(-1)
    return values.astype(dtype)


@pytest.mark.parametrize("shape", [(50,), (5, 6), (3, 4, 5), (2, 3, 2, 5)])
@pytest.mark.parametrize(("name", "fields"), CASES)
def test_both_directions(name, fields, shape):
    pytest.importorskip(name)
    other = numcodecs.get_codec({"id": name, **fields})
    codec = make(f"numcodecs.{name}", **fields)
    for dtype in codec.types.split():
        if name == "zfpy" and "i" in dtype and fields["mode"] == 4 and fields["tolerance"] > 0:
            continue  # ZFP has no tolerance for integers
        block = numbers(dtype, shape)
        ours = Pipeline([codec]).for_block(shape, dtype)
        theirs = bytes(other.encode(block))
        assert bytes(ours.encode(block)) == theirs
        expected = np.asarray(other.decode(theirs)).reshape(shape)
        np.testing.assert_array_equal(ours.decode(theirs), expected, strict=True)


@pytest.mark.parametrize(("name", "fields"), CASES[1::4])
def test_damage_is_an_error(name, fields):
    pytest.importorskip(name)
    codec = make(f"numcodecs.{name}", **fields)
    block = numbers("f4", (6, 7))
    data = bytes(Pipeline([codec]).for_block((6, 7), "f4").encode(block))
    for shape, dtype in (((6, 6), "f4"), ((6, 8), "f4"), ((6, 7), "i4"), ((6, 7), "f8")):
        with pytest.raises(CodecError, match=name):
            Pipeline([codec]).for_block(shape, dtype).decode(data)
    ours = Pipeline([codec]).for_block((6, 7), "f4")
    for cut in (0, 1, 4, 11):
        with pytest.raises(CodecError, match=name):
            ours.decode(data[:cut])
    with pytest.raises(CodecError, match="cannot hold"):
        Pipeline([codec]).for_block((6, 7), "u1").encode(np.zeros((6, 7), "u1"))


@given(st.data())
def test_flipped_bits_end_in_numbers_or_an_error(data):
    pytest.importorskip("pcodec")
    name, fields = data.draw(st.sampled_from(CASES))
    ours = Pipeline([make(f"numcodecs.{name}", **fields)]).for_block((6, 7), "f4")
    raw = bytearray(ours.encode(numbers("f4", (6, 7))))
    raw[data.draw(st.integers(0, len(raw) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    with contextlib.suppress(CodecError):
        assert ours.decode(bytes(raw)).shape == (6, 7)


def test_a_missing_package_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "pcodec", None)
    codec = Pipeline([make("numcodecs.pcodec")]).for_block((3,), "f4")
    with pytest.raises(MissingDependencyError, match=r"virtualzarr\[pcodec\]"):
        codec.decode(b"")


@pytest.mark.parametrize("bad", [{"mode": 1}, {"mode": 2, "rate": "much"}])
def test_wrong_configurations(bad):
    with pytest.raises(CodecError, match="zfpy"):
        make("numcodecs.zfpy", **bad)


@pytest.mark.parametrize("dtype", ["|O", "<U6", ">U6"])
@pytest.mark.parametrize("astype", ["|u1", "<i2", ">u4"])
def test_categories(dtype, astype, tmp_path):
    labels = ["north", "south", "north", "é"]
    words = ["south", "north", "", "east", "é", "south"]
    other = numcodecs.Categorize(labels, dtype, astype)
    document = {
        "zarr_format": 2, "shape": [6], "chunks": [4], "dtype": dtype, "order": "C",
        "compressor": None, "filters": [other.get_config()], "fill_value": "",
    }  # fmt: skip
    (tmp_path / ".zarray").write_text(json.dumps(document))
    block = np.array(words, dtype)
    (tmp_path / "0").write_bytes(np.asarray(other.encode(block[:4])).tobytes())
    tail = np.asarray(other.encode(np.append(block[4:], block[:2]).astype(dtype))).tobytes()
    (tmp_path / "1").write_bytes(tail)
    found = vz.open(tmp_path, mode="r+")
    assert found[...].tolist() == ["south", "north", "", "", "é", "south"]
    before = (tmp_path / "0").read_bytes()
    found[:4] = np.array(words[:4], "U6").astype(found.dtype)
    assert (tmp_path / "0").read_bytes() == before
    assert found.metadata.as_format(2).pipeline.to_v2(found.dtype, 1)["filters"]


def test_wrong_categories():
    for bad in (
        {},
        {"labels": [1]},
        {"labels": ["a"], "astype": "f4"},
        {"labels": ["a"] * 300, "astype": "u1"},
        {"labels": ["a"], "astype": "no"},
    ):
        with pytest.raises(CodecError, match="categorize"):
            make("numcodecs.categorize", **bad)
    codec = Pipeline([make("numcodecs.categorize", labels=["a"]), make("bytes")])
    with pytest.raises((CodecError, UnsupportedError), match="is for text"):
        codec.for_block((2,), "i4")


@pytest.mark.parametrize(("name", "fields"), [("base64", {}), ("categorize", {"labels": ["a"]})])
def test_what_others_have_in_v2_only_is_not_published_in_v3(name, fields):
    codec = make(f"numcodecs.{name}", **fields)
    assert (codec.is_portable(2), codec.is_portable(3)) == (True, False)


@pytest.mark.parametrize("dtype", ["M8[s]", "m8[ns]"])
@pytest.mark.parametrize(("name", "fields"), [("zfpy", ZFPY[1]), ("pcodec", PCODEC[0])])
def test_times_are_integers_to_them(name, fields, dtype):
    pytest.importorskip(name)
    block = np.arange(30).reshape(5, 6).astype(dtype)
    block[1, 2] = "NaT"
    ours = Pipeline([make(f"numcodecs.{name}", **fields)]).for_block((5, 6), dtype)
    theirs = bytes(numcodecs.get_codec({"id": name, **fields}).encode(block))
    assert bytes(ours.encode(block)) == theirs
    np.testing.assert_array_equal(ours.decode(theirs), block, strict=True)


ZFP = [
    ({"mode": "reversible"}, {}),
    ({"mode": "fixed_rate", "rate": 10.5}, {"rate": 10.5}),
    ({"mode": "fixed_rate", "rate": 300}, {"rate": 300}),
    ({"mode": "fixed_precision", "precision": 19}, {"precision": 19}),
    ({"mode": "fixed_accuracy", "tolerance": 0.05}, {"tolerance": 0.05}),
]


@pytest.mark.parametrize("shape", [(), (7,), (5, 6), (1, 4, 9), (50, 1, 1, 1), (2, 3, 4, 5)])
@pytest.mark.parametrize(("fields", "arguments"), ZFP)
def test_zfp_has_no_header(fields, arguments, shape):
    zfpy = pytest.importorskip("zfpy")
    for dtype in ("i4", "i8", "f4", "f8"):
        if fields["mode"] == "fixed_accuracy" and dtype[0] == "i":
            continue  # ZFP has no tolerance for integers
        block = numbers(dtype, shape or (1,)).reshape(shape)
        plain = np.atleast_1d(block)
        theirs = zfpy.compress_numpy(plain, write_header=False, **arguments)
        expected = zfpy.decompress_numpy(zfpy.compress_numpy(plain, **arguments)).reshape(shape)
        ours = Pipeline([make("zfp", **fields)]).for_block(shape, dtype)
        made = bytes(ours.encode(block))
        assert made.rstrip(b"\0") == theirs.rstrip(b"\0")
        assert len(theirs) <= len(made) <= len(theirs) + 8
        for data in (theirs, made):
            np.testing.assert_array_equal(ours.decode(data), expected, strict=True)


def test_zfp_in_expert_mode_is_read():
    zfpy = pytest.importorskip("zfpy")
    block = numbers("f4", (8, 9))
    data = zfpy.compress_numpy(block, write_header=False, tolerance=0.05)
    expected = zfpy.decompress_numpy(zfpy.compress_numpy(block, tolerance=0.05))
    expert = make("zfp", mode="expert", minbits=1, maxbits=16658, maxprec=64, minexp=-5)
    ours = Pipeline([expert]).for_block((8, 9), "f4")
    np.testing.assert_array_equal(ours.decode(data), expected, strict=True)
    with pytest.raises(UnsupportedError, match="expert"):
        ours.encode(block)


@pytest.mark.parametrize("dtype", ["i1", "u1", "i2", "u2", "u4", "u8", "f2"])
def test_zfp_of_other_numbers(dtype):
    block = np.array([[0, 1, 100], [3, 50, 127]], dtype)
    if dtype[0] == "i":
        block[0, 0] = np.iinfo(dtype).min
    ours = Pipeline([make("zfp", mode="reversible")]).for_block((2, 3), dtype)
    np.testing.assert_array_equal(ours.decode(ours.encode(block)), block, strict=True)
    if dtype in ("u4", "u8"):
        with pytest.raises(CodecError, match="above"):
            ours.encode(np.full((2, 3), np.iinfo(dtype).max, dtype))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({}, "mode"),
        ({"mode": "fixed_rate"}, "rate"),
        ({"mode": "reversible", "rate": 3}, "rate"),
        ({"mode": "fixed_precision", "precision": 2.5}, "precision"),
        ({"mode": "fixed_rate", "rate": float("nan")}, "rate"),
        ({"mode": "fixed_accuracy", "tolerance": -1}, "tolerance"),
    ],
)
def test_zfp_configurations_that_are_refused(fields, message):
    with pytest.raises(CodecError, match=message):
        make("zfp", **fields)


LONGEST = 0xFFF | 0x7FFF << 12 | 0x7FFF << 27 | 63 << 42 | 15421 << 49


@pytest.mark.parametrize("mode", [2047, LONGEST])
@pytest.mark.parametrize("name", ["numcodecs.zfpy", "imagecodecs_zfp", "virtualzarr.hdf5_zfp"])
def test_headers_of_zfp_that_announce_more_than_there_is(name, mode):
    """The library would read on, far beyond the end of the data."""
    zfpy = Pipeline([make("numcodecs.zfpy", **ZFPY[2])]).for_block((100_000,), "f4")
    stream = bytes(zfpy.encode(numbers("f4", 100_000)))
    bits = int.from_bytes(stream[:12], "little") & (1 << 84) - 1 | mode << 84
    head, data = bits.to_bytes(20, "little"), stream[12:]
    if name == "virtualzarr.hdf5_zfp":
        parameters = [0, *np.frombuffer(head, "<u4").tolist()]
        codecs = [make("bytes", endian="little"), make(name, parameters=parameters)]
    else:
        codecs, data = [make(name)], head + data
    with pytest.raises(CodecError, match=f"{name}: .*cut off: 25000 blocks of"):
        Pipeline(codecs).for_block((100_000,), "f4").decode(data)
