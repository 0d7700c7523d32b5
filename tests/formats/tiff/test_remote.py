"""TIFF files that fsspec opens: the same as from a disk, in few rounds of requests."""

from __future__ import annotations

import itertools

import fsspec
import numpy as np
import pytest
import tifffile

from tests.formats.tiff.helpers import check_file, ramp, same
from tests.formats.tiff.rawtiff import Writer, image
from tests.formats.tiff.test_series import write_ome
from virtualzarr.config import config
from virtualzarr.errors import SourceError, UnsupportedError
from virtualzarr.formats import paging
from virtualzarr.formats.tiff import files, scan
from virtualzarr.formats.tiff.remote import Chain, PagedFile, coalesce_ranges

NOISE = np.random.default_rng(0).integers(0, 256, (700, 700), "u1")


@pytest.fixture
def caches(monkeypatch):
    """The page caches that scans made."""
    made = []

    def pages_of(source):
        made.append(paging.pages_of(source))
        return made[-1]

    monkeypatch.setattr(files, "pages_of", pages_of)
    return made


@pytest.fixture
def scan_far(caches):
    """Scan a local file from a URL; returns the group and the page cache."""

    def far(path):
        fsspec.filesystem("memory").pipe_file(f"/far/{path.name}", path.read_bytes())
        return scan(f"memory://far/{path.name}"), caches[-1]

    return far


def check_same(near, far):
    """Compare everything but where the files are."""
    assert list(near) == list(far)
    for name, node in near.items():
        other = far[name]
        if hasattr(node, "items"):
            check_same(node, other)
            continue
        assert (node.shape, node.dtype, node.dims) == (other.shape, other.dtype, other.dims)
        assert dict(node.attrs) == dict(other.attrs)
        assert np.array_equal(node.manifest.offset, other.manifest.offset)
        assert np.array_equal(node.manifest.length, other.manifest.length)


def write_pages(path, shapes, **options):
    """Write pages of noise, each with a directory of its own."""
    with tifffile.TiffWriter(path, bigtiff=options.pop("bigtiff", False)) as tiff:
        for rows, columns in shapes:
            tiff.write(NOISE[:rows, :columns], contiguous=False, metadata=None, **options)


def test_in_memory(tmp_path):
    data = ramp("u2", (4, 40, 50))
    path = tmp_path / "a.tif"
    tifffile.imwrite(path, data, tile=(16, 16), compression="zlib", photometric="minisblack")
    fsspec.filesystem("memory").pipe_file("/tiff/a.tif", path.read_bytes())
    group = scan("memory://tiff/a.tif")
    assert group["0"].manifest.sources[0].uri == "memory://tiff/a.tif"
    assert same(group["0"][...], data)


def test_over_http(tmp_path, http_server):
    data = ramp("u2", (200, 40, 50))
    tifffile.imwrite(tmp_path / "a.tif", data, compression="zlib", metadata=None)
    url = f"{http_server(tmp_path)}/a.tif"
    array = scan(url)["0"]
    assert len(http_server.requests) <= 3
    assert same(array[17], data[17])


@pytest.mark.parametrize("bigtiff", [False, True])
def test_small_pages_are_read_through(tmp_path, scan_far, bigtiff):
    path = tmp_path / "a.tif"
    write_pages(path, [(40, 40)] * 1500, bigtiff=bigtiff)
    group, cache = scan_far(path)
    check_same(scan(path), group)
    assert cache.rounds <= 3
    assert cache.nbytes <= path.stat().st_size


def test_pages_of_different_length_are_read_through(tmp_path, scan_far):
    path = tmp_path / "a.tif"
    write_pages(path, [(200, 400 + k) for k in range(60)], compression="zlib")
    group, cache = scan_far(path)
    check_same(scan(path), group)
    assert cache.rounds <= 5


def test_directories_far_from_each_other_at_even_distances_are_guessed(tmp_path, scan_far):
    path = tmp_path / "a.tif"
    write_pages(path, [(400, 500)] * 100, rowsperstrip=40)
    group, cache = scan_far(path)
    check_same(scan(path), group)
    assert cache.rounds <= 7
    assert cache.nbytes < path.stat().st_size / 4


