"""How pages become arrays: series, names, pyramids, OME, ImageJ, odd and missing pages."""

from __future__ import annotations

import imagecodecs
import numpy as np
import pytest
import tifffile

from tests.formats.tiff.helpers import check_file, patch_tag, ramp, same
from virtualzarr import Array, Group
from virtualzarr.config import config
from virtualzarr.errors import (
    SkippedVariableWarning,
    SourceError,
    UnsupportedError,
    VirtualZarrError,
)
from virtualzarr.formats.tiff import scan


def test_one_series_is_named_by_its_number(tmp_path):
    path = tmp_path / "a.tif"
    tifffile.imwrite(path, ramp("u1", (20, 30)), metadata={"name": "nucleus"})
    assert list(check_file(path)) == ["0"]


def test_several_series_are_named_by_their_names_made_safe(tmp_path):
    path = tmp_path / "a.tif"
    with tifffile.TiffWriter(path) as tiff:
        tiff.write(ramp("u1", (20, 30)), metadata={"name": "cell/nucleus"})
        tiff.write(ramp("u2", (10, 12)), metadata={"name": "label"})
    assert list(check_file(path)) == ["cell_nucleus", "label"]


@pytest.mark.parametrize("names", [("a", "a"), ("a", ""), ("a/b", "a_b"), ("..", "b")])
def test_names_that_do_not_serve_give_way_to_numbers(tmp_path, names):
    path = tmp_path / "a.tif"
    with tifffile.TiffWriter(path) as tiff:
        for name, size in zip(names, (20, 10), strict=True):
            tiff.write(ramp("u1", (size, 30)), metadata={"name": name})
    assert list(check_file(path)) == ["0", "1"]


def test_pages_that_differ_are_several_series(tmp_path):
    path = tmp_path / "a.tif"
    with tifffile.TiffWriter(path) as tiff:
        for shape, compression in (((20, 30), None), ((20, 30), "zlib"), ((9, 9), None)):
            tiff.write(ramp("u1", shape), compression=compression, metadata=None)
    assert len(check_file(path)) == 3


def test_axes_name_dimensions(tmp_path):
    path = tmp_path / "a.ome.tif"
    tifffile.imwrite(path, ramp("u1", (2, 3, 4, 20, 30)), metadata={"axes": "TZCYX"})
    array = check_file(path)["0"]
    assert array.metadata.dimension_names == ("t", "z", "c", "y", "x")


def test_repeated_axes_get_different_names(tmp_path):
    path = tmp_path / "a.tif"
    data = ramp("u1", (2, 3, 4, 20, 30))
    tifffile.imwrite(path, data, compression="zlib", photometric="minisblack")
    names = check_file(path)["0"].metadata.dimension_names
    assert names == ("q", "q_1", "q_2", "y", "x")


@pytest.mark.parametrize("subifds", [True, False])
@pytest.mark.parametrize("compression", [None, "zlib", "jpeg"])
def test_pyramids_are_groups(tmp_path, subifds, compression):
    path = tmp_path / "a.tif"
    data = ramp("u1", (256, 192))
    options = {"tile": (64, 64), "compression": compression}
    with tifffile.TiffWriter(path) as tiff:
        tiff.write(data, subifds=2 if subifds else None, **options)
        for step in (2, 4):
            tiff.write(data[::step, ::step], subfiletype=1, **options)
    group = check_file(path)
    assert [array.shape for array in group["0"].values()] == [(256, 192), (128, 96), (64, 48)]
    assert [each["path"] for each in group["0"].attrs["multiscales"][0]["datasets"]] == [*"012"]


def test_pyramids_of_stacks(tmp_path):
    path = tmp_path / "a.ome.tif"
    data = ramp("u2", (3, 128, 96))
    with tifffile.TiffWriter(path) as tiff:
        tiff.write(data, subifds=1, tile=(32, 32), compression="zlib", metadata={"axes": "CYX"})
        tiff.write(data[:, ::2, ::2], subfiletype=1, tile=(32, 32), compression="zlib")
    assert check_file(path)["0/1"].shape == (3, 64, 48)


def test_imagej_stacks_lie_in_one_piece(tmp_path):
    path = tmp_path / "a.tif"
    data = ramp("u2", (4, 3, 2, 20, 30))
    tifffile.imwrite(path, data, imagej=True, metadata={"axes": "TZCYX"})
    array = check_file(path)["0"]
    assert array.chunks == (1, 1, 1, 20, 30)
    assert array.manifest.offset.nbytes == 0
    assert array.metadata.dimension_names == ("t", "z", "c", "y", "x")


