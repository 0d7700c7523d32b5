"""The command line: what it prints, what it writes, and its exit codes."""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from importlib import import_module
from pathlib import Path

import h5py
import numpy as np
import pytest

import virtualzarr as vz
from tests.stores.webserver import web_server
from virtualzarr.cli import main
from virtualzarr.cli.samples import FULL, PARTIAL, read_archive, write_archive

ROOT = Path(__file__).parents[2]


@pytest.fixture
def archive(tmp_path):
    return write_archive(tmp_path / "archive", FULL, "air")


@pytest.fixture
def partial(tmp_path):
    return write_archive(tmp_path / "partial", PARTIAL, "air")


@pytest.fixture
def odd(tmp_path):
    """A file with one variable that cannot be virtualized."""
    path = tmp_path / "odd.h5"
    with h5py.File(path, "w") as file:
        file["good"] = [1, 2, 3]
        file["odd"] = h5py.ExternalLink("elsewhere.h5", "x")
    return path


class TestScan:
    def test_one_file(self, archive, tmp_path, capsys):
        output = tmp_path / "refs.json"
        assert main(["scan", str(archive[0]), "-o", str(output)]) == 0
        out, err = capsys.readouterr()
        assert "refs.json" in out
        assert err == ""
        np.testing.assert_array_equal(vz.open(output)["air"][...], read_archive(archive[:1], "air"))

    def test_many_files_by_pattern(self, archive, tmp_path):
        output = tmp_path / "refs.json"
        pattern = str(archive[0].parent / "*.nc")
        assert main(["scan", pattern, "--concat-dim", "time", "-o", str(output), "-q"]) == 0
        np.testing.assert_array_equal(vz.open(output)["air"][...], read_archive(archive, "air"))
        assert sorted(path.name for path in tmp_path.iterdir()) == ["archive", "refs.json"]

    def test_quiet(self, archive, tmp_path, capsys):
        assert main(["scan", str(archive[0]), "-q", "-o", str(tmp_path / "refs.json")]) == 0
        assert capsys.readouterr() == ("", "")

    def test_several_files_need_a_dimension(self, archive, tmp_path, capsys):
        output = tmp_path / "refs.json"
        assert main(["scan", *map(str, archive), "-o", str(output)]) == 1
        assert "--dim" in capsys.readouterr().err
        assert not output.exists()

    def test_a_misspelt_dimension(self, archive, tmp_path, capsys):
        output = tmp_path / "refs.json"
        assert main(["scan", *map(str, archive), "-d", "tmie", "-o", str(output)]) == 1
        error = capsys.readouterr().err
        assert "'tmie' (--dim); is 'time' meant?" in error
        assert "concat_dim" not in error
        assert "coordinate= in Python, or stack() in Python" in error

    def test_chunks_that_need_a_copy(self, partial, tmp_path, capsys):
        output = tmp_path / "refs.json"
        command = ["scan", *map(str, partial), "--concat-dim", "time", "-o", str(output)]
        assert main(command) == 1
        assert "copy" in capsys.readouterr().err
        assert not output.exists()
        assert main([*command, "--copy"]) == 0
        assert "1 chunk copied" in capsys.readouterr().out
        np.testing.assert_array_equal(vz.open(output)["air"][...], read_archive(partial, "air"))

    def test_variables_that_are_refused(self, odd, tmp_path, capsys):
        output = tmp_path / "refs.json"
        command = ["scan", str(odd), "-o", str(output)]
        assert main(command) == 1
        assert "odd" in capsys.readouterr().err
        assert main([*command, "--on-error", "warn"]) == 0
        assert "virtualzarr: warning: " in capsys.readouterr().err
        assert list(vz.open(output)) == ["good"]

    def test_a_format_can_be_forced(self, archive, tmp_path, capsys):
        command = ["scan", str(archive[0]), "-o", str(tmp_path / "refs.json"), "--format"]
        assert main([*command, "hdf5"]) == 0
        assert main([*command, "tiff"]) == 1
        assert main([*command, "doc"]) == 1
        assert "'doc'" in capsys.readouterr().err

    def test_references_can_be_scanned_again(self, archive, tmp_path):
        first, second = tmp_path / "a.json", tmp_path / "b.json"
        assert main(["scan", str(archive[0]), "-o", str(first), "-q"]) == 0
        assert main(["scan", str(first), "-o", str(second), "-q"]) == 0
        assert json.loads(second.read_text())["refs"].keys() >= {"air/.zarray", "air/0.0.0"}


