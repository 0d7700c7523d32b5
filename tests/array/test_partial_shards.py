"""Shards that are cut, or that only some chunks are: of large ones only what is needed is read."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import virtualzarr
from virtualzarr import concat, create_dataset
from virtualzarr.config import config
from virtualzarr.errors import ChunkNotFoundError, CodecError
from virtualzarr.stores import MemoryStore
from virtualzarr.stores.files import LocalFile

NAMES = ("time", "x", "y")
CODECS = {
    "plain": [],
    "transposed": [{"name": "transpose", "configuration": {"order": [2, 0, 1]}}],
}


def create(store, data, chunks, shards, filters="plain", **options):
    group = virtualzarr.create_group(store)
    return group.create_array(
        "air", data=data, chunks=chunks, shards=shards, dimension_names=NAMES, fill_value=7,
        filters=CODECS[filters], **options,
    )  # fmt: skip


@pytest.fixture
def all_large():
    """Shards of any size are read in parts."""
    with config.set(partial_read_bytes=0):
        yield


@settings(deadline=None)
@given(st.data())
def test_any_selection_of_cut_shards_against_numpy(data):
    shape = data.draw(st.tuples(*[st.integers(1, 9)] * 3), label="shape")
    chunks = tuple(data.draw(st.integers(1, 3)) for _ in shape)
    shards = tuple(n * data.draw(st.integers(1, 4)) for n in chunks)
    filters = data.draw(st.sampled_from(sorted(CODECS)))
    values = np.arange(np.prod(shape), dtype="i4").reshape(shape) + 100
    # Sub-chunks of nothing but the fill value are not stored.
    values[tuple(slice(data.draw(st.integers(0, n)), None) for n in shape)] = 7
    parts, expected = [], []
    for _ in range(2):
        array = create(MemoryStore(), values, chunks, shards, filters)
        low = data.draw(st.integers(0, shape[0] - 1), label="low")
        high = data.draw(st.integers(low + 1, shape[0]), label="high")
        parts.append(array.lazy[low:high])
        expected.append(values[low:high])
    joined, whole = concat(parts, axis=0), np.concatenate(expected)
    select = [
        data.draw(
            st.slices(n).filter(lambda s: s.step is None or s.step > 0)
            | st.lists(st.integers(0, n - 1), min_size=1, max_size=4)
        )
        for n in whole.shape
    ]
    with config.set(partial_read_bytes=data.draw(st.sampled_from([0, 1 << 20]))):
        indices = [np.arange(n)[s] for n, s in zip(whole.shape, select, strict=True)]
        np.testing.assert_array_equal(joined.oindex[tuple(select)], whole[np.ix_(*indices)])
        points = [data.draw(st.lists(st.integers(0, n - 1), min_size=3, max_size=3))
                  for n in whole.shape]  # fmt: skip
        np.testing.assert_array_equal(joined.vindex[tuple(points)], whole[tuple(points)])


def count_bytes(monkeypatch, run):
    """Return how many bytes are read from local files."""
    counted = []
    for name in ("read", "read_into"):
        original = getattr(LocalFile, name)

        def counting(self, start, *args, original=original, **kwargs):
            result = original(self, start, *args, **kwargs)
            counted.append(len(result) if result is not None else args[0].nbytes)
            return result

        monkeypatch.setattr(LocalFile, name, counting)
    run()
    return sum(counted)


@pytest.mark.usefixtures("all_large")
def test_little_is_read_of_a_shard_that_is_cut(tmp_path, monkeypatch):
    values = np.random.default_rng(0).random((64, 64, 64))
    array = create(tmp_path / "a.zarr", values, (8, 8, 8), (64, 64, 64))
    nbytes = (tmp_path / "a.zarr/air/c/0/0/0").stat().st_size
    cut = array.lazy[3:60]
    seen = count_bytes(monkeypatch, lambda: np.testing.assert_equal(cut[5, 6, 7], values[8, 6, 7]))
    assert seen < nbytes / 16


@pytest.mark.parametrize("partial_read_bytes", [0, 1 << 20])
@pytest.mark.parametrize("kind", ["cut", "decoders"])
def test_subchunks_that_are_missing_are_an_error_on_request(kind, partial_read_bytes):
    values = np.full((8, 4, 4), 7, "i4")  # of nothing but the fill value: not stored
    values[:2] = values[:4, :2, :2] = 1
    array = create(MemoryStore(), values, (2, 2, 2), (8, 4, 4))
    other = create(MemoryStore(), np.ones((8, 4, 4), "i4"), (8, 4, 4), None)
    joined = concat([array.lazy[1:] if kind == "cut" else array, other], axis=0)
    strict = joined.replace(fill_missing=False)
    first = 1 if kind == "cut" else 0
    with config.set(partial_read_bytes=partial_read_bytes, chunk_cache_bytes=1 << 20):
        np.testing.assert_array_equal(joined[: 8 - first], values[first:])
        for select in (np.s_[: 2 - first], np.s_[: 4 - first, :2, :2], np.s_[8 - first :]):
            np.testing.assert_array_equal(strict[select], joined[select])
        for select in (np.s_[...], np.s_[3], np.s_[4, 1, 1]):
            with pytest.raises(ChunkNotFoundError, match="variable air, chunk"):
                strict[select]


@pytest.mark.usefixtures("all_large")
@pytest.mark.parametrize("rows", [1, 7, 12])
def test_datasets_of_shards(tmp_path, rows):
    values = np.arange(30 * 4 * 5, dtype="i4").reshape(30, 4, 5)
    for name, part in (("a", values[:12]), ("b", values[12 : 12 + rows]), ("c", values[:6])):
        create(tmp_path / name, part, (3, 2, 5), (6, 4, 5))
    dataset = create_dataset(tmp_path / "d", tmp_path / "a", "time")
    for name in "bc":
        dataset = dataset.append(tmp_path / name)
    expected = np.concatenate([values[: 12 + rows], values[:6]])
    air = virtualzarr.open(tmp_path / "d")["air"]
    np.testing.assert_array_equal(air[...], expected)
    np.testing.assert_array_equal(air[:, 3, 4], expected[:, 3, 4])
    dataset.compact({"time": 4})
    np.testing.assert_array_equal(virtualzarr.open(tmp_path / "d")["air"][...], expected)


@pytest.mark.usefixtures("all_large")
def test_errors_name_the_chunk(tmp_path):
    values = np.random.default_rng(0).random((8, 8, 8))
    array = create(
        tmp_path / "a.zarr", values, (2, 2, 2), (8, 8, 8), compressors=[{"name": "crc32c"}]
    )
    file = tmp_path / "a.zarr/air/c/0/0/0"
    content = bytearray(file.read_bytes())
    content[: len(content) // 2] = bytes(len(content) // 2)
    file.write_bytes(content)
    cut = virtualzarr.open(tmp_path / "a.zarr")["air"].lazy[1:7]
    with pytest.raises(CodecError) as caught:
        cut[0, 0, 0]
    assert (caught.value.variable, caught.value.chunk) == (array.path, "0.0.0")
    assert str(caught.value.file).endswith("air/c/0/0/0")
