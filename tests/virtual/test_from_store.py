"""Arrays of stores, as references to whole objects and to parts of shards."""

from __future__ import annotations

import zipfile

import numpy as np
import pytest

import virtualzarr as vz
from virtualzarr.codecs import Pipeline, make
from virtualzarr.codecs.constant import constant_bytes
from virtualzarr.errors import CodecError, SourceChangedError, SourceError, UnsupportedError
from virtualzarr.stores import ZipStore
from virtualzarr.virtual.from_store import as_virtual, build_manifest, unshard


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
    inner = unshard(made)
    np.testing.assert_array_equal(inner[...], values)
    assert inner.grid.grid_shape == (5, 4)
    assert inner.manifest.nrefs == 6
    assert (inner is made) == (shards is None)


def test_shards_behind_another_codec_stay_whole():
    array = vz.create_array({}, shape=(4,), chunks=(2,), shards=(4,), dtype="i4")
    array[:] = [1, 2, 3, 4]
    made = as_virtual(array)
    odd = vz.Array.from_manifest(
        made.metadata.replace(pipeline=Pipeline([*made.metadata.pipeline.codecs, make("crc32c")])),
        made.manifest,
    )
    assert unshard(odd) is odd


def packed(folder, path, how=zipfile.ZIP_STORED):
    """Put a folder into a zip file, with extra fields that the archive's directory has not."""
    with zipfile.ZipFile(path, "w", how) as archive:
        for each in sorted(folder.rglob("*")):
            if each.is_file():
                entry = zipfile.ZipInfo(each.relative_to(folder).as_posix())
                entry.compress_type = how
                entry.extra = b"\xfe\xca\x04\x00abcd"
                archive.writestr(entry, each.read_bytes())
    return str(path)


@pytest.mark.parametrize("shards", [None, (4, 6)])
def test_what_lies_in_a_zip_file_is_referred_to(tmp_path, shards):
    values = np.arange(60, dtype="i4").reshape(10, 6)
    vz.create_array(
        tmp_path / "a", shape=(10, 6), chunks=(2, 3), shards=shards, dtype="i4", fill_value=-1
    )[:7] = values[:7]
    values[8 if shards is None else 7 :] = -1
    values[7] = -1
    array = vz.open_array(packed(tmp_path / "a", tmp_path / "a.zip"))
    virtual = as_virtual(array)
    assert [source.uri for source in virtual.manifest.sources] == [str(tmp_path / "a.zip")]
    for each in (array, virtual, unshard(virtual)):
        np.testing.assert_array_equal(each[...], values)
    with open(tmp_path / "a.zip", "ab") as file:
        file.write(b"more")
    with pytest.raises(SourceChangedError, match=r"a\.zip"):
        virtual[...]


def test_what_references_cannot_point_into_is_refused(tmp_path):
    vz.create_array(str(tmp_path / "a"), shape=(4,), dtype="i4")[:] = 1
    path = packed(tmp_path / "a", tmp_path / "a.zip", zipfile.ZIP_DEFLATED)
    with pytest.raises(UnsupportedError, match=r"c/0 is compressed in the archive.*a\.zip"):
        build_manifest(vz.open_array(path))
    packed(tmp_path / "a", tmp_path / "b.zip")
    store = ZipStore(tmp_path / "b.zip", "a")
    with pytest.raises(UnsupportedError, match=r"being written.*b\.zip"):
        build_manifest(vz.open_array(store, mode="r+"))
    store.close()
    raw = bytearray((tmp_path / "b.zip").read_bytes())
    raw[0] = 0
    (tmp_path / "b.zip").write_bytes(raw)
    with pytest.raises(SourceError, match=r"points to no member.*b\.zip"):
        build_manifest(vz.open_array(tmp_path / "b.zip"))


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