def test_contiguous_pages_with_gaps(tmp_path):
    path = tmp_path / "a.tif"
    data = ramp("u2", (5, 20, 30))
    with tifffile.TiffWriter(path) as tiff:
        for index, page in enumerate(data):
            tiff.write(page, contiguous=False, metadata=None, software="x" * (20 * index % 50))
    array = check_file(path)["0"]
    assert array.shape == (5, 20, 30)
    assert same(array[3, 4:9], data[3, 4:9])


def test_contiguous_pages_with_strips_in_another_order_are_refused(tmp_path):
    # tifffile reads only the first offset of a page when its key frame lies in one piece.
    path = tmp_path / "a.tif"
    with tifffile.TiffWriter(path) as tiff:
        for page in ramp("u2", (9, 20, 30)):
            tiff.write(page, contiguous=False, metadata=None, rowsperstrip=10)
    check_file(path)
    with tifffile.TiffFile(path) as tiff:
        offsets = tiff.pages[4].tags[273].value
    patch_tag(path, 273, (offsets[0], offsets[0]), page=4)
    with pytest.raises(SourceError, match="strips lie in different orders"):
        scan(path)


def test_large_pages_in_one_piece_are_cut_into_rows(tmp_path):
    path = tmp_path / "a.tif"
    data = ramp("u2", (2, 3000, 1100))
    tifffile.imwrite(path, data, rowsperstrip=7, metadata={"axes": "TYX"})
    array = check_file(path)["0"]
    assert array.chunks == (1, 1500, 1100)
    assert array.nchunks == 4


def test_large_pages_of_awkward_height_end_in_a_short_chunk(tmp_path):
    path = tmp_path / "a.tif"
    data = ramp("u2", (2999, 1100))
    tifffile.imwrite(path, data)
    array = check_file(path)["0"]
    assert array.chunks == ((1906, 1093), (1100,))


def test_large_separate_planes_in_one_piece(tmp_path):
    path = tmp_path / "a.tif"
    data = ramp("u2", (3, 2000, 1100))
    tifffile.imwrite(path, data, photometric="rgb", planarconfig="separate")
    assert check_file(path)["0"].chunks[0] == 1


def split_tables(jpeg):
    """Move the quantization and Huffman tables of a JPEG stream to a stream of their own."""
    tables, image, place = b"", b"", 2
    while jpeg[place + 1] != 0xDA:
        stop = place + 2 + int.from_bytes(jpeg[place + 2 : place + 4], "big")
        if jpeg[place + 1] in (0xDB, 0xC4):
            tables += jpeg[place:stop]
        else:
            image += jpeg[place:stop]
        place = stop
    return b"\xff\xd8" + tables + b"\xff\xd9", b"\xff\xd8" + image + jpeg[place:]


@pytest.mark.parametrize("count", [3, 12])
def test_jpeg_tables_may_differ_between_pages(tmp_path, count):
    path = tmp_path / "a.tif"
    with tifffile.TiffWriter(path) as tiff:
        for index in range(count):
            data = ramp("u1", (32, 48), seed=index)
            jpeg = imagecodecs.jpeg8_encode(data, level=95 if index % 3 else 40)
            tables, image = split_tables(jpeg)
            tiff.write(
                iter([image]),
                shape=data.shape,
                dtype=data.dtype,
                compression="jpeg",
                photometric="minisblack",
                extratags=[(347, 7, len(tables), tables, True)],
                metadata=None,
                rowsperstrip=32,
            )
    array = check_file(path)["0"]
    expected = [-1 if index % 3 == 0 else 0 for index in range(count)]
    assert array.manifest.decoder.reshape(-1).tolist() == expected


@pytest.mark.parametrize(
    ("tag", "value"), [(259, 8), (317, 3), (258, 8), (257, 19), (278, 5), (262, 0)]
)
def test_pages_stored_otherwise_are_refused(tmp_path, tag, value):
    # tifffile reads such pages as it reads the first one.
    path = tmp_path / "a.ome.tif"
    data = np.zeros((12, 20, 30), "u4")
    tifffile.imwrite(
        path, data, compression="lzw", rowsperstrip=10, predictor=True, metadata={"axes": "TYX"}
    )
    check_file(path)
    with tifffile.TiffFile(path, mode="r+") as tiff:
        tiff.pages[4].tags[tag].overwrite(value)
    with pytest.raises(UnsupportedError, match="stored in different ways: page 4"):
        scan(path)


