"""What microscopes, scanners and their programs write, tag by tag, as tifffile groups it."""

from __future__ import annotations

import io
import json
import struct

import imagecodecs
import numpy as np
import pytest
import tifffile

from tests.formats.tiff.helpers import check_file, ramp, same
from tests.formats.tiff.rawtiff import Page, Writer, image, write
from virtualzarr.errors import SourceError, UnsupportedError
from virtualzarr.formats.tiff import scan

SIZE = (20, 30)


def check_kind(path, kind, *found):
    """Compare all series of a file, of which tifffile must say what they are."""
    with tifffile.TiffFile(path) as tiff:
        assert {series.kind for series in tiff.series} == {kind}
        assert [(series.axes, len(series.levels)) for series in tiff.series] == list(found)
    return check_file(path)


# -- MetaMorph -------------------------------------------------------------------------------------


def write_stk(path, planes=5, distances=(1, 1, 1, 1, 1), compression=1):
    """Write a stack: one directory, whose UIC2 tag counts the planes that lie behind the first."""
    data = ramp("u2", (planes, *SIZE))
    uic2 = b"".join(
        struct.pack("<6I", distances[k], 1, 2450000, 1000 * k, 2450000, 5) for k in range(planes)
    )
    wavelengths = struct.pack(f"<{2 * planes}I", *[500, 1] * planes)
    writer = Writer()
    at = writer.put(data.tobytes())
    rows = range(0, SIZE[0], 8)
    row = SIZE[1] * 2
    tags = dict(image(data[0], rows=8).tags)
    tags |= {
        259: compression,
        273: (4, [at + row * first for first in rows]),
        279: (4, [row * min(8, SIZE[0] - first) for first in rows]),
        33628: (4, struct.pack("<2I", 0, 0), 1),
        33629: (5, uic2, planes),
        33630: (5, wavelengths, planes),
    }
    writer.chain(Page(tags))
    path.write_bytes(writer.data)
    return data


@pytest.mark.parametrize(
    ("planes", "distances", "axes"),
    [(5, (1,) * 5, "ZYX"), (5, (0,) * 5, "TYX"), (1, (1,), "YX")],
)
def test_stacks_of_metamorph(tmp_path, planes, distances, axes):
    path = tmp_path / "a.stk"
    data = write_stk(path, planes, distances)
    group = check_kind(path, "stk", (axes, 1))
    assert same(group["0"][...], data if planes > 1 else data[0])


def test_truncated_stacks_of_metamorph(tmp_path):
    path = tmp_path / "a.stk"
    write_stk(path)
    raw = bytearray(path.read_bytes())
    tag = raw.index(struct.pack("<HHI", 33629, 5, 5))
    raw[tag + 4 : tag + 8] = struct.pack("<I", 6)
    path.write_bytes(raw)
    with pytest.raises(SourceError, match="the file ends at"):
        scan(path)


def test_compressed_stacks_of_metamorph_are_refused(tmp_path):
    # tifffile reads the first plane only, whatever the tags say.
    path = tmp_path / "a.stk"
    write_stk(path, compression=5)
    with pytest.raises(SourceError, match="needs 5 pages; the file has 1"):
        scan(path)


# -- Zeiss LSM -------------------------------------------------------------------------------------


