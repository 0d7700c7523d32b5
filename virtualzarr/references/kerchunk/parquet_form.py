"""The form Parquet: a folder of record files that fsspec's lazy mapper reads one by one."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from virtualzarr.array import Array
from virtualzarr.errors import (
    AccessError,
    MissingDependencyError,
    PublishError,
    UnsupportedError,
)
from virtualzarr.hierarchy.inventory import list_arrays
from virtualzarr.references.array_plan import ArrayPlan
from virtualzarr.references.form import Capabilities, OpenedReferences, PublishOptions
from virtualzarr.references.kerchunk.create_folder import explain
from virtualzarr.references.kerchunk.read_parquet import FINGERPRINTS
from virtualzarr.references.kerchunk.scan import open_references
from virtualzarr.references.kerchunk.show_opening import show_kerchunk
from virtualzarr.references.kerchunk.write_parquet import write_parquet
from virtualzarr.references.materialize import is_copy
from virtualzarr.references.parquet_folder import METADATA, is_folder
from virtualzarr.references.plan import Plan
from virtualzarr.references.portable_form import PortableForm, file_state
from virtualzarr.references.several_writers import is_object_store, open_conditional
from virtualzarr.references.unchanged import count_unchanged, is_frozen
from virtualzarr.references.write_plan import WriteTask, Written
from virtualzarr.stores.location import Location
from virtualzarr.stores.uris import resolve_links

_RECORD = re.compile(r"(^|[/\\])refs\.[0-9]+\.parq$")
"""Records as `record_name` calls them."""


class ParquetForm(PortableForm):
    """Folders of references in Parquet."""

    name = "parquet"
    suffixes = (".parq", ".parquet")
    capabilities = Capabilities(
        "Parquet", (2,), any_grid=False, root_array=False, any_file_name=False, digests=True,
        media_type="application/vnd.apache.parquet", document_prefix=".z",
        # pandas gives NaN for a missing URL, and fsspec takes it for one.
        missing_chunks=False,
        # Files beside would have absolute names; records are read as a whole when one of their
        # chunks is, so that they must not become large.
        copied_bytes=1 << 26,
    )  # fmt: skip

    def recognizes(self, uri: str, file_format: str) -> bool:
        """Tell whether there is a folder of references."""
        return is_folder(uri)

    def is_replaceable(self, path: str) -> bool:
        """Tell whether a folder is empty: of another, readers that are open load records later."""
        return not os.listdir(path)

    def find_foreign(self, location: Location) -> str | None:
        """Return the name of a file in a folder that is neither metadata nor a record."""
        if location.is_remote:
            return None  # folders at URLs are not replaced
        path = resolve_links(location.uri)
        names = [os.path.relpath(os.path.join(folder, name), path)
                 for folder, _, names in os.walk(path) for name in names]  # fmt: skip
        # Without our metadata, all of it is of others.
        own = (METADATA, FINGERPRINTS) if is_folder(path) else ()
        foreign = (n for n in names if n not in own and not (own and _RECORD.search(n)))
        return next(foreign, None)

    def show_opening(
        self, name: str, zarr_format: int, protocols: Sequence[str] = ()
    ) -> dict[str, str]:
        """Return code that opens a folder: by kerchunk's engine, and by GDAL."""
        gdal = shlex.quote(f'ZARR:"/vsikerchunk_parquet_ref/{{{name}}}"')
        others = super().show_opening(name, zarr_format)
        return {**show_kerchunk(name, protocols), **others, "GDAL": f"gdalmdiminfo {gdal}"}

    def state(self, location: Location) -> object:
        """Return that of the file that is written last."""
        return file_state(location.with_uri(f"{location.uri}/{METADATA}"))

    def open(self, location: Location) -> OpenedReferences:
        """Read the metadata; records are read when their chunks are asked for."""
        return open_references(location)

    def condition(self, location: Location, options: PublishOptions) -> dict[str, Any]:
        """Return the metadata of a folder in an object store, which must not be there yet."""
        if not is_object_store(location):
            return {}
        try:
            target = open_conditional(location.with_uri(f"{location.uri.rstrip('/')}/{METADATA}"))
        except (AccessError, MissingDependencyError, UnsupportedError) as error:
            return {"unconditional": error.message}
        if target.tag() is not None:
            raise explain(target)
        return {"target": target}

    def layout_to_publish(self, options: PublishOptions) -> dict[str, Any]:
        """Return how many references a record has."""
        return {"record_size": options.record_size}

    def layout_to_replace(self, opened: OpenedReferences, state: object) -> dict[str, Any]:
        """Return how many references a record has; all of them are written anew."""
        return {"record_size": opened.layout["folder"].record_size}

    def layout_to_append(
        self, opened: OpenedReferences, plan: Plan, state: object
    ) -> dict[str, Any]:
        """Return how many cells of each array stay, if new ones can be added to the folder."""
        replaced = self.layout_to_replace(opened, state)
        stored = list_arrays(opened.node)
        # Readers compare the series of records with that of the metadata: they must be one.
        folder = opened.layout["folder"]
        unchanged = _count_unchanged(plan, stored)
        if folder.series is None or len(plan.arrays) != len(stored):
            return replaced
        return {**replaced, "keep": unchanged, "series": folder.series}

    def write(self, task: WriteTask) -> Written:
        """Write new records, then the metadata that name them."""
        layout, notes = dict(task.layout), _notes(task.plan)
        if reason := layout.pop("unconditional", None):
            notes.append(f"who else writes there at the same time is not noticed: {reason}")
        return Written(write_parquet(task, **layout), notes=notes)


