"""The tests of datasets, once more in object stores and in memory."""

from __future__ import annotations

import os
import uuid

import fsspec
import pytest

from tests.dataset import test_dataset as suite
from tests.dataset.s3_server import running
from tests.dataset.test_dataset import *  # noqa: F403
from virtualzarr.dataset.create import create_dataset
from virtualzarr.dataset.dataset import Dataset

pytest.importorskip("obstore")
pytest.importorskip("s3fs")


for name in ("test_others_refuse_it",):  # those that look into a directory
    del globals()[name]


@pytest.fixture(scope="module")
def server():
    with running() as server:
        yield server


@pytest.fixture(autouse=True, params=["memory", "s3"])
def elsewhere(request, monkeypatch, server):
    """Let tests that name a folder have one elsewhere instead; their sources stay local."""
    name, options = uuid.uuid4().hex, None
    if request.param == "s3":
        options = server.options()

    def to_url(path):
        return f"{request.param}://{name}{os.fspath(path)}"

    def open_elsewhere(path, **choices):
        return Dataset(to_url(path), allowed="*", storage_options=options, **choices)

    def create_elsewhere(path, *values, **choices):
        choices |= {"allowed": "*", "storage_options": options}
        return create_dataset(to_url(path), *values, **choices)

    monkeypatch.setattr(suite, "Dataset", open_elsewhere)
    monkeypatch.setattr(suite, "create_dataset", create_elsewhere)
    yield
    memory = fsspec.filesystem("memory")
    for path in [path for path in memory.store if path.startswith(f"/{name}")]:
        del memory.store[path]
