"""DMR++ documents give what h5py reads in the files that they describe."""

from __future__ import annotations

import warnings
from xml.etree import ElementTree

import fsspec
import h5py
import numpy as np
import pytest

import virtualzarr as vz
from tests.fidelity.dmrpp import check
from tests.formats import dmrpp_writer
from tests.formats.damage import flip_everywhere, read, truncate_everywhere
from tests.formats.dmrpp_writer import HEAD
from virtualzarr.errors import (
    AccessError,
    SkippedVariableWarning,
    SourceError,
    SourceNotFoundError,
    UnsupportedError,
    VirtualZarrError,
)
from virtualzarr.formats.dmrpp import document, scan
from virtualzarr.ingest.detect import detect


@pytest.fixture
def path(tmp_path):
    return tmp_path / "a.h5"


def described(path, outcome="equal", **options):
    beside = dmrpp_writer.write(path, **options)
    with warnings.catch_warnings():
        rows = list(check(beside))
    assert rows
    assert [row for row in rows if row.outcome not in ("equal", outcome)] == []
    return vz.open(beside)


def said(path, body, **members):
    """Write a document by hand."""
    text = " ".join(f'{name}="{value}"' for name, value in members.items())
    path.write_text(f"{HEAD}{text}>{body}</Dataset>", encoding="utf-8")
    return path


@pytest.mark.parametrize("dtype", [*dmrpp_writer.NAMES, ">i2", ">f8", ">u4"])
@pytest.mark.parametrize(
    "options",
    [{}, {"chunks": (3, 4)}, {"chunks": (3, 4), "compression": 6, "shuffle": True},
     {"chunks": (7, 2), "fletcher32": True, "shuffle": True, "compression": 1}],
)  # fmt: skip
def test_numbers(path, dtype, options):
    values = np.random.default_rng(0).integers(0, 120, (7, 9)).astype(dtype)
    with h5py.File(path, "w") as file:
        file.create_dataset("a", data=values, **options)
        file.create_dataset("scalar", data=values[1, 2])
    group = described(path)
    assert group["a"].dtype == values.dtype.newbyteorder("=")
    assert np.array_equal(group["a"][2:5, ::2], values[2:5, ::2])
    assert group["a"].dims == (None, None)


def test_groups_dimensions_and_attributes(path):
    with h5py.File(path, "w") as file:
        file.attrs["title"] = "x < y & z"
        file["x"] = np.arange(3, dtype="f4")
        file["x"].make_scale("x")
        inner = file.create_group("in/ner")
        inner["y"] = np.arange(4, dtype="i2")
        inner["y"].make_scale("y")
        inner["v"] = np.arange(12).reshape(4, 3)
        inner["v"].dims[0].attach_scale(inner["y"])
        inner["v"].dims[1].attach_scale(file["x"])
        inner["v"].attrs["scale_factor"] = np.float32(0.1)
        inner["v"].attrs["range"] = np.array([1, 2], "i2")
        inner["v"].attrs["units"] = "K"
    group = described(path)
    assert group.attrs["title"] == "x < y & z"
    assert list(group["in/ner"]) == ["v", "y"]
    array = group["in/ner/v"]
    assert array.dims == ("y", "x")
    assert array.attrs == {"scale_factor": np.float32(0.1), "range": [1, 2], "units": "K"}
    assert array.attrs["scale_factor"].dtype == np.float32


def test_containers_are_objects(tmp_path):
    body = """
      <Attribute name="made" type="Container">
        <Attribute name="by" type="String"><Value>us</Value><Value/></Attribute>
        <Attribute name="with" type="Container">
          <Attribute name="n" type="Int8" value="3"/></Attribute>
        <Attribute name="empty" type="Float32"/>
      </Attribute>
      <Attribute name="big" type="UInt64"><Value>18446744073709551615</Value></Attribute>"""
    group = scan(said(tmp_path / "a.dmrpp", body))
    assert group.attrs == {
        "made": {"by": ["us", ""], "with": {"n": 3}, "empty": []},
        "big": 2**64 - 1,
    }


