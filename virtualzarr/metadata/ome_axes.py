"""OME-Zarr metadata of joined images: added axes and channels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from virtualzarr.metadata import ome

_TYPES = {
    "t": "time", "time": "time", "c": "channel", "channel": "channel",
    "z": "space", "y": "space", "x": "space",
}  # fmt: skip
"""Types of axes by their names in lower case; others are custom ones, which have none."""

_RANKS = {"time": 0, "space": 2}
"""Axes are in this order; channels and custom ones are between."""

_NEUTRAL = {"scale": 1.0, "translation": 0.0}
"""The value of a transformation for an axis without coordinates."""


def join_ome_attributes(
    group: ome.Attributes, arrays: Mapping[str, ome.Dims], dim: str | None, axis: int | None = None
) -> tuple[dict[str, Any], list[str]]:
    """Return the attributes of a group after its arrays were joined along a dimension.

    Images whose arrays have an axis more get it in ``axes`` and all transformations, of which
    OME-Zarr says that it is 1 where nothing is stated. What cannot be said so is left out:
    images have two to three axes of space, behind at most one of time and one other.

    Parameters
    ----------
    group : mapping
    arrays : mapping
        Dimension names of the arrays in the group, by path from there, after the join.
    dim : str, optional
        The dimension.
    axis : int, optional
        Its number, where it has no name.

    Returns
    -------
    (dict, list of str)
        Attributes, and which were left out and why.

    Examples
    --------
    >>> image = {
    ...     "axes": [{"name": "y", "type": "space"}, {"name": "x", "type": "space"}],
    ...     "datasets": [
    ...         {"path": "0", "coordinateTransformations": [{"type": "scale", "scale": [2.0, 3.0]}]}
    ...     ],
    ... }
    >>> described, _ = join_ome_attributes({"multiscales": [image]}, {"0": ("t", "y", "x")}, "t")
    >>> [axis["name"] for axis in described["multiscales"][0]["axes"]]
    ['t', 'y', 'x']
    >>> described["multiscales"][0]["datasets"][0]["coordinateTransformations"][0]["scale"]
    [1.0, 2.0, 3.0]
    """
    inner = ome.get_namespace(group)
    described = inner if "multiscales" in inner else group
    if "multiscales" not in described:
        return dict(group), []
    # OME-Zarr 0.4 has ``multiscales`` in the attributes themselves, 0.5 below ``ome``. A wrong
    # description is worse than none: one image that has no valid form takes all of them out.
    images = ome.as_objects(described["multiscales"])
    joined = [_join_image(image, arrays, dim) for image in images]
    skipped = []
    if not images or None in joined:
        names: tuple[str, ...] = ("multiscales", "omero")
        skipped.append(f"multiscales: OME-Zarr has no form for images with the axis {dim!r}")
    else:
        names = ()
        described = {**described, "multiscales": joined}
        along = (_is_channel(image, dim, axis) for image in joined if image is not None)
        if "omero" in described and any(along):
            names = ("omero",)
            skipped.append("omero: it describes the channels of one input")
    described = ome.without(described, *names)
    if "multiscales" not in inner:
        return described, skipped
    empty = described.keys() <= {"version"}
    return {**ome.without(group, "ome"), **({} if empty else {"ome": described})}, skipped


def _is_channel(image: ome.Attributes, dim: str | None, axis: int | None) -> bool:
    axes = ome.as_objects(image.get("axes"))
    if dim is None and axis is not None and -len(axes) <= axis < len(axes):
        return axes[axis].get("type") == "channel"
    return any(one.get("name") == dim and one.get("type") == "channel" for one in axes)


def _join_image(
    image: ome.Attributes, arrays: Mapping[str, ome.Dims], dim: str | None
) -> dict[str, Any] | None:
    """Return the description of an image with the added axis; None if OME-Zarr has none for it."""
    dims = [arrays[path] for path in ome.level_paths({"multiscales": [image]}) if path in arrays]
    axes = ome.as_objects(image.get("axes"))
    if all(len(names) == len(axes) for names in dims):
        return dict(image)
    # The axis must be at the same place in every level, and be the only one that was added.
    positions = {names.index(dim) if dim in names else None for names in dims}
    at = positions.pop()
    if dim is None or at is None or positions or any(len(names) != len(axes) + 1 for names in dims):
        return None
    kind = _TYPES.get(dim.lower())
    new = {"name": dim, **({} if kind is None else {"type": kind})}
    axes = [*axes[:at], new, *axes[at:]]
    datasets = [_with_axis(each, at) for each in ome.as_objects(image.get("datasets"))]
    extended = _with_axis(image, at)
    if not _are_allowed(axes) or extended is None or None in datasets:
        return None
    return {**extended, "axes": axes, "datasets": datasets}


def _are_allowed(axes: Sequence[ome.Attributes]) -> bool:
    names = [axis.get("name") for axis in axes]
    ranks = [_RANKS.get(str(axis.get("type")), 1) for axis in axes]
    counts = [ranks.count(rank) for rank in range(3)]
    unique = len(set(map(str, names))) == len(names)
    return unique and ranks == sorted(ranks) and max(counts[:2]) <= 1 and 2 <= counts[2] <= 3


def _with_axis(described: ome.Attributes, at: int) -> dict[str, Any] | None:
    """Return an image, or a level of one, with one more axis in its transformations."""
    # A transformation can also be a path to an array of numbers, which cannot be extended here.
    if "coordinateTransformations" not in described:
        return dict(described)
    transformations: list[dict[str, Any]] = []
    for one in ome.as_objects(described["coordinateTransformations"]):
        kind = str(one.get("type"))
        values = one.get(kind)
        if isinstance(values, list) and kind in _NEUTRAL:
            one = {**one, kind: [*values[:at], _NEUTRAL[kind], *values[at:]]}
        elif kind != "identity":
            return None
        transformations.append(dict(one))
    return {**described, "coordinateTransformations": transformations}
