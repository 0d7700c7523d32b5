"""Caches of fsspec over web servers: what a server refuses is not missing."""

from __future__ import annotations

import pickle

import fsspec
import h5py
import numpy as np
import pytest
import zarr

import virtualzarr as vz
from tests.stores.webserver import web_server
from virtualzarr.errors import SourceError

pytest.importorskip("aiohttp")
CACHES = ["simplecache", "filecache", "blockcache"]
DATA = np.arange(1, 41, dtype="i4").reshape(4, 10)


@pytest.fixture
def server(tmp_path, monkeypatch):
    monkeypatch.setattr(vz.config, "retry_seconds", 0.001)
    zarr.create_array(tmp_path / "a.zarr", data=DATA, chunks=(2, 5))
    zarr.create_array(tmp_path / "s.zarr", data=DATA, chunks=(1, 5), shards=(2, 5))
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["v"] = DATA
    with web_server(tmp_path) as server:
        yield server


def options(cache, folder):
    return {cache: {"cache_storage": str(folder / "cache")}}


def refuse(fault, part):
    def rewrite(request, status, headers, body):
        if part not in request.path:
            return status, headers, body
        return fault, {}, b""

    return rewrite


@pytest.mark.parametrize("cache", CACHES)
@pytest.mark.parametrize("fault", [403, 500, 503])
@pytest.mark.parametrize("name", ["a.zarr", "s.zarr", "mapper"])
def test_refused_chunks_are_not_missing(server, tmp_path, cache, fault, name):
    """fsspec says of whatever a web server does not give that it is not there."""
    url = f"{cache}::{server.url}/{'a.zarr' if name == 'mapper' else name}"
    given = options(cache, tmp_path)
    if name == "mapper":
        array = vz.open(fsspec.get_mapper(url, **given))
    else:
        array = vz.open(url, storage_options=given)
    server.rewrite = refuse(fault, "/c/1/")
    with pytest.raises(SourceError, match=f"{fault}|that is there"):
        array[...]
    server.rewrite = refuse(404, "/c/1/")
    assert array[2:].tolist() == np.zeros((2, 10)).tolist()


@pytest.mark.parametrize("cache", CACHES)
@pytest.mark.parametrize("fault", [403, 500])
def test_refused_files_are_not_missing(server, tmp_path, cache, fault):
    server.rewrite = refuse(fault, "a.h5")
    with pytest.raises(SourceError, match=str(fault)):
        vz.open(f"{cache}::{server.url}/a.h5", storage_options=options(cache, tmp_path))


@pytest.mark.parametrize("cache", CACHES)
def test_files_are_read_through_caches(server, tmp_path, cache):
    """Also where the server lists nothing."""
    group = vz.open(f"{cache}::{server.url}/a.h5", storage_options=options(cache, tmp_path))
    assert np.array_equal(group["v"][...], DATA)


def test_mappings_over_caches_are_pickled(server, tmp_path):
    mapper = fsspec.get_mapper(
        f"simplecache::{server.url}/a.zarr", **options("simplecache", tmp_path)
    )
    array = pickle.loads(pickle.dumps(vz.open(mapper)))
    assert np.array_equal(array[...], DATA)
