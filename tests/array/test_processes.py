"""Worker processes over pipes: what comes back, what fails, and that none is left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time

import h5py
import numpy as np
import pytest

import virtualzarr as vz
from virtualzarr.array import processes
from virtualzarr.array.processes import Processes
from virtualzarr.errors import CodecError, ExecutorError, VirtualZarrError


def double(value):
    print("what is printed does not come between answers")
    return 2 * value


def refuse(what):
    if what == "ours":
        raise CodecError("wrong", variable="a", chunk="0.1")
    if what == "unsendable":
        return lambda: None
    if what == "input":
        return sys.stdin.read()
    raise ValueError(what)


def has_ended(pid, seconds=20):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            with open(f"/proc/{pid}/stat") as file:
                if file.read().rpartition(")")[2].split()[0] == "Z":
                    return True
        except FileNotFoundError:
            return True
        time.sleep(0.05)
    return False


@pytest.fixture
def files(tmp_path):
    for k in range(3):
        with h5py.File(tmp_path / f"{k}.h5", "w") as file:
            file["t"] = np.arange(4.0) + 4 * k
            file["t"].make_scale("t")
            file.create_dataset("a", data=np.arange(8.0).reshape(4, 2) + k, chunks=(2, 2))
            file["a"].dims[0].attach_scale(file["t"])
    return tmp_path


class Loud:
    def __reduce__(self):
        return __import__, ("no_module_of_this_name",)


@pytest.mark.parametrize("value", [lambda: 1, threading.Lock(), Loud()])
def test_what_cannot_be_sent_is_an_error_of_this_package(value):
    with Processes(1) as workers, pytest.raises(ExecutorError, match="cannot be"):
        workers.submit(double, value).result()
    with Processes(1) as workers:
        assert workers.submit(double, 3).result() == 6


@pytest.mark.parametrize("text", ["hello from the cluster", "hi", r"\0" * 40, ""])
@pytest.mark.parametrize("end", [r"\n", ""])
def test_installations_may_print_when_a_process_starts(tmp_path, text, end):
    (tmp_path / "sitecustomize.py").write_text(f"print('{text}', end='{end}', flush=True)")
    script = """
        from tests.array.test_processes import double
        from virtualzarr.array.processes import Processes
        with Processes(2) as workers:
            assert list(workers.map(double, range(9))) == [2 * k for k in range(9)]
    """
    folders = os.pathsep.join([str(tmp_path), os.getcwd()])
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)], timeout=60, capture_output=True, text=True,
        env={**os.environ, "PYTHONPATH": folders}, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


def test_processes_that_print_without_end_are_given_up(monkeypatch, tmp_path):
    (tmp_path / "sitecustomize.py").write_text("print('x' * (1 << 21), flush=True)")
    monkeypatch.syspath_prepend(tmp_path)
    with Processes(1) as workers, pytest.raises(ExecutorError, match="died"):
        workers.submit(double, 3).result()


@pytest.mark.skipif(os.name == "nt", reason="there are no such masks")
@pytest.mark.parametrize("how", [signal.SIG_BLOCK, signal.SIG_UNBLOCK])
def test_a_thread_keeps_the_interrupts_that_it_had(how):
    before = signal.pthread_sigmask(how, [signal.SIGINT])
    try:
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, [])
        with processes._without_interrupts():
            assert signal.SIGINT in signal.pthread_sigmask(signal.SIG_BLOCK, [])
        assert signal.pthread_sigmask(signal.SIG_BLOCK, []) == mask
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@pytest.mark.skipif(os.name == "nt", reason="pipes cannot be waited for")
@pytest.mark.parametrize("text", ["exec sleep 60", "sleep 60", "exit 3"])
def test_an_interpreter_that_is_none_is_given_up(tmp_path, monkeypatch, text):
    """`sys.executable` of applications with Python in them is the application."""
    path = tmp_path / "app"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(path))
    monkeypatch.setattr(processes, "_START_SECONDS", 0.3)
    began = time.monotonic()
    with Processes(1) as workers, pytest.raises(ExecutorError, match="died"):
        workers.submit(double, 3).result(20)
    assert time.monotonic() - began < 20


def test_results_and_errors_are_those_of_the_function():
    with Processes(2) as workers:
        assert list(workers.map(double, range(20))) == [*range(0, 40, 2)]
        assert workers.submit(double, np.arange(10**6)).result()[-1] == 2 * (10**6 - 1)
        with pytest.raises(CodecError, match=r"wrong \[variable a, chunk 0.1\]"):
            workers.submit(refuse, "ours").result()
        with pytest.raises(ValueError, match="other"):
            workers.submit(refuse, "other").result()
        with pytest.raises(ExecutorError, match="cannot send"):
            workers.submit(refuse, "unsendable").result()
        assert workers.submit(refuse, "input").result() == ""
        pids = {workers.submit(os.getpid).result() for _ in range(8)}
        assert len(pids) <= 2
    assert all(has_ended(pid) for pid in pids)
    with pytest.raises(RuntimeError, match="shut down"):
        workers.submit(double, 1)


def test_a_process_that_dies_is_an_error_of_its_task():
    with Processes(1) as workers:
        dead = workers.submit(os.kill, workers.submit(os.getpid).result(), signal.SIGKILL)
        other = workers.submit(double, 3)
        with pytest.raises(ExecutorError, match=r"has died .*-9"):
            dead.result()
        assert other.result() == 6


def test_datasets_are_staged_by_them(files, monkeypatch):
    monkeypatch.setattr(vz.config.tuning, "staged_files", 2)
    dataset = vz.create_dataset(files / "dataset", files / "*.h5", "t", parallel=1)
    expected = np.concatenate([np.arange(8.0).reshape(4, 2) + k for k in range(3)])
    np.testing.assert_array_equal(dataset.group["a"][...], expected)


def test_wrong_numbers():
    for number in (0, -1):
        with pytest.raises(ValueError, match="there are no"):
            vz.copy(vz.create_array({}, shape=2, dtype="i4"), {}, parallel=number)
    with pytest.raises(TypeError, match="a number, an executor or a client"):
        vz.copy(vz.create_array({}, shape=2, dtype="i4"), {}, parallel=True)


def test_scripts_need_no_guard(files):
    """Those of `concurrent.futures` would import the script, and start others without end."""
    script = files / "script.py"
    script.write_text(
        textwrap.dedent(
            """
            import virtualzarr as vz
            print("once")
            group = vz.virtualize("*.h5", "t", parallel=2)
            vz.copy(group, "copy.zarr", chunks={"t": 3}, parallel=1)
            part = vz.Group({}, {"a": group["a"].lazy[1:]})
            part.publish("refs.json", copy=True, inline=0, parallel=1)
            vz.create_dataset("dataset", "0.h5", "t").compact({"t": 4}, parallel=1)
            """
        )
    )
    command = [sys.executable, "script.py"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    shown = subprocess.run(
        command, cwd=files, env=environment, capture_output=True, text=True, check=True
    )
    assert shown.stdout == "once\n"
    expected = np.concatenate([np.arange(8.0).reshape(4, 2) + k for k in range(3)])
    np.testing.assert_array_equal(vz.open(files / "copy.zarr")["a"][...], expected)
    np.testing.assert_array_equal(vz.open(files / "refs.json")["a"][...], expected[1:])
    np.testing.assert_array_equal(vz.open(files / "dataset")["a"][...], expected[:4])


def test_scans_are_those_of_one_process(files):
    with Processes(1) as workers:
        groups = [vz.virtualize(files / "*.h5", "t", parallel=each) for each in (None, workers)]
        assert groups[0]["a"].chunk_source.manifest == groups[1]["a"].chunk_source.manifest
        np.testing.assert_array_equal(groups[1]["t"][...], np.arange(12.0))
        (files / "1.h5").write_bytes(b"\x89HDF\r\n\x1a\n")
        errors = []
        for each in (None, workers):
            with pytest.raises(VirtualZarrError, match=r"1\.h5") as caught:
                vz.virtualize(files / "*.h5", "t", parallel=each)
            errors.append(str(caught.value))
        assert errors[0] == errors[1]


@pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="processes are looked for in /proc")
def test_workers_end_with_the_process_that_started_them():
    script = "import os, time; from virtualzarr.array.processes import Processes as P; "
    script += "p = P(1); print(p.submit(os.getpid).result(), flush=True); time.sleep(600)"
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE) as process:
        pid = int(process.stdout.readline())
        process.kill()
    assert has_ended(pid)
