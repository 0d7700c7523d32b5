"""What readers mask, decoded once and spelled for each format; attributes that are strict JSON."""

from __future__ import annotations

import base64
import json
import math
import struct

import numpy as np
import pytest

import virtualzarr as vz
from grids import RegularGrid
from virtualzarr.codecs import Pipeline, make
from virtualzarr.errors import MetadataError, UnsupportedError
from virtualzarr.metadata import (
    ArrayMetadata,
    TypedInt,
    array_to_v2,
    array_to_v3,
    json_attributes,
    numpy_attributes,
    parse_array_v3,
)
from virtualzarr.metadata.portable import (
    PRIVATE_FILL,
    as_strict_attributes,
    get_mask,
    is_fill_mask,
    is_named,
    to_portable_v2,
    to_portable_v3,
    with_typed_mask,
)

NAN = float("nan")


def text(number):
    return base64.b64encode(struct.pack("<d", number)).decode()


def metadata(dtype, fill=None, zarr_format=3, shape=(2,), **attributes):
    dtype = np.dtype(dtype)
    endian = {"endian": "little"} if dtype.itemsize > 1 and dtype.kind != "S" else {}
    codecs = Pipeline([make("bytes", **endian)])
    return ArrayMetadata(
        shape, dtype, RegularGrid(shape, shape), codecs, fill, attributes=attributes,
        zarr_format=zarr_format,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("dtype", "given", "mask"),
    [
        ("f4", text(-999), np.float32(-999)),
        ("f4", -999, np.float32(-999)),
        ("f4", "Infinity", np.float32(math.inf)),
        ("f4", text(1e20), 1e20),  # which is no float32
        ("f8", [2.5], np.float64(2.5)),
        ("c8", [text(1), text(2)], np.complex64(1 + 2j)),
        ("i2", -32767.0, np.int16(-32767)),
        ("S3", "ab", np.bytes_(b"ab")),
        ("S3", base64.b64encode(b"a\0b").decode(), np.bytes_(b"a\0b")),
        ("U2", "é", np.str_("é")),
    ],
)
def test_masks_are_read_in_any_spelling(dtype, given, mask):
    found = get_mask(metadata(dtype, _FillValue=given))
    assert found == mask
    assert type(found) is type(mask)
    typed = with_typed_mask(metadata(dtype, _FillValue=given))
    assert get_mask(typed) == mask
    assert with_typed_mask(typed) == typed


def test_the_fill_value_of_v2_is_the_mask():
    assert get_mask(metadata("i4", 3, zarr_format=2, _FillValue=4)) == 3
    assert get_mask(metadata("i4", None, zarr_format=2, _FillValue=4)) == 4
    assert get_mask(metadata("i4", 3)) is None
    assert with_typed_mask(metadata("i4", 3, zarr_format=2)).attributes == {"_FillValue": 3}


def test_fill_value_and_mask_are_compared_exactly():
    assert is_fill_mask(metadata("f4", NAN, _FillValue=text(NAN)))
    assert is_fill_mask(metadata("f4", 0.5, _FillValue=text(0.5)))
    assert not is_fill_mask(metadata("f4", 0.1, _FillValue=0.1))
    assert not is_fill_mask(metadata("f4", 0.0))


@pytest.mark.parametrize(
    ("dtype", "fill", "attribute", "in_document", "in_attributes"),
    [
        ("f4", 0, text(-999), -999.0, -999.0),
        ("f4", 0, NAN, "NaN", None),
        ("f4", 0, math.inf, "Infinity", None),
        ("f4", 7, None, None, None),
        ("f4", 0, 1e20, None, 1e20),
        ("i2", 0, -32767, -32767, -32767),
        ("i2", 0, NAN, None, None),
    ],
)
def test_in_v2_the_fill_value_says_what_is_masked(
    dtype, fill, attribute, in_document, in_attributes
):
    given = {} if attribute is None else {"_FillValue": attribute}
    made = to_portable_v2(metadata(dtype, fill, **given), missing=False).metadata
    zarray, zattrs = array_to_v2(made.as_format(2))
    json.dumps([zarray, zattrs], allow_nan=False)
    assert zarray["fill_value"] == in_document
    assert zattrs.get("_FillValue") == in_attributes


def test_in_v3_the_attribute_does():
    assert to_portable_v3(metadata("f4", 0, _FillValue=NAN)).metadata.attributes == {
        "_FillValue": text(NAN)
    }
    assert to_portable_v3(metadata("i4", 3, zarr_format=2)).metadata.attributes == {"_FillValue": 3}
    assert to_portable_v3(metadata("i4", 3)).metadata.attributes == {}
    signed = metadata("u1", 0, _FillValue=255, _Unsigned="false")
    written = to_portable_v3(signed).metadata
    assert written.attributes["_FillValue"] == -1  # xarray fails for 255
    assert get_mask(written) == np.uint8(255)


