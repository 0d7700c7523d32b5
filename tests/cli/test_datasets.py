"""The commands on datasets."""

from __future__ import annotations

import json
import os
import re
from datetime import UTC, datetime, timedelta

import h5py
import numpy as np
import pytest

import virtualzarr as vz
from tests.references.test_append import write
from virtualzarr.cli import main
from virtualzarr.cli.parser import build_parser
from virtualzarr.dataset.directory import Directory
from virtualzarr.dataset.operations import UnreachableError


@pytest.fixture
def files(tmp_path):
    return [str(write(tmp_path / f"day{i}.nc", 4 * i)) for i in range(4)]


@pytest.fixture
def path(tmp_path, files):
    path = str(tmp_path / "feed")
    assert main(["create", path, files[0], "-d", "time", "-q"]) == 0
    return path


def times(path, **which):
    return vz.open(path, **which)["time"][:].tolist()


@pytest.fixture
def run(capsys):
    """Run a command that must go well; return what it prints as JSON."""

    def run(*arguments, code=0):
        capsys.readouterr()
        assert main([*map(str, arguments), "--json"]) == code
        out, err = capsys.readouterr()
        assert err == ""
        return json.loads(out)

    return run


@pytest.fixture
def fail(capsys):
    """Run a command that must fail; return what it says."""

    def fail(*arguments, code=1):
        capsys.readouterr()
        assert main([*map(str, arguments)]) == code
        out, err = capsys.readouterr()
        assert out == ""
        return err

    return fail


def test_the_life_of_a_dataset(tmp_path, files, run, fail):
    path = tmp_path / "feed"
    made = run("create", path, files[0], "-d", "time", "-m", "the first day")
    assert made["version"] == 1
    assert made["rows"] == {"time": 4}
    added = run("append", path, files[2], files[3], "-m", "two", "--commit-id", "two")
    assert (added["version"], added["changed"]) == (2, True)
    assert not run("append", path, files[2], files[3], "--commit-id", "two")["changed"]
    assert "--skip-duplicates leaves them out" in fail("append", path, files[2])
    assert not run("append", path, files[2], "--skip-duplicates")["changed"]
    run("append", path, files[1], "--dim", "time")
    assert times(path) == list(range(16))
    final = write(tmp_path / "final.nc", 4, 3)
    run("replace", path, final, "--replaced", files[1])
    assert times(path) == [*range(7), *range(8, 16)]
    run("drop", path, "--start", 8, "--stop", 9.5)
    run("drop", path, "--before", 2, "-m", "window")
    assert times(path) == [2, 3, 4, 5, 6, *range(10, 16)]
    assert "before which all was dropped" in fail("append", path, write(tmp_path / "old.nc", 0, 2))
    versions = run("history", path)
    assert [v["verb"] for v in versions] == [
        *("create", "append", "append", "replace", "drop", "drop")
    ]
    assert versions[1]["message"] == "two"
    assert versions[1]["files"] == files[2:]
    assert versions[1]["commit"] == "two"
    assert [v["version"] for v in run("history", path, "-n", 2)] == [5, 6]
    assert run("tag", path, "paper", "--version", 3, "--until", "2100-01-01") == {"paper": 3}
    diff = run("diff", path, "paper", 6)
    assert diff["files"] == [str(final)]
    assert [rows["count"] for rows in diff["dropped"]] == [2, 3]
    rolled = run("rollback", path, "paper", "-m", "as it was")
    assert times(path) == list(range(16))
    report = run("vacuum", path, "--keep", 1)
    assert report["expired"] >= rolled["version"]
    assert run("tag", path) == {"paper": 3}
    assert times(path, tag="paper") == list(range(16))
    history = run("history", path)
    assert [v["expired"] for v in history[:4]] == [True, True, False, True]
    assert run("tag", path, "paper", "--delete") == {}
    assert sorted(run("check", path)["ok"]) == sorted(files)
    assert run("check", path, "--deep")["damaged"] == {}


