"""The commands on references."""

from __future__ import annotations

import pytest

import virtualzarr as vz
from tests.test_growing import write
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
