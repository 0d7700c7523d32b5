"""Damaged and hostile files give clear errors."""

from __future__ import annotations

import struct

import imagecodecs
import numpy as np
import pytest
import tifffile

from tests.formats.tiff.helpers import check_file, patch_tag, ramp, same
from virtualzarr.errors import SourceError, UnsupportedError, VirtualZarrError
from virtualzarr.formats.tiff import scan

TILED = {"tile": (16, 16), "compression": "zlib", "metadata": None}


@pytest.mark.parametrize("content", [b"", b"II*\0", b"hello world", b"MM\0*\xff\xff\xff\xff"])
def test_no_tiff(tmp_path, content):
    path = tmp_path / "a.tif"
    path.write_bytes(content)
    with pytest.raises(SourceError, match=r"a\.tif"):
        scan(path)


def test_no_file(tmp_path):
    with pytest.raises(SourceError, match=r"a\.tif"):
        scan(tmp_path / "a.tif")


@pytest.mark.parametrize("options", [{}, {"rowsperstrip": 5, "compression": "lzw"}, TILED])
def test_truncated_files(tmp_path, options):
    path = tmp_path / "a.tif"
    data = ramp("u2", (40, 50))
    tifffile.imwrite(path, data, **options)
    whole = path.read_bytes()
    cut = tmp_path / "cut.tif"
    for size in range(0, len(whole), max(1, len(whole) // 60)):
        cut.write_bytes(whole[:size])
        try:
            ours = scan(cut)["0"][...]
        except VirtualZarrError as error:
            message = str(error)
            assert "cut.tif" in message
        else:
            assert same(ours, data)


@pytest.mark.parametrize("seed", range(5))
def test_damaged_headers_are_read_right_or_not_at_all(tmp_path, seed):
    path = tmp_path / "a.tif"
    tifffile.imwrite(path, ramp("u2", (40, 50)), rowsperstrip=9, compression="zlib", metadata=None)
    whole = bytearray(path.read_bytes())
    rng = np.random.default_rng(seed)
    for _ in range(40):
        damaged = bytearray(whole)
        for place in rng.integers(4, 300, 2).tolist():
            damaged[place] = int(rng.integers(256))
        path.write_bytes(damaged)
        try:
            group = scan(path, on_error="raise")
            if any(getattr(array, "nbytes", 0) > 1 << 24 for array in group.values()):
                continue
            ours = [np.asarray(array) for array in group.values()]
        except VirtualZarrError:
            continue
        with tifffile.TiffFile(path) as tiff:
            theirs = [series.asarray() for series in tiff.series]
        assert all(same(a, b) for a, b in zip(ours, theirs, strict=True))


@pytest.mark.parametrize(("tag", "value"), [(324, 1 << 31), (325, 1 << 15)])
def test_tiles_beyond_the_end(tmp_path, tag, value):
    path = tmp_path / "a.tif"
    tifffile.imwrite(path, ramp("u2", (40, 50)), **TILED)
    with tifffile.TiffFile(path) as tiff:
        values = list(tiff.pages[0].tags[tag].value)
    values[5] = value
    patch_tag(path, tag, values)
    with pytest.raises(SourceError, match="the file ends at"):
        scan(path)


def test_offsets_no_file_can_have(tmp_path):
    path = tmp_path / "a.tif"
    tifffile.imwrite(path, ramp("u2", (40, 50)), bigtiff=True, **TILED)
    with tifffile.TiffFile(path) as tiff:
        values = list(tiff.pages[0].tags[324].value)
    values[0] = (1 << 64) - 1
    patch_tag(path, 324, values)
    with pytest.raises(SourceError, match="that no file can have"):
        scan(path)


@pytest.mark.parametrize("compression", [None, "zlib"])
@pytest.mark.parametrize("tag", [256, 257])
def test_absurd_sizes(tmp_path, tag, compression):
    path = tmp_path / "a.tif"
    tifffile.imwrite(
        path, ramp("u2", (40, 50)), compression=compression, rowsperstrip=1, metadata=None,
        extratags=[(65000, 2, 0, "x" * 10, True)],
    )  # fmt: skip
    with tifffile.TiffFile(path, mode="r+") as tiff:
        tiff.pages[0].tags[tag].overwrite(1 << 24, dtype=4)
    with pytest.raises(VirtualZarrError, match=r"a\.tif"):
        scan(path)["0"][0, 0]


def test_absurd_number_of_pages(tmp_path):
    path = tmp_path / "a.tif"
    description = '{"shape": [1000000000000, 40, 50]}' + " " * 40
    tifffile.imwrite(path, ramp("u2", (40, 50)), description=description, metadata=None)
    with pytest.raises(SourceError, match="the file ends at"):
        scan(path)


def test_too_few_tiles(tmp_path):
    path = tmp_path / "a.tif"
    tifffile.imwrite(path, ramp("u2", (40, 50)), **TILED)
    patch_tag(path, 257, 400)
    with pytest.raises(SourceError, match="lists 12 offsets of 100 strips or tiles"):
        scan(path)


def test_too_short_raw_tiles(tmp_path):
    path = tmp_path / "a.tif"
    tifffile.imwrite(path, ramp("u2", (40, 50)), tile=(16, 16), metadata=None)
    with tifffile.TiffFile(path) as tiff:
        values = list(tiff.pages[0].tags[325].value)
    values[2] -= 2
    patch_tag(path, 325, values)
    with pytest.raises(UnsupportedError, match="tile of 510 bytes, whose elements take 512"):
        scan(path)


def test_too_long_raw_tiles_are_read_as_far_as_needed(tmp_path):
    path = tmp_path / "a.tif"
    data = ramp("u2", (40, 50))
    tifffile.imwrite(path, data, tile=(16, 16), metadata=None)
    with tifffile.TiffFile(path) as tiff:
        values = list(tiff.pages[0].tags[325].value)
    patch_tag(path, 325, [value + 100 for value in values])
    assert same(scan(path)["0"][...], data)


def chain(path, count, target):
    """Write a chain of one-pixel pages whose last one is followed by the page `target`."""
    size = 2 + 8 * 12 + 4
    entries = [(256, 3, 1), (257, 3, 1), (258, 3, 8), (259, 3, 1), (262, 3, 1), (273, 4, 4),
               (278, 3, 1), (279, 4, 1)]  # fmt: skip
    pages = b""
    for index in range(count):
        following = 8 + size * (index + 1 if index < count - 1 else target)
        tags = b"".join(struct.pack("<HHII", tag, kind, 1, value) for tag, kind, value in entries)
        pages += struct.pack("<H", len(entries)) + tags + struct.pack("<I", following)
    path.write_bytes(b"II*\0" + struct.pack("<I", 8) + pages)


@pytest.mark.parametrize(("count", "target"), [(300, 40), (30, 0), (30, 10)])
def test_directories_in_a_circle(tmp_path, count, target):
    # tifffile drops some of these pages, or never comes back.
    path = tmp_path / "a.tif"
    chain(path, count, target)
    with pytest.raises(SourceError, match="in a circle"):
        scan(path)


@pytest.mark.parametrize("count", [1, 5])
def test_a_last_directory_followed_by_itself(tmp_path, count):
    path = tmp_path / "a.tif"
    chain(path, count, count - 1)
    assert scan(path)["0"].size == count


@pytest.mark.parametrize(
    ("tag", "value", "message"),
    [
        (259, 34676, r"TIFF compression 34676 \(SGILOG\)"),
        (259, 44510, "TIFF compression 44510"),
        (317, 9, "TIFF predictor 9"),
        (317, 34892, r"TIFF predictor 34892 \(HORIZONTALX2\)"),
    ],
)
def test_refusals_name_the_feature(tmp_path, tag, value, message):
    path = tmp_path / "a.tif"
    tifffile.imwrite(path, ramp("i4", (40, 50)), compression="zlib", predictor=True, metadata=None)
    patch_tag(path, tag, value)
    with pytest.raises(UnsupportedError, match=message):
        scan(path)


def test_lerc_in_big_endian_files_is_refused(tmp_path):
    # tifffile reads other values than were written.
    path = tmp_path / "a.tif"
    data = ramp("u2", (40, 50))
    tifffile.imwrite(path, iter([imagecodecs.lerc_encode(data)]), shape=data.shape,
                     dtype=data.dtype, compression="lerc", byteorder=">", metadata=None,
                     rowsperstrip=40)  # fmt: skip
    assert not same(tifffile.imread(path), data)
    with pytest.raises(UnsupportedError, match=r"34887 \(LERC\) in a big-endian file"):
        scan(path)


def test_unknown_planar_configurations_are_refused(tmp_path):
    path = tmp_path / "a.tif"
    tifffile.imwrite(path, ramp("u1", (40, 50, 3)), photometric="rgb", metadata=None)
    patch_tag(path, 284, 3)
    with pytest.raises(UnsupportedError, match="TIFF planar configuration 3"):
        scan(path)


def test_lerc_of_bits_is_refused(tmp_path):
    path = tmp_path / "a.tif"
    tifffile.imwrite(path, ramp("u1", (40, 50)), compression="lerc", metadata=None)
    patch_tag(path, 258, 1)
    with pytest.raises(UnsupportedError, match="1 bits with compression 34887"):
        scan(path)


def test_jpeg_in_an_unknown_colour_space_is_refused(tmp_path):
    path = tmp_path / "a.tif"
    tifffile.imwrite(path, ramp("u1", (40, 50, 3)), photometric="rgb", compression="jpeg",
                     metadata=None)  # fmt: skip
    patch_tag(path, 262, 65286)
    with pytest.raises(UnsupportedError, match="JPEG in colour space 65286"):
        scan(path)


@pytest.mark.parametrize("compression", ["jpeg", "webp", "jpegxl"])
def test_images_said_to_be_bits(tmp_path, compression):
    path = tmp_path / "a.tif"
    data = ramp("u1", (40, 50, 3)) & 1
    tifffile.imwrite(path, data, photometric="rgb", compression=compression, metadata=None)
    patch_tag(path, 258, (1, 1, 1))
    if compression == "jpeg":
        check_file(path)  # anything but 0 is true
        return
    with pytest.raises(UnsupportedError, match="samples of 1 bit with compression"):
        scan(path)


def test_absurd_tiles(tmp_path):
    path = tmp_path / "a.tif"
    tifffile.imwrite(path, ramp("u2", (10, 12)), **TILED)
    with tifffile.TiffFile(path, mode="r+") as tiff:
        tiff.pages[0].tags[322].overwrite(1 << 26, dtype=4)
    with pytest.raises(SourceError, match=r"tiles of shape .* in a page of shape"):
        scan(path)
