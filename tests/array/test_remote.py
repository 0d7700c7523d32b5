"""Chunks at a URL: few requests, exact values, and changes that are noticed."""

import numpy as np
import pytest

import virtualzarr as vz
from grids import RegularGrid
from virtualzarr import Array
from virtualzarr.codecs import Pipeline, make
from virtualzarr.errors import SourceError
from virtualzarr.manifest import Manifest, Source, Sources
from virtualzarr.metadata import ArrayMetadata


def array_at(url, offsets, length, **facts):
    source = Source(url, **facts) if facts else Source.from_file(url)
    shape = (4 * len(offsets),)
    metadata = ArrayMetadata(
        shape,
        np.dtype("i4"),
        RegularGrid(shape, (4,)),
        Pipeline([make("bytes", endian="little")]),
        -1,
    )
    return Array.from_manifest(
        metadata, Manifest((len(offsets),), Sources([source]), 0, offsets, length)
    )


def test_near_ranges_are_one_request_and_missing_chunks_none(tmp_path, http_server):
    data = np.arange(100_000, dtype="<i4")
    (tmp_path / "a.bin").write_bytes(data.tobytes())
    url = http_server(tmp_path) + "/a.bin"
    array = array_at(url, [0, 16, 200_000, 48], 16)
    expected = np.concatenate([data[0:4], data[4:8], data[50_000:50_004], data[12:16]])
    http_server.requests.clear()
    np.testing.assert_array_equal(array[...], expected)
    assert len(http_server.requests) == 2
    http_server.requests.clear()
    manifest = Manifest.missing((4,))
    empty = Array.from_manifest(array.metadata, manifest)
    assert empty[...].tolist() == [-1] * 16
    assert http_server.requests == []


def test_a_file_that_changed_or_is_too_short_is_an_error(tmp_path, http_server):
    (tmp_path / "a.bin").write_bytes(bytes(64))
    url = http_server(tmp_path) + "/a.bin"
    with pytest.raises(SourceError, match="changed since it was scanned"):
        array_at(url, [0], 16, size=65)[...]
    with pytest.raises(SourceError, match="56 to 72"):
        array_at(url, [56], 16)[...]
    (tmp_path / "a.bin").unlink()
    with pytest.raises(SourceError, match=r"a\.bin"):
        array_at(url, [0], 16, size=64)[...]


@pytest.mark.parametrize(
    ("zarr_format", "names"),
    [(3, ["zarr.json"]), (2, ["zarr.json", ".zgroup", ".zarray", ".zattrs"])],
)
@pytest.mark.parametrize("function", [vz.open, vz.virtualize])
def test_each_document_is_requested_once(tmp_path, http_server, function, zarr_format, names):
    zarr = pytest.importorskip("zarr")
    zarr.create_array(tmp_path / "a", data=np.arange(9), zarr_format=zarr_format)
    url = http_server(tmp_path) + "/a"
    for _ in range(2):  # nothing is remembered by the next
        http_server.requests.clear()
        function(url)
        paths = [str(request).partition("?")[0] for request in http_server.requests]
        assert len(paths) == len(names)
        for name in names:
            assert sum(name in path for path in paths) == 1


def test_memory_urls():
    import fsspec

    with fsspec.open("memory://folder/a.bin", "wb") as file:
        file.write(np.arange(8, dtype="<i4").tobytes())
    array = array_at("memory://folder/a.bin", [16, 0], 16)
    assert array[...].tolist() == [4, 5, 6, 7, 0, 1, 2, 3]


def test_an_unknown_protocol_is_named():
    with pytest.raises(NotImplementedError, match="gopher"):
        vz.open("gopher://host/file.nc")