def test_text(tmp_path, files, capsys):
    path = str(tmp_path / "feed")

    def out(*arguments):
        assert main([*map(str, arguments)]) == 0
        return capsys.readouterr().out.splitlines()

    assert out("create", path, files[0], "-d", "time") == [f"version 1 of {path}: 4 along time"]
    assert out("append", path, files[1], "-m", "late") == [f"version 2 of {path}: 8 along time"]
    again = out("append", path, files[1], "--skip-duplicates")
    assert again == ["nothing to do: version 2 has it already"]
    assert out("tag", path) == ["no tags"]
    assert out("tag", path, "a") == ["a is version 2"]
    assert out("tag", path) == ["a: version 2"]
    line = out("history", path)[1]
    assert line.split()[0] == "2"
    assert line.endswith("append: late (1 file: day1.nc) [a]")
    assert out("diff", path, 1)[:2] == ["version 1 -> 3", "  added along time: 4 to 7 (4)"]
    assert out("compact", path, "--chunks", 8)[0].startswith("8 rows folded in 1 commit, ")
    assert "deleted; the oldest version is" in out("vacuum", path)[0]
    assert out("append", path, files[2], "-q") == []
    status = out("status", path)
    assert status[0].startswith(f"{path}: version ")
    assert status[2] == "12 rows along time, from 0 to 11"
    # The rows of two files were folded, and nothing else of these is needed.
    assert out("check", path)[0].startswith("2 ok")


def test_how_rows_are_added_is_remembered(tmp_path, run, fail):
    files = []
    for day in (1, 2, 4, 5):
        files.append(str(tmp_path / f"air_2026010{day}.h5"))
        with h5py.File(files[-1], "w") as file:
            file["air"] = np.full((2, 3), day, "f4")
            file["other"] = np.zeros(3)
    path = tmp_path / "feed"
    rules = ["--coordinate", r"filename:_(\d{8})\.h5$:%Y%m%d", "--drop-variables", "other"]
    run("create", path, files[0], "-d", "time", *rules, "--step", "1d", "--gaps", "fill")
    run("append", path, files[1])
    assert list(vz.open(path)) == ["air", "time"]
    assert "--gaps fill" in fail("append", path, files[2], "--gaps", "raise")
    run("append", path, files[2])
    np.testing.assert_array_equal(vz.open(path)["air"][:, 0, 0], [1, 2, np.nan, 4])
    status = run("status", path)
    assert status["last_time"] == "2026-01-04T00:00:00+00:00"
    assert (status["rows"], status["empty_rows"]) == (4, 1)
    assert (status["missing_rows"], status["completeness"]) == (1, 0.75)
    run("drop", path, "--start", "2026-01-02", "--stop", "2026-01-03")
    assert vz.open(path)["air"][:, 0, 0].tolist() == [1, 4]
    assert run("status", path, "--step", "1d")["missing_rows"] == 2


