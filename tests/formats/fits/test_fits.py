"""FITS files are read as astropy reads them."""

from __future__ import annotations

import warnings

import fsspec
import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import virtualzarr as vz
from tests.fidelity.fits import check
from tests.fidelity.runner import report, run
from tests.formats.damage import flip_everywhere, truncate_everywhere
from tests.realdata import real_files
from virtualzarr.errors import SkippedVariableWarning, SourceError, UnsupportedError
from virtualzarr.formats.fits import scan

fits = pytest.importorskip("astropy.io.fits")

TYPES = ["u1", "i1", "i2", "u2", "i4", "u4", "i8", "u8", "f4", "f8"]
RAW = {8: "u1", 16: ">i2", 32: ">i4", 64: ">i8", -32: ">f4", -64: ">f8"}


def check_file(path):
    with warnings.catch_warnings():
        rows = list(check(path))
    assert rows
    assert [row for row in rows if row.outcome != "equal"] == []
    return vz.open(path)


def bits(dtype, shape, seed=0):
    raw = np.random.default_rng(seed).integers(32, 126, (*shape, np.dtype(dtype).itemsize), "u1")
    return raw.view(dtype)[..., 0]


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("shape", [(7,), (3, 5), (2, 3, 5), (2, 1, 3, 5)])
def test_every_type(tmp_path, dtype, shape):
    values = bits(dtype, shape)
    values.flat[0] = 0
    if values.dtype.kind in "iu":
        values.flat[1:3] = np.iinfo(dtype).min, np.iinfo(dtype).max
    fits.PrimaryHDU(values).writeto(tmp_path / "a.fits")
    array = check_file(tmp_path / "a.fits")["data"]
    assert array.dtype == values.dtype
    assert np.array_equal(array[...], values)
    assert array.dims == ("axis4", "z", "y", "x")[-len(shape) :]
    assert np.array_equal(array[1:], values[1:])


