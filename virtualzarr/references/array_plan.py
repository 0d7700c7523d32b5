"""Plan of one array: on which grid it is published, and which of its chunks are copied."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from grids import RegularGrid, SeparableGrid
from virtualzarr import errors
from virtualzarr.array import Array
from virtualzarr.codecs import Pipeline
from virtualzarr.config import config
from virtualzarr.manifest import Manifest, Source, Sources
from virtualzarr.metadata import ArrayMetadata, check_name
from virtualzarr.references import materialize, portable
from virtualzarr.references.canonical import Canonical, make_canonical, with_truncation
from virtualzarr.references.clients import explain_unreadable
from virtualzarr.references.dataset_data import REASON, DatasetData
from virtualzarr.references.form import Capabilities
from virtualzarr.references.inline_policy import (
    InlinePolicy,
    fits_within,
    inline_metadata,
    nbytes_of,
)
from virtualzarr.references.regular_grid import Regular, choose_regular, on_grid
from virtualzarr.references.report import many
from virtualzarr.references.unchanged import has_same_meaning
from virtualzarr.references.virtual_store import bytes_in_memory, manifest_of
from virtualzarr.virtual.axis_slices import AxisSlices
from virtualzarr.virtual.rechunk import apply_axis_slices


@dataclass
class ArrayPlan:
    """One array on its way into the file.

    Attributes
    ----------
    metadata : ArrayMetadata
        With codecs that other readers have.
    manifest : Manifest
        Canonical but for the cells in `misread`.
    misread : int64 array
        C-order numbers of the cells whose chunks must be copied.
    reasons : dict of str to int
        Why, and for how many of them.
    filler : bytes, optional
        The chunk of fill values that is stored once for all cells without a chunk.
    inline : bool
        Whether copies are stored within the references.
    plain : bool
        Whether all chunks are copied, so that their codecs are ours to choose.
    note : str
        What users need to know of it.
    """

    path: str
    array: Array
    metadata: ArrayMetadata
    manifest: Manifest
    misread: npt.NDArray[np.int64]
    reasons: dict[str, int] = field(default_factory=dict)
    filler: bytes | None = None
    inline: bool = False
    plain: bool = False
    note: str = ""

    @property
    def is_regular(self) -> bool:
        """Whether all chunks have one shape."""
        return portable.is_regular(self.metadata)

    @property
    def missing(self) -> int:
        """Cells without a chunk."""
        return self.manifest.ncells - self.manifest.nrefs

    @property
    def shows_missing(self) -> bool:
        """Whether readers will see cells without a chunk."""
        return self.missing > 0 and self.filler is None


@dataclass(frozen=True)
class PlanRequest:
    """What is asked of a plan.

    Attributes
    ----------
    copy : bool
        Whether chunks that others would read wrong may be copied.
    regular : bool, optional
        Whether all grids are to be regular; by default where the form holds no other.
    frozen : mapping of ArrayMetadata by path
        Of regular arrays that readers have open already: chunk shapes and codecs stay.
    clients : tuple of str
        Those that must know all codecs.
    zarr_formats : tuple of int
        Which the documents may have.
    """

    copy: bool
    capabilities: Capabilities
    inline: InlinePolicy
    regular: bool | None = None
    frozen: Mapping[str, ArrayMetadata] = field(default_factory=dict)
    clients: tuple[str, ...] = ()
    zarr_formats: tuple[int, ...] = (2, 3)

    def is_read(self, metadata: ArrayMetadata) -> bool:
        """Tell whether the clients know all codecs of an array."""
        formats = self.zarr_formats
        return any(explain_unreadable(metadata, f, self.clients) is None for f in formats)

    def needs_regular(self, metadata: ArrayMetadata) -> bool:
        """Tell whether an array's grid has to be replaced by a regular one."""
        is_regular = not self.capabilities.any_grid if self.regular is None else self.regular
        return is_regular and not portable.is_regular(metadata)


