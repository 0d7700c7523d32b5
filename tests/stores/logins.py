"""Tokens and keys that functions give, and servers that take each of them so many times."""

from __future__ import annotations

from contextlib import contextmanager
from types import SimpleNamespace

import h5py
import numpy as np
import zarr

import virtualzarr as vz
from tests.stores.webserver import web_server
from virtualzarr.stores.credentials import FILE_VARIABLE, find_keyring

SECRET = "PLANTED"
DATA = np.arange(40, dtype="i4").reshape(4, 10)
HOST = "http://127.0.0.1:9"
HERE = "tests.stores.logins"
issued = SimpleNamespace(count=0, options=lambda count: f"{SECRET}-{count}")


def give_token():
    """Return a new token each time."""
    issued.count += 1
    return issued.options(issued.count)


def give_lasting_token():
    return f"{SECRET}-lasting"


def fail():
    raise RuntimeError(f"cannot log in with {SECRET}")


def forget_logins(monkeypatch):
    """Begin anew, with servers that may be asked again at once."""
    monkeypatch.setattr(vz.config, "retry_seconds", 0.001)
    monkeypatch.setattr(issued, "count", 0)
    monkeypatch.delenv(FILE_VARIABLE, raising=False)
    find_keyring.__globals__["_keyring_of"].cache_clear()


@contextmanager
def private_server(folder):
    """Serve a file and a store below `private`."""
    private = folder / "served" / "private"
    private.mkdir(parents=True)
    with h5py.File(private / "a.h5", "w") as file:
        file["time"] = np.arange(4)
        file["time"].make_scale("time")
        file.create_dataset("v", data=DATA, chunks=(2, 5), compression="gzip")
        file["v"].dims[0].attach_scale(file["time"])
    zarr.create_array(private / "a.zarr", data=DATA, chunks=(2, 5))
    with web_server(folder / "served") as server:
        server.folder = str(private)
        yield server


def bucket_login(server, prefix):
    """Return options for a bucket, with the keys that `give_token` gives below a prefix."""
    return {
        "endpoint_url": server.url,
        "client_kwargs": {"region_name": "here"},
        "credentials": {prefix: f"{HERE}:give_token"},
    }


def sent(server, name="Authorization"):
    """Return which paths were asked for, and a header of each request."""
    return [(path, headers.get(name)) for _, path, headers in server.requests]


def expire_after(server, uses, status=401):
    """Accept each token so many times."""
    counts = {}

    def rewrite(request, *answer):
        token = request.headers.get("Authorization")
        counts[token] = counts.get(token, 0) + 1
        if token is None or counts[token] > uses:
            return status, {}, b"expired"
        return answer

    server.rewrite = rewrite
    return counts


def expire_keys(server, uses):
    """Accept each key of S3 so many times; it is named in the signature."""
    counts = {}
    perform = server.perform

    def perform_if_valid(method, path, headers, body):
        key = headers["Authorization"].partition("Credential=")[2].partition("/")[0]
        counts[key] = counts.get(key, 0) + 1
        if counts[key] > uses:
            return 400, {}, b"<Error><Code>ExpiredToken</Code></Error>"
        return perform(method, path, headers, body)

    server.perform = perform_if_valid
    return counts