def test_tables_of_all_pages_are_fetched_together(tmp_path, scan_far, monkeypatch):
    path = tmp_path / "a.tif"
    write_pages(path, [(320, 320)] * 12, tile=(16, 16), compression="zlib")
    # Tables of pages that lie apart from their directories, as other writers do it.
    with tifffile.TiffFile(path) as tiff:
        chain = [(page.offset, len(page.tags)) for page in tiff.pages]
        tables = [page.aspage().tags[324] for page in tiff.pages]
    raw = bytearray(path.read_bytes())
    for (offset, _), tag in zip(chain, tables, strict=True):
        values = np.array(tag.value, "<u4").tobytes()
        at = raw.index((324).to_bytes(2, "little"), offset) + 8
        raw[at : at + 4] = (len(raw) + 100_000).to_bytes(4, "little")
        raw += bytes(100_000) + values
    path.write_bytes(raw)
    monkeypatch.setattr(config.tuning, "remote_header_bytes", 1 << 14)
    group, cache = scan_far(path)
    check_same(scan(path), group)
    one_by_one = 12 * 2
    assert cache.rounds < one_by_one / 2


@pytest.mark.parametrize("count", [1, 40])
def test_sub_directories_are_fetched_together(tmp_path, scan_far, monkeypatch, count):
    path = tmp_path / "a.tif"
    with tifffile.TiffWriter(path) as tiff:
        for _ in range(count):
            tiff.write(NOISE[:400], tile=(64, 64), subifds=2, metadata=None, contiguous=False)
            for step in (2, 4):
                tiff.write(NOISE[:400:step, ::step], tile=(64, 64), subfiletype=1, metadata=None)
    monkeypatch.setattr(config.tuning, "remote_header_bytes", 1 << 14)
    group, cache = scan_far(path)
    check_same(scan(path), group)
    assert cache.rounds <= 12


def test_stacks_of_imagej_need_two_directories(tmp_path, scan_far):
    path = tmp_path / "a.tif"
    tifffile.imwrite(path, ramp("u2", (9, 500, 400)), imagej=True, metadata={"axes": "TYX"})
    group, cache = scan_far(path)
    check_same(scan(path), group)
    assert cache.rounds == 2


def test_slides_are_known_by_their_names(tmp_path, scan_far, http_server):
    writer = Writer(ndpi=True)
    for size in (64, 32, 20):
        tags = {"t271": "Hamamatsu", "t65420": 1, "t65421": (3, [40])}
        writer.chain(image(NOISE[:size, :size], rows=8, **tags))
    path = tmp_path / "a.ndpi"
    path.write_bytes(writer.data)
    near = check_file(path)
    assert (len(near), len(near["0"])) == (2, 2)
    check_same(near, scan_far(path)[0])
    check_same(near, scan(f"{http_server(tmp_path)}/a.ndpi?version=3"))


def test_other_files_of_a_series_are_not_looked_for(tmp_path, scan_far):
    path, _ = write_ome(tmp_path, ["a.ome.tif", "b.ome.tif"])
    with pytest.raises(UnsupportedError, match=r"not looked for at URLs, b\.ome\.tif"):
        scan_far(path)


def test_chains_that_do_not_go_on_as_before(tmp_path, scan_far):
    path = tmp_path / "a.tif"
    # Distances are even for a while, then others, and the last directory lies before the others.
    shapes = [(400, 500)] * 9 + [(700, 600)] * 5 + [(300, 300)] * 5
    write_pages(path, shapes)
    check_same(scan(path), scan_far(path)[0])


def test_damaged_chains(tmp_path, scan_far):
    path = tmp_path / "a.tif"
    write_pages(path, [(40, 40)] * 30)
    raw = path.read_bytes()
    with tifffile.TiffFile(path) as tiff:
        offsets = [page.offset for page in tiff.pages]
    for cut in (offsets[20] + 5, offsets[0] + 3, 8, 5):
        path.write_bytes(raw[:cut])
        try:
            near = scan(path)
        except SourceError:
            with pytest.raises(SourceError):
                scan_far(path)
        else:
            check_same(near, scan_far(path)[0])


