"""Remote shards of which all is selected: each is read as a chunk, decoded while others come."""

import json
import shutil

import numpy as np
import pytest
import zarr
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import virtualzarr as vz
from tests.stores.webserver import web_server
from virtualzarr.errors import ChunkNotFoundError, CodecError

pytest.importorskip("aiohttp")
VALUES = np.arange(1, 30 * 40 + 1, dtype="i4").reshape(30, 40)
SHARD_BYTES = 16 * 16 * 4
CODECS = {
    "raw": None,
    "zstd": [zarr.codecs.ZstdCodec(level=1)],
    "gzip": [zarr.codecs.GzipCodec(level=1)],
    "checked": [zarr.codecs.ZstdCodec(level=1), zarr.codecs.Crc32cCodec()],
}


@pytest.fixture(scope="module", params=[*CODECS])
def server(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("shards")
    turn = {"filters": [zarr.codecs.TransposeCodec(order=(1, 0))]}
    for name, options in {"a": {}, "turned": turn}.items():
        array = zarr.create_array(
            folder / name, shape=VALUES.shape, chunks=(4, 8), shards=(16, 16), dtype="i4",
            fill_value=-1, compressors=CODECS[request.param], **options,
        )  # fmt: skip
        array[...] = VALUES
        array[:4, :8] = -1  # a sub-chunk that is not stored
    # Before the shards, where zarr-python does not write it.
    path = folder / "behind/zarr.json"
    shutil.copytree(folder / "turned", path.parent)
    document = json.loads(path.read_text())
    sharding = document["codecs"][0]["configuration"]
    document["codecs"].insert(0, sharding["codecs"].pop(0))
    sharding["chunk_shape"].reverse()
    path.write_text(json.dumps(document))
    behind = vz.open_array(folder / "behind", mode="r+")
    behind[...] = expected("turned")
    (folder / "a/c/1/1").unlink()
    with web_server(folder) as server:
        yield server


def expected(name):
    values = VALUES.copy()
    values[:4, :8] = -1
    if name == "a":
        values[16:, 16:32] = -1
    return values


def paths(server):
    """Return path and range of each request since the last call.

    Without the one for the array's document that follows where shards are missing.
    """
    found = [(path, headers.get("Range")) for _, path, headers in server.requests]
    if found and found[-1][0].endswith("/zarr.json"):
        del found[-1]
    server.requests.clear()
    return found


@pytest.mark.parametrize("name", ["a", "turned", "behind"])
def test_a_request_for_each_shard(server, name, monkeypatch):
    monkeypatch.setattr(vz.config, "remote_gap", 0)
    values = expected(name)
    array = vz.open_array(f"{server.url}/{name}")
    for selection, count in ((np.s_[:, :], 6), (np.s_[:16, 16:], 2), (np.s_[16:, :32], 2)):
        paths(server)
        assert np.array_equal(array[selection], values[selection])
        found = paths(server)
        assert len(found) == len({*found}) == count
        assert {span for _, span in found} == {None}
    assert np.array_equal(array.blocks[:, 1], values[:, 16:32])
    assert {span for _, span in paths(server)} == {None}


def test_shards_too_large_for_one_request_each(server, monkeypatch):
    """Pieces of a few large shards come sooner side by side."""
    monkeypatch.setattr(vz.config, "remote_gap", 0)
    values = expected("a")
    for count, limit, is_whole in (
        (2, SHARD_BYTES // 4, True),
        (2, SHARD_BYTES // 8, False),
        (1, SHARD_BYTES, True),
        (1, SHARD_BYTES // 2, False),
    ):
        monkeypatch.setattr(vz.config, "remote_read", limit)
        array = vz.open_array(f"{server.url}/a")
        paths(server)
        assert np.array_equal(array[:16, : 16 * count], values[:16, : 16 * count])
        assert ({span for _, span in paths(server)} == {None}) is is_whole


def test_into_an_array_of_any_layout(server):
    values = expected("turned")
    array = vz.open_array(f"{server.url}/turned")
    for out in (np.empty((40, 30), "i4").T, np.empty((60, 120), "i4")[::2, ::3]):
        assert array.read(out=out) is out
        assert np.array_equal(out, values)


def test_what_is_missing_is_an_error_where_that_was_asked_for(server):
    for selection in (np.s_[:16, :16], np.s_[16:, 16:32]):
        with pytest.raises(ChunkNotFoundError, match="missing"):
            vz.open_array(f"{server.url}/a", fill_missing=False)[selection]


def test_a_damaged_sub_chunk_is_named(tmp_path):
    array = zarr.create_array(
        tmp_path / "a", shape=(16, 16), chunks=(4, 8), shards=(16, 16), dtype="i4",
        compressors=CODECS["checked"],
    )  # fmt: skip
    array[...] = VALUES[:16, :16]
    path = tmp_path / "a/c/0/0"
    data = bytearray(path.read_bytes())
    data[20] ^= 1
    path.write_bytes(data)
    with web_server(tmp_path) as server:
        opened = vz.open_array(f"{server.url}/a")
        with pytest.raises(CodecError, match=r"sub-chunk \(0, 0\): .*a/c/0/0, chunk 0.0"):
            opened[...]
        path.write_bytes(data[:100])
        with pytest.raises(CodecError, match=r"index.*a/c/0/0"):
            opened[...]


@pytest.mark.parametrize("rows", [16, 12])
def test_shards_with_large_gaps_are_read_by_their_index(tmp_path, rows):
    """As writers leave them that put each new version of a sub-chunk behind the others."""
    array = zarr.create_array(
        tmp_path / "a", shape=(32, 16), chunks=(4, 8), shards=(16, 16), dtype="i4",
        compressors=None,
    )  # fmt: skip
    array[...] = VALUES.ravel()[: array.size].reshape(array.shape)
    index_bytes = 16 * 8 + 4
    for i in range(2):
        path = tmp_path / f"a/c/{i}/0"
        data = path.read_bytes()
        path.write_bytes(data[:-index_bytes] + bytes(1 << 25) + data[-index_bytes:])
    with web_server(tmp_path) as server:
        opened = vz.open_array(f"{server.url}/a")
        assert np.array_equal(opened[: rows + 16], array[: rows + 16])
        assert np.array_equal(opened[:rows], array[:rows])


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_any_selection_of_any_shards(server, data):
    name = data.draw(st.sampled_from(["a", "turned", "behind"]))
    values, array = expected(name), vz.open_array(f"{server.url}/{name}")
    selection = tuple(
        slice(*sorted(data.draw(st.tuples(edges, edges))))
        for edges in (st.sampled_from([0, 4, 16, 30]), st.sampled_from([0, 16, 31, 32, 40]))
    )
    assert np.array_equal(array[selection], values[selection])
