"""Arrays of stores, as references to whole objects and to parts of shards."""

from __future__ import annotations

import zipfile

import numpy as np
import pytest

import virtualzarr as vz
from virtualzarr.array.references import as_virtual, manifest_of, unsharded
from virtualzarr.codecs import Pipeline, make
from virtualzarr.codecs.constant import constant_bytes
from virtualzarr.errors import CodecError, UnsupportedError


@pytest.mark.parametrize("memory", [True, False])
@pytest.mark.parametrize("shards", [None, (4, 4)])
@pytest.mark.parametrize("zarr_format", [2, 3])
def test_a_stored_array_is_referred_to(tmp_path, memory, shards, zarr_format):
    if shards and zarr_format == 2:
        return
    place = {} if memory else str(tmp_path / "a.zarr")
    array = vz.create_array(
        place, shape=(9, 7), chunks=(2, 2), shards=shards, dtype="i4", zarr_format=zarr_format
    )
    values = np.zeros((9, 7), "i4")
    values[1:4, 2:7] = array[1:4, 2:7] = np.arange(1, 16).reshape(3, 5)
    made = as_virtual(array)
    assert made.is_virtual
    np.testing.assert_array_equal(made[...], values)
    assert as_virtual(made) is made
    inner = unsharded(made)
    np.testing.assert_array_equal(inner[...], values)
    assert inner.grid.grid_shape == (5, 4)
    assert inner.manifest.nrefs == 6
    assert (inner is made) == (shards is None)


def test_shards_behind_another_codec_stay_whole():
    array = vz.create_array({}, shape=(4,), chunks=(2,), shards=(4,), dtype="i4")
    array[:] = [1, 2, 3, 4]
    made = as_virtual(array)
    odd = vz.Array.virtual(
        made.metadata.replace(pipeline=Pipeline([*made.metadata.pipeline.codecs, make("crc32c")])),
        made.manifest,
    )
    assert unsharded(odd) is odd


def test_what_references_cannot_point_into_is_refused(tmp_path):
    vz.create_array(str(tmp_path / "a"), shape=(4,), dtype="i4")[:] = 1
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        for path in (tmp_path / "a").rglob("*"):
            archive.write(path, path.relative_to(tmp_path / "a"))
    with pytest.raises(UnsupportedError, match=r"a\.zip, where references cannot point"):
        manifest_of(vz.open_array(str(tmp_path / "a.zip")))


@pytest.mark.parametrize(
    "dtype", ["i2", "f8", "S3", "U2", "c8", "?", "M8[s]", [("a", "i2"), ("b", "f4")]]
)
def test_constant_blocks(dtype):
    value = np.array([1]).astype(dtype)[0]
    block = Pipeline([make("virtualzarr.constant")]).for_block((2, 3), dtype)
    data = constant_bytes(value, np.dtype(dtype))
    np.testing.assert_array_equal(block.decode(data), np.full((2, 3), value, dtype))
    out = np.empty((1, 2), dtype)
    block.decode_into(data, out, (slice(1, 2), slice(0, 2)))
    np.testing.assert_array_equal(out, np.full((1, 2), value, dtype))
    with pytest.raises(CodecError, match="the block needs"):
        block.decode(data + b"1")
    with pytest.raises(UnsupportedError):
        block.encode(np.full((2, 3), value, dtype))
