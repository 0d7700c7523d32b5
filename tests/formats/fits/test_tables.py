"""Tables of FITS, and random groups, are read as astropy reads them."""

from __future__ import annotations

import numpy as np
import pytest

import virtualzarr as vz
from tests.formats.damage import flip_everywhere
from tests.formats.fits.test_fits import bits, check_file
from virtualzarr.codecs import Pipeline, make
from virtualzarr.errors import CodecError, SourceError
from virtualzarr.formats.fits import scan

fits = pytest.importorskip("astropy.io.fits")


def test_tables(tmp_path):
    forms = {"L": "?", "8X": None, "B": "u1", "I": "i2", "J": "i4", "K": "i8", "E": "f4", "D": "f8",
             "C": "c8", "M": "c16", "5A": "S5", "3J": "i4", "0D": None}  # fmt: skip
    columns = [
        fits.Column(f"c{i}", form, array=bits(dtype, (4, 3) if form == "3J" else (4,)))
        for i, (form, dtype) in enumerate(forms.items())
        if dtype not in (None, "?")
    ]
    columns += [
        fits.Column("flags", "L", array=np.array([True, False, True, True])),
        fits.Column("bits", "11X", array=np.eye(4, 11, dtype=bool)),
        fits.Column("cube", "6I", dim="(3,2)", array=bits("i2", (4, 2, 3))),
        fits.Column("words", "6A", dim="(3,2)", array=np.array([["ab", "cde"]] * 4)),
        fits.Column("offset", "I", bzero=32768, array=np.arange(4, dtype="u2")),
    ]
    columns[0].unit = "keV"
    columns[1].null = -1
    path = tmp_path / "a.fits"
    fits.BinTableHDU.from_columns(columns, name="EVENTS").writeto(path)
    array = check_file(path)["EVENTS/data"]
    assert array.dims == ("row",)
    assert array.field("cube").shape == (4, 2, 3)
    assert np.array_equal(array.field("cube")[...], columns[-3].array)
    assert array["flags"].tolist() == [b"T", b"F", b"T", b"T"]
    assert array["words"].tolist() == [[b"ab", b"cde"]] * 4
    said = array.attrs["columns"]
    assert said["c2"] == {"units": "keV"}
    assert said["bits"] == {"bits": 11}
    assert said["offset"] == {"add_offset": 32768}
    assert array["offset"].tolist() == [-32768, -32767, -32766, -32765]


def objects(rows, dtype):
    made = np.empty(len(rows), object)
    made[:] = [np.asarray(row, dtype) for row in rows]
    return made


FORMS = {"B": "u1", "I": "i2", "J": "i4", "K": "i8", "E": "f4", "D": "f8", "C": "c8", "M": "c16"}


@pytest.mark.parametrize("letter", ["P", "Q"])
def test_arrays_of_variable_length(tmp_path, letter):
    counts = [3, 0, 1, 5]
    columns = [
        fits.Column(f"c{form}", f"{letter}{form}()",
                    array=objects([bits(dtype, (n,)) for n in counts], dtype))
        for form, dtype in FORMS.items()
    ]  # fmt: skip
    columns += [
        fits.Column("flags", f"{letter}L()", array=objects([[True], [], [False, True], []], bool)),
        fits.Column("words", f"{letter}A()", array=np.array(["ab", "", "c d", "x"], object)),
        fits.Column("plain", "J", array=np.arange(4)),
        fits.Column("data", f"{letter}B()", array=objects([[1]] * 4, "u1")),
    ]
    path = tmp_path / "a.fits"
    fits.BinTableHDU.from_columns(columns, name="V").writeto(path)
    group = check_file(path)["V"]
    assert list(group) == ["data", *(f"c{form}" for form in FORMS), "flags", "words", "col12"]
    assert [len(each) for each in group["cI"][...]] == counts
    assert group["cI"][3].tolist() == columns[1].array[3].tolist()
    assert group["cI"].dims == ("row",)
    assert group["words"][...].tolist() == ["ab", "", "c d", "x"]
    assert group["flags"][2].tolist() == [b"F", b"T"]
    assert group["data"]["cI"][:, 0].tolist() == counts


