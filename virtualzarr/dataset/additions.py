"""Additions to a dataset: what users give (files, groups, xarray datasets) as one group.

A dataset remembers the options by which its first files were scanned and joined, and treats later
ones alike.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping, Sequence
from importlib import import_module
from typing import Any, cast

from virtualzarr.choices import BadFiles, Combine, Gaps, OnError, Overlap, check_choice
from virtualzarr.combine.coordinates import DESCRIPTION, Coordinate, getter_from_description
from virtualzarr.combine.dimension_order import DimensionOrder
from virtualzarr.combine.options import CombineOptions, JoinOptions
from virtualzarr.dataset.describe import build_cells, find_growing
from virtualzarr.dataset.file_rows import Ranges, find_file_rows, mark_rows, read_marks
from virtualzarr.dataset.schema import Schema
from virtualzarr.hierarchy.group import Group
from virtualzarr.ingest.find_files import Paths, find_files
from virtualzarr.ingest.inputs import Inputs
from virtualzarr.ingest.virtualize import scan_inputs
from virtualzarr.keywords import parameters_of
from virtualzarr.stores.files import resolve_uri

Addable = Paths | Group
"""Files, or a virtual group, or a dataset of xarray."""


class AppendOptions(CombineOptions, total=False):
    """How files are scanned and joined, besides how they are reached; see `virtualzarr.virtualize`.

    Attributes
    ----------
    step : number, timedelta or str, optional
        The distance of coordinates that is expected, by which gaps are known: also as text, "1h".
    """

    combine: Combine
    coordinate: Coordinate | None
    drop_variables: str | Collection[str]
    preprocess: Callable[[Group], Group] | None
    format: str | None
    on_error: OnError
    bad_files: BadFiles
    parallel: Any
    ledger: str | os.PathLike[str] | None
    progress: bool | None
    step: Any


_FOR_ONCE = frozenset({"parallel", "ledger", "progress", "storage_options", "allowed"})
"""Options that say nothing of what the rows are: not remembered (and some are secrets)."""

_SCAN = frozenset(
    ("coordinate", "drop_variables", "preprocess", "format", "on_error", "bad_files")
) | _FOR_ONCE  # fmt: skip


def check_options(options: Mapping[str, Any]) -> None:
    """Refuse values that no option has, before any file is scanned."""
    for name, choices in {"combine": Combine, "overlap": Overlap, "gaps": Gaps,
                          "bad_files": BadFiles, "on_error": OnError}.items():  # fmt: skip
        if name in options:
            check_choice(name, options[name], choices)
    if options.get("dtype") is not None:
        raise ValueError("dtype is for arrays: the variables of groups have one each")


def describe_options(options: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Return options as JSON, and the names of those that are functions, which are not.

    Examples
    --------
    >>> describe_options({"harmonize": {"time"}, "preprocess": len, "progress": True})
    ({'harmonize': ['time']}, ['preprocess'])
    """
    described: dict[str, Any] = {}
    callables = []
    for name, value in options.items():
        if value is None or name in _FOR_ONCE:
            continue
        if callable(value):
            description = getattr(value, DESCRIPTION, None)
            if description is None:
                callables.append(name)
            else:
                described[name] = {"getter": description}
        elif name != "coordinate":  # values are those of these files, not of later ones
            is_set = isinstance(value, set | frozenset)
            described[name] = sorted(value) if is_set else list(value) if _is_list(value) else value
    return described, callables


def _is_list(value: Any) -> bool:
    return isinstance(value, Collection) and not isinstance(value, str | Mapping)


