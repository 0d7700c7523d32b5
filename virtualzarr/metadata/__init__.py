"""Zarr v2 and v3 metadata documents and the one model both are read into."""

from virtualzarr.metadata.attributes import (
    DTYPE_NAMES,
    TypedFloat,
    TypedInt,
    attribute_dtypes,
    decode_fill_attribute,
    encode_fill_attribute,
    json_attributes,
    numpy_attributes,
    with_dtypes,
)
from virtualzarr.metadata.chunk_key_encoding import KeyEncoding
from virtualzarr.metadata.dtypes import BYTES, STRING
from virtualzarr.metadata.dtypes_plugins import DataType, register_data_type
from virtualzarr.metadata.dtypes_v2 import dtype_from_v2, dtype_to_v2
from virtualzarr.metadata.dtypes_v3 import dtype_from_v3, dtype_to_v3
from virtualzarr.metadata.fill import default_fill, fill_from_json, fill_to_json, to_scalar
from virtualzarr.metadata.groups import (
    consolidated_to_v2,
    consolidated_to_v3,
    group_to_v2,
    group_to_v3,
    parse_consolidated_v2,
    parse_consolidated_v3,
    parse_documents_v2,
    parse_group_v2,
    parse_group_v3,
)
from virtualzarr.metadata.json_documents import dumps_json, loads_json
from virtualzarr.metadata.model import ArrayMetadata, Consolidated, GroupMetadata
from virtualzarr.metadata.paths import check_name, normalize_path
from virtualzarr.metadata.v2 import array_to_v2, parse_array_v2
from virtualzarr.metadata.v3 import array_to_v3, parse_array_v3

__all__ = [
    "BYTES",
    "DTYPE_NAMES",
    "STRING",
    "ArrayMetadata",
    "Consolidated",
    "DataType",
    "GroupMetadata",
    "KeyEncoding",
    "TypedFloat",
    "TypedInt",
    "array_to_v2",
    "array_to_v3",
    "attribute_dtypes",
    "check_name",
    "consolidated_to_v2",
    "consolidated_to_v3",
    "decode_fill_attribute",
    "default_fill",
    "dtype_from_v2",
    "dtype_from_v3",
    "dtype_to_v2",
    "dtype_to_v3",
    "dumps_json",
    "encode_fill_attribute",
    "fill_from_json",
    "fill_to_json",
    "group_to_v2",
    "group_to_v3",
    "json_attributes",
    "loads_json",
    "normalize_path",
    "numpy_attributes",
    "parse_array_v2",
    "parse_array_v3",
    "parse_consolidated_v2",
    "parse_consolidated_v3",
    "parse_documents_v2",
    "parse_group_v2",
    "parse_group_v3",
    "register_data_type",
    "to_scalar",
    "with_dtypes",
]
