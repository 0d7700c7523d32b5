"""Interrupts at any moment of a read: later reads, also in other threads, go on."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading

import numpy as np
import pytest
import zarr

pytest.importorskip("aiohttp")

READING = """
import random, signal, sys, threading, time
import numpy as np, virtualzarr as vz

signal.signal(signal.SIGALRM, signal.default_int_handler)
chances, count = random.Random(1), 0
array = vz.open(sys.argv[1])
want = np.arange(array.size).reshape(array.shape)

def read(found):
    found.append(np.array_equal(array[...], want))

while count < 40:
    try:
        try:
            signal.setitimer(signal.ITIMER_REAL, chances.uniform(0.0005, 0.02))
            array[...]
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            time.sleep(0.01)  # another thread may have got the signal, and tell this one later
    except KeyboardInterrupt:
        count += 1
    found = []
    thread = threading.Thread(target=read, args=(found,), daemon=True)
    thread.start()
    thread.join(60)
    assert found == [True], found
"""


@pytest.mark.skipif(sys.platform == "win32", reason="there are no timers that interrupt")
@pytest.mark.parametrize("place", ["remote", "local"])
def test_nothing_stays_locked(tmp_path, http_server, place):
    # Local chunks that are large enough for several threads.
    shape = (100, 8) if place == "remote" else (100, 10_000)
    values = np.arange(np.prod(shape), dtype="i4").reshape(shape)
    zarr.create_array(tmp_path / "a", data=values, chunks=(2, shape[1]))
    url = f"{http_server(tmp_path)}/a" if place == "remote" else str(tmp_path / "a")
    done = subprocess.run(
        [sys.executable, "-c", READING, url],
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


SCANNING = """
import sys
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import nullcontext
import virtualzarr as vz
from virtualzarr.array.executors import map_in_order

MAKERS = {"threads": ThreadPoolExecutor, "processes": ProcessPoolExecutor, "own": nullcontext}

if __name__ == "__main__":
    urls = [f"{sys.argv[1]}/{number}.h5" for number in range(20)]
    with MAKERS[sys.argv[2]](2) as pool:
        if sys.argv[3] == "scan":
            vz.virtualize(urls, "time", parallel=pool)
        else:
            [*map_in_order(vz.open, urls, pool)]
"""


@pytest.mark.skipif(sys.platform == "win32", reason="there are no groups of processes")
@pytest.mark.parametrize("work", ["scan", "map"])
@pytest.mark.parametrize("kind", ["threads", "processes", "own"])
def test_executors_wait_for_no_server(tmp_path, kind, work):
    """It answers nothing: a request would be waited for, and be repeated, for three minutes."""
    script = tmp_path / "scanning.py"
    script.write_text(SCANNING)
    asked = threading.Event()
    with socket.create_server(("127.0.0.1", 0), backlog=64) as server:

        def accept():
            accepted = []
            while True:
                try:
                    accepted.append(server.accept())
                except OSError:
                    return
                if len(accepted) >= 2:
                    asked.set()

        threading.Thread(target=accept, daemon=True).start()
        url = f"http://127.0.0.1:{server.getsockname()[1]}"
        process = subprocess.Popen(
            [sys.executable, str(script), url, kind, work],
            stderr=subprocess.PIPE, text=True, start_new_session=True,
        )  # fmt: skip
        assert asked.wait(60)
        os.killpg(process.pid, signal.SIGINT)  # as Ctrl-C does
        try:
            _, said = process.communicate(timeout=50)
        finally:
            process.kill()
    assert "KeyboardInterrupt" in said