def test_texts(path):
    fixed = np.array([b"ab", b"c\0d", b"", b" e "], "S5").reshape(2, 2)
    with h5py.File(path, "w") as file:
        file["null_pad"] = fixed
        for name, pad in (("null_term", h5py.h5t.STR_NULLTERM), ("space", h5py.h5t.STR_SPACEPAD)):
            kind = h5py.h5t.C_S1.copy()
            kind.set_size(5)
            kind.set_strpad(pad)
            space = h5py.h5s.create_simple((2, 2))
            made = h5py.h5d.create(file.id, name.encode(), kind, space)
            raw = (
                fixed
                if name == "null_term"
                else np.char.ljust(np.char.replace(fixed, b"\0", b"x"), 5)
            )
            made.write(h5py.h5s.ALL, h5py.h5s.ALL, np.ascontiguousarray(raw), mtype=kind)
        file["long"] = np.array(["x" * 100, "ä", "ä", ""], object)
        file["one"] = np.array(["word"], object)
    group = described(path, outcome="inlined")
    assert group["long"][...].tolist() == ["x" * 100, "ä", "ä", ""]


def test_repeated_texts_and_scalars(tmp_path):
    body = """<String name="s"><Dim size="4"/>
      <dmrpp:vlsa><v c="3">a</v><v>b</v></dmrpp:vlsa></String>
      <String name="t"><dmrpp:compact>YWJj</dmrpp:compact></String>
      <Int32 name="n"><Dim size="1"/><dmrpp:missingdata>AQAAAA==</dmrpp:missingdata></Int32>
      <Int32 name="nothing"><Dim size="0"/></Int32>"""
    group = scan(said(tmp_path / "a.dmrpp", body))
    assert group["s"][...].tolist() == ["a", "a", "a", "b"]
    assert group["t"][()] == "abc"
    assert group["n"][...].tolist() == [1]
    assert group["nothing"].shape == (0,)


def test_scalar_text_of_fixed_length(path):
    with h5py.File(path, "w") as file:
        file["s"] = np.bytes_(b"hello")
        offset = file["s"].id.get_offset()
    body = f"""<String name="s"><dmrpp:chunks><dmrpp:chunk offset="{offset}" nBytes="5"/>
      </dmrpp:chunks></String>"""
    assert scan(said(path.with_name("a.h5.dmrpp"), body))["s"][()] == b"hello"


def test_values_in_the_document(path):
    values = np.arange(300, dtype=">i4").reshape(20, 15)
    with h5py.File(path, "w") as file:
        file["m"] = values
        plist = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        plist.set_layout(h5py.h5d.COMPACT)
        space = h5py.h5s.create_simple((5,))
        made = h5py.h5d.create(file.id, b"c", h5py.h5t.IEEE_F32BE, space, plist)
        made.write(h5py.h5s.ALL, h5py.h5s.ALL, np.linspace(0, 1, 5, dtype="f4"))
    described(path, outcome="inlined", missing=("/m",))


def test_structures(path):
    aligned = np.dtype({"names": ["a", "b", "c"], "formats": ["f8", "i2", ("f4", (2,))],
                        "offsets": [0, 8, 12], "itemsize": 24})  # fmt: skip
    packed = np.dtype([("a", ">i4"), ("b", ">f4")])
    values = np.zeros(6, aligned)
    values["a"], values["b"], values["c"] = np.arange(6), np.arange(6), np.arange(12).reshape(6, 2)
    with h5py.File(path, "w") as file:
        file.create_dataset("aligned", data=values, chunks=(4,), compression=1, shuffle=True)
        file["packed"] = values.astype([("a", ">i4"), ("b", ">f4"), ("c", "V8")])[
            ["a", "b"]
        ].astype(packed)
        file.create_dataset("empty", (5,), aligned, chunks=(2,))
    group = described(path)
    assert group["aligned"][4]["c"].tolist() == [8.0, 9.0]


def test_fill_values_of_structures(tmp_path):
    body = """<Structure name="s"><Float32 name="a"/><Int16 name="b"><Dim size="2"/></Int16>
      <Dim size="3"/><dmrpp:chunks fillValue="-9.5 7 8"/></Structure>"""
    values = scan(said(tmp_path / "a.dmrpp", body))["s"][...]
    assert values["a"].tolist() == [-9.5] * 3
    assert values["b"].tolist() == [[7, 8]] * 3


