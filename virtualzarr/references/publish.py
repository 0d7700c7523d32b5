"""Publication of groups and arrays as references that other tools open."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

from virtualzarr.array import Array
from virtualzarr.array.executors import open_executor
from virtualzarr.choices import OnError, ReferenceFormat, Split, StacKind, check_choice
from virtualzarr.errors import VirtualZarrError, WriteError, name_type
from virtualzarr.hierarchy.group import Group
from virtualzarr.hierarchy.inventory import list_arrays, list_group_attributes
from virtualzarr.keywords import strict_keywords
from virtualzarr.references.client_limits import explain_netcdf
from virtualzarr.references.clients import (
    ICECHUNK,
    REFERENCES,
    choose_clients,
    explain_elements,
)
from virtualzarr.references.companions import plan_companions
from virtualzarr.references.form import Capabilities, PublishOptions
from virtualzarr.references.inline_policy import Inline, InlinePolicy
from virtualzarr.references.preview import Preview
from virtualzarr.references.registry import choose_target
from virtualzarr.references.report import PublishReport
from virtualzarr.references.split_runs import split_runs
from virtualzarr.references.ways_out import list_ways


@strict_keywords()
def publish(
    node: Group | Array,
    path: Any,
    *,
    reference_format: ReferenceFormat | None = None,
    copy: bool = False,
    parallel: Any = None,
    zarr_format: Literal[2, 3] | None = None,
    on_error: OnError = "raise",
    storage_options: Mapping[str, Any] | None = None,
    progress: bool | None = None,
    relative: bool = False,
    record_size: int | None = None,
    plugin_codecs: bool = False,
    overwrite: bool = False,
    digests: bool = False,
    inline: Inline = "auto",
    regular: bool | None = None,
    split: Split | None = None,
    portable: str | Iterable[str] | None = None,
    page: bool = False,
    stac: StacKind | None = None,
) -> PublishReport:
    """Write references that other tools open: a JSON file, a folder of Parquet files, or Icechunk.

    Parameters
    ----------
    node : Group or Array
    path : path, str, mutable mapping or Icechunk session
        A local path, or a URL that fsspec can write. What is written appears whole or not at all.
        JSON is compressed where the path ends in ``.json.zst`` or ``.json.gz``. A dict is filled
        with the references that JSON would have. In a writable session of Icechunk, references are
        set, for the caller to commit.
    reference_format : {"json", "parquet", "icechunk", "native", "dataset"}, optional
        By default Parquet where the path ends in ``.parq`` or ``.parquet``, Icechunk where it ends
        in ``.icechunk``, the native form where it ends in ``.zarr``, else JSON (kerchunk's, version
        1). Parquet is read lazily: use it from a few hundred thousand references on. An Icechunk
        repository keeps its history: what is published is a commit to its main branch. The native
        form only this package reads: see `virtualzarr.references.native.save.save`. A dataset keeps
        all of its versions, and grows along the dimension that is unlimited in the files: see
        `virtualzarr.create_dataset`.
    copy : bool
        Whether chunks that other readers would read wrong are decoded, encoded as the array
        declares, and stored in one file beside the references, or in the Icechunk repository. If
        not, they are an error.
    parallel : int, concurrent.futures.Executor or dask.distributed.Client, optional
        Its workers decode and encode what is copied, 16 MiB or a chunk at a time; this process
        writes it. What is published is the same to the byte.
    zarr_format : {2, 3}, optional
        Of the documents. By default 2, which more readers know, where all of the hierarchy can be
        said in it exactly; else 3. Parquet is always 2, Icechunk always 3.
    on_error : {"raise", "warn"}
        What to do about arrays that others would not read right: raise, or warn, leave them out
        and note them in the report's `skipped`.
    storage_options : mapping, optional
        How fsspec opens `path`; or arguments of Icechunk's storage, and `branch`, which is created
        at the end of ``main`` where it is not there.
    progress : bool, optional
        Whether to show a progress bar; by default for a million references, in a terminal.
    relative : bool
        Whether local sources, and those below the same URL, are named by where they lie from the
        references. This package reads that wherever both are moved or copied, and so compares sizes
        only; fsspec reads it only from that folder.
    record_size : int, optional
        References in each Parquet file; 100,000 by default.
    plugin_codecs : bool
        Whether readers have this package installed, and register the codecs of imagecodecs where
        the report's notes say so. Then chunks that begin with what their cell has, and are only
        longer, need no copy: zarr-python is told to cut them by a codec that it finds by entry
        point. Neither do chunks that are images, or compressed as only images are.
    overwrite : bool
        Whether to replace what is there already, whatever it is. If not, only references of the
        same form are replaced, and empty files and folders. Files that are referred to, or whose
        folder it is, are never replaced.
    digests : bool
        Whether a few samples of each source are read, and a digest of them is written, which
        `check_references` compares if asked to look deep. JSON and Parquet only.
    inline : "auto", int or names
        What is copied into the references as bytes. By default coordinates, bounds, grid mappings,
        scalars and texts of at most 1 MiB each, where others could not read them as they lie in the
        files. A number: all arrays of at most so many bytes; 0: none. Names: those arrays.
    regular : bool, optional
        Whether chunks of several shapes are put on a regular grid, of the shape and codecs that
        keep the most bytes virtual; the rest is copied (see `copy`). By default where the form, or
        Zarr v2, has no other grid.
    split : {"runs"}, optional
        Whether each run of equal packing and codecs becomes a group of its own, ``run0``, ``run1``,
        ..., in which arrays are packed as in the files, so that nothing has to be copied.
    portable : "all", "python" or names of clients, optional
        Who must be able to decode all chunks: Zarr format and codecs are chosen for them, and with
        `copy` what they do not know is copied. Grids are regular then. Names are those of `verify`,
        and ``zarr2``.
    page : bool
        Whether to write a page for people beside the references: one HTML file, named as they are
        with the suffix ``.html``, with pictures of the variables, which are read for that.
    stac : {"item", "collection"}, optional
        Whether to write a document of STAC 1.1 beside the references, named as they are with the
        suffix ``.stac.json``, with the extents of the coordinates in space and time. An item needs
        times, a collection a place: without, that is an error, and nothing is written.

    Returns
    -------
    PublishReport

    Raises
    ------
    NodeExistsError
        There is something that is not to be replaced.
    WriteError
        There is no space, no permission, or no such folder. What was there is there still; only
        where a page or a document of STAC fails, the references are there already, as it says.
    PublishError
        If something cannot be published so that other readers read it right: how much, and why.
    MissingDependencyError
        If pyarrow or icechunk is needed.

    Notes
    -----
    See ``specs/reference-file.md`` for what is written, and why it is read right.

    Examples
    --------
    >>> report = publish(Group({"title": "empty"}), "/tmp/virtualzarr-doctest-refs.json")
    >>> report.zarr_format, report.references
    (2, 0)
    """
    if zarr_format not in (None, 2, 3):
        raise ValueError(f"zarr_format is 2, 3 or None, not {zarr_format!r}")
    check_choice("on_error", on_error, OnError)
    if record_size is not None and record_size < 1:
        raise ValueError(f"record_size is at least 1, not {record_size!r}")
    _check_node(node)
    location, form = choose_target(path, reference_format, storage_options)
    # What a form cannot hold is refused before anything is planned; everything else is the form's
    # own business.
    can = form.capabilities
    if digests and not can.digests:
        raise ValueError(f"the form {form.name} has no place for digests")
    if zarr_format not in (None, *can.zarr_formats):
        raise ValueError(f"the form {form.name} is of Zarr v{can.zarr_formats[0]} only")
    if relative and not can.relative:
        raise ValueError(f"{can.title} knows no relative references")
    policy = InlinePolicy.parse(inline)
    if can.as_is and (regular or policy != InlinePolicy()):
        raise ValueError(
            f"{can.title} holds everything as it is: regular and inline change nothing"
        )
    clients = () if portable is None else choose_clients(portable)
    if clients and can.as_is:
        raise ValueError(f"{can.title} is for this package only: portable changes nothing")
    node, notes = _split(node, split, can)
    notes += _notes_on_clients(clients, can)
    options = PublishOptions(
        copy=copy, zarr_format=zarr_format, on_error=on_error, progress=progress,
        relative=relative, record_size=record_size, plugin_codecs=plugin_codecs,
        overwrite=overwrite, digests=digests, inline=policy, clients=clients, split=split,
        regular=True if clients and regular is None else regular,
    )  # fmt: skip
    # Whatever may be refused is, before anything is written.
    companions = plan_companions(node, location, page=page, stac=stac, overwrite=overwrite)
    with open_executor(parallel) as executor:
        report = form.publish(node, location, replace(options, parallel=executor))
    notes += _notes_on_elements(node, report, clients)
    report = replace(report, notes=(*report.notes, *notes))
    for companion in companions:
        try:
            report = companion.write(form, report)
        except VirtualZarrError as error:
            raise WriteError(
                f"the references are written; what is to lie beside them is not: {error.message}",
                file=error.file,
            ) from error
    return report


@strict_keywords()
def preview(
    node: Group | Array,
    path: Any,
    *,
    reference_format: ReferenceFormat | None = None,
    zarr_format: Literal[2, 3] | None = None,
    plugin_codecs: bool = False,
    inline: Inline = "auto",
    regular: bool | None = None,
    split: Split | None = None,
    portable: str | Iterable[str] | None = None,
) -> Preview:
    """Find out what `publish` would do with ``copy=True``: nothing is written, no chunk is read.

    Parameters
    ----------
    node, path, reference_format, zarr_format, plugin_codecs, inline, regular, split, portable
        As for `publish`.

    Examples
    --------
    >>> preview(Group({"title": "empty"}), "refs.json").copied
    0
    """
    _check_node(node)
    location, form = choose_target(path, reference_format)
    uri = location.uri
    clients = () if portable is None else choose_clients(portable)
    options = PublishOptions(
        zarr_format=zarr_format, plugin_codecs=plugin_codecs, inline=InlinePolicy.parse(inline),
        regular=True if clients and regular is None else regular, clients=clients,
    )  # fmt: skip
    result = form.preview(_split(node, split, form.capabilities)[0], uri, options)
    if not result.copied or split is not None:
        return result
    return replace(result, ways=list_ways(node, uri, form, options, result))


def _notes_on_clients(clients: Sequence[str], can: Capabilities) -> list[str]:
    """Return who cannot open references of a form, whatever is in them."""
    readers = REFERENCES if 2 in can.zarr_formats else ICECHUNK
    others = [name for name in clients if name not in readers]
    if not others:
        return []
    return [f"{', '.join(others)} open no {can.title}: they need a Zarr hierarchy"]


def _notes_on_elements(
    node: Group | Array, report: PublishReport, clients: Sequence[str]
) -> list[str]:
    """Return which of the clients cannot open what was published, whatever its codecs."""
    published = {p: a.metadata for p, a in list_arrays(node).items() if p not in report.skipped}
    notes = explain_elements(published, report.zarr_format, clients)
    if "netcdf" in clients and (why := explain_netcdf(published, list_group_attributes(node))):
        notes.append(f"netcdf opens nothing of it: {why}")
    return notes


def _split(
    node: Group | Array, split: Split | None, can: Capabilities
) -> tuple[Group | Array, list[str]]:
    """Split a group into runs where that is asked for, and say so."""
    if split is None:
        return node, []
    check_choice("split", split, Split)
    if not isinstance(node, Group):
        raise ValueError("split: only groups are split into groups")
    if can.as_is:
        raise ValueError(f"{can.title} holds everything as it is: nothing is to be split")
    runs = split_runs(node)
    if runs is node:
        return node, []
    count = len(list(runs.groups()))
    return runs, [f"split into {count} groups, each of one packing and chain of codecs"]


def _check_node(node: Any) -> None:
    if not isinstance(node, Group | Array):
        raise TypeError(
            f"give a group or an array, not {name_type(node)}; open() and virtualize() return "
            "one for paths"
        )
