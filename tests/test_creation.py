"""Making arrays, and opening them with demands on what they are."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import virtualzarr as vz
from grids import RegularGrid
from virtualzarr.codecs import make
from virtualzarr.errors import (
    AccessError,
    MetadataError,
    MismatchError,
    NodeExistsError,
    NodeNotFoundError,
    UnsupportedError,
)
from virtualzarr.metadata.new import Wishes, differences, new_array

BYTES = {"name": "bytes", "configuration": {"endian": "little"}}
ZSTD = {"name": "zstd", "configuration": {"level": 0, "checksum": False}}


def document(store, key="zarr.json"):
    return json.loads(store[key])


class TestDefaults:
    def test_v3(self):
        store = {}
        array = vz.create_array(store, shape=(10, 20), dtype="f4")
        assert document(store) == {
            "zarr_format": 3,
            "node_type": "array",
            "shape": [10, 20],
            "data_type": "float32",
            "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [10, 20]}},
            "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
            "fill_value": 0.0,
            "codecs": [BYTES, ZSTD],
            "attributes": {},
            "storage_transformers": [],
        }
        assert array[3, 4] == 0

    def test_v2(self):
        store = {}
        vz.create_array(store, shape=(10, 20), dtype=">f4", zarr_format=2)
        assert document(store, ".zarray") == {
            "zarr_format": 2,
            "shape": [10, 20],
            "chunks": [10, 20],
            "dtype": ">f4",
            "fill_value": 0.0,
            "order": "C",
            "filters": None,
            "compressor": {"id": "zstd", "level": 0},
            "dimension_separator": ".",
        }

    @pytest.mark.parametrize("zarr_format", [2, 3])
    @pytest.mark.parametrize(
        "dtype",
        ["?", "u1", ">i2", "c16", "S3", "U4", "M8[10us]", str, [("a", "<i2"), ("b", ">f8")]],
    )
    def test_data_types(self, dtype, zarr_format):
        store = {}
        array = vz.create_array(store, shape=(3,), dtype=dtype, zarr_format=zarr_format)
        zero = np.zeros(3, np.dtype(dtype) if dtype is not str else object)
        expected = [""] * 3 if dtype is str else zero.tolist()
        if zero.dtype.kind == "M":
            expected = [None] * 3  # as numpy lists what is not a time
        assert vz.open_array(store)[:].tolist() == array[:].tolist() == expected

    @pytest.mark.parametrize("data", [np.arange(6.0).reshape(2, 3), [["a", "bc"]], 5])
    def test_data(self, data):
        store = {}
        array = vz.create_array(store, data=data)
        np.testing.assert_array_equal(array[...], data)
        assert vz.open(store).dtype == np.asarray(data).dtype

    def test_fill_of_data(self):
        array = vz.create_array({}, data=np.arange(4), dtype="f8", fill_value=np.nan)
        assert array.dtype == "f8"
        assert np.isnan(array.fill_value)
        assert array[:].tolist() == [0, 1, 2, 3]

    def test_null_fill(self):
        store = {}
        vz.create_array(store, shape=2, dtype="i4", fill_value=None, zarr_format=2)
        assert document(store, ".zarray")["fill_value"] is None
        v3 = vz.create_array({}, shape=2, dtype="i4", fill_value=None)
        assert v3.fill_value == 0


class TestChunks:
    @pytest.mark.parametrize(
        ("arguments", "chunks", "shards"),
        [
            ({}, (101, 101, 101), None),
            ({"chunks": 100}, (100, 100, 100), None),
            ({"chunks": (64, -1, "auto")}, (64, 2000, 8), None),
            ({"chunks": (None, 5, 5)}, (1000, 5, 5), None),
            ({"chunks": False}, (1000, 2000, 3000), None),
            ({"chunks": True}, (101, 101, 101), None),
            ({"chunks": RegularGrid((1000, 2000, 3000), (7, 7, 7))}, (7, 7, 7), None),
            ({"layout": {"chunk_aspect_ratio": (1, 2, 2)}}, (64, 128, 128), None),
            ({"chunks": 10, "shards": 100}, (10, 10, 10), (100, 100, 100)),
            ({"chunks": 10, "shards": 10}, (10, 10, 10), (10, 10, 10)),
            ({"shards": (200, 200, 200)}, (100, 100, 100), (200, 200, 200)),
            ({"shards": "auto"}, (101, 101, 101), (404, 404, 404)),
            (
                {"layout": {"read_chunk_elements": 1000, "write_chunk_elements": 10**5}},
                (10, 10, 10),
                (40, 40, 40),
            ),
            (
                {"chunks": (10, 500, 1000), "shards": [[100, 900], 1000, -1]},
                (10, 500, 1000),
                ((100, 900), (1000,) * 2, (3000,)),
            ),
        ],
    )
    def test_shapes(self, arguments, chunks, shards):
        array = vz.create_array({}, shape=(1000, 2000, 3000), dtype="u2", **arguments)
        assert (array.chunks, array.shards) == (chunks, shards)

    def test_variable(self):
        store = {}
        array = vz.create_array(store, shape=(60, 1000), dtype="f4", chunks=[[10, 20, 30], 512])
        assert document(store)["chunk_grid"] == {
            "name": "rectilinear",
            "configuration": {"kind": "inline", "chunk_shapes": [[10, 20, 30], 512]},
        }
        again = vz.create_array({}, shape=(60, 1000), dtype="f4", chunks=array.grid)
        assert again.grid == array.grid
        from_json = vz.create_array({}, shape=(60, 1000), dtype="f4", chunks=array.grid.to_json())
        assert from_json.grid == array.grid

    def test_chunks_within_variable_shards(self):
        array = vz.create_array({}, shape=(100, 100), dtype="u2", shards=([60, 40], 50))
        assert array.chunks == (20, 50)
        with pytest.raises(MetadataError, match=r"chunks of 20 are not a multiple of .* 30"):
            vz.create_array({}, shape=(100, 100), dtype="u2", chunks=30, shards=([60, 40], 50))

    def test_index_at_start(self):
        store = {}
        vz.create_array(
            store,
            shape=8,
            dtype="u2",
            chunks=2,
            shards={"shape": (4,), "index_location": "start"},
        )
        (codec,) = document(store)["codecs"]
        assert codec["configuration"]["index_location"] == "start"

    def test_sharding_codec_given(self):
        codec = {
            "name": "sharding_indexed",
            "configuration": {"chunk_shape": [5], "codecs": [BYTES], "index_codecs": [BYTES]},
        }
        array = vz.create_array({}, shape=100, dtype="u2", codecs=[codec], chunks=20)
        assert (array.chunks, array.shards) == ((5,), (20,))

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            ({"chunks": (5,)}, "1 entries for 2 axes"),
            ({"chunks": [[5, 4], 5]}, "axis 0"),
            ({"chunks": (0, 5)}, "0"),
            ({"chunks": "many"}, "many"),
            ({"chunks": (4, 4), "shards": (6, 8)}, "6 are not a multiple of read chunks of 4"),
            ({"chunks": (4, 4), "layout": {"chunk_shape": (5, 0)}}, "5"),
            ({"chunks": [[5, 5], 5], "shards": (10, 10)}, "only shards may differ"),
            ({"chunks": [[5, 5], 5], "layout": {"chunk_elements": 5}}, "chunk_elements"),
            ({"layout": {"chunk_sizes": 5}}, "chunk_sizes"),
        ],
    )
    def test_refused(self, arguments, message):
        store = {}
        with pytest.raises(MetadataError, match=message):
            vz.create_array(store, shape=(10, 10), dtype="u2", **arguments)
        assert store == {}

    @settings(max_examples=30, deadline=None)
    @given(
        st.lists(st.integers(0, 40), min_size=1, max_size=3),
        st.integers(10, 500),
        st.integers(10, 2000),
    )
    def test_what_is_chosen_is_what_is_read(self, shape, read, write):
        layout = vz.ChunkLayout(read_chunk_elements=read, write_chunk_elements=write)
        data = np.arange(np.prod(shape), dtype="i4").reshape(shape)
        store = {}
        vz.create_array(store, data=data, layout=layout)
        np.testing.assert_array_equal(vz.open(store)[...], data)


class TestCodecs:
    def codecs(self, **arguments):
        store = {}
        array = vz.create_array(store, data=np.arange(12.0).reshape(3, 4), **arguments)
        assert array[...].tolist() == np.arange(12.0).reshape(3, 4).tolist()
        return document(store)["codecs"]

    def test_notations(self):
        numcodecs = pytest.importorskip("numcodecs")
        gzip = {"name": "gzip", "configuration": {"level": 3}}
        for given_ in (gzip, make("gzip", level=3), {"id": "gzip", "level": 3}, [gzip]):
            assert self.codecs(compressors=given_) == [BYTES, gzip]
        assert self.codecs(compressors=numcodecs.GZip(3)) == [BYTES, gzip]
        assert self.codecs(compressors=["crc32c"]) == [BYTES, {"name": "crc32c"}]
        assert self.codecs(codecs=[BYTES, gzip]) == [BYTES, gzip]
        assert self.codecs(compressors=None) == self.codecs(compressors=[]) == [BYTES]

    def test_blosc_says_what_it_took(self):
        (_, blosc) = self.codecs(compressors={"name": "blosc", "configuration": {"cname": "zstd"}})
        assert blosc["configuration"] == {
            "cname": "zstd",
            "clevel": 5,
            "shuffle": "shuffle",
            "typesize": 8,
            "blocksize": 0,
        }

    def test_orders(self):
        transpose = {"name": "transpose", "configuration": {"order": [1, 0]}}
        assert self.codecs(order="F") == [transpose, BYTES, ZSTD]
        assert self.codecs(layout={"inner_order": (1, 0)}) == [transpose, BYTES, ZSTD]
        assert self.codecs(layout={"soft": {"inner_order": (1, 0)}}) == [transpose, BYTES, ZSTD]
        assert self.codecs(order="C") == [BYTES, ZSTD]
        (sharding,) = self.codecs(order="F", chunks=(3, 2), shards=(3, 4))
        assert sharding["configuration"]["codecs"] == [transpose, BYTES, ZSTD]

    def test_v2(self):
        store = {}
        vz.create_array(
            store,
            data=np.arange(12.0).reshape(3, 4),
            zarr_format=2,
            order="F",
            filters=[{"id": "delta", "dtype": "<f8"}, "shuffle"],
            compressors={"name": "gzip", "configuration": {"level": 1}},
            dimension_separator="/",
            chunks=(2, 2),
        )
        written = document(store, ".zarray")
        assert written["order"] == "F"
        assert written["compressor"] == {"id": "gzip", "level": 1}
        assert [f["id"] for f in written["filters"]] == ["delta", "shuffle"]
        assert "0/0" in store
        np.testing.assert_array_equal(vz.open(store)[...], np.arange(12.0).reshape(3, 4))

    @pytest.mark.parametrize(
        ("arguments", "error", "message"),
        [
            ({"compressors": "snakeoil"}, UnsupportedError, "snakeoil"),
            ({"compressors": BYTES}, MetadataError, "array to bytes"),
            ({"filters": 5}, MetadataError, r"filters\[0\]"),
            ({"serializer": None}, MetadataError, "serializer"),
            ({"codecs": [BYTES], "compressors": None}, MetadataError, "compressors"),
            ({"serializer": "vlen-utf8"}, MetadataError, "float64"),
            ({"order": "A"}, MetadataError, "order"),
            ({"order": "C", "layout": {"inner_order": (1, 0)}}, MetadataError, "inner_order"),
            (
                {
                    "order": "F",
                    "filters": {"name": "transpose", "configuration": {"order": [1, 0]}},
                },
                MetadataError,
                "transpose",
            ),
            ({"zarr_format": 2, "shards": (2, 2)}, UnsupportedError, "shards"),
            ({"zarr_format": 2, "chunks": [[1, 2], 4]}, UnsupportedError, "one shape"),
            ({"zarr_format": 2, "serializer": BYTES}, UnsupportedError, "serializer"),
            ({"zarr_format": 2, "codecs": [BYTES]}, UnsupportedError, "codecs"),
            ({"zarr_format": 2, "compressors": ["gzip", "zlib"]}, UnsupportedError, "one"),
            ({"zarr_format": 2, "chunk_key_encoding": "default"}, UnsupportedError, "v2"),
            ({"zarr_format": 4}, UnsupportedError, "zarr_format"),
            ({"fill_value": "x"}, MetadataError, "fill_value"),
            ({"dimension_names": ["x"]}, MetadataError, "dimension_names"),
            ({"attributes": {"x": object()}}, MetadataError, "x"),
            ({"dtype": object}, UnsupportedError, "objects"),
            ({"dtype": "U"}, MetadataError, "length"),
            ({"dtype": "float17"}, (MetadataError, UnsupportedError), "float17"),
            ({"shape": (-1, 4)}, MetadataError, "-1"),
            ({"shape": None}, MetadataError, "shape"),
        ],
    )
    def test_refused(self, arguments, error, message):
        store = {}
        with pytest.raises(error, match=message):
            vz.create_array(store, **{"shape": (3, 4), "dtype": "f8", **arguments})
        assert store == {}

    def test_three_axes_in_v2(self):
        arguments = {"shape": (2, 3, 4), "dtype": "f8", "zarr_format": 2}
        with pytest.raises(UnsupportedError, match="inner_order"):
            vz.create_array({}, layout={"inner_order": (2, 0, 1)}, **arguments)
        store = {}
        vz.create_array(store, layout={"soft": {"inner_order": (2, 0, 1)}}, **arguments)
        assert document(store, ".zarray")["order"] == "C"


class TestNames:
    def test_key_encodings(self):
        for given_, key in (
            ({}, "c/0/0"),
            ({"dimension_separator": "."}, "c.0.0"),
            ({"chunk_key_encoding": "v2"}, "0.0"),
            ({"chunk_key_encoding": {"name": "v2", "separator": "/"}}, "0/0"),
            ({"chunk_key_encoding": {"name": "v2", "configuration": {"separator": "/"}}}, "0/0"),
            ({"zarr_format": 2}, "0.0"),
            ({"zarr_format": 2, "dimension_separator": "/"}, "0/0"),
        ):
            store = {}
            vz.create_array(store, data=np.ones((2, 2)), **given_)
            assert key in store

    def test_dimension_names(self):
        store = {}
        array = vz.create_array(store, shape=(2, 3), dtype="i1", dimension_names=["x", None])
        assert array.dims == ("x", None)
        v2 = {}
        vz.create_array(v2, shape=(2, 3), dtype="i1", dimension_names=["x", "y"], zarr_format=2)
        assert document(v2, ".zattrs") == {"_ARRAY_DIMENSIONS": ["x", "y"]}
        assert vz.open(v2).dims == ("x", "y")

    def test_attributes_of_numpy(self):
        attributes = {"scale": np.float32(0.5), "range": np.arange(2), "deep": {"n": [np.int8(1)]}}
        array = vz.create_array({}, shape=1, dtype="i1", attributes=attributes)
        assert array.attrs == {"scale": 0.5, "range": [0, 1], "deep": {"n": [1]}}


class TestExisting:
    def test_not_replaced(self):
        store = {}
        vz.create_array(store, data=np.arange(3))
        before = dict(store)
        for zarr_format in (2, 3):
            with pytest.raises(NodeExistsError, match="an array already"):
                vz.create_array(store, shape=3, dtype="i1", zarr_format=zarr_format)
        assert store == before

    def test_replaced(self):
        store = {}
        vz.create_array(store, data=np.arange(3), zarr_format=2)
        array = vz.create_array(store, shape=3, dtype="i1", overwrite=True)
        assert list(store) == ["zarr.json"]
        assert array[:].tolist() == [0, 0, 0]

    def test_replacing_needs_a_node(self, tmp_path):
        (tmp_path / "thesis.txt").write_text("precious")
        vz.create_group(tmp_path, overwrite=True)
        assert (tmp_path / "thesis.txt").read_text() == "precious"

    def test_read_only(self):
        frozen = vz.open({"zarr.json": b'{"zarr_format": 3, "node_type": "group"}'}, mode="r")
        with pytest.raises(AccessError, match="only be read"):
            frozen.create_array("x", shape=1, dtype="i1")


@pytest.fixture
def store():
    result = {}
    vz.create_array(
        result,
        data=np.arange(24, dtype="i4").reshape(4, 6),
        chunks=(2, 3),
        attributes={"units": "K", "scale": 1.0},
        dimension_names=["y", "x"],
        fill_value=-1,
    )
    return result


class TestModes:
    def test_reading(self, store):
        for array in (vz.open(store), vz.open_array(store, mode="r")):
            assert array[1, 1] == 7
            with pytest.raises(AccessError):
                array[0, 0] = 5
            with pytest.raises(AccessError):
                array.attrs["units"] = "m"
            with pytest.raises(AccessError):
                array.resize((5, 6))
        assert vz.open(store)[0, 0] == 0

    @pytest.mark.parametrize("mode", ["r+", "a"])
    def test_writing(self, store, mode):
        for i, array in enumerate((vz.open(store, mode=mode), vz.open_array(store, mode=mode)), 1):
            array[0, 0] = i
            assert vz.open(store)[0, 0] == i

    @pytest.mark.parametrize("opened", [vz.open, vz.open_array])
    def test_nothing_there(self, opened):
        for mode in ("r", "r+"):
            with pytest.raises(NodeNotFoundError):
                opened({}, "x", mode=mode, shape=3, dtype="i1")
        for mode in ("a", "w", "w-"):
            made = {}
            assert opened(made, "x", mode=mode, shape=3, dtype="i1").shape == (3,)
            assert set(made) == {"zarr.json", "x/zarr.json"}

    @pytest.mark.parametrize("opened", [vz.open, vz.open_array])
    def test_anew(self, store, opened):
        with pytest.raises(NodeExistsError):
            opened(store, mode="w-", shape=3, dtype="i1")
        assert opened(store, mode="w", shape=3, dtype="i1")[:].tolist() == [0, 0, 0]
        assert list(store) == ["zarr.json"]

    def test_groups(self):
        made = {}
        assert isinstance(vz.open(made, mode="a"), vz.Group)
        group = vz.open_group(made, "a/b", mode="w-", attributes={"x": 1})
        assert group.attrs == {"x": 1}
        assert vz.open_group(made, "a/b").attrs == {"x": 1}
        with pytest.raises(NodeNotFoundError, match="but a group"):
            vz.open_array(made, "a")
        with pytest.raises(NodeNotFoundError, match="but a group"):
            vz.open(made, "a", shape=3)
        with pytest.raises(NodeNotFoundError):
            vz.open_group(made, "c", mode="r")
        vz.create_array(made, name="array", shape=1, dtype="i1")
        with pytest.raises(NodeNotFoundError, match="but an array"):
            vz.open_group(made, "array")

    def test_formats_beside_each_other(self, store):
        other = {}
        vz.create_array(other, shape=9, dtype="i1", zarr_format=2)
        both = store | other
        assert vz.open(both).shape == (4, 6)
        assert vz.open(both, zarr_format=2).shape == (9,)
        assert vz.open_array(both, mode="r", zarr_format=3).shape == (4, 6)
        with pytest.raises(NodeNotFoundError, match="Zarr v2"):
            vz.open(store, zarr_format=2)

    def test_bad_mode(self, store):
        with pytest.raises(ValueError, match="mode"):
            vz.open(store, mode="x")

    def test_files_of_others(self, tmp_path):
        refs = {"version": 1, "refs": {".zgroup": '{"zarr_format": 2}'}}
        (tmp_path / "refs.json").write_text(json.dumps(refs))
        for mode in ("r+", "a", "w"):
            with pytest.raises(UnsupportedError, match="only be read"):
                vz.open(tmp_path / "refs.json", mode=mode)

    def test_local(self, tmp_path):
        path = tmp_path / "new.zarr"
        vz.open(path, mode="w", shape=(3, 3), dtype="i2", chunks=(2, 2))[...] = 7
        assert vz.open(path)[2, 2] == 7
        assert sorted(p.name for p in path.rglob("*") if p.is_file()) == [
            *("0", "0", "1", "1"),
            "zarr.json",
        ]

    def test_missing_chunks(self, store):
        del store["c/0/0"]
        assert vz.open_array(store)[0, 0] == -1
        with pytest.raises(KeyError):
            vz.open_array(store, fill_missing=False)[0, 0]

    def test_chunks_of_fill(self):
        for write_empty_chunks in (False, True):
            made = {}
            array = vz.create_array(
                made, shape=4, dtype="i1", write_empty_chunks=write_empty_chunks
            )
            array[:] = 0
            assert ("c/0" in made) is write_empty_chunks


AGREEING = [
    {"shape": (4, 6)},
    {"shape": [4, 6], "dtype": ">i4"},
    {"chunks": (2, 3), "fill_value": -1},
    {"chunks": (2, "auto")},
    {"chunks": [[2, 2], [3, 3]]},
    {"dimension_names": ("y", "x"), "zarr_format": 3},
    {"attributes": {"units": "K"}},
    {"compressors": {"name": "zstd", "configuration": {"level": 0, "checksum": False}}},
    {"codecs": [BYTES, ZSTD]},
    {"serializer": BYTES, "filters": None},
    {"order": "C"},
    {"chunk_key_encoding": "default", "dimension_separator": "/"},
    {"layout": {"chunk_shape": (2, 0), "chunk_elements": 10**5, "inner_order": (0, 1)}},
    {"layout": {"chunk_shape": (-1, 3), "soft": {"chunk_shape": (9, 9)}}},
    {"shards": False},
]
DIFFERING = [
    ({"shape": (4, 7)}, r"shape: \(4, 7\) is asked for, but it is \(4, 6\)"),
    ({"shape": (4,)}, "shape"),
    ({"dtype": "u4"}, "dtype: uint32 is asked for, but it is int32"),
    ({"dtype": str}, "dtype: string is asked for"),
    ({"chunks": (4, 3)}, r"chunks: \(4, 3\) is asked for, but it is \(2, 3\)"),
    ({"chunks": [[1, 3], 3]}, "chunks"),
    ({"chunks": False}, r"\(4, 6\) is asked for, but it is \(2, 3\)"),
    ({"shards": (4, 6)}, "shards: .* but it is None"),
    ({"fill_value": 0}, "fill_value: 0 is asked for, but it is -1"),
    ({"dimension_names": ("a", "b")}, "dimension_names"),
    ({"zarr_format": 2}, "Zarr v2"),
    ({"attributes": {"units": "m"}}, "attribute 'units': 'm' is asked for, but it is 'K'"),
    ({"attributes": {"scale": 1}}, "scale"),
    ({"attributes": {"new": None}}, "new"),
    ({"compressors": None}, "compressors: .* but it is .zstd"),
    ({"compressors": "gzip"}, "gzip"),
    ({"order": "F"}, "order of axes"),
    ({"dimension_separator": "."}, "chunk_key_encoding"),
    ({"layout": {"write_chunk_shape": (4, 0)}}, "write_chunk_shape"),
    ({"layout": {"inner_order": (1, 0)}}, "order of axes"),
]


class TestDemands:
    @pytest.mark.parametrize("wishes", AGREEING)
    def test_agreeing(self, store, wishes):
        before = dict(store)
        for mode in ("r", "r+", "a"):
            assert vz.open_array(store, mode=mode, **wishes)[1, 1] == 7
        assert store == before

    @pytest.mark.parametrize(("wishes", "message"), DIFFERING)
    def test_differing(self, store, wishes, message):
        before = dict(store)
        for opened in (vz.open, vz.open_array):
            with pytest.raises((MismatchError, NodeNotFoundError), match=message):
                opened(store, mode="r+", **wishes)
        assert store == before

    def test_all_are_named(self, store):
        with pytest.raises(MismatchError) as caught:
            vz.open_array(store, shape=(5, 6), dtype="f4", chunks=(1, 1), attributes={"a": 1})
        for name in ("shape", "dtype", "chunks", "attribute 'a'"):
            assert f"{name}: " in str(caught.value)

    @pytest.mark.parametrize(
        ("wishes", "same"),
        [
            ({"chunks": (2, 2), "shards": (4, 4)}, True),
            ({"chunks": (2, 2)}, True),
            ({"shards": [[4, 4], 4]}, True),
            ({"order": "F", "compressors": None}, True),
            ({"layout": {"read_chunk_shape": (2, 2), "write_chunk_shape": (4, 4)}}, True),
            ({"chunks": (4, 4)}, False),
            ({"shards": (8, 8)}, False),
            ({"shards": False}, False),
            ({"order": "C"}, False),
            ({"layout": {"chunk_shape": (4, 4)}}, False),
        ],
    )
    def test_shards(self, wishes, same):
        asked = {"shape": (8, 8), "dtype": "i2", "order": "F", "compressors": None}
        metadata = new_array(Wishes(**asked, chunks=(2, 2), shards=(4, 4)))
        assert (differences(metadata, Wishes(**wishes)) == []) is same

    @pytest.mark.parametrize(
        ("wishes", "same"),
        [
            ({"filters": [{"id": "shuffle", "elementsize": 2}], "order": "F"}, True),
            ({"compressors": {"id": "zlib", "level": 1}, "dtype": ">i2"}, True),
            ({"compressors": "zlib", "filters": "shuffle"}, True),
            ({"serializer": "bytes"}, False),
            ({"filters": None}, False),
            ({"order": "C"}, False),
            ({"compressors": {"id": "zlib", "level": 2}}, False),
        ],
    )
    def test_v2(self, wishes, same):
        metadata = new_array(
            Wishes(
                shape=(8, 8),
                dtype="<i2",
                order="F",
                zarr_format=2,
                filters=[{"id": "shuffle", "elementsize": 2}],
                compressors={"id": "zlib", "level": 1},
            )
        )
        assert (differences(metadata, Wishes(**wishes)) == []) is same

    def test_what_was_made_is_as_asked(self):
        asked = {
            "shape": (30, 40),
            "dtype": "f4",
            "chunks": (5, 5),
            "shards": ([10, 20], 20),
            "filters": {"name": "transpose", "configuration": {"order": [1, 0]}},
            "compressors": ["gzip", "crc32c"],
            "fill_value": np.nan,
            "dimension_names": ["a", "a"],
            "attributes": {"x": float("nan")},
            "dimension_separator": ".",
        }
        made = {}
        vz.create_array(made, **asked)
        assert vz.open_array(made, **asked).shape == (30, 40)


class TestAssumed:
    def test_without_reading(self, store):
        document_ = json.loads(store.pop("zarr.json"))
        for assume in (document_, vz.open({"zarr.json": json.dumps(document_).encode()}).metadata):
            array = vz.open_array(store, mode="r", assume=assume)
            assert array[1].tolist() == [6, 7, 8, 9, 10, 11]

    def test_from_wishes(self, store):
        del store["zarr.json"]
        wishes = {"shape": (4, 6), "dtype": "i4", "chunks": (2, 3), "fill_value": -1}
        array = vz.open_array(store, mode="r+", assume=True, **wishes)
        array[0, 0] = 99
        assert vz.open_array(store, mode="r", assume=True, **wishes)[0].tolist()[:2] == [99, 1]
        assert "zarr.json" not in store

    def test_stays_as_it_is(self, store):
        array = vz.open_array(store, mode="r+", assume=vz.open(store).metadata)
        before = store["zarr.json"]
        with pytest.raises(UnsupportedError, match="assumed"):
            array.resize((8, 6))
        with pytest.raises(UnsupportedError, match="assumed"):
            array.attrs["x"] = 1
        assert store["zarr.json"] == before

    def test_reading_only(self, store):
        array = vz.open_array(store, mode="r", assume=vz.open(store).metadata)
        with pytest.raises(AccessError):
            array[0, 0] = 1

    def test_is_checked(self, store):
        with pytest.raises(MismatchError, match="dtype"):
            vz.open_array(store, assume=vz.open(store).metadata, dtype="f4")
        with pytest.raises(ValueError, match="assume"):
            vz.open_array(store, mode="w", assume=True, shape=1, dtype="i1")
