"""Virtualization: many files as one group of arrays, without copying their chunks."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import closing
from typing import Any, Unpack

from virtualzarr.choices import BadFiles, Combine, OnError, check_choice
from virtualzarr.combine.coordinates import Coordinate
from virtualzarr.combine.options import CombineOptions
from virtualzarr.hierarchy.group import Group
from virtualzarr.ingest.find_files import Paths, find_files
from virtualzarr.ingest.inputs import (
    Inputs,
    Tree,
    UnreadableGroup,
    handle_bad_files,
    prepare_inputs,
)
from virtualzarr.ingest.scan_files import scan_each_compact
from virtualzarr.keywords import strict_keywords
from virtualzarr.stores.adapt import adapt_paths
from virtualzarr.stores.file_heads import keep_pieces


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
    parallel : int, concurrent.futures.Executor or dask.distributed.Client, optional
        Scans files side by side. By default one process scans them; the rest of local files is
        left to `config.processes` of them, once it would take some seconds, and the first bytes of
        many remote files are asked for at once, which is faster than any `parallel` unless it is
        on other machines. Settings of this process (`virtualzarr.config`) hold in others, too, and
        what they warn of is warned of here.
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
    ExecutorError
        A worker of the executor has died, or the executor was stopped.
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
    paths, storage_options = adapt_paths(paths, storage_options)
    tree = _find_tree(paths, files, storage_options)
    dims = [concat_dim] if isinstance(concat_dim, str | int) else list(concat_dim or ())
    if len(files) > 1 and not dims and combine == "nested":
        raise ValueError(
            f"{len(files)} files are joined along a dimension: give concat_dim, such as 'time'"
        )
    with keep_pieces():
        inputs = scan_inputs(
            files, listed=getattr(paths, "versions", None), coordinate=coordinate,
            drop_variables=drop_variables, preprocess=preprocess,
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
    listed: Mapping[str, Any] | None = None,
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
    drop = [drop_variables] if isinstance(drop_variables, str) else drop_variables
    # Closed also if a file is an error: a ledger is there for others then.
    scan |= {"ledger": ledger, "listed": listed, "reads_values": True}
    with closing(scan_each_compact(files, parallel, progress, **scan)) as scanned:
        inputs = handle_bad_files(scanned, bad_files)
    prepare_inputs(inputs, drop, preprocess)
    # Missing values need a length, which only files before or after can tell: combine does it.
    if any(isinstance(one, UnreadableGroup) for one in inputs):
        options["missing"] = "fill"
    return Inputs(inputs, files, coordinate, options)


def _find_tree(paths: Any, files: list[str], storage_options: Mapping[str, Any] | None) -> Tree:
    """Put all files into one list, and return their numbers in lists as they were given."""
    if isinstance(paths, Iterable) and not isinstance(paths, str | os.PathLike | Mapping):
        paths = list(paths)
        if any(not isinstance(path, str | os.PathLike) for path in paths):
            return [_find_tree(path, files, storage_options) for path in paths]
    first = len(files)
    files += find_files(paths, storage_options)
    return list(range(first, len(files)))
