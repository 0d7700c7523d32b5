"""Collections are put off while a survey compares files, and come back whatever happens."""

import gc
import threading

import numpy as np
import pytest
import zarr

import virtualzarr as vz
from virtualzarr.archive.garbage import collections


@pytest.fixture(autouse=True)
def _as_before():
    was_on = gc.isenabled()
    yield
    (gc.enable if was_on else gc.disable)()


def test_they_come_back_at_the_end_of_the_last():
    gc.enable()
    inside, go_on = threading.Event(), threading.Event()

    def work():
        with collections.put_off():
            inside.set()
            go_on.wait(10)

    def fail():
        with collections.put_off():
            thread.start()
            inside.wait(10)
            assert not gc.isenabled()
            raise KeyError

    thread = threading.Thread(target=work)
    with pytest.raises(KeyError):
        fail()
    assert not gc.isenabled()
    go_on.set()
    thread.join()
    assert gc.isenabled()


def test_who_has_switched_them_off_finds_them_off():
    gc.disable()
    with collections.put_off(), collections.put_off():
        pass
    assert not gc.isenabled()


def test_a_survey_leaves_them_on(tmp_path):
    gc.enable()
    for number in range(3):
        array = zarr.create_array(tmp_path / f"{number}.zarr", shape=(2,), dtype="i4")
        array[...] = np.arange(2)
    vz.survey([str(tmp_path / f"{number}.zarr") for number in range(3)])
    assert gc.isenabled()
