"""Append to published references: only the new files are scanned."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from concurrent.futures import Executor
from dataclasses import replace
from typing import Any

from virtualzarr.choices import Duplicates, OnError, check_choice
from virtualzarr.combine.options import JoinOptions
from virtualzarr.ingest.find_files import Paths, find_files
from virtualzarr.ingest.scan_files import scan_files
from virtualzarr.keywords import strict_keywords
from virtualzarr.references.form import AppendRequest
from virtualzarr.references.overwrite import list_companions
from virtualzarr.references.preview import Preview
from virtualzarr.references.registry import find_form, locate_target
from virtualzarr.references.report import PublishReport
from virtualzarr.stores.file_heads import keep_pieces


@strict_keywords(JoinOptions)
def append(
    target: Any,
    paths: Paths,
    concat_dim: str,
    *,
    copy: bool = False,
    plugin_codecs: bool = False,
    duplicates: Duplicates = "raise",
    dry_run: bool = False,
    format: str | None = None,
    on_error: OnError = "raise",
    parallel: Executor | None = None,
    ledger: str | os.PathLike[str] | None = None,
    storage_options: Mapping[str, Any] | None = None,
    allowed: str | Iterable[str] | None = None,
    progress: bool | None = None,
    single_writer: bool = False,
    **options: Any,
) -> PublishReport | Preview | None:
    """Add files to references published before: only the new files are scanned.

    Parameters
    ----------
    target : path or str
        A reference file, a folder of references in Parquet, an Icechunk repository, or a hierarchy
        in the native form.
    paths : path, URL, or several of them
        As for `virtualize`.
    concat_dim : str
        The dimension along which they follow. Files that do not have it are stacked along it.
    copy, plugin_codecs : bool
        As for `publish`.
    duplicates : {"raise", "skip"}
        What to do about files that are there already, as they were scanned.
    dry_run : bool
        Whether nothing is written, and what would be is returned.
    single_writer : bool
        Whether you answer for it that nobody else writes at the same time: then references are
        changed also where nothing keeps writers apart.
    format, on_error, parallel, ledger, storage_options, allowed, progress
        As for `virtualize` and `open`.
    **options
        As for `concat`, such as `harmonize`. By default, attributes stay as they are
        (``combine_attrs="override"``).

    Returns
    -------
    PublishReport, Preview or None
        A preview for a dry run; None if all files are there already.

    Raises
    ------
    MismatchError
        Files are there already, or differ in what must be equal; see `concat`.
    SourceChangedError
        A file is there already, but was another one when it was scanned; or others were quicker
        for two minutes, and nothing was written.
    AccessError
        Appends of several writers could be lost there.
    CommitUnknownError
        An object store does not say whether the file was replaced.
    PublishError
        What results cannot be published so that others read it right.

    Notes
    -----
    Readers see the references before or after: a JSON file is replaced by another; in Parquet, the
    last record files and new ones are replaced first, which hold what they held and more, and the
    metadata last. Where references would get other places in the files, as along another axis than
    the first, they are to be published to a new folder. In Icechunk it is one commit. In the
    native form the new references are stored beside the old ones, and then named by the metadata;
    nothing that is there is read or written but the end of each array.

    In directories, processes that write the same references wait for each other, from reading what
    is there to replacing it; a process that dies blocks nobody. In object stores a JSON file is
    replaced on the condition that it is the one that was read, and Icechunk commits on
    the same condition: who loses the race appends again to what is there then, without scanning
    again. What nothing keeps apart is refused: Parquet and the native form at URLs, files where no
    condition holds, directories on file systems whose locks may be lost.

    Examples
    --------
    >>> append("air.json", "2026-11-*.nc", "time")  # doctest: +SKIP
    """
    check_choice("duplicates", duplicates, Duplicates)
    if not isinstance(concat_dim, str):
        raise TypeError(f"appends need the name of a dimension, not {concat_dim!r}")
    location = locate_target(target, storage_options, allowed)
    # Before the files are scanned, so that what is no references fails at once.
    form = find_form(location)
    files = find_files(paths, storage_options)
    with keep_pieces():
        groups = scan_files(
            files, parallel, progress, ledger=ledger, format=format, on_error=on_error,
            storage_options=storage_options,
        )  # fmt: skip
        request = AppendRequest(
            files=files,
            groups=groups,
            dim=concat_dim,
            duplicates=duplicates,
            dry_run=dry_run,
            copy=copy,
            plugin_codecs=plugin_codecs,
            progress=progress,
            join_options={"combine_attrs": "override", **options},
            single_writer=single_writer,
        )
        report = form.append(location, request)
    if not isinstance(report, PublishReport) or not location.uri:
        return report
    stale = tuple(
        f"the {noun} {uri} says what was there before this: only publish() writes another"
        for noun, uri in list_companions(location).items()
    )
    return replace(report, notes=(*report.notes, *stale))