def _count_unchanged(plan: Plan, stored: Mapping[str, Array]) -> dict[str, int]:
    """Count the cells of each array that stay, and refuse to move the others within the files.

    Readers load records one by one, when they like, and by the metadata that they have. A cell at
    the end may be replaced by one that holds the same elements and more, in the same codecs.

    Raises `PublishError`.
    """
    counts = {}
    for path, array in stored.items():
        new = plan.arrays.get(path)
        count = 0 if new is None else _count_cells(new, array)
        if new is None or not _is_replaceable(new, array, count):
            changed = "references that are there would get other places or codecs"
            if new is not None and new.metadata.dtype != array.dtype:
                changed = f"its elements are {array.dtype} and would be {new.metadata.dtype}"
            raise PublishError(
                f"{changed}, which readers that are open would not notice: publish everything to "
                "a new folder",
                variable=path,
            )
        counts[path] = count
    return counts


def _count_cells(new: ArrayPlan, old: Array) -> int:
    """Count the first cells that have the same references, and are not copied."""
    return min(count_unchanged(new.manifest, old.manifest), *new.misread[:1].tolist(), 1 << 62)


def _is_replaceable(new: ArrayPlan, old: Array, count: int) -> bool:
    """Tell whether all cells behind the first ones stay in their places, and are copied anew."""
    cells = np.arange(count, old.manifest.ncells)
    before = new.misread[new.misread < old.manifest.ncells]
    return (
        new.manifest.ncells >= old.manifest.ncells
        and bool(np.isin(cells, before).all())
        and (not len(cells) or new.manifest.shape[1:] == old.manifest.shape[1:])
        and (not len(before) or is_frozen(new.metadata, old.metadata))
    )


def _notes(plan: Plan) -> list[str]:
    """Return what fsspec's reader of Parquet stumbles over."""
    notes = []
    if any(is_copy(source.uri) for source in plan.sources()):
        notes.append(
            "a file with copied chunks is named by its absolute path: rename_paths gives it "
            "another name where it is moved"
        )
    if len(plan.groups) > 1:
        notes.append("there are groups in groups: fsspec opens these with remote_protocol= only")
    missing = [path for path, array in plan.arrays.items() if array.missing]
    if missing:
        notes.append(
            f"chunks of {', '.join(missing)} are missing: fsspec tells so with its engine "
            "fastparquet; with pyarrow it may raise errors"
        )
    return notes


FORM = ParquetForm()
