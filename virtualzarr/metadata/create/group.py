"""Metadata of a new group."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from virtualzarr.errors import MetadataError
from virtualzarr.metadata.create.array import to_plain_json
from virtualzarr.metadata.json_documents import dumps_json, is_same_json, loads_json, member, short
from virtualzarr.metadata.model import GroupMetadata
from virtualzarr.metadata.node_documents import parse_group, to_documents


def create_group_metadata(
    attributes: Any, zarr_format: int = 3, extra: Mapping[str, Any] | None = None
) -> GroupMetadata:
    """Return the metadata of a new group.

    Parameters
    ----------
    attributes : mapping or dataclass
    zarr_format : {3, 2}
    extra : mapping, optional
        Further members of the document.

    Raises
    ------
    MetadataError, UnsupportedError
        An attribute has no JSON form, or no document may have such a further member.
    """
    extra = dict(extra or {})
    metadata = GroupMetadata(to_json_attributes(attributes), zarr_format, extra)
    if extra:
        # The parser decides which members are extra: one with a meaning would change the group.
        parsed = parse_group(to_documents(metadata), zarr_format)
        for name in extra:
            if name not in parsed.extra:
                raise MetadataError(f"extra: {name} cannot be a further member of a group")
    return metadata


def to_json_attributes(attributes: Any) -> dict[str, Any]:
    """Return attributes as the JSON object that is stored.

    Raises
    ------
    MetadataError
        They are neither a mapping nor a dataclass, or a value has no JSON form.

    Examples
    --------
    >>> to_json_attributes({"range": (0, 1)})
    {'range': [0, 1]}
    """
    if dataclasses.is_dataclass(attributes) and not isinstance(attributes, type):
        attributes = dataclasses.asdict(attributes)
    with member("attributes"):
        if not isinstance(attributes, Mapping):
            raise MetadataError(f"must be a mapping or a dataclass, not {short(attributes)}")
        plain = to_plain_json(attributes)
        # JSON writers turn the key 1 into "1": two names could become one without a word.
        if not is_same_json(loads_json(dumps_json(plain)), plain):
            raise MetadataError("the names in JSON objects must be strings")
    result: dict[str, Any] = plain
    return result
