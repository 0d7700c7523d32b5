"""Byte ranges that are cut, joined and extended for regular grids, compared with the elements."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import grids
import virtualzarr as vz
from tests.references.arrays import LITTLE, SHUFFLE4, ZLIB, fresh, virtual
from tests.references.test_regular_grid import assert_fits
from virtualzarr.array import Array
from virtualzarr.codecs import Pipeline
from virtualzarr.hierarchy.group import Group
from virtualzarr.manifest import Manifest, Source, Sources
from virtualzarr.metadata import ArrayMetadata
from virtualzarr.references.regular_grid import choose_regular, on_grid

FLETCHER = {"name": "numcodecs.fletcher32", "configuration": {}}
SHUFFLE1 = {"name": "numcodecs.shuffle", "configuration": {"elementsize": 1}}
ONE = {"name": "bytes"}


def strips(file, values, rows, *, axis=0, tail=0, gap=None, order=None) -> Array:
    """An array whose uncompressed chunks, of some rows each, lie behind each other in a file.

    `tail` bytes follow the last one; before the chunk `gap`, there are others.
    """
    file = fresh(Path(file))
    chunks = [(n,) for n in values.shape]
    chunks[axis] = tuple(rows)
    grid = grids.parse(tuple(chunks), values.shape)
    codecs = [LITTLE] if order is None else [
        {"name": "transpose", "configuration": {"order": list(order)}}, LITTLE
    ]  # fmt: skip
    meta = ArrayMetadata(values.shape, values.dtype, grid, Pipeline(codecs), None)
    data, offset, length = bytearray(b"head"), [], []
    for number, part in enumerate(np.split(values, np.cumsum(rows)[:-1], axis)):
        data += b"junk" if number == gap else b""
        offset.append(len(data))
        data += np.ascontiguousarray(part if order is None else part.transpose(order)).tobytes()
        length.append(len(data) - offset[-1])
    file.write_bytes(data + b"\xff" * tail)
    shape = grid.grid_shape
    manifest = Manifest(shape, Sources([Source.from_file(file)]), np.zeros(shape, np.int32),
                        np.reshape(offset, shape), np.reshape(length, shape))  # fmt: skip
    return Array.from_manifest(meta, manifest, "a")


def values_of(*shape):
    return np.arange(np.prod(shape), dtype="<i4").reshape(shape)


@pytest.mark.parametrize("tail", [0, 8, 1000])
@pytest.mark.parametrize("gap", [None, 2])
@pytest.mark.parametrize("rows", [(4, 4, 4, 3), (5, 3, 4, 1, 6), (2, 2, 7), (9,)])
def test_every_grid_has_ranges_that_decode_to_their_cells(tmp_path, rows, gap, tail):
    values = values_of(sum(rows), 3)
    array = strips(tmp_path / "a.bin", values, rows, tail=tail, gap=gap)
    for edge in range(1, len(values) + 2):
        regular = on_grid(array, (edge, 3))
        assert_fits(array, values, regular)
        # Without a gap all cells are one range, but a last one behind the end of the file.
        if gap is None:
            lacking = -len(values) % edge * 12 > tail
            last = regular.metadata.grid.grid_shape[0] - 1
            assert regular.canonical.misread.tolist() == [last] * lacking
            assert bool(regular.canonical.reasons) == lacking


def test_random_joins_of_files_decode_to_their_cells(tmp_path):
    random = np.random.default_rng(5)
    for number in range(25):
        parts = []
        for first in range(random.integers(1, 4)):
            rows = random.integers(1, 7, random.integers(1, 5)).tolist()
            block = values_of(sum(rows), 2) + 1000 * first
            gap, tail = random.integers(0, 6), int(random.integers(0, 60))
            parts.append(strips(tmp_path / f"{number}.bin", block, rows, tail=tail, gap=gap))
        array = vz.concat(parts)
        values = np.concatenate([part[...] for part in parts])
        for edge in range(1, 12):
            assert_fits(array, values, on_grid(array, (edge, 2)))
        chosen = choose_regular(array)
        assert_fits(array, values, chosen)
        Group({}, {"a": array}).publish(
            tmp_path / "refs.json", regular=True, copy=True, overwrite=True
        )
        np.testing.assert_array_equal(vz.open(tmp_path / "refs.json")["a"][...], values)


@pytest.mark.parametrize(("axis", "order"), [(1, None), (2, (2, 1, 0)), (2, (0, 2, 1))])
def test_strips_of_pages_are_joined_along_the_slowest_axis_that_is_cut(tmp_path, axis, order):
    pages = [values_of(1, 10, 9) + 100 * page for page in range(3)]
    rows = (4, 4, 2) if axis == 1 else (4, 4, 1)
    arrays = [
        strips(tmp_path / "page.tif", page, rows, axis=axis, tail=1000, order=order)
        for page in pages
    ]
    array, values = vz.concat(arrays), np.concatenate(pages)
    regular = choose_regular(array)
    assert len(regular.canonical.misread) == 0
    for edge in range(1, 12):
        shape = [1, 10, 9]
        shape[axis] = edge
        each = on_grid(array, shape)
        assert_fits(array, values, each)
        assert len(each.canonical.misread) == 0


def test_a_last_strip_needs_no_copy_in_any_form(tmp_path):
    values = values_of(11, 5)
    group = Group({}, {"a": strips(tmp_path / "a.bin", values, (4, 4, 3), tail=20)})
    for name in ("refs.json", "refs.parq"):
        report = group.publish(tmp_path / name, regular=True)
        assert (report.copied, report.receipt["arrays"]["a"]["chunks"]) == (0, [4, 5])
        np.testing.assert_array_equal(vz.open(tmp_path / name)["a"][...], values)
    short = Group({}, {"a": strips(tmp_path / "b.bin", values, (4, 4, 3), tail=19)})
    report = short.publish(tmp_path / "b.json", regular=True)
    # A common divisor of all lengths is the other way.
    assert (report.copied, report.receipt["arrays"]["a"]["chunks"]) == (0, [1, 5])
    np.testing.assert_array_equal(vz.open(tmp_path / "b.json")["a"][...], values)


def test_checksums_are_trimmed_where_that_keeps_more(tmp_path):
    values = values_of(4, 6)
    chains = [[LITTLE, ZLIB, FLETCHER], [LITTLE, ZLIB, FLETCHER], [LITTLE, ZLIB]]
    parts = [virtual(tmp_path / "a.bin", values + n, (4, 6), c) for n, c in enumerate(chains)]
    array = vz.concat(parts)
    regular = choose_regular(array)
    assert [c.name for c in regular.metadata.pipeline.codecs] == ["bytes", "numcodecs.zlib"]
    assert (len(regular.canonical.misread), regular.unverified) == (0, 2)
    assert_fits(array, array[...], regular)
    report = Group({}, {"a": array}).publish(tmp_path / "refs.json", regular=True)
    assert any("checksums of 2 chunks are not verified" in note for note in report.notes)
    np.testing.assert_array_equal(vz.open(tmp_path / "refs.json")["a"][...], array[...])
    # Where nothing is gained they stay.
    same = choose_regular(vz.concat(parts[:2]))
    assert [c.name for c in same.metadata.pipeline.codecs][-1] == "numcodecs.fletcher32"


def test_clients_without_checksums_and_shuffles_of_bytes_need_no_copies(tmp_path):
    pixels = np.arange(48, dtype="u1").reshape(8, 6)
    group = Group({}, {
        "sums": virtual(tmp_path / "a.bin", values_of(8, 6), (4, 6), [LITTLE, ZLIB, FLETCHER]),
        "bytes": virtual(tmp_path / "b.bin", pixels, (4, 6), [ONE, SHUFFLE1, ZLIB]),
        "words": virtual(tmp_path / "c.bin", values_of(8, 6), (4, 6), [LITTLE, SHUFFLE4, ZLIB]),
    })  # fmt: skip
    preview = group.preview("refs.json", portable=["tensorstore"])
    assert {line.path: line.copied for line in preview.lines} == {"sums": 0, "bytes": 0, "words": 2}
    report = group.publish(tmp_path / "refs.json", portable=["tensorstore"], copy=True)
    assert report.zarr_format == 2
    again = vz.open(tmp_path / "refs.json")
    for name in group:
        np.testing.assert_array_equal(again[name][...], group[name][...])


@pytest.mark.interop
def test_clients_read_ranges_that_were_cut_joined_and_extended(tmp_path):
    """All clients that are installed, but those on zarr-python that are not it."""
    from tests.interop.collection import mirror

    values, pages = values_of(11, 5), values_of(2, 10, 9)
    joined = vz.concat([strips(tmp_path / "a.bin", values_of(12, 5), (4, 4, 4)),
                        strips(tmp_path / "a.bin", values + 99, (2, 2, 2, 2, 3),
                               tail=20)])  # fmt: skip
    stacked = vz.concat([strips(tmp_path / "p.bin", page[None], (4, 4, 2), axis=1, tail=1000)
                         for page in pages])  # fmt: skip
    summed = vz.concat([virtual(tmp_path / "s.bin", values, (11, 5), [LITTLE, ZLIB, *more])
                        for more in ([FLETCHER], [])])  # fmt: skip
    cut = vz.concat([strips(tmp_path / "c.bin", values_of(12, 5), (12,)),
                     strips(tmp_path / "c.bin", values_of(8, 5), (8,))])  # fmt: skip
    arrays = {"joined": joined, "stacked": stacked, "summed": summed, "cut": cut}
    group = Group({}, {name: array.with_path(name) for name, array in arrays.items()})
    report = group.publish(tmp_path / "refs.json", regular=True, zarr_format=2, inline=0)
    assert {name: a["chunks"] for name, a in report.receipt["arrays"].items()} == {
        "joined": [4, 5], "stacked": [1, 4, 9], "summed": [11, 5], "cut": [4, 5]
    }  # fmt: skip
    found = vz.verify(tmp_path / "refs.json", clients=["zarr"], timeout=300)
    assert found.exit_code == 0, found
    target = mirror(tmp_path / "refs.json", tmp_path / "mirror")
    clients = ["zarr", "tensorstore", "gdal", "netcdf", "zarrs"]
    found = vz.verify(target, clients=clients, timeout=300)
    statuses = {client.client: client.status for client in found.clients}
    assert set(statuses.values()) <= {"equal", "missing"}, found
    assert statuses["zarr"] == "equal"
