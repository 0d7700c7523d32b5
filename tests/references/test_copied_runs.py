"""Copied chunks: neighbours are read together, and each is the same as when it is read alone."""

from __future__ import annotations

import numpy as np
import pytest
import tifffile
from hypothesis import given
from hypothesis import strategies as st

import virtualzarr as vz
from tests.stores.webserver import web_server
from virtualzarr.errors import VirtualZarrError
from virtualzarr.references import materialize
from virtualzarr.references.materialize import _encode_numbered, _list_runs, encode_chunks


def write(path):
    values = np.random.default_rng(0).integers(0, 9, (200, 330)).astype("u2")
    tifffile.imwrite(path, values, tile=(32, 64), compression="lzw")
    return values


def only_array(group):
    return next(node for _, node in group.members(None) if isinstance(node, vz.Array))


def test_rows_of_tiles_are_requested_at_once(tmp_path):
    values = write(tmp_path / "a.tif")
    with web_server(tmp_path) as server:
        group = vz.virtualize(f"{server.url}/a.tif")
        server.requests.clear()
        group.publish(tmp_path / "refs.json", copy=True)
        assert len(server.requests) <= 7  # rows of six tiles
    np.testing.assert_array_equal(only_array(vz.open(tmp_path / "refs.json"))[...], values)


@given(
    st.lists(st.integers(1, 9), min_size=0, max_size=3),
    st.lists(st.integers(1, 4), min_size=3, max_size=3),
    st.data(),
)
def test_runs_are_what_single_chunks_are(shape, chunks, data):
    values = np.arange(np.prod(shape), dtype="f4").reshape(shape)
    array = vz.create_array({}, data=values, chunks=tuple(chunks[: len(shape)]))
    count = int(np.prod(array.metadata.grid.grid_shape))
    cells = np.array(sorted(data.draw(st.sets(st.integers(0, count - 1)))), np.int64)
    expected = [_encode_numbered(array, array.metadata, number) for number in cells.tolist()]
    assert list(encode_chunks(array, array.metadata, cells)) == expected
    runs = list(_list_runs(array.metadata, cells.tolist()))
    assert [number for run in runs for number in run] == cells.tolist()


def test_errors_name_the_chunk(tmp_path):
    write(tmp_path / "a.tif")
    array = only_array(vz.virtualize(tmp_path / "a.tif"))
    offset = int(np.asarray(array.manifest.offset).reshape(-1)[8])
    with open(tmp_path / "a.tif", "r+b") as file:
        file.seek(offset)
        file.write(b"\xff" * 40)
    with vz.config.set(verify_sources=False), pytest.raises(VirtualZarrError) as caught:
        list(encode_chunks(array, array.metadata, np.arange(42)))
    assert caught.value.chunk == "1.2"


def test_runs_are_bounded_by_the_size_of_each_chunk(monkeypatch):
    monkeypatch.setattr(materialize, "_RUN_BYTES", 100)
    uneven = vz.create_array({}, shape=(1012,), chunks=[[1, 1, 10, 1000]], dtype="i1")
    assert list(_list_runs(uneven.metadata, [0, 1, 2, 3])) == [[0, 1, 2], [3]]
    texts = vz.create_array({}, shape=(3,), chunks=(1,), dtype=str)
    assert list(_list_runs(texts.metadata, [0, 1, 2])) == [[0], [1], [2]]