@pytest.mark.parametrize("dtype", ["i2", "f4", "f8", "u8", "S3"])
def test_chunks_that_are_not_stored(path, dtype):
    fill = {"i2": -99, "f4": np.float32(-9999.9), "f8": 1e20, "u8": 2**64 - 1, "S3": b"ab"}[dtype]
    with h5py.File(path, "w") as file:
        part = file.create_dataset("part", (7, 9), dtype, chunks=(3, 4), fillvalue=fill)
        part[4:6, 1:6] = np.ones((), dtype)
        file.create_dataset("none", (4,), dtype, chunks=(3,), fillvalue=fill)
        file.create_dataset("contiguous", (4,), dtype, fillvalue=fill)
    group = described(path)
    assert group["none"].manifest.nrefs == 0
    assert group["part"].manifest.nrefs == 2


def test_fill_values_are_written_with_six_digits(path):
    netcdf = 9.969209968386869e36
    with h5py.File(path, "w") as file:
        file.create_dataset("f", (4,), "f4", chunks=(3,), fillvalue=netcdf)
        file.create_dataset("d", (4,), "f8", chunks=(3,), fillvalue=netcdf)
        third = file.create_dataset("third", (4,), "f8", chunks=(3,), fillvalue=1 / 3)
        third.attrs["_FillValue"] = 1 / 3
    described(path)


def test_chunks_that_skipped_filters(path):
    values = np.arange(40, dtype="i4")
    with h5py.File(path, "w") as file:
        dataset = file.create_dataset("a", (40,), "i4", chunks=(10,), shuffle=True, compression=4)
        dataset[:20] = values[:20]
        dataset.id.write_direct_chunk((20,), values[20:30].tobytes(), 0b11)
        shuffled = values[30:].view("u1").reshape(10, 4).T.tobytes()
        dataset.id.write_direct_chunk((30,), shuffled, 0b10)
    array = described(path)["a"]
    assert np.array_equal(array[...], values)
    assert len(array.manifest.decoders) == 2


@pytest.mark.parametrize("order", ["deflate shuffle", "shuffle deflate"])
def test_old_documents_name_filters_in_any_order(path, order):
    values = np.arange(40, dtype="i4")
    with h5py.File(path, "w") as file:
        file.create_dataset("a", data=values, chunks=(20,), shuffle=True, compression=4)
    beside = dmrpp_writer.write(path)
    text = (
        beside.read_text().replace("shuffle deflate", order).replace(' dmrpp:version="3.21.1"', "")
    )
    beside.write_text(text)
    assert np.array_equal(scan(beside)["a"][...], values)


# -- where the values are -------------------------------------------------------------------------


VALUES = np.arange(6, dtype="i2")
PART = """<Int16 name="a"><Dim size="6"/><dmrpp:chunks>
  <dmrpp:chunk offset="4" nBytes="12"/></dmrpp:chunks></Int16>"""


BLOCKS = """<Int16 name="a"><Dim size="3"/><Dim size="2"/><dmrpp:chunks>
  <dmrpp:block offset="4" nBytes="{}"/>
  <dmrpp:block offset="12" nBytes="{}"/></dmrpp:chunks></Int16>"""


@pytest.fixture
def raw(tmp_path):
    folder = tmp_path / "files"
    folder.mkdir()
    (folder / "v.bin").write_bytes(b"head" + VALUES.tobytes())
    return folder / "v.bin"


@pytest.mark.parametrize(
    ("called", "members"),
    [("v.bin.dmrpp", {}), ("other.dmrpp", {"name": "v.bin"}),
     ("other.dmrpp", {"name": "../x/v.bin"}),
     ("other.dmrpp", {"name": "gone", "dmrpp:href": "v.bin"}),
     ("v.bin.dmrpp", {"dmrpp:href": "https://example.org/v.bin"})],
)  # fmt: skip
def test_the_file_is_beside_the_document_or_where_it_says(raw, called, members):
    array = scan(said(raw.with_name(called), PART, **members))["a"]
    assert np.array_equal(array[...], VALUES)


def test_chunks_in_other_files(raw):
    (raw.with_name("w.bin")).write_bytes(VALUES[3:].tobytes())
    body = """<Int16 name="a"><Dim size="6"/><dmrpp:chunks>
      <dmrpp:chunkDimensionSizes>3</dmrpp:chunkDimensionSizes>
      <dmrpp:chunk offset="4" nBytes="6" chunkPositionInArray="[0]"/>
      <dmrpp:chunk offset="0" nBytes="6" chunkPositionInArray="[3]" href="w.bin"/>
      </dmrpp:chunks></Int16>"""
    assert np.array_equal(scan(said(raw.with_name("v.bin.dmrpp"), body))["a"][...], VALUES)


