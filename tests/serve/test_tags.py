"""Entity tags of chunks: another one for whatever may change the bytes, and for nothing else."""

from __future__ import annotations

import numpy as np
import pytest

from grids import Axis
from virtualzarr.codecs import Pipeline
from virtualzarr.manifest import Decoder, Manifest, Source
from virtualzarr.manifest.sources import Sources
from virtualzarr.serve.tags import SourceTags, tag_cell

DECODERS = tuple(Decoder(Pipeline(["bytes"]), (length,)) for length in (4, 8))
AS_IT_IS = {
    "uri": "/a.nc", "mtime_ns": 1, "data": None, "offset": 100, "length": 40, "decoder": None,
    "origin": None, "cells": 3, "span": (1, 2), "at": 4, "shape": 4, "padded": True, "stored": 0,
    "extent": 12, "edge": 4, "encoding": b"lz4",
}  # fmt: skip


def tag(**changes):
    """Return the tag of a cell of an array whose chunks are alike."""
    it = AS_IT_IS | changes
    filled = [(it["cells"],), it["stored"]]
    sources = Sources([Source(it["uri"], mtime_ns=it["mtime_ns"], data=it["data"])])
    manifest = Manifest(
        (it["cells"],), sources, np.full(*filled, np.int32), np.full((it["cells"],), it["offset"]),
        np.full((it["cells"],), it["length"]), DECODERS,
        None if it["decoder"] is None else np.full((it["cells"],), it["decoder"], np.int32),
        None if it["origin"] is None else np.full((it["cells"], 1), it["origin"]),
    )  # fmt: skip
    axes = [Axis.bare(it["extent"], it["edge"])]
    box = [(it["at"], it["at"] + it["shape"])]
    return tag_cell(
        it["encoding"], manifest, axes, box, [it["span"]], SourceTags(manifest), it["padded"]
    )


@pytest.mark.parametrize("span", [(1, 2), (1, 3)], ids=["one stored chunk", "several"])
def test_whatever_may_change_the_bytes_changes_the_tag(span):
    changes = [
        {}, {"uri": "/b.nc"}, {"mtime_ns": 2}, {"data": b"inline"}, {"offset": 101},
        {"length": 41}, {"decoder": 0}, {"decoder": 1}, {"decoder": 0, "origin": 0},
        {"decoder": 0, "origin": 1}, {"at": 5}, {"shape": 3}, {"stored": -1}, {"edge": 5},
        {"extent": 7}, {"encoding": b"zstd"}, {"encoding": b"lz4" + b"/a.nc"},
    ]  # fmt: skip
    tags = [tag(span=span, **change) for change in changes]
    assert None not in tags
    assert len({*tags}) == len(tags)


@pytest.mark.parametrize("span", [(1, 2), (1, 3)], ids=["one stored chunk", "several"])
def test_what_others_have_written_does_not_change_the_tag(span):
    before = tag(span=span)
    # Rows behind it, and rows before it: the same chunks at another place of the array.
    assert tag(span=span, extent=40, cells=10) == before
    assert tag(span=tuple(i + 3 for i in span), at=16, extent=40, cells=10) == before
    # What lies past the end of the array counts where the face makes it, and only there.
    assert tag(span=span, padded=False) == tag(span=span, padded=False, extent=7)


@pytest.mark.parametrize("span", [(1, 2), (1, 3)], ids=["one stored chunk", "several"])
def test_sources_without_a_date_have_no_tag(span):
    assert tag(span=span, mtime_ns=None) is None
    assert tag(span=span, mtime_ns=None, stored=-1) is not None
