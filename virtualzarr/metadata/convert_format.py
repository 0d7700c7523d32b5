"""Lossless conversion of metadata between Zarr v2 and v3."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from virtualzarr.errors import UnsupportedError
from virtualzarr.metadata.chunk_key_encoding import KeyEncoding
from virtualzarr.metadata.compare_documents import compare_documents
from virtualzarr.metadata.create.group import create_group_metadata
from virtualzarr.metadata.model import ArrayMetadata, GroupMetadata
from virtualzarr.metadata.node_documents import as_written, to_json


def convert_array(
    metadata: ArrayMetadata, zarr_format: int, *, new_keys: bool = False
) -> ArrayMetadata:
    """Return the metadata of an array in another Zarr format.

    Parameters
    ----------
    metadata : ArrayMetadata
    zarr_format : {2, 3}
    new_keys : bool
        Whether chunks get the default keys of that format; else they keep theirs.

    Raises
    ------
    UnsupportedError
        Something has no exact form there; the message names the first such member.
    """
    if metadata.zarr_format == zarr_format:
        return metadata
    expected = to_json(metadata)
    if metadata.fill_value is None and zarr_format == 3:
        raise UnsupportedError("fill_value: null, which v3 does not have; 0 is what it reads as")
    result = as_written(
        metadata.replace(
            zarr_format=zarr_format,
            extra=_convert_extra(metadata.extra, zarr_format),
            key_encoding=_convert_keys(metadata.key_encoding, zarr_format, new_keys),
        )
    )
    # Round trip: a member that does not return has no form in the other format. That finds losses
    # no list of rules would have, such as a fill value that only one format can spell.
    back = result.replace(
        zarr_format=metadata.zarr_format, extra=metadata.extra, key_encoding=metadata.key_encoding
    )
    if back.pipeline.decoding_key(metadata.dtype) == metadata.pipeline.decoding_key(metadata.dtype):
        back = back.replace(pipeline=metadata.pipeline)  # one format spells defaults of codecs out
    for difference in compare_documents(expected, to_json(back)):
        raise UnsupportedError(
            f"there is no exact form in Zarr v{zarr_format}: {difference.removeprefix('/: ')}"
        )
    return result


def convert_group(metadata: GroupMetadata, zarr_format: int) -> GroupMetadata:
    """Return the metadata of a group alone in another Zarr format; see `convert_array`."""
    if metadata.zarr_format == zarr_format:
        return metadata
    extra = _convert_extra(metadata.extra, zarr_format)
    return create_group_metadata(metadata.attributes, zarr_format, extra)


def _convert_keys(encoding: KeyEncoding, zarr_format: int, new_keys: bool) -> KeyEncoding:
    if new_keys:
        return KeyEncoding("v2") if zarr_format == 2 else KeyEncoding()
    if zarr_format == 2 and encoding.name != "v2":
        raise UnsupportedError(
            f"chunk_key_encoding: {encoding.name!r}, which v2 does not have; "
            "new_keys=True gives chunks other keys"
        )
    return encoding


def _convert_extra(extra: Mapping[str, Any], zarr_format: int) -> Mapping[str, Any]:
    for name, value in extra.items():
        optional = isinstance(value, Mapping) and value.get("must_understand") is False
        if zarr_format == 3 and not optional:
            raise UnsupportedError(
                f"{name}: a further member, which v3 only has with must_understand: false"
            )
    return extra
