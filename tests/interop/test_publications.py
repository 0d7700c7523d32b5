"""Publications of archives as they are: read by others without any option, or refused."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest

import virtualzarr as vz
from tests.interop.test_references import bits, zarr_open
from tests.references.monthly import write_months

zarr = pytest.importorskip("zarr")
pytest.importorskip("zarr.storage", reason="zarr-python 3")
pytest.importorskip("h5py")
fsspec = pytest.importorskip("fsspec")

pytestmark = [pytest.mark.interop, pytest.mark.filterwarnings("ignore")]


def icechunk_open(path):
    icechunk = pytest.importorskip("icechunk")
    storage = icechunk.local_filesystem_storage(str(path))
    containers = icechunk.Repository.open(storage).config.virtual_chunk_containers
    access = dict.fromkeys(containers)
    repository = icechunk.Repository.open(storage, authorize_virtual_chunk_access=access)
    return zarr.open(repository.readonly_session("main").store, mode="r")


OPENERS = {".json": zarr_open, ".parq": zarr_open, ".icechunk": icechunk_open}


def assert_others_read(group, path):
    theirs = OPENERS[path.suffix](path)
    for name in group:
        assert theirs[name].shape == group[name].shape
        assert bits(theirs[name][...]) == bits(group[name][...]), name


@pytest.mark.parametrize(
    ("name", "options"),
    [("refs.json", {}), ("refs.json", {"zarr_format": 3}), ("refs.parq", {}),
     ("refs.icechunk", {})],
)  # fmt: skip
def test_climate_models_open_without_any_flag_and_grow(tmp_path, name, options):
    files = write_months(tmp_path / "files")
    target, group = tmp_path / name, vz.virtualize(files[:2], "time")
    report = group.publish(target, **options)
    assert not any("rectilinear" in note for note in report.notes)
    copied = sum(array.get("inline", 0) for array in report.receipt["arrays"].values())
    assert copied == report.inlined == 2
    assert_others_read(group, target)
    if name.endswith("icechunk"):
        pytest.importorskip("icechunk", minversion="2.0.5")
    vz.append(target, files[2:], "time")
    assert_others_read(vz.virtualize(files, "time"), target)


@pytest.fixture(scope="module")
def published(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("verify")
    group = vz.virtualize(write_months(folder / "files", 2), "time")
    group.publish(folder / "refs.json")
    return folder


def test_verify_says_who_reads_what(published):
    report = vz.verify(published / "refs.json", clients=["zarr", "tensorstore"], timeout=300)
    results = {result.client: result for result in report.clients}
    assert results["zarr"].status == "equal"
    assert set(results["zarr"].equal) == set(report.arrays)
    assert results["zarr"].version == zarr.__version__
    # TensorStore opens no references.
    assert results["tensorstore"].status in ("unsupported", "missing")
    assert (report.exit_code, report.good) == (0, True)


def test_verify_tells_wrong_values_from_refusals(published, capsys):
    from virtualzarr.cli.parser import main

    document = json.loads((published / "refs.json").read_text())
    del document["refs"]["tas/7.0.0"]  # which readers fill, and so do we
    other = document["refs"]["tas/9.0.0"]
    document["refs"]["tas/8.0.0"] = [other[0], other[1], other[2] - 1]
    broken = published / "broken.json"
    broken.write_text(json.dumps(document))
    # We refuse the chunk that is cut off: nothing can be compared with it.
    with pytest.raises(vz.errors.VirtualZarrError):
        vz.verify(broken, clients="zarr", timeout=300)
    assert main(["verify", str(published / "refs.json"), "--client", "zarr", "--json",
                 "--timeout", "300"]) == 0  # fmt: skip
    printed = json.loads(capsys.readouterr().out)
    assert (printed["exit_code"], printed["clients"][0]["known"]) == (0, [])


def test_verify_finds_values_that_differ(tmp_path):
    """Another reader applies a mask of its own here, so that it must be told from ours."""
    pytest.importorskip("tensorstore")
    array = vz.create_array(tmp_path / "a.zarr", data=np.arange(8, dtype="i4"), chunks=4,
                            zarr_format=2)  # fmt: skip
    report = vz.verify(tmp_path / "a.zarr", clients=["tensorstore"], timeout=300)
    assert report.exit_code == 0, report
    from virtualzarr.verification.run_probe import run_client
    from virtualzarr.verification.samples import take_sample

    sample = take_sample("", vz.open_array(tmp_path / "a.zarr"), full=False)
    shutil.rmtree(tmp_path / "a.zarr")
    vz.create_array(tmp_path / "a.zarr", data=np.zeros(8, "i4"), chunks=4, zarr_format=2)
    request = {"target": str(tmp_path / "a.zarr"), "form": "zarr", "zarr_format": 2}
    result = run_client(
        "tensorstore", sys.executable, request, [sample], timeout=300, memory=2 << 30
    )
    assert (result.status, result.wrong) == ("wrong", {"": "[0:8]: one value everywhere"})
    assert array.shape == (8,)


@pytest.mark.parametrize(("code", "why"), [("while True: pass", "no answer"), ("os._exit(3)", "3")])
def test_hanging_and_crashing_clients_are_results(tmp_path, code, why):
    from virtualzarr.verification.run_probe import run_client
    from virtualzarr.verification.samples import Sample

    python = tmp_path / "python"
    python.write_text(f"#!{sys.executable}\nimport os\n{code}\n")
    python.chmod(0o755)
    sample = Sample("a", (1,), (((0, 1),),), (("", True),))
    result = run_client("zarr", str(python), {"target": "a"}, [sample], timeout=3, memory=0)
    assert (result.status, list(result.refused)) == ("refused", ["a"])
    assert why in result.refused["a"]


def test_clients_that_are_not_known_are_refused(published):
    with pytest.raises(ValueError, match="clients are zarr, "):
        vz.verify(published / "refs.json", clients=["netscape"])
