"""Columns as text: what numpy lays out is what Python would write."""

from __future__ import annotations

import base64
import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from virtualzarr.config import config
from virtualzarr.manifest import Affine, Manifest, Source, Sources
from virtualzarr.metadata import KeyEncoding
from virtualzarr.references.kerchunk import json_text as text
from virtualzarr.references.kerchunk.write_json import reference_text
from virtualzarr.references.report import Counts

EDGES = [
    0,
    1,
    9,
    10,
    99,
    9999,
    10_000,
    10_001,
    99_999_999,
    10**8,
    10**12,
    10**12 + 10**4,
    2**63 - 1,
]


@given(st.lists(st.one_of(st.sampled_from(EDGES), st.integers(0, 2**63 - 1)), min_size=1))
def test_decimal(numbers):
    rows = text.decimal(np.array(numbers, np.int64))
    assert text.join([rows, b" "], len(numbers)).decode().split() == [str(n) for n in numbers]


@given(st.lists(st.binary(max_size=20), min_size=1, max_size=20), st.randoms())
def test_base64_rows(chunks, random):
    order = list(range(len(chunks)))
    random.shuffle(order)
    heap = b"".join(chunks)
    starts = np.cumsum([0, *map(len, chunks)])[:-1]
    offset = np.array([starts[i] for i in order], np.int64)
    length = np.array([len(chunks[i]) for i in order], np.int64)
    rows = text.base64_rows(np.frombuffer(heap, np.uint8), offset, length)
    got = text.join([rows, b"\n"], len(order)).split(b"\n")[:-1]
    assert got == [base64.b64encode(chunks[i]) for i in order]


@given(st.text())
def test_quoted(string):
    assert json.loads(b'"' + text.to_json_string(string) + b'"') == string
    assert b"\0" not in text.to_json_string(string)


def slowly(manifest, path, keys):
    """What should be written, made one by one."""
    refs = {}
    for cell in np.ndindex(*manifest.shape):
        source = int(np.asarray(manifest.source)[cell])
        if source < 0:
            continue
        offset, length = (int(np.asarray(c)[cell]) for c in (manifest.offset, manifest.length))
        row = manifest.sources[source]
        key = (f"{path}/" if path else "") + keys.key(cell)
        if row.is_inline:
            part = row.data[offset:] if length < 0 else row.data[offset : offset + length]
            refs[key] = "base64:" + base64.b64encode(part).decode()
        else:
            refs[key] = [row.uri] if length < 0 else [row.uri, offset, length]
    return refs


@st.composite
def manifests(draw):
    shape = tuple(draw(st.lists(st.integers(0, 12), max_size=3)))
    uris = draw(
        st.lists(st.sampled_from(["/a", "/é\n", 's3://b/"q"', "http://h/\\x"]), unique=True)
    )
    rows = [Source(uri) for uri in uris] + draw(
        st.lists(st.binary(max_size=30).map(Source.inline), max_size=2)
    )
    lowest = -1 if draw(st.booleans()) or not rows else 0
    source = draw(hnp.arrays(np.int32, shape, elements=st.integers(lowest, len(rows) - 1)))
    offset = draw(hnp.arrays(np.int64, shape, elements=st.sampled_from(EDGES)))
    length = draw(hnp.arrays(np.int64, shape, elements=st.sampled_from([-1, *EDGES])))
    inline = np.isin(source, [i for i, row in enumerate(rows) if row.is_inline])
    size = np.array([row.size or 0 for row in rows] + [0])[source]
    offset = np.where(inline, offset % (size + 1), offset)
    length = np.where(inline, np.minimum(length, size - offset), length)
    offset = np.where((length < 0) & ~inline, 0, offset)
    return Manifest(shape, Sources(rows), source, offset, length)


@settings(max_examples=100, deadline=None)
@given(
    manifests(),
    st.sampled_from(["", "x", "a b/ü"]),
    st.sampled_from([KeyEncoding(), KeyEncoding("v2"), KeyEncoding("v2", "/")]),
    st.sampled_from([7, 100]),
)
def test_reference_text(manifest, path, keys, block):
    counts = Counts()
    with config.tuning.set(json_cells=block):
        pieces = b"".join(reference_text(manifest, path, keys, counts))
    expected = slowly(manifest, path, keys)
    assert json.loads(b"{" + pieces[1:] + b"}") == expected
    assert counts.references == len(expected)
    assert counts.inlined == sum(isinstance(value, str) for value in expected.values())


def test_columns_that_take_no_memory():
    sources = Sources([Source("/f")])
    manifest = Manifest((30, 40), sources, 0, Affine((30, 40), 100, (4000, 100)), 100)
    written = b"".join(reference_text(manifest, "x", KeyEncoding("v2"), Counts()))
    refs = json.loads(b"{" + written[1:] + b"}")
    assert refs == {
        f"x/{i}.{j}": ["/f", 100 + 4000 * i + 100 * j, 100] for i in range(30) for j in range(40)
    }


@pytest.mark.parametrize("size", [0, 1, 2, 3, 1000, 1 << 20])
def test_large_inline_chunks_are_written_in_pieces(size, monkeypatch):
    monkeypatch.setattr(config.tuning, "json_inline_characters", 1 << 12)
    data = np.random.default_rng(0).bytes(size + 5)
    manifest = Manifest((5,), Sources([Source.inline(data)]), 0, np.arange(5), size)
    written = b"".join(reference_text(manifest, "", KeyEncoding("v2"), Counts()))
    refs = json.loads(b"{" + written[1:] + b"}")
    for i in range(5):
        assert base64.b64decode(refs[str(i)].removeprefix("base64:")) == data[i : i + size]
