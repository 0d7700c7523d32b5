"""Publications for named clients: they are given codecs that they have, and read everything."""

from __future__ import annotations

import sys

import numpy as np
import pytest

import virtualzarr as vz
from tests.interop.client_table import CHAINS, CHUNKS, probe, values_of
from tests.interop.collection import mirror
from tests.references.arrays import virtual
from virtualzarr.errors import PublishError
from virtualzarr.hierarchy.group import Group
from virtualzarr.references.clients import choose_clients, explain_unreadable, read_table

pytestmark = [pytest.mark.interop, pytest.mark.filterwarnings("ignore")]


@pytest.fixture
def group(tmp_path):
    """An array for each chain of codecs."""
    arrays = {
        name: virtual(tmp_path / f"{number}.bin", values_of(name) + number, CHUNKS, chain,
                      dimension_names=("y", "x"))
        for number, (name, chain) in enumerate(CHAINS.items())
    }  # fmt: skip
    return Group({}, {f"c{n}": array for n, array in enumerate(arrays.values())})


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_the_table_is_what_tensorstore_does(tmp_path, zarr_format):
    pytest.importorskip("tensorstore")
    reads = {}
    for name, version, chains in probe(tmp_path, {"tensorstore": sys.executable}, zarr_format):
        assert (name, bool(version)) == ("tensorstore", True)
        reads |= chains
    assert reads == read_table()["tensorstore"][str(zarr_format)]


@pytest.mark.parametrize(
    ("portable", "zarr_format", "virtual_chunks"),
    # Without the checksums at their end, two chains more need no copies.
    [("python", 2, 17), ("all", 2, 6), (["tensorstore"], 2, 11), (["tensorstore", "zarr"], 2, 11),
     (["gdal"], 2, 13)],
)  # fmt: skip
def test_only_what_clients_do_not_know_is_copied(
    tmp_path, group, portable, zarr_format, virtual_chunks
):
    preview = group.preview("refs.json", portable=portable)
    report = group.publish(tmp_path / "refs.json", portable=portable, copy=True)
    counts = [a["virtual"] for a in report.receipt["arrays"].values()]
    assert (report.zarr_format, sum(map(bool, counts))) == (zarr_format, virtual_chunks)
    assert preview.copied == report.copied
    again = vz.open(tmp_path / "refs.json")
    for name in group:
        np.testing.assert_array_equal(again[name][...], group[name][...])
        metadata = again[name].metadata
        assert explain_unreadable(metadata, zarr_format, choose_clients(portable)) is None


def test_the_clients_read_everything(tmp_path, group):
    pytest.importorskip("tensorstore")
    group.publish(tmp_path / "refs.json", portable=["tensorstore"], copy=True)
    target = mirror(tmp_path / "refs.json", tmp_path / "mirror")
    report = vz.verify(target, clients="tensorstore", timeout=300)
    assert report.exit_code == 0, report
    assert len(report.clients[0].equal) == len(CHAINS)


def test_without_copying_it_says_who_reads_what_not(tmp_path, group):
    with pytest.raises(PublishError, match="tensorstore cannot read shuffle and zlib in Zarr v2"):
        Group({}, {"a": group["c5"]}).publish(
            tmp_path / "refs.json", portable=["tensorstore"], zarr_format=2
        )


@pytest.mark.parametrize("portable", ["everybody", ["zarr", "netscape"]])
def test_unknown_clients_are_refused(tmp_path, group, portable):
    with pytest.raises(ValueError, match="portable is"):
        group.publish(tmp_path / "refs.json", portable=portable)
