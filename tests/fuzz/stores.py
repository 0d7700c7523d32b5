"""Zarr stores with damaged documents and chunks: what can be read of them, or a clear error."""

from __future__ import annotations

import contextlib
import copy
import json
import time
import traceback
import warnings
from collections.abc import Iterator
from random import Random
from typing import Any

import numpy as np

import virtualzarr as vz
from tests.fuzz.loop import kind
from tests.fuzz.mutation import mutated
from tests.fuzz.target import TooSlow, limits
from virtualzarr.errors import VirtualZarrError
from virtualzarr.metadata import dumps_json
from virtualzarr.stores import MemoryStore

Store = dict[str, bytes]
Finding = tuple[str, Store, str]

VALUES: list[Any] = [
    None, True, False, 0, 1, -1, 2, 3, 7, 255, 256, 2**16, 2**31 - 1, 2**31, 2**32, 2**53 + 1,
    2**62, 2**63 - 1, 2**63, 2**64 - 1, -(2**63), 10**30, 10**400, 0.0, -0.0, 1.5, 1e300, -1e-300,
    float("nan"), float("inf"), float("-inf"), "", "x", "0", "-1", "1e5", "NaN", "0x7ff", "é",
    "\ud800", "\0", "a/b", "../x", "..", ".", "\U0001f600" * 9, "x" * 3000, "<f4", ">i8", "|O",
    "|S0", "|V3", "<M8[99999999999s]", "<U99999999999", "|V9999999999", "int32", "r8", "r7",
    "string", "bytes", "struct", "little", "big", "C", "F", "NaT", "AAAA", "base64:x", [], [[]],
    [0], [-1], [1, 2], [2**62, 2**62], [0.5], [None], ["x"], [[["x"]]], [[1, 2], [3]],
    [["a", "<i2"]], [["a", "<i2"], ["a", "<i2"]], [["a", "|O"]], {}, {"name": "x"}, {"id": "x"},
    {"name": 5}, {"name": "bytes"}, {"name": "gzip", "configuration": None},
    {"name": "transpose", "configuration": {"order": [1, 0]}}, {"must_understand": False},
    {"name": "sharding_indexed", "configuration": {"chunk_shape": [1], "codecs": ["bytes"]}},
    {"": {"": ""}}, [{}], "blosc", "vlen-utf8", {"name": "regular"}, "default", "v2",
    [[3, 2**40]], [[[2, 2**62]], 5], {"id": "vlen-utf8"}, {"id": "pickle"},
]  # fmt: skip


def seeds() -> dict[str, Store]:
    """Return small stores of many kinds."""
    numbers = np.arange(42.0).reshape(6, 7)
    texts = np.array(["a", "", "ccc", "é"], object)
    records = np.zeros(4, [("a", "<i4"), ("b", "<f8", (2,))])
    crc = {"name": "crc32c"}
    turn = {"name": "transpose", "configuration": {"order": [1, 0]}}
    shards = {"chunks": (2, 7), "shards": (6, 7)}
    plain: dict[str, dict[str, Any]] = {
        "plain": {"data": numbers, "chunks": (4, 3), "attributes": {"a": [1, {"b": None}]}},
        "named": {"data": numbers, "dimension_names": ["y", None], "dimension_units": ["m", 4]},
        "turned": {"data": numbers, "chunks": (4, 3), "filters": turn, "compressors": "blosc"},
        "sharded": {"data": numbers, **shards, "compressors": [crc, "gzip"]},
        "rectilinear": {"data": numbers, "chunks": [[1, 2, 3], 5], "compressors": "numcodecs.lz4"},
        "scalar": {"data": np.float32(3), "fill_value": np.nan},
        "empty": {"shape": (0, 3), "dtype": "u1"},
        "text": {"data": texts, "dtype": str},
        "blobs": {"data": np.array([b"a", b"\0"], object), "dtype": bytes},
        "fixed": {"data": np.array(["ab", "c"]), "compressors": None},
        "times": {
            "data": np.arange(5).astype("M8[us]"),
            "compressors": ["numcodecs.bz2", "numcodecs.adler32"],
        },
        "complex": {"data": numbers.astype("c8"), "compressors": "numcodecs.lzma"},
        "bools": {"data": numbers > 9, "serializer": {"name": "packbits"}},
        "delta": {"data": numbers.astype("i4"), "filters": {"id": "delta", "dtype": "<i4"}},
        "zfp": {
            "data": numbers,
            "serializer": {"name": "zfp", "configuration": {"mode": "reversible"}},
        },
        "v2": {"data": numbers, "zarr_format": 2, "order": "F", "chunks": (4, 3)},
        "v2 filters": {
            "data": numbers.astype("<f4"),
            "zarr_format": 2,
            "filters": [{"id": "delta", "dtype": "<f4"}, {"id": "shuffle", "elementsize": 4}],
            "compressors": {"id": "blosc", "cname": "lz4", "clevel": 5, "shuffle": 1},
        },
        "v2 records": {"data": records, "zarr_format": 2},
        "v2 text": {"data": texts, "dtype": str, "zarr_format": 2},
    }
    stores: dict[str, Store] = {}
    for name, arguments in plain.items():
        stores[name] = {}
        vz.create_array(stores[name], **arguments)
    for zarr_format in (2, 3):
        stores[f"group {zarr_format}"] = store = {}
        group = vz.create_group(store, zarr_format=zarr_format, attributes={"title": "x"})
        group.create_group("g").create_array("a", data=numbers, chunks=(4, 3))
        group.create_array("b", data=texts, dtype=str)
        stores[f"consolidated {zarr_format}"] = {**store, **_consolidated(store, zarr_format)}
    return stores


