"""Publication plan: what of a hierarchy is published, how, and in which Zarr format."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal

import numpy as np

from virtualzarr import errors
from virtualzarr.array import Array
from virtualzarr.choices import OnError, Split
from virtualzarr.codecs import Pipeline, make
from virtualzarr.hierarchy.group import Group
from virtualzarr.hierarchy.inventory import list_arrays
from virtualzarr.manifest import Source
from virtualzarr.metadata import ArrayMetadata
from virtualzarr.metadata.ome import find_ome_changes
from virtualzarr.metadata.portable import is_fill_mask
from virtualzarr.references import materialize, portable
from virtualzarr.references.array_plan import ArrayPlan, PlanRequest, copy_all, plan_array
from virtualzarr.references.clients import explain_unreadable
from virtualzarr.references.dataset_data import DatasetData
from virtualzarr.references.form import Capabilities
from virtualzarr.references.inline_policy import InlinePolicy
from virtualzarr.references.report import many

INLINE_FILL_BYTES = 1 << 16
"""Missing chunks of an array are written out, inline, where that takes at most so many bytes."""

LARGEST_FILL_CHUNK = 1 << 24
"""Chunks of more bytes are not encoded to find out."""


_SHOWN = 10


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
    why_v3 : list of str
        Why it is not 2, if nobody asked for 3.
    skipped : dict of str to str
        Arrays that are left out, and why.
    on_error : {"raise", "warn", "ignore"}
        What is done about them.
    regular : bool
        Whether all grids are regular, and are to stay so.
    clients : tuple of str
        Those that must know all codecs.
    split : {"runs"}, optional
        How groups were made of the one that is published.
    parallel : concurrent.futures.Executor or dask.distributed.Client, optional
        Whose workers decode and encode what is copied.
    """

    groups: dict[str, Group] = field(default_factory=dict)
    arrays: dict[str, ArrayPlan] = field(default_factory=dict)
    order: list[str] = field(default_factory=list)
    zarr_format: int = 2
    why_v3: list[str] = field(default_factory=list)
    skipped: dict[str, str] = field(default_factory=dict)
    on_error: OnError | Literal["ignore"] = "raise"
    regular: bool = False
    clients: tuple[str, ...] = ()
    split: Split | None = None
    parallel: Any = None

    def sources(self) -> set[Source]:
        """Return all files that are referred to."""
        sources = {source for array in self.arrays.values() for source in array.manifest.sources}
        return {source for source in sources if not source.is_inline}

    def skip(self, path: str, error: errors.VirtualZarrError) -> None:
        """Skip an array whose chunks turn out not to be readable; raise if that is asked."""
        if self.on_error == "raise":
            raise error.at(variable=path or "/") from error.__cause__
        del self.arrays[path]
        self.order.remove(path)
        self.skipped[path] = error.message
        if self.on_error == "warn":
            errors.warn_caller(f"{path}: {error}; it was left out")


def make_plan(
    node: Group | Array,
    *,
    copy: bool,
    zarr_format: int | None,
    on_error: OnError | Literal["ignore"],
    capabilities: Capabilities,
    inline: InlinePolicy | None = None,
    regular: bool | None = None,
    frozen: Mapping[str, ArrayMetadata] | None = None,
    clients: Sequence[str] = (),
) -> Plan:
    """Decide what is published; see `PlanRequest`.

    Raises `PublishError` if arrays cannot be published so that others read them right, and
    `on_error` is "raise".
    """
    plan = Plan(on_error=on_error, regular=bool(regular), clients=tuple(clients))
    # Zarr v2 has no rectilinear grids, whatever else the form could hold.
    if zarr_format == 2:
        capabilities = replace(capabilities, any_grid=False)
    nodes: Iterable[tuple[str, Array | Group]] = [("", node)]
    if isinstance(node, Group):
        nodes = [("", node), *node.members(max_depth=None)]
    if not copy and _closes_nothing(node):
        plugins = capabilities.plugin_codecs | {portable.IMAGES}
        capabilities = replace(capabilities, plugin_codecs=plugins)
    data = DatasetData()
    policy = (inline or InlinePolicy()).of(node)
    formats = capabilities.zarr_formats if zarr_format is None else (zarr_format,)
    request = PlanRequest(
        copy, capabilities, policy, regular, frozen or {}, tuple(clients), formats
    )
    for path, member in nodes:
        # The order of the hierarchy is kept: zarr-python loses nodes of consolidated metadata
        # that are out of it.
        plan.order.append(path)
        if isinstance(member, Group):
            plan.groups[path] = member
            continue
        try:
            plan.arrays[path] = plan_array(path, member, request, data)
        except errors.PublishError as error:
            plan.skipped[path] = error.message
    _settle_format(plan, zarr_format, copy, capabilities)
    _spell_ome(plan)
    _settle_skipped(plan, on_error)
    return plan