def plan_array(path: str, array: Array, request: PlanRequest, data: DatasetData) -> ArrayPlan:
    """Plan one array.

    Raises `PublishError` if others would not read it right, and nothing may be done about it.
    """
    can, policy = request.capabilities, request.inline
    _check_names(path, can)
    if policy.always_copies(path, array):
        return _plan_inline(path, array, request, "asked to be inline")
    array, canonical = _with_canonical(array, can)
    metadata = array.metadata
    is_odd = not portable.is_regular(metadata)
    if (is_odd or len(canonical.misread)) and _may_be_inline(path, array, canonical, request):
        why = "chunks have several shapes" if is_odd else "; ".join(canonical.reasons)
        return _plan_inline(path, array, request, why)
    note = ""
    is_unfit = len(canonical.misread) or not request.is_read(metadata)
    if request.needs_regular(metadata) or (request.regular and is_unfit):
        regular = _on_regular_grid(path, array, request)
        if regular is not None:
            metadata, canonical, note = regular.metadata, regular.canonical, _describe(regular)
    obstacle = _grid_obstacle(metadata, can)
    if obstacle is not None:
        raise errors.PublishError(obstacle)
    # Chunks of a store in memory would become inline base64, and the reference file as large as
    # the data.
    nbytes = 0 if can.chunks else bytes_in_memory(array)
    if nbytes > config.inline_bytes:
        if not request.copy:
            raise errors.PublishError(
                f"its chunks lie in memory and have {nbytes:,} bytes; within references there are "
                f"at most {config.inline_bytes:,} (virtualzarr.config.inline_bytes); copy=True "
                "stores them in a file beside the references"
            )
        canonical = _without_inline(canonical, "in memory, and too large to be inline")
    canonical = _without_unkept(canonical, path, request.copy, data)
    is_little = policy.may_copy_cells(metadata, len(canonical.misread), canonical.manifest)
    if len(canonical.misread) and not request.copy and not is_little:
        reasons = (_grid_obstacle(array.metadata, can), note) if note and is_odd else ()
        head = "".join(f"{reason}; " for reason in reasons if reason)
        raise errors.PublishError(_explain_copies(metadata, canonical, head))
    if canonical.longest:
        metadata = with_truncation(metadata, canonical.longest)
    plan = ArrayPlan(
        path, array, metadata, canonical.manifest, canonical.misread, canonical.reasons,
        inline=is_little, note=note,
    )  # fmt: skip
    if portable.private_codec(metadata, can.plugin_codecs) is not None:
        return copy_all(plan, "; ".join(canonical.reasons))  # of which there may be none
    # Copies are encoded by the array's own codecs, if these give back what they get: else lossy
    # chunks would lose twice.
    if len(canonical.misread) and not materialize.reversible(metadata, can.plugin_codecs):
        return copy_all(plan, "; ".join([*canonical.reasons, "the codecs may not be exact"]))
    return plan


def _check_names(path: str, can: Capabilities) -> None:
    for name in path.split("/") if path else ():
        try:
            check_name(name, 2)
        except errors.MetadataError as error:
            raise errors.PublishError(error.message) from error
        if can.document_prefix and name.startswith(can.document_prefix):
            raise errors.PublishError(
                f"{can.title} cannot hold the name {name!r}: fsspec takes what begins with "
                f"{can.document_prefix!r} for metadata, and finds no chunks; rename it "
                "(Group.rename), or publish as JSON"
            )


def _explain_copies(metadata: ArrayMetadata, canonical: Canonical, head: str) -> str:
    """Return why an array cannot be published without copies, and what else can be done."""
    total = many(canonical.manifest.nrefs, "chunk")
    why = "; ".join(f"{count} of {total}: {reason}" for reason, count in canonical.reasons.items())
    cell = _bytes_of_cell(metadata)
    return (
        f"{head}other readers would read it wrong ({why}); with copy=True such chunks, of "
        f"{len(canonical.misread) * cell:,} bytes decoded, are stored again beside the reference "
        "file; preview() lists what copies less"
    )


