"""Memory of results is touched while answers are awaited: never after anything was put there."""

import threading
import time
from functools import partial

import numpy as np
import pytest
import zarr

import virtualzarr as vz
from tests.stores.webserver import web_server
from virtualzarr import ChunkCache
from virtualzarr.array.read import output, request

pytest.importorskip("aiohttp")
VALUES = np.arange(1, 40 * 30 + 1, dtype="i4").reshape(40, 30)


@pytest.fixture(params=["chunks", "shards"])
def folder(tmp_path, request):
    shards = {"shards": (20, 10)} if request.param == "shards" else {}
    array = zarr.create_array(
        tmp_path / "a", shape=(40, 30), chunks=(10, 5), dtype="i4", fill_value=-1, **shards
    )
    array[...] = VALUES
    return tmp_path


@pytest.fixture
def touched(monkeypatch):
    """Have all of a result overwritten by nonsense where it would be touched, and say how often."""
    count = []  # appended to by the thread that reads, and looked at by those that answer

    def overwrite(output):
        count.append(1)
        output.fill(0x55)

    monkeypatch.setattr(request, "plan_touching", lambda output: 3 * [partial(overwrite, output)])
    return count


def answer_once_touched(server, touched):
    """Have a server answer requests for chunks once something was touched, or never will be."""

    def wait(method, path):
        give_up = time.monotonic() + 5
        while "/c/" in path and not touched and time.monotonic() < give_up:
            time.sleep(0.005)

    server.before = wait


def test_results_are_what_they_were(folder, touched):
    with web_server(folder) as server:
        answer_once_touched(server, touched)
        array = vz.open(f"{server.url}/a")
        for selection in (np.s_[...], np.s_[3:37:2, 1:], np.s_[::-1, 7], (slice(None), [3, 9, 3])):
            assert np.array_equal(array[selection], VALUES[selection])
        assert np.array_equal(array.vindex[[1, 39, 1], [2, 3, 29]], VALUES[[1, 39, 1], [2, 3, 29]])
    assert touched


def test_missing_chunks_are_filled(folder, touched):
    (folder / "a/c/1/2").unlink()
    with web_server(folder) as server:
        answer_once_touched(server, touched)
        array = vz.open(f"{server.url}/a")
        height, width = array.shards or array.chunks
        expected = VALUES.copy()
        expected[height : 2 * height, 2 * width : 3 * width] = -1
        assert np.array_equal(array[...], expected)
        assert touched
        # Of some references it is known what is missing, which is filled before any request.
        vz.virtualize(f"{server.url}/a").publish(folder / "refs.json")
        virtual = next(array for _, array in vz.open(folder / "refs.json", allowed="*").members())
        assert np.array_equal(virtual[...], expected)


def test_what_others_put_there_stays(folder, touched):
    with web_server(folder) as server:
        array = vz.open(f"{server.url}/a", cache=ChunkCache(10**6))
        assert np.array_equal(array[:, 10:20], VALUES[:, 10:20])
        touched.clear()
        assert np.array_equal(array[...], VALUES)
        assert not touched
        out = np.full_like(VALUES, 7)
        vz.open(f"{server.url}/a").read(out=out)
        assert np.array_equal(out, VALUES)
        assert not touched


def test_files_that_are_replaced_are_read_again(folder, touched):
    with web_server(folder) as server:
        array = vz.open(f"{server.url}/a")
        array[0, 0]
        zarr.open_array(folder / "a")[...] = -VALUES
        answer_once_touched(server, touched)
        assert np.array_equal(array[...], -VALUES)
    assert touched


def test_nothing_is_touched_once_answers_come(folder, monkeypatch):
    came, done = threading.Event(), []

    def touch():
        done.append(came.is_set())
        time.sleep(0.02)

    monkeypatch.setattr(request, "plan_touching", lambda output: 500 * [touch])
    with web_server(folder) as server:
        array = vz.open(f"{server.url}/a")
        server.before = lambda *asked: came.wait(0.2)
        timer = threading.Timer(0.1, came.set)
        timer.start()
        assert np.array_equal(array[...], VALUES)
        timer.join()
    assert done[0] is False
    assert len(done) < 400


def test_errors_of_preparations_end_the_read(folder, monkeypatch):
    def fail():
        raise KeyboardInterrupt

    with web_server(folder) as server:
        array = vz.open(f"{server.url}/a")
        monkeypatch.setattr(request, "plan_touching", lambda output: [fail])
        with pytest.raises(KeyboardInterrupt):
            array[...]
        monkeypatch.setattr(request, "plan_touching", lambda output: [])
        assert np.array_equal(array[...], VALUES)


@pytest.mark.parametrize("dtype", ["u1", "f8", "c16", [("a", "i2"), ("b", "f4")], "S7"])
def test_each_page_is_touched(dtype):
    array = np.empty((3, 1 << 20), dtype)
    array.view("u1").fill(1)
    for task in output.plan_touching(array):
        task()
    data = array.reshape(-1).view("u1")
    if array.nbytes < 4 << 20:
        assert data.all()
        return
    assert not data[::4096].any()
    assert np.count_nonzero(data) == len(data) - len(data[::4096])


def test_only_so_much_is_touched(monkeypatch):
    monkeypatch.setattr(output, "_MOST_TOUCHED", 5 << 20)
    array = np.ones(8 << 20, "u1")
    for task in output.plan_touching(array):
        task()
    assert np.array_equal(np.flatnonzero(array == 0), np.arange(0, 5 << 20, 4096))
    assert output.plan_touching(np.empty(2 << 20, object)) == []
    assert output.plan_touching(np.empty((), "f8")) == []


def test_many_requests_leave_no_time_for_it(tmp_path, touched):
    array = zarr.create_array(tmp_path / "a", shape=(40, 30), chunks=(2, 5), dtype="i4")
    array[...] = VALUES
    with web_server(tmp_path) as server:
        assert np.array_equal(vz.open(f"{server.url}/a")[...], VALUES)
    assert not touched