def write_raw(path, bitpix, raw, **cards):
    """Write numbers as they are, with any cards beside."""
    raw = np.asarray(raw).astype(RAW[bitpix])
    lines = [
        "SIMPLE  =                    T",
        f"BITPIX  = {bitpix:20d}",
        f"NAXIS   = {raw.ndim:20d}",
    ]
    lines += [f"NAXIS{i + 1}  = {n:20d}" for i, n in enumerate(reversed(raw.shape))]
    lines += [f"{name:8}= {value!r:>20}" for name, value in cards.items()] + ["END"]
    head = "".join(line.ljust(80) for line in lines).encode()
    data = raw.tobytes()
    path.write_bytes(head.ljust(2880) + data.ljust(-(-len(data) // 2880) * 2880, b"\0"))


@settings(max_examples=80)
@given(
    bitpix=st.sampled_from(sorted(RAW)),
    numbers=st.lists(st.integers(-128, 127), min_size=1, max_size=9),
    scale=st.sampled_from([None, 1.0, 0.1, -2.5, 1e-8]),
    zero=st.sampled_from([None, 0.0, 32768.0, -128, 2.0**31, 2.0**63, 0.3]),
    blank=st.sampled_from([None, 3, -128, 99, 40000]),
)
def test_scaling_is_astropys(tmp_path_factory, bitpix, numbers, scale, zero, blank):
    assume(not (bitpix == 8 and zero == -128 and blank is not None))  # an error in astropy
    path = tmp_path_factory.getbasetemp() / "scaled.fits"
    cards = {"BSCALE": scale, "BZERO": zero, "BLANK": blank}
    raw = np.array(numbers, "i8").astype("u1") if bitpix == 8 else np.array(numbers, "f8")
    write_raw(path, bitpix, raw, **{k: v for k, v in cards.items() if v is not None})
    if blank is not None and bitpix > 0 and not in_range(blank, bitpix):
        # astropy makes floats of numbers none of which is blank; the numbers are the same.
        values = vz.open(path)["data"][...]
        assert values.tolist() == raw.tolist() or zero is not None
        return
    check_file(path)


def in_range(number, bitpix):
    limits = np.iinfo(np.dtype(RAW[bitpix]))
    return limits.min <= number <= limits.max


def test_extensions_are_groups(tmp_path):
    primary = fits.PrimaryHDU()
    primary.header["OBJECT"] = "it's M 31"
    primary.header["LONG"] = "x" * 200
    primary.header["HIERARCH ESO DET GAIN"] = 1.5
    primary.header.add_comment("one")
    primary.header.add_comment("two")
    parts = [
        fits.ImageHDU(bits("i2", (3, 4)), name="SCI", ver=1),
        fits.ImageHDU(bits("f4", (3, 4)), name="SCI", ver=2),
        fits.ImageHDU(bits("u2", (2, 2))),
        fits.ImageHDU(name="EMPTY"),
        fits.ImageHDU(bits("u1", (5,)), name="a/b"),
    ]
    parts[0].header["BUNIT"] = "count"
    path = tmp_path / "a.fits"
    fits.HDUList([primary, *parts]).writeto(path)
    group = check_file(path)
    assert list(group) == ["SCI", "SCI_2", "3", "EMPTY", "5"]
    assert group["SCI/data"].attrs["units"] == "count"
    assert list(group["EMPTY"]) == []
    assert group.attrs["OBJECT"] == "it's M 31"
    assert group.attrs["LONG"] == "x" * 200
    assert group.attrs["ESO DET GAIN"] == 1.5
    assert group.attrs["COMMENT"] == "one\ntwo"
    assert "NAXIS" not in group.attrs
    fsspec.filesystem("memory").pipe_file("/fits/a.fits", path.read_bytes())
    assert np.array_equal(vz.open("memory://fits/a.fits")["5/data"][...], parts[4].data)


def test_what_is_refused_by_name(tmp_path):
    packed = fits.BinTableHDU.from_columns([fits.Column("p", "PB()", array=[[1], [2]])], name="C")
    packed.header["ZTABLE"] = True
    good = fits.ImageHDU(bits("i2", (3, 3)), name="G")
    path = tmp_path / "a.fits"
    fits.HDUList([fits.PrimaryHDU(), packed, good]).writeto(path)
    with pytest.raises(UnsupportedError, match="compressed FITS tables"):
        scan(path)
    with pytest.warns(SkippedVariableWarning):
        group = scan(path, on_error="warn")
    assert "compressed FITS tables" in group.skipped["C/data"]
    assert np.array_equal(group["G/data"][...], good.data)


@pytest.mark.parametrize("dtype", ["i2", "u2"])
def test_damage(tmp_path, dtype):
    path = tmp_path / "a.fits"
    fits.PrimaryHDU(bits(dtype, (3, 5))).writeto(path)
    truncate_everywhere(path, scan, 2880 + 30, step=37)
    flip_everywhere(path, scan, 80 * 8, step=7)


@pytest.mark.parametrize(
    ("old", "new"),
    [("NAXIS1  =                    5", "NAXIS1  =  9999999999999999999"),
     ("NAXIS1  =                    5", "NAXIS1  =             99999999"),
     ("NAXIS1  =                    5", "NAXIS1  =                   -5"),
     ("NAXIS1  =                    5", "NAXIS1  =                  5.0"),
     ("NAXIS   =                    2", "NAXIS   =                  999"),
     ("BITPIX  =                   16", "BITPIX  =                   17"),
     ("END     ", "        ")],
)  # fmt: skip
def test_absurd_headers(tmp_path, old, new):
    path = tmp_path / "a.fits"
    fits.PrimaryHDU(bits("i2", (3, 5))).writeto(path)
    path.write_bytes(path.read_bytes().replace(old.encode(), new.encode(), 1))
    with pytest.raises(SourceError, match=r"a\.fits"):
        scan(path)


def test_real_files():
    rows = list(run("fits", real_files("fits")))
    assert not [row for _, row in rows if row.outcome == "wrong"], report(rows)
    assert [row.outcome for _, row in rows].count("equal") >= 60
