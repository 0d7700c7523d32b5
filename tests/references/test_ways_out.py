"""Previews compared with what is published: copies of each variable, and of each way out."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import virtualzarr as vz
from tests.references.arrays import LITTLE, SHUFFLE4, ZLIB, virtual
from virtualzarr.hierarchy.group import Group

CHAINS = [[LITTLE], [LITTLE, ZLIB], [LITTLE, SHUFFLE4, ZLIB]]
FILES = st.lists(
    st.tuples(st.integers(1, 9), st.integers(1, 6), st.sampled_from(range(3))),
    min_size=1, max_size=4,
)  # fmt: skip
"""Rows, rows in a chunk and codecs of each file."""


def make_group(folder, files) -> Group:
    parts, first = [], 0
    for rows, chunk, chain in files:
        values = np.arange(first, first + rows * 3, dtype="<i4").reshape(rows, 3)
        parts.append(virtual(folder / "a.bin", values, (min(chunk, rows), 3), CHAINS[chain],
                             dimension_names=("t", "x")))  # fmt: skip
        first += rows * 3
    return Group({}, {"a": vz.concat(parts)})


def count_copies(report) -> tuple[int, int]:
    """Chunks that a publication has copied, and bytes of their elements."""
    arrays = report.receipt["arrays"].values()
    sizes = [a["copied"] * math.prod(a["chunks"]) * 4 if "chunks" in a else 0
             for a in arrays if "copied" in a]  # fmt: skip
    return report.copied, sum(sizes)


@given(files=FILES)
@settings(max_examples=8, deadline=None, suppress_health_check=list(HealthCheck))
def test_previews_and_ways_copy_what_they_say(tmp_path_factory, files):
    folder = tmp_path_factory.mktemp("ways")
    group = make_group(folder, files)
    options = {"regular": True, "inline": 0}
    preview = group.preview("refs.json", **options)
    report = group.publish(folder / "refs.json", copy=True, **options)
    assert (preview.copied, preview.copied_bytes) == count_copies(report)
    np.testing.assert_array_equal(vz.open(folder / "refs.json")["a"][...], group["a"][...])
    assert bool(preview.ways) == bool(preview.copied)
    for number, way in enumerate(preview.ways):
        changes = {
            "split": {"split": "runs"}, "plugin": {"plugin_codecs": True},
            "without": {"regular": False},
        }  # fmt: skip
        change = next((c for word, c in changes.items() if way.text.startswith(word)), None)
        if change is None:
            assert (way.text.split()[:2], way.copied_bytes) == (["virtualzarr", "serve"], 0)
            continue
        other = group.publish(folder / f"{number}.json", copy=True, **{**options, **change})
        copied, nbytes = count_copies(other)
        assert copied == group.preview("refs.json", **{**options, **change}).copied
        if "regular" not in change:
            assert nbytes == way.copied_bytes
        assert way.copied_bytes < preview.copied_bytes
        assert f"copies {way.copied_bytes:,} bytes" in str(preview)


def test_ways_name_the_bytes_of_each_variable(tmp_path):
    half = make_group(tmp_path, [(8, 4, 1), (8, 4, 2), (3, 2, 1), (8, 4, 1)])
    preview = half.preview("refs.json", regular=True, inline=0)
    assert preview.copied > 0
    split = next(way for way in preview.ways if "runs" in way.text)
    assert all(path.startswith("run") for path in split.copied)
    assert [way.copied_bytes for way in preview.ways] == sorted(
        way.copied_bytes for way in preview.ways
    )
    with pytest.raises(
        vz.errors.PublishError, match=r"preview\(\) lists what copies less"
    ) as error:
        half.publish(tmp_path / "refs.json", regular=True, inline=0)
    assert "None" not in str(error.value)
