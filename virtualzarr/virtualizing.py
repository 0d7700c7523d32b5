"""Files become one group of arrays: found, scanned, and joined."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from functools import partial
from typing import Any

from virtualzarr.array import Array
from virtualzarr.combine.api import concat_labelled, has_dimension, stack_labelled
from virtualzarr.combine.options import Harmonize, Options
from virtualzarr.combine.problems import Labels, Problems
from virtualzarr.errors import SourceNotFoundError, UnsupportedError, VirtualZarrError
from virtualzarr.formats import scan
from virtualzarr.group import Group
from virtualzarr.stores.files import filesystem, is_url

PROGRESS_FROM = 10
"""A progress bar is shown for this many files and more."""

Paths = str | os.PathLike[str] | Iterable[str | os.PathLike[str]]


def virtualize(
    paths: Paths,
    concat_dim: str | int | None = None,
    *,
    drop_variables: Collection[str] = (),
    format: str | None = None,
    harmonize: Harmonize = False,
    combine_attrs: str = "drop_conflicts",
    on_error: str = "raise",
    parallel: Executor | None = None,
    storage_options: Mapping[str, Any] | None = None,
    progress: bool | None = None,
) -> Group:
    """Open files as one group of arrays whose chunks lie in those files. Nothing is copied.

    Parameters
    ----------
    paths : path, URL, or several of them
        Each may be a pattern with ``*``. Files that a pattern finds are sorted as people do
        (``day2`` before ``day10``); otherwise the order given is kept.
    concat_dim : str or int, optional
        The dimension along which files are joined; needed for more than one. If no variable has it,
        it is a new one: files are stacked. An axis number joins variables whose axes have no names.
        See `virtualzarr.concat` and `virtualzarr.stack`.
    drop_variables : collection of str
        Paths of variables and groups to leave out.
    format : str, optional
        What the files are; by default it is detected.
    harmonize, combine_attrs
        What is done about files that differ; see `virtualzarr.concat`.
    on_error : {"raise", "warn"}
        What to do about a variable that cannot be virtualized: raise, or warn, leave it out and
        note it in the group's `refused`. A file that cannot be read at all is always an error: to
        leave it out would shift what comes after it.
    parallel : concurrent.futures.Executor, optional
        Scans files side by side; by default one after another. Threads pay for remote files only.
    storage_options : mapping, optional
        How fsspec opens URLs.
    progress : bool, optional
        Whether to show a progress bar; by default for ten files and more, in a terminal.

    Returns
    -------
    Group

    Raises
    ------
    SourceError
        A file is not there, or a pattern finds none.
    UnsupportedError
        A format, or a variable in it, is not supported.
    MismatchError
        Files differ in what must be equal; see `virtualzarr.concat`.
    ValueError
        There are several files and no `concat_dim`.

    Examples
    --------
    >>> virtualize("archive/air-*.nc", concat_dim="time")  # doctest: +SKIP
    <Group: 4 members>
    """
    files = find_files(paths, storage_options)
    if len(files) > 1 and concat_dim is None:
        raise ValueError(
            f"{len(files)} files are joined along a dimension: give concat_dim, such as 'time'"
        )
    groups = list(scan_files(files, format, on_error, parallel, storage_options, progress))
    if drop_variables:
        groups = [_without(group, frozenset(drop_variables)) for group in groups]
    if concat_dim is None:
        return groups[0]
    problems, options = Problems(Labels(groups, files)), Options.of(harmonize, combine_attrs)
    if isinstance(concat_dim, int):
        joined = concat_labelled(groups, concat_dim, None, problems, options)
    elif any(has_dimension(group, concat_dim) for group in groups):
        joined = concat_labelled(groups, None, concat_dim, problems, options)
    else:
        joined = stack_labelled(groups, 0, concat_dim, problems, options)
    assert isinstance(joined, Group)
    return joined


def _without(group: Group, paths: frozenset[str], start: str = "") -> Group:
    """Return a group without some of what is in it; `start` comes before names in `paths`."""
    members: dict[str, Array | Group] = {}
    for name in group:
        path = f"{start}{name}"
        if path not in paths:
            node = group[name]
            members[name] = _without(node, paths, f"{path}/") if isinstance(node, Group) else node
    refused = {path: why for path, why in group.refused.items() if f"{start}{path}" not in paths}
    return Group(group.attrs, members, group.path, refused)


def find_files(paths: Paths, storage_options: Mapping[str, Any] | None = None) -> list[str]:
    """Return the files that paths and patterns name.

    Raises
    ------
    SourceError
        A pattern finds nothing, or there are no paths.
    """
    if isinstance(paths, str | os.PathLike):
        paths = [paths]
    files = [file for path in paths for file in _matches(os.fspath(path), storage_options)]
    if not files:
        raise SourceNotFoundError("no paths were given")
    return files


def _matches(path: str, storage_options: Mapping[str, Any] | None) -> list[str]:
    if not _is_pattern(path):
        return [path]
    if is_url(path):
        found = _remote_matches(path, storage_options)
    else:
        import glob

        found = glob.glob(path, recursive=True)
    if not found:
        raise SourceNotFoundError("no file matches the pattern", file=path)
    return sorted(found, key=natural_key)


def _is_pattern(path: str) -> bool:
    """Whether a path is a pattern, and not a file with odd characters in its name."""
    if is_url(path):
        # A question mark begins a query, and brackets are found in those.
        return "*" in path
    return any(char in path for char in "*?[") and not os.path.lexists(path)


def _remote_matches(url: str, storage_options: Mapping[str, Any] | None) -> list[str]:
    if "::" in url:
        raise UnsupportedError("a pattern in a chained URL; list the URLs instead", file=url)
    fs, path = filesystem(url, storage_options)
    try:
        return [fs.unstrip_protocol(name) for name in fs.glob(path)]
    except OSError as error:
        raise SourceNotFoundError(f"cannot list the files: {error}", file=url) from error


def natural_key(path: str) -> list[str | int]:
    """Return a key that sorts numbers within names by value.

    Examples
    --------
    >>> sorted(["day10.nc", "day2.nc"], key=natural_key)
    ['day2.nc', 'day10.nc']
    """
    return [int(part) if i % 2 else part for i, part in enumerate(re.split(r"([0-9]+)", path))]


def scan_files(
    files: Sequence[str],
    format: str | None,
    on_error: str,
    parallel: Executor | None,
    storage_options: Mapping[str, Any] | None,
    progress: bool | None,
) -> Iterator[Group]:
    """Yield the group of each file, in order."""
    one = partial(_scan_one, format=format, on_error=on_error, storage_options=storage_options)
    groups: Iterable[Group] = map(one, files) if parallel is None else parallel.map(one, files)
    if progress is None:
        progress = len(files) >= PROGRESS_FROM and sys.stderr.isatty()
    if progress:
        from tqdm import tqdm

        groups = tqdm(groups, total=len(files), unit="file", desc="virtualize")
    yield from groups


def _scan_one(file: str, **options: Any) -> Group:
    """Scan one file; whatever goes wrong, the error names the file."""
    try:
        return scan(file, **options)
    except VirtualZarrError as error:
        error.at(file=file)
        raise
    except Exception as error:
        error.add_note(f"while scanning {file}")
        raise