class TestInfo:
    def test_a_file(self, archive, capsys):
        assert main(["info", str(archive[0])]) == 0
        out = capsys.readouterr().out
        assert "air (time: 24, y: 24, x: 32) float32" in out
        assert "3 chunks of (8, 24, 32), bytes > numcodecs.shuffle > numcodecs.zlib" in out
        assert "title: air temperature, made up" in out
        assert "5 arrays, 1 group, 7 chunks, 74,372 bytes" in out

    def test_secrets_in_urls_are_not_shown(self, archive, capsys):
        pytest.importorskip("aiohttp")
        with web_server(archive[0].parent) as server:
            url = f"{server.url.replace('//', '//me:s3crets@')}/{archive[0].name}?sig=s3crets"
            assert main(["info", url]) == 0
        out = capsys.readouterr().out
        assert f"//***@{server.url.partition('//')[2]}/{archive[0].name}?sig=***" in out
        assert "s3crets" not in out

    def test_irregular_chunks(self, archive, tmp_path, capsys):
        output = tmp_path / "refs.json"
        main(["scan", *map(str, archive), "--concat-dim", "time", "-o", str(output), "-q"])
        assert main(["info", str(output)]) == 0
        assert "(3 x 8 + 4 x 12 + 6 x 6, 24, 32)" in capsys.readouterr().out

    def test_one_array(self, archive, capsys):
        assert main(["info", str(archive[0]), "air"]) == 0
        assert "Data type  : float32" in capsys.readouterr().out

    def test_what_was_refused(self, odd, capsys):
        assert main(["info", str(odd)]) == 0
        out, err = capsys.readouterr()
        assert "1 skipped:\n  odd: " in out
        assert err == ""

    def test_chunks_never_written(self, tmp_path, capsys):
        path = tmp_path / "a.h5"
        with h5py.File(path, "w") as file:
            file.create_dataset("some", (10,), "f4", chunks=(5,))[:5] = 1
            file.create_dataset("none", (10,), "f4", chunks=(5,))
        assert main(["info", str(path)]) == 0
        out = capsys.readouterr().out
        assert ", 1 never written" in out
        assert "never written\n" in out

    def test_groups(self, tmp_path, capsys):
        path = tmp_path / "a.h5"
        with h5py.File(path, "w") as file:
            file["outer/inner/a"] = np.zeros(3)
            file["outer"].attrs["note"] = "x" * 100
        assert main(["info", str(path)]) == 0
        out = capsys.readouterr().out
        assert "└── outer\n    │ note: " + "x" * 70 + "..." in out
        assert "1 array, 3 groups" in out

    @pytest.mark.parametrize("node", ["nothing", "air/deeper"])
    def test_nothing_there(self, archive, node, capsys):
        assert main(["info", str(archive[0]), node]) == 1
        assert node in capsys.readouterr().err

    def test_what_is_stored(self, tmp_path, capsys):
        array = vz.create_array(tmp_path / "a", shape=(8,), chunks=(2,), dtype="f4",
                                compressors=None)  # fmt: skip
        array[:3] = 1
        assert main(["info", str(tmp_path / "a")]) == 0
        nbytes = array.nbytes_stored()
        expected = f"Stored     : 2 of 4 chunks, {nbytes} bytes, ratio {32 / nbytes:.3g}\n"
        assert expected in capsys.readouterr().out

    def test_stored_shards(self, tmp_path, capsys):
        array = vz.create_array(tmp_path / "a", shape=(8,), chunks=(2,), shards=(8,), dtype="f4")
        array[:3] = 1
        assert main(["info", str(tmp_path / "a")]) == 0
        assert "Stored     : 1 of 1 shard, " in capsys.readouterr().out

    def test_stored_in_other_files(self, archive, capsys):
        assert main(["info", str(archive[0]), "air"]) == 0
        assert "Stored     : 3 of 3 chunks, " in capsys.readouterr().out


