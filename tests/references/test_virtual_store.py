"""Virtual hierarchies as stores: what their keys are, and which chunks are refused."""

import pickle

import numpy as np
import pytest

from grids import RectilinearGrid, RegularGrid
from virtualzarr.array import Array
from virtualzarr.codecs import Pipeline, make
from virtualzarr.errors import AccessError, SourceError, UnsupportedError
from virtualzarr.hierarchy.group import Group
from virtualzarr.hierarchy.open_node import open_hierarchy
from virtualzarr.manifest import Decoder, Manifest, Source, Sources
from virtualzarr.metadata import ArrayMetadata
from virtualzarr.references.virtual_store import VirtualStore

RAW = Pipeline((make("bytes", endian="little"),))
ZLIB = Pipeline((make("bytes", endian="little"), make("numcodecs.zlib", level=1)))


def metadata(grid, dtype="i4", **changes):
    options = {"pipeline": RAW, "fill_value": np.dtype(dtype).type(9), "attributes": {}} | changes
    return ArrayMetadata(shape=grid.shape, dtype=np.dtype(dtype), grid=grid, **options)


@pytest.fixture
def group(tmp_path):
    """An array of 7 elements whose last chunk is missing, a scalar, and an array called ``c``."""
    path = tmp_path / "data.bin"
    path.write_bytes(b"head" + np.arange(7, dtype="<i4").tobytes())
    source = Source.from_file(path)
    lines = Array.from_manifest(
        metadata(RegularGrid((7,), (3,)), attributes={"units": "m"}),
        Manifest((3,), Sources([source]), [0, 0, -1], [4, 16, 0], 12),
    )
    scalar = Array.from_manifest(metadata(RegularGrid((), ())), Manifest.inline(b"\7\0\0\0", 0))
    plane = Array.from_manifest(
        metadata(RectilinearGrid((3, 2), [[1, 2], [2]])),
        Manifest((2, 1), Sources([source]), 0, [[4], [12]], [[8], [16]]),
    )
    return Group({"title": "all"}, {"lines": lines, "in": Group({}, {"c": plane}), "zero": scalar})


def test_keys_and_sizes(group):
    store = VirtualStore(group)
    keys = dict(store.list())
    assert {key: size for key, size in keys.items() if not key.endswith(".json")} == {
        "lines/c/0": 12, "lines/c/1": 12, "in/c/c/0/0": 8, "in/c/c/1/0": 16, "zero/c": 4,
    }  # fmt: skip
    for key, size in keys.items():
        assert store.size(key) == size == len(store.get(key)) == len(store.file(key).read(0, None))
    for key in ("lines/c/2", "lines/c/3", "lines/c/01", "lines/c", "lines/c/0/0", "lines", "x/c/0"):
        assert store.get(key) is None
        assert store.size(key) is None
        assert store.file(key) is None


@pytest.mark.parametrize(
    ("prefix", "names"),
    [
        ("", ["in", "lines", "zarr.json", "zero"]),
        ("in", ["c", "zarr.json"]),
        ("in/c", ["c", "zarr.json"]),
        ("in/c/c", ["0", "1"]),
        ("lines/c", ["0", "1"]),
        ("zero", ["c", "zarr.json"]),
        ("zero/c", []),
        ("nothing", []),
    ],
)
def test_listing(group, prefix, names):
    store = VirtualStore(group)
    assert list(store.list_dir(prefix)) == names
    start = f"{prefix}/" if prefix else ""
    everything = dict(store.list())
    assert dict(store.list(prefix)) == {k: n for k, n in everything.items() if k.startswith(start)}


@pytest.mark.parametrize("span", [(0, 4), (4, None), (-5, None), (3, 100), (20, 30), (5, 2)])
@pytest.mark.parametrize("key", ["lines/c/1", "zero/c", "zarr.json"])
def test_byte_ranges(group, key, span):
    store = VirtualStore(group)
    assert store.get(key, span) == store.get(key)[slice(*span)]


def test_references_to_all_the_rest(tmp_path):
    path = tmp_path / "data.bin"
    path.write_bytes(bytes(range(12)))
    sources = Sources([Source(str(path))])
    grid = RegularGrid((5,), (3,))
    store = VirtualStore(
        Array.from_manifest(metadata(grid), Manifest((2,), sources, 0, [0, 4], -1))
    )
    assert {k: n for k, n in store.list() if k != "zarr.json"} == {"c/0": 12, "c/1": 8}
    assert store.size("c/0") == 12
    assert store.get("c/0", (2, 4)) == b"\2\3"
    assert store.get("c/1") == bytes(range(4, 12))


def test_our_own_reader_reads_it(group):
    again = open_hierarchy(pickle.loads(pickle.dumps(VirtualStore(group))))
    assert again.attributes == {"title": "all"}
    for path, array in group.members(max_depth=None):
        if isinstance(array, Array):
            np.testing.assert_array_equal(again[path][...], array[...])
    assert again["lines"].attrs["units"] == "m"


def test_chunks_that_others_would_read_wrong_are_refused():
    sources = Sources([Source.inline(bytes(24))])
    manifest = Manifest((2,), sources, 0, [0, 12], 12, [Decoder(ZLIB)], [-1, 0])
    node = Group({}, {"a": Array.from_manifest(metadata(RegularGrid((6,), (3,))), manifest)})
    store = VirtualStore(node)
    assert store.get("a/c/0") == bytes(12)
    with pytest.raises(UnsupportedError, match=r"other codecs.*variable a, chunk 1\]"):
        store.get("a/c/1")


def test_a_part_of_a_plain_block_is_a_shorter_range():
    values = np.arange(6, dtype="<i4")
    sources = Sources([Source.inline(values.tobytes())])
    manifest = Manifest((2,), sources, 0, 0, 24, [Decoder(RAW, (6,))], 0, [[0], [3]])
    store = VirtualStore(Array.from_manifest(metadata(RegularGrid((6,), (3,))), manifest))
    assert store.get("c/1") == values[3:].tobytes()


def test_codecs_of_our_own_are_refused():
    swapped = Pipeline((make("bytes", endian="little"), make("numcodecs.shuffle", elementsize=3)))
    array = Array.from_manifest(
        metadata(RegularGrid((3,), (3,)), pipeline=swapped), Manifest.inline(bytes(12), 1)
    )
    store = VirtualStore(Group({}, {"a": array}))
    with pytest.raises(UnsupportedError, match="numcodecs shuffles whole elements only"):
        store.get("a/c/0")


def test_a_file_that_changed_is_not_read(group, tmp_path):
    store = VirtualStore(group)
    (tmp_path / "data.bin").write_bytes(bytes(40))
    with pytest.raises(SourceError, match="changed since it was scanned"):
        store.get("lines/c/0")


def test_nothing_is_written(group):
    store = VirtualStore(group)
    calls = [
        lambda: store.set("a", b""),
        lambda: store.delete("a"),
        lambda: store.delete_dir(""),
        lambda: store.update("a", lambda old: old),
    ]
    for call in calls:
        with pytest.raises(AccessError, match="read-only"):
            call()
