"""Documents of some lines that claim very many cells: read where asked, never loaded whole."""

from __future__ import annotations

import json
import resource

import numpy as np
import pytest

import virtualzarr as vz
from virtualzarr.errors import MetadataError, UnsupportedError, VirtualZarrError

COUNT = 2**40


def build(folder, cells, sources=1):
    """Write an array of the native form, whose columns are constant or affine."""
    data = folder / "data"
    data.write_bytes(bytes(range(256)))
    part = folder / "group" / "v" / "__manifest" / "p"
    part.mkdir(parents=True)
    configuration = {"version": 1, "axis": 0, "parts": [{"name": "p", "shape": [cells]}]}
    array = {
        "zarr_format": 3, "node_type": "array", "shape": [cells], "data_type": "uint8",
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [1]}},
        "chunk_key_encoding": {"name": "default"}, "fill_value": 9, "codecs": [{"name": "bytes"}],
        "dimension_names": ["time"], "attributes": {},
        "storage_transformers": [
            {"name": "virtualzarr.manifest", "configuration": configuration}],
    }  # fmt: skip
    manifest = {
        "version": 1, "shape": [cells],
        "columns": {"source": {"constant": 0}, "length": {"constant": 1},
                    "offset": {"affine": {"base": 0, "strides": [1]}}},
        "sources": {"count": sources, "uri": {"constant": str(data)}, "size": {"constant": 256},
                    "mtime_ns": {"constant": -(2**63)}, "etag": {"constant": ""}},
    }  # fmt: skip
    group = {"zarr_format": 3, "node_type": "group", "attributes": {}}
    for path, document in (
        (folder / "group", group), (part.parents[1], array), (part, None)
    ):  # fmt: skip
        if document is not None:
            (path / "zarr.json").write_text(json.dumps(document))
    (part / "manifest.json").write_text(json.dumps(manifest))
    return folder / "group"


@pytest.fixture
def hostile(tmp_path):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    yield build(tmp_path, COUNT)
    # What is there at most: numpy may be given addresses for more, which it does not fill.
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss < before + 64 * 1024


@pytest.mark.parametrize("cells", [COUNT, 2**62])
def test_some_cells_are_read(tmp_path, cells):
    array = vz.open(build(tmp_path, cells))["v"]
    assert array.shape == (cells,)
    assert array[7] == 7
    assert array[3:6].tolist() == [3, 4, 5]
    assert array.vindex[np.array([200, 5])].tolist() == [200, 5]
    with pytest.raises(VirtualZarrError, match="the file has only 256"):
        array[cells - 1]
    with pytest.raises(vz.errors.OutOfMemoryError):
        array[...]


WAYS = {
    "manifest": lambda path, out: vz.open(path)["v"].manifest,
    "slice": lambda path, out: vz.open(path)["v"].lazy[5:10],
    "reverse": lambda path, out: vz.open(path)["v"].lazy[::-1],
    "concat": lambda path, out: vz.concat([vz.open(path)] * 2, dim="time"),
    "virtualize": lambda path, out: vz.virtualize([path], "time"),
    "copy": lambda path, out: vz.copy(path, out),
    "publish": lambda path, out: vz.open(path).publish(f"{out}.json"),
    "publish native": lambda path, out: vz.open(path).publish(out, reference_format="native"),
    "dataset": lambda path, out: vz.create_dataset(out, vz.open(path), "time"),
    "check": lambda path, out: vz.check_references(path),
}


@pytest.mark.parametrize("way", WAYS)
def test_all_of_them_are_refused(hostile, tmp_path, way):
    with pytest.raises(VirtualZarrError, match=rf"{COUNT} references .*limits\.references"):
        WAYS[way](str(hostile), str(tmp_path / "out"))


def test_the_limit_is_that_of_references_loaded_at_once(tmp_path):
    path = build(tmp_path, 100)
    with vz.config.limits.set(references=100):
        assert vz.open(path)["v"].manifest.nrefs == 100
    with vz.config.limits.set(references=99):
        array = vz.open(path)["v"]
        assert array[...].tolist() == list(range(100))
        with pytest.raises(
            UnsupportedError, match=r"100 references .*limits\.references.*file .*v"
        ):
            array.manifest  # noqa: B018


def test_tables_of_very_many_sources_with_one_name_are_refused(tmp_path):
    with pytest.raises(MetadataError, match="65537 sources that have one name"):
        vz.open(build(tmp_path, 5, 2**16 + 1))["v"][3]


def test_references_of_a_dataset_that_are_loaded_at_once_are_limited(tmp_path):
    path = build(tmp_path, 100)
    group = vz.open(path)
    times = vz.Array.from_manifest(
        group["v"].metadata.replace(storage_transformers=()), group["v"].manifest, "time"
    )
    vz.create_dataset(tmp_path / "dataset", vz.Group({}, {"v": group["v"], "time": times}), "time")
    with vz.config.limits.set(references=99):
        array = vz.Dataset(tmp_path / "dataset").group["v"]
        assert array[...].tolist() == list(range(100))
        with pytest.raises(UnsupportedError, match=r"100 references .*limits\.references.*v"):
            array.manifest  # noqa: B018