def write_lsm(path, times=3, channels=3, compression=1):
    """Write planes and thumbnails by turns; of compressed strips LSM tells the raw size."""
    dtype = np.dtype(tifffile.TIFF.CZ_LSMINFO)
    info = np.zeros((), dtype)
    info["MagicNumber"], info["StructureSize"], info["ScanType"] = 67127628, dtype.itemsize, 3
    lengths = {"X": SIZE[1], "Y": SIZE[0], "Z": 1, "Channels": channels, "Time": times}
    for name, length in lengths.items():
        info[f"Dimension{name}"] = length
    data = ramp("u1", (times, channels, *SIZE))
    writer = Writer()
    shared = writer.put(struct.pack("<2H", 8, 8))
    for time in range(times):
        stored = data[time]
        if compression == 5:
            stored = np.diff(stored, axis=-1, prepend=np.uint8(0))
        encode = imagecodecs.lzw_encode if compression == 5 else bytes
        segments = [encode(plane.tobytes()) for plane in stored]
        at = [writer.put(raw) for raw in segments]
        bits = (3, struct.pack("<I", shared), 2) if channels == 2 else (3, [8] * channels)
        tags = {
            256: SIZE[1], 257: SIZE[0], 258: bits, 259: compression, 262: 2, 277: channels,
            278: SIZE[0], 284: 2, 273: (4, at), 279: (4, [SIZE[0] * SIZE[1]] * channels),
        }  # fmt: skip
        tags |= {34412: (1, info.tobytes())} if time == 0 else {}
        writer.chain(Page(tags | ({317: 2} if compression == 5 else {})))
        small = ramp("u1", (3, 4, 6), seed=time)
        tags = {254: 1, 256: 6, 257: 4, 258: (3, [8] * 3), 259: 1, 262: 2, 277: 3, 278: 4, 284: 2}
        writer.chain(Page(tags, [plane.tobytes() for plane in small]))
    path.write_bytes(writer.data)
    return data


@pytest.mark.parametrize("compression", [1, 5])
@pytest.mark.parametrize("channels", [1, 2, 3])
def test_lsm(tmp_path, channels, compression):
    path = tmp_path / "a.lsm"
    data = write_lsm(path, channels=channels, compression=compression)
    axes = "TYX" if channels == 1 else "TCYX"
    group = check_kind(path, "lsm", (axes, 1), ("TSYX", 1))
    assert same(group["0"][...], data.squeeze())


# -- slides ----------------------------------------------------------------------------------------

SLIDE = {"metadata": None, "photometric": "rgb", "compression": "jpeg"}


@pytest.mark.parametrize("focal", [1, 3])
def test_svs(tmp_path, focal):
    path, data = tmp_path / "a.svs", ramp("u1", (256, 256, 3))
    with tifffile.TiffWriter(path) as tiff:
        tiff.write(data, tile=(64, 64), description="Aperio Image Library v1|AppMag = 20", **SLIDE)
        tiff.write(data[::4, ::4], description="Aperio", rowsperstrip=16, **SLIDE)
        for plane in range(1, focal):
            tiff.write(data + np.uint8(plane), tile=(64, 64), description="Aperio", **SLIDE)
        for step in (4, 16):
            for plane in range(focal):
                part = data[::step, ::step] + np.uint8(plane)
                tiff.write(part, tile=(64, 64), description="Aperio", **SLIDE)
        tiff.write(
            data[:50, :70], description="Aperio label", subfiletype=1, rowsperstrip=7,
            **SLIDE | {"compression": "lzw", "predictor": True},
        )  # fmt: skip
        tiff.write(data[:60, :70], description="macro", subfiletype=9, rowsperstrip=16, **SLIDE)
    axes = "ZYXS" if focal > 1 else "YXS"
    group = check_kind(path, "svs", (axes, 3), ("YXS", 1), ("YXS", 1), ("YXS", 1))
    assert list(group) == ["Baseline", "Thumbnail", "Label", "Macro"]


def test_scn(tmp_path):
    path, data = tmp_path / "a.scn", ramp("u1", (2, 128, 128))
    sizes = "".join(
        f'<dimension c="{c}" z="0" r="{r}" ifd="{2 * r + c}"/>' for r in range(2) for c in range(2)
    )
    xml = (
        '<?xml version="1.0"?><scn xmlns="http://www.leica-microsystems.com/scn/2010/10/01">'
        f'<collection name="c"><image name="i"><pixels sizeX="128" sizeY="128">{sizes}</pixels>'
        "</image></collection></scn>"
    )
    with tifffile.TiffWriter(path, bigtiff=True) as tiff:
        for step in (1, 2):
            for channel in range(2):
                tiff.write(
                    data[channel, ::step, ::step], tile=(64, 64), compression="jpeg",
                    metadata=None, contiguous=False,
                    description=xml if step == 1 and channel == 0 else None,
                )  # fmt: skip
    check_kind(path, "scn", ("CYX", 2))