class TestStatus:
    def test_figures(self, path, files, run):
        status = run("status", path, "--step", "1")
        assert status["version"] == 1
        assert (status["rows"], status["first"], status["last"]) == (4, 0, 3)
        assert (status["missing_rows"], status["completeness"]) == (0, 1.0)
        assert status["lag"] is None  # its times have no unit
        assert 0 <= status["age"] < 600
        assert status["garbage_objects"] == 0
        assert status["segments"] == 2
        assert sum(status["nbytes"].values()) == sum(
            os.path.getsize(os.path.join(folder, name))
            for folder, _, names in os.walk(path)
            for name in names
        )
        main(["append", path, files[2], "-q"])
        status = run("status", path, "--step", "1")
        assert (status["missing_rows"], status["completeness"]) == (4, 8 / 12)
        assert run("status", path, "--quick")["nbytes"] == {}

    def test_garbage(self, path, files, run):
        main(["append", path, files[1], "-q"])
        main(["drop", path, "--start", "4", "-q"])
        before = run("status", path)
        assert before["garbage_bytes"] == 0
        aside = os.path.join(path, "segments", f"0-{'0' * 16}")
        with open(aside, "wb") as file:
            file.write(b"1234567")
        after = run("status", path)
        assert (after["garbage_objects"], after["garbage_bytes"]) == (1, 7)
        run("vacuum", path)
        run("vacuum", path)
        assert not os.path.exists(aside)
        assert run("status", path)["garbage_bytes"] < 7000

    def test_small_chunks(self, path, files, run):
        for file in files[1:]:
            main(["append", path, file, "-q"])
        status = run("status", path, "--small", "64")
        assert (status["chunks"], status["small_chunks"]) == (4 * 4 + 4, 16 + 4)
        assert status["unfolded_rows"] == 16
        run("compact", path, "--chunks", "time=16,y=6")
        status = run("status", path, "--small", "64")
        assert (status["small_chunks"], status["unfolded_rows"]) == (0, 0)

    def test_lag(self, tmp_path, run, fail, capsys):
        now = datetime.now(UTC)
        hours = np.arange(-5, -1) + int(now.timestamp()) // 3600
        with h5py.File(tmp_path / "a.nc", "w") as file:
            file["time"] = hours
            file["time"].attrs["units"] = "hours since 1970-01-01"
            file["time"].make_scale("time")
            file["air"] = np.zeros(4)
            file["air"].dims[0].attach_scale(file["time"])
        path = tmp_path / "feed"
        run("create", path, tmp_path / "a.nc", "-d", "time", "--step", "1h")
        status = run("status", path)
        assert 2 * 3600 <= status["lag"] < 3 * 3600 + 60
        assert status["step"] == 1
        assert run("status", path, "--max-lag", "4h", "--max-age", "1h")["problems"] == []
        problems = run("status", path, "--max-lag", "1h", code=1)["problems"]
        assert problems[0].startswith("lag is ")
        last = datetime.fromisoformat(status["last_time"])
        assert last == datetime.fromtimestamp(int(hours[-1]) * 3600, UTC)
        assert now - last >= timedelta(hours=2)
        run("status", path, "--min-completeness", "1")
        capsys.readouterr()

    def test_figures_that_are_not_known(self, path, run):
        problems = run("status", path, "--max-lag", "1h", "--min-completeness", "0.5", code=1)
        assert len(problems["problems"]) == 2
        assert "not known" in problems["problems"][0]


class TestCheck:
    def test_sources(self, path, files, run):
        os.rename(files[0], files[0] + ".aside")
        assert run("check", path, code=1)["missing"] == files[:1]

    @pytest.mark.parametrize("kind", ["segments", "schemas"])
    @pytest.mark.parametrize("how", ["missing", "damaged"])
    def test_objects(self, path, files, run, kind, how):
        main(["append", path, files[1], "-q"])
        assert run("check", path, "--deep")["damaged"] == {}
        name = sorted(os.listdir(os.path.join(path, kind)))[0]
        object_path = os.path.join(path, kind, name)
        if how == "missing":
            os.unlink(object_path)
        else:
            with open(object_path, "r+b") as file:
                data = bytearray(file.read())
                data[len(data) // 3] ^= 1
                file.seek(0)
                file.write(data)
        report = run("check", path, "--deep", code=1)
        assert [*report["damaged"]] == [f"{kind}/{name}"]

    def test_data_of_its_own(self, path, run):
        run("compact", path, "--chunks", "4")
        (name,) = os.listdir(os.path.join(path, "data"))
        with open(os.path.join(path, "data", name), "r+b") as file:
            file.write(b"1234")
        assert [*run("check", path, "--deep", code=1)["damaged"]] == [f"data/{name}"]


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["append", "{refs}", "{file}"], "give --dim"),
        (["append", "{refs}", "{file}", "-d", "time", "-m", "x"], "--message is for datasets"),
        (["append", "{refs}", "--watch", "."], "is no dataset"),
        (["append", "{path}"], "which files"),
        (["append", "{path}", "{file}", "--watch", "."], "give FILE, or --watch"),
        (["append", "{path}", "{file}", "--poll", "1"], "--poll is for --watch"),
        (["append", "{path}", "{file}", "--once"], "--once is for --watch"),
        (["append", "{path}", "{file}", "--bad-files", "retry"], "is for --watch"),
        (["append", "{path}", "{file}", "--copy"], "no --copy is needed"),
        (["append", "{path}", "{file}", "-d", "tme"], "'time', not along 'tme'"),
        (["append", "{path}", "--watch", ".", "--dry-run"], "does not go with --watch"),
        (["drop", "{path}"], "which rows"),
        (["drop", "{path}", "--before", "1", "--stop", "2"], "or --before"),
        (["drop", "{path}", "--before", "noon"], "neither a number nor a time"),
        (["vacuum", "{path}", "--keep", "0"], "invalid"),
        (["vacuum", "{path}", "--older-than", "7"], "no time span"),
        (["compact", "{path}", "--chunks", "x=auto"], "no lengths"),
        (["tag", "{path}", "--delete"], "which NAME"),
    ],
)
def test_misuse(tmp_path, files, path, fail, arguments, text):
    refs = tmp_path / "refs.json"
    main(["scan", files[0], "-o", str(refs), "-q"])
    names = {"refs": refs, "path": path, "file": files[1]}
    err = fail(*[argument.format(**names) for argument in arguments], code=2)
    assert text in err


