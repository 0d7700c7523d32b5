"""The form Parquet: a folder of record files that fsspec's lazy mapper reads one by one."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from virtualzarr.array import Array
from virtualzarr.errors import PublishError
from virtualzarr.references.form import Capabilities, OpenedReferences, PublishOptions
from virtualzarr.references.inventory import list_arrays
from virtualzarr.references.kerchunk.read_parquet import METADATA, is_folder
from virtualzarr.references.kerchunk.scan import open_references
from virtualzarr.references.kerchunk.write_parquet import write_parquet
from virtualzarr.references.plan import Plan
from virtualzarr.references.portable_form import PortableForm, file_state
from virtualzarr.references.unchanged import starts_with
from virtualzarr.references.write_plan import WriteTask, Written
from virtualzarr.stores.location import Location


class ParquetForm(PortableForm):
    """Folders of references in Parquet."""

    name = "parquet"
    suffixes = (".parq", ".parquet")
    capabilities = Capabilities(
        "Parquet", (2,), any_grid=False, root_array=False, any_file_name=False, digests=True,
        # pandas gives NaN for a missing URL, and fsspec takes it for one.
        missing_chunks=False,
    )  # fmt: skip

    def recognizes(self, uri: str, file_format: str) -> bool:
        """Tell whether there is a folder of references."""
        return is_folder(uri)

    def is_replaceable(self, path: str) -> bool:
        """Tell whether a folder is empty: of another, readers that are open load records later."""
        return not os.listdir(path)

    def state(self, location: Location) -> object:
        """Return that of the file that is written last."""
        return file_state(location.with_uri(f"{location.uri}/{METADATA}"))

    def open(self, location: Location) -> OpenedReferences:
        """Read the metadata; records are read when their chunks are asked for."""
        return open_references(location)

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
        _check_places(plan, stored)
        if folder.series is None or len(plan.arrays) != len(stored):
            return replaced
        keep: dict[str, int] = {}
        for path, array in stored.items():
            count = array.manifest.ncells
            keep[path] = count
        return {**replaced, "keep": keep, "series": folder.series}

    def write(self, task: WriteTask) -> Written:
        """Write new records, then the metadata that name them."""
        return Written(write_parquet(task, **task.layout), notes=_notes(task.plan))


def _check_places(plan: Plan, stored: Mapping[str, Array]) -> None:
    """Refuse to move references within the files: readers load them one by one, when they like.

    Raises `PublishError`.
    """
    for path, array in stored.items():
        new = plan.arrays.get(path)
        # What is copied now has other codecs, though its reference is still that of before.
        if (
            new is None
            or not starts_with(new.manifest, array.manifest)
            or (new.misread < array.manifest.ncells).any()
        ):
            raise PublishError(
                "references that are there would get other places or codecs, which readers that "
                "are open would not notice: publish everything to a new folder",
                variable=path,
            )


def _notes(plan: Plan) -> list[str]:
    """Return what fsspec's reader of Parquet stumbles over."""
    notes = []
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
