"""Splits a hierarchy into groups in each of which packing and codecs are the same.

A Zarr array has one chain of codecs and one scale factor. Where those differ from file to file, no
array that other clients know holds all chunks as they are; a group for each run of equal ones does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from grids import SeparableGrid
from virtualzarr.array import Array
from virtualzarr.codecs import Codec, Pipeline
from virtualzarr.codecs.unpack import Unpack
from virtualzarr.errors import PublishError
from virtualzarr.hierarchy.group import Group
from virtualzarr.manifest import Decoder
from virtualzarr.metadata import TypedFloat
from virtualzarr.virtual.from_store import as_virtual

MOST_RUNS = 1000
"""More groups than that are no dataset any more."""


def split_runs(group: Group) -> Group:
    """Return a group with a member for each run of equal packing and codecs.

    Members are ``run0``, ``run1``, ...; each has the part of every array that lies in the run,
    packed as in the files, with `scale_factor` and `add_offset` of its own. Arrays without the
    dimension are in each of them. Nothing is read.

    Parameters
    ----------
    group : Group

    Returns
    -------
    Group
        The same group where nothing differs.

    Raises
    ------
    PublishError
        Chunks differ along several dimensions, or along one without a name; there are more than a
        thousand runs; or arrays are in groups within the group.
    """
    if any(True for _ in group.groups()):
        raise PublishError("groups within groups are not split: publish them one by one")
    arrays = {name: as_virtual(array) for name, array in group.arrays()}
    dim, length, cuts = _find_cuts(arrays)
    if dim is None:
        return group
    if len(cuts) >= MOST_RUNS:
        raise PublishError(f"there are {len(cuts) + 1:,} runs along {dim}; at most {MOST_RUNS:,}")
    width = len(str(len(cuts)))
    members: dict[str, Array | Group] = {}
    for number, (start, stop) in enumerate(pairwise([0, *cuts, length])):
        name = f"run{number:0{width}}"
        parts = {key: _take_run(array, dim, start, stop) for key, array in arrays.items()}
        placed = {key: part.with_path(f"{name}/{key}") for key, part in parts.items()}
        members[name] = Group(dict(group.attributes), {**placed}, path=name)
    return Group(dict(group.attributes), members)


def _find_cuts(arrays: Mapping[str, Array]) -> tuple[str | None, int, list[int]]:
    """Return the dimension along which chunks differ, its length, and where they do."""
    cuts_by_dim: dict[str, tuple[int, set[int]]] = {}
    for name, array in arrays.items():
        axis, cuts = _find_changes(name, array)
        if axis is None:
            continue
        dim = (array.dimension_names or (None,) * array.ndim)[axis]
        if dim is None:
            raise PublishError("chunks differ along a dimension without a name", variable=name)
        length, earlier = cuts_by_dim.setdefault(dim, (array.shape[axis], set()))
        earlier |= cuts
    if len(cuts_by_dim) > 1:
        names = " and ".join(cuts_by_dim)
        raise PublishError(f"chunks differ along {names}: there are no runs along one dimension")
    for dim, (length, places) in cuts_by_dim.items():
        return dim, length, sorted(places)
    return None, 0, []


def _find_changes(name: str, array: Array) -> tuple[int | None, set[int]]:
    """Return along which axis codecs change, and at which indices."""
    manifest, grid = array.manifest, array.grid
    if manifest.decoder is None or not isinstance(grid, SeparableGrid):
        return None, set()
    kinds = _kinds(array)
    rows = np.where(np.asarray(manifest.source) >= 0, kinds[np.asarray(manifest.decoder)], -1)
    if len(np.unique(rows[rows >= 0])) < 2:
        return None, set()
    for axis in range(array.ndim):
        planes = np.moveaxis(rows, axis, 0).reshape(rows.shape[axis], -1)
        high = planes.max(axis=1)
        low = np.where(planes < 0, high[:, None], planes).min(axis=1)
        if (high == low).all():
            return axis, _places(high, np.asarray(grid.axes[axis].start(np.arange(len(high)))))
    raise PublishError("codecs differ along several dimensions", variable=name)


def _kinds(array: Array) -> npt.NDArray[np.int64]:
    """Return a number for each decoder, equal where chunks decode alike; the own one is last."""
    chains = [*(d.pipeline for d in array.manifest.decoders), array.metadata.pipeline]
    keys = [chain.decoding_key(array.metadata.dtype) for chain in chains]
    numbers = {key: number for number, key in enumerate(dict.fromkeys(keys))}
    return np.array([numbers[key] for key in keys])


def _places(kinds: npt.NDArray[np.int64], starts: npt.NDArray[np.int64]) -> set[int]:
    """Return where a plane has another kind than the one before; missing ones have any."""
    present = np.flatnonzero(kinds >= 0)
    changes = present[1:][np.diff(kinds[present]) != 0]
    return set(starts[changes].tolist())


def _take_run(array: Array, dim: str, start: int, stop: int) -> Array:
    """Return the part of an array in a run, packed as it is stored."""
    names = array.dimension_names or ()
    if dim in names:
        index = tuple(slice(start, stop) if name == dim else slice(None) for name in names)
        array = array.lazy[index]
    return _as_stored(array)


def _as_stored(array: Array) -> Array:
    """Declare the codecs that all chunks of an array have, without those that unpack."""
    manifest = array.manifest
    rows = np.broadcast_to(-1 if manifest.decoder is None else manifest.decoder, manifest.shape)
    used = np.unique(rows[np.asarray(manifest.source) >= 0]).tolist()
    chains = [array.metadata.pipeline if r < 0 else manifest.decoders[r].pipeline for r in used]
    keys = {chain.decoding_key(array.metadata.dtype) for chain in chains}
    if len(keys) != 1:
        return array
    codecs = list(chains[0].codecs)
    unpack = codecs[0] if isinstance(codecs[0], Unpack) else None
    if unpack is not None and (described := _describe_packing(unpack, array)) is not None:
        codecs, changes = codecs[1:], described
    elif chains[0] == array.metadata.pipeline:
        return array
    else:
        changes = {}
    pipeline = Pipeline(codecs)
    # All chunks that are there have these codecs; what is left of decoders is the shape of blocks.
    decoders = [Decoder(pipeline, decoder.shape) for decoder in manifest.decoders]
    whole = np.array([*(d.shape is None for d in decoders), True])
    decoder = None if whole[rows].all() else np.where(whole[rows], -1, rows)
    metadata = array.metadata.replace(pipeline=pipeline, **changes)
    return array.replace(
        metadata,
        manifest.replace(decoders=decoders if decoder is not None else (), decoder=decoder),
    )


def _describe_packing(unpack: Codec, array: Array) -> dict[str, Any] | None:
    """Return the metadata by which readers of CF conventions unpack alike, if there are any."""
    fields = unpack.configuration
    stored = np.dtype(fields["data_type"])
    masks: Sequence[Any] = fields.get("masks", ())
    if len(masks) > 1 or "factors" in fields:
        return None
    attributes = dict(array.metadata.attributes)
    if "view" in fields:
        view = np.dtype(fields["view"])
        if (stored.kind, view.kind) != ("i", "u"):
            return None
        attributes["_Unsigned"] = "true"
    # With the data type in which they were calculated, so that reports say where JSON loses it.
    calculated = np.dtype(fields["calculated"])
    if calculated.kind != "f":
        return None
    attributes |= {
        name: TypedFloat.from_numpy(calculated.type(fields[name]))
        for name in ("scale_factor", "add_offset")
        if name in fields
    }
    if masks:
        attributes["_FillValue"] = masks[0]
    return {"dtype": stored, "fill_value": fields.get("fill", 0), "attributes": attributes}
