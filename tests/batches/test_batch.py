"""Batches: of their columns, the group of each file is made again, equal to the bit."""

from __future__ import annotations

import copy
import os
import pickle
import subprocess
import sys
from pathlib import Path

import h5py
import numpy as np
import pytest

import virtualzarr as vz
from tests.combine.helpers import virtual_array
from tests.fuzz.templates import KINDS
from virtualzarr.batches import Batch, Row, RowCollector, has_manifests, make_batches
from virtualzarr.batches.schema import Schema
from virtualzarr.errors import VirtualZarrError
from virtualzarr.hierarchy.group import Group
from virtualzarr.ingest.detect import scan
from virtualzarr.ingest.differences import find_difference
from virtualzarr.ingest.scan_files import Packed, ScannedFile, scan_rows
from virtualzarr.metadata import numpy_attributes
from virtualzarr.stores.fingerprints import Fingerprint

_OPTIONS = {"format": None, "on_error": "raise", "storage_options": None}
_KINDS = pytest.mark.parametrize("kind", KINDS, ids=[kind.name for kind in KINDS])


def _write(kind, folder: Path, count: int) -> list[str]:
    files = []
    for number in range(1, count):
        path = folder / f"{number}.h5"
        kind.write(path, np.random.default_rng(number), number)
        files.append(str(path))
    return files


@_KINDS
@pytest.mark.parametrize("elsewhere", [False, True], ids=["here", "pickled"])
def test_groups_of_batches_are_those_of_scans(kind, elsewhere, tmp_path):
    files = _write(kind, tmp_path, 14)
    seen = []
    for batch, numbers in make_batches(list(scan_rows(files, _OPTIONS))):
        one = pickle.loads(pickle.dumps(batch)) if elsewhere else batch
        assert len(one) == len(numbers)
        for group, number in zip(one.groups(), numbers, strict=True):
            assert find_difference(group, scan(files[number])) == ""
        seen += numbers
    assert sorted(seen) == list(range(len(files)))


