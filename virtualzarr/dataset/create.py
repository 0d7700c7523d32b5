"""Datasets created from files, or from virtual arrays."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, Unpack

from numpy.typing import NDArray

from virtualzarr.dataset import objects
from virtualzarr.dataset.additions import Addable as Source
from virtualzarr.dataset.additions import (
    AppendOptions,
    as_group,
    check_options,
    describe_options,
    list_files,
    scan_addition,
)
from virtualzarr.dataset.commit import Change, create
from virtualzarr.dataset.coordinates import SegmentCoordinates
from virtualzarr.dataset.dataset import Dataset
from virtualzarr.dataset.describe import describe_commit
from virtualzarr.dataset.editing import note_repeats
from virtualzarr.dataset.entry import Entry
from virtualzarr.dataset.fitting import (
    NO_FILES,
    Addition,
    FileRanges,
    build_gap,
    describe_first,
)
from virtualzarr.dataset.gaps import close_gaps
from virtualzarr.dataset.head import Head
from virtualzarr.dataset.joined_changes import join_changes
from virtualzarr.dataset.open_storage import open_storage
from virtualzarr.dataset.operations import HEAD, Get, Protocol
from virtualzarr.dataset.scale_out import StagedArchive, is_staged_by_workers, stage_archive
from virtualzarr.dataset.schema import Schema
from virtualzarr.dataset.snapshot import Record
from virtualzarr.dataset.staging import StagedObject
from virtualzarr.dataset.storage import ROOT, Storage
from virtualzarr.dataset.values import to_step
from virtualzarr.dataset.verbs import Rows, Stored, add_rows
from virtualzarr.errors import (
    AccessError,
    CommitUnknownError,
    NodeExistsError,
    SourceError,
    UnsupportedError,
    VirtualZarrError,
    warn_caller,
)
from virtualzarr.hierarchy.inventory import list_uris
from virtualzarr.keywords import strict_keywords
from virtualzarr.metadata import GroupMetadata, dumps_json
from virtualzarr.metadata.node_documents import to_documents
from virtualzarr.stores.files import is_url, resolve_uri
from virtualzarr.stores.location import Location
from virtualzarr.stores.locks import WRITER
from virtualzarr.stores.store import LOCK_SUFFIX

_MARKER = "virtualzarr.dataset"
_HEAD_ASIDE = f"{HEAD}.new"
_KINDS = {"schemas", "segments", "index", "log", "staged"}
_LEFT_BEHIND = re.compile(
    rf"{re.escape(ROOT)}(?:\.[0-9a-f]{{16}}\.new)?|{re.escape(_HEAD_ASIDE)}"
    rf"|(?:{'|'.join(sorted(_KINDS))})/0-[0-9a-f]{{16}}(?:(?:\.[0-9a-f]{{16}})?\.new)?",
    re.ASCII,
)
"""What creations leave that stop before there is a head: written values and later epochs are of a
dataset whose head was lost."""


@strict_keywords(AppendOptions)
def create_dataset(
    path: Any,
    source: Source,
    dimension: str,
    *,
    message: str | None = None,
    commit_id: str | None = None,
    allowed: str | Iterable[str] | None = None,
    storage_options: Mapping[str, Any] | None = None,
    single_writer: bool = False,
    relative: bool = False,
    **options: Unpack[AppendOptions],
) -> Dataset:
    """Make a dataset of files, or of virtual arrays, that grows along a dimension.

    Parameters
    ----------
    path : path or str
        A directory that is not there yet, or is empty; or a URL, see `Dataset`.
    source : path, URL, several of them, Group, or xarray.Dataset
        As for `Dataset.append`.
    dimension : str
        Rows come and go along this dimension of all arrays that have it. Its coordinate variable,
        if there is one, must increase: rows are found by it.
    message : str, optional
        For the history.
    commit_id : str, optional
        A name of the commit that no other has: repeated with the same one, it is done once, until
        a vacuum forgets the history.
    allowed, storage_options, single_writer
        As for `Dataset`. Source files that its readers may not open by default, such as local ones
        of a dataset at a URL, are warned of.
    relative : bool
        Whether source files are named relative to the dataset's folder, those to come as well: it
        may be moved together with them. Files to which no way leads from there are named as they
        are.
    **options
        As for `Dataset.append`. The dataset remembers them, and treats later files alike; of
        functions it remembers that there was one, so that it has to be given again.

    Returns
    -------
    Dataset
        At version 1, or at the newest one if that was made with the same `commit_id` before.

    Raises
    ------
    NodeExistsError
        There is something at the path.
    MismatchError
        Files differ in what must be equal.
    PublishError, UnsupportedError
        An array has no form in it.

    Examples
    --------
    >>> import tempfile
    >>> import numpy as np
    >>> import virtualzarr as vz
    >>> folder = tempfile.mkdtemp()
    >>> group = vz.create_group(f"{folder}/0.zarr")
    >>> array = group.create_array("air", data=np.array([1.5, 2.5]), dimension_names=["time"])
    >>> dataset = create_dataset(f"{folder}/air.dataset", f"{folder}/0.zarr", "time")
    >>> dataset.version, dataset.group["air"][...].tolist()
    (1, [1.5, 2.5])
    """
    if not isinstance(dimension, str):
        raise UnsupportedError(
            f"a dataset grows along one dimension, not along {dimension!r}: join the others first"
        )
    folder = resolve_uri(path).rstrip("/")
    access: dict[str, Any] = {"storage_options": storage_options, "allowed": allowed}
    storage = open_storage(Location.of(folder, **access), single_writer)
    if (done := _find_done(storage, commit_id)) is not None:
        return done
    storage.require_commits()
    check_options(options)
    parameters: dict[str, Any] = dict(options)
    files = list_files(source, access)
    _check_sources(storage, files or ())
    staged = None
    if files is not None and is_staged_by_workers(files, parameters):
        with note_repeats(commit_id):
            staged = stage_archive(
                folder, files, dimension, parameters | access,
                relative=relative, single_writer=single_writer,
            )  # fmt: skip
    uris: Sequence[str]
    if staged is not None:
        uris = [uri for rows in staged.rows for uri in rows.files]
        change = _name_staged(staged, folder, parameters, uris, message)
    else:
        change, uris = _join_first(source, files, folder, dimension, parameters, access, relative,
                                   message, commit_id)  # fmt: skip
    _check_sources(storage, uris)
    # A scan may take hours, in which others do something with the same place.
    if (done := _find_done(storage, commit_id)) is not None:
        return done
    # Other readers refuse the dataset from its first moment on.
    if not storage.ask(storage.create_root, build_root()):
        _check_root(storage)  # made since by somebody else, or left by a creation that was stopped
    head = storage.run(create(change, commit_id))
    _warn_of_unreachable(uris, Location.of(f"{folder}/", **access))
    try:
        return _open(storage)
    except Exception as error:
        # It is there, which no error may deny, also of those who give credentials.
        problem = error if isinstance(error, VirtualZarrError) else type(error).__name__
        raise CommitUnknownError(
            f"the dataset was made, but the store does not say what it has: {problem}",
            head.snapshot.commit,
            file=folder,
        ) from error


def check_place(location: Location) -> None:
    """Refuse a place for a dataset where there is something already. Raises `NodeExistsError`."""
    _find_done(open_storage(location, False), None)


def is_created(location: Location, commit_id: str) -> bool:
    """Tell whether there is a dataset of which the only commit has this name."""
    storage = open_storage(location, False)
    if HEAD not in storage.list_top():
        return False
    dataset = _open(storage)
    return dataset.version == 1 and dataset.has_commit(commit_id)


def _find_done(storage: Storage, commit_id: str | None) -> Dataset | None:
    """Return the dataset that this very creation has made; refuse a place with anything else."""
    if not is_url(storage.uri):
        _check_files(storage)
    present = storage.ask(storage.list_top)
    if commit_id is not None and HEAD in present:
        dataset = _open(storage)
        if dataset.has_commit(commit_id):
            return dataset
    if present:
        _check_leftovers(storage, present)
    return None


def _open(storage: Storage) -> Dataset:
    """Return the dataset that is there, opened as its storage is."""
    location = storage.location
    return Dataset(
        storage.uri,
        allowed=location.allowed,
        storage_options=location.storage_options,
        single_writer=storage.single_writer,
    )


def _check_files(storage: Storage) -> None:
    """Refuse what is not listed: a file at the path, and what is called as the lock and is none."""
    folder = storage.uri
    if os.path.lexists(folder) and not os.path.isdir(folder):
        raise _exists_error(storage)
    lock = os.path.join(folder, WRITER + LOCK_SUFFIX)
    # What a link leads to would be made, or locked.
    if os.path.lexists(lock) and (os.path.islink(lock) or not os.path.isfile(lock)):
        raise _exists_error(storage)


def _check_leftovers(storage: Storage, present: Sequence[str]) -> None:
    """Refuse anything that is not what a creation leaves which stops before there is a head."""
    if HEAD in present:
        raise _exists_error(storage)
    names = {name.rstrip("/") for name in present} - _KINDS
    names |= storage.ask(storage.list_objects).keys()
    if HEAD in names:
        return  # of somebody who creates it at the same time: the commit finds out who it is
    if not all(map(_LEFT_BEHIND.fullmatch, names)):
        raise _exists_error(storage)
    if ROOT in names:
        _check_root(storage)
    elif _HEAD_ASIDE in names and storage.ask(storage.get, Get(ROOT)) is None:
        raise _exists_error(storage)  # somebody else's, as creations begin with the root


def _check_sources(storage: Storage, uris: Iterable[str]) -> None:
    """Refuse source files that are called as what creations leave: a vacuum would delete them."""
    if any(uri.startswith(f"{storage.uri}/") for uri in uris):
        raise _exists_error(storage)


def _check_root(storage: Storage) -> None:
    """Refuse a document of a root that is not the one which creations leave."""
    answer = storage.ask(storage.get, Get(ROOT))
    if answer is None:
        raise SourceError(
            "the store does not show the document that it says is there", file=storage.uri
        )
    document = None
    with suppress(ValueError, RecursionError):
        document = json.loads(answer[0])
    if json.dumps(document, sort_keys=True) != json.dumps(_root_document(), sort_keys=True):
        raise _exists_error(storage)


def _exists_error(storage: Storage) -> NodeExistsError:
    return NodeExistsError(
        "there is something already, and datasets are never overwritten, as they keep their "
        "history: append to it, or write to another place",
        file=storage.uri,
    )


def _warn_of_unreachable(uris: Iterable[str], location: Location) -> None:
    """Warn of source files that readers of the dataset may not open, unless they say so."""
    for uri in uris:
        try:
            location.resolve_uri(uri)
        except AccessError:
            on = "" if is_url(uri) else " on this machine"
            warn_caller(
                f"the dataset is made, but refers to files such as {uri}: it can be read{on} only "
                "by those who allow that with allowed=",
                UserWarning,
            )
            return


def _join_first(
    source: Any,
    files: list[str] | None,
    folder: str,
    dimension: str,
    parameters: Mapping[str, Any],
    access: Mapping[str, Any],
    relative: bool,
    message: str | None,
    commit_id: str | None,
) -> tuple[Change, list[str]]:
    """Return the change that makes the first version of what is joined here, and source files."""
    if files is None:
        group = as_group(source)
        names: FileRanges = dict.fromkeys(list_uris(group))
    else:
        with note_repeats(commit_id):
            group, names = scan_addition(files, dimension, {**parameters, **access})
    addition = describe_first(group, Schema(growing=dimension, relative=relative))
    parameters = _with_exact_step(addition.schema, addition.coordinates, parameters)
    addition = replace(addition, schema=_remember(addition.schema, parameters), folder=folder)
    schema = addition.schema
    about = describe_commit("create", message, [schema.name_file(name, folder) for name in names])
    changes = [first_change(addition, names), *_gap_changes(addition, parameters)]
    return join_changes(changes, about), addition.sources


def _remember(schema: Schema, parameters: Mapping[str, Any]) -> Schema:
    """Return a schema with the options that later files are treated by."""
    described, callables = describe_options(parameters)
    return replace(schema, options=described, callables=tuple(callables))


def _name_staged(
    staged: StagedArchive,
    folder: str,
    parameters: Mapping[str, Any],
    uris: Iterable[str],
    message: str | None,
) -> Change:
    """Return the change that makes the first version of what workers have staged."""
    coordinates = staged.rows[0].coordinates
    parameters = _with_exact_step(staged.schema, coordinates, parameters)
    schema = _remember(staged.schema, parameters)
    fixed = None
    if staged.fixed is not None:
        fixed = StagedObject(staged.fixed, staged.fixed_content)
    parts = [one.to_rows(StagedObject(one.segment, one.content)) for one in staged.rows]
    names = [schema.name_file(uri, folder) for uri in uris]
    begin = _begin(schema, fixed, parts[0])
    others = (add_rows(rows, _no_coordinates, {}) for rows in parts[1:])
    return join_changes([begin, *others], describe_commit("create", message, names))


def build_root() -> bytes:
    """Return the root's document, by which other readers refuse a dataset."""
    return dumps_json(_root_document())


