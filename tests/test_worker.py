"""Workers: what crashes, hangs or takes too much there is an error here, no more."""

from __future__ import annotations

import io
import os
import pickle
import sys
import threading
import time

import h5py
import numpy as np
import pytest

from virtualzarr.array.processes import Processes
from virtualzarr.cli.stopping import Stop
from virtualzarr.errors import CodecError, SourceError
from virtualzarr.formats.hdf5 import h5py_fallback as library
from virtualzarr.formats.hdf5 import links, scan
from virtualzarr.formats.hdf5.byte_source import UnknownStructureError
from virtualzarr.worker import Worker, WorkerCrashError, WorkerRefusalError, serve


def answer(request, read):
    """Do what a request says."""
    if request == b"crash":
        os.abort()
    if request == b"exit":
        sys.exit(3)
    if request == b"hang":
        time.sleep(60)
    if request == b"refuse":
        raise CodecError("no such thing")
    if request == b"memory":
        return bytes(4 << 30)
    if request.startswith(b"read"):
        return read(*map(int, request.split()[1:]))
    return request * 2


@pytest.fixture
def worker():
    worker = Worker(__name__, timeout=60)
    yield worker
    if worker.process is not None:
        worker.process.kill()
        worker.process.communicate()


@pytest.mark.parametrize("request_", [b"crash", b"exit"])
def test_a_crash_is_an_error_and_the_next_request_works(worker, request_):
    assert worker.ask(b"abc") == b"abcabc"
    with pytest.raises(WorkerCrashError, match="has ended"):
        worker.ask(request_)
    assert worker.ask(b"abc") == b"abcabc"


def test_what_takes_too_long(worker):
    assert worker.ask(b"x") == b"xx"
    worker.timeout = 0.2
    with pytest.raises(WorkerCrashError, match="no answer"):
        worker.ask(b"hang")
    worker.timeout = 60
    assert worker.ask(b"x") == b"xx"


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have no such limit")
@pytest.mark.parametrize(("request_", "match"), [(b"refuse", "no such"), (b"memory", "memory")])
def test_refusals_leave_the_process(worker, request_, match):
    worker.ask(b"x")
    process = worker.process
    with pytest.raises(WorkerRefusalError, match=match):
        worker.ask(request_)
    assert worker.ask(b"x") == b"xx"
    assert worker.process is process


def test_bytes_are_read_here(worker):
    data = np.random.default_rng(0).bytes(1 << 20)
    read = lambda start, nbytes: data[start : start + nbytes]  # noqa: E731
    assert worker.ask(b"read 5 1000000", read) == data[5:1000005]
    assert worker.ask(b"read 1048570 100", read) == data[-6:]
    with pytest.raises(WorkerCrashError):
        worker.ask(b"read 5 10")
    with pytest.raises(ZeroDivisionError):
        worker.ask(b"read 5 10", lambda start, nbytes: 1 // 0)
    assert worker.ask(b"x" * 1_000_000) == b"x" * 2_000_000


def test_threads_take_turns(worker):
    found = {}

    def ask(number):
        found[number] = worker.ask(b"%d" % number * 50_000)

    threads = [threading.Thread(target=ask, args=(k,)) for k in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {k: b"%d" % k * 100_000 for k in range(8)}


@pytest.fixture
def many_files():
    """Have more files open than `select.select` takes."""
    resource = pytest.importorskip("resource")
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    if limit[1] != resource.RLIM_INFINITY and limit[1] < 2000:
        pytest.skip("so many files may not be open")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(limit[0], 2000), limit[1]))
    opened = [os.open(os.devnull, os.O_RDONLY) for _ in range(1100)]
    yield
    for descriptor in opened:
        os.close(descriptor)
    resource.setrlimit(resource.RLIMIT_NOFILE, limit)


def test_processes_with_many_files(worker, many_files):
    assert worker.ask(b"abc") == b"abcabc"
    with Processes(1) as workers:
        assert workers.submit(abs, -1).result() == 1
    stop = Stop()
    stop.wait(0.01)
    stop.wake()
    stop.wait(60)


def test_answers_are_data_alone():
    """A process that a file got the better of makes this one call nothing."""
    for attack in (os.system, print, eval, scan):
        raw = pickle.dumps((attack, "x"))
        with pytest.raises(pickle.UnpicklingError, match="no part of an answer"):
            library._AnswerUnpickler(io.BytesIO(raw)).load()


@pytest.fixture
def asked(tmp_path, monkeypatch):
    """Write a file that the HDF5 library is asked for."""

    def unknown(*args):
        raise UnknownStructureError("links of version 9")
        yield

    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["x"] = [1, 2, 3]
    monkeypatch.setattr(links, "read", unknown)
    return tmp_path / "a.h5"


def test_the_library_crashes_elsewhere(asked, monkeypatch):
    crashing = Worker(__name__)
    monkeypatch.setattr(crashing, "ask", lambda request, read: Worker.ask(crashing, b"crash"))
    with monkeypatch.context() as patch:
        patch.setattr(library, "worker", crashing)
        with pytest.raises(SourceError, match=r"HDF5 library crashed.*a\.h5"):
            scan(asked)
    assert scan(asked)["x"][...].tolist() == [1, 2, 3]


def test_the_library_reads_files_elsewhere(asked):
    import fsspec

    fsspec.filesystem("memory").pipe_file("/worker/a.h5", asked.read_bytes())
    assert scan("memory://worker/a.h5")["x"][...].tolist() == [1, 2, 3]


if __name__ == "__main__":
    serve(answer, 2 << 30)
