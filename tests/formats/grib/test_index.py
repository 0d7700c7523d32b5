"""Messages are found wherever they are, and nothing but their heads is read."""

from __future__ import annotations

import random
import subprocess
import sys

import fsspec
import numpy as np
import pytest

import virtualzarr as vz
from tests.formats.damage import flip_everywhere, truncate_everywhere
from tests.formats.grib.helpers import message, outcomes, small
from virtualzarr.codecs import make
from virtualzarr.codecs.core.base import ChunkSpec
from virtualzarr.codecs.grib import message as messages
from virtualzarr.codecs.grib import worker as grib_worker
from virtualzarr.errors import CodecError, SourceError, VirtualZarrError
from virtualzarr.formats.grib import scan
from virtualzarr.formats.paging import PageCache
from virtualzarr.ingest.detect import detect

HEADING = b"\r\r\n001\r\r\nHTXA85 ECMF 011200\r\r\n"


@pytest.mark.parametrize("edition", [1, 2])
def test_garbage_between_messages(tmp_path, edition):
    first, second = (small(n, edition=edition, step=n) for n in range(2))
    path = tmp_path / "a.bin"
    for before, between, behind in [
        (HEADING, b"\r\r\n\3" + HEADING, b"\r\r\n\3"),
        (b"", bytes(100_000), b"GRIX"),
        (b"GRI", b"", bytes(3)),
        (b"x" * 3000, b"7777GRGRI", b"7777"),
    ]:
        path.write_bytes(before + first + between + second + behind)
        assert detect(path) == "grib"
        assert outcomes(path) == []
        assert vz.open(path)["t"][:, 0, 0].tolist() == [0, 1]


def test_editions_mixed(tmp_path):
    path = tmp_path / "a"
    path.write_bytes(small(1, edition=1, level=500) + small(2, edition=2, level=300))
    assert outcomes(path) == []
    group = vz.open(path)
    assert [group[f"grid_{n}/t"][0, 0] for n in (1, 2)] == [1, 2]


def test_no_message(tmp_path):
    path = tmp_path / "a.grib"
    for raw in (b"", b"no such thing", small(1)[:-4] + b"7778", b"GRIB\0\0\0\3" + bytes(100)):
        path.write_bytes(raw)
        with pytest.raises(VirtualZarrError, match=r"a\.grib"):
            vz.open(path, format="grib")


def test_one_damaged_message_is_left_out(tmp_path):
    path = tmp_path / "a.grib"
    good = [small(n, step=n) for n in range(3)]
    path.write_bytes(good[0] + good[1][:-4] + b"xxxx" + good[2])
    with pytest.raises(SourceError, match=r"message at byte \d+.*|does not end with 7777"):
        scan(path)
    with pytest.warns(UserWarning, match="does not end with 7777"):
        group = scan(path, on_error="warn")
    assert group["t"][:, 0, 0].tolist() == [0, 2]
    assert list(group.skipped) == [f"message at byte {len(good[0])}"]


@pytest.mark.parametrize("edition", [1, 2])
def test_truncation_and_damage(tmp_path, edition):
    values = np.array([0, 1, np.nan, np.nan, 4, 5])
    path = tmp_path / "a.grib"
    raw = message(edition, values, Ni=3, Nj=2)
    path.write_bytes(raw)
    truncate_everywhere(path, scan, len(raw), step=7)
    flip_everywhere(path, scan, len(raw), step=5)


PACKINGS = ["grid_simple", "grid_complex", "grid_complex_spatial_differencing", "grid_jpeg",
            "grid_png", "grid_ccsds", "grid_ieee"]  # fmt: skip


@pytest.mark.parametrize("packing", PACKINGS)
def test_any_bytes_of_packings(packing):
    """ecCodes ends the process on nearly every one of these; none gets there."""
    rng = random.Random(packing)
    values = np.random.default_rng(0).random(496).round(2) * 100
    if packing != "grid_png":  # which ecCodes cannot write with holes
        values[::9] = np.nan
    raw = message(values=values, packingType=packing)
    start = raw.index(b"\x05", 16 + 21 + 72 + 34) - 4
    codec, spec = make("virtualzarr.grib"), ChunkSpec((31, 16), np.dtype("f8"))
    for _ in range(300):
        damaged = bytearray(raw)
        for _ in range(rng.choice((1, 2, 3))):
            place = rng.randrange(start, min(len(raw) - 4, start + 300))
            damaged[place] = rng.choice((0, 1, 127, 128, 255, rng.randrange(256)))
        try:
            assert codec.decode(bytes(damaged), spec).shape == (31, 16)
        except CodecError:
            continue


