"""Files that were cut off, damaged or made to do harm: an error or less, never something wrong."""

from __future__ import annotations

import struct
import warnings

import h5py
import numpy as np
import pytest

from tests.formats.hdf5.helpers import low_level, objects_of, source_of
from tests.fuzz.repair import repaired
from tests.fuzz.target import limits
from virtualzarr.array import Array
from virtualzarr.errors import CodecError, SkippedVariableWarning, SourceError, VirtualZarrError
from virtualzarr.formats.hdf5 import scan
from virtualzarr.formats.hdf5.byte_source import LocalPages
from virtualzarr.formats.hdf5.checksum import compute_checksums
from virtualzarr.formats.hdf5.header import SYMBOL_TABLE
from virtualzarr.formats.hdf5.objects import Objects


def write(path, libver):
    """Write a file with all kinds of groups and indexes, and attributes of fixed length."""
    with h5py.File(path, "w", libver=libver) as file:
        data = np.arange(120, dtype="<i4").reshape(12, 10)
        for name, maxshape in (("fixed", None), ("one", (None, 10)), ("two", (None, None))):
            dataset = file.create_dataset(f"g/{name}", data=data, chunks=(2, 5), maxshape=maxshape,
                                       compression="gzip" if name != "one" else None)  # fmt: skip
            dataset.attrs.update(units=np.bytes_("K"), scale=np.float32(0.5))
        file.create_dataset("paged", (3000,), "u1", chunks=(1,))[::50] = 5
        low_level(file, "implicit", (8,), h5py.h5t.STD_I32LE, chunk=((2,),),
                  alloc_time=h5py.h5d.ALLOC_TIME_EARLY)[...] = 7  # fmt: skip
        low_level(file, "compact", (5,), h5py.h5t.STD_I16LE, layout=h5py.h5d.COMPACT)[...] = 3
        file["contiguous"] = data
        file["soft"] = h5py.SoftLink("/g/fixed")
        many = file.create_group("many")
        for k in range(12):
            many.create_group(f"link{k}").attrs["k"] = k
        many.attrs.update({f"a{k}": np.bytes_("x" * (k + 1)) for k in range(12)})


@pytest.fixture(params=["earliest", "v110", "latest"])
def path(tmp_path, request):
    path = tmp_path / "a.h5"
    write(path, request.param)
    return path


def facts(group):
    """Return what users see of a group, by path; names of axes depend on what else there is."""
    actual = {"": (dict(group.attrs), "")}
    for name, node in group.members(max_depth=None):
        values = ""
        if isinstance(node, Array):
            manifest, metadata = node.manifest, node.metadata
            columns = [np.asarray(c[...]).tolist() for c in (manifest.source, manifest.offset,
                                                             manifest.length)]  # fmt: skip
            inline = [source.data for source in manifest.sources]
            values = repr((metadata.shape, metadata.dtype,
                                 metadata.pipeline, columns, inline))  # fmt: skip
        actual[name] = dict(node.attrs), values
    return actual