def test_what_cannot_be_fetched_is_an_error(tmp_path, monkeypatch):
    # tifffile leaves out sub-directories that it cannot read.
    path = tmp_path / "a.tif"
    with tifffile.TiffWriter(path) as tiff:
        tiff.write(NOISE, tile=(64, 64), subifds=1, metadata=None)
        tiff.write(NOISE[::2, ::2], tile=(64, 64), subfiletype=1, metadata=None)
    with tifffile.TiffFile(path) as tiff:
        inner = tiff.pages[0].subifds[0]
    data = path.read_bytes()

    def pages_of(source):
        def fetch(ranges):
            if any(start <= inner < stop for start, stop in ranges):
                raise SourceError("the link is down", file=source.uri)
            return [data[start:stop] for start, stop in ranges]

        return paging.PageCache(fetch, len(data))

    fsspec.filesystem("memory").pipe_file("/far/down.tif", data)
    monkeypatch.setattr(config.tuning, "remote_header_bytes", 1 << 14)
    monkeypatch.setattr(files, "pages_of", pages_of)
    monkeypatch.setattr(files, "read_ahead", lambda *args: None)
    with pytest.raises(SourceError, match="link is down"):
        scan("memory://far/down.tif")


def test_nothing_there():
    with pytest.raises(SourceError, match="nothing"):
        scan("memory://nothing/here.tif")


# -- the stream alone ------------------------------------------------------------------------------


def cached(data):
    return paging.PageCache(lambda ranges: [data[slice(*each)] for each in ranges], len(data))


def test_a_stream_of_pages_reads_as_a_file(tmp_path):
    data = np.random.default_rng(1).bytes(3 * config.tuning.remote_header_bytes + 5)
    path = tmp_path / "a"
    path.write_bytes(data)
    rng = np.random.default_rng(2)
    with path.open("rb") as theirs:
        ours = PagedFile(cached(data))
        for _ in range(200):
            where, length = int(rng.integers(0, len(data) + 99)), int(rng.integers(0, 70_000))
            assert ours.seek(where) == theirs.seek(where)
            assert ours.read(length) == theirs.read(length)
            assert ours.tell() == theirs.tell()
        assert ours.seek(-77, 2) == theirs.seek(-77, 2)
        assert ours.seek(5, 1) == theirs.seek(5, 1)
        assert ours.read() == theirs.read()
        ours.seek(100)
        buffer = bytearray(50)
        assert ours.readinto(buffer) == 50
        assert buffer == data[100:150]


def test_reading_on_and_on_takes_few_rounds():
    data = bytes(20 * config.tuning.remote_header_bytes)
    cache = cached(data)
    file = PagedFile(cache)
    while file.read(1000):
        pass
    assert cache.rounds <= 16


def test_wrong_guesses_stay_small():
    cache = cached(bytes(200 * config.tuning.remote_header_bytes))
    chain = Chain(PagedFile(cache))
    offset = 0
    for step in np.repeat([500_000, 700_000, 510_000, 1_500_000], 4).tolist():
        offset += step
        chain.reach(offset, 500)
    assert cache.nbytes <= config.tuning.remote_header_bytes + 5 * 32 * 2 * paging.PAGE


def test_places_are_merged():
    assert coalesce_ranges(np.zeros(0, int), np.zeros(0, int)) == []
    rng = np.random.default_rng(3)
    start, length = rng.integers(0, 10**8, 300), rng.integers(1, 10**6, 300)
    found = coalesce_ranges(start, length)
    assert all(a + n + paging.GAP < b for (a, n), (b, _) in itertools.pairwise(found))
    for first, count in zip(start.tolist(), length.tolist(), strict=True):
        assert any(a <= first and first + count <= a + n for a, n in found)