def _closes_nothing(node: Group | Array) -> bool:
    """Tell whether codecs that readers have to register take no array with them that has none."""
    arrays = list_arrays(node).values()
    return all(portable.list_image_codecs(each.metadata.pipeline) for each in arrays)


def _settle_format(plan: Plan, requested: int | None, copy: bool, can: Capabilities) -> None:
    """Choose the format of all documents: readers cannot mix them in one hierarchy."""
    # One format for all: readers cannot mix them in one hierarchy.
    plan.zarr_format = requested or can.zarr_formats[0]
    # Missing chunks that v2 documents cannot give are copied only where v3 would not do.
    fill = partial(
        _with_fill_chunks, can=can, copy=copy and (requested == 2 or 3 not in can.zarr_formats)
    )
    free = requested is None and plan.zarr_format == 2 and 3 in can.zarr_formats
    split = partial(_split_describable, fill=fill, clients=plan.clients)
    describable, obstacles = split(plan.arrays, plan.zarr_format)
    # First try v3 for what v2 cannot describe as it is, and only then copies: a copy costs
    # reading, v3 costs older readers.
    if obstacles and free:
        _prefer_v3(plan, obstacles, {path: plan.arrays[path] for path in obstacles}, fill)
        if plan.zarr_format == 3:
            describable, obstacles = split(plan.arrays, 3)
    # Copies have plain codecs and data types, which either format describes.
    if obstacles and copy:
        again, left = split(_copies(plan, obstacles), plan.zarr_format)
        if left and free and plan.zarr_format == 2:
            # Copies do not help where chunks have several shapes.
            _prefer_v3(plan, left, _copies(plan, left), fill)
            if plan.zarr_format == 3:
                describable, obstacles = split(plan.arrays, 3)
                again, left = split(_copies(plan, obstacles), 3)
        describable, obstacles = describable | again, left
    plan.skipped |= {path: f"Zarr v{plan.zarr_format}: {why}" for path, why in obstacles.items()}
    plan.arrays = {path: describable[path] for path in plan.arrays if path in describable}


def _copies(plan: Plan, obstacles: Mapping[str, str]) -> dict[str, ArrayPlan]:
    return {path: copy_all(plan.arrays[path], why) for path, why in obstacles.items()}


def _prefer_v3(
    plan: Plan,
    obstacles: Mapping[str, str],
    arrays: Mapping[str, ArrayPlan],
    fill: Callable[[ArrayPlan], ArrayPlan],
) -> None:
    """Choose Zarr v3 if it has a form for arrays that v2 has none for."""
    _, obstacles_v3 = _split_describable(arrays, 3, fill, plan.clients)
    plan.why_v3 = [
        f"{path or '/'}: {why}" for path, why in obstacles.items() if path not in obstacles_v3
    ]
    if plan.why_v3:
        plan.zarr_format = 3


def _spell_ome(plan: Plan) -> None:
    """Give OME-Zarr metadata the version that goes with the format of the documents."""
    groups = {path: group.attributes for path, group in plan.groups.items()}
    arrays = {path: array.metadata.dimension_names or () for path, array in plan.arrays.items()}
    attributes, dims = find_ome_changes(groups, arrays, plan.zarr_format)
    for path, changed in attributes.items():
        plan.groups[path] = Group(changed, path=path)
    for path, names in dims.items():
        array = plan.arrays[path]
        array.metadata = array.metadata.replace(dimension_names=names)


