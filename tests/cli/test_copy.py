"""The command line: copies."""

from __future__ import annotations

import json

import numpy as np
import pytest

import virtualzarr as vz
from virtualzarr.cli import main

DATA = np.arange(240, dtype="i4").reshape(12, 20)


@pytest.fixture
def source(tmp_path):
    path = tmp_path / "a.zarr"
    group = vz.create_group(path, attributes={"title": "weather"})
    group.create_array("air", data=DATA, chunks=(5, 6), dimension_names=["time", "x"])
    group.create_array("inner/time", data=np.arange(12.0), chunks=5, dimension_names=["time"])
    return path


def copied(source, target, *options):
    assert main(["copy", str(source), str(target), *options]) == 0
    return vz.open(target)


def test_plain(source, tmp_path, capsys):
    group = copied(source, tmp_path / "b.zarr")
    out, err = capsys.readouterr()
    assert "2 arrays, 2 groups" in out
    assert "15 chunks copied" in out
    assert err == ""
    np.testing.assert_array_equal(group["air"][...], DATA)
    assert group.attrs == {"title": "weather"}


def test_quiet(source, tmp_path, capsys):
    copied(source, tmp_path / "b.zip", "-q")
    assert capsys.readouterr() == ("", "")


def test_options(source, tmp_path):
    gzip = json.dumps({"name": "gzip", "configuration": {"level": 1}})
    group = copied(
        source, tmp_path / "b.zarr", "--name", "deep", "--chunks", "time=4", "--shards", "time=12",
        "--compressors", gzip, "--dimension-separator", ".", "--consolidated",
        "--no-write-empty-chunks", "--memory", "1MB", "--fill-value", "7",
    )["deep"]  # fmt: skip
    air = group["air"]
    assert (air.chunks, air.shards, air.fill_value) == ((4, 6), (12, 6), 7)
    assert "gzip" in json.dumps(air.metadata.pipeline.to_v3(2))
    assert (tmp_path / "b.zarr/deep/air/c.0.0").exists()
    assert "consolidated_metadata" in (tmp_path / "b.zarr/deep/zarr.json").read_text()
    np.testing.assert_array_equal(air[...], DATA)


@pytest.mark.parametrize(
    ("chunks", "expected"),
    [("3", (3, 3)), ("4,-1", (4, 20)), ("[[2, 10], 7]", ((2, 10), (7, 7, 6))), ("auto", (12, 20))],
)
def test_chunks_of_an_array(source, tmp_path, chunks, expected):
    array = copied(source, tmp_path / "b.zarr", "--node", "air", "--chunks", chunks)
    assert array.chunks == expected
    np.testing.assert_array_equal(array[...], DATA)


def test_formats(source, tmp_path):
    group = copied(source, tmp_path / "b.zarr", "--zarr-format", "2", "--codecs", "none")
    assert group.zarr_format == 2
    assert json.loads((tmp_path / "b.zarr/air/.zarray").read_text())["compressor"] is None
    np.testing.assert_array_equal(group["inner/time"][...], np.arange(12.0))


def test_overwriting(source, tmp_path, capsys):
    target = tmp_path / "b.zarr"
    copied(source, target)
    assert main(["copy", str(source), str(target)]) == 1
    assert "overwrite" in capsys.readouterr().err
    assert copied(source, target, "--overwrite", "--chunks", "2")["air"].chunks == (2, 2)


@pytest.mark.parametrize(
    "options",
    [["--memory", "much"], ["--chunks", "a,b"], ["--zarr-format", "4"], ["--codecs", "{"], []],
)
def test_wrong_arguments(source, tmp_path, options, capsys):
    target = [str(tmp_path / "b.zarr")] if options else []
    assert main(["copy", str(source), *target, *options]) == 2
    assert "usage: virtualzarr copy" in capsys.readouterr().err
    assert not (tmp_path / "b.zarr").exists()


def test_what_memory_costs_is_said(tmp_path, capsys):
    vz.create_array(tmp_path / "a.zarr", data=DATA, chunks=(1, 20))
    options = ["--chunks", "12,1", "--memory", "512"]
    copied(tmp_path / "a.zarr", tmp_path / "b.zarr", *options)
    out, err = capsys.readouterr()
    assert "warning: /: within 512 bytes" in err
    assert "decoded" in out


@pytest.mark.parametrize(("option", "message"), [
    ("--chunks=time", "'time' has no lengths, such as 8,100 or time=24,lat=-1"),
    ("--shards=time=abc", "'time=abc' has no lengths"),
    ("--chnuks=3", "unrecognized arguments: --chnuks=3; is --chunks meant"),
    ("--memroy=3", "unrecognized arguments: --memroy=3; is --memory meant"),
])  # fmt: skip
def test_wrong_options_say_what_is_meant(source, tmp_path, capsys, option, message):
    assert main(["copy", str(source), str(tmp_path / "b.zarr"), option]) == 2
    assert message in capsys.readouterr().err


def test_a_misspelt_dimension_is_named(source, tmp_path, capsys):
    assert main(["copy", str(source), str(tmp_path / "b.zarr"), "--chunks", "tmie=3"]) == 1
    assert "no array has a dimension 'tmie'; is 'time' meant?" in capsys.readouterr().err
