"""Data types x codecs x orders x chunk shapes x keys x selections, against numpy, bit by bit.

The stores are made here, with numpy and the compressors' own packages: nothing of this package
takes part in writing them.
"""

import bz2
import gzip
import itertools
import json
import lzma
import zlib

import numcodecs
import numpy as np
import pytest
import zstandard

import virtualzarr as vz
from virtualzarr.metadata import dtype_to_v2, dtype_to_v3

RECORD = np.dtype([("a", "<i2"), ("b", ">f8"), ("c", "S3"), ("d", "<u2", (2, 3))])
TWO = np.dtype([("x", "<i4"), ("y", "<f8")])
DTYPES = [
    "?", "i1", "u1", "<i2", ">i2", "<u4", ">u4", "<i8", ">u8", "<f2", ">f2", "<f4", ">f4", "<f8",
    ">f8", "<c8", ">c8", "<c16", ">c16", "<M8[ns]", ">M8[s]", "<M8[10D]", ">m8[us]", "S1", "S5",
    "V3", "<U3", ">U3", RECORD, TWO, np.dtype(TWO).newbyteorder(">"),
]  # fmt: skip
LAYOUTS = [
    ((), ()),
    ((7,), (3,)),
    ((7,), (10,)),
    ((0,), (4,)),
    ((5, 6), (2, 4)),
    ((5, 6), (1, 6)),
    ((5, 6), (1, 1)),
    ((5, 6), (9, 9)),
    ((3, 0), (2, 2)),
    ((3, 4, 5), (2, 3, 2)),
    ((2, 1, 3, 2), (1, 1, 2, 2)),
]


def values(dtype, shape, rng):
    """Elements of any bits, NaN payloads included, that mean something in their dtype."""
    dtype = np.dtype(dtype)
    count = int(np.prod(shape))
    if dtype.kind == "?" or dtype.kind == "b":
        return rng.integers(0, 2, shape).astype(bool)
    if dtype.kind == "U":
        words = np.array(["", "a", "é€", "😀bc", "x\0y"], dtype)
        return np.asarray(words[rng.integers(0, len(words), shape)], dtype)
    raw = rng.integers(0, 256, (count, dtype.itemsize), dtype="u1")
    return np.frombuffer(raw.tobytes(), dtype).reshape(shape).copy()


def shuffled(data, itemsize):
    return np.frombuffer(data, "u1").reshape(-1, itemsize).T.tobytes()


def zstd_without_size(data):
    return zstandard.ZstdCompressor(write_content_size=False).compress(data)


def in_two(compress):
    return lambda data: compress(data[:5]) + compress(data[5:])


def by(codec):
    return lambda data: bytes(codec.encode(data))


# name: v2 configuration, v3 configuration, what it makes of the bytes
COMPRESSORS = {
    "none": (None, None, bytes),
    "zlib": ({"id": "zlib", "level": 1}, {"name": "numcodecs.zlib"}, zlib.compress),
    "gzip": ({"id": "gzip", "level": 1}, {"name": "gzip"}, gzip.compress),
    "gzip members": ({"id": "gzip", "level": 1}, {"name": "gzip"}, in_two(gzip.compress)),
    "bz2": ({"id": "bz2", "level": 1}, {"name": "numcodecs.bz2"}, bz2.compress),
    "lzma": ({"id": "lzma"}, {"name": "numcodecs.lzma"}, lzma.compress),
    "zstd": ({"id": "zstd", "level": 1}, {"name": "zstd"}, zstandard.compress),
    "zstd frames": ({"id": "zstd"}, {"name": "zstd"}, in_two(zstandard.compress)),
    "zstd without size": ({"id": "zstd"}, {"name": "zstd"}, zstd_without_size),
    "lz4": ({"id": "lz4"}, {"name": "numcodecs.lz4"}, by(numcodecs.LZ4())),
    "blosc": ({"id": "blosc"}, {"name": "blosc"}, by(numcodecs.Blosc("zstd", 3, 1))),
    "blosc bits": ({"id": "blosc"}, {"name": "blosc"}, by(numcodecs.Blosc("lz4", 3, 2))),
    "crc32": ({"id": "crc32"}, {"name": "numcodecs.crc32"}, by(numcodecs.CRC32())),
    "crc32c": ({"id": "crc32c"}, {"name": "crc32c"}, by(numcodecs.CRC32C())),
    "adler32": ({"id": "adler32"}, {"name": "numcodecs.adler32"}, by(numcodecs.Adler32())),
    "fletcher32": (
        {"id": "fletcher32"},
        {"name": "numcodecs.fletcher32"},
        by(numcodecs.Fletcher32()),
    ),
}


