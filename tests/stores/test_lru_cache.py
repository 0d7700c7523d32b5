"""The LRU cache: what is evicted, when, and what is counted."""

from __future__ import annotations

from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import strategies as st

from virtualzarr.stores.lru_cache import LRUCache


@given(
    st.integers(0, 30),
    st.lists(st.tuples(st.booleans(), st.integers(0, 6), st.integers(1, 12)), max_size=60),
)
def test_the_least_recently_used_are_evicted(limit, steps):
    cache: LRUCache = LRUCache(limit)
    model: OrderedDict = OrderedDict()
    for is_put, key, size in steps:
        if not is_put:
            assert cache.get(key, "none") == model.get(key, "none")
            if key in model:
                model.move_to_end(key)
            continue
        cache.put(key, size, size)
        if size <= limit and key not in model:
            model[key] = size
            while sum(model.values()) > limit:
                model.popitem(last=False)
        assert (len(cache), cache.size) == (len(model), sum(model.values()))


def test_a_lower_limit_evicts():
    cache: LRUCache = LRUCache(3)
    for key in range(3):
        cache.put(key, key)
    cache.limit = 1
    assert [cache.get(key) for key in range(3)] == [None, None, 2]
    assert (cache.hits, cache.misses, cache.size) == (1, 2, 1)
    cache.clear()
    assert (len(cache), cache.size) == (0, 0)


def test_negative_limits_are_refused():
    with pytest.raises(ValueError, match="0 bytes or more"):
        LRUCache(-1)


def test_threads_may_share_one():
    cache: LRUCache = LRUCache(50)

    def work(first):
        for i in range(3000):
            key = (first + i * 7) % 90
            assert cache.get(key, key) == key
            cache.put(key, key, 1 + key % 3)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(4)))
    assert cache.size == sum(size for _, size in cache._entries.values()) <= 50
    assert cache.hits + cache.misses == 12_000
