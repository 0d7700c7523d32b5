"""The commands on references."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

import virtualzarr as vz
from tests.references.test_append import write
from virtualzarr.cli import main

pytest.importorskip("pyarrow")


@pytest.fixture
def files(tmp_path):
    return [str(write(tmp_path / f"day{i}.nc", 4 * i)) for i in range(3)]


def test_the_life_of_references(tmp_path, files, capsys):
    refs, other = str(tmp_path / "refs.json"), str(tmp_path / "refs.parq")
    assert main(["concat", *files[:2], "-d", "time", "-o", refs, "--dry-run"]) == 0
    table = capsys.readouterr().out
    assert "variable" in table
    assert [line.split()[:4] for line in table.splitlines() if line.startswith("air")] == [
        ["air", "8", "8", "0"]
    ]
    assert not (tmp_path / "refs.json").exists()
    assert main(["concat", *files[:2], "-d", "time", "-o", refs]) == 0
    assert main(["append", refs, files[2], "-d", "time", "--dry-run"]) == 0
    assert vz.open(refs)["time"].shape == (8,)
    assert main(["append", refs, files[2], "-d", "time", "-q"]) == 0
    assert vz.open(refs)["time"].shape == (12,)
    capsys.readouterr()
    assert main(["append", refs, files[2], "-d", "time"]) == 1
    assert "there already" in capsys.readouterr().err
    assert main(["append", refs, *files, "-d", "time", "--skip-duplicates"]) == 0
    assert "there already" in capsys.readouterr().out
    assert main(["convert", refs, other, "--dry-run"]) == 0
    assert not (tmp_path / "refs.parq").exists()
    assert main(["convert", refs, other]) == 0
    assert vz.open(other)["time"][:].tolist() == list(range(12))
    capsys.readouterr()
    assert main(["check", other]) == 0
    assert capsys.readouterr().out.startswith("3 ok, 0 changed")
    (tmp_path / "day1.nc").rename(tmp_path / "new.nc")
    assert main(["check", other, "--dry-run"]) == 0  # it does not look
    assert capsys.readouterr().out.splitlines() == [
        "would ask for 3 files",
        f"3 files in {tmp_path}, of 0 nothing is noted",
    ]
    assert main(["check", other]) == 1
    assert "missing:" in capsys.readouterr().out
    assert main(["rename", other, files[1], str(tmp_path / "new.nc"), "--dry-run"]) == 0
    assert main(["check", other]) == 1
    assert main(["rename", other, files[1], str(tmp_path / "new.nc")]) == 0
    assert "1 file renamed" in capsys.readouterr().out
    assert main(["check", other]) == 0
    assert vz.open(other)["time"][:].tolist() == list(range(12))


def test_a_dry_run_says_what_must_be_copied(tmp_path, capsys):
    odd = [str(write(tmp_path / f"{i}.nc", 3 * i, 3)) for i in range(2)]
    refs = str(tmp_path / "refs.json")
    assert main(["concat", *odd, "-d", "time", "-o", refs, "--dry-run"]) == 0
    line = next(x for x in capsys.readouterr().out.splitlines() if x.startswith("air"))
    assert line.split()[5] == "2"  # those that the end of the first file cuts
    assert "part of a larger block" in line
    assert main(["concat", *odd, "-d", "time", "-o", refs]) == 1
    assert main(["concat", *odd, "-d", "time", "-o", refs, "--plugin-codecs", "-q"]) == 0
    assert vz.open(refs)["time"][:].tolist() == list(range(6))


def test_renaming_what_no_source_is(tmp_path, files, capsys):
    refs = str(tmp_path / "refs.json")
    assert main(["scan", *files[:1], "-o", refs, "-q"]) == 0
    assert main(["rename", refs, "/nowhere", "/somewhere"]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert "no source is '/nowhere'" in err
    assert f"the sources lie in '{tmp_path}'" in err


def report_of(capsys):
    out, err = capsys.readouterr()
    assert err == ""
    return json.loads(out)


def test_reports_as_json(tmp_path, files, capsys):
    refs = str(tmp_path / "refs.json")
    assert main(["scan", *files[:1], "-o", refs, "--json"]) == 0
    assert report_of(capsys)["arrays"] == 3
    assert main(["append", refs, files[1], "-d", "time", "--json", "--dry-run"]) == 0
    assert {line["path"] for line in report_of(capsys)["lines"]} == {"air", "time", "y"}
    assert main(["append", refs, files[1], "-d", "time", "--json"]) == 0
    assert report_of(capsys)["references"] == 11
    assert main(["append", refs, files[1], "-d", "time", "--json", "--skip-duplicates"]) == 0
    assert report_of(capsys) is None
    assert main(["check", refs, "--json"]) == 0
    assert report_of(capsys)["ok"] == files[:2]
    assert main(["check", refs, "--json", "--dry-run"]) == 0
    assert report_of(capsys) == {str(tmp_path): [2, 0]}
    assert main(["rename", refs, files[0], "/x.nc", "--json", "--dry-run"]) == 0
    assert report_of(capsys) == {files[0]: "/x.nc"}
    assert main(["convert", refs, str(tmp_path / "x.zarr"), "--json"]) == 0
    assert report_of(capsys)["zarr_format"] == 3
    assert main(["copy", refs, str(tmp_path / "copy.zarr"), "--json"]) == 0
    assert report_of(capsys)["arrays"] == 3
    assert main(["info", refs, "--json"]) == 0
    found = report_of(capsys)
    assert found["members"]["air"]["shape"] == [8, 6]
    assert found["members"]["air"]["dimension_names"] == ["time", "y"]
    assert main(["tree", refs, "--json", "-L", "0"]) == 0
    assert "members" not in report_of(capsys)


@pytest.mark.parametrize("command", ["scan", "concat"])
def test_scan_and_concat_have_the_same_options(tmp_path, files, command, capsys):
    for dim in ("-d", "--dim", "--concat-dim"):
        for n, more in enumerate(
            ([], ["--form", "native"], ["--zarr-format", "3"], ["--relative"])
        ):
            target = tmp_path / f"{n}{dim}"
            common = [*files, dim, "time", "-o", str(target), "--harmonize", "--on-error", "warn"]
            assert main([command, *common, *more]) == 0, capsys.readouterr().err
            assert vz.open(target)["time"].shape == (12,)


def test_nothing_is_replaced_unless_asked(tmp_path, files, capsys):
    """A pattern where the output should be takes the first file for it."""
    before = Path(files[0]).read_bytes()
    for option in ([], ["--overwrite"]):
        assert main(["concat", "-d", "time", *option, "-o", *files]) == (0 if option else 1)
        if not option:
            assert (
                "a file of the format hdf5 already; --overwrite replaces" in capsys.readouterr().err
            )
            assert Path(files[0]).read_bytes() == before
    assert main(["scan", files[1], "-o", files[1], "--overwrite"]) == 1
    assert "referred to" in capsys.readouterr().err
    assert main(["convert", files[0], files[2]]) == 1
    assert "--overwrite" in capsys.readouterr().err


def test_errors_speak_of_options(tmp_path, capsys):
    odd = [str(write(tmp_path / f"{i}.nc", 3 * i, 3)) for i in range(2)]
    refs = str(tmp_path / "refs.json")
    assert main(["concat", *odd, "-d", "time", "-o", refs]) == 1
    err = capsys.readouterr().err
    assert "--copy" in err
    assert "=True" not in err
    assert main(["concat", *odd, "-d", "time", "-o", refs, "--on-error", "warn"]) == 0
    out, err = capsys.readouterr()
    assert "left out" in out
    for text in (out, err):
        assert "--copy" in text
        assert "=True" not in text
    assert main(["scan", odd[0], "-o", refs, "-q", "--overwrite"]) == 0
    assert main(["append", refs, odd[0], "-d", "time"]) == 1
    assert "--skip-duplicates leaves out" in capsys.readouterr().err


def test_what_is_done_is_said_if_asked(tmp_path, files, capsys):
    refs = str(tmp_path / "refs.json")
    assert main(["scan", files[0], "-o", refs, "-q"]) == 0
    assert capsys.readouterr() == ("", "")
    assert main(["scan", files[0], "-o", refs, "-q", "-v"]) == 0
    err = capsys.readouterr().err
    assert "virtualzarr.ingest.scan_files: scanned 1 files" in err
    assert "virtualzarr.formats.hdf5" not in err
    assert main(["scan", files[0], "-o", refs, "-q", "-vv"]) == 0
    assert f"virtualzarr.formats.hdf5: scanned {files[0]}" in capsys.readouterr().err


def test_storage_options(tmp_path, files, monkeypatch, capsys):
    """They reach the file systems: of what is read, and of what is written."""
    fsspec = pytest.importorskip("fsspec")
    from fsspec.implementations.memory import MemoryFileSystem

    seen = []

    class Asking(MemoryFileSystem):
        protocol = "asking"
        cachable = False

        def __init__(self, *args, **options):
            seen.append({k: v for k, v in options.items() if k in ("key", "anon")})
            super().__init__(*args, **options)

        @classmethod
        def _strip_protocol(cls, path):
            return MemoryFileSystem._strip_protocol(str(path).replace("asking://", "memory://"))

    fsspec.register_implementation("asking", Asking, clobber=True)
    place = f"/{tmp_path.name}"
    fsspec.filesystem("memory").pipe(f"{place}/a.nc", Path(files[0]).read_bytes())
    command = ["scan", f"asking:/{place}/a.nc", "--storage-options", "anon=true"]
    assert main([*command, "-o", str(tmp_path / "refs.json")]) == 0, capsys.readouterr().err
    assert {"anon": True} in seen
    assert {"key": 3} not in seen
    assert main([*command, "-o", f"asking:/{place}/refs.json", "--output-options", "key=3"]) == 0
    assert {"key": 3} in seen
    seen.clear()
    assert main(["info", f"asking:/{place}/a.nc", "--storage-options", '{"key": 4}']) == 0
    assert {"key": 4} in seen
    assert main(["info", files[0], "--storage-options", "nonsense"]) == 2
    assert "neither key=value" in capsys.readouterr().err


@pytest.mark.parametrize(("text", "problem"), [
    ('{"headers": {"A": "PLANTED"}', "not JSON: Expecting ',' delimiter at character 29 of 28"),
    ("{'key': 'PLANTED'}", "property name enclosed in double quotes at character 2 of 18"),
    ('{"key": "PLANTED', "not JSON: Unterminated string starting at character 9 of 16"),
    ('{"key": "PLANTED\\x"}', r"Invalid \escape at character 17 of 20"),
    ('"PLANTED"', "neither key=value,... nor JSON"),
    ("anon=true,PLANTED,a=b", "neither key=value,... nor JSON, in part 2 of the 3 between commas"),
    ("=PLANTED", "neither key=value,... nor JSON"),
])  # fmt: skip
@pytest.mark.parametrize("name", ["--storage-options", "--output-options", "--storage-optoins"])
def test_wrong_options_are_not_repeated(name, text, problem, capsys):
    """There may be a password in them."""
    command = ["scan", "a.nc", "-o", "refs.json"]
    for arguments in ([name, text], [f"{name}={text}"]):
        assert main([*command, *arguments]) == 2
        err = capsys.readouterr().err
        assert ("is --storage-options meant?" if name.endswith("optoins") else problem) in err
        assert "PLANTED" not in err


@pytest.mark.parametrize("shell", ["bash", "zsh", "tcsh"])
def test_completion(shell, capsys, monkeypatch):
    pytest.importorskip("shtab")
    assert main(["completion", shell]) == 0
    out = capsys.readouterr().out
    assert "--skip-duplicates" in out or "skip-duplicates" in out
    monkeypatch.setitem(sys.modules, "shtab", None)
    assert main(["completion", shell]) == 1
    assert "virtualzarr[completion]" in capsys.readouterr().err
