"""Memory of large bodies: used again once nothing refers to it, and not a moment before."""

import asyncio
import gc
import os
import threading

import numpy as np
import pytest

import virtualzarr as vz
from tests.stores.webserver import web_server
from virtualzarr.stores import body_memory, http_responses
from virtualzarr.stores.body_memory import BodyMemory

pytest.importorskip("aiohttp")
MEGABYTE = 1 << 20


def address_of(view):
    return np.frombuffer(view, np.uint8).__array_interface__["data"][0]


async def take(memory, nbytes):
    return memory.take(nbytes)


def test_memory_is_used_again_once_no_view_is_left():
    async def run():
        memory = BodyMemory()
        first = memory.take(3 * MEGABYTE + 5)
        assert len(first) == 3 * MEGABYTE + 5
        first[:] = bytes(len(first))
        place = address_of(first)
        # Whatever is made of it holds it: views, arrays, and what arrays are made of.
        held = first[5:9], np.frombuffer(first, "u1"), memoryview(np.asarray(first)[7:].view("u1"))
        del first
        for i in range(len(held)):
            other = memory.take(3 * MEGABYTE)
            assert address_of(other) != place
            other[:] = b"\1" * len(other)
            del other
            held = held[1:]
            assert i == 2 or all(not np.any(np.frombuffer(each, "u1")) for each in held)
        places = {address_of(view) for view in [memory.take(3 * MEGABYTE) for _ in range(2)]}
        assert place in places

    asyncio.run(run())


def test_memory_that_is_far_too_large_is_left_for_others():
    async def run():
        memory = BodyMemory()
        large = memory.take(20 * MEGABYTE)
        place = address_of(large)
        del large
        small = memory.take(2 * MEGABYTE)
        assert address_of(small) != place
        assert address_of(memory.take(17 * MEGABYTE)) == place

    asyncio.run(run())


def test_no_more_is_kept_than_it_may_be(monkeypatch):
    monkeypatch.setattr(body_memory, "_MOST_BYTES", 5 * MEGABYTE)

    async def run():
        memory = BodyMemory()
        views = [memory.take(2 * MEGABYTE) for _ in range(4)]
        del views
        assert sum(map(len, memory._free)) == 4 * MEGABYTE

    asyncio.run(run())


def test_memory_is_given_back_after_a_while():
    memory = BodyMemory(seconds=0.05)

    async def run():
        for _ in range(2):
            view = memory.take(MEGABYTE)
            del view
            assert memory._free
            while memory._free:  # by a timer of the loop
                await asyncio.sleep(0.01)

    asyncio.run(asyncio.wait_for(run(), 20))
    # Those of a loop that ended are given back by the next one.
    view = asyncio.run(take(memory, MEGABYTE))
    del view
    assert memory._free
    asyncio.run(asyncio.wait_for(run(), 20))


def test_memory_that_comes_back_late_is_not_kept():
    memory = BodyMemory(seconds=0.02)

    async def run():
        view = memory.take(MEGABYTE)
        while memory._loop is not None:  # by its timer
            await asyncio.sleep(0.01)
        del view
        assert not memory._free

    asyncio.run(asyncio.wait_for(run(), 20))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is none")
def test_a_forked_process_keeps_none():
    memory = BodyMemory()

    async def run():
        view = memory.take(MEGABYTE)
        del view
        assert memory._free
        process = os.fork()
        if not process:
            os._exit(bool(memory._free or memory._loop))
        assert os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) == 0
        assert memory._free

    asyncio.run(run())


def test_bodies_of_many_threads_stay_what_they_are():
    memory, wrong, loops = BodyMemory(), [], []

    def work(seed):
        random = np.random.default_rng(seed)
        held = []

        async def run():
            for _ in range(300):
                value = int(random.integers(256))
                view = memory.take(int(random.integers(1, 3 * MEGABYTE)))
                array = np.frombuffer(view, np.uint8)
                array.fill(value)
                held.append((value, array[:: random.integers(1, 5000)]))
                if len(held) > 5:
                    expected, kept = held.pop(int(random.integers(len(held))))
                    wrong.extend([1] * bool((kept != expected).any()))
                if random.random() < 0.02:
                    gc.collect()

        asyncio.run(run())
        loops.append(seed)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(loops) == 4
    assert not wrong


@pytest.mark.parametrize("codecs", [[], [{"name": "crc32c"}], [{"name": "zstd"}]], ids=str)
def test_results_do_not_change_as_others_are_read(tmp_path, monkeypatch, codecs):
    """Raw chunks, blocks of a cache and whole files: nothing is a view of memory used again."""
    monkeypatch.setattr(http_responses, "_LARGE", 1)
    values = np.random.default_rng(0).integers(0, 2**31, (6, 40, 50), dtype="i4")
    for name, options in {"a": {}, "s": {"shards": (2, 40, 50)}}.items():
        array = vz.create_array(
            tmp_path / name, shape=values.shape, chunks=(1, 40, 50), dtype="i4",
            compressors=codecs, **options,
        )  # fmt: skip
        array[...] = values
    with web_server(tmp_path) as server:
        for name in ("a", "s"):
            for cache in (None, vz.ChunkCache(10**7)):
                far = vz.open(f"{server.url}/{name}", cache=cache)
                read = [far[i] for i in range(6)] + [far[1:4], far[...], far.blocks[2]]
                again = [far[...] for _ in range(3)]
                for got, i in zip(read, [*range(6), slice(1, 4), ...], strict=False):
                    assert np.array_equal(got, values[i])
                assert np.array_equal(
                    read[-1], values[far.blocks[2].shape[0] * 2 :][: len(read[-1])]
                )
                assert all(np.array_equal(got, values) for got in again)
