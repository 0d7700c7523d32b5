"""Arrays joined along one of their axes, or along a new one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import grids
from grids import Axis
from virtualzarr.array import Array
from virtualzarr.combine.agree import (
    axes_of,
    check_agree,
    choose_model,
    fill_holder,
    grid_like,
    same_cells,
)
from virtualzarr.combine.attributes import combined_attributes
from virtualzarr.combine.edges import Cuts, cut_cells
from virtualzarr.combine.meaning import harmonized
from virtualzarr.combine.options import Options
from virtualzarr.combine.problems import Problems
from virtualzarr.combine.widen import widened_pipeline
from virtualzarr.errors import UnsupportedError
from virtualzarr.manifest import Decoder, Manifest
from virtualzarr.metadata import ArrayMetadata

DEFAULT = Options()


def concat_arrays(
    arrays: Sequence[Array],
    axis: int,
    problems: Problems,
    variable: str = "",
    options: Options = DEFAULT,
) -> Array | None:
    """Join arrays along one of their axes.

    Returns None, and notes why in `problems`, if they differ in what must be equal.
    """
    agreed = _agreed(arrays, axis, problems, variable)
    if agreed is None:
        return None
    model, holder = agreed
    ours = arrays[model].metadata
    own_grids, manifests = [], []
    for array in [array for array in arrays if array.shape[axis]] or [arrays[model]]:
        grid, manifest = array.grid, array.manifest
        if not same_cells(grid, ours.grid, axis):
            # Never written, or it would have been refused: it can be cut in any way.
            grid = grid_like(grid, ours.grid, axis)
            manifest = Manifest.missing(grid.grid_shape)
        own_grids.append(grid)
        manifests.append(manifest)
    grid = grids.concatenate(own_grids, axis)
    manifest = Manifest.concatenate(manifests, axis)
    manifest = cut_cells(manifest, grid, Cuts.between(own_grids, axis), ours.pipeline)
    return _joined(arrays, model, holder, manifest, options, shape=grid.shape, grid=grid)


def stack_arrays(
    arrays: Sequence[Array],
    axis: int,
    dim: str | None,
    problems: Problems,
    variable: str = "",
    options: Options = DEFAULT,
) -> Array | None:
    """Join arrays along a new axis, one cell for each.

    Returns None, and notes why in `problems`, if they differ in what must be equal.
    """
    agreed = _agreed(arrays, None, problems, variable)
    if agreed is None:
        return None
    model, holder = agreed
    ours = arrays[model].metadata
    own = axes_of(ours.grid)
    grid = grids.from_axes([*own[:axis], Axis.bare(len(arrays), 1), *own[axis:]])
    manifests = []
    for array in arrays:
        manifest = array.manifest
        if not same_cells(array.grid, ours.grid, None):
            manifest = Manifest.missing(ours.grid.grid_shape)
        if manifest.decoders:
            decoders = [Decoder(widened_pipeline(d.pipeline, axis, ours.ndim), d.shape)
                        for d in manifest.decoders]  # fmt: skip
            manifest = manifest.replace(decoders=decoders)
        manifests.append(manifest)
    names = ours.dimension_names
    if dim is not None or names is not None:
        names = names or (None,) * ours.ndim
        names = (*names[:axis], dim, *names[axis:])
    return _joined(
        arrays,
        model,
        holder,
        Manifest.stack(manifests, axis),
        options,
        shape=grid.shape,
        grid=grid,
        pipeline=widened_pipeline(ours.pipeline, axis, ours.ndim),
        dimension_names=names,
    )


def alike(
    arrays: Sequence[Array], problems: Problems, variable: str, options: Options
) -> Sequence[Array]:
    """Return arrays that mean the same by the same numbers, as far as that was asked for.

    Raises
    ------
    UnsupportedError
        An array is not virtual.
    """
    _require_virtual(arrays, problems, variable)
    if not options.harmonize:
        return arrays
    return harmonized(arrays, options.harmonize, problems, variable)


def _agreed(
    arrays: Sequence[Array], axis: int | None, problems: Problems, variable: str
) -> tuple[int, int] | None:
    """Return which array the others are like, and which has the fill value.

    Returns None, and notes why in `problems`, if they differ in what must be equal.
    """
    before = len(problems.found)
    model = choose_model(arrays)
    check_agree(arrays, axis, model, problems, variable)
    if len(problems.found) > before:
        return None
    holder = fill_holder(arrays, model, problems, variable)
    return None if len(problems.found) > before else (model, holder)


def _joined(
    arrays: Sequence[Array],
    model: int,
    holder: int,
    manifest: Manifest,
    options: Options,
    **changes: Any,
) -> Array:
    metadata: ArrayMetadata = arrays[model].metadata.replace(
        fill_value=arrays[holder].fill_value,
        attributes=combined_attributes([a.attrs for a in arrays], options.combine_attrs),
        **changes,
    )
    joined = Array.virtual(metadata, manifest, arrays[0].path)
    joined.fill_missing = all(array.fill_missing for array in arrays)
    return joined


def _require_virtual(arrays: Sequence[Array], problems: Problems, variable: str) -> None:
    for i, array in enumerate(arrays):
        if not array.is_virtual:
            raise UnsupportedError(
                f"{problems.labels[i]} is an array of a Zarr store; only virtual arrays, whose "
                "chunks are references, can be combined",
                variable=variable or array.path,
            )


def find_axis(arrays: Sequence[Array], axis: int | None, dim: str | None) -> int:
    """Return the number of the axis that is meant, for the first array.

    Raises
    ------
    ValueError
        There is no such axis or dimension, or both are given.
    """
    first = arrays[0]
    if dim is not None:
        if axis is not None:
            raise ValueError("give either axis or dim, not both")
        if first.dims.count(dim) != 1:
            raise ValueError(
                f"no axis, or more than one, is called {dim!r}; there are {first.dims}"
            )
        return first.dims.index(dim)
    axis = 0 if axis is None else axis
    if not -first.ndim <= axis < first.ndim:
        raise ValueError(f"there is no axis {axis} in an array of {first.ndim} axes")
    return axis % first.ndim