def test_bif(tmp_path):
    path, data = tmp_path / "a.bif", ramp("u1", (128, 128, 3))
    with tifffile.TiffWriter(path, bigtiff=True) as tiff:
        tiff.write(
            data[:64, :48], description="Label_Image", software="ScanOutputManager 1.1",
            extratags=[(700, 1, 6, b"<iScan", True)], rowsperstrip=16, **SLIDE,
        )  # fmt: skip
        tiff.write(data[:33, :48], description="Thumbnail", rowsperstrip=16, **SLIDE)
        for level in range(3):
            part = data[:: 1 << level, :: 1 << level]
            tiff.write(part, tile=(32, 32), description=f"level={level} mag=40", **SLIDE)
    group = check_kind(path, "bif", ("YXS", 3), ("YXS", 1), ("YXS", 1))
    with tifffile.TiffFile(path) as tiff:  # versions of tifffile have different names
        assert list(group) == [series.name for series in tiff.series]


def test_qptiff(tmp_path):
    path, data = tmp_path / "a.qptiff", ramp("u1", (3, 256, 256))
    options = {"metadata": None, "compression": "lzw", "software": "PerkinElmer-QPI"}
    colours = {"photometric": "rgb", **options}
    with tifffile.TiffWriter(path, bigtiff=True) as tiff:
        for plane in data:
            tiff.write(plane, tile=(64, 64), contiguous=False, **options)
        tiff.write(ramp("u1", (40, 50, 3)), **colours)
        for step in (2, 4):
            shape = {"tile": (64, 64)} if step == 2 else {"rowsperstrip": 64}
            for plane in data:
                part = plane[::step, ::step]
                tiff.write(part, contiguous=False, subfiletype=1, **shape, **options)
        tiff.write(ramp("u1", (60, 50, 3)), **colours)
        tiff.write(ramp("u1", (70, 50, 3)), **colours)
    group = check_kind(path, "qpi", ("CYX", 3), ("YXS", 1), ("YXS", 1), ("YXS", 1))
    assert list(group) == ["Baseline", "Thumbnail", "Macro", "Label"]


def test_philips(tmp_path):
    # Levels are stored with padding that tifffile takes off.
    path, data = tmp_path / "a.tiff", ramp("u1", (600, 500, 3))
    spacings = "".join(
        '<Array><DataObject ObjectType="PixelDataRepresentation">'
        f'<Attribute Name="DICOM_PIXEL_SPACING">"{0.1 * 2**k}" "{0.1 * 2**k}"</Attribute>'
        "</DataObject></Array>"
        for k in range(3)
    )
    xml = (
        f'<?xml version="1.0"?><DataObject ObjectType="DPUfsImport"><A>{spacings}</A></DataObject>'
    )
    with tifffile.TiffWriter(path, bigtiff=True) as tiff:
        for level in range(3):
            part = data[:: 1 << level, :: 1 << level]
            tiff.write(
                np.pad(part, [(0, -n % 64) for n in part.shape[:2]] + [(0, 0)]), tile=(64, 64),
                description=f"level={level}" if level else xml, software="Philips DP v1.0", **SLIDE,
            )  # fmt: skip
        tiff.write(data[:60, :70], description="Macro", rowsperstrip=16, **SLIDE)
        tiff.write(data[:50, :70], description="Label", rowsperstrip=16, **SLIDE)
    group = check_kind(path, "philips", ("YXS", 3), ("YXS", 1), ("YXS", 1))
    assert group["Baseline/1"].shape == (320, 256, 3)


def test_argos(tmp_path):
    path, data = tmp_path / "a.avs", ramp("u1", (128, 128, 3))
    tag = [(65000, 2, 0, "<ArgosScan", True)]
    with tifffile.TiffWriter(path) as tiff:
        tiff.write(data, tile=(32, 32), extratags=tag, **SLIDE)
        tiff.write(data[::2, ::2], tile=(32, 32), subfiletype=1, **SLIDE)
        tiff.write(data[:77], metadata=None, photometric="rgb")
        tiff.write(data[:66, :50], metadata=None, photometric="rgb")
    group = check_kind(path, "avs", ("YXS", 2), ("YXS", 1), ("YXS", 1))
    assert list(group) == ["Baseline", "Map", "Macro"]


# -- Micro-Manager ---------------------------------------------------------------------------------