def with_typesize(v3, itemsize):
    if v3 is not None and v3["name"] == "blosc":
        fields = {"cname": "lz4", "clevel": 1, "shuffle": "shuffle", "blocksize": 0}
        return {"name": "blosc", "configuration": fields | {"typesize": itemsize}}
    return v3


def chunks_of(data, chunks, rng, missing):
    """Yield the cells that have a chunk, with their blocks padded with garbage."""
    grid = [range(-(-n // edge)) for n, edge in zip(data.shape, chunks, strict=True)]
    for cell in itertools.product(*grid):
        if rng.random() < missing:
            continue
        block = values(data.dtype, chunks, rng)
        place = tuple(slice(i * e, (i + 1) * e) for i, e in zip(cell, chunks, strict=True))
        part = data[place]
        block[tuple(slice(0, n) for n in part.shape)] = part
        yield cell, place, block


class Case:
    """A store, and what must be read from it."""

    def __init__(self, version, dtype, layout, order, separator, compressor, shuffle, seed):
        rng = np.random.default_rng(seed)
        self.dtype = np.dtype(dtype)
        self.shape, self.chunks = layout
        written = values(dtype, self.shape, rng)
        fill = values(dtype, (), rng)
        v2, v3, compress = COMPRESSORS[compressor]
        self.expected = np.full(self.shape, fill, self.dtype)
        itemsize = self.dtype.itemsize
        make = self._v2 if version == 2 else self._v3
        self.store = make(order, separator, v2 if version == 2 else v3, shuffle, fill)
        for cell, place, block in chunks_of(written, self.chunks, rng, missing=0.3):
            self.expected[place] = written[place]
            if order == "F":
                block = block.transpose()
            data = block.tobytes()
            if shuffle:
                data = shuffled(data, itemsize)
            self.store[self._key(version, separator, cell)] = compress(data)
        self.native = self.dtype if self.dtype.names else self.dtype.newbyteorder("=")

    def _key(self, version, separator, cell):
        numbers = [str(i) for i in cell]
        if version == 3:
            return separator.join(["c", *numbers])
        return separator.join(numbers) or "0"

    def _fill(self, fill):
        if self.dtype.kind in "SV":
            import base64

            return base64.b64encode(fill.tobytes()).decode()
        if self.dtype.kind == "U":
            return str(fill)
        return None

    def _v2(self, order, separator, compressor, shuffle, fill):
        value = self._fill(fill)
        if value is None:
            # Other values are what JSON can say: zero will do.
            self.expected[...] = np.zeros((), self.dtype)
            value = {"b": False, "c": [0.0, 0.0]}.get(self.dtype.kind, 0)
        filters = [{"id": "shuffle", "elementsize": self.dtype.itemsize}] if shuffle else None
        document = {
            "zarr_format": 2, "shape": self.shape, "chunks": self.chunks, "order": order,
            "dtype": dtype_to_v2(self.dtype), "fill_value": value, "filters": filters,
            "compressor": compressor, "dimension_separator": separator,
        }  # fmt: skip
        return {".zarray": json.dumps(document).encode()}

    def _v3(self, order, separator, compressor, shuffle, fill):
        value, kind, size = self._fill(fill), self.dtype.kind, self.dtype.itemsize
        bits = np.frombuffer(fill.astype(self.dtype.newbyteorder("=")).tobytes(), "u1")
        if self.dtype.names:
            self.expected[...] = np.zeros((), self.dtype)
            value = dict.fromkeys(self.dtype.names, 0)
        elif kind == "b":
            value = bool(fill)
        elif kind == "f":
            value = hex(int(bits.view(f"u{size}")[0]))
        elif kind == "c":
            value = [hex(int(part)) for part in bits.view(f"u{size // 2}")]
        elif value is None:
            value = int(bits.view(f"i{size}" if kind in "mM" else f"{kind}{size}")[0])
        endian = "big" if self.dtype != self.dtype.newbyteorder("<") else "little"
        codecs = [{"name": "bytes", "configuration": {"endian": endian}}]
        if order == "F" and len(self.shape) > 1:
            axes = [*reversed(range(len(self.shape)))]
            codecs.insert(0, {"name": "transpose", "configuration": {"order": axes}})
        if shuffle:
            codecs.append({"name": "numcodecs.shuffle", "configuration": {"elementsize": size}})
        if compressor is not None:
            codecs.append(with_typesize(compressor, size))
        document = {
            "zarr_format": 3, "node_type": "array", "shape": self.shape,
            "data_type": dtype_to_v3(self.dtype.newbyteorder("=")), "fill_value": value,
            "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": self.chunks}},
            "chunk_key_encoding": {"name": "default", "configuration": {"separator": separator}},
            "codecs": codecs,
        }  # fmt: skip
        return {"zarr.json": json.dumps(document).encode()}


def same(result, expected, what):
    result = np.asarray(result)
    assert result.shape == expected.shape, what
    assert result.dtype.newbyteorder("=") == expected.dtype.newbyteorder("="), what
    assert result.astype(expected.dtype).tobytes() == expected.tobytes(), what


def cases(dtype, version):
    """Every layout with few codecs, and every codec with one layout."""
    options = []
    for layout, order in itertools.product(LAYOUTS, "CF"):
        options += [(layout, order, "/", name, False) for name in ("none", "zlib", "blosc")]
    for name, shuffle in itertools.product(COMPRESSORS, (False, True)):
        options.append((((5, 6), (2, 4)), "CF"[len(options) % 2], ".", name, shuffle))
    for i, option in enumerate(options):
        yield option, Case(version, dtype, *option, seed=i)


def has_v3(dtype):
    return np.dtype(dtype) != RECORD  # mixed byte orders, and a field with a shape


@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_dtypes_and_codecs(dtype, version, monkeypatch):
    if version == 3 and not has_v3(dtype):
        pytest.skip("v3 has no such data type")
    for option, case in cases(dtype, version):
        array = vz.open(case.store)
        assert array.dtype == (case.native if version == 2 else case.dtype.newbyteorder("="))
        same(array, case.expected, option)
        if array.ndim:
            # Blocks read in pieces go another way than whole ones.
            monkeypatch.setattr(vz.config, "partial_read_bytes", 0)
            backwards = (slice(None, None, -2),) * array.ndim
            same(array[backwards], case.expected[backwards], option)
            monkeypatch.undo()


# --- selections --------------------------------------------------------------------------------


def orthogonal(data, selection):
    """What an orthogonal selection means: one axis after the other, integers last."""
    for axis, entry in enumerate(selection):
        if isinstance(entry, slice):
            data = data[(slice(None),) * axis + (entry,)]
        else:
            index = np.atleast_1d(
                np.flatnonzero(entry) if np.asarray(entry).dtype == bool else entry
            )
            data = np.take(data, index, axis)
    return data[tuple(0 if isinstance(e, int) else slice(None) for e in selection)]


SLICES = [
    slice(None), slice(None, None, -1), slice(1, -1), slice(None, None, 2), slice(-1, 0, -3),
    slice(4, 2), slice(2, 100), slice(-100, 3), slice(3, None, -2),
]  # fmt: skip


def basic_selections(ndim, rng, shape):
    yield from [(), ..., None, (..., None), (None, ..., None)]
    for _ in range(40):
        entries = [
            SLICES[rng.integers(len(SLICES))]
            if rng.random() < 0.6 or not n
            else int(rng.integers(-n, n))
            for n in shape[: rng.integers(0, ndim + 1)]
        ]
        if len(entries) < ndim and rng.random() < 0.5:
            entries.append(...)
        for _ in range(rng.integers(0, 3)):
            entries.insert(rng.integers(0, len(entries) + 1), None)
        yield tuple(entries)


def orthogonal_selections(rng, shape):
    for _ in range(40):
        selection = []
        for n in shape:
            kind = rng.integers(0, 6)
            if kind == 0:
                selection.append(SLICES[rng.integers(len(SLICES))])
            elif kind == 1:
                selection.append(rng.random(n) < 0.5)
            elif kind == 2 and n:
                selection.append(int(rng.integers(-n, n)))
            elif n:  # unsorted, repeated, negative
                selection.append(rng.integers(-n, n, rng.integers(0, 2 * n)))
            else:
                selection.append(np.empty(0, int))
        yield tuple(selection)


def point_selections(rng, shape):
    shapes = [((), ()), ((3,), (3,)), ((2, 1), (4,)), ((), (5,)), ((0,), (0,)), ((2, 1, 2), (1,))]
    for i in range(24):
        pair = shapes[i % len(shapes)]
        yield tuple(rng.integers(-n, n, pair[axis % 2]) for axis, n in enumerate(shape))


GRIDS = {
    "regular": lambda shape, edges: {"name": "regular", "configuration": {"chunk_shape": edges}},
    "rectilinear": lambda shape, edges: {
        "name": "rectilinear",
        "configuration": {"kind": "inline", "chunk_shapes": [[1, [2, 1], *[e] * 9] for e in edges]},
    },
}


def selectable(grid, codec, shape, edges, seed=0):
    """An array with missing chunks in a store, and the same in numpy."""
    rng = np.random.default_rng(seed)
    data = rng.integers(-(2**31), 2**31, shape, dtype="i4")
    codecs = [{"name": "bytes", "configuration": {"endian": "big"}}]
    compress = bytes
    if codec == "gzip":
        codecs, compress = [*codecs, {"name": "gzip"}], gzip.compress
    store = {
        "zarr.json": json.dumps({
            "zarr_format": 3, "node_type": "array", "shape": shape, "data_type": "int32",
            "chunk_grid": GRIDS[grid](shape, edges), "chunk_key_encoding": "default",
            "fill_value": -7, "codecs": codecs,
        }).encode()
    }  # fmt: skip
    array = vz.open(store)
    for cell in np.ndindex(*array.grid.grid_shape):
        origin, block_shape = array.grid.cell_origin(cell), array.grid.cell_shape(cell)
        place = tuple(slice(o, o + n) for o, n in zip(origin, block_shape, strict=True))
        if rng.random() < 0.25:
            data[place] = -7
            continue
        block = np.full(block_shape, 99, ">i4")
        part = data[place]
        block[tuple(slice(0, n) for n in part.shape)] = part
        store["/".join(["c", *map(str, cell)])] = compress(block.tobytes())
    return array, data


SHAPES = [((), ()), ((17,), (4,)), ((9, 11), (4, 3)), ((9, 0), (4, 3)), ((5, 6, 7), (2, 6, 3))]


@pytest.mark.parametrize("grid", GRIDS)
@pytest.mark.parametrize("codec", ["raw", "gzip", "raw in pieces"])
@pytest.mark.parametrize(("shape", "edges"), SHAPES, ids=str)
def test_selections(grid, codec, shape, edges, monkeypatch):
    if codec == "raw in pieces":
        monkeypatch.setattr(vz.config, "partial_read_bytes", 0)
    array, data = selectable(grid, codec, shape, edges)
    rng = np.random.default_rng(1)
    for selection in basic_selections(len(shape), rng, shape):
        same(array[selection], np.asarray(data[selection]), selection)
    if not shape:
        return
    for selection in orthogonal_selections(rng, shape):
        same(array.oindex[selection], orthogonal(data, selection), selection)
    if 0 not in shape:
        for selection in point_selections(rng, shape):
            same(array.vindex[selection], np.asarray(data[selection]), selection)
            if all(np.ndim(index) for index in selection) and len(shape) > 1:
                same(array[selection], data[selection], selection)
    for share in (0, 0.1, 1):
        mask = rng.random(shape) < share
        same(array.vindex[mask], data[mask], share)
        same(array[mask], data[mask], share)


@pytest.mark.parametrize("grid", GRIDS)
@pytest.mark.parametrize(("shape", "edges"), SHAPES, ids=str)
def test_blocks(grid, shape, edges):
    array, data = selectable(grid, "gzip", shape, edges)
    bounds = [np.cumsum([0, *lengths]) for lengths in grids_chunks(array)]
    for cell in np.ndindex(*array.grid.grid_shape):
        place = tuple(slice(b[i], b[i + 1]) for b, i in zip(bounds, cell, strict=True))
        same(array.blocks[cell], data[place], cell)
    if 0 not in shape and shape:
        first = slice(bounds[0][1], bounds[0][-1])
        same(array.blocks[1:], data[first], "from the second on")
        same(array.blocks[-1], data[bounds[0][-2] :], "the last")
    with pytest.raises(IndexError):
        array.blocks[tuple(array.grid.grid_shape) or 0]


def grids_chunks(array):
    return array.grid.chunks if array.shape else []


BAD = [
    (5,), "a", 1.0, True, [1.0], slice(0, 1, 0), (0, 0, 0), (..., ...), [[0, 1]], {0}, [10**20],
    object(), b"0", slice("a"), np.zeros((2, 2), bool), np.zeros(3, bool), [-6],
]  # fmt: skip


@pytest.mark.parametrize("mode", ["basic", "oindex", "vindex", "blocks"])
@pytest.mark.parametrize("selection", BAD, ids=[repr(bad)[:20].split(" at ")[0] for bad in BAD])
def test_bad_selections_are_index_errors(mode, selection):
    array, _ = selectable("regular", "raw", (5, 4), (2, 3))
    target = array if mode == "basic" else getattr(array, mode)
    with pytest.raises(IndexError) as caught:
        target[selection]
    assert len(str(caught.value)) > 10
