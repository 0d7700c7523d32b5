"""`copy`: arrays and hierarchies with other chunks, codecs or Zarr formats."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Unpack

from virtualzarr import errors
from virtualzarr.array import Array
from virtualzarr.choices import OnError
from virtualzarr.hierarchy.group import Group
from virtualzarr.keywords import strict_keywords
from virtualzarr.metadata import GroupMetadata
from virtualzarr.metadata.ome import find_ome_changes
from virtualzarr.nodes.consolidated import consolidate
from virtualzarr.nodes.documents import join, validate_path
from virtualzarr.rechunk.claim import Claim
from virtualzarr.rechunk.destination import (
    check_disjoint,
    claim_destination,
    finish_destination,
    open_destination,
    write_documents,
)
from virtualzarr.rechunk.node_plan import ArrayPlan, CopyOptions, GroupPlan, plan_array, plan_group
from virtualzarr.rechunk.parallel import run_parallel
from virtualzarr.rechunk.transfer import ArrayTransfer, TransferCounts
from virtualzarr.redaction import hide_in_url
from virtualzarr.references.report import many
from virtualzarr.stores import Store
from virtualzarr.stores.files import resolve_uri
from virtualzarr.stores.zip import ZipStore

_log = logging.getLogger(__name__)

PROGRESS_BYTES = 64 * 1024 * 1024
"""A progress bar is shown for this many bytes of elements and more."""

READS_WARNED = 1.05
"""If chunks are decoded so many times, on average, it is said."""


@dataclass(frozen=True)
class CopyReport:
    """What was copied.

    Attributes
    ----------
    arrays, groups : int
    copied : int
        Chunks, or shards, that were copied as they are stored.
    repacked : int
        Chunks that went into or out of shards as they are stored.
    nbytes_copied : int
        Bytes of all these.
    nbytes_decoded : int
        Bytes of the elements of all other chunks, which were decoded and encoded again.
    reads : dict of str to float
        Arrays whose chunks were decoded more than once for want of memory, by path, and how often
        each chunk was on average.
    skipped : dict of str to str
        Variables that could not be read, by path, and why.
    notes : tuple of str
        What documents of the copy could not say to other readers as it was.
    """

    arrays: int
    groups: int
    copied: int
    repacked: int
    nbytes_copied: int
    nbytes_decoded: int
    reads: Mapping[str, float]
    skipped: Mapping[str, str]
    notes: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return self.text()

    def text(self) -> str:
        """Return what was copied, line by line.

        Examples
        --------
        >>> print(CopyReport(2, 1, 8, 0, 4096, 0, {}, {}).text())
        2 arrays, 1 group
          8 chunks copied as stored, 0 repacked: 4,096 bytes
          0 bytes of elements decoded and encoded anew
        """
        lines = [
            f"{many(self.arrays, 'array')}, {many(self.groups, 'group')}",
            f"{many(self.copied, 'chunk')} copied as stored, {self.repacked:,} repacked: "
            f"{self.nbytes_copied:,} bytes",
            f"{self.nbytes_decoded:,} bytes of elements decoded and encoded anew",
        ]
        lines += [f"{path}: chunks were decoded {n:.1f} times each" for path, n in
                  self.reads.items()]  # fmt: skip
        lines += [f"left out: {path}: {reason}" for path, reason in self.skipped.items()]
        lines += [f"note: {note}" for note in self.notes]
        return "\n  ".join(lines)


@strict_keywords(CopyOptions)
def copy(
    source: Any,
    destination: Any,
    path: str = "",
    *,
    name: str = "",
    zarr_format: int | None = None,
    overwrite: bool = False,
    write_empty_chunks: bool | None = None,
    consolidated: bool | None = None,
    memory: int | None = None,
    progress: bool | None = None,
    parallel: Any = None,
    format: str | None = None,
    on_error: OnError = "raise",
    allowed: str | Iterable[str] | None = None,
    storage_options: Mapping[str, Any] | None = None,
    destination_options: Mapping[str, Any] | None = None,
    **options: Unpack[CopyOptions],
) -> CopyReport:
    """Copy an array, or a group with everything in it, into a Zarr hierarchy of its own.

    Values, attributes, dimension names and fill values stay as they are, to the bit. So do chunks,
    codecs and the Zarr format, unless something else is asked for. What is stored alike in both is
    copied without decoding it: chunks and shards, and also chunks that go into shards or out of
    them. Chunks that are missing stay so and cost nothing.

    Parameters
    ----------
    source : Array, Group, or what `virtualzarr.open` opens
        A Zarr hierarchy, a reference file, or a file of any format that scans.
    destination : path, URL, mutable mapping or store
        A path that ends with ``.zip`` makes a zip file, always a new one.
    path : str
        Which node of the source; the root by default.
    name : str
        Where in the destination; the root by default.
    zarr_format : {2, 3}, optional
        By default that of the source.
    overwrite : bool
        Whether an array or group that is there already is deleted first, with everything in it.
    write_empty_chunks : bool, optional
        Whether chunks are stored that hold nothing but the fill value, where the source has them.
        By default they are where they are copied as stored, not where they are encoded anew. False
        decodes all chunks to leave such out.
    consolidated : bool, optional
        Whether the metadata of a group are consolidated; by default if those of the source are.
    memory : int, optional
        Bytes that may be used for chunks, encoded or not. By default 256 MiB, or what a single
        chunk or shard of the destination takes where that is more.
    progress : bool, optional
        Whether to show a progress bar; by default for 64 MiB and more, in a terminal.
    parallel : int, concurrent.futures.Executor or dask.distributed.Client, optional
        Its workers read, encode and write; the copy is the same to the byte. Each uses as much
        memory as `memory` says. They have to reach source and destination as this process does.
    format, on_error, allowed, storage_options
        For `virtualzarr.open`.
    destination_options : mapping, optional
        For the file system of a URL that is copied to.
    chunks, shards : "keep", or as for `create_array`
        Also a mapping of dimension names to edges: other axes, and arrays without such a dimension,
        keep theirs. ``shards=None`` takes chunks out of shards.
    filters, serializer, compressors, codecs : "keep", or as for `create_array`
        Those that are asked for may lose something; those that are kept may not.
    fill_value : optional
        Chunks that are missing are stored then, unless they read as the same.
    chunk_key_encoding, dimension_separator : optional
        As for `create_array`.

    Returns
    -------
    CopyReport

    Raises
    ------
    NodeExistsError
        There is something at the destination.
    MetadataError, UnsupportedError, CodecError
        Something has no exact form in the copy, or cannot be had; nothing is written then. Also if
        codecs that were kept turn out not to give back what they are given.
    ValueError
        The memory given does not suffice for a single chunk.

    Warns
    -----
    UserWarning
        The memory does not suffice to decode each chunk only once; the message has what would.

    Notes
    -----
    Documents are written after the chunks, and that of the root last: a copy that was interrupted
    cannot be opened at its root, and what can be opened below is complete. ``overwrite=True``
    begins it anew.

    Examples
    --------
    >>> import numpy as np
    >>> import virtualzarr as vz
    >>> a = vz.create_array({}, data=np.arange(24).reshape(4, 6), chunks=(1, 6))
    >>> store = {}
    >>> report = vz.copy(a, store, chunks=(4, 2), zarr_format=2)
    >>> vz.open(store).chunks, vz.open(store)[2].tolist()
    ((4, 2), [12, 13, 14, 15, 16, 17])
    """
    root = _open_source(source, path, format, on_error, allowed, storage_options)
    # All nodes are planned before anything is opened for writing: what cannot be copied exactly is
    # an error that leaves the destination untouched.
    source_format = _zarr_format_of(root)
    zarr_format = source_format if zarr_format is None else zarr_format
    if zarr_format not in (2, 3):
        raise errors.UnsupportedError(f"zarr_format {zarr_format}; known are 2 and 3")
    nodes = _list_nodes(root)
    _check_dimension_names(nodes, options)
    plans = {key: _plan_node(node, key, zarr_format, options) for key, node in nodes.items()}
    if _is_virtual(root) or source_format != zarr_format:
        _convert_ome(plans, zarr_format)
    with open_destination(destination, overwrite, destination_options) as store:
        start = validate_path(name, zarr_format)
        # A zip file is written under another name first; overlaps are those of its final name.
        named = isinstance(store, ZipStore) and not isinstance(destination, ZipStore)
        uri = resolve_uri(destination) if named else store.uri
        check_disjoint(nodes, store, start, uri)
        transfers: dict[str, ArrayTransfer] = {}
        for key, node in nodes.items():
            plan = plans[key]
            if isinstance(node, Array) and isinstance(plan, ArrayPlan):
                below = validate_path(join(start, key), zarr_format)
                target = Array.from_store(plan.metadata, store, below)
                transfers[key] = _plan_transfer(node, target, plan, memory, write_empty_chunks, key)
        # Only now is anything deleted or written.
        with claim_destination(store, start, zarr_format, overwrite) as claim:
            counts = _run(transfers, plans, store, start, progress, parallel, claim)
            # Consolidated metadata repeat all documents, so they come last.
            if isinstance(root, Group) and (
                consolidated or (consolidated is None and _is_consolidated(root))
            ):
                consolidate(store, start)
            finish_destination(store, start, zarr_format, claim)
    _log.info("copied %d arrays to %s", len(transfers), hide_in_url(uri))
    return CopyReport(
        len(transfers), len(nodes) - len(transfers), counts.copied, counts.repacked,
        counts.nbytes_copied, counts.nbytes_decoded,
        {key or "/": work.reads for key, work in transfers.items() if work.reads >= READS_WARNED},
        dict(getattr(root, "skipped", {})),
        tuple(f"{key or '/'}: {note}" for key, plan in plans.items() for note in plan.notes),
    )  # fmt: skip


def _open_source(
    source: Any,
    path: str,
    format: str | None,
    on_error: OnError,
    allowed: Any,
    storage_options: Mapping[str, Any] | None,
) -> Array | Group:
    if isinstance(source, Group):
        return source[path] if path.strip("/") else source
    if isinstance(source, Array):
        if path.strip("/"):
            raise errors.MetadataError(f"{path!r}: an array has nothing in it")
        return source
    from virtualzarr.ingest.open_target import open

    return open(
        source, path, format=format, on_error=on_error, allowed=allowed,
        storage_options=storage_options,
    )  # fmt: skip


def _list_nodes(root: Array | Group) -> dict[str, Array | Group]:
    """Return all nodes by their paths below the root, groups before what is in them."""
    nodes = {"": root}
    if isinstance(root, Group):
        nodes.update(root.members(max_depth=None))
    return nodes


def _zarr_format_of(root: Array | Group) -> int:
    """Return the Zarr format of what is copied; of a virtual group, that of all its arrays."""
    if isinstance(root, Array):
        return root.metadata.zarr_format
    if not _is_virtual(root):
        return root.zarr_format
    formats = {node.metadata.zarr_format for node in _list_nodes(root).values()
               if isinstance(node, Array)}  # fmt: skip
    return 2 if formats == {2} else 3


def _is_virtual(root: Array | Group) -> bool:
    return isinstance(root, Group) and getattr(root._members, "store", None) is None


def _convert_ome(plans: dict[str, ArrayPlan | GroupPlan], zarr_format: int) -> None:
    """Give OME-Zarr metadata the version that goes with the format of the copy."""
    group_plans = {p: plan for p, plan in plans.items() if isinstance(plan, GroupPlan)}
    groups = {p: plan.metadata.attributes for p, plan in group_plans.items()}
    array_plans = {p: plan for p, plan in plans.items() if isinstance(plan, ArrayPlan)}
    arrays = {path: plan.metadata.dimension_names or () for path, plan in array_plans.items()}
    attributes, dims = find_ome_changes(groups, arrays, zarr_format)
    for path, changed in attributes.items():
        metadata = GroupMetadata(changed, zarr_format)
        plans[path] = replace(group_plans[path], metadata=metadata)
    for path, names in dims.items():
        changed_one = array_plans[path].metadata.replace(dimension_names=names)
        plans[path] = replace(array_plans[path], metadata=changed_one)


def _is_consolidated(group: Group) -> bool:
    metadata = getattr(group._members, "metadata", None)
    return metadata is not None and metadata.consolidated is not None


def _check_dimension_names(nodes: Mapping[str, Array | Group], options: CopyOptions) -> None:
    """Refuse edges for dimensions that no array has."""
    arrays = (node for node in nodes.values() if isinstance(node, Array))
    names = dict.fromkeys(name for array in arrays for name in array.dims)
    for option in ("chunks", "shards"):
        value = options.get(option)
        # Other mappings are grids in the words of Zarr metadata.
        if isinstance(value, Mapping) and not {"configuration", "shape"} & {*value}:
            unknown = [name for name in value if name not in names]
            if unknown:
                hint = errors.suggest(str(unknown[0]), filter(None, names))
                raise errors.MetadataError(
                    f"{option}: no array has a dimension {unknown[0]!r}; {hint}"
                )


def _plan_node(
    node: Array | Group, key: str, zarr_format: int, options: CopyOptions
) -> ArrayPlan | GroupPlan:
    with errors.error_context(variable=key or "/"):
        if isinstance(node, Array):
            return plan_array(node, zarr_format, options)
        return plan_group(node, zarr_format)


def _plan_transfer(
    source: Array,
    target: Array,
    plan: ArrayPlan,
    memory: int | None,
    write_empty_chunks: bool | None,
    key: str,
) -> ArrayTransfer:
    with errors.error_context(variable=key or "/"):
        work = ArrayTransfer(source, target, plan, memory, write_empty_chunks)
    if work.reads >= READS_WARNED:
        errors.warn_caller(
            f"/{key}: within {work.memory:,} bytes of memory each chunk is decoded "
            f"{work.reads:.1f} times; with memory={work.best} it would be once",
            UserWarning,
        )
    return work


def _run(
    transfers: Mapping[str, ArrayTransfer],
    plans: Mapping[str, ArrayPlan | GroupPlan],
    store: Store,
    start: str,
    progress: bool | None,
    parallel: Any,
    claim: Claim,
) -> TransferCounts:
    """Copy all chunks, and write the documents of each node after everything in it."""
    from tqdm import tqdm

    counts = TransferCounts()
    for work in transfers.values():
        work.claim = claim
    total = sum(work.nbytes for work in transfers.values())
    if progress is None:
        # A bar that flashes by, or ends up in a log file, is noise.
        progress = total >= PROGRESS_BYTES and bool(sys.stderr) and sys.stderr.isatty()
    with tqdm(
        total=total, unit="B", unit_scale=True, unit_divisor=1024, desc="copy",
        disable=not progress,
    ) as bar:  # fmt: skip
        if parallel is not None:
            run_parallel(reversed([*transfers.values()]), store, parallel, counts, bar.update)
        # Backwards, so that groups come after what is in them.
        for key, plan in reversed(list(plans.items())):
            if key in transfers and parallel is None:
                bar.set_postfix_str(key, refresh=False)
                transfers[key].run(counts, bar.update)
            path = validate_path(join(start, key), plan.metadata.zarr_format)
            claim.check()
            write_documents(store, path, plan.metadata)
    return counts
