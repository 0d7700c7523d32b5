"""Every command of the runbook is run, in its order, and leaves what the page says."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
from contextlib import redirect_stdout
from pathlib import Path

import pytest

import virtualzarr as vz
from tests.dataset.s3_server import running
from virtualzarr.cli import main
from virtualzarr.cli.samples import Part, write_archive

PAGE = Path(__file__).parents[2] / "docs" / "operating.md"

_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def list_commands():
    """Yield the commands of the page: of services and crontabs, those that they run."""
    for language, code in _BLOCK.findall(PAGE.read_text(encoding="utf-8")):
        if language == "sh":
            yield from code.splitlines()
        elif language == "cron":
            # The first five fields say when.
            yield from (line.split(None, 5)[5] for line in code.splitlines())
        elif language == "ini":
            # Not until it is stopped.
            yield re.search("^ExecStart=(.*)$", code, re.MULTILINE)[1] + " --once"


def run(line):
    """Do what a shell would; return the exit code.

    A process for each would take most of its time to import numpy.
    """
    line, _, otherwise = line.partition(" || ")
    line, _, output = line.partition(" > ")
    # The shell puts the value of a variable in after it has split the line.
    command, *arguments = [os.path.expandvars(word) for word in shlex.split(line)]
    if command == "mkdir":
        os.mkdir(*arguments)
    elif command == "mv":
        os.rename(*arguments)
    elif command == "cp":
        shutil.copy(*arguments)
    elif command == "echo":
        print(*arguments)
    else:
        assert command == "virtualzarr", line
        with open(output or os.devnull, "w") as file, redirect_stdout(file):
            code = main(arguments)
        return run(otherwise) if code and otherwise else code
    return 0


def test_all_commands(tmp_path, monkeypatch, capsys):
    pytest.importorskip("obstore")
    pytest.importorskip("s3fs")
    days = write_archive(tmp_path / "days", (Part(24, 8, 1),) * 6, "air")
    (tmp_path / "final").mkdir()
    shutil.copy(days[3], tmp_path / "final")
    monkeypatch.chdir(tmp_path)
    with running() as server:
        server.objects |= {f"feed/days/{day.name}": day.read_bytes() for day in days}
        monkeypatch.setenv("OPTIONS", json.dumps(server.options()))
        for command in list_commands():
            assert run(command) == 0, (command, capsys.readouterr().err)
        dataset = vz.Dataset("s3://feed/air.dataset", storage_options=server.options())
        assert dataset.group["air"].shape == (144, 24, 32)
    out, err = capsys.readouterr()
    assert err == ""
    assert "look at the feed" not in out
    assert vz.open("air.dataset")["time"][...].tolist() == list(range(24, 144))
    verbs = [version.about["verb"] for version in vz.Dataset("air.dataset").history()]
    assert {"create", "append", "replace", "drop", "rollback", "tag"} <= set(verbs)
    assert json.loads(Path("status.json").read_text())["missing_rows"] == 0


def test_every_line_is_a_command():
    commands = list(list_commands())
    assert len(commands) > 25
    assert {command.split()[0] for command in commands} == {"virtualzarr", "mkdir", "cp", "mv"}