def _root_document() -> dict[str, Any]:
    marker = {_MARKER: {"must_understand": True, "version": 2}}
    return to_documents(GroupMetadata({}, 3))["zarr.json"] | marker


def first_change(addition: Addition, files: FileRanges = NO_FILES) -> Change:
    """Return the change that makes the first version of rows and a schema."""
    return _begin(addition.schema, addition.fixed_segment(), addition.rows(None, files))


def _begin(first_schema: Schema, fixed: Stored | None, rows: Rows) -> Change:
    schema = Stored("schemas", objects.encode(first_schema.to_json()))

    def change(head: Head) -> Protocol[Record]:
        new_record = yield from add_rows(rows, _no_coordinates, {})(head)
        entries = new_record.added
        if fixed is not None:
            named = yield from fixed.put(head.snapshot.epoch)
            entries = (Entry(named, head.snapshot.sequence, {}), *entries)
        named = yield from schema.put(head.snapshot.epoch)
        return replace(new_record, added=entries, schema=named)

    return change


def _with_exact_step(
    schema: Schema, coordinates: NDArray[Any] | None, options: Mapping[str, Any]
) -> dict[str, Any]:
    """Return options with the step as a number of what the coordinate counts."""
    if options.get("step") is None:
        return dict(options)
    metadata = schema.arrays.get(schema.growing)
    if metadata is None or coordinates is None:
        raise UnsupportedError("step is of a coordinate, and there is none")
    return {**options, "step": to_step(options["step"], metadata.attributes, metadata.dtype)}


def _gap_changes(addition: Addition, options: Mapping[str, Any]) -> list[Change]:
    """Return the change that fills gaps between the first rows, or refuses them."""
    policy, values = options.get("gaps", "allow"), addition.coordinates
    if policy == "allow" or values is None:
        return []
    if options.get("step") is None:
        raise ValueError(f"gaps={policy!r} needs the distance of coordinates: give step=")

    def coordinates(entry: Entry) -> Protocol[SegmentCoordinates]:
        return SegmentCoordinates.of(values)  # the only entry there is
        yield

    def build_rows(missing: NDArray[Any]) -> Rows:
        return build_gap(addition.schema, missing).rows(None)

    dimension, step = addition.schema.growing, options["step"]
    return [
        close_gaps(
            dimension, values[0], values[-1], step, policy, coordinates, build_rows, {}
        )
    ]  # fmt: skip


def _no_coordinates(entry: Entry) -> Protocol[SegmentCoordinates]:
    raise AssertionError("there are no entries yet")
    yield
