"""Documents with a value of any kind in any place: read, or refused by an error of this package."""

import contextlib
import copy
import functools
import json
import operator

import pytest

import virtualzarr as vz
from virtualzarr.errors import VirtualZarrError

LITTLE = {"name": "bytes", "configuration": {"endian": "little"}}
VALUES = [
    None, -1, 0, 1, 1.5, "x", "", [], {}, True, 10**30, float("nan"), float("inf"), [[]], [None],
    [0], [-1], ["x"], {"name": "x"}, {"id": "x"}, 2**62, "\0", [[1, 2], [3]], ">i8", "|O",
    [["a", "<i2"]], "NaN",
]  # fmt: skip


def array(data_type, fill_value, *codecs, **more):
    return {"zarr.json": {
        "zarr_format": 3, "node_type": "array", "shape": [4, 5], "data_type": data_type,
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [2, 3]}},
        "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
        "fill_value": fill_value, "codecs": [*codecs], "attributes": {"a": 1},
        "dimension_names": ["y", None], "storage_transformers": [], **more,
    }}  # fmt: skip


def codec(name, **configuration):
    return {"name": name, "configuration": configuration}


def zarray(dtype, fill_value, filters, compressor, **more):
    return {".zarray": {
        "zarr_format": 2, "shape": [4, 5], "chunks": [2, 3], "dtype": dtype, "order": "F",
        "fill_value": fill_value, "filters": filters, "compressor": compressor,
        "dimension_separator": ".", **more,
    }, ".zattrs": {"_ARRAY_DIMENSIONS": ["y", "x"]}}  # fmt: skip


BLOSC = {"cname": "lz4", "clevel": 5, "shuffle": "shuffle", "typesize": 4, "blocksize": 0}
RECTILINEAR = {
    "name": "rectilinear",
    "configuration": {"kind": "inline", "chunk_shapes": [[2, [2, 1]], 6]},
}
SHARDS = codec(
    "sharding_indexed", chunk_shape=[2, 3], codecs=[LITTLE, {"name": "gzip"}],
    index_codecs=[LITTLE, {"name": "crc32c"}], index_location="end",
)  # fmt: skip
FIELDS = [{"name": "a", "data_type": "int16"}, {"name": "b", "data_type": "float32"}]
RECORD = [["a", "<i2"], ["b", ">f8", [2]], ["c", [["d", "|S3"]]]]
FLOATS = array(
    "float32", 1.0, codec("transpose", order=[1, 0]), LITTLE, codec("gzip", level=1),
    codec("blosc", **BLOSC), codec("zstd", level=1, checksum=False), {"name": "crc32c"},
)  # fmt: skip
V2 = zarray(
    "<f4", 1.0, [{"id": "delta", "dtype": "<f4"}, {"id": "shuffle", "elementsize": 4}],
    {"id": "blosc", "cname": "lz4", "clevel": 5, "shuffle": 1, "blocksize": 0},
)  # fmt: skip
DOCUMENTS = {
    "plain": FLOATS,
    "sharded": array("float32", 1.0, SHARDS, chunk_grid=RECTILINEAR),
    "filtered": array(
        "float32", 1.0, codec("numcodecs.delta", dtype="<f4"),
        codec("numcodecs.fixedscaleoffset", offset=0, scale=1, dtype="<f4", astype="<i2"), LITTLE,
        codec("numcodecs.shuffle", elementsize=4), codec("numcodecs.zlib", level=1),
        codec("numcodecs.lzma", format=1, check=-1, preset=None, filters=None),
    ),
    "text": array("string", "a", "vlen-utf8"),
    "times": array(codec("numpy.datetime64", unit="s", scale_factor=2), "NaT", LITTLE),
    "records": array(codec("struct", fields=FIELDS), {"a": 1, "b": 2.0}, LITTLE),
    "bytes": array(codec("null_terminated_bytes", length_bytes=3), "AAAA", {"name": "bytes"}),
    "v2": V2,
    "v2 records": zarray(RECORD, None, None, None),
    "v2 text": zarray("|O", "", [{"id": "vlen-utf8"}], {"id": "zstd", "level": 1}),
    "group": {"zarr.json": {
        "zarr_format": 3, "node_type": "group", "attributes": {}, "consolidated_metadata": {
            "kind": "inline", "must_understand": False, "metadata": {
                "a": FLOATS["zarr.json"], "g": {"zarr_format": 3, "node_type": "group"}}}}},
    "v2 group": {".zgroup": {"zarr_format": 2}, ".zmetadata": {
        "zarr_consolidated_format": 1, "metadata": {
            ".zgroup": {"zarr_format": 2}, "a/.zarray": V2[".zarray"]}}},
}  # fmt: skip


def places(value, place=()):
    yield place
    if isinstance(value, dict | list):
        for key in value if isinstance(value, dict) else range(len(value)):
            yield from places(value[key], (*place, key))


def changed(documents, place, change):
    """Return the documents with what is at a place changed."""
    result = copy.deepcopy(documents)
    parent = result
    for key in place[:-1]:
        parent = parent[key]
    change(parent, place[-1])
    return result


def delete(parent, key):
    del parent[key]


def changes(target):
    yield delete
    for value in VALUES:
        yield lambda parent, key, value=value: parent.__setitem__(key, value)
        if isinstance(target, dict):
            yield lambda parent, key, value=value: parent[key].update(surprise=value)
        if isinstance(target, list):
            yield lambda parent, key, value=value: parent[key].append(value)


def use(node):
    repr(node)
    if isinstance(node, vz.Array):
        assert node.info
        node[tuple(slice(0, 2) for _ in node.shape)]
        return
    for name in node:
        with contextlib.suppress(VirtualZarrError):
            use(node[name])


@pytest.mark.parametrize("name", DOCUMENTS)
def test_any_value_in_any_place(name):
    documents = DOCUMENTS[name]
    use(vz.open(encoded(documents)))
    skipped = 0
    for place in places(documents):
        if len(place) < 2:
            continue
        target = functools.reduce(operator.getitem, place, documents)
        for change in changes(target):
            broken = changed(documents, place, change)
            try:
                use(vz.open(encoded(broken)))
            except VirtualZarrError:
                skipped += 1
            except Exception as error:
                error.add_note(f"{place}: {broken}")
                raise
    assert skipped > 20


def encoded(documents):
    return {key: json.dumps(document).encode() for key, document in documents.items()}