class TestTree:
    def test_a_file(self, tmp_path, capsys):
        path = tmp_path / "a.h5"
        with h5py.File(path, "w") as file:
            file["outer/inner/a"] = np.zeros((3, 2))
        whole = "/\n└── outer\n    └── inner\n        └── a (3, 2) float64\n"
        assert main(["tree", str(path)]) == 0
        assert capsys.readouterr().out == whole
        for level, lines in ((0, 1), (1, 2), (2, 3), (3, 4), (9, 4)):
            assert main(["tree", str(path), "-L", str(level)]) == 0
            assert capsys.readouterr().out.splitlines() == whole.splitlines()[:lines]
        assert main(["tree", str(path), "outer/inner"]) == 0
        assert capsys.readouterr().out == "/outer/inner\n└── a (3, 2) float64\n"
        assert main(["tree", str(path), "outer/inner/a"]) == 0
        assert capsys.readouterr().out == "/outer/inner/a (3, 2) float64\n"

    def test_a_store(self, tmp_path, capsys):
        group = vz.create_group(tmp_path / "g")
        group.create_array("x/y", shape=(2,), dtype="i2")
        assert main(["tree", str(tmp_path / "g"), "--level", "1"]) == 0
        assert capsys.readouterr() == ("/\n└── x\n", "")

    def test_what_was_refused(self, odd, capsys):
        assert main(["tree", str(odd)]) == 0
        out, err = capsys.readouterr()
        assert "good (3,) int64\n\n1 skipped:\n  odd: " in out
        assert err == ""

    @pytest.mark.parametrize("level", ["-1", "x"])
    def test_levels_that_are_none(self, odd, level, capsys):
        assert main(["tree", str(odd), "--level", level]) == 2
        assert "--level" in capsys.readouterr().err

    def test_nothing_there(self, tmp_path, capsys):
        assert main(["tree", str(tmp_path / "missing.nc")]) == 1
        assert "missing.nc" in capsys.readouterr().err


class TestExitCodes:
    def test_errors_have_no_traceback(self, tmp_path, capsys):
        assert main(["info", str(tmp_path / "missing.nc")]) == 1
        out, err = capsys.readouterr()
        assert out == ""
        assert err.startswith("virtualzarr: error: ")
        assert "missing.nc" in err
        assert err.count("\n") == 1

    def test_debug_shows_where(self, tmp_path):
        with pytest.raises(vz.errors.SourceError):
            main(["info", "--debug", str(tmp_path / "missing.nc")])

    @pytest.mark.parametrize("arguments", [[], ["scan"], ["scan", "a.nc"], ["fly"], ["info"]])
    def test_misuse(self, arguments, capsys):
        assert main(arguments) == 2
        assert "usage: virtualzarr" in capsys.readouterr().err

    def test_help_and_version(self, capsys):
        assert main(["--version"]) == 0
        assert capsys.readouterr().out == f"virtualzarr {vz.__version__}\n"
        assert main(["scan", "--help"]) == 0

    def test_interruption(self, archive, monkeypatch, capsys):
        def interrupted(*arguments, **options):
            raise KeyboardInterrupt

        monkeypatch.setattr(vz, "virtualize", interrupted)
        assert main(["scan", str(archive[0]), "-o", "refs.json"]) == 1
        assert "interrupted" in capsys.readouterr().err


class TestDemo:
    def test_everything_is_equal(self, tmp_path, capsys):
        assert main(["demo", "--keep", str(tmp_path)]) == 0
        out = capsys.readouterr().out
        assert "DIFFERENT" not in out
        assert "Every value is equal" in out
        assert out.count("0 chunks copied, 0 bytes") == 3
        assert out.count("1 chunk copied") == 1
        assert (tmp_path / "air.json").exists()

    def test_differences_are_found(self, monkeypatch, capsys):
        def wrong(paths, name):
            data = read_archive(paths, name)
            return data + np.spacing(data) if name == "air" else data

        monkeypatch.setattr("virtualzarr.cli.demonstration.read_archive", wrong)
        assert main(["demo"]) == 1
        assert "DIFFERENT: air" in capsys.readouterr().out

    def test_without_the_optional_packages(self, monkeypatch, capsys):
        monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
        assert main(["demo"]) == 0
        out = capsys.readouterr().out
        assert out.count("skipped: xarray is not installed") == 4
        # References and the server, each.
        assert out.count("skipped: zarr is not installed") == 8


def test_as_a_module(tmp_path):
    command = [sys.executable, "-m", "virtualzarr", "info", str(tmp_path / "missing")]
    result = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    assert result.returncode == 1
    assert result.stderr.startswith("virtualzarr: error: ")


def test_the_entry_points_lead_somewhere():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    places = [*project["scripts"].values(), *project["entry-points"]["xarray.backends"].values()]
    pytest.importorskip("xarray")
    for place in places:
        module, _, name = place.partition(":")
        assert callable(getattr(import_module(module), name))
    assert project["version"] == vz.__version__
