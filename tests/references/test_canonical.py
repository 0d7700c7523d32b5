"""References that only look odd are made canonical; the others are told apart and counted."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grids import RectilinearGrid, RegularGrid
from tests.references.arrays import BIG, LITTLE, ZLIB
from virtualzarr.array import Array
from virtualzarr.codecs import Pipeline
from virtualzarr.errors import PublishError
from virtualzarr.manifest import Decoder, Manifest, Source, Sources
from virtualzarr.metadata import ArrayMetadata
from virtualzarr.references.canonical import make_canonical

PLAIN, BIG_PLAIN, ZIPPED = Pipeline([LITTLE]), Pipeline([BIG]), Pipeline([LITTLE, ZLIB])
F_ORDER = Pipeline([{"name": "transpose", "configuration": {"order": [1, 0]}}, LITTLE])


def one_cell(declared, decoder, cell, origin, stored, **changes):
    """An array of one cell that is a part of a stored block, and its values."""
    block = np.arange(np.prod(stored), dtype="i4").reshape(stored)
    data = b"head" + bytes(decoder.pipeline.for_block(stored, block.dtype).encode(block))
    meta = ArrayMetadata(cell, "i4", RegularGrid(cell, cell), declared, 0)
    ones = (1,) * len(cell)
    manifest = Manifest(
        ones,
        Sources([Source.inline(data)]),
        0,
        4,
        changes.get("length", len(data) - 4),
        decoders=(decoder,),
        decoder=0,
        origin=np.broadcast_to(origin, (*ones, len(cell))),
    )
    where = tuple(slice(o, o + n) for o, n in zip(origin, cell, strict=True))
    return Array.from_manifest(meta, manifest), block[where]


@st.composite
def parts(draw):
    stored = tuple(draw(st.lists(st.integers(1, 4), min_size=1, max_size=3)))
    cell = tuple(draw(st.integers(1, n)) for n in stored)
    origin = tuple(draw(st.integers(0, n - c)) for n, c in zip(stored, cell, strict=True))
    return stored, cell, origin


@settings(max_examples=100, deadline=None)
@given(parts(), st.sampled_from([PLAIN, BIG_PLAIN]))
def test_contiguous_parts_of_plain_blocks_are_canonical_and_no_others(part, pipeline):
    stored, cell, origin = part
    array, values = one_cell(pipeline, Decoder(pipeline, stored), cell, origin, stored)
    made = make_canonical(array.metadata, array.manifest)
    flat = np.ravel_multi_index(
        tuple(np.add.outer(i, 0) + o for i, o in zip(np.indices(cell), origin, strict=True)), stored
    ).reshape(-1)
    contiguous = bool((np.diff(flat) == 1).all())
    assert (len(made.misread) == 0) == contiguous
    assert np.array_equal(array[...], values)
    if contiguous:
        assert made.manifest.decoder is None
        assert made.manifest.origin is None
        assert np.array_equal(Array.from_manifest(array.metadata, made.manifest)[...], values)
    else:
        assert made.reasons == {"stored as a part of a larger block": 1}


def test_the_axes_of_f_order_are_counted_as_they_are_stored():
    decoder = Decoder(F_ORDER, (6, 4))
    array, values = one_cell(F_ORDER, decoder, (6, 2), (0, 1), (6, 4))
    made = make_canonical(array.metadata, array.manifest)
    assert len(made.misread) == 0
    assert np.array_equal(Array.from_manifest(array.metadata, made.manifest)[...], values)
    array, _ = one_cell(F_ORDER, decoder, (3, 4), (0, 0), (6, 4))
    assert len(make_canonical(array.metadata, array.manifest).misread) == 1


@pytest.mark.parametrize(
    ("declared", "decoder", "canonical"),
    [
        (PLAIN, Decoder(PLAIN), True),
        (PLAIN, Decoder(PLAIN, (4, 4)), True),
        (ZIPPED, Decoder(Pipeline([LITTLE, {**ZLIB, "configuration": {"level": 9}}])), True),
        (PLAIN, Decoder(BIG_PLAIN), False),
        (PLAIN, Decoder(ZIPPED), False),
        (ZIPPED, Decoder(PLAIN), False),
        (PLAIN, Decoder(F_ORDER), False),
    ],
)
def test_decoders_that_decode_alike_are_canonical(declared, decoder, canonical):
    array, _ = one_cell(declared, decoder, (4, 4), (0, 0), (4, 4))
    made = make_canonical(array.metadata, array.manifest)
    assert (len(made.misread) == 0) == canonical
    if not canonical:
        assert made.reasons == {"stored with other codecs than the array's": 1}


def test_a_compressed_part_is_not_canonical():
    array, _ = one_cell(ZIPPED, Decoder(ZIPPED, (4, 4)), (2, 4), (0, 0), (4, 4))
    assert len(make_canonical(array.metadata, array.manifest).misread) == 1


def test_a_plain_block_of_the_wrong_length_is_not_shortened():
    array, _ = one_cell(PLAIN, Decoder(PLAIN, (4, 4)), (2, 4), (0, 0), (4, 4), length=60)
    assert len(make_canonical(array.metadata, array.manifest).misread) == 1


def test_own_codecs_are_known_to_nobody_else():
    own = {
        "name": "virtualzarr.strings",
        "configuration": {"itemsize": 4, "fields": [[0, 4, "space_padded"]]},
    }
    meta = ArrayMetadata(
        (2,), "S4", RegularGrid((2,), (1,)), Pipeline([{"name": "bytes"}, own]), b""
    )
    manifest = Manifest((2,), Sources([Source("/f")]), [0, -1], 0, 4)
    made = make_canonical(meta, manifest)
    assert made.misread.tolist() == [0]


@pytest.mark.parametrize(
    ("codecs", "elementsize", "known"),
    [([], 4, True), ([], 2, True), ([], 3, False), ([ZLIB], 4, False)],
)
def test_numcodecs_shuffles_whole_elements_only(codecs, elementsize, known):
    shuffle = {"name": "numcodecs.shuffle", "configuration": {"elementsize": elementsize}}
    meta = ArrayMetadata(
        (2,), "i4", RegularGrid((2,), (1,)), Pipeline([LITTLE, *codecs, shuffle]), 0
    )
    manifest = Manifest((2,), Sources([Source("/f")]), 0, [0, 9], 9)
    assert (len(make_canonical(meta, manifest).misread) == 0) == known


def test_open_ends_get_a_length(tmp_path):
    (tmp_path / "f").write_bytes(bytes(10))
    meta = ArrayMetadata((3,), "i4", RegularGrid((3,), (1,)), PLAIN, 0)
    for source in (Source(str(tmp_path / "f")), Source.from_file(tmp_path / "f")):
        manifest = Manifest((3,), Sources([source]), [0, 0, -1], [6, 0, 3], [-1, -1, -1])
        made = make_canonical(meta, manifest).manifest
        assert made.length.tolist() == [4, -1, -1]
    manifest = Manifest((3,), Sources([source]), 0, 11, -1)
    with pytest.raises(PublishError, match="behind the end"):
        make_canonical(meta, manifest)


def test_cells_of_several_shapes():
    """Whole rows of larger blocks along an irregular axis; the last cell is a true part."""
    grid = RectilinearGrid((6, 4), [[1, 2, 3], 4])
    meta = ArrayMetadata((6, 4), "i4", grid, PLAIN, 0)
    block = np.arange(24, dtype="<i4").reshape(6, 4)
    sources = Sources([Source.inline(block.tobytes())])
    origin = np.array([[[0, 0]], [[1, 0]], [[3, 0]]])
    manifest = Manifest(
        (3, 1), sources, 0, 0, 96, decoders=(Decoder(PLAIN, (6, 4)),), decoder=0, origin=origin
    )
    made = make_canonical(meta, manifest)
    assert len(made.misread) == 0
    assert np.asarray(made.manifest.offset).reshape(-1).tolist() == [0, 16, 48]
    assert np.asarray(made.manifest.length).reshape(-1).tolist() == [16, 32, 48]
    assert np.array_equal(Array.from_manifest(meta, made.manifest)[...], block)


@pytest.mark.parametrize(("length", "reason"), [
    (24, {}), (-1, {"stored with a checksum that cannot be left out": 1}),
])  # fmt: skip
def test_checksums_are_left_out_where_lengths_are_known_and_counted_elsewhere(length, reason):
    # As chunks are that are all of a file: what comes before its last bytes has no range.
    summed = Pipeline([LITTLE, {"name": "crc32c"}])
    data = bytes(summed.for_block((5,), "i4").encode(np.arange(5, dtype="i4")))
    meta = ArrayMetadata((5,), "i4", RegularGrid((5,), (5,)), Pipeline([LITTLE]), 0)
    sources, decoders = Sources([Source.inline(data)]), (Decoder(summed),)
    manifest = Manifest((1,), sources, 0, 0, length, decoders=decoders, decoder=0)
    canonical = make_canonical(meta, manifest)
    assert (canonical.reasons, len(canonical.misread)) == (reason, len(reason))
    assert canonical.manifest.length[0] == (20 if length > 0 else length)
