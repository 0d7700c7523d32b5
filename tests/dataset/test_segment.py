"""Segments: what their objects take."""

from __future__ import annotations

import numpy as np

from tests.dataset.growth import build_group
from virtualzarr.dataset.create import create_dataset


def test_a_table_of_sources_of_many_arrays_is_stored_once(tmp_path):
    group = build_group(0, 4, rows=200, files=200)
    dataset = create_dataset(tmp_path / "dataset", group, "time")
    segment = dataset.open_segment(dataset.snapshot.entries.tail[-1].segment)
    uris = [key for key, _ in segment.list() if "/uri/c/" in key]
    assert len(uris) == 4
    # Their offset in the segment, their size, and their checksum.
    assert len({tuple(segment._keys[key]) for key in uris}) == 1
    for k in range(4):
        found, expected = dataset.group[f"v{k}"].manifest, group[f"v{k}"].manifest
        assert [s.uri for s in found.sources] == [s.uri for s in expected.sources]
        np.testing.assert_array_equal(found.offset, np.asarray(expected.offset))