def test_absurd_sizes(tmp_path):
    """What a message claims is compared with its length before memory is taken for it."""
    raw = bytearray(small(0))
    claims = 16 + 21 + 6
    raw[claims : claims + 4] = b"\xff\xff\xff\xf0"
    path = tmp_path / "a.grib"
    path.write_bytes(raw)
    with pytest.raises(VirtualZarrError, match=r"claims 4294967280 points"):
        scan(path)
    codec = make("virtualzarr.grib")
    with pytest.raises(CodecError, match="6 values for a grid of 4294967280 points"):
        codec.decode(bytes(raw), ChunkSpec((2, 3), np.dtype("f8")))
    with pytest.raises(CodecError, match="the block needs 8"):
        codec.decode(small(0), ChunkSpec((2, 4), np.dtype("f8")))


def test_a_message_of_endless_sections(tmp_path):
    """It takes no longer than a file of such a length may."""
    single = small(0)
    sections = messages.field_sections(single)[1]
    few = messages.section(5, bytes(6)) + messages.section(6, b"\xff") + messages.section(7, b"")
    again = messages.section(4, bytes(4)) + few
    body = b"".join(sections[k] for k in sorted(sections)) + again * 5000
    path = tmp_path / "a.grib"
    path.write_bytes(b"GRIB\0\0\0\2" + (20 + len(body)).to_bytes(8, "big") + body + b"7777")
    with pytest.raises(SourceError, match="more than 16384 sections"):
        scan(path)


def test_a_crash_of_what_cannot_be_checked(monkeypatch):
    """It happens in a process of its own, which is started again."""
    raw = message(values=np.random.default_rng(0).random(496), packingType="grid_second_order")
    codec, spec = make("virtualzarr.grib"), ChunkSpec((31, 16), np.dtype("f8"))
    codec.decode(raw, spec)
    grib_worker.worker.process.kill()
    grib_worker.worker.process.wait()
    with pytest.raises(CodecError, match="crashed"):
        codec.decode(raw, spec)
    assert codec.decode(raw, spec).shape == (31, 16)


def test_only_heads_are_read_elsewhere(tmp_path, monkeypatch):
    """Of ten messages of half a megabyte, some pages each, and one request after the other."""
    rng = np.random.default_rng(0)
    raw = b"".join(
        message(values=rng.random(500 * 500), Ni=500, Nj=500, step=n, bitsPerValue=16)
        for n in range(10)
    )
    fsspec.filesystem("memory").pipe_file("/grib/a.grib", raw)
    caches = []
    init = PageCache.__init__
    monkeypatch.setattr(PageCache, "__init__", lambda self, *args: (
        caches.append(self), init(self, *args))[1])  # fmt: skip
    group = vz.open("memory://grib/a.grib")
    assert group["t"].shape == (10, 500, 500)
    assert caches[-1].nbytes < (1 << 20) + 10 * 64 * 1024
    assert caches[-1].requests <= 25
    path = tmp_path / "a.grib"
    path.write_bytes(raw)
    assert np.array_equal(group["t"][...], vz.open(path)["t"][...])


@pytest.mark.parametrize("kind", ["idx", "index", "wrong"])
def test_inventories_beside_files_elsewhere(monkeypatch, kind):
    """They save rounds, and do no harm if they are of another file."""
    rng = np.random.default_rng(0)
    parts = [message(values=rng.random(500 * 500), Ni=500, Nj=500, step=n, bitsPerValue=16)
             for n in range(12)]  # fmt: skip
    starts = np.cumsum([0, *map(len, parts)])[:-1].tolist()
    if kind == "wrong":
        starts = [7, 12345, 10**12, 3 * 10**6]
    text = "".join(f"{n + 1}:{start}:d=2020010100:TMP:\n" for n, start in enumerate(starts))
    if kind == "index":
        text = "".join(f'{{"param": "t", "_offset": {start}}}\n' for start in starts)
    memory = fsspec.filesystem("memory")
    memory.pipe_file(f"/grib-{kind}/b.grib2", b"".join(parts))
    name = "b.index" if kind == "index" else "b.grib2.idx"
    memory.pipe_file(f"/grib-{kind}/{name}", text.encode())
    caches = []
    init = PageCache.__init__
    monkeypatch.setattr(PageCache, "__init__", lambda self, *args: (
        caches.append(self), init(self, *args))[1])  # fmt: skip
    group = vz.open(f"memory://grib-{kind}/b.grib2")
    assert group["t"].shape == (12, 500, 500)
    assert (caches[-1].rounds <= 5) == (kind != "wrong")
    assert caches[-1].nbytes < (1 << 20) + 16 * 64 * 1024


def test_the_extra_is_named():
    code = (
        "import sys; sys.modules['eccodes'] = None\n"
        "import virtualzarr as vz\n"
        "try: vz.open(sys.argv[1], format='grib')\n"
        "except vz.errors.MissingDependencyError as error: print(error)"
    )
    found = subprocess.run(
        [sys.executable, "-c", code, "a.grib"], capture_output=True, text=True, check=True
    )
    assert "pip install 'virtualzarr[grib]'" in found.stdout
