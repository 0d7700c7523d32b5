"""Publishing: what is written, what is refused, what is copied."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import virtualzarr as vz
from grids import RectilinearGrid
from tests.references.arrays import (
    BIG,
    DECODERS,
    LITTLE,
    SHUFFLE4,
    VALUES,
    ZLIB,
    append,
    encoded,
    odd_array,
    virtual,
    with_decoder,
)
from virtualzarr.array import Array
from virtualzarr.codecs import Pipeline
from virtualzarr.errors import PublishError, SkippedVariableWarning, SourceError, UnsupportedError
from virtualzarr.hierarchy.group import Group
from virtualzarr.manifest import Decoder, Manifest
from virtualzarr.metadata import ArrayMetadata, KeyEncoding
from virtualzarr.references.kerchunk import scan
from virtualzarr.references.publish import preview, publish
from virtualzarr.stores import open_store


@pytest.fixture
def file(tmp_path):
    return tmp_path / "data.bin"


@pytest.fixture
def target(tmp_path):
    return tmp_path / "refs.json"


def assert_round_trip(group, target, **options):
    """Publish, scan, compare everything; return the report."""
    report = publish(group, target, **options)
    again = scan(target)
    ours = dict(group.members(None))
    theirs = dict(again.members(None))
    assert set(ours) == set(theirs)
    assert again.attrs == group.attrs
    for path, node in ours.items():
        other = theirs[path]
        if isinstance(node, Group):
            assert other.attrs == node.attrs
            continue
        assert other.shape == node.shape
        assert other.dtype == node.dtype
        assert other.dims == node.dims
        assert np.array_equal(np.asarray(other[...]), np.asarray(node[...]))
        assert other.attrs == node.attrs
    return report


CODECS = [[LITTLE], [BIG], [LITTLE, ZLIB], [LITTLE, SHUFFLE4, ZLIB],
          [{"name": "transpose", "configuration": {"order": [1, 0]}}, LITTLE, ZLIB]]  # fmt: skip


@pytest.mark.parametrize("zarr_format", [None, 2, 3])
@pytest.mark.parametrize("codecs", CODECS)
def test_round_trip(file, target, codecs, zarr_format):
    x = virtual(file, VALUES, (2, 3), codecs, dimension_names=("y", "x"), attributes={"units": "K"})
    inner = Group({"k": [1, None, "é"]}, {"y": virtual(file, VALUES[0] + 0.5, 3)})
    group = Group({"title": "t"}, {"x": x, "g": Group({}, {"inner": inner}), "empty": Group()})
    report = assert_round_trip(group, target, zarr_format=zarr_format)
    assert report.zarr_format == (zarr_format or 2)
    assert (report.arrays, report.groups, report.references) == (2, 4, 12)
    assert report.inlined == report.copied == 0
    assert report.nbytes == os.path.getsize(target)
    again = scan(target)["x"]
    for name in ("source", "offset", "length"):
        assert np.array_equal(getattr(again.manifest, name), getattr(x.manifest, name))
    assert [source.uri for source in again.manifest.sources] == [str(file)]
    assert again.metadata.pipeline.decoding_key("i4") == x.metadata.pipeline.decoding_key("i4")


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_scalars(file, target, zarr_format):
    group = Group(
        {}, {"zero": virtual(file, np.float64(0), ()), "one": virtual(file, np.int8(1), ())}
    )
    assert_round_trip(group, target, zarr_format=zarr_format)


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_zero_lengths(file, target, zarr_format):
    group = Group({}, {"x": virtual(file, np.zeros((0, 3), "i2"), (2, 3))})
    report = assert_round_trip(group, target, zarr_format=zarr_format)
    assert report.references == 0


def test_an_array_alone(file, target):
    array = virtual(file, VALUES, (2, 3))
    report = publish(array, target)
    assert (report.arrays, report.groups) == (1, 0)
    assert np.array_equal(scan(target)["refs"][...], VALUES)


def test_irregular_chunks_need_v3(file, target):
    x = virtual(file, VALUES, [[2, 3], 7], [LITTLE, ZLIB])
    assert isinstance(x.grid, RectilinearGrid)
    report = assert_round_trip(Group({}, {"x": x, "y": virtual(file, VALUES, (2, 7))}), target)
    assert report.zarr_format == 3
    assert len(report.why_v3) == 1
    assert report.why_v3[0].startswith("x: ")
    assert "v3 because: x: " in repr(report)
    with pytest.raises(PublishError, match="x: "):
        publish(Group({}, {"x": x}), target, zarr_format=2)


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_an_irregular_grid_that_amounts_to_a_regular_one_is_written_as_one(
    file, target, zarr_format
):
    x = virtual(file, VALUES, [[2, 2, 2], [7]])
    assert isinstance(x.grid, RectilinearGrid)
    assert_round_trip(Group({}, {"x": x}), target, zarr_format=zarr_format)
    name = "x/zarr.json" if zarr_format == 3 else "x/.zarray"
    assert "rectilinear" not in json.loads(target.read_text())["refs"][name]


class TestFill:
    """What missing chunks read as, and what xarray will take for missing values."""

    def document(self, target, name="x"):
        refs = json.loads(target.read_text())["refs"]
        return json.loads(
            refs[f"{name}/.zarray" if f"{name}/.zarray" in refs else f"{name}/zarr.json"]
        )

    def test_without_missing_chunks_there_is_none_in_v2(self, file, target):
        x = virtual(file, VALUES, (2, 3), fill_value=0)
        assert publish(Group({}, {"x": x}), target).zarr_format == 2
        assert self.document(target)["fill_value"] is None

    def test_it_stays_where_it_is_masked_anyway(self, file, target):
        x = virtual(
            file, VALUES, (2, 3), fill_value=-9, attributes={"_FillValue": -9}, missing=((0, 1),)
        )
        report = assert_round_trip(Group({}, {"x": x}), target)
        assert report.zarr_format == 2
        assert self.document(target)["fill_value"] == -9

    def test_nan_is_nan(self, file, target):
        nan = float("nan")
        x = virtual(
            file,
            VALUES.astype("f4"),
            (2, 3),
            fill_value=nan,
            attributes={"_FillValue": nan},
            missing=((0, 1),),
        )
        assert publish(Group({}, {"x": x}), target).zarr_format == 2
        again = scan(target)["x"]
        assert np.isnan(again[0, 3])
        assert np.isnan(again.attrs["_FillValue"])

    def test_a_rounded_attribute_is_not_the_fill_value(self, file, target):
        values = VALUES.astype("f4")
        x = virtual(file, values, (5, 7), fill_value=0.1, attributes={"_FillValue": 0.1})
        publish(Group({}, {"x": x}), target)
        assert self.document(target)["fill_value"] is None
        rounded = float(np.float32(0.1))
        x = virtual(file, values, (5, 7), fill_value=0.1, attributes={"_FillValue": rounded})
        publish(Group({}, {"x": x}), target)
        assert self.document(target)["fill_value"] == rounded

    def test_a_few_missing_chunks_are_written_out(self, file, target):
        x = virtual(file, VALUES, (2, 3), [LITTLE, ZLIB], fill_value=-9, missing=((0, 1), (2, 2)))
        report = assert_round_trip(Group({}, {"x": x}), target)
        assert (report.zarr_format, report.inlined, report.references) == (2, 2, 9)
        assert self.document(target)["fill_value"] is None

    def test_many_missing_chunks_need_v3(self, file, target):
        missing = tuple((i,) for i in range(1, 5000))
        x = virtual(file, np.arange(40_000, dtype="f8") * 0 + 7, 8, fill_value=7, missing=missing)
        report = assert_round_trip(Group({}, {"x": x}), target)
        assert (report.zarr_format, report.inlined, report.references) == (3, 0, 1)
        assert "missing" in report.why_v3[0]
        assert self.document(target)["fill_value"] == 7
        with pytest.raises(PublishError, match="missing"):
            publish(Group({}, {"x": x}), target, zarr_format=2)

    def test_v3_has_the_attribute_as_xarray_wants_it(self, file, target):
        x = virtual(file, VALUES.astype("f4"), (2, 3), fill_value=5, attributes={"_FillValue": 1.5})
        assert_round_trip(Group({}, {"x": x}), target, zarr_format=3)
        assert self.document(target)["attributes"] == {"_FillValue": "AAAAAAAA+D8="}

    @pytest.mark.parametrize("dtype", ["S3", "M8[s]"])
    def test_v3_leaves_out_what_xarray_cannot_read(self, file, target, dtype):
        x = virtual(file, np.zeros(3, dtype), 3, [{"name": "bytes"}] if dtype == "S3" else None,
                    attributes={"_FillValue": "NaT", "units": "m"})  # fmt: skip
        report = publish(Group({}, {"x": x}), target, zarr_format=3)
        kept = {"virtualzarr_FillValue": "TmFU"} if dtype == "S3" else {}  # NaT is missing anyway
        assert self.document(target)["attributes"] == {"units": "m"} | kept
        assert scan(target)["x"].attrs.get("_FillValue") == ("NaT" if kept else None)
        assert "_FillValue" in report.notes[0]
        assert "note: x" in repr(report)

    def test_a_v2_document_keeps_its_fill_value_which_xarray_masks(self, file, target):
        x = virtual(
            file, VALUES, (2, 3), fill_value=3, zarr_format=2, key_encoding=KeyEncoding("v2")
        )
        publish(Group({}, {"x": x}), target)
        assert self.document(target)["fill_value"] == 3
        publish(Group({}, {"x": x}), target, zarr_format=3)
        assert self.document(target)["attributes"] == {"_FillValue": 3}


class TestOdd:
    """Chunks that other readers would read wrong."""

    @pytest.mark.parametrize("decoder", DECODERS)
    def test_they_are_counted_and_refused(self, file, target, decoder):
        group = Group({}, {"x": odd_array(file, decoder), "y": virtual(file, VALUES, (2, 7))})
        with pytest.raises(PublishError, match=r"1 array cannot be.*x: .*2 of 3 chunks.*copy=True"):
            publish(group, target)
        assert not target.exists()

    @pytest.mark.parametrize("zarr_format", [2, 3])
    @pytest.mark.parametrize("decoder", DECODERS)
    def test_they_are_copied_when_asked(self, file, target, decoder, zarr_format):
        assert np.array_equal(odd_array(file, decoder)[...], VALUES)
        group = Group({}, {"x": odd_array(file, decoder), "y": virtual(file, VALUES, (2, 7))})
        report = assert_round_trip(group, target, copy=True, zarr_format=zarr_format)
        assert report.copied == 2
        assert report.copied_bytes == os.path.getsize(report.copied_to)
        assert os.path.dirname(report.copied_to) == str(target.parent)
        assert f"2 chunks copied, {report.copied_bytes:,} bytes" in repr(report)
        assert scan(target)["x"].manifest.canonical.all()

    def test_copies_outlive_the_next_file(self, file, target):
        publish(Group({}, {"x": odd_array(file, DECODERS[0])}), target, copy=True)
        kept = target.with_name("kept.json")
        shutil.copy(target, kept)
        x = virtual(file, VALUES + 1, (2, 7), [LITTLE, ZLIB])
        data = encoded(x.metadata, Pipeline([LITTLE]), VALUES + 1, (0, 0))
        refs = [append(Path(x.manifest.sources[0].uri), data)]
        odd = with_decoder(x, [(0, 0)], DECODERS[0], refs)
        publish(Group({}, {"x": odd}), target, copy=True)
        assert np.array_equal(scan(target)["x"][...], VALUES + 1)
        assert np.array_equal(scan(kept)["x"][...], VALUES)

    def test_codecs_of_our_own_are_replaced(self, file, target):
        own = {
            "name": "virtualzarr.strings",
            "configuration": {"itemsize": 4, "fields": [[0, 4, "space_padded"]]},
        }
        values = np.array([b"ab", b"c", b""], "S4")
        group = Group({}, {"x": virtual(file, values, 2, [{"name": "bytes"}, own], fill_value=b"")})
        assert group["x"][...].tolist() == values.tolist()
        with pytest.raises(PublishError, match="this package only"):
            publish(group, target, inline=0)
        report = assert_round_trip(group, target, copy=True, inline=0)
        assert report.copied == 2
        assert "virtualzarr.strings" not in str(json.loads(target.read_text())["refs"])
        # Texts that are few are within the references.
        assert assert_round_trip(group, target).inlined == 1


def test_what_no_document_can_say_is_copied(file, target):
    bits = {"name": "imagecodecs_bitorder"}
    x = virtual(file, VALUES.astype("u1"), (2, 3), [{"name": "bytes"}, ZLIB, bits])
    group = Group({}, {"x": x, "y": virtual(file, VALUES, (2, 3))})
    with pytest.raises(PublishError, match="x: Zarr v2"):
        publish(group, target, plugin_codecs=True)
    with pytest.raises(PublishError, match="imagecodecs_bitorder"):
        publish(group, target, plugin_codecs=True, zarr_format=3)
    report = assert_round_trip(group, target, copy=True)
    assert (report.zarr_format, report.copied) == (2, 9)


class TestRefused:
    """Arrays that nobody else would read cost only themselves, if so asked."""

    def group(self, file):
        values = np.zeros(3, [("a", "<i4", (2,))])
        return Group(
            {}, {"g": Group({}, {"odd": virtual(file, values, 2)}), "x": virtual(file, VALUES, 5)}
        )

    def test_they_are_an_error(self, file, target):
        with pytest.raises(PublishError, match=r"1 array cannot be published: g/odd: Zarr v2: "):
            publish(self.group(file), target)

    def test_they_are_left_out_when_asked(self, file, target):
        with pytest.warns(SkippedVariableWarning, match="g/odd"):
            report = publish(self.group(file), target, on_error="warn")
        assert list(report.skipped) == ["g/odd"]
        assert "left out: g/odd" in repr(report)
        assert (report.arrays, report.groups, report.zarr_format) == (1, 2, 2)
        assert dict(scan(target).members(None)).keys() == {"g", "x"}

    def test_chunks_to_be_copied_are_left_out_too(self, file, target):
        group = Group({}, {"odd": odd_array(file, DECODERS[0]), "x": virtual(file, VALUES, 5)})
        with pytest.warns(SkippedVariableWarning, match="2 of 3 chunks"):
            report = publish(group, target, on_error="warn")
        assert report.arrays == 1

    def test_the_two_ways(self, target):
        with pytest.raises(ValueError, match="on_error"):
            publish(Group(), target, on_error="ignore")


def test_inline_chunks(target):
    meta = ArrayMetadata((4,), "i2", RectilinearGrid((4,), [[4]]), Pipeline([LITTLE]), 0)
    values = np.arange(4, dtype="<i2")
    group = Group({}, {"x": Array.from_manifest(meta, Manifest.inline(values.tobytes(), 1))})
    report = assert_round_trip(group, target)
    assert (report.inlined, report.references) == (1, 1)
    assert "1 of them inline" in repr(report)
    sizes = json.loads(target.read_text())["virtualzarr"]["sizes"]
    assert sizes == {}


def test_nothing_of_a_failed_file_is_left(file, target):
    publish(Group({}, {"x": virtual(file, VALUES, (2, 3))}), target)
    before = target.read_bytes()
    odd = odd_array(file, DECODERS[0])
    Path(odd.manifest.sources[0].uri).unlink()
    left = sorted(os.listdir(target.parent))
    with pytest.raises(SourceError):
        publish(Group({}, {"x": odd}), target, copy=True)
    assert target.read_bytes() == before
    assert sorted(os.listdir(target.parent)) == left


def test_folders_that_are_not_there(file, tmp_path):
    with pytest.raises(PublishError, match="No such file"):
        publish(Group({}, {}), tmp_path / "none" / "refs.json")


def test_urls(file):
    fsspec = pytest.importorskip("fsspec")
    x = virtual(file, VALUES, (2, 7), [LITTLE, ZLIB])
    report = publish(Group({}, {"x": x}), "memory://folder/refs.json")
    assert "this machine" in report.notes[-1]
    assert np.array_equal(scan("memory://folder/refs.json", allowed="*")["x"][...], VALUES)
    report = publish(
        Group({}, {"x": odd_array(file, DECODERS[0])}),
        "memory://folder/refs.json",
        copy=True,
    )
    assert report.copied_to.startswith("memory://folder/refs.")
    assert "fs=" in report.notes[0]
    assert np.array_equal(scan("memory://folder/refs.json", allowed="*")["x"][...], VALUES)
    fsspec.filesystem("memory").rm("/folder", recursive=True)


def test_names_that_are_reserved(file, target):
    for name in (".zarray", "zarr.json", "..", "__x"):
        with pytest.raises(PublishError):
            publish(Group({}, {name: virtual(file, VALUES, (2, 3))}), target, zarr_format=3)
    for name in (".zarray", ".."):
        with pytest.raises(PublishError):
            publish(Group({}, {name: virtual(file, VALUES, (2, 3))}), target)


def test_attributes_that_are_no_json(target):
    with pytest.raises(PublishError, match="JSON"):
        publish(Group({"a": object()}, {}), target)


def test_formats(target):
    with pytest.raises(ValueError, match="zarr_format"):
        publish(Group(), target, zarr_format=1)


@pytest.mark.parametrize("zarr_format", [2, 3])
@pytest.mark.parametrize("separator", [".", "/"])
@pytest.mark.parametrize("name", ["v2", "default"])
def test_stored_arrays_are_referred_to_object_by_object(
    tmp_path, target, name, separator, zarr_format
):
    encoding = KeyEncoding(name, separator)
    folder = tmp_path / "store" / "a"
    x = virtual(tmp_path / "unused", VALUES, (2, 3), [LITTLE, ZLIB], fill_value=0)
    for cell in np.ndindex(3, 3):
        if cell != (1, 1):
            chunk = folder / encoding.key(cell)
            chunk.parent.mkdir(parents=True, exist_ok=True)
            chunk.write_bytes(encoded(x.metadata, x.metadata.pipeline, VALUES, cell))
    (folder / encoding.key((7, 7))).parent.mkdir(parents=True, exist_ok=True)
    (folder / encoding.key((7, 7))).write_bytes(b"left behind")
    (folder / "zarr.json").write_bytes(b"{}")
    meta = x.metadata.replace(key_encoding=encoding)
    stored = Array.from_store(meta, open_store(tmp_path / "store"), "a")
    report = assert_round_trip(Group({}, {"a": stored}), target, zarr_format=zarr_format)
    assert report.references == 8 + report.inlined
    assert json.loads(target.read_text())["refs"]["a/c/0/0" if zarr_format == 3 else "a/0.0"] == [
        f"{tmp_path}/store/a/{encoding.key((0, 0))}"
    ]


def test_group_method_and_progress(file, target, capsys):
    pytest.importorskip("tqdm")
    report = Group({}, {"x": virtual(file, VALUES, (2, 3))}).publish(target, progress=True)
    assert report.references == 9
    assert "9/9" in capsys.readouterr().err


class TestLossyCodecs:
    """Copying must not go through codecs that change the elements."""

    JPEG = ({"name": "imagecodecs_jpeg", "configuration": {"level": 50}},)

    def array(self, file, missing=()):
        pytest.importorskip("imagecodecs")
        values = np.random.default_rng(0).integers(0, 255, (32, 32), "u1")
        try:
            return virtual(file, values, (16, 32), list(self.JPEG), missing=missing, fill_value=7)
        except UnsupportedError:
            pytest.skip("this imagecodecs has no JPEG encoder")

    def test_all_chunks_are_stored_anew_without_loss(self, file, target):
        x = self.array(file)
        refs = [append(Path(x.manifest.sources[0].uri), bytes(range(256)) * 2)]
        odd = with_decoder(x, [(1, 0)], Decoder(Pipeline([{"name": "bytes"}])), refs)
        report = assert_round_trip(Group({}, {"x": odd}), target, copy=True)
        assert report.copied == 2
        assert "jpeg" not in str(json.loads(target.read_text())["refs"])

    def test_missing_chunks_are_not_made_of_lossy_ones(self, file, target):
        x = self.array(file, missing=((1, 0),))
        report = assert_round_trip(Group({}, {"x": x}), target, plugin_codecs=True)
        assert (report.zarr_format, report.references) in [(2, 2), (3, 1)]
        if report.zarr_format == 2:
            assert (scan(target)["x"][16:] == 7).all()


def test_documents_that_would_be_read_otherwise_are_not_written(file, target, monkeypatch):
    x = virtual(file, VALUES, (2, 3), [LITTLE, ZLIB])
    monkeypatch.setattr(
        "virtualzarr.references.portable.parse_array_v2",
        lambda *documents: x.metadata.replace(pipeline=Pipeline([LITTLE])),
    )
    assert publish(Group({}, {"x": x}), target).zarr_format == 3
    with pytest.raises(PublishError, match="exactly"):
        publish(Group({}, {"x": x}), target, zarr_format=2)


@pytest.mark.parametrize("form", ["json", "parquet"])
def test_codecs_of_our_own_are_not_declared_where_nothing_is_stored(form, tmp_path):
    parts = [
        Array.from_manifest(
            ArrayMetadata((2,), np.dtype("i2"), RectilinearGrid((2,), [[2]]), Pipeline([LITTLE]), 0,
                          attributes={"scale_factor": scale}),
            Manifest.missing((1,)),
        )
        for scale in (0.5, 2.0)
    ]  # fmt: skip
    joined = vz.concat(parts, harmonize=True)
    publish(Group({}, {"a": joined}), tmp_path / "refs", reference_format=form)
    again = vz.open(tmp_path / "refs")["a"]
    assert not any(codec.name.startswith("virtualzarr") for codec in again.metadata.pipeline.codecs)
    assert again[...].tolist() == [0.0] * 4


STRUCTURED = np.array([(1, b"x", 1.5, 2), (-2, b"yz", 2.0, 3)],
                      [("a", ">i4"), ("b", "S3"), ("c", ">f8"), ("d", "u1")])  # fmt: skip


@pytest.mark.parametrize("copy", [False, True])
@pytest.mark.parametrize("zarr_format", [2, 3])
def test_structured_elements_of_big_endian_fields(tmp_path, copy, zarr_format):
    fits = pytest.importorskip("astropy.io.fits")
    fits.BinTableHDU(STRUCTURED, name="T").writeto(tmp_path / "a.fits")
    group = vz.open(tmp_path / "a.fits")
    report = group.publish(tmp_path / "a.json", copy=copy, zarr_format=zarr_format)
    assert report.copied == 0
    assert vz.open(tmp_path / "a.json")["T/data"][...].tolist() == STRUCTURED.tolist()
    group.publish(tmp_path / "a.zarr")
    assert vz.open(tmp_path / "a.zarr")["T/data"][...].tolist() == STRUCTURED.tolist()


def test_structured_elements_of_both_byte_orders_are_copied(tmp_path):
    values = np.array([(1, 1.5), (-2, 2.0)], [("a", "<i4"), ("b", ">f8")])
    np.save(tmp_path / "a.npy", values)
    group = vz.open(tmp_path / "a.npy")
    with pytest.raises(PublishError, match="both byte orders"):
        group.publish(tmp_path / "a.json", zarr_format=3)
    assert group.publish(tmp_path / "a.json", zarr_format=3, copy=True).copied == 1
    assert vz.open(tmp_path / "a.json")["data"][...].tolist() == values.tolist()


def test_what_copies_in_v2_cannot_say_is_said_in_v3(tmp_path):
    import imagecodecs

    from tests.formats.tiff.rawtiff import Page, write

    data = (np.arange(20 * 32) % 7).astype("u1").reshape(20, 32)
    strips = [imagecodecs.zlib_encode(data[i : i + 8].tobytes()) for i in (0, 8, 16)]
    strips = [imagecodecs.bitorder_encode(strip) for strip in strips]
    tags = {256: 32, 257: 20, 258: (3, [8]), 259: 8, 262: 1, 277: 1, 278: (4, [8]), 266: 2}
    write(tmp_path / "a.tif", [Page(tags, strips)])
    group = vz.open(tmp_path / "a.tif")
    report = group.publish(tmp_path / "a.json", copy=True)
    assert (report.zarr_format, report.copied) == (3, 3)
    assert "chunks of one shape" in report.why_v3[0]
    np.testing.assert_array_equal(vz.open(tmp_path / "a.json")["0"][...], data)
    with pytest.raises(PublishError, match="chunks of one shape"):
        group.publish(tmp_path / "a.json", zarr_format=2)
    assert group.publish(tmp_path / "b.json", copy=True, zarr_format=2).zarr_format == 2
    np.testing.assert_array_equal(vz.open(tmp_path / "b.json")["0"][...], data)


@pytest.mark.parametrize("name", ["a.json", "a.parq", "a.icechunk", "a.zarr"])
@pytest.mark.parametrize("compressors", ["auto", None])
def test_arrays_in_memory_are_published_with_their_chunks(tmp_path, name, compressors):
    values = np.arange(35, dtype="f4").reshape(5, 7)
    group = vz.create_group({}, attributes={"title": "mine"})
    options = {"chunks": (2, 3), "compressors": compressors, "fill_value": -1}
    group.create_array("x", data=values, dimension_names=("y", "x"), **options)
    group.create_array("empty", shape=(5,), dtype="i2", chunks=(5,), dimension_names=("y",))
    if name != "a.zarr":
        assert preview(group, tmp_path / name).copied == 0
    report = group.publish(tmp_path / name)
    assert report.references >= 9
    assert report.copied == 0
    if name.endswith("icechunk"):
        icechunk = pytest.importorskip("icechunk")
        store = icechunk.Repository.open(
            icechunk.local_filesystem_storage(str(tmp_path / name))
        ).readonly_session("main").store  # fmt: skip
        found = pytest.importorskip("zarr").open_group(store, mode="r")
    else:
        found = vz.open(tmp_path / name)
    np.testing.assert_array_equal(found["x"][...], values)


@pytest.mark.parametrize("name", ["a.json", "a.parq", "a.icechunk"])
@pytest.mark.parametrize("compressors", ["auto", None])
def test_large_arrays_in_memory_are_copied_if_that_is_asked(
    tmp_path, name, compressors, monkeypatch
):
    monkeypatch.setattr(vz.config, "inline_bytes", 100)
    values = np.random.default_rng(0).integers(0, 1 << 30, 100)
    x = vz.create_array({}, data=values, chunks=(30,), compressors=compressors)
    group = Group({}, {"x": x, "small": vz.create_array({}, data=np.arange(3), chunks=(3,))})
    if name == "a.icechunk":  # which stores chunks as any store does
        assert group.publish(tmp_path / name).arrays == 2
        return
    with pytest.raises(PublishError, match=r"x: .* bytes; .* at most 100 .*copy=True"):
        group.publish(tmp_path / name)
    report = group.publish(tmp_path / name, copy=True)
    assert (report.copied, report.inlined) == (4, 1)
    assert vz.open(tmp_path / name)["x"][...].tolist() == values.tolist()
    assert vz.open(tmp_path / name)["small"][...].tolist() == [0, 1, 2]


@pytest.mark.parametrize("name", ["a.parq", "a.icechunk", "a.json"])
def test_forms_that_hold_chunks_of_several_shapes_are_named(tmp_path, name):
    parts = [
        vz.create_array(tmp_path / f"{n}.zarr", data=np.arange(n), chunks=4) for n in (8, 6, 5)
    ]
    group = Group({}, {"x": vz.concat(parts), "y": vz.concat(parts)})
    options = {"zarr_format": 2} if name == "a.json" else {}
    with pytest.raises(PublishError) as caught:
        group.publish(tmp_path / name, **options)
    text = str(caught.value)
    assert text.startswith("2 arrays cannot be published: x, y: chunks have several shapes")
    for remedy in ("JSON of Zarr v3", "native form", "copy(chunks=...)", "copy=True"):
        assert text.count(remedy) == 1
    # What is said there holds.
    for other in ("b.json", "b.zarr"):
        group.publish(tmp_path / other, copy=True)
        assert vz.open(tmp_path / other)["x"][...].tolist() == group["x"][...].tolist()
    vz.copy(group, tmp_path / "c.zarr", chunks=4)
    assert vz.open(tmp_path / "c.zarr").publish(tmp_path / name, **options).arrays == 2


@pytest.mark.parametrize("form", ["json", "parquet", "icechunk"])
def test_chunks_that_cannot_be_copied_are_left_out(tmp_path, form):
    if form == "icechunk":
        pytest.importorskip("icechunk", minversion="2")
    import h5py

    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["good"] = np.arange(4)
        file.create_dataset("bad", data=np.arange(8), chunks=(4,), compression="gzip")
    scanned = vz.open(tmp_path / "a.h5")
    # All chunks have to be copied, and one of them is damaged.
    bad = vz.concat([scanned["bad"], scanned["bad"]], dtype="f4")
    group = vz.Group({}, {"good": scanned["good"], "bad": bad})
    raw, facts = (tmp_path / "a.h5").read_bytes(), (tmp_path / "a.h5").stat()
    start = int(scanned["bad"].manifest.offset[1])
    (tmp_path / "a.h5").write_bytes(raw[:start] + b"\xff" * 8 + raw[start + 8 :])
    os.utime(tmp_path / "a.h5", ns=(facts.st_atime_ns, facts.st_mtime_ns))
    target = tmp_path / f"refs.{form}"
    with pytest.raises(vz.errors.VirtualZarrError, match=r"variable bad"):
        group.publish(target, copy=True, reference_format=form)
    with pytest.warns(SkippedVariableWarning, match="bad: .*it was left out"):
        report = group.publish(target, copy=True, reference_format=form, on_error="warn")
    assert list(report.skipped) == ["bad"]
    assert list(vz.open(target)) == ["good"]
    assert vz.open(target)["good"][...].tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("function", [vz.publish, vz.preview])
def test_paths_are_opened_first(function, tmp_path):
    with pytest.raises(TypeError, match="give a group or an array, not str; open"):
        function("air.nc", tmp_path / "air.json")


_OPEN = """
import sys, fsspec, numpy, zarr
mapper = fsspec.get_mapper("reference://", fo=sys.argv[1], remote_protocol="file")
store = zarr.storage.FsspecStore.from_mapper(mapper, read_only=True)
group = zarr.open_group(store, mode="r")
print(sorted(group), int(sum(group[name][...].sum() for name in group)))
"""


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_groups_are_not_closed_by_codecs_that_readers_have_to_register(tmp_path, zarr_format):
    """Without them, zarr-python opens nothing of a group in references."""
    tifffile = pytest.importorskip("tifffile")
    pytest.importorskip("zarr", "3")
    values = np.ones((64, 64), "f4")
    tifffile.imwrite(tmp_path / "a.tif", values, compression="lerc", tile=(16, 16))
    image = vz.open(tmp_path / "a.tif")["0"]
    group = vz.Group({}, {"image": image, "other": vz.create_array({}, data=np.arange(4))})
    target, options = tmp_path / "a.json", {"zarr_format": zarr_format, "inline": 0}
    with pytest.raises(PublishError, match=r"no codec imagecodecs_lerc .*; plugin_codecs=True"):
        group.publish(target, **options)
    assert not target.exists()
    assert group.preview(target, **options).copied == 16

    def opened_by_others():
        command = [sys.executable, "-W", "ignore", "-c", _OPEN, str(target)]
        return subprocess.run(command, capture_output=True, text=True).stdout.strip()

    # An image alone takes nothing with it.
    alone = vz.Group({}, {"image": image}).publish(target, **options)
    assert alone.copied == 0
    assert any("imagecodecs_lerc of image" in note for note in alone.notes)
    assert group.publish(target, copy=True, **options).copied == 16
    assert opened_by_others() == "['image', 'other'] 4102"
    with pytest.warns(SkippedVariableWarning, match="image: .*imagecodecs_lerc"):
        group.publish(target, on_error="warn", **options)
    assert opened_by_others() == "['other'] 6"
    report = group.publish(target, plugin_codecs=True, **options)
    (note,) = (note for note in report.notes if "imagecodecs_lerc" in note)
    module = {2: "numcodecs", 3: "zarr"}[zarr_format]
    assert note.startswith(f"readers need imagecodecs.{module}.register_codecs() for ")
    assert "imagecodecs_lerc of image: " in note
    assert (report.copied, opened_by_others()) == (0, "")
    # What was published so stays so: nothing is read to convert it.
    assert vz.convert_references(target, tmp_path / "b.json").copied == 0
