from __future__ import annotations

import math
import pickle

import numpy as np
import pytest

import grids
from virtualzarr.codecs import Pipeline
from virtualzarr.errors import MetadataError, UnsupportedError
from virtualzarr.metadata import STRING, ArrayMetadata, Consolidated, GroupMetadata, KeyEncoding
from virtualzarr.metadata.dtypes import vlen_kind

LITTLE = {"name": "bytes", "configuration": {"endian": "little"}}


def model(**changes):
    members = {
        "shape": (4, 3),
        "dtype": np.dtype("f4"),
        "grid": grids.RegularGrid((4, 3), (2, 2)),
        "pipeline": Pipeline([LITTLE]),
        "fill_value": 0.0,
    }
    return ArrayMetadata(**members | changes)


def test_members_are_normalized():
    metadata = model(shape=[np.int64(4), 3], dtype="f4", fill_value=1, dimension_names=["y", None])
    assert metadata.shape == (4, 3)
    assert all(type(length) is int for length in metadata.shape)
    assert metadata.dtype == np.float32
    assert type(metadata.fill_value) is np.float32
    assert metadata.dimension_names == ("y", None)
    assert metadata.key_encoding == KeyEncoding("default", "/")
    assert (metadata.ndim, metadata.size, metadata.itemsize, metadata.nbytes) == (2, 12, 4, 48)


def test_sizes_are_python_integers():
    shape = (2**62, 2**62)
    metadata = model(shape=shape, grid=grids.RegularGrid(shape, (2**40, 2**40)))
    assert metadata.nbytes == 2**126


def test_equality_is_by_value_and_to_the_bit():
    nan = model(fill_value=math.nan, attributes={"a": math.nan})
    assert nan == model(fill_value=math.nan, attributes={"a": math.nan})
    assert hash(nan) == hash(model(fill_value=math.nan, attributes={"a": math.nan}))
    assert nan != model(fill_value=np.uint32(0x7FC00001).view("f4"), attributes={"a": math.nan})
    assert model(fill_value=0.0) != model(fill_value=-0.0)
    assert model(fill_value=None) != model(fill_value=0.0)
    assert model() != "model"


@pytest.mark.parametrize(
    "changes",
    [
        {"dtype": "i4", "fill_value": 0},
        {"grid": grids.RegularGrid((4, 3), (2, 3))},
        {"pipeline": Pipeline([LITTLE, {"name": "gzip", "configuration": {"level": 1}}])},
        {"fill_value": 1.0},
        {"dimension_names": ("y", "x")},
        {"attributes": {"a": 1}},
        {"zarr_format": 2},
        {"key_encoding": KeyEncoding("v2")},
        {"extra": {"a": {}}},
    ],
    ids=str,
)
def test_every_member_counts(changes):
    assert model() != model(**changes)
    assert model().replace(**changes) == model(**changes)


def test_attributes_are_not_shared():
    attributes = {"a": 1}
    metadata = model(attributes=attributes)
    attributes["a"] = 2
    assert metadata.attributes == {"a": 1}


def test_pickles():
    metadata = model(dtype=STRING, fill_value="", pipeline=Pipeline(["vlen-utf8"]))
    back = pickle.loads(pickle.dumps(metadata))
    assert back == metadata
    assert vlen_kind(back.dtype) is str


@pytest.mark.parametrize(("codec", "kind"), [("vlen-utf8", str), ("vlen-bytes", bytes)])
def test_objects_are_told_apart_by_their_codec(codec, kind):
    metadata = model(dtype=object, fill_value=kind(), pipeline=Pipeline([codec]))
    assert vlen_kind(metadata.dtype) is kind


def test_structured_dtypes_keep_the_byte_order_of_fields():
    dtype = np.dtype([("a", "<i4"), ("b", ">i4")])
    metadata = model(dtype=dtype, fill_value=None)
    assert metadata.dtype["b"].str == ">i4"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"shape": (4, 4)}, "chunk grid"),
        ({"shape": (4,)}, "chunk grid"),
        ({"shape": (4, -3)}, "shape"),
        ({"shape": (4, 3.0)}, "shape"),
        ({"shape": (4, 2**63)}, "shape"),
        ({"dtype": ">f4"}, "native"),
        ({"fill_value": "x"}, "fill_value"),
        ({"dtype": "u1", "fill_value": 300}, "fill_value"),
        ({"dimension_names": ("x",)}, "dimension_names"),
        ({"dimension_names": "xy"}, "dimension_names"),
        ({"dimension_names": ("x", 1)}, "dimension_names"),
    ],
    ids=str,
)
def test_parts_that_do_not_agree(changes, message):
    with pytest.raises(MetadataError, match=message):
        model(**changes)


def test_unknown_formats():
    with pytest.raises(UnsupportedError, match="zarr_format 1"):
        model(zarr_format=1)
    with pytest.raises(UnsupportedError, match="zarr_format 4"):
        GroupMetadata(zarr_format=4)
    with pytest.raises(UnsupportedError, match="65 dimensions"):
        model(shape=(1,) * 65)


def test_groups():
    group = GroupMetadata({"a": math.nan})
    assert group == GroupMetadata({"a": math.nan})
    assert hash(group) == hash(GroupMetadata({"a": 1}))
    assert group != GroupMetadata({"a": 1.0})
    assert group != group.replace(consolidated=Consolidated())
    assert group != group.replace(zarr_format=2)
    assert group != "group"
