"""Strips and tiles that were never written, and the values they read as."""

from __future__ import annotations

import math

import numpy as np
import pytest
import tifffile

from tests.formats.tiff.helpers import check_file, patch_tag, ramp
from virtualzarr.errors import SourceError
from virtualzarr.formats.tiff import scan


def write_sparse(path, dtype, missing, nodata=None, **options):
    """Write a file and take some of its strips or tiles away."""
    extratags = [] if nodata is None else [(42113, 2, 0, nodata, True)]
    tifffile.imwrite(path, ramp(dtype, (64, 48)), extratags=extratags, metadata=None, **options)
    tags = (324, 325) if "tile" in options else (273, 279)
    with tifffile.TiffFile(path) as tiff:
        values = [list(tiff.pages[0].tags[tag].value) for tag in tags]
    for tag, value in zip(tags, values, strict=True):
        for index in missing:
            value[index] = 0
        patch_tag(path, tag, value)


@pytest.mark.parametrize("options", [{"tile": (16, 16)}, {"rowsperstrip": 5}])
@pytest.mark.parametrize("compression", ["none", "zlib", "jpeg"])
@pytest.mark.parametrize("nodata", [None, "7", "255"])
def test_missing_segments_are_fill(tmp_path, options, compression, nodata):
    path = tmp_path / "a.tif"
    write_sparse(path, "u1", [0, 3, 4], nodata, compression=compression, **options)
    array = check_file(path)["0"]
    assert array.nchunks - array.manifest.nrefs == 3
    assert array.fill_value == int(nodata or 0)
    assert (array[:5, :16] == int(nodata or 0)).all()


@pytest.mark.parametrize(("nodata", "value"), [("nan", math.nan), ("-9999", -9999), ("1e30", 1e30)])
def test_nodata_of_floats(tmp_path, nodata, value):
    path = tmp_path / "a.tif"
    write_sparse(path, "f4", [1], nodata, tile=(16, 16), compression="zlib")
    array = check_file(path)["0"]
    np.testing.assert_equal(array.fill_value, np.float32(value))


@pytest.mark.parametrize("nodata", ["-1", "300", "none", "1.5"])
def test_nodata_that_the_samples_cannot_hold_is_zero(tmp_path, nodata):
    path = tmp_path / "a.tif"
    write_sparse(path, "u1", [1], nodata, tile=(16, 16))
    assert check_file(path)["0"].fill_value == 0


def test_a_page_in_one_piece_that_was_never_written_is_refused(tmp_path):
    # tifffile reads whatever it finds.
    path = tmp_path / "a.tif"
    write_sparse(path, "u1", [0])
    with pytest.raises(SourceError, match="without data"):
        scan(path)
