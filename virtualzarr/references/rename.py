"""Rename of source files in published references."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from virtualzarr.keywords import strict_keywords
from virtualzarr.references.form import RenameRequest
from virtualzarr.references.new_names import NewNames
from virtualzarr.references.registry import find_form, locate_target


@strict_keywords()
def rename_paths(
    target: Any,
    names: NewNames,
    *,
    dry_run: bool = False,
    relative: bool | None = None,
    single_writer: bool = False,
    storage_options: Mapping[str, Any] | None = None,
) -> dict[str, str]:
    """Give the source files of published references other names; no source is looked at.

    Parameters
    ----------
    target : path or str
        A reference file, a folder of references in Parquet, an Icechunk repository, or a hierarchy
        in the native form.
    names : mapping of str to str, or callable
        New URLs or paths by old ones; also of folders, for all that is below: the longest that
        fits counts. Or what returns the new name for an old one.
    dry_run : bool
        Whether nothing is written.
    relative : bool, optional
        Whether the new names are written as seen from the references; by default as it was.
    single_writer : bool
        Whether nobody else writes the references at the same time. Then they are also changed where
        nothing keeps several writers apart: at URLs in Parquet and in the native form.
    storage_options : mapping, optional
        How fsspec opens the target.

    Returns
    -------
    dict of str to str
        New names by old ones, of all files that were renamed.

    Raises
    ------
    AccessError
        Changes of several writers could be lost there.
    MismatchError
        No source of the references has, or lies below, any of the names.

    Notes
    -----
    A renamed file keeps its size in the references, but neither date nor entity tag: a copy has
    others.

    Examples
    --------
    >>> rename_paths("air.json", {"/scratch/air": "s3://bucket/air"})  # doctest: +SKIP
    """
    location = locate_target(target, storage_options)
    form = find_form(location)
    return form.rename_paths(location, RenameRequest(names, dry_run, relative, single_writer))
