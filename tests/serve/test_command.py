"""The command, as a process: it says where it is, answers, and ends when it is told to."""

from __future__ import annotations

import base64
import os
import signal
import subprocess
import sys
import urllib.error
import urllib.request

import h5py
import numpy as np
import pytest

from virtualzarr.cli import main


@pytest.fixture
def path(tmp_path):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["x"] = np.arange(6)
    return tmp_path / "a.h5"


def start(*arguments, **environment):
    command = [sys.executable, "-m", "virtualzarr", "serve", *map(str, arguments), "--port", "0"]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env=os.environ | environment,
    )  # fmt: skip


def test_it_serves_until_it_is_told_to_end(path, tmp_path):
    tokens = tmp_path / "tokens"
    tokens.write_text("one\ntwo\n")
    process = start(path, f"other={path}", "--token-file", tokens, VIRTUALZARR_TOKEN="three")
    try:
        url = process.stdout.readline().strip()
        assert url.endswith("/a/")
        assert process.stdout.readline().strip().endswith("/other/")
        with pytest.raises(urllib.error.HTTPError, match="401"):
            urllib.request.urlopen(f"{url}v3/x/c/0", timeout=20)
        for token in ("two", "three"):
            password = base64.b64encode(f"me:{token}".encode()).decode()
            request = urllib.request.Request(
                f"{url}v3/x/c/0", headers={"Authorization": f"Basic {password}"}
            )
            with urllib.request.urlopen(request, timeout=20) as answer:
                assert answer.read() == np.arange(6, dtype="<i8").tobytes()
                assert answer.headers.get("server") is None
        process.send_signal(signal.SIGTERM)
        output, log = process.communicate(timeout=40)
    finally:
        process.kill()
    assert output == ""
    # A line for each request, without what was sent to be let in.
    assert log.count("/a/v3/x/c/0") == 3
    assert "Traceback" not in log
    assert not any(secret in log for secret in ("two", "three", "Basic"))


def test_what_is_not_there_is_an_error(tmp_path, capsys):
    assert main(["serve", str(tmp_path / "missing.h5"), "--port", "0"]) == 1
    output, log = capsys.readouterr()
    assert output == ""
    assert "missing.h5" in log
