"""OME-Zarr metadata for each Zarr format: version 0.4 in Zarr v2, version 0.5 in Zarr v3."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_NAMES = ("multiscales", "omero", "bioformats2raw.layout")
"""Attributes of a group that version 0.5 moves below ``ome``."""

_PLATES = {"plate", "well", "image-label", "labels"}
"""Attributes of hierarchies that are left as they are: versions may not be mixed in one."""

Attributes = Mapping[str, Any]
Names = tuple[str, ...]
Dims = tuple[str | None, ...]


def find_ome_changes(
    groups: Mapping[str, Attributes], arrays: Mapping[str, Dims], zarr_format: int
) -> tuple[dict[str, dict[str, Any]], dict[str, Names]]:
    """Return the changes that turn a hierarchy into OME-Zarr of a Zarr format.

    Version 0.5 wants the axes' names as dimension names of every resolution. Where resolutions
    have coordinates, which then would lose their dimension, nothing changes.

    Parameters
    ----------
    groups : mapping
        Attributes of all groups by path.
    arrays : mapping
        Dimension names of all arrays by path.
    zarr_format : {2, 3}

    Returns
    -------
    (dict of dict by path, dict of tuple of str by path)
        New attributes of groups, and new dimension names of arrays, where they change.

    Examples
    --------
    >>> image = {"axes": [{"name": "y"}, {"name": "x"}], "datasets": [{"path": "0"}, {"path": "1"}]}
    >>> groups = {"": {"multiscales": [{**image, "version": "0.4"}]}}
    >>> attributes, dims = find_ome_changes(groups, {"0": ("y", "x"), "1": ("y_1", "x_1")}, 3)
    >>> attributes[""]["ome"]["version"], dims
    ('0.5', {'1': ('y', 'x')})
    """
    # Plates refer to wells and images in other groups, whose version must be theirs: a conversion
    # group by group would mix versions, so such hierarchies keep theirs.
    attributes: dict[str, dict[str, Any]] = {}
    dims: dict[str, Names] = {}
    if any(_PLATES & {*group, *get_namespace(group)} for group in groups.values()):
        return attributes, dims
    for path, group in groups.items():
        if zarr_format == 2 and get_namespace(group).get("version") == "0.5":
            attributes[path] = _as_04(group)
        elif zarr_format == 3 and "ome" not in group:
            names = _level_names(group, path, arrays)
            if names is not None:
                attributes[path] = _as_05(group)
                dims |= {level: axes for level, axes in names.items() if arrays[level] != axes}
    return attributes, dims


def level_paths(group: Attributes) -> list[str]:
    """Return the paths of the arrays that a group describes as resolutions of images.

    Examples
    --------
    >>> level_paths({"ome": {"multiscales": [{"datasets": [{"path": "0"}, {"path": "1"}]}]}})
    ['0', '1']
    """
    images = get_namespace(group).get("multiscales", group.get("multiscales"))
    paths = [
        each.get("path")
        for image in as_objects(images)
        for each in as_objects(image.get("datasets"))
    ]  # fmt: skip
    return [path for path in paths if isinstance(path, str)]


def get_namespace(group: Attributes) -> Attributes:
    """Return the attribute ``ome`` of a group, empty if it has none."""
    namespace = group.get("ome")
    return namespace if isinstance(namespace, Mapping) else {}


def as_objects(value: Any) -> list[Attributes]:
    """Return the elements of a list if all of them are objects, else none."""
    good = isinstance(value, list) and all(isinstance(item, Mapping) for item in value)
    return value if good else []


def _level_names(
    group: Attributes, path: str, arrays: Mapping[str, Dims]
) -> dict[str, Names] | None:
    """Return the dimension names of levels by path; None if the group is not of version 0.4."""
    if "multiscales" not in group:
        return {} if group.get("bioformats2raw.layout") == 3 else None
    lead = f"{path}/" if path else ""
    images, names = as_objects(group["multiscales"]), dict[str, Names]()
    for image in images:
        # All or nothing: levels with other axes than the image, or dimensions with coordinates
        # arrays beside them, make it an image that 0.5 cannot describe without a loss.
        axes: tuple[Any, ...] = tuple(axis.get("name") for axis in as_objects(image.get("axes")))
        levels = [f"{lead}{name}" for name in level_paths({"multiscales": [image]})]
        if (
            image.get("version") != "0.4"
            or not levels
            or not all(isinstance(name, str) for name in axes)
            or any(len(arrays.get(level, ())) != len(axes) for level in levels)
            or any(f"{lead}{dim}" in arrays for level in levels for dim in arrays[level])
        ):
            return None
        names |= dict.fromkeys(levels, axes)
    return names or None


def _as_05(group: Attributes) -> dict[str, Any]:
    moved: dict[str, Any] = {name: group[name] for name in _NAMES if name in group}
    if "multiscales" in moved:
        moved["multiscales"] = [without(image, "version") for image in moved["multiscales"]]
    return {**without(group, *_NAMES), "ome": {"version": "0.5", **moved}}


def _as_04(group: Attributes) -> dict[str, Any]:
    moved = without(group["ome"], "version")
    if "multiscales" in moved:
        moved["multiscales"] = [
            {**image, "version": "0.4"} for image in as_objects(moved["multiscales"])
        ]
    return {**without(group, "ome"), **moved}


def without(document: Attributes, *names: str) -> dict[str, Any]:
    """Return an object without some of its members."""
    return {name: value for name, value in document.items() if name not in names}
