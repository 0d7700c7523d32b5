"""Manifests: columns that agree with brute force, and cost what they promise."""

import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from virtualzarr.codecs import Pipeline
from virtualzarr.errors import BadReferenceError, SourceNotFoundError
from virtualzarr.manifest import Affine, Decoder, Manifest, Source, Sources


def pipeline(level=1):
    return Pipeline.from_v3([{"name": "bytes", "configuration": {"endian": "little"}},
                             {"name": "gzip", "configuration": {"level": level}}])  # fmt: skip


def resolved(manifest):
    """Every cell's reference with the tables looked up: what concatenation must preserve."""
    cells = np.ndindex(*manifest.shape)
    decoder, origin = manifest.decoder, manifest.origin
    offset, length = np.asarray(manifest.offset), np.asarray(manifest.length)
    return {
        cell: (
            None if manifest.source[cell] < 0 else manifest.sources[manifest.source[cell]],
            int(offset[cell]),
            int(length[cell]),
            None if decoder is None or decoder[cell] < 0 else manifest.decoders[decoder[cell]],
            (0,) * manifest.ndim if origin is None else tuple(origin[cell].tolist()),
        )
        for cell in cells
    }


@st.composite
def manifests(draw, shape):
    names = draw(st.lists(st.sampled_from("abcd"), min_size=1, max_size=3, unique=True))
    sources = Sources(Source(f"/{name}.nc") for name in names)
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    kwargs = {}
    if draw(st.booleans()):
        decoders = [
            Decoder(pipeline(level), None) for level in draw(st.sampled_from([[1], [2, 3]]))
        ]
        kwargs |= {"decoders": decoders, "decoder": rng.integers(-1, len(decoders), shape)}
    if draw(st.booleans()):
        kwargs["origin"] = rng.integers(0, 9, (*shape, len(shape)))
    source = rng.integers(-1, len(sources), shape) if draw(st.booleans()) else 0
    offset = (
        rng.integers(0, 2**40, shape)
        if draw(st.booleans())
        else Affine(shape, 7, range(len(shape)))
    )
    return Manifest(shape, sources, source, offset, rng.integers(-1, 99, shape), **kwargs)


@given(st.data(), st.integers(0, 1))
def test_concatenate_keeps_every_reference(data, axis):
    shapes = [
        (n, 2) if axis == 0 else (2, n)
        for n in data.draw(st.lists(st.integers(0, 4), min_size=1, max_size=4))
    ]
    parts = [data.draw(manifests(shape)) for shape in shapes]
    joined = Manifest.concatenate(parts, axis)
    expected, start = {}, 0
    for part in parts:
        for cell, ref in resolved(part).items():
            moved = list(cell)
            moved[axis] += start
            expected[tuple(moved)] = ref
        start += part.shape[axis]
    assert resolved(joined) == expected
    assert len(set(joined.sources)) == len(joined.sources)
    assert len(set(joined.decoders)) == len(joined.decoders)


@given(st.data(), st.integers(0, 2))
def test_stack_keeps_every_reference(data, axis):
    parts = [data.draw(manifests((2, 3))) for _ in range(data.draw(st.integers(1, 3)))]
    joined = Manifest.stack(parts, axis)
    for i, part in enumerate(parts):
        for cell, (source, offset, length, decoder, origin) in resolved(part).items():
            moved = (*cell[:axis], i, *cell[axis:])
            corner = (*origin[:axis], 0, *origin[axis:])
            assert resolved(joined)[moved] == (source, offset, length, decoder, corner)


@given(st.data())
def test_take_gives_the_cells_asked_for(data):
    manifest = data.draw(manifests((3, 4)))
    by_slices = manifest.take((slice(1, 3), slice(0, 4, 2)))
    by_arrays = manifest.take(np.ix_([1, 2], [0, 2]))
    points = manifest.take((np.array([1, 1, 2, 2]), np.array([0, 2, 0, 2])))
    everything = resolved(manifest)
    for refs in (by_slices, by_arrays, points):
        for k, cell in enumerate([(1, 0), (1, 2), (2, 0), (2, 2)]):
            source, offset, length, *_ = everything[cell]
            assert (refs.source[k] < 0) == (source is None)
            assert (refs.offset[k], refs.length[k]) == (offset, length)
            if refs.origin is not None:
                assert tuple(refs.origin[k]) == everything[cell][4]


def test_a_reference_costs_twenty_bytes_and_a_constant_column_nothing():
    n = 1000
    sources = Sources([Source("/a/very/long/path" * 50)])
    full = Manifest((n,), sources, np.zeros(n, int), np.arange(n), np.arange(n))
    assert full.nbytes == 20 * n
    strided = Manifest((n,), sources, 0, Affine((n,), 512, (64,)), 64)
    assert strided.nbytes < 64
    assert strided.nrefs == n
    assert strided == Manifest((n,), sources, np.zeros(n, int), 512 + 64 * np.arange(n), 64)


def test_counts_and_repr():
    m = Manifest((3,), Sources([Source("/a")]), [0, -1, 0], [0, 0, 5], [5, 0, 7])
    assert (m.nrefs, m.ncells, m.nbytes_stored) == (2, 3, 12)
    assert m.canonical.all()
    odd = m.replace(decoders=[Decoder(pipeline(), (9,))], decoder=[0, 0, -1])
    assert odd.canonical.tolist() == [False, True, True], "a missing chunk needs no decoder"
    assert "1 not canonical" in repr(odd)


@pytest.mark.parametrize(
    ("columns", "word"),
    [
        (([1], [0], [1]), "source"),
        (([-2], [0], [1]), "source"),
        (([0], [-1], [1]), "offset"),
        (([0], [0], [-2]), "length"),
        (([0.0], [0], [1]), "integers"),
        (([0], np.array([2**64 - 1], np.uint64), [1]), "int64"),
        (([2**40], [0], [1]), "int32"),
        (([0, 0], [0], [1]), "source"),
        (([0], Affine((2,), 0, (1,)), [1]), "offset"),
        (([0], Affine((1,), -5, (1,)), [1]), "offset"),
    ],
)
def test_bad_columns_are_refused(columns, word):
    with pytest.raises(BadReferenceError, match=word):
        Manifest((1,), Sources([Source("/a")]), *columns)


def test_source_fingerprint(tmp_path):
    path = tmp_path / "a.bin"
    path.write_bytes(b"12345")
    source = Source.from_file(path)
    assert (source.uri, source.size) == (str(path), 5)
    assert Source.from_file(f"file://{path}") == source
    with pytest.raises(SourceNotFoundError, match="nowhere"):
        Source.from_file(tmp_path / "nowhere")


def test_tables_of_names_are_tables_of_sources():
    made = []

    def make(name):
        made.append(name)
        return Source(name, size=1)

    plain = Sources(Source(f"/{i}.nc", size=1) for i in range(9))

    def named():
        return Sources.named([f"/{i}.nc" for i in range(9)], make)

    table = named()
    assert len(table) == 9
    assert table[3] == plain[3]
    assert table.select(np.array([-1, 7, 2])) == [plain[2], plain[7]]
    assert made == ["/3.nc", "/2.nc", "/7.nc"]
    assert table[-2:] == plain[-2:]
    assert repr(table) == repr(plain)
    assert named() == plain
    assert hash(named()) == hash(plain)
    assert list(named()) == list(plain)
    assert pickle.loads(pickle.dumps(named())) == plain
    assert Sources.merge([named(), plain])[0] == plain
    with pytest.raises(IndexError):
        table[9]
