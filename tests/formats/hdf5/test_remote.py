"""Files elsewhere: how often the network is asked."""

from __future__ import annotations

import h5py
import numpy as np
import pytest

from tests.formats.hdf5.helpers import assert_same, scan_all, source_of
from virtualzarr.array import Array
from virtualzarr.config import config
from virtualzarr.formats.hdf5.objects import Objects
from virtualzarr.formats.hdf5.open_file import open_hdf5

VARIABLES, STEPS = 20, 250


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    """Write time step by time step, so that all variables' chunks and indexes are interleaved."""
    path = tmp_path_factory.mktemp("remote") / "steps.h5"
    random, first = np.random.default_rng(0), config.tuning.remote_header_bytes
    with h5py.File(path, "w") as file:
        datasets = [
            file.create_dataset(f"v{k}", (0, 8), "f4", chunks=(1, 8), maxshape=(None, 8))
            for k in range(VARIABLES)
        ]
        for number, dataset in enumerate(datasets):
            dataset.attrs.update({f"a{k}": f"text {number}" for k in range(10)})
        for step in range(STEPS):
            for dataset in datasets:
                dataset.resize(step + 1, axis=0)
                dataset[step] = random.normal(size=8)
            if step % 50 == 0:  # something long between, so that nothing is near anything
                file[f"long{step}"] = np.frombuffer(random.bytes(first), "u1")
    return path


def test_few_rounds(path):
    raw = path.read_bytes()
    source = source_of(raw)
    objects = Objects(source)
    indexes = [one.index for one in objects._objects.values() if one.index is not None]
    assert sum(np.count_nonzero(index.source == 0) for index in indexes) == VARIABLES * STEPS
    assert source.rounds <= 4
    assert source.nbytes < len(raw) / 2


def test_over_http(path, http_server):
    url = f"{http_server(path.parent)}/{path.name}"
    with open_hdf5(url) as file:
        assert file.data.rounds <= 4
        requests = file.data.requests
    http_server.requests.clear()
    group = scan_all(url)
    # One more asks for the size; h5py is not asked, which would read the file once more.
    assert len(http_server.requests) <= requests + 2
    local = scan_all(path)
    for name, node in local.members(max_depth=None):
        if isinstance(node, Array):
            far = group[name]
            assert far.metadata == node.metadata
            assert np.array_equal(far.manifest.offset[...], node.manifest.offset[...])
    assert dict(group["v3"].attrs)["a7"] == "text 3"


def test_paged_files_are_read_page_by_page(tmp_path):
    path = tmp_path / "a.h5"
    with h5py.File(path, "w", libver="latest", fs_strategy="page", fs_page_size=1 << 22) as file:
        for k in range(300):
            dataset = file.create_dataset(f"g{k % 7}/d{k}", data=np.arange(2000.0), chunks=(100,))
            dataset.attrs["units"] = "K"
    source = source_of(path.read_bytes())
    objects = Objects(source)
    assert sum(one.kind == "dataset" for one in objects._objects.values()) == 300
    assert source.rounds <= 3
    assert_same(path)