def _bytes_of_cell(metadata: ArrayMetadata) -> int:
    if 0 in metadata.grid.grid_shape:
        return 0
    return math.prod(metadata.grid.cell_shape((0,) * metadata.ndim)) * metadata.itemsize


def _on_regular_grid(path: str, array: Array, request: PlanRequest) -> Regular | None:
    """Put an array on the regular grid that readers have open, or on the best one."""
    plugins = request.capabilities.plugin_codecs
    if not isinstance(array.grid, SeparableGrid):
        return None
    virtual = array if array.is_virtual else array.replace(chunk_source=manifest_of(array))
    if path in request.frozen:
        frozen = request.frozen[path]
        pipeline = _frozen_pipeline(frozen, array)
        return on_grid(virtual, portable.chunk_shape(frozen), pipeline, plugins)

    def is_read(pipeline: Pipeline) -> bool:
        return request.is_read(array.metadata.replace(pipeline=pipeline))

    return choose_regular(virtual, plugins, is_read if request.clients else None)


def _frozen_pipeline(frozen: ArrayMetadata, array: Array) -> Pipeline | None:
    """Return the codecs that readers have open; None if elements are others now than they know."""
    # Codecs are of a type: what encodes single bytes has no byte order, and may be lossy for more.
    is_same = frozen.dtype.newbyteorder("=") == array.dtype.newbyteorder("=")
    return frozen.pipeline if is_same else None


def _describe(regular: Regular) -> str:
    chunks = "x".join(map(str, regular.chunk_shape))
    share = regular.virtual_bytes / max(regular.total_bytes, 1)
    text = f"on a regular grid of chunks {chunks}: {share:.1%} of the bytes stay virtual"
    if regular.unverified:
        text += f"; checksums of {many(regular.unverified, 'chunk')} are not verified by readers"
    return text


def _may_be_inline(path: str, array: Array, canonical: Canonical, request: PlanRequest) -> bool:
    """Tell whether all of an array that does not fit may be copied into the references."""
    frozen = request.frozen.get(path)
    if frozen is None:
        return request.inline.may_copy(path, array)
    # Elements that mean something else now are not for those who have the array open.
    if not has_same_meaning(array.metadata, frozen) or not fits_within(array):
        return False
    # What was wholly inline before may grow, by what the new files have of it.
    before = tuple(map(slice, frozen.grid.grid_shape))
    rows = np.unique(np.asarray(canonical.manifest.source)[before]).tolist()
    return path in request.inline.small or all(
        row >= 0 and canonical.manifest.sources[row].is_inline for row in rows
    )


def _plan_inline(path: str, array: Array, request: PlanRequest, why: str) -> ArrayPlan:
    """Copy all of an array into the references."""
    metadata = inline_metadata(array)
    if path in request.frozen:
        frozen = request.frozen[path]
        grid = RegularGrid(array.shape, portable.chunk_shape(frozen))
        pipeline = _frozen_pipeline(frozen, array) or metadata.pipeline
        metadata = metadata.replace(grid=grid, pipeline=pipeline)
    if not fits_within(array):
        raise errors.PublishError(
            f"it has {nbytes_of(array):,} bytes; within references there are at most "
            f"{config.inline_bytes:,} (virtualzarr.config.inline_bytes)"
        )
    shape = metadata.grid.grid_shape
    cells = np.arange(math.prod(shape) if manifest_of(array).nrefs else 0)
    # A source that nothing is read from: cells have one until they are copied.
    manifest = Manifest(shape, Sources([Source.inline(b"")]), 0 if len(cells) else -1, 0, 0)
    reasons = {why: len(cells)} if len(cells) else {}
    note = f"copied into the references: {why}"
    return ArrayPlan(
        path, array, metadata, manifest, cells, reasons, inline=True, plain=True, note=note
    )