@pytest.mark.parametrize("dtype", ["S3", "U2", [("a", "i1"), ("b", "<f4")]])
def test_what_xarray_cannot_read_in_v3_is_kept_for_us(dtype):
    dtype = np.dtype(dtype)
    given = {"a": 1, "b": 2.5} if dtype.names else "é"
    made = to_portable_v3(metadata(dtype, _FillValue=given))
    assert made.metadata.attributes.keys() == {PRIVATE_FILL}
    assert "left out" in made.notes[0]
    if dtype.names is None:
        document = array_to_v3(made.metadata)
        assert get_mask(parse_array_v3(document)) == get_mask(metadata(dtype, _FillValue=given))
    assert with_typed_mask(made.metadata).attributes == {"_FillValue": given}
    for wrong in ("?", 3, "AAAAAAAAAAAAAAAA"):
        if dtype.kind != "S" or wrong != "AAAAAAAAAAAAAAAA":
            with pytest.raises(MetadataError, match=PRIVATE_FILL):
                get_mask(metadata(dtype, **{PRIVATE_FILL: wrong}))


def test_scalars_say_that_they_have_no_dimensions():
    scalar = metadata("i4", shape=())
    assert not is_named(scalar.as_format(2))
    assert is_named(to_portable_v2(scalar, missing=False).metadata.as_format(2))
    assert is_named(scalar)
    assert (
        to_portable_v3(scalar.as_format(2).replace(dimension_names=())).metadata.dimension_names
        is None
    )


def test_attributes_are_strict():
    given = {
        "units": "K",
        "range": [1.0, math.inf, [-math.inf]],
        "inner": {"a": NAN},
        "missing_value": NAN,
    }
    made, notes = as_strict_attributes(given)
    assert made == {
        "units": "K", "range": [1.0, "Infinity", ["-Infinity"]], "inner": {"a": "NaN"}
    }  # fmt: skip
    assert len(notes) == 2
    assert as_strict_attributes({"missing_value": [NAN, 3.0]})[0] == {"missing_value": 3.0}
    assert as_strict_attributes({"missing_value": [NAN, 3.0, 4.0]})[0] == {
        "missing_value": [3.0, 4.0]
    }
    for name in ("scale_factor", "add_offset", "missing_value"):
        with pytest.raises(UnsupportedError, match=f"{name}: JSON has no token for inf"):
            as_strict_attributes({name: math.inf})


def test_numbers_remember_their_data_types():
    attributes = json_attributes(
        {
            "flag": np.uint8(200),
            "flags": np.array([1, 2], ">i2"),
            "scale": np.float32(0.5),
            "range": np.array([0, 1], "f4"),
            "name": "a",
            "table": np.arange(4).reshape(2, 2),
        }
    )
    assert json.loads(json.dumps(attributes))["flags"] == [1, 2]
    assert isinstance(attributes["flag"], TypedInt)
    found = numpy_attributes(attributes)
    assert [found[name].dtype for name in ("flag", "flags", "scale", "range")] == [
        "u1", "i2", "f4", "f4"
    ]  # fmt: skip
    assert found["table"] == [[0, 1], [2, 3]]
    assert found["name"] == "a"


@pytest.mark.parametrize(("data_type", "codec"), [("string", "vlen-bytes"), ("bytes", "vlen-utf8")])
def test_text_is_not_read_as_bytes(data_type, codec):
    document = {
        "zarr_format": 3, "node_type": "array", "shape": [2], "data_type": data_type,
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [2]}},
        "chunk_key_encoding": {"name": "default"}, "fill_value": "", "codecs": [codec],
    }  # fmt: skip
    with pytest.raises(MetadataError, match=f"{codec} makes"):
        parse_array_v3(document)


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_new_attributes_are_strict_and_those_of_others_stay(zarr_format):
    store = {}
    array = vz.create_array(store, shape=3, dtype="f4", zarr_format=zarr_format)
    with pytest.raises(MetadataError, match=r"limit\[0\] is nan.*write the text"):
        array.attrs["limit"] = [NAN]
    with pytest.raises(MetadataError, match="limit is inf"):
        vz.create_array({}, shape=3, dtype="f4", attributes={"limit": math.inf})
    key = "zarr.json" if zarr_format == 3 else ".zattrs"
    document = json.loads(store.get(key, b"{}"))
    (document if zarr_format == 2 else document["attributes"])["limit"] = NAN
    store[key] = json.dumps(document).encode()
    array = vz.open_array(store, mode="r+")
    array.attrs["units"] = "K"  # which does not touch what zarr-python wrote
    assert math.isnan(vz.open_array(store).attrs["limit"])
    assert vz.open_array(store).attrs["units"] == "K"