def test_arrays_in_several_blocks(raw):
    for second in (4, 6, 400):
        array = scan(said(raw.with_name("v.bin.dmrpp"), BLOCKS.format(8, second)))["a"]
        assert array.grid.grid_shape == (2, 1)
        assert np.array_equal(array[...], VALUES.reshape(3, 2))
        assert array[2].tolist() == [4, 5]
    for sizes in ((8, 2), (12, 4), (4, 4)):
        with pytest.raises(SourceError, match="blocks of"):
            scan(said(raw.with_name("v.bin.dmrpp"), BLOCKS.format(*sizes)))


def test_what_may_be_reached(raw, tmp_path):
    beside = said(raw.with_name("v.bin.dmrpp"), PART)
    assert np.array_equal(scan(beside, allowed=raw.parent)["a"][...], VALUES)
    with pytest.raises(AccessError):
        scan(beside, allowed=tmp_path / "elsewhere")
    away = said(tmp_path / "other.dmrpp", PART, **{"dmrpp:href": f"file://{raw}"})
    assert np.array_equal(scan(away)["a"][...], VALUES)
    with pytest.raises(AccessError):
        vz.open(away, allowed=tmp_path / "other")
    memory = fsspec.filesystem("memory")
    memory.pipe_file("/d/v.bin.dmrpp", beside.read_bytes())
    memory.pipe_file("/d/v.bin", raw.read_bytes())
    assert np.array_equal(vz.open("memory://d/v.bin.dmrpp")["a"][...], VALUES)
    memory.pipe_file("/d/other.dmrpp", away.read_bytes())
    with pytest.raises(AccessError, match="local file"):
        scan("memory://d/other.dmrpp")


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(SourceNotFoundError, match=r"a\.h5"):
        scan(said(tmp_path / "a.h5.dmrpp", PART))


# -- what is wrong, or not known ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "words"),
    [(PART.replace("chunks>", 'chunks compressionType="deflate szip">', 1), "szip"),
     (PART.replace("chunks>", 'chunks LBChunk="true">', 1), "blocks"),
     (BLOCKS.format(7, 5), "whole rows"),
     (BLOCKS.format(8, 4).replace("<Dim", "<No"), "scalars"),
     (BLOCKS.format(8, 4).replace("chunks>", 'chunks compressionType="deflate">', 1), "compressed"),
     ('<Int16 name="a"><Dim size="6"/></Int16>', "where the values are"),
     ('<Int16 name="a"><Dim size="6"/><dmrpp:chunks/></Int16>', "read as"),
     ('<String name="a"><Dim size="6"/><dmrpp:chunks fillValue=""/></String>', "variable length"),
     ('<Sequence name="a"><Dim size="6"/><dmrpp:chunks fillValue=""/></Sequence>', "Sequence"),
     ('<Structure name="a"><String name="s"/><dmrpp:chunks/></Structure>', "String"),
     ('<Structure name="a"><dmrpp:specialstructuredata/></Structure>', "texts")],
)  # fmt: skip
def test_what_is_refused_by_name(raw, body, words):
    beside = said(raw.with_name("v.bin.dmrpp"), body)
    with pytest.raises(UnsupportedError, match=words):
        scan(beside)
    with pytest.warns(SkippedVariableWarning, match=words):
        assert words in scan(beside, on_error="warn").skipped["a"]


GRID = """<Int16 name="a"><Dim size="6"/><dmrpp:chunks fillValue="0">
  <dmrpp:chunkDimensionSizes>{}</dmrpp:chunkDimensionSizes>{}</dmrpp:chunks></Int16>"""
LIST = '<String name="a"><Dim size="1"/><dmrpp:vlsa><v {}>{}</v></dmrpp:vlsa></String>'
CHUNK = '<dmrpp:chunk offset="{}" nBytes="6" chunkPositionInArray="{}"/>'