def _grid_obstacle(metadata: ArrayMetadata, can: Capabilities) -> str | None:
    """Return why a form cannot hold an array's chunk grid, whatever the Zarr format, or None."""
    if can.any_grid or portable.is_regular(metadata):
        return None
    return (
        f"chunks have several shapes, and {can.title} holds chunks of one shape only: JSON of Zarr "
        "v3 (a name that ends in .json) and the native form (.zarr) hold them as they are; "
        "copy(chunks=...) writes chunks of one"
    )


def _with_canonical(array: Array, can: Capabilities) -> tuple[Array, Canonical]:
    """The array, on a regular grid if that costs no copies, and its canonical references.

    Where only the last cells reach past the end, and further than the others are long, what they
    have there need not be.
    """
    array = _with_regular_cells(array) if not array.size else array
    grid = array.grid
    manifest = manifest_of(array)
    canonical = make_canonical(array.metadata, manifest, can.plugin_codecs)
    if portable.is_regular(array.metadata) or not isinstance(grid, SeparableGrid):
        return array, canonical
    # A last chunk that was stored at full size makes a grid rectilinear; clipped to the array it
    # may be regular, and need no copy.
    pieces = [AxisSlices.clip(axis) for axis in grid.axes]
    shorter = apply_axis_slices(
        array if array.is_virtual else array.replace(chunk_source=manifest), pieces
    )
    if not portable.is_regular(shorter.metadata):
        return array, canonical
    other = make_canonical(shorter.metadata, shorter.manifest, can.plugin_codecs)
    return (shorter, other) if len(other.misread) <= len(canonical.misread) else (array, canonical)


def _without_inline(canonical: Canonical, why: str) -> Canonical:
    """Have all chunks that would be within the references copied."""
    # The entry behind the last is for missing chunks, whose row is -1.
    is_inline = np.array(
        [source.is_inline for source in canonical.manifest.sources] + [False], bool
    )
    inline = np.flatnonzero(is_inline[np.asarray(canonical.manifest.source).reshape(-1)])
    return _with_copied(canonical, inline, why)


def _without_unkept(canonical: Canonical, path: str, copy: bool, data: DatasetData) -> Canonical:
    """Have chunks copied that may be deleted while references to them are there."""
    if not copy:
        data.check(canonical.manifest, path or "/", "copy=True stores them beside the references")
        return canonical
    return _with_copied(canonical, data.find_unkept(canonical.manifest), REASON)


def _with_copied(canonical: Canonical, cells: npt.NDArray[np.int64], why: str) -> Canonical:
    added = np.setdiff1d(cells, canonical.misread)
    reasons = canonical.reasons | ({why: len(added)} if len(added) else {})
    return replace(canonical, misread=np.union1d(canonical.misread, added), reasons=reasons)


def _with_regular_cells(array: Array) -> Array:
    """Return an array without elements on a regular grid: it has no chunks that would differ."""
    grid, shards = array.grid, array.metadata.pipeline.serializer.needs_fill
    if portable.is_regular(array.metadata) or not isinstance(grid, SeparableGrid) or shards:
        return array
    # No format has chunks of length 0.
    edges = [int(axis.runs()[0].max(initial=1)) for axis in grid.axes]
    regular = RegularGrid(array.shape, edges)
    return array.replace(array.metadata.replace(grid=regular), Manifest.missing(regular.grid_shape))


def copy_all(plan: ArrayPlan, why: str) -> ArrayPlan:
    """The array with plain codecs and all its chunks to be copied."""
    dtype = portable.without_gaps(plan.metadata.dtype)
    metadata = plan.metadata.replace(
        dtype=dtype, pipeline=materialize.plain_pipeline(plan.metadata)
    )
    misread = np.flatnonzero(np.asarray(plan.manifest.source).reshape(-1) >= 0)
    reasons = {why: len(misread)} if len(misread) else {}
    return replace(plan, metadata=metadata, misread=misread, reasons=reasons, plain=True)