def try_scan(path):
    """Scan a file that may be damaged; None if that is an error."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            group = scan(path, on_error="warn")
        except VirtualZarrError:
            return None
    size = path.stat().st_size
    for _, node in group.members(max_depth=None):
        if isinstance(node, Array):
            manifest = node.manifest
            stored = manifest.source >= 0
            ends = np.where(stored, np.asarray(manifest.offset[...]) + manifest.length, 0)
            inline = any(source.is_inline for source in manifest.sources)
            assert inline or not stored.any() or ends.max() <= size
    return facts(group)


def test_damaged_anywhere(path):
    """One byte is another. Where structures have checksums, nothing is read that is not so."""
    raw = path.read_bytes()
    intact = try_scan(path)
    assert len(intact) == 23
    has_checksums = raw[8] >= 2
    nlost = 0
    for offset in damage(raw):
        damaged = bytearray(raw)
        damaged[offset] ^= 1 << offset % 8
        path.write_bytes(damaged)
        actual = try_scan(path)
        nlost += actual != intact
        for name, fact in (actual or {}).items() if has_checksums else ():
            # Of attributes that lie elsewhere, some may be lost alone, with a warning.
            assert fact[1] == intact[name][1], (offset, name)
            assert fact[0].items() <= intact[name][0].items(), (offset, name)
    assert nlost


def damage(raw):
    """Yield places in what is not only zeros, up to about 120."""
    places = [k for k in range(len(raw)) if any(raw[max(k - 8, 0) : k + 8])]
    return places[:: max(len(places) // 120, 1)]


def test_cut_off_anywhere(path):
    """The end is missing, but the superblock does not say so."""
    raw = path.read_bytes()
    intact = try_scan(path)
    for size in range(40, len(raw), len(raw) // 80):
        path.write_bytes(shorten(raw, size))
        actual = try_scan(path) or {}
        assert set(actual) <= set(intact)


def shorten(raw, size):
    """Cut a file off and let its superblock say that it ends there."""
    cut = bytearray(raw[:size])
    if raw[8] >= 2:
        if size >= 48:
            struct.pack_into("<Q", cut, 28, size)
            struct.pack_into("<I", cut, 44, compute_checksums([bytes(cut[:44])])[0])
    elif size >= 48:
        struct.pack_into("<Q", cut, 40, size)
    return bytes(cut)


def test_numbers_replaced_by_large_ones(path):
    """Sizes, counts and addresses that cannot be: neither memory nor time is spent on them."""
    raw = path.read_bytes()
    for offset in damage(raw)[::4]:
        for value in (b"\xff" * 8, struct.pack("<Q", 1 << 62), struct.pack("<Q", len(raw) - 1)):
            damaged = raw[:offset] + value + raw[offset + 8 :]
            path.write_bytes(damaged)
            kinds = []
            for source in (source_of(damaged), LocalPages(str(path))):
                try:
                    kinds.append(Objects(source)[offset].kind)
                except VirtualZarrError as error:
                    kinds.append(error.message)
            # What is far is read as what is near; nothing but errors of this package comes out.
            assert kinds[0] == kinds[1]


def test_a_tree_that_is_its_own_child(tmp_path):
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        file.create_dataset("x", data=np.arange(5000), chunks=(1,))
        address = h5py.h5o.get_info(file["x"].id).addr
    root = objects_of(path)[address].layout.address
    raw = bytearray(path.read_bytes())
    assert raw[root : root + 6] == b"TREE\x01\x02"
    struct.pack_into("<Q", raw, root + 24 + 24, root)
    path.write_bytes(raw)
    index = objects_of(path)[address].index
    assert isinstance(index, SourceError)
    assert "level 1" in index.message


def test_chunks_that_overlap_the_end_of_the_file(tmp_path):
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        file.create_dataset("x", data=np.arange(6), chunks=(2,))
        file["y"] = 1
        address = h5py.h5o.get_info(file["x"].id).addr
    root = objects_of(path)[address].layout.address
    raw = bytearray(path.read_bytes())
    struct.pack_into("<I", raw, root + 24, 1 << 30)
    path.write_bytes(raw)
    with pytest.warns(match="chunk ends at byte"):
        group = scan(path, on_error="warn")
    assert list(group) == ["y"]


def patch(path, old, new, fill, libver="earliest"):
    """Write a file, replace bytes in it, and put its checksums right."""
    with h5py.File(path, "w", libver=libver) as file:
        fill(file)
    raw = path.read_bytes()
    assert raw.count(old) == 1
    path.write_bytes(repaired(raw.replace(old, new)))


def scan_skipped(path):
    """Return what is refused of a file of which something else can be read."""
    with pytest.warns(SkippedVariableWarning):
        group = scan(path, on_error="warn")
    assert list(group) == ["y"]
    assert group["y"][...] == 1
    return group.skipped


@pytest.mark.parametrize("name", [b"\0", b"/", b"."])
def test_names_that_are_none(tmp_path, name):
    path = tmp_path / "a.h5"

    def fill(file):
        file["QQ/z"] = file["y"] = 1

    patch(path, b"QQ\0", name + b"\0\0", fill)
    assert "cannot hold this name" in scan_skipped(path)[name.decode().strip("\0")]


def test_a_name_of_which_nothing_is_shown(tmp_path):
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        file["_nc4_non_coord_"] = 1
    assert list(scan(path)) == ["_nc4_non_coord_"]


def test_floats_that_numpy_has_not(tmp_path):
    """As attribute it is left out alone, as dataset HDF5 converts it, or it is refused."""
    path = tmp_path / "a.h5"

    def fill(file):
        file["y"] = 1
        file["y"].attrs["a"] = np.float32(1)

    layout = struct.pack("<HHBBBBI", 0, 32, 23, 8, 0, 23, 127)
    patch(path, layout, layout[:-4] + b"\xff\xff\xff\x7f", fill)
    with pytest.warns(SkippedVariableWarning, match="the attribute 'a' was left out"):
        group = scan(path, on_error="warn")
    assert group["y"][...] == 1


def test_a_scale_that_is_no_number(tmp_path):
    path = tmp_path / "a.h5"

    def fill(file):
        file.create_dataset("x", data=np.arange(4, dtype="f4"), chunks=(4,), scaleoffset=2)

    filters = struct.pack("<8I", 0, 2, 4, 1, 4, 0, 0, 1)
    patch(path, filters, filters[:4] + struct.pack("<I", 400) + filters[8:], fill)
    with h5py.File(path) as file:
        assert np.array_equal(scan(path)["x"][...], file["x"][...], equal_nan=True)


@pytest.mark.parametrize("address", [1 << 63, (1 << 64) - 2, 1 << 40])
def test_chunks_that_cannot_be_where_they_are_said_to_be(tmp_path, address):
    path = tmp_path / "a.h5"

    def fill(file):
        file["y"] = 1
        early = h5py.h5d.ALLOC_TIME_EARLY
        low_level(file, "x", (8,), h5py.h5t.STD_I32LE, chunk=((3,),), alloc_time=early)
        places.append(struct.pack("<Q", file["x"].id.get_chunk_info(0).byte_offset))

    places = []
    with h5py.File(path, "w", libver="v110") as file:
        fill(file)
    patch(path, b"\2" + places[0], b"\2" + struct.pack("<Q", address), fill, "v110")
    assert "do not fit into the file" in scan_skipped(path)["x"]


def test_chunks_larger_than_anything(tmp_path):
    path = tmp_path / "a.h5"

    def fill(file):
        file["y"] = 1
        file.create_dataset("x", data=np.zeros((3, 5)), chunks=(3, 5), compression="gzip")

    chunk = struct.pack("<3I", 3, 5, 8)
    patch(path, chunk, b"\xff" * 8 + chunk[8:], fill)
    assert "chunks of shape" in scan_skipped(path)["x"]
    # A chunk of 16 GB can be, and be read where there is memory for it.
    patch(path, chunk, struct.pack("<3I", 1 << 31, 1, 8), fill)
    with limits(), pytest.raises(CodecError, match=r"no memory.*x, chunk 0.0"):
        scan(path)["x"][...]


def test_an_index_for_one_chunk_of_a_dataset_of_several(tmp_path):
    path = tmp_path / "a.h5"

    def fill(file):
        file["y"] = 1
        file.create_dataset("x", data=np.zeros((3, 5)), chunks=(3, 5), maxshape=(3, 5))

    chunk = struct.pack("<BBBB", 3, 5, 8, 1)
    patch(path, chunk, b"\2" + chunk[1:], fill, "latest")
    assert "kind that this dataset cannot have" in scan_skipped(path)["x"]


@pytest.mark.parametrize("shape", [(6,), (40,), (300,), (9, 9)])
def test_trees_in_which_hdf5_would_not_find_a_chunk(tmp_path, shape):
    """Any key is another. What HDF5 looks for by these keys, it may not find, and then fills."""
    path = tmp_path / "a.h5"
    chunk = (1,) * len(shape)
    with h5py.File(path, "w") as file:
        dataset = file.create_dataset("x", shape, "u1", chunks=chunk, maxshape=(None,) * len(shape))
        dataset[...] = 1
        address = h5py.h5o.get_info(dataset.id).addr
    raw = path.read_bytes()
    intact = objects_of(path)[address]
    root, entry = intact.layout.address, 24 + 8 * len(shape)
    count = int.from_bytes(raw[root + 6 : root + 8], "little")
    random = np.random.default_rng(0)
    actual = 0
    for k in range(count + 1):
        axis = int(random.integers(len(shape)))
        offset = root + 24 + entry * k + 8 + 8 * axis
        for key in (0, 1, 5, 1 << 40):
            damaged = bytearray(raw)
            struct.pack_into("<Q", damaged, offset, key)
            path.write_bytes(damaged)
            index = objects_of(path)[address].index
            if isinstance(index, SourceError):
                continue
            actual += 1
            with h5py.File(path) as file:
                assert np.array_equal(file["x"][...] == 1, index.source == 0), (k, key)
    assert actual


@pytest.mark.parametrize("shape", [(3, 4), (20, 20), (60, 100)])
def test_v2_trees_in_which_hdf5_would_not_find_a_chunk(tmp_path, shape):
    """Any record is of another chunk, and the checksums are right: of one node, and of levels."""
    path = tmp_path / "a.h5"
    with h5py.File(path, "w", libver="latest") as file:
        dataset = file.create_dataset("x", shape, "u1", chunks=(1, 1), maxshape=(None, None))
        dataset[...] = 1
        address = h5py.h5o.get_info(dataset.id).addr
    raw = path.read_bytes()
    stored = objects_of(path)[address].index
    random = np.random.default_rng(0)
    missed = 0
    for cell in random.integers((0, 0), shape, (30, 2)).tolist():
        start = raw.index(struct.pack("<3Q", stored.offset[tuple(cell)], *cell)) + 8
        for other in ((0, 0), (cell[0], cell[1] + 1), (shape[0], 5), (cell[0], 1 << 40)):
            damaged = bytearray(raw)
            struct.pack_into("<2Q", damaged, start, *other)
            path.write_bytes(repaired(bytes(damaged)))
            index = objects_of(path)[address].index
            if isinstance(index, SourceError):
                missed += "out of order" in index.message
                continue
            with h5py.File(path) as file:
                assert np.array_equal(file["x"][...] == 1, index.source == 0), (cell, other)
    assert missed


@pytest.mark.parametrize("node_bytes", [872_415_744, 100_000])
def test_nodes_of_a_v2_tree_larger_than_the_file(tmp_path, node_bytes):
    """They would be filled up with zeros, in memory."""
    path = tmp_path / "a.h5"
    header = b"BTHD\0\x0a"

    def fill(file):
        options = {"chunks": (1, 1), "maxshape": (None, None)}
        file.create_dataset("x", (9, 9), "u1", **options)[...] = 1
        file["y"] = 1

    old, new = (header + struct.pack("<I", size) for size in (2048, node_bytes))
    with limits(nbytes=64 << 20):
        patch(path, old, new, fill, libver="latest")
        assert "impossible parameters" in scan_skipped(path)["x"]


def write_shared_index(path, count, libver):
    """Write datasets that all have the chunks of one of them."""
    with h5py.File(path, "w", libver=libver) as file:
        dataset = file.create_dataset("x", (10_000,), "u1", chunks=(1,))
        dataset[...] = 1
        for k in range(count):
            file.create_dataset(f"e{k}", (10_000,), "u1", chunks=(1,))
        address = h5py.h5o.get_info(dataset.id).addr
    offset = struct.pack("<Q", objects_of(path)[address].layout.address)
    kind = b"\3\2\2" if libver == "earliest" else b"\3\x0a"
    raw = path.read_bytes()
    assert raw.count(kind + b"\xff" * 8) == count
    return repaired(raw.replace(kind + b"\xff" * 8, kind + offset))


def write_shared_names(path, count):
    """Write groups that all have the links of one of them."""
    with h5py.File(path, "w") as file:
        for k in range(1000):
            file[f"g/l{k}"] = h5py.SoftLink("/y")
        file["y"] = 1
        groups = [h5py.h5o.get_info(file.create_group(f"e{k}").id).addr for k in range(count)]
        address = h5py.h5o.get_info(file["g"].id).addr
    objects = objects_of(path)
    raw = bytearray(path.read_bytes())
    table = [objects[at].header.messages[SYMBOL_TABLE] for at in (address, *groups)]
    for at, entry in zip(groups, table[1:], strict=True):
        offset = raw.index(entry, at)
        raw[offset : offset + len(entry)] = table[0]
    return bytes(raw)


@pytest.mark.parametrize("kind", ["earliest", "v110", "links"])
def test_what_many_objects_share_is_not_read_for_each(tmp_path, kind):
    """Otherwise a file of some megabytes would take as many gigabytes, or hours."""
    path = tmp_path / "a.h5"
    raw = write_shared_names(path, 300) if kind == "links" else write_shared_index(path, 800, kind)
    path.write_bytes(raw)
    with limits(nbytes=256 << 20), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        group = scan(path, on_error="warn")
    assert 1 <= len(group) < 200
    assert "lie in one another" in " ".join(group.skipped.values())


def test_empty_grids_that_are_too_many(tmp_path):
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        for k in range(12):
            file.create_dataset(f"x{k}", (1 << 21,), "u1", chunks=(1,))[5] = 1
    with (
        limits(nbytes=1 << 30),
        pytest.warns(SkippedVariableWarning, match="too many and too large"),
    ):
        group = scan(path, on_error="warn")
    assert len(group) == 8
    assert next(iter(group.values()))[:7].tolist() == [0, 0, 0, 0, 0, 1, 0]


def test_an_attribute_of_billions_of_empty_lists(tmp_path):
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        file["y"] = 1
        space = h5py.h5s.create_simple((1 << 31, 0))
        h5py.h5a.create(file.id, b"a", h5py.h5t.STD_I32LE, space)
        h5py.h5a.create(file.id, b"b", h5py.h5t.STD_I32LE, h5py.h5s.create_simple((2, 0)))
    with limits(), pytest.warns(SkippedVariableWarning, match="too large for an attribute"):
        assert scan(path, on_error="warn").attrs == {"b": [[], []]}


FLOAT = struct.pack("<HHBBBBI", 0, 32, 23, 8, 0, 23, 127)
INTEGER = b"\x10\x08\0\0" + struct.pack("<IHH", 4, 0, 32)
ODD = {
    "an integer of more bits than bytes": (INTEGER, INTEGER[:-2] + b"\x50\0"),
    "an integer that begins after its end": (INTEGER, INTEGER[:-4] + b"\x08\0\x20\0"),
    "an integer without bits": (INTEGER, INTEGER[:-2] + b"\0\0"),
    "a float of more bits than bytes": (FLOAT, FLOAT[:2] + b"\x28\0" + FLOAT[4:]),
    "an exponent behind the end": (FLOAT, FLOAT[:4] + b"\x1f" + FLOAT[5:]),
    "a mantissa that is too long": (FLOAT, FLOAT[:7] + b"\xff" + FLOAT[8:]),
    "an array of another size": (struct.pack("<BII", 2, 2, 3), struct.pack("<BII", 2, 2, 4)),
}


@pytest.mark.parametrize("odd", ODD)
def test_datatypes_that_lie_outside_their_elements(tmp_path, odd):
    """The HDF5 library converts some of them, and writes where it must not."""
    path = tmp_path / "a.h5"
    old, new = ODD[odd]
    kind = {"an a": ("u1", (2, 3)), "an i": "<i4", "a fl": "<f4", "an e": "<f4", "a ma": "<f4"}
    dtype = np.dtype(kind[odd[:4]])

    def attribute(file):
        file.create_dataset("y", (), "u1", fillvalue=1)
        file["y"].attrs.create("a", np.zeros(dtype.shape, dtype.base), dtype=dtype)

    def dataset(file):
        file.create_dataset("y", (), "u1", fillvalue=1)
        file.create_dataset("x", (3,), dtype)

    patch(path, old, new, attribute, "latest")
    with pytest.warns(SkippedVariableWarning, match="the attribute 'a' was left out: .*datatype"):
        assert scan(path, on_error="warn")["y"][...] == 1
    patch(path, old, new, dataset, "latest")
    assert "datatype" in scan_skipped(path)["x"]


@pytest.mark.parametrize(("wide", "reason"), [("<f8", "16 bytes"), ("<i2", "smaller itemsize")])
def test_members_that_would_overlap_in_memory(tmp_path, wide, reason):
    """Of an odd float of 4 bytes h5py makes one of 8, and leaves the next member where it is."""
    path = tmp_path / "a.h5"

    def fill(file):
        file["y"] = 1
        pair = np.dtype([("s", np.dtype([("a", "<f4"), ("b", wide)]))])
        file["y"].attrs.create("a", np.zeros(1, pair))

    patch(path, FLOAT, FLOAT[:-4] + struct.pack("<I", 1036), fill)
    with pytest.warns(SkippedVariableWarning, match=f"the attribute 'a' was left out: .*{reason}"):
        assert scan(path, on_error="warn")["y"][...] == 1


def test_a_heap_of_mappings_where_the_library_would_never_end(tmp_path):
    path = tmp_path / "a.h5"
    layout = h5py.VirtualLayout((4,), "i4")
    layout[:] = h5py.VirtualSource("b.h5", "x", (4,))
    with h5py.File(path, "w", libver="latest") as file:
        file["y"] = 1
        file.create_virtual_dataset("v", layout)
    raw = bytearray(path.read_bytes())
    heap = raw.index(b"GCOL")
    (mappings,) = struct.unpack_from("<Q", raw, heap + 24)
    free = heap + 32 + (mappings + 7 & ~7)
    assert struct.unpack_from("<H6xQ", raw, free) == (0, 4096 - (free - heap))
    raw[free + 8 : free + 16] = bytes(8)
    path.write_bytes(raw)
    with pytest.warns(SkippedVariableWarning, match="free space"):
        group = scan(path, on_error="warn")
    assert group["y"][...] == 1
    assert "free space" in group.skipped["v"]