def with_remembered(schema: Schema, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return options with those that the dataset was made with, where none are given.

    Raises
    ------
    ValueError
        It was made with a function that is not given again.
    """
    for name in schema.callables:
        if name not in options:
            raise ValueError(
                f"the dataset was made with a function as {name}, which cannot be stored: give "
                f"{name}= again, or {name}=None for none"
            )
    remembered = {
        name: getter_from_description(value["getter"])
        if isinstance(value, Mapping) and "getter" in value
        else value
        for name, value in schema.options.items()
    }
    return remembered | dict(options)


def join_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return those of `concat`."""
    return {name: options[name] for name in options if name in parameters_of(JoinOptions)}


def list_files(source: Any, options: Mapping[str, Any]) -> list[str] | None:
    """Return the files that are added; None for what is no files."""
    if isinstance(source, Group) or hasattr(source, "data_vars"):
        return None
    return find_files(source, options.get("storage_options"))


def as_group(source: Any) -> Group:
    """Return a group, or a dataset of xarray, as a group."""
    if isinstance(source, Group):
        return source
    # By its name: rooms further up are not imported, and xarray is optional.
    to_group = import_module("virtualzarr.integrations.xarray_datasets").to_group
    return cast(Group, to_group(source))


def scan_addition(
    files: Sequence[str], dimension: str, options: Mapping[str, Any]
) -> tuple[Group, dict[str, Ranges | None]]:
    """Scan files and join them along the growing dimension.

    Files that all have its coordinate are put in its order; others stay in the order given.

    Returns
    -------
    group : Group
    ranges : dict of str to list of (int, int), or None
        By URI, which rows came from each file that was not left out; None where it is not certain.
    """
    scan = {name: value for name, value in options.items() if name in _SCAN}
    rules = {n: v for n, v in options.items() if n in parameters_of(CombineOptions) and n != "gaps"}
    inputs = scan_inputs(files, **scan, **rules)
    uris = [resolve_uri(file) for file in files]
    sorts = _sorts(inputs, dimension, options)
    alike = _join_alike(inputs, dimension, sorts, uris)
    if alike is not None:
        return alike
    order = inputs.read_order(dimension) if sorts else None
    marks = uris if order is None else _find_first(inputs.groups, uris, order)
    if len(files) > 1:
        inputs.groups = mark_rows(inputs.groups, marks, dimension)
    joined = _join(inputs, dimension, order)
    return read_marks(joined, inputs.groups, uris, marks, dimension)


def _sorts(inputs: Inputs, dimension: str, options: Mapping[str, Any]) -> bool:
    """Tell whether files are put in the order of coordinates, or stay in the order given."""
    combine = options.get("combine")
    if combine is not None:
        return bool(combine == "by_coords")
    has_one_way = len(inputs.files) < 2 or options.get("coordinate") is not None
    is_filled = options.get("bad_files") == "fill"
    return not has_one_way and not is_filled and inputs.has_coordinates(dimension)


def _join_alike(
    inputs: Inputs, dimension: str, sorts: bool, uris: Sequence[str]
) -> tuple[Group, dict[str, Ranges | None]] | None:
    """Join files that are alike as columns; None where marks have to say which rows are whose.

    All references of such a file lead to the file itself. So where each row refers to one file, and
    each file has rows that follow each other, these are its rows.
    """
    if not inputs.has_sources():
        return None
    joined = inputs.join_alike(dimension, sorts)
    if joined is None:
        return None
    growing = find_growing(joined, dimension)
    axes = {path: array.dims.index(dimension) for path, array in growing.items()}
    counts = {array.shape[axes[path]] for path, array in growing.items()}
    if len(counts) != 1:
        return None
    (count,) = counts
    cells = {path: (build_cells(growing[path], dimension), axis) for path, axis in axes.items()}
    names = [uri for uri, one in zip(uris, inputs.inputs, strict=True) if one is not None]
    rows, others = find_file_rows(cells, count, names)
    is_certain = not others and all(len(rows.get(uri, ())) == 1 for uri in names)
    if not is_certain or sum(size for ((_, size),) in rows.values()) != count:
        return None
    return joined, {uri: rows[uri] for uri in names}


def _find_first(
    groups: Sequence[Group | None], uris: Sequence[str], order: DimensionOrder
) -> list[str]:
    """Return of each file the first one that has the same rows, with which it is merged."""
    ranks, first = iter(order.rank), dict[int, str]()
    return [
        uri if group is None else first.setdefault(next(ranks), uri)
        for group, uri in zip(groups, uris, strict=True)
    ]


def _join(inputs: Inputs, dimension: str, order: DimensionOrder | None) -> Group:
    if order is not None:
        return inputs.by_coords([order])
    # Which of two equal coordinates counts is asked where the rows are placed.
    inputs.order.clear()
    return inputs.nested(list(range(len(inputs.files))), [dimension])