def _spell_codecs(array: ArrayPlan, zarr_format: int) -> ArrayPlan:
    """Give an array that is copied as a whole the codecs that most readers have in a format."""
    codecs = array.metadata.pipeline.codecs
    if not array.plain or codecs[-1].name not in ("zstd", "gzip", "numcodecs.zlib"):
        return array
    # TensorStore knows no zstd in v2; readers outside of Python know no zlib in v3.
    last = make("numcodecs.zlib", level=1) if zarr_format == 2 else make("gzip", level=1)
    metadata = array.metadata.replace(pipeline=Pipeline([*codecs[:-1], last]))
    return replace(array, metadata=metadata)


def _split_describable(
    arrays: Mapping[str, ArrayPlan],
    zarr_format: int,
    fill: Callable[[ArrayPlan], ArrayPlan],
    clients: Sequence[str],
) -> tuple[dict[str, ArrayPlan], dict[str, str]]:
    """Arrays that documents of a format describe exactly, and why they do not describe others."""
    describable, obstacles = {}, {}
    for path, planned in arrays.items():
        # Before fill values are encoded by these codecs.
        array = _spell_codecs(planned, zarr_format)
        if zarr_format == 2:
            array = fill(array)
            why = portable.obstacle_in_v2(array.metadata, array.shows_missing)
        else:
            why = portable.reserved_name(path) or portable.obstacle_in_v3(array.metadata)
        why = why or explain_unreadable(array.metadata, zarr_format, clients)
        if why is None:
            describable[path] = array
        else:
            obstacles[path] = why
    return describable, obstacles


def _settle_skipped(plan: Plan, on_error: OnError | Literal["ignore"]) -> None:
    if not plan.skipped:
        return
    if on_error == "raise":
        by_reason: dict[str, list[str]] = {}
        for path, reason in list(plan.skipped.items())[:_SHOWN]:
            by_reason.setdefault(reason, []).append(path or "/")
        lines = [f"{', '.join(paths)}: {reason}" for reason, paths in by_reason.items()]
        count = len(plan.skipped)
        others = f"; and {count - _SHOWN} more" if count > _SHOWN else ""
        raise errors.PublishError(
            f"{many(count, 'array')} cannot be published: {'; '.join(lines)}{others}",
            variable=next(iter(plan.skipped)) or "/",
        )
    for path, reason in plan.skipped.items() if on_error == "warn" else ():
        errors.warn_caller(f"{path or '/'}: {reason}; it was left out")
    plan.order = [path for path in plan.order if path not in plan.skipped]


def _with_fill_chunks(plan: ArrayPlan, can: Capabilities, copy: bool) -> ArrayPlan:
    """Write out missing chunks that v2 documents, or readers of the form, cannot do without."""
    missing, metadata = plan.missing, plan.metadata
    # xarray masks the fill value of v2: where that is not what the source masks, missing chunks
    # must be written out.
    if not missing or (can.missing_chunks and is_fill_mask(metadata)):
        return plan
    if portable.obstacle_in_v2(metadata, missing=False) is not None:
        return plan
    shape = metadata.grid.cell_shape((0,) * metadata.ndim)
    # Encoding a chunk to learn its size costs its memory; fill values of huge chunks are left to
    # v3.
    if math.prod(shape) * metadata.itemsize > LARGEST_FILL_CHUNK:
        return plan
    try:
        chunk = materialize.encode_exactly(metadata, materialize.fill_block(metadata, shape))
    except (errors.PublishError, errors.UnsupportedError, errors.CodecError):
        return plan  # lossy codecs, and those that cannot encode: v3 has a fill value for all
    # In Parquet, what is equal is stored once.
    if len(chunk) * (missing if can.missing_chunks else 1) > INLINE_FILL_BYTES:
        return replace(plan, filler=chunk) if copy else plan
    # All missing cells share one inline source: the text is repeated in JSON, but stored once in
    # memory and in Parquet.
    cells = np.flatnonzero(np.asarray(plan.manifest.source).reshape(-1) < 0)
    manifest = materialize.with_copies(plan.manifest, cells, Source.inline(chunk), 0, len(chunk))
    return replace(plan, manifest=manifest)