@pytest.mark.parametrize(
    ("body", "words"),
    [(GRID.format("3", CHUNK.format(4, "[1]")), "is at"),
     (GRID.format("3", CHUNK.format(4, "[6]")), "is at"),
     (GRID.format("3", CHUNK.format(4, "[0,0]")), "axes"),
     (GRID.format("3", CHUNK.format(4, "x")), "axes"),
     (GRID.format("3", 2 * CHUNK.format(4, "[0]")), "two chunks"),
     (GRID.format("3", 2 * CHUNK.format(10**19, "[0]")), "offset"),
     (GRID.format("0", ""), "chunks of"),
     (GRID.format("3 3", ""), "chunks of"), (GRID.format("3", CHUNK.format(-4, "[0]")), "offset"),
     (GRID.format("3", CHUNK.format(5000, "[0]")), "ends at"),
     (GRID.format("3", CHUNK.format(9 * 10**18, "[0]")), "offset"),
     (GRID.format("3", 2 * CHUNK.format(10**17, "[0]")), "two chunks|ends at"),
     (GRID.format("3", CHUNK.format("", "[0]")), "offset"),
     ('<Int16 name="a"><Dim name="/x"/></Int16>', "dimension"),
     ('<Int16 name="a"><Dim size="9999999999999999999"/></Int16>', "says"),
     (3 * '<Int16 name="a"><Dim size="0"/></Int16>', "two members"),
     ('<Int16 name=""><Dim size="0"/></Int16>', "name"),
     ('<Int16 name="a/b"><Dim size="0"/></Int16>', "name"),
     ('<Enum name="a" enum="/e"><Dim size="0"/></Enum>', "enumeration"),
     ('<Int16 name="a"><dmrpp:compact>!</dmrpp:compact></Int16>', "base64"),
     ('<Int16 name="a"><dmrpp:compact>YWFh</dmrpp:compact></Int16>', "3 bytes"),
     (LIST.format('c="999999999999"', "x"), "texts"),
     (LIST.format('s="9"', "eJwDAAAAAAE="), "9 bytes"),
     ('<Int8 name="a"><Attribute name="n" type="Int8" value="300"/></Int8>', "'n'"),
     ('<Int8 name="a"><Dim size="3"/><dmrpp:chunks fillValue="x"/></Int8>', "fill value")],
)  # fmt: skip
def test_what_is_wrong(raw, body, words):
    with pytest.raises(VirtualZarrError, match=words) as caught:
        scan(said(raw.with_name("v.bin.dmrpp"), body))
    assert "v.bin.dmrpp" in str(caught.value)


def test_absurdly_sparse_variables_are_refused(raw):
    body = GRID.format("1", CHUNK.format(4, "[5]")).replace('"6"', '"99999999"', 1)
    with pytest.raises(UnsupportedError, match="99999999 chunks"):
        scan(said(raw.with_name("v.bin.dmrpp"), body))


@pytest.mark.parametrize(
    ("text", "words"),
    [("<Dataset>", "no XML"), ("<x/>", "no DMR"), ("", "no XML"),
     ('<!DOCTYPE d [<!ENTITY a "b"><!ENTITY c "&a;&a;">]><Dataset>&c;</Dataset>', "document type"),
     (HEAD + ">" + '<Group name="g">' * 70 + "</Group>" * 70 + "</Dataset>", "within each other")],
)  # fmt: skip
def test_hostile_documents(tmp_path, text, words):
    (tmp_path / "a.dmrpp").write_text(text)
    with pytest.raises(VirtualZarrError, match=words):
        scan(tmp_path / "a.dmrpp")


def test_damage(path):
    with h5py.File(path, "w") as file:
        file.create_dataset("a", data=np.arange(40, dtype="i2"), chunks=(10,), compression=4)
        file["s"] = np.array(["x", "y"], object)
    beside = dmrpp_writer.write(path)
    size = len(beside.read_bytes().rstrip())
    truncate_everywhere(beside, scan, size, step=31)
    flip_everywhere(beside, scan, size, step=5)