def test_files_that_are_alike_are_few_batches_and_small(tmp_path):
    files = _write(KINDS[3], tmp_path, 60)
    batches = [batch for batch, _ in make_batches(list(scan_rows(files, _OPTIONS)))]
    large = max(batches, key=len)
    assert len(large) > 20  # of which 14 attributes differ in each
    whole, half = (
        len(pickle.dumps(Batch.of([large.row(k) for k in range(count)])))
        for count in (len(large), len(large) // 2)
    )
    assert (whole - half) / (len(large) - len(large) // 2) < 500


def test_groups_are_independent_of_each_other():
    batch = Batch.of([Row.of(Group({"range": [1, 2]}, {"inner": Group({"a": {"b": 1}})}))])
    first = batch.group(0)
    first.attributes["range"].append(3)
    first["inner"].attributes["a"]["b"] = 2
    assert find_difference(batch.group(0), batch.group(0)) == ""
    assert batch.group(0).attributes == {"range": [1, 2]}
    assert batch.group(0)["inner"].attributes == {"a": {"b": 1}}


def test_attributes_that_differ_keep_their_types_and_signs():
    (row,) = [Row.of(Group({"x": 0, "y": "same"}))]
    values = [0, 0.0, -0.0, True, "0", [0], float("nan"), 0]
    rows = [
        Row(row.schema, None, row.addresses, row.lengths, {"": {"x": value}} if n else {})
        for n, value in enumerate(values)
    ]
    for batch in (Batch.of(rows), pickle.loads(pickle.dumps(Batch.of(rows)))):
        assert [repr(group.attributes["x"]) for group in batch.groups()] == [*map(repr, values)]
        assert {group.attributes["y"] for group in batch.groups()} == {"same"}


def test_rows_of_other_schemas_are_no_batch():
    rows = [Row.of(Group({})), Row.of(Group({}))]
    with pytest.raises(ValueError, match="one schema"):
        Batch.of(rows)
    with pytest.raises(ValueError, match="at least one"):
        Batch.of([])
    assert [numbers for _, numbers in make_batches(rows)] == [[0], [1]]


def test_files_that_cannot_be_read_are_errors_among_rows(tmp_path):
    files = _write(KINDS[1], tmp_path, 6)
    Path(files[2]).write_bytes(b"\x89HDF\r\n\x1a\n")
    rows = list(scan_rows(files, _OPTIONS))
    assert [isinstance(row, VirtualZarrError) for row in rows] == [n == 2 for n in range(5)]


def test_groups_that_are_no_rows_stay_what_they_are(tmp_path):
    vz.create_group(tmp_path / "a.zarr").create_array("x", shape=(2,), dtype="i4")
    (stored,) = scan_rows([str(tmp_path / "a.zarr")], _OPTIONS)
    assert isinstance(stored, Group)
    assert not has_manifests(stored)
    files = [*_write(KINDS[1], tmp_path, 6), str(tmp_path / "a.zarr"), str(tmp_path / "nothing")]
    scanned = [ScannedFile(one, True) for one in scan_rows(files, _OPTIONS)]
    packed = pickle.loads(pickle.dumps(Packed.of(scanned)))
    items = [one.item for one in packed.items()]
    groups = [item.group() if isinstance(item, Row) else item for item in items]
    for file, group in zip(files[:5], groups, strict=False):
        assert find_difference(group, scan(file)) == ""
    assert groups[5]["x"].shape == (2,)
    assert isinstance(groups[6], VirtualZarrError)


def test_fingerprints_of_sources_are_kept(tmp_path):
    files = _write(KINDS[1], tmp_path, 8)
    rows = list(scan_rows(files, _OPTIONS))
    for batch, numbers in make_batches(rows):
        for source, number in zip(pickle.loads(pickle.dumps(batch)).sources, numbers, strict=True):
            if source is not None:
                status = Path(files[number]).stat()
                assert source.uri == files[number]
                assert source.fingerprint == Fingerprint(status.st_size, status.st_mtime_ns)


def test_fill_values_with_bytes_of_padding():
    dtype = np.dtype([("a", "i1"), ("b", "<f8")], align=True)
    groups = []
    for padding in range(5):
        raw = np.full(dtype.itemsize, padding, "u1")
        fill = raw.view(dtype)[0]
        fill["a"], fill["b"] = 1, 2
        array = virtual_array(np.zeros(2, dtype), (2,), fill_value=fill, missing=[(0,)])
        groups.append(Group({}, {"x": array}))
    collector = RowCollector()
    rows = [collector.add(group) for group in groups]
    assert all(row.schema is rows[0].schema for row in rows)
    assert all(find_difference(rows[n].group(), group) == "" for n, group in enumerate(groups))


def test_keys_of_schemas_depend_on_what_is_in_them_alone(tmp_path):
    """Not on what was read before, nor on which parts are one object."""
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        values = np.full(16, 0xAA, "u1").view(np.dtype("u1,<u2", align=True))
        file.create_dataset("s", data=values, chunks=(2,), fillvalue=values[0])
        for name, options in {"x": {"compression": "gzip"}, "y": {"compression": "lzf"}}.items():
            file.create_dataset(name, data=np.arange(5.0), chunks=(5,), shuffle=True, **options)
    group = scan(str(path))
    key = Schema.of(group).key
    for name in group:
        group[name][...]
    assert Schema.of(group).key == key
    script = "import sys; from virtualzarr.batches.schema import Schema; "
    script += "from virtualzarr.ingest.detect import scan; print(Schema.of(scan(sys.argv[1])).key)"
    assert Schema.of(scan(str(path))).key == key
    sent = Schema.of(group)
    copies = [copy.deepcopy(sent), pickle.loads(sent.dump())]
    for one in copies:
        one._key = None
        for _, (array, _) in one.members.items():
            # Equal, but another object.
            object.__setattr__(array, "path", "".join(list(array.path)))
    assert {one.key for one in copies} == {key}
    for seed in ("0", "1"):
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        command = [sys.executable, "-c", script, str(path)]
        shown = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        assert shown.stdout.strip() == repr(key)


def test_attributes_of_alike_files_keep_their_types_and_bits(tmp_path):
    """Equal numbers of several types, and NaN of several signs, are several values."""
    odd = [np.float32(0.5), np.float64(0.5), np.float32(np.nan), np.float32(-np.nan), np.int16(1)]
    files = []
    for number in range(15):
        path = tmp_path / f"{number}.h5"
        with h5py.File(path, "w") as file:
            file["x"] = np.arange(3)
            file["x"].attrs["odd"] = odd[number % 5]
        files.append(str(path))
    for batch, numbers in make_batches(list(scan_rows(files, _OPTIONS))):
        one = pickle.loads(pickle.dumps(batch))
        for group, number in zip(one.groups(), numbers, strict=True):
            (value,) = numpy_attributes(group["x"].attrs).values()
            assert value.dtype == odd[number % 5].dtype
            assert value.tobytes() == odd[number % 5].tobytes()
