"""Virtualization: many files as one group of arrays, without copying their chunks."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import closing
from difflib import get_close_matches
from typing import Any, Unpack

import numpy as np

from virtualzarr.array import Array
from virtualzarr.choices import BadFiles, Combine, OnError, check_choice
from virtualzarr.combine.by_coords import combine_groups_by_coords
from virtualzarr.combine.concat_stack import concat_items, has_dimension, stack_items
from virtualzarr.combine.coordinates import Coordinate, coordinate_array, coordinate_values
from virtualzarr.combine.dimension_order import DimensionOrder
from virtualzarr.combine.error_report import ErrorReport, InputLabels
from virtualzarr.combine.options import CombineOptions, ParsedOptions
from virtualzarr.errors import MismatchError, VirtualZarrError, warn_caller
from virtualzarr.hierarchy.group import Group
from virtualzarr.hierarchy.inventory import iter_arrays
from virtualzarr.ingest.scan_files import Paths, find_files, scan_each
from virtualzarr.keywords import strict_keywords
from virtualzarr.metadata.dimension_names import real_name

_NEAR = 0.7
"""How alike a name of a dimension and a misspelt one are, as `difflib` counts."""

Tree = int | list["Tree"]
"""Numbers of inputs, in lists within lists for several dimensions."""


@strict_keywords(CombineOptions)
def virtualize(
    paths: Paths | Iterable[Any],
    concat_dim: str | int | Sequence[str] | None = None,
    *,
    combine: Combine = "nested",
    coordinate: Coordinate | None = None,
    drop_variables: str | Collection[str] = (),
    preprocess: Callable[[Group], Group] | None = None,
    format: str | None = None,
    on_error: OnError = "raise",
    bad_files: BadFiles = "raise",
    parallel: Any = None,
    ledger: str | os.PathLike[str] | None = None,
    storage_options: Mapping[str, Any] | None = None,
    allowed: str | Iterable[str] | None = None,
    progress: bool | None = None,
    **options: Unpack[CombineOptions],
) -> Group:
    """Open files as one group of arrays whose chunks lie in those files. Nothing is copied.

    Parameters
    ----------
    paths : path, URL, or several of them
        Each may be a pattern with ``*``. Files that a pattern finds are sorted as people do
        (``day2`` before ``day10``); otherwise the order given is kept. For several dimensions,
        lists of lists, the outermost along the first of them.
    concat_dim : str or int, or sequence of str, optional
        The dimension along which files are joined; needed for more than one, unless `combine` is
        "by_coords". If no variable has it, it is a new one: files are stacked; a name that is
        nearly that of a dimension must have coordinates (`coordinate`, or a variable of that
        name in each file). An axis number joins variables whose axes have no names. See
        `virtualzarr.concat` and `virtualzarr.stack`.
    combine : {"nested", "by_coords"}
        Whether files are joined in the order they are given, or in that of their coordinates, along
        one dimension or several; see `virtualzarr.combine_by_coords`.
    coordinate : sequence or callable, optional
        Coordinates of a dimension that is new, one for each file: values, or what is called with
        the path and the group of each file to give one, such as `virtualzarr.from_filename`.
    drop_variables : str or collection of str
        Paths of variables and groups to leave out.
    preprocess : callable, optional
        Called with the group of each file before they are joined, to return another: one whose
        dimensions are called as in the other files (`Group.rename`), or that has fewer variables.
    format : str, optional
        What the files are; by default it is detected.
    on_error : {"raise", "warn"}
        What to do about a variable that cannot be virtualized: raise, or warn, leave it out and
        note it in the group's `skipped`.
    bad_files : {"raise", "skip", "fill"}
        What to do about a file that is not there or cannot be read: raise; warn, and leave it out;
        warn, and put missing values in its place, as many as the file before it has (or the first
        that can be read). What comes after a file that is left out moves up, so that its
        coordinates had better be in the files.
    parallel : concurrent.futures.Executor or dask.distributed.Client, optional
        Scans files side by side; by default one after another. Threads pay for remote files only.
        Settings of this process (`virtualzarr.config`) hold in others, too, and what they warn of
        is warned of here.
    ledger : path, optional
        A file that says what was scanned, and what came of it; it is created if there is none. A
        run that was killed goes on, and the next one scans only files that are new or have changed.
        See `virtualzarr.survey`, which can share it.
    storage_options : mapping, optional
        How fsspec opens URLs.
    allowed : str or iterable of str, optional
        Places that files may have values in, if they name other files: see `virtualzarr.open`.
    progress : bool, optional
        Whether to show a progress bar; by default for ten files and more, in a terminal.
    **options
        What is done about files that differ: `harmonize`, `combine_attrs`, `dtype`, `compat` and
        `missing` as in `virtualzarr.concat`; `overlap` and `gaps` as in
        `virtualzarr.combine_by_coords`.

    Returns
    -------
    Group

    Raises
    ------
    SourceError
        A file is not there, or a pattern finds none.
    UnsupportedError
        A format, or a variable in it, is not supported.
    LedgerError
        The ledger cannot be used: another process has it, or it lies on a network file system.
    MismatchError
        Files differ in what must be equal; see `virtualzarr.concat`.
    ValueError
        There are several files and no `concat_dim`.

    Examples
    --------
    >>> virtualize("archive/air-*.nc", concat_dim="time")  # doctest: +SKIP
    <Group: 4 members>
    >>> from virtualzarr import from_filename
    >>> day = from_filename(r"(\\d{8})", "%Y%m%d")
    >>> virtualize("archive/*.tif", "time", coordinate=day)  # doctest: +SKIP
    <Group: 2 members>
    """
    # All arguments are checked before the first file is scanned: scans may take hours.
    check_choice("combine", combine, Combine)
    check_choice("bad_files", bad_files, BadFiles)
    files: list[str] = []
    tree = _find_tree(paths, files, storage_options)
    dims = [concat_dim] if isinstance(concat_dim, str | int) else list(concat_dim or ())
    if len(files) > 1 and not dims and combine == "nested":
        raise ValueError(
            f"{len(files)} files are joined along a dimension: give concat_dim, such as 'time'"
        )
    inputs = scan_inputs(
        files, coordinate=coordinate, drop_variables=drop_variables, preprocess=preprocess,
        format=format, on_error=on_error, bad_files=bad_files, parallel=parallel,
        ledger=ledger, storage_options=storage_options, allowed=allowed, progress=progress,
        **options,
    )  # fmt: skip
    if combine == "by_coords":
        return inputs.by_coords(None if concat_dim is None else [str(dim) for dim in dims])
    return inputs.nested(tree, dims)


def scan_inputs(
    files: Sequence[str],
    *,
    coordinate: Coordinate | None = None,
    drop_variables: str | Collection[str] = (),
    preprocess: Callable[[Group], Group] | None = None,
    format: str | None = None,
    on_error: OnError = "raise",
    bad_files: BadFiles = "raise",
    parallel: Any = None,
    ledger: str | os.PathLike[str] | None = None,
    storage_options: Mapping[str, Any] | None = None,
    allowed: str | Iterable[str] | None = None,
    progress: bool | None = None,
    **options: Unpack[CombineOptions],
) -> Inputs:
    """Scan files, to be joined then; parameters are those of `virtualize`."""
    scan: dict[str, Any] = {"format": format, "on_error": on_error}
    scan["storage_options"] = storage_options
    if allowed is not None:
        scan["allowed"] = allowed
    # Closed also if a file is an error: a ledger is there for others then.
    with closing(scan_each(files, parallel, progress, ledger=ledger, **scan)) as scanned:
        groups = _handle_bad_files(scanned, bad_files)
    # Missing values need a length, which only files before or after can tell: combine does it.
    if any(isinstance(group, _UnreadableGroup) for group in groups):
        options["missing"] = "fill"
    # After the scan, as names are only known then; before the join, which compares what remains.
    if drop_variables:
        drop = frozenset([drop_variables] if isinstance(drop_variables, str) else drop_variables)
        groups = [None if group is None else _drop(group, drop) for group in groups]
    if preprocess is not None:
        groups = [
            group if group is None or isinstance(group, _UnreadableGroup) else preprocess(group)
            for group in groups
        ]
    return Inputs(groups, files, coordinate, options)


def _find_tree(paths: Any, files: list[str], storage_options: Mapping[str, Any] | None) -> Tree:
    """Put all files into one list, and return their numbers in lists as they were given."""
    if not isinstance(paths, str | os.PathLike | Mapping):
        paths = list(paths)
        if any(not isinstance(path, str | os.PathLike) for path in paths):
            return [_find_tree(path, files, storage_options) for path in paths]
    first = len(files)
    files += find_files(paths, storage_options)
    return list(range(first, len(files)))


def _handle_bad_files(
    scanned: Iterable[Group | VirtualZarrError], bad_files: BadFiles
) -> list[Group | None]:
    """Return the groups of files, None for those that are left out, nothing for those to fill."""
    groups: list[Group | None] = []
    for group in scanned:
        if isinstance(group, Group):
            groups.append(group)
            continue
        if bad_files == "raise":
            raise group
        consequence = "left out" if bad_files == "skip" else "filled with missing values"
        warn_caller(f"a file is {consequence}: {group}")
        groups.append(None if bad_files == "skip" else _UnreadableGroup())
    if all(group is None or isinstance(group, _UnreadableGroup) for group in groups):
        raise MismatchError("no file could be read")
    return groups


class _UnreadableGroup(Group):
    """Stands for a file that cannot be read, until missing values do."""


class Inputs:
    """The groups of files, to be joined along one dimension or several."""

    def __init__(
        self,
        groups: Sequence[Group | None],
        files: Sequence[str],
        coordinate: Coordinate | None,
        options: CombineOptions,
    ) -> None:
        self.groups, self.files = groups, files
        rules: dict[str, Any] = dict(options)
        self.order = {name: rules.pop(name) for name in ("overlap", "gaps") if name in rules}
        self.options = ParsedOptions.parse(**rules)
        self.coordinate = coordinate

    def _select(self, indices: Sequence[int]) -> tuple[list[Group], list[str]]:
        """Return those of some inputs that could be read, and their files."""
        readable = [index for index in indices if self.groups[index] is not None]
        groups: Any = [self.groups[index] for index in readable]
        return groups, [self.files[index] for index in readable]

    def has_coordinates(self, dim: str) -> bool:
        """Tell whether all inputs can be put in order by their coordinates along a dimension."""
        nodes = [group.get(dim) for group in self.groups if group is not None]
        return all(
            isinstance(node, Array) and node.dims == (dim,) and node.dtype.kind in "iufmM"
            for node in nodes
        )

    def read_order(self, dim: str) -> DimensionOrder:
        """Return the order along a dimension of the inputs that could be read."""
        self._check_order()
        groups, files = self._select(range(len(self.groups)))
        return DimensionOrder.read(dim, groups, InputLabels(groups, files), self.options)

    def by_coords(self, dims: Sequence[str | DimensionOrder] | None) -> Group:
        """Join all inputs in the order of their coordinates."""
        self._check_order()
        groups, files = self._select(range(len(self.groups)))
        return combine_groups_by_coords(
            groups, dims, InputLabels(groups, files), self.options, **self.order
        )

    def _check_order(self) -> None:
        if any(isinstance(group, _UnreadableGroup) for group in self.groups):
            raise ValueError(
                'a file that cannot be read has no coordinates by which it has a place: bad_files="'
                'skip" leaves it out, and gaps="fill" or missing="fill" fills what is not there'
            )
        if self.coordinate is not None:
            raise ValueError("coordinates are given for files in the order they are given in")

    def nested(self, tree: Tree, dims: Sequence[str | int]) -> Group:
        """Join inputs along dimensions, one for each level of lists."""
        if self.order:
            raise ValueError(f"{sorted(self.order)} are of combine='by_coords'")
        if self.coordinate is not None and len(dims) != 1:
            raise ValueError("coordinates are given for one new dimension")
        assert isinstance(tree, list)
        # As in xarray, the innermost lists are joined first, along the last dimension.
        leaves = all(isinstance(part, int) for part in tree)
        if leaves != (len(dims) <= 1):
            raise ValueError(f"there must be as many lists within lists as dimensions: {dims}")
        if leaves:
            groups, files = self._select([part for part in tree if isinstance(part, int)])
            if not groups:
                names = ", ".join(self.files[part] for part in tree if isinstance(part, int))
                raise MismatchError(f"of {names} none could be read")
            return self._join(groups, files, dims[0]) if dims else groups[0]
        groups = [self.nested(part, dims[1:]) for part in tree]
        return self._join(groups, None, dims[0])

    def _join(self, groups: Sequence[Group], files: Sequence[str] | None, dim: str | int) -> Group:
        report, options = ErrorReport(InputLabels(groups, files)), self.options
        if isinstance(dim, int):
            joined = concat_items(groups, dim, None, report, options)
        elif any(has_dimension(group, dim) for group in groups):
            joined = concat_items(groups, None, dim, report, options)
        else:
            self._check_new(dim, groups)
            joined = stack_items(groups, 0, dim, report, options)
        assert isinstance(joined, Group)
        if self.coordinate is None:
            return joined
        assert files is not None
        coordinate = self.coordinate
        # Values are given for all files: those of files that were left out go, too.
        if not callable(coordinate) and len(coordinate) == len(self.groups):
            pairs = zip(coordinate, self.groups, strict=True)
            coordinate = [value for value, group in pairs if group is not None]
        return with_coordinate(joined, str(dim), coordinate_values(coordinate, groups, files))

    def _check_new(self, dim: str, groups: Sequence[Group]) -> None:
        """Make sure that the name of a new dimension is no misspelt one.

        Coordinates for it, or a variable of its name in each file, tell that it is meant.

        Raises `ValueError` if it is nearly that of a dimension.
        """
        if self.coordinate is not None or all(dim in group for group in groups):
            return
        arrays = iter_arrays(groups[0])
        dims = {n.lower(): n for _, array in arrays for n in map(real_name, array.dims) if n}
        if near := get_close_matches(dim.lower(), dims, 1, _NEAR):
            raise ValueError(
                f"no variable has a dimension {dim!r} (concat_dim); is {dims[near[0]]!r} meant? A "
                "new one of that name needs coordinate=, or stack()"
            )


def with_coordinate(group: Group, dim: str, values: np.ndarray[Any, Any]) -> Group:
    """Return a group with a coordinate variable.

    Raises `MismatchError` if there is one already, or the dimension has another length.
    """
    if dim in group:
        raise MismatchError(
            f"there is a variable {dim} already; leave it out (drop_variables) to give another",
            variable=dim,
        )
    for path, array in iter_arrays(group):
        if dim in array.dims and (length := array.shape[array.dims.index(dim)]) != len(values):
            raise MismatchError(
                f"{len(values)} coordinates for dimension {dim}, which has length {length}",
                variable=path,
            )
    members = {name: group[name] for name in group} | {dim: coordinate_array(dim, values)}
    return group.replace(members=members)


def _drop(group: Group, paths: frozenset[str], start: str = "") -> Group:
    """Return a group without some of what is in it; `start` comes before names in `paths`."""
    members: dict[str, Array | Group] = {}
    for name in group:
        path = f"{start}{name}"
        if path not in paths:
            node = group[name]
            members[name] = _drop(node, paths, f"{path}/") if isinstance(node, Group) else node
    skipped = {path: why for path, why in group.skipped.items() if f"{start}{path}" not in paths}
    return group.replace(members=members, skipped=skipped)