def test_errors(tmp_path, files, path, fail):
    assert "there is something already" in fail("create", path, files[0], "-d", "time")
    assert "no tag 'paper'" in fail("rollback", path, "paper")
    assert "version" in fail("rollback", path, 7)
    assert "no tag" in fail("tag", path, "paper", "--delete")
    for command in ("history", "status", "vacuum"):
        assert "virtualzarr: error" in fail(command, tmp_path / "nowhere")
    assert "no dataset" in fail("history", files[0])


def test_showing_a_version(path, files, run, fail):
    run("append", path, files[1])
    run("tag", path, "first", "--version", "1")
    for which, rows in {("--version", 1): 4, ("--tag", "first"): 4, ("--version", 2): 8}.items():
        assert run("info", path, "time", *which)["shape"] == [rows]
        assert run("tree", path, *which)["members"]["time"]["shape"] == [rows]
    then = run("history", path)[0]["time"]
    assert run("info", path, "time", "--at", then)["shape"] == [4]
    assert "no tag" in fail("info", path, "--tag", "second")
    assert "datasets with versions" in fail("info", files[0], "--version", "1")


def test_an_outcome_that_is_not_known(path, files, fail, run, monkeypatch):
    """The message has what makes it safe to repeat the command."""

    class Silent(Directory):
        longest_wait = patience = 0.01

        def replace(self, data, tag, has_turn=False):
            super().replace(data, tag, has_turn)
            self.get = self.refuse
            raise UnreachableError("silence")

        def refuse(self, operation):
            raise UnreachableError("silence")

    monkeypatch.setattr("virtualzarr.dataset.open_storage.Directory", Silent)
    error = fail("append", path, files[1])
    monkeypatch.undo()
    commit_id = re.search(r"repeat it with --commit-id ([\w-]+)", error)[1]
    assert not run("append", path, files[1], "--commit-id", commit_id)["changed"]
    assert times(path) == list(range(8))


def test_a_dry_run(path, files, run):
    preview = run("append", path, files[1], "--dry-run")
    assert preview["path"] == path
    assert times(path) == list(range(4))


def test_every_command_of_datasets_has_json():
    (commands,) = (a for a in build_parser()._actions if a.dest == "command" or a.choices)
    for name in ("create", "append", "replace", "drop", "history", "diff", "tag", "rollback",
                 "vacuum", "compact", "delete-layer", "status", "check"):  # fmt: skip
        options = {o for a in commands.choices[name]._actions for o in a.option_strings}
        assert {"--json", "-v", "-q"} <= options, name
