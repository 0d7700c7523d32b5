"""Models of one Zarr format as models of the other, where nothing is lost."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from virtualzarr.errors import UnsupportedError, VirtualZarrError
from virtualzarr.metadata import ArrayMetadata, KeyEncoding
from virtualzarr.models.array import ArraySpecBase
from virtualzarr.models.compare import documents_differ
from virtualzarr.models.group import GroupSpecBase
from virtualzarr.models.known import as_written, models, spec_of
from virtualzarr.models.node import NodeSpec


def convert(model: NodeSpec[Any], zarr_format: int, *, new_keys: bool = False) -> Any:
    """Return a model in another Zarr format; see `NodeSpec.to_format`."""
    group = models(zarr_format)[1]
    if zarr_format == model.zarr_format:
        return model
    nodes = model.to_flat() if isinstance(model, GroupSpecBase) else {"": model}
    result: dict[str, NodeSpec] = {}
    for path, node in nodes.items():
        try:
            if isinstance(node, ArraySpecBase):
                result[path] = _array(node, zarr_format, new_keys)
            else:
                result[path] = _group(node, zarr_format)
        except VirtualZarrError as error:
            raise error.at(variable=path or "/") from error.__cause__
    if not isinstance(model, GroupSpecBase):
        return result[""]
    return group.from_flat(result)


def _group(node: Any, zarr_format: int) -> NodeSpec:
    return models(zarr_format)[1](
        attributes=node.metadata.attributes,
        members=node.members,
        extra=_extra(node.extra, zarr_format),
    )


def _array(node: ArraySpecBase[Any], zarr_format: int, new_keys: bool) -> NodeSpec:
    old = node.metadata
    if old.fill_value is None and zarr_format == 3:
        raise UnsupportedError("fill_value: null, which v3 does not have; 0 is what it reads as")
    new = old.replace(
        zarr_format=zarr_format,
        extra=_extra(old.extra, zarr_format),
        key_encoding=_keys(old, zarr_format, new_keys),
    )
    result = models(zarr_format)[0].from_metadata(as_written(new))
    # There and back again: whatever is not the same has no form there.
    back = result.metadata.replace(
        zarr_format=old.zarr_format, extra=old.extra, key_encoding=old.key_encoding
    )
    if back.pipeline.decoding_key(old.dtype) == old.pipeline.decoding_key(old.dtype):
        back = back.replace(pipeline=old.pipeline)  # the other format writes it more explicitly
    again = spec_of(back)
    for difference in documents_differ(node.to_json(), again.to_json()):
        raise UnsupportedError(
            f"there is no exact form in Zarr v{zarr_format}: {difference.removeprefix('/: ')}"
        )
    return result


def _keys(old: ArrayMetadata, zarr_format: int, new_keys: bool) -> KeyEncoding:
    if new_keys:
        return KeyEncoding("v2") if zarr_format == 2 else KeyEncoding()
    if zarr_format == 2 and old.key_encoding.name != "v2":
        raise UnsupportedError(
            f"chunk_key_encoding: {old.key_encoding.name!r}, which v2 does not have; "
            "new_keys=True gives chunks other keys"
        )
    return old.key_encoding


def _extra(extra: Mapping[str, Any], zarr_format: int) -> Mapping[str, Any]:
    for name, value in extra.items():
        optional = isinstance(value, Mapping) and value.get("must_understand") is False
        if zarr_format == 3 and not optional:
            raise UnsupportedError(
                f"{name}: a further member, which v3 only has with must_understand: false"
            )
    return extra