@pytest.mark.parametrize("bigtiff", [False, True])
def test_pages_with_far_tag_values_are_alike(tmp_path, bigtiff):
    # Bits per sample of three samples do not fit into the entry itself.
    path = tmp_path / "a.tif"
    tifffile.imwrite(
        path, ramp("u1", (12, 20, 30, 5)), compression="zlib", bigtiff=bigtiff, metadata=None,
        photometric="rgb", planarconfig="contig",
    )  # fmt: skip
    check_file(path)


def write_ome(folder, names, missing=(), compression="zlib"):
    """Write an OME series of one plane a file; return the path of the first."""
    planes = ramp("u1", (len(names), 16, 20))
    blocks = "".join(
        f'<TiffData FirstT="{i}" IFD="0" PlaneCount="1">'
        f'<UUID FileName="{name}">urn:uuid:{i}</UUID></TiffData>'
        for i, name in enumerate(names)
    )
    xml = (
        '<?xml version="1.0" encoding="UTF-8"?><OME '
        'xmlns="http://www.openmicroscopy.org/Schemas/OME/2016-06" UUID="urn:uuid:0">'
        '<Image ID="Image:0"><Pixels ID="Pixels:0" DimensionOrder="XYCZT" Type="uint8" '
        f'SizeX="20" SizeY="16" SizeC="1" SizeZ="1" SizeT="{len(names)}">'
        f'<Channel ID="Channel:0:0" SamplesPerPixel="1"/>{blocks}</Pixels></Image></OME>'
    )
    for name, plane in zip(names, planes, strict=True):
        if name not in missing:
            tifffile.imwrite(folder / name, plane, description=xml, metadata=None,
                             compression=compression)  # fmt: skip
    return folder / names[0], planes


@pytest.mark.parametrize("compression", [None, "zlib"])
def test_ome_series_over_several_files(tmp_path, compression):
    names = ["a.ome.tif", "b.ome.tif", "c.ome.tif"]
    path, planes = write_ome(tmp_path, names, compression=compression)
    array = check_file(path)["0"]
    assert same(array[...], planes)
    assert [source.uri.rsplit("/", 1)[1] for source in array.manifest.sources] == [
        "a.ome.tif",
        "b.ome.tif",
        "c.ome.tif",
    ]


def test_ome_series_with_a_missing_file_is_refused(tmp_path):
    # tifffile reads its planes as zeros.
    path, _ = write_ome(tmp_path, ["a.ome.tif", "b.ome.tif"], missing=["b.ome.tif"])
    with pytest.raises(UnsupportedError, match=r"missing, or not readable, b\.ome\.tif"):
        scan(path)


def test_ome_series_do_not_reach_into_other_folders(tmp_path):
    (tmp_path / "inner").mkdir()
    path, _ = write_ome(tmp_path / "inner", ["a.ome.tif", "../b.ome.tif"])
    # Later versions of tifffile do not open such files, but read their planes as zeros.
    with pytest.raises(VirtualZarrError, match=r"in another folder|not readable, \.\./b"):
        scan(path)


def test_missing_pages_read_as_zero(tmp_path):
    path = tmp_path / "a.ome.tif"
    tifffile.imwrite(path, ramp("u1", (4, 16, 20)), compression="zlib", metadata={"axes": "TYX"})
    with tifffile.TiffFile(path) as tiff:
        xml = tiff.ome_metadata.replace('PlaneCount="4"', 'PlaneCount="3"')
    patch_tag(path, 270, xml)
    array = check_file(path)["0"]
    assert array.manifest.nrefs == 3
    assert not array[3].any()


def test_what_is_refused_is_left_out_with_a_warning(tmp_path):
    path = tmp_path / "a.tif"
    with tifffile.TiffWriter(path) as tiff:
        tiff.write(ramp("u1", (20, 30)), metadata=None)
        tiff.write(ramp("u1", (10, 30)), compression="lzw", metadata=None)
    patch_tag(path, 259, 34676, page=1)
    with pytest.raises(
        UnsupportedError, match=r"compression 34676 \(SGILOG\) \[file .*, variable 1"
    ):
        scan(path)
    with pytest.warns(SkippedVariableWarning, match="34676"):
        group = scan(path, on_error="warn")
    assert list(group) == ["0"]
    assert group.skipped == {"1": "TIFF compression 34676 (SGILOG)"}
    assert isinstance(group["0"], Array)


