"""Cards of headers are read as astropy reads them."""

from __future__ import annotations

import io
import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from virtualzarr.errors import SourceError
from virtualzarr.formats.fits import scan

fits = pytest.importorskip("astropy.io.fits")

TEXTS = st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=200).map(str.rstrip)
KEYS = st.sampled_from(["ABC", "A-1", "B_2", "OBJECT", "ESO DET GAIN", "HIERARCH ab c"])
# Of an empty text before a quote in a comment, astropy takes a part of the comment for the value.
COMMENTS = TEXTS.filter(lambda text: len(text) < 20 and "'" not in text)
VALUES = st.one_of(
    TEXTS,
    st.booleans(),
    st.integers(-(2**62), 2**62),
    st.floats(allow_nan=False, allow_infinity=False),
)


@pytest.mark.filterwarnings("ignore::astropy.io.fits.verify.VerifyWarning")
@settings(max_examples=150)
@given(
    cards=st.lists(st.tuples(KEYS, VALUES, COMMENTS), max_size=8),
    lines=st.lists(TEXTS.filter(lambda text: len(text) < 70), max_size=4),
)
def test_cards(tmp_path_factory, cards, lines):
    path = tmp_path_factory.getbasetemp() / "cards.fits"
    header = fits.Header()
    for name, value, comment in cards:
        header[name] = (value, comment)
    for line in lines:
        header.add_history(line)
    fits.PrimaryHDU(header=header).writeto(path, overwrite=True, output_verify="silentfix")
    ours, theirs = scan(path).attrs, fits.getheader(path)
    for name in {name for name, _, _ in cards}:
        expected = theirs[name]
        found = ours[name.removeprefix("HIERARCH ")]
        assert found == (expected.rstrip() if isinstance(expected, str) else expected)
    if lines:
        assert ours["HISTORY"] == "\n".join(str(line).rstrip() for line in theirs["HISTORY"])


def write(path, cards):
    lines = ["SIMPLE  =                    T", "BITPIX  =                    8",
             "NAXIS   =                    0", *cards, "END"]  # fmt: skip
    raw = "".join(line.ljust(80) for line in lines).encode("latin-1")
    path.write_bytes(raw.ljust(-(-len(raw) // 2880) * 2880))
    return scan(path).attrs


def test_quotes_in_comments(tmp_path):
    cards = ["A       = ''                 / '", "B       = 'it''s'             / it's 'so'"]
    found = write(tmp_path / "a.fits", cards)
    assert (found["A"], found["B"]) == ("", "it's")


@pytest.mark.parametrize(
    ("cards", "expected"),
    [(["A       = 'x&'", "CONTINUE  'y&' / more", "CONTINUE  ''"], "xy"),
     (["A       = 'x'", "CONTINUE  'y'"], "x"), (["A       = 'x&'", "B       = 1"], "x&"),
     (["A       = 'x&'", "CONTINUE  'it''s'"], "xit's"), (["A       = 12", "CONTINUE  'y'"], 12),
     (["A       = 1.5D-3"], 0.0015), (["A       = 1", "A       = 2"], 1),
     (["A       = 'x'", "A       = 'y&'", "CONTINUE  'z'"], "x"), (["A       = (1, 2)"], "(1, 2)"),
     (["CONTINUE  'y'", "A       = T / true"], True)],
)  # fmt: skip
def test_single_cards(tmp_path, cards, expected):
    assert write(tmp_path / "a.fits", cards)["A"] == expected


def test_long_headers(tmp_path):
    many = 40_000
    attrs = write(tmp_path / "a.fits", [f"HISTORY line {i}" for i in range(many)])
    assert attrs["HISTORY"].count("\n") == many - 1
    text = ["A       = 'x&'"] + many * [f"CONTINUE  '{'y' * 60}&'"]
    assert len(write(tmp_path / "b.fits", text)["A"]) == 1 + 60 * many + 1


def test_many_parts(tmp_path):
    part = fits.ImageHDU(np.arange(6, dtype="i2").reshape(2, 3), name="SCI")
    fits.HDUList([fits.PrimaryHDU(), part]).writeto(tmp_path / "a.fits")
    raw = (tmp_path / "a.fits").read_bytes()
    (tmp_path / "a.fits").write_bytes(raw[:2880] + 200 * raw[2880:])
    group = scan(tmp_path / "a.fits")
    assert len(list(group)) == 200
    assert group["SCI_200/data"][1].tolist() == [3, 4, 5]


def with_end(path, end, number):
    """Write two images, one of them with something behind the END of its header."""
    parts = [fits.PrimaryHDU(np.arange(4, dtype="i2")), fits.ImageHDU(np.arange(6), name="B")]
    fits.HDUList(parts).writeto(path, overwrite=True)
    pieces = path.read_bytes().split(b"END" + b" " * 77)
    ends = [b"END" + b" " * 77] * 2
    ends[number] = end.ljust(80)
    path.write_bytes(pieces[0] + ends[0] + pieces[1] + ends[1] + pieces[2])


@pytest.mark.parametrize("number", [0, 1])
@pytest.mark.parametrize(
    "end", [b"END x", b"END\0\0", b"END     = 5", b"END X", b"END\xff", b"END/", b"ENDx"]
)
def test_what_is_behind_end_means_nothing(tmp_path, end, number):
    path = tmp_path / "a.fits"
    with_end(path, end, number)
    group = scan(path)
    assert group["data"][...].tolist() == [0, 1, 2, 3]
    assert group["B/data"][...].tolist() == [0, 1, 2, 3, 4, 5]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        blocks = path.read_bytes() if number == 0 else path.read_bytes()[2 * 2880 :]
        assert fits.Header.fromfile(io.BytesIO(blocks))["NAXIS1"] == (4, 6)[number]


@pytest.mark.parametrize("end", [b"ENDX    = 5", b"END-A", b"END_1", b"END1"])
def test_headers_without_end_before_the_next(tmp_path, end):
    path = tmp_path / "a.fits"
    with_end(path, end, 0)
    with pytest.raises(SourceError, match=r"no END before that of the next HDU, at byte 5760"):
        scan(path)