def write_mmstack(path, places, data, aborted=False):
    """Write frames of channels and slices behind directories of 162 bytes, and their index."""
    summary = {"MicroManagerVersion": "1.4", "Prefix": "mm", "SlicesFirst": True}
    summary |= {"TimeFirst": False, "Channels": 2, "Slices": 3, "Frames": 1, "Positions": 1}
    text = json.dumps(summary).encode()
    numbers = (54773648, 0, 483765892, 0, 99384722, 0, 2355492, len(text))
    writer = Writer(start=struct.pack("<8I", *numbers) + text)
    rows = []
    for channel, z in places:
        at = writer.put(b"")
        tags = [
            (256, 4, 1, SIZE[1]), (257, 4, 1, SIZE[0]), (258, 3, 1, 16), (259, 3, 1, 1),
            (262, 3, 1, 1), (273, 4, 1, at + 162), (277, 3, 1, 1), (278, 4, 1, SIZE[0]),
            (279, 4, 1, 2 * SIZE[0] * SIZE[1]), (282, 4, 1, 1), (283, 4, 1, 1), (296, 3, 1, 3),
            (51123, 2, 8, 20),
        ]  # fmt: skip
        table = b"".join(struct.pack("<HHII", *tag) for tag in tags)
        writer.data += struct.pack("<H", 13) + table + bytes(4)
        writer.data[writer.link : writer.link + 4] = struct.pack("<I", at)
        writer.link = at + 158
        writer.data += data[z, channel].tobytes()
        rows.append((channel, z, 0, 0, at))
    if aborted:
        rows.append((1, 2, 0, 0, 0))
    index = struct.pack("<2I", 3453623, len(rows)) + np.array(rows, "<u4").tobytes()
    writer.data[12:16] = struct.pack("<I", writer.put(index))
    path.write_bytes(writer.data)


PLACES = [(channel, z) for channel in range(2) for z in range(3)]


def test_stacks_of_micro_manager(tmp_path):
    path, data = tmp_path / "mm_MMStack_Pos0.ome.tif", ramp("u2", (3, 2, *SIZE))
    write_mmstack(path, PLACES, data)
    assert same(check_kind(path, "mmstack", ("ZCYX", 1))["0"][...], data)


def test_stacks_of_micro_manager_in_several_files(tmp_path):
    data = ramp("u2", (3, 2, *SIZE))
    paths = [tmp_path / f"mm_MMStack_{k}.ome.tif" for k in range(2)]
    write_mmstack(paths[0], PLACES[:4], data)
    write_mmstack(paths[1], PLACES[4:], data)
    for path in paths:
        array = check_kind(path, "mmstack", ("ZCYX", 1))["0"]
        assert same(array[...], data)
        assert {source.uri for source in array.manifest.sources} == {str(each) for each in paths}
    # Without the other file there are only its own frames, and the shape says so.
    paths[0].unlink()
    assert same(check_kind(paths[1], "mmstack", ("ZYX", 1))["0"][...], data[1:, 1])


def test_frames_that_micro_manager_lost_are_refused(tmp_path):
    # tifffile takes the beginning of the file for them.
    path = tmp_path / "mm_MMStack_Pos0.ome.tif"
    write_mmstack(path, PLACES[:5], ramp("u2", (3, 2, *SIZE)), aborted=True)
    with pytest.raises(SourceError, match="a TIFF page without data"):
        scan(path)


@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("names", [("green", "red"), (0, 1)])
def test_ndtiff(tmp_path, version, names):
    data = ramp("u2", (2, 3, *SIZE))
    index, paths = b"", []
    for part, name in enumerate(names):
        start = struct.pack("<2I", 483729, version)
        start += struct.pack("<I", 1) if version == 3 else b""
        writer = Writer(start=start + struct.pack("<2I", 2355492, 2) + b"{}")
        paths.append(tmp_path / f"NDTiffStack{'_1' if part else ''}.tif")
        for z in range(3):
            writer.chain(image(data[part, z], t51123='{"a": 1}'))
            with tifffile.TiffFile(io.BytesIO(writer.data)) as tiff:
                at = tiff.pages[z].dataoffsets[0]
            axes = json.dumps({"channel": name, "z": z - 1}).encode()
            file = paths[-1].name.encode()
            index += struct.pack("<I", len(axes)) + axes + struct.pack("<I", len(file)) + file
            index += struct.pack("<IiiiiIii", at, SIZE[1], SIZE[0], 1, 0, 0, 0, 0)
        paths[-1].write_bytes(writer.data)
    (tmp_path / "NDTiff.index").write_bytes(index)
    for path in paths:
        assert same(check_kind(path, "ndtiff", ("CZYX", 1))["0"][...], data)