def test_arrays_of_variable_length_are_scaled(tmp_path):
    path = tmp_path / "a.fits"
    columns = [
        fits.Column("u", "PI()", array=objects([[-32768, 32767], [7]], "i2")),
        fits.Column("s", "PJ()", array=objects([[1, 2], [3]], "i4")),
    ]
    hdu = fits.BinTableHDU.from_columns(columns)
    hdu.header["TZERO1"] = 32768
    hdu.header["TSCAL2"], hdu.header["TZERO2"] = 0.5, 10.0
    hdu.writeto(path)
    group = scan(path)["1"]
    assert group["s"][0].tolist() == [10.5, 11.0]
    assert group["u"][0].dtype == np.uint16
    assert group["u"][0].tolist() == [0, 65535]


@pytest.mark.parametrize("rows", [1, 3, 5000])
def test_tables_of_text(tmp_path, rows):
    numbers = np.arange(rows)
    columns = [
        fits.Column("name", "A5", array=np.array([f"n{i % 97}" for i in range(rows)])),
        fits.Column("short", "I4", array=numbers % 999),
        fits.Column("middle", "I8", array=-(numbers % 9999999), null="-7"),
        fits.Column("long", "I15", array=numbers * 10**9),
        fits.Column("fixed", "F9.3", array=numbers * 0.125, unit="m"),
        fits.Column("exp", "E15.7", array=numbers * 1e-20),
        fits.Column("double", "D25.17", array=numbers / 3),
    ]
    path = tmp_path / "a.fits"
    fits.TableHDU.from_columns(columns, name="T").writeto(path)
    array = check_file(path)["T/data"]
    assert array.dtype["middle"] == np.dtype("i4")
    assert array.attrs["columns"]["fixed"] == {"units": "m"}
    assert array[rows // 2]["long"] == rows // 2 * 10**9
    assert (array.grid.grid_shape[0] > 1) == (rows == 5000)


@pytest.mark.parametrize(
    ("form", "null", "text", "value"),
    [("I5", None, "     ", 0), ("I5", "**", "   **", 0), ("F5.1", None, "     ", np.nan),
     ("E8.2", "-9", "      -9", np.nan), ("D9.2", None, "  1.5D+02", 150.0),
     ("E9.2", None, " 1.5e-2  ", 0.015), ("F5.1", None, "    0", 0.0), ("A3", None, " a ", b" a "),
     ("F5.0", None, "   12", 12.0)],
)  # fmt: skip
def test_fields_of_text(form, null, text, value):
    dtype = {"A": "S3", "I": "i8"}.get(form[0], "f8")
    codec = make("virtualzarr.fits_text", width=12, fields=[["x", 1, form, null]])
    block = Pipeline([codec]).for_block((2,), [("x", dtype)])
    row = f"?{text}".ljust(12).encode()
    assert np.array_equal(
        block.decode(2 * row)["x"], np.array([value] * 2, dtype), equal_nan=dtype == "f8"
    )


@pytest.mark.parametrize(
    ("form", "text", "words"),
    [("F5.1", "   12", "decimal point"), ("I5", "  1.5", "'x'"), ("F5.1", "  x.y", "'x'"),
     ("I5", "99999", "5 bytes for")],
)  # fmt: skip
def test_fields_that_are_no_numbers(form, text, words):
    codec = make("virtualzarr.fits_text", width=5, fields=[["x", 0, form, None]])
    block = Pipeline([codec]).for_block((1 + (words == "5 bytes for"),), [("x", "f8")])
    with pytest.raises(CodecError, match=words):
        block.decode(text.encode())


@pytest.mark.parametrize(
    "members",
    [{}, {"width": 3, "fields": [["x", 0, "I4", None]]},
     {"width": 3, "fields": [["x", 0, "Z2", None]]},
     {"width": 3, "fields": [[1, 0, "I2", None]]}],
)  # fmt: skip
def test_wrong_configurations_of_text(members):
    with pytest.raises(CodecError, match="fits_text"):
        make("virtualzarr.fits_text", **members)


@pytest.mark.parametrize(
    "members", [{}, {"data_type": "O"}, {"data_type": "x"}, {"data_type": "i2", "zero": "1"}]
)
def test_wrong_configurations_of_cells(members):
    with pytest.raises(CodecError, match="fits_cell"):
        make("virtualzarr.fits_cell", **members)


def test_random_groups(tmp_path):
    images = bits("f4", (4, 2, 3))
    data = fits.GroupData(
        images, parnames=["UU", "UU", "DATE"], pardata=[np.arange(4), np.arange(4) / 8, np.ones(4)],
        parbzeros=[0, 0, 2450000.0], bitpix=-32,
    )  # fmt: skip
    path = tmp_path / "a.fits"
    fits.GroupsHDU(data).writeto(path)
    array = check_file(path)["data"]
    assert array.dims == ("group",)
    assert array.dtype.names == ("UU", "_UU", "DATE", "DATA")
    assert np.array_equal(array["DATA"].reshape(images.shape), images)
    assert array.attrs["columns"]["DATE"]["add_offset"] == 2450000.0


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [("TFORM1  = 'PJ(2)   '", "TFORM1  = 'PZ(2)   '", "TFORM1"),
     ("TFORM1  = 'PJ(2)   '", "TFORM1  = '9PJ(2)  '", "TFORM1"),
     ("NAXIS   =                    2", "NAXIS   =                    1", "NAXIS of a table"),
     ("PCOUNT  =                   12", "PCOUNT  =                    4", "heap"),
     ("NAXIS2  =                    2", "NAXIS2  =              2000000", "end|trunc")],
)  # fmt: skip
def test_absurd_tables(tmp_path, old, new, words):
    path = tmp_path / "a.fits"
    columns = [fits.Column("v", "PJ()", array=objects([[1], [2, 3]], "i4"))]
    fits.BinTableHDU.from_columns(columns).writeto(path)
    raw = path.read_bytes()
    assert old.encode() in raw[2880:]
    path.write_bytes(raw[:2880] + raw[2880:].replace(old.encode(), new.encode()))
    with pytest.raises(SourceError, match=words):
        scan(path)