def test_levels_are_refused_on_their_own(tmp_path):
    path = tmp_path / "a.tif"
    data = ramp("u1", (64, 64))
    with tifffile.TiffWriter(path) as tiff:
        tiff.write(data, tile=(16, 16), compression="zlib", metadata=None)
        tiff.write(data[::2, ::2], tile=(16, 16), compression="lzw", subfiletype=1, metadata=None)
    patch_tag(path, 259, 32809, page=1)
    with pytest.warns(SkippedVariableWarning):
        group = scan(path, on_error="warn")
    assert isinstance(group["0"], Group)
    assert list(group["0"]) == ["0"]
    assert list(group.skipped) == ["0/1"]


def slide(sampling, columns, rows, seed):
    """Return a JPEG stream with restart markers, and where the data between them begin.

    Blocks are of one colour each: their codes are four bits of length, the difference, and one bit.
    """
    rng = np.random.default_rng(seed)
    h, v = sampling

    def segment(marker, body):
        return bytes([0xFF, marker]) + (len(body) + 2).to_bytes(2, "big") + body

    size = (8 * v * rows).to_bytes(2, "big") + (8 * h * columns * 2).to_bytes(2, "big")
    lengths = bytes([0, 0, 0, 12]) + bytes(12)
    head = b"\xff\xd8" + segment(0xDB, b"\0" + bytes([8]) * 64)
    head += segment(0xC0, b"\x08" + size + bytes([3, 1, 16 * h + v, 0, 2, 0x11, 0, 3, 0x11, 0]))
    head += segment(0xC4, b"\0" + lengths + bytes(range(12)))
    head += segment(0xC4, b"\x10" + bytes([1]) + bytes(15) + b"\0") + segment(0xDD, b"\0\x02")
    head += segment(0xDA, bytes([3, 1, 0, 2, 0, 3, 0, 0, 63, 0]))
    starts, data = [], head
    for index in range(columns * rows):
        starts.append(len(data))
        bits, last = "", [0, 0, 0]
        for _ in range(2):
            for component in [0] * (h * v) + [1, 2]:
                value = int(rng.integers(-100, 100))
                difference, last[component] = value - last[component], value
                length = abs(difference).bit_length()
                coded = difference if difference > 0 else difference + (1 << length) - 1
                bits += f"{length:04b}" + (f"{coded:0{length}b}" if length else "") + "0"
        bits += "1" * (-len(bits) % 8)
        raw = int(bits, 2).to_bytes(len(bits) // 8, "big").replace(b"\xff", b"\xff\0")
        last_one = index == columns * rows - 1
        data += raw + (b"\xff\xd9" if last_one else bytes([0xFF, 0xD0 + index % 8]))
    return data, starts


@pytest.mark.parametrize("sampling", [(1, 1), (2, 1), (2, 2)])
def test_slides_of_jpeg_with_restart_markers(tmp_path, sampling, monkeypatch):
    path = tmp_path / "a.tif"
    data, starts = slide(sampling, 5, 4, seed=3)
    shape = (8 * sampling[1] * 4, 8 * sampling[0] * 10, 3)
    tifffile.imwrite(
        path, iter([data]), shape=shape, dtype="u1", compression="jpeg", photometric="ycbcr",
        subsampling=sampling, metadata=None, rowsperstrip=shape[0],
        extratags=[(65420, 4, 1, 1, True), (271, 2, 0, "slides", True),
                   (65426, 4, len(starts), starts, True)],
    )  # fmt: skip
    with tifffile.TiffFile(path) as tiff:
        assert tiff.pages[0].jpegheader is not None
        tiles = [tile for tile, *_ in tiff.pages[0].segments()]
    array = check_file(path)["0"]
    assert array.nchunks == (1 if sampling != (1, 1) else 20)
    # Larger pages are read by tiles, each as tifffile decodes it.
    monkeypatch.setattr(config.tuning, "tiff_jpeg_page_bytes", 100)
    array = scan(path)["0"]
    assert array.chunks == (8 * sampling[1], 16 * sampling[0], 3)
    for index, tile in enumerate(tiles):
        assert same(array.blocks[index // 5, index % 5, 0], tile[0])


@pytest.mark.parametrize("shape", [(0, 4), (0, 4, 3)])
def test_images_without_rows(tmp_path, shape):
    path = tmp_path / "a.tif"
    photometric = "rgb" if len(shape) == 3 else "minisblack"
    tifffile.imwrite(path, ramp("u2", (5, *shape[1:])), photometric=photometric, metadata=None)
    patch_tag(path, 257, 0)
    assert check_file(path)["0"].shape == shape