# -- ScanImage, Olympus, NIH Image -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("count", "axes", "shape"),
    [
        (12, "ZTCYX", (2, 3, 2, *SIZE)),
        (7, "TCYX", (7, *SIZE)),  # the microscope was stopped
        (13, "ZTCYX", (13, *SIZE)),
    ],
)
def test_scanimage(tmp_path, count, axes, shape):
    path, data = tmp_path / "a.tif", ramp("i2", (count, *SIZE))
    text = "SI.hChannels.channelSave = [1;2]\nSI.hStackManager.framesPerSlice = 3\n"
    raw = text.encode() + b"\0"
    head = struct.pack("<4I", 0x07030301, 3, len(raw), 0)
    writer = Writer(big=True, start=head + raw)
    for number, frame in enumerate(data):
        writer.chain(image(frame, t305=text, t270=f"frameNumbers = {number}"))
    path.write_bytes(writer.data)
    array = check_kind(path, "scanimage", (axes, 1))["0"]
    assert same(array[...], data.reshape(shape))
    assert array.dims == (("z", "t", "c", "y", "x") if count == 12 else ("i", "y", "x"))


@pytest.mark.parametrize("count", [3, 8])
def test_old_scanimage(tmp_path, count):
    # tifffile computes where the frames are.
    path, data = tmp_path / "a.tif", ramp("i2", (count, *SIZE))
    writer = Writer()
    for number, frame in enumerate(data):
        writer.chain(image(frame, t270=f"state.configPath={number:04}"))
    path.write_bytes(writer.data)
    assert same(check_kind(path, "scanimage", ("IYX", 1))["0"][...], data)


@pytest.mark.parametrize("compression", [1, 5])
def test_fluoview(tmp_path, compression):
    path, data = tmp_path / "a.tif", ramp("u2", (2, 3, *SIZE))
    header = np.zeros((), tifffile.TIFF.MM_HEADER)
    header["ImageName"] = b"cells"
    for place, (name, length) in enumerate([("X", 30), ("Y", 20), ("Z", 3), ("Ch", 2)]):
        header["Dimensions"][place] = (name, length, 0, 1, "um")
    tags = {"t34361": (1, header.tobytes()), "t34362": (12, [0.0] * 8), "t259": compression}
    writer = Writer()
    for number, plane in enumerate(data.reshape(6, *SIZE)):
        page = image(plane, **(tags if number == 0 else {"t259": compression}))
        if compression == 5:
            page.segments = [imagecodecs.lzw_encode(raw) for raw in page.segments]
        writer.chain(page)
    path.write_bytes(writer.data)
    assert same(check_kind(path, "fluoview", ("CZYX", 1))["0"][...], data)


def test_olympus_sis(tmp_path):
    path, data = tmp_path / "a.tif", ramp("u2", (6, *SIZE))
    record = struct.pack("<4s6xhhhhh6x32sH", b"SIS0", 1, 2, 3, 4, 100, b"name", 0)
    writer = Writer()
    for number, plane in enumerate(data):
        writer.chain(image(plane, **({} if number else {"t33560": (7, record)})))
    path.write_bytes(writer.data)
    assert same(check_kind(path, "sis", ("IYX", 1))["0"][...], data)


def test_nih_image(tmp_path):
    path, data = tmp_path / "a.tif", ramp("u1", (4, *SIZE))
    header = (1, bytes(np.dtype(tifffile.TIFF.NIH_IMAGE_HEADER).itemsize))
    writer = Writer(byteorder=">")
    for number, plane in enumerate(data):
        writer.chain(image(plane, **({} if number else {"t43314": header})))
    path.write_bytes(writer.data)
    assert same(check_kind(path, "nih", ("IYX", 1))["0"][...], data)


