"""A source that changes while a chunk of it is sent is an error for who reads, and no value."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import urllib.request
from http.client import HTTPException

import h5py
import numpy as np
import pytest

import virtualzarr as vz
import virtualzarr.serve.delivery as delivery
from virtualzarr.serve import create_app, run_in_thread

KEYS = {"v3": "x/c/0/0", "v2": "x/0.0"}


CASES = ("reset", "python", "ours", "zarr", "tensorstore")


@pytest.fixture(scope="module")
def url(tmp_path_factory):
    """A server whose sources change when the second piece of an answer is read."""
    folder = tmp_path_factory.mktemp("midway")
    paths = {f"{case}-{face}": folder / f"{case}-{face}.h5" for case in CASES for face in KEYS}
    for path in paths.values():
        with h5py.File(path, "w") as file:
            file["x"] = np.zeros((4, 1 << 16))
    read = delivery.read_resident

    def change(file, start, stop):
        data = read(file, start, stop)
        os.utime(file.uri, ns=(1, 1))
        return data

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(delivery, "read_resident", change)
        with run_in_thread(create_app(paths)) as url:
            yield url


@pytest.mark.parametrize("face", ["v3", "v2"])
def test_the_connection_is_reset(url, face):
    with socket.create_connection(("127.0.0.1", int(url.rsplit(":", 1)[1])), 5) as connection:
        head = f"GET /reset-{face}/{face}/{KEYS[face]} HTTP/1.1\r\nHost: localhost\r\n\r\n"
        connection.sendall(head.encode())
        received = []
        with pytest.raises(ConnectionResetError):
            received.extend(iter(lambda: connection.recv(1 << 16), b""))
    assert sum(map(len, received)) < 4 << 19


def test_python_raises(url):
    with pytest.raises((OSError, HTTPException)):
        urllib.request.urlopen(f"{url}/python-v3/v3/x/c/0/0").read()


def test_this_package_raises(url, monkeypatch):
    monkeypatch.setattr(vz.config, "retries", 1)
    array = vz.open(f"{url}/ours-v3/v3")["x"]
    with pytest.raises(vz.errors.VirtualZarrError):
        array[...]


@pytest.mark.interop
@pytest.mark.parametrize("face", ["v3", "v2"])
def test_zarr_python_raises(url, face):
    zarr = pytest.importorskip("zarr")

    array = zarr.open_group(f"{url}/zarr-{face}/{face}", mode="r")["x"]
    with pytest.raises(Exception, match=r"(?i)payload|reset|disconnect|502|gateway"):
        array[...]


@pytest.mark.interop
@pytest.mark.parametrize("face", ["v3", "v2"])
def test_tensorstore_raises(url, face):
    tensorstore = pytest.importorskip("tensorstore")

    spec = {
        "driver": {"v3": "zarr3", "v2": "zarr"}[face],
        "kvstore": f"{url}/tensorstore-{face}/{face}/x/",
        "context": {"http_request_retries": {"max_retries": 1, "initial_delay": "10ms"}},
    }  # fmt: skip
    array = tensorstore.open(spec, read=True).result()
    with pytest.raises(Exception, match=r"(?i)reset|recv|502|curl|partial|HTTP|unavailable"):
        array.read().result()


_GDAL = """
import sys, warnings
import rasterio
warnings.simplefilter("ignore")
for retries in ("0", "2"):
    for name in sys.argv[1:]:
        with rasterio.Env(GDAL_HTTP_MAX_RETRY=retries, GDAL_HTTP_RETRY_DELAY="0.1"):
            with rasterio.open(name) as file:
                try:
                    print(file.read())
                except rasterio.errors.RasterioIOError:
                    print("an error")
"""


@pytest.mark.interop
def test_gdal_raises_where_a_source_is_gone(tmp_path):
    """It reads fill values after any status of a failure."""
    pytest.importorskip("rasterio")

    path = tmp_path / "gone.h5"
    with h5py.File(path, "w") as file:
        for name, dtype, codec in (("a", "u1", None), ("b", "f4", None), ("c", "f4", "gzip")):
            file.create_dataset(
                name, data=np.ones((40, 30), dtype), chunks=(20, 30), compression=codec
            )
    with run_in_thread(create_app(path)) as url:
        path.rename(tmp_path / "elsewhere.h5")
        # Its own process: GDAL keeps other threads, and so the server, from running.
        targets = [f'ZARR:"/vsicurl/{url}/v2":/{name}' for name in "abc"]
        command = [sys.executable, "-c", _GDAL, *targets]
        done = subprocess.run(command, check=True, timeout=60, capture_output=True, text=True)
    assert done.stdout == "an error\n" * 6