# -- many chunks ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("style", "runs"),
    [('<dmrpp:chunk offset="{0}" nBytes="{1}" chunkPositionInArray="[{2},{3}]"/>\n', 2),
     ('<dmrpp:chunk chunkPositionInArray="[{2},{3}]" nBytes="{1}" offset="{0}" />', 2),
     ('<dmrpp:chunk offset="{0}" nBytes="{1}" chunkPositionInArray="[{2},{3}]" fm="0"/>', 2),
     ("<dmrpp:chunk offset='{0}' nBytes=\"{1}\" chunkPositionInArray=\"[{2},{3}]\"/>", 0),
     ('<dmrpp:chunk offset="{0}" nBytes="{1}" chunkPositionInArray="[{2}, {3}]"/>', 0)],
)  # fmt: skip
def test_runs_of_chunks_are_those_of_the_parser(raw, monkeypatch, style, runs):
    chunks = [
        (4 + k % 7, 2, k // 9 * 2, k % 9) for k in np.random.default_rng(0).permutation(90).tolist()
    ]
    lines = [style.format(*chunk) for chunk in chunks]
    lines.insert(50, f"<!-- -->{CHUNK.format(4, '[20,0]').replace('6', '2')}<!-- -->")
    body = f"""<Int16 name="a"><Dim size="24"/><Dim size="9"/><dmrpp:chunks fillValue="0">
      <dmrpp:chunkDimensionSizes>2 1</dmrpp:chunkDimensionSizes>
      {"".join(lines)}</dmrpp:chunks></Int16>"""
    beside = said(raw.with_name("v.bin.dmrpp"), body)
    assert len(document.Document(beside.read_bytes())._runs) == runs
    found = scan(beside)["a"].manifest
    monkeypatch.setattr(document.Document, "_cut", lambda self, match: match[0])
    assert found == scan(beside)["a"].manifest
    assert found.nrefs == 91
    for offset, _, y, x in chunks:
        assert found.offset[y // 2, x] == offset


def test_runs_in_comments_and_texts_are_none(raw):
    run = 3 * CHUNK.format(4, "[0]")
    text = PART + f"<!-- {run} --><Attribute name='n'><Value><![CDATA[{run}]]></Value></Attribute>"
    group = scan(said(raw.with_name("v.bin.dmrpp"), text))
    assert np.array_equal(group["a"][...], VALUES)


def test_another_prefix(raw):
    text = HEAD.replace("xmlns:dmrpp", "xmlns:d") + ">" + PART.replace("dmrpp:", "d:")
    raw.with_name("v.bin.dmrpp").write_text(f"{text}</Dataset>")
    assert np.array_equal(scan(raw.with_name("v.bin.dmrpp"))["a"][...], VALUES)


def test_documents_are_told_by_content(path):
    with h5py.File(path, "w") as file:
        file["a"] = np.arange(3)
    beside = dmrpp_writer.write(path)
    other = beside.rename(path.with_name("a.xml"))
    assert detect(other) == "dmrpp"
    assert vz.open(other)["a"][...].tolist() == [0, 1, 2]
    assert read(vz.virtualize(other))["a"].tolist() == [0, 1, 2]


def test_our_reader_of_hdf5_finds_the_same_chunks(path):
    with h5py.File(path, "w") as file:
        values = np.random.default_rng(1).integers(0, 9, (50, 60))
        file.create_dataset("a", data=values, chunks=(7, 8), compression=1, maxshape=(None, 60))
        file.create_dataset("b", data=values, chunks=(7, 8), maxshape=(None, None))
    documented, ours = described(path), vz.open(path)
    for name in ("a", "b"):
        a, b = documented[name].manifest, ours[name].manifest
        assert np.array_equal(a.offset, b.offset)
        assert np.array_equal(a.length, b.length)


def test_groups_that_are_refused(raw):
    body = f'<Group name="g">{PART}<Int16 name="b"><Dim name="/q"/></Int16></Group>'
    with pytest.warns(SkippedVariableWarning, match="dimension"):
        group = scan(said(raw.with_name("v.bin.dmrpp"), body), on_error="warn")
    assert list(group["g"]) == ["a"]
    assert list(group.skipped) == ["g/b"]
    with pytest.raises(SourceError, match="variable g/b"):
        scan(raw.with_name("v.bin.dmrpp"))


@pytest.mark.interop
def test_virtualizarr_finds_the_same_chunks(path):
    parsers = pytest.importorskip("virtualizarr.parsers.dmrpp")
    values = np.random.default_rng(1).integers(0, 9, (50, 60))
    with h5py.File(path, "w") as file:
        file.create_dataset("a", data=values, chunks=(7, 8), compression=1, shuffle=True)
    beside = dmrpp_writer.write(path)
    root = ElementTree.parse(beside).getroot()
    parsed = parsers.DMRParser(root, data_filepath=f"file://{path}")
    (tag,) = (element for element in root if element.tag.endswith("Int64"))
    theirs = parsed._parse_variable(tag).manifest.dict()
    ours = scan(beside)["a"].manifest
    assert len(theirs) == ours.ncells
    for key, chunk in theirs.items():
        cell = tuple(map(int, key.split(".")))
        assert (chunk["offset"], chunk["length"]) == (ours.offset[cell], ours.length[cell])