# -- gels ------------------------------------------------------------------------------------------


def gel(data, kind, ratio=(3, 7), **tags):
    """Return a page of MD Gel; kind 2 stores square roots, kind 128 intensities."""
    texts = {f"t{code}": "text" for code in (33448, 33449, 33450, 33451, 33452)}
    scale = (5, struct.pack("<2I", *ratio), 1)
    return image(data, t33445=(4, [kind]), t33446=scale, t33447=1, **texts, **tags)


@pytest.mark.parametrize("kind", [2, 128, 1])
@pytest.mark.parametrize("compression", [1, 5])
@pytest.mark.parametrize("dtype", ["u1", "u2"])
def test_gels(tmp_path, dtype, compression, kind):
    path, data = tmp_path / "a.gel", np.random.default_rng(0).integers(0, 256, SIZE).astype(dtype)
    page = gel(data, kind, t259=compression, t278=8)
    if compression == 5:
        raws = [data[at : at + 8].tobytes() for at in (0, 8, 16)]
        page.segments = [imagecodecs.lzw_encode(raw) for raw in raws[:2]] + [None]
    write(path, [page])
    array = check_kind(path, "mdgel", ("YX", 1))["0"]
    assert array.dtype == (dtype if kind == 1 else "f4")
    rows = slice(3, 12)
    scale = {1: 1, 2: data[rows].astype("f4") * np.float32(3 / 7), 128: np.float32(3 / 7)}[kind]
    assert np.allclose(array[rows], data[rows] * scale)


def test_gels_of_long_integers_are_refused(tmp_path):
    # tifffile takes them for floats.
    path = tmp_path / "a.gel"
    write(path, [gel(ramp("u4", SIZE), 128)])
    with pytest.raises(UnsupportedError, match="computed from uint32"):
        scan(path)


# -- stacks in one piece ---------------------------------------------------------------------------


@pytest.mark.parametrize("byteorder", "<>")
def test_stacks_of_imagej_beyond_4_gigabytes(tmp_path, byteorder):
    path = tmp_path / "a.tif"
    count, plane = 70_000, ramp("u2", (200, 200))
    text = f"ImageJ=1.53\nimages={count}\nslices=7000\nchannels=10\nhyperstack=true\n"
    stored = plane.astype(f"{byteorder}u2").tobytes()
    # The directory lies before the pixels, as ImageJ writes it.
    tags = dict(image(plane, t270=text).tags) | {273: (4, [4000]), 279: (4, [len(stored)])}
    writer = Writer(byteorder=byteorder)
    writer.chain(Page(tags))
    with path.open("wb") as file:  # with a hole
        file.write(writer.data)
        file.seek(4000 + (count - 1) * len(stored))
        file.write(stored)
    array = scan(path)["0"]
    assert array.shape == (7000, 10, 200, 200)
    assert array.dims == ("z", "c", "y", "x")
    assert same(array[-1, -1], plane)
    assert not array[3500, 4].any()
    with tifffile.TiffFile(path) as tiff:
        whole = tiff.series[0].asarray(out="memmap")
        assert whole.shape == array.shape
        assert np.array_equal(whole[-1, -1], plane)


@pytest.mark.parametrize("byteorder", "<>")
@pytest.mark.parametrize("shape", [(3, 4, 20, 30), (6, 20, 30, 3)])
def test_truncated_series_of_tifffile(tmp_path, shape, byteorder):
    # One directory for all pages.
    path, data = tmp_path / "a.tif", ramp("u2", shape)
    with tifffile.TiffWriter(path, byteorder=byteorder) as tiff:
        tiff.write(data, photometric="rgb" if shape[-1] == 3 else "minisblack",
                   metadata={"axes": "TZYX"[: len(shape)] if shape[-1] != 3 else "TYXS"},
                   truncate=True)  # fmt: skip
    with tifffile.TiffFile(path) as tiff:
        assert len(tiff.pages) == 1
    array = check_kind(path, "shaped", ("TZYX" if shape[-1] != 3 else "TYXS", 1))["0"]
    assert same(array[...], data)
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises((SourceError, UnsupportedError), match="the file ends at"):
        scan(path)
