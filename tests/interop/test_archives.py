"""Archives as they are, by their bars: what is copied, and that others read what is published."""

from __future__ import annotations

import numpy as np
import pytest

import virtualzarr as vz
from tests.interop.test_publications import assert_others_read
from tests.interop.test_references import bits, zarr_open
from tests.references.arrays import LITTLE, SHUFFLE4, ZLIB, virtual
from tests.references.monthly import write_months
from virtualzarr.combine import concat
from virtualzarr.hierarchy.group import Group

pytest.importorskip("zarr", minversion="3")
pytest.importorskip("fsspec")
pytest.importorskip("h5py")

pytestmark = [pytest.mark.interop, pytest.mark.filterwarnings("ignore")]


@pytest.mark.parametrize(
    ("name", "zarr_format"),
    [("refs.json", 2), ("refs.json", 3), ("refs.parq", 2), ("refs.icechunk", 3)],
)
def test_climate_models_have_one_percent_copied_at_most(tmp_path, name, zarr_format):
    group = vz.virtualize(write_months(tmp_path / "files"), "time")
    target = tmp_path / name
    report = group.publish(target, zarr_format=zarr_format)
    assert report.copied == 0
    assert_others_read(group, target)
    if name.endswith("icechunk"):
        pytest.importorskip("icechunk", minversion="2.0.5")
    copied, total = 0, 0
    for path, array in vz.open(target).members(None):
        manifest = array.manifest
        stored = np.broadcast_to(np.asarray(manifest.length), manifest.shape)
        if report.receipt["arrays"][path].get("inline"):
            copied += sum(len(s.data or b"") or s.size or 0 for s in manifest.sources)
        total += int(np.maximum(stored, 0).sum())
    assert 0 < copied <= total / 100
    # Nothing of the data is copied, only coordinates.
    assert report.receipt["arrays"]["tas"]["virtual"] == array_cells(group["tas"])


def array_cells(array):
    return array.manifest.ncells


def test_satellites_that_shuffle_from_a_date_on_are_wholly_virtual_in_runs(tmp_path):
    values = np.arange(6 * 40, dtype="<i4").reshape(6, 40)
    chains = [[LITTLE, ZLIB]] * 3 + [[LITTLE, SHUFFLE4, ZLIB]] * 2
    parts = [
        virtual(tmp_path / "a.bin", values + n, (2, 40), chain, dimension_names=("t", "x"))
        for n, chain in enumerate(chains)
    ]
    group = Group({}, {"rad": concat(parts)})
    preview = group.preview("refs.json")
    chunk = 2 * 40 * 4
    assert (preview.copied, preview.copied_bytes) == (2 * 3, 2 * 3 * chunk)
    ways = {way.text.split(" ")[0]: way.copied_bytes for way in preview.ways}
    assert ways == {'split="runs"': 0, "virtualzarr": 0}
    report = group.publish(tmp_path / "refs.json", split="runs")
    assert (report.copied, report.inlined, report.references) == (0, 0, 15)
    theirs = zarr_open(tmp_path / "refs.json")
    read = np.concatenate([theirs[f"run{n}/rad"][...] for n in range(2)])
    assert bits(read) == bits(group["rad"][...])
    # As one array, the smaller part is copied.
    group.publish(tmp_path / "one.json", copy=True, inline=0)
    assert bits(zarr_open(tmp_path / "one.json")["rad"][...]) == bits(read)
