"""TIFF files that fsspec opens."""

from __future__ import annotations

import fsspec
import pytest
import tifffile

from tests.formats.tiff.helpers import ramp, same
from virtualzarr.errors import SourceError
from virtualzarr.formats.tiff import scan


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
    # A scan reads a block once, however often it goes back.
    assert len(http_server.requests) <= 4
    assert same(array[17], data[17])


def test_nothing_there():
    with pytest.raises(SourceError, match="nothing"):
        scan("memory://nothing/here.tif")
