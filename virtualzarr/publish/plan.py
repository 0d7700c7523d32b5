"""What of a hierarchy is published, and in which Zarr format, decided before writing."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from virtualzarr.array import Array
from virtualzarr.errors import (
    CodecError,
    MetadataError,
    PublishError,
    RefusedWarning,
    UnsupportedError,
)
from virtualzarr.group import Group
from virtualzarr.manifest import Manifest, Source
from virtualzarr.metadata import ArrayMetadata, check_name
from virtualzarr.publish import rules
from virtualzarr.publish.canonical import make_canonical
from virtualzarr.publish.copying import (
    copied_metadata,
    encoded_exactly,
    filled_block,
    with_copies,
)
from virtualzarr.publish.report import many
from virtualzarr.publish.stored import manifest_of

INLINE_FILL_BYTES = 1 << 16
"""Missing chunks of an array are written out, inline, where that takes at most so many bytes."""

LARGEST_FILL_CHUNK = 1 << 24
"""Chunks of more bytes are not encoded to find out."""

_SHOWN = 10


@dataclass
class ArrayPlan:
    """One array on its way into the file.

    Attributes
    ----------
    path : str
    array : Array
    metadata : ArrayMetadata
        With codecs that other readers have.
    manifest : Manifest
        Canonical but for the cells in `odd`.
    odd : int64 array
        C-order numbers of the cells whose chunks must be copied.
    """

    path: str
    array: Array
    metadata: ArrayMetadata
    manifest: Manifest
    odd: npt.NDArray[np.int64]

    @property
    def missing(self) -> int:
        """Cells without a chunk."""
        return self.manifest.ncells - self.manifest.nrefs


@dataclass
class Plan:
    """What is published of a hierarchy.

    Attributes
    ----------
    groups : dict of Group by path
        The root has the path ""; there are none when an array is published alone.
    arrays : dict of ArrayPlan by path
    order : list of str
        Paths of all nodes, each group before its members and all members of a group before those
        of the next: zarr-python loses nodes of consolidated metadata in some other orders.
    zarr_format : int
    why_v3 : list of str
        Why it is not 2, if nobody asked for 3.
    refused : dict of str to str
        Arrays that are left out, and why.
    """

    groups: dict[str, Group] = field(default_factory=dict)
    arrays: dict[str, ArrayPlan] = field(default_factory=dict)
    order: list[str] = field(default_factory=list)
    zarr_format: int = 2
    why_v3: list[str] = field(default_factory=list)
    refused: dict[str, str] = field(default_factory=dict)


def make_plan(node: Group | Array, *, copy: bool, zarr_format: int | None, on_error: str) -> Plan:
    """Decide what is published.

    Raises
    ------
    PublishError
        If arrays cannot be published so that others read them right, and `on_error` is "raise".
    """
    plan = Plan()
    nodes: Iterable[tuple[str, Array | Group]] = [("", node)]
    if isinstance(node, Group):
        nodes = [("", node), *node.members(max_depth=None)]
    for path, member in nodes:
        plan.order.append(path)
        if isinstance(member, Group):
            plan.groups[path] = member
            continue
        try:
            plan.arrays[path] = _array_plan(path, member, copy)
        except PublishError as error:
            plan.refused[path] = error.message
    _settle_format(plan, zarr_format)
    _settle_refused(plan, on_error)
    return plan


def _array_plan(path: str, array: Array, copy: bool) -> ArrayPlan:
    for name in path.split("/") if path else ():
        try:
            check_name(name, 2)
            check_name(name, 3)
        except MetadataError as error:
            raise PublishError(error.message) from error
    made = make_canonical(array.metadata, manifest_of(array))
    if len(made.odd) and not copy:
        total = many(made.manifest.nrefs, "chunk")
        why = "; ".join(f"{count} of {total}: {reason}" for reason, count in made.reasons.items())
        raise PublishError(
            f"other readers would read it wrong ({why}); with copy=True such chunks are decoded "
            "and stored again beside the reference file"
        )
    metadata, odd = array.metadata, made.odd
    if len(odd):
        metadata = copied_metadata(metadata)
    if metadata.pipeline != array.metadata.pipeline:
        odd = np.flatnonzero(np.asarray(made.manifest.source).reshape(-1) >= 0)
    return ArrayPlan(path, array, metadata, made.manifest, odd)


def _settle_format(plan: Plan, wanted: int | None) -> None:
    """Choose the format of all documents: readers cannot mix them in one hierarchy."""
    filled = {path: _with_fill_inline(array) for path, array in plan.arrays.items()}
    not_v2 = {
        path: rules.not_v2(array.metadata, array.missing > 0) for path, array in filled.items()
    }
    not_v3: dict[str, str | None] = {}
    if wanted == 3 or any(not_v2.values()):
        not_v3 = {path: rules.not_v3(array.metadata) for path, array in plan.arrays.items()}
    why = {2: not_v2, 3: not_v3}
    for path in list(plan.arrays):
        obstacles = [why[f].get(path) for f in (2, 3) if wanted in (None, f)]
        if all(obstacles):
            names = [f"Zarr v{f}" for f in (2, 3) if wanted in (None, f)]
            pairs = zip(names, obstacles, strict=True)
            plan.refused[path] = "; ".join(f"{name}: {obstacle}" for name, obstacle in pairs)
            del plan.arrays[path]
    plan.why_v3 = [
        f"{path or '/'}: {not_v2[path]}" for path in plan.arrays if wanted is None and not_v2[path]
    ]
    plan.zarr_format = wanted or (3 if plan.why_v3 else 2)
    if plan.zarr_format == 2:
        plan.arrays = {path: filled[path] for path in plan.arrays}
        return
    for path in list(plan.arrays):
        if not_v3.get(path):
            plan.refused[path] = f"Zarr v3, which other arrays need: {not_v3[path]}"
            del plan.arrays[path]


def _settle_refused(plan: Plan, on_error: str) -> None:
    if not plan.refused:
        return
    lines = [f"{path or '/'}: {reason}" for path, reason in plan.refused.items()]
    if on_error == "raise":
        more = f"; and {len(lines) - _SHOWN} more" if len(lines) > _SHOWN else ""
        raise PublishError(
            f"{many(len(lines), 'array')} cannot be published: {'; '.join(lines[:_SHOWN])}{more}",
            variable=next(iter(plan.refused)) or "/",
        )
    for line in lines:
        warnings.warn(f"{line}; it was left out", RefusedWarning, stacklevel=4)
    plan.order = [path for path in plan.order if path not in plan.refused]


def _with_fill_inline(plan: ArrayPlan) -> ArrayPlan:
    """Write out the few missing chunks of an array whose fill value v2 documents cannot give."""
    missing, metadata = plan.missing, plan.metadata
    if not missing or rules.fill_is_mask(metadata) or len(plan.odd):
        return plan
    if rules.not_v2(metadata, missing=False) is not None:
        return plan
    shape = metadata.grid.cell_shape((0,) * metadata.ndim)
    if math.prod(shape) * metadata.itemsize > LARGEST_FILL_CHUNK:
        return plan
    try:
        chunk = encoded_exactly(metadata, filled_block(metadata, shape))
    except (PublishError, UnsupportedError, CodecError):
        return plan  # lossy codecs, and those that cannot encode: v3 has a fill value for all
    if len(chunk) * missing > INLINE_FILL_BYTES:
        return plan
    cells = np.flatnonzero(np.asarray(plan.manifest.source).reshape(-1) < 0)
    manifest = with_copies(plan.manifest, cells, Source.inline(chunk), 0, len(chunk))
    return replace(plan, manifest=manifest)
