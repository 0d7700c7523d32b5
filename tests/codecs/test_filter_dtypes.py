"""Byte orders in the configuration of filters: v2 has them, v3 does not."""

import pytest

from virtualzarr.codecs import codec_from_v2, codec_from_v3
from virtualzarr.errors import UnsupportedError

CASES = [
    ("delta", {"dtype": ">i2"}, "dtype"),
    ("delta", {"dtype": "<i2", "astype": ">i4"}, "astype"),
    ("fixedscaleoffset", {"offset": 0, "scale": 1, "dtype": "<f4", "astype": ">i2"}, "astype"),
    ("quantize", {"digits": 2, "dtype": ">f8"}, "dtype"),
    ("astype", {"encode_dtype": ">i8", "decode_dtype": "<i4"}, "encode_dtype"),
]


@pytest.mark.parametrize(("name", "configuration", "key"), CASES)
def test_big_endian_filters_are_for_v2_only(name, configuration, key):
    with pytest.raises(UnsupportedError, match=rf"numcodecs\.{name}: {key} is '>"):
        codec_from_v3({"name": f"numcodecs.{name}", "configuration": configuration})
    codec_from_v2({"id": name, **configuration})
    little = {k: v.replace(">", "<") if k == key else v for k, v in configuration.items()}
    codec_from_v3({"name": f"numcodecs.{name}", "configuration": little})


def test_single_bytes_have_no_order():
    codec_from_v3({"name": "numcodecs.delta", "configuration": {"dtype": ">u1"}})
