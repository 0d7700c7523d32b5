"""Classes of models by Zarr format, for arrays and for groups."""

from __future__ import annotations

from typing import Any

from virtualzarr.errors import UnsupportedError
from virtualzarr.models import v2, v3
from virtualzarr.models.array import ArraySpecBase
from virtualzarr.models.group import GroupSpecBase

ArrayClass = type[ArraySpecBase[Any]]
GroupClass = type[GroupSpecBase[Any, Any]]

_CLASSES: dict[int, tuple[ArrayClass, GroupClass]] = {
    2: (v2.ArraySpec, v2.GroupSpec),
    3: (v3.ArraySpec, v3.GroupSpec),
}


def spec_classes(zarr_format: int) -> tuple[ArrayClass, GroupClass]:
    """Return the classes of models of arrays and of groups."""
    if zarr_format not in _CLASSES:
        raise UnsupportedError(f"zarr_format {zarr_format}; known are 2 and 3")
    return _CLASSES[zarr_format]