def _consolidated(store: Store, zarr_format: int) -> Store:
    """Return the documents that a store has besides when its metadata are consolidated."""
    suffixes = ("zarr.json",) if zarr_format == 3 else (".zarray", ".zgroup", ".zattrs")
    found = {key: json.loads(store[key]) for key in store if key.endswith(suffixes)}
    if zarr_format == 2:
        return {".zmetadata": dumps_json({"zarr_consolidated_format": 1, "metadata": found})}
    inline = {key.rpartition("/")[0]: value for key, value in found.items() if "/" in key}
    consolidated = {"kind": "inline", "must_understand": False, "metadata": inline}
    return {"zarr.json": dumps_json(found["zarr.json"] | {"consolidated_metadata": consolidated})}


def _places(value: Any, place: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield place
    if isinstance(value, dict | list):
        for key in value if isinstance(value, dict) else range(len(value)):
            yield from _places(value[key], (*place, key))


def damaged_document(document: Any, random: Random) -> Any:
    """Return a document with one member changed."""
    result = {"": copy.deepcopy(document)}
    places = [("", *place) for place in _places(document)]
    *above, key = random.choice(places)
    parent: Any = result
    for step in above:
        parent = parent[step]
    change = random.choice(_CHANGES)
    if change is _copy:
        other: Any = result
        for step in random.choice(places):
            other = other[step]
        parent[key] = copy.deepcopy(other)
    else:
        change(parent, key, random)
    return result.get("")


def _put(parent: Any, key: Any, random: Random) -> None:
    parent[key] = random.choice(VALUES)


def _copy(parent: Any, key: Any, random: Random) -> None:
    """Put there what is elsewhere in the document: the caller has it."""


def _delete(parent: Any, key: Any, random: Random) -> None:
    del parent[key]


def _rename(parent: Any, key: Any, random: Random) -> None:
    names = ["", "x", "name", "configuration", "é\0", "must_understand"]
    if isinstance(parent, dict):
        parent[random.choice(names)] = parent.pop(key)


def _add(parent: Any, key: Any, random: Random) -> None:
    value = parent[key]
    if isinstance(value, dict):
        value[random.choice(["x", "name", "id", "endian"])] = random.choice(VALUES)
    elif isinstance(value, list):
        value.insert(random.randrange(len(value) + 1), random.choice(VALUES))
    elif isinstance(value, int):
        parent[key] += random.choice((-1, 1, 2**20, 2**40))


def _repeat(parent: Any, key: Any, random: Random) -> None:
    parent[key] = [parent[key]] * random.choice((1, 2, 70))


def _nest(parent: Any, key: Any, random: Random) -> None:
    for _ in range(random.choice((10, 300, 3000))):
        parent[key] = [parent[key]] if random.random() < 0.5 else {"x": parent[key]}


_CHANGES = (*[_put] * 8, _copy, _copy, _delete, _delete, _rename, *[_add] * 4, _repeat, _nest)


def damaged(store: Store, others: list[bytes], random: Random) -> Store:
    """Return a store of which one to three values are damaged: documents mostly."""
    result = dict(store)
    for _ in range(random.choice((1, 1, 2, 3))):
        key = random.choice(list(result))
        raw = result[key]
        if key.rpartition("/")[2] not in _DOCUMENTS or random.random() < 0.1:
            result[key] = mutated(raw, others, random)
            continue
        with contextlib.suppress(ValueError, RecursionError):
            document = damaged_document(json.loads(raw), random)
            result[key] = json.dumps(document).encode()
    return result


_DOCUMENTS = ("zarr.json", ".zarray", ".zgroup", ".zattrs", ".zmetadata")


def use(store: Store, seconds: float = 5.0) -> None:
    """Open a store and do everything with it; only errors of the package may come out.

    Raises
    ------
    Exception
        Anything but a `VirtualZarrError`, which is a finding.
    """
    with limits(seconds), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for open_node in (vz.open, vz.open_group, vz.open_array, vz.models.read):
            memory = MemoryStore(dict(store))
            with contextlib.suppress(VirtualZarrError):
                _use(open_node(memory), 0)


def _use(node: Any, depth: int) -> None:
    repr(node)
    if isinstance(node, vz.Array):
        for act in (_describe, _read, _write, _resize):
            with contextlib.suppress(VirtualZarrError):
                act(node)
    elif isinstance(node, vz.Group) and depth < 4:
        for act in (vz.Group.tree, _describe, vz.Group.members):
            with contextlib.suppress(VirtualZarrError):
                act(node)
        with contextlib.suppress(VirtualZarrError):
            node.attrs["x"] = 1
        for name in list(node):
            with contextlib.suppress(VirtualZarrError):
                _use(node[name], depth + 1)


def _describe(node: Any) -> None:
    str(node.info), node._repr_html_(), dict(node.attrs)


def _read(array: vz.Array) -> None:
    corner = tuple(slice(0, 2) for _ in array.shape)
    with contextlib.suppress(VirtualZarrError):
        array[corner]
    if array.nbytes < 1 << 20:
        with contextlib.suppress(VirtualZarrError):
            array[...]
    if array.ndim and all(array.shape):
        for indexed in (array.oindex, array.vindex):
            with contextlib.suppress(VirtualZarrError):
                indexed[tuple([0] for _ in array.shape)]
        if array.nchunks and array.nbytes < 1 << 24:
            with contextlib.suppress(VirtualZarrError):
                array.blocks[tuple(0 for _ in array.shape)]
    if array.dtype.names:
        with contextlib.suppress(VirtualZarrError):
            array.field(array.dtype.names[0])[corner]


def _write(array: vz.Array) -> None:
    corner = tuple(slice(0, 1) for _ in array.shape)
    if array.dtype.kind in "biuf":
        array[corner] = 1


def _resize(array: vz.Array) -> None:
    if array.ndim and array.nbytes < 1 << 20:
        array.resize((array.shape[0] + 1, *array.shape[1:]))
        array.resize((0, *array.shape[1:]))


def failure(store: Store) -> str:
    """Return the traceback of what `use` raises; "" if that is nothing."""
    try:
        use(store)
    except (Exception, TooSlow) as error:
        return "".join(traceback.format_exception(error, limit=-7))
    return ""


def look(
    random: Random, count: int | None = None, seconds: float = float("inf")
) -> Iterator[Finding]:
    """Yield what was found in damaged stores: the seed's name, the store, what is wrong."""
    stores = seeds()
    others = [raw for store in stores.values() for raw in store.values()]
    seen: set[str] = set()
    tried, stop = 0, time.monotonic() + seconds
    while tried != count and time.monotonic() < stop:
        tried += 1
        name = random.choice(list(stores))
        store = damaged(stores[name], others, random)
        found = failure(store)
        if found and kind(found) not in seen:
            seen.add(kind(found))
            yield name, store, found