def test_damaged_tables(tmp_path):
    path = tmp_path / "a.fits"
    columns = [fits.Column("a", "J", array=np.arange(3)), fits.Column("b", "4A", array=["ab"] * 3)]
    fits.BinTableHDU.from_columns(columns).writeto(path)
    size = len(path.read_bytes().rstrip(b"\0"))
    for cut in range(2881, size, 97):
        with pytest.raises(SourceError, match="truncated"):
            scan(shortened(path, cut))
    flip_everywhere(path, scan, 2880 + 80 * 14, start=2880, step=11)


def test_damaged_heaps_and_texts(tmp_path):
    path = tmp_path / "a.fits"
    columns = [fits.Column("v", "PJ()", array=objects([[1], [2, 3]], "i4"))]
    text = fits.TableHDU.from_columns([fits.Column("a", "F5.1", array=np.arange(3.0))])
    fits.HDUList([fits.PrimaryHDU(), fits.BinTableHDU.from_columns(columns), text]).writeto(path)
    size = len(path.read_bytes())
    flip_everywhere(path, scan, size, start=2880, step=41)
    flip_everywhere(path, scan, 5760 + 40, start=5760)


def shortened(path, size):
    short = path.with_name("short.fits")
    short.write_bytes(path.read_bytes()[:size])
    return short


def test_xarray_opens_tables(tmp_path):
    xarray = pytest.importorskip("xarray")
    from virtualzarr.integrations.xarray_backend import VirtualZarrBackendEntrypoint

    path = tmp_path / "a.fits"
    columns = [fits.Column("v", "PJ()", array=objects([[1], [2, 3]], "i4"))]
    fits.BinTableHDU.from_columns(columns, name="V").writeto(path)
    with xarray.open_dataset(path, engine=VirtualZarrBackendEntrypoint, group="V") as dataset:
        assert [each.tolist() for each in dataset["v"].values] == [[1], [2, 3]]
    assert vz.open(path)["V/v"][1].tolist() == [2, 3]
