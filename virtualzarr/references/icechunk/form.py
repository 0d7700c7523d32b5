"""The form Icechunk: a repository of virtual chunks, in which each publication is a commit."""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Sequence
from typing import Any

import numpy as np

from virtualzarr.hierarchy.inventory import list_arrays
from virtualzarr.references.form import Capabilities, OpenedReferences, PublishOptions
from virtualzarr.references.icechunk.bindings import (
    is_repository,
    list_commits,
    read_receipt,
    tip,
    writing_errors,
)
from virtualzarr.references.icechunk.read import open_repository
from virtualzarr.references.icechunk.write import write_icechunk
from virtualzarr.references.plan import Plan
from virtualzarr.references.portable_form import PortableForm
from virtualzarr.references.unchanged import is_frozen, starts_with_box
from virtualzarr.references.write_plan import WriteTask, Written
from virtualzarr.stores.location import Location


class IcechunkForm(PortableForm):
    """Icechunk repositories."""

    name = "icechunk"
    suffixes = (".icechunk",)
    capabilities = Capabilities(
        "Icechunk",
        (3,),
        any_grid=False,
        chunks=True,
        any_file_name=False,
        relative=False,
        media_type="application/vnd.zarr+icechunk",
    )
    # Its history could not be had back.
    overwrites_anything = False

    def recognizes(self, uri: str, file_format: str) -> bool:
        """Tell whether there is a repository."""
        return is_repository(uri)

    def is_replaceable(self, path: str) -> bool:
        """Tell whether a folder is empty, or a repository, to which a commit can be added."""
        return not os.listdir(path) or is_repository(path)

    def list_history(self, location: Location) -> list[tuple[str, str, str, str]]:
        """Return the last commits of the branch."""
        return list_commits(location)

    def show_opening(
        self, name: str, zarr_format: int, protocols: Sequence[str] = ()
    ) -> dict[str, str]:
        """Return code that opens the main branch, with access to the files of virtual chunks."""
        icechunk = (
            "import icechunk\nimport xarray as xr\n\n"
            f"storage = icechunk.local_filesystem_storage({json.dumps(name)})\n"
            "containers = icechunk.Repository.open(storage).config.virtual_chunk_containers or {}\n"
            "repository = icechunk.Repository.open(\n"
            "    storage, authorize_virtual_chunk_access=dict.fromkeys(containers)\n)\n"
            'store = repository.readonly_session("main").store\n'
            'ds = xr.open_dataset(store, engine="zarr", consolidated=False, chunks={})\nds'
        )
        return {"Python: Icechunk": icechunk, **super().show_opening(name, zarr_format)}

    def state(self, location: Location) -> object:
        """Return the snapshot at the end of the main branch."""
        return tip(location)

    def open(self, location: Location) -> OpenedReferences:
        """Read the main branch."""
        return OpenedReferences(open_repository(location), receipt=read_receipt(location))

    def layout_to_replace(self, opened: OpenedReferences, state: object) -> dict[str, Any]:
        """Return the snapshot that the commit must follow."""
        return {"expected": state, "commit": secrets.token_hex(8)}

    def layout_to_publish(self, options: PublishOptions) -> dict[str, Any]:
        """Return the id of the commit."""
        return {"commit": secrets.token_hex(8)}

    def layout_to_append(
        self, opened: OpenedReferences, plan: Plan, state: object
    ) -> dict[str, Any]:
        """Return how many cells along each axis of each array stay as they are."""
        replaced = self.layout_to_replace(opened, state)
        keep: dict[str, tuple[int, ...]] = {}
        rewritten: set[str] = set()
        for path, array in list_arrays(opened.node).items():
            if path not in plan.arrays:
                return replaced
            planned = plan.arrays[path]
            new, old = planned.manifest, array.manifest
            if len(planned.misread) and is_frozen(planned.metadata, array.metadata):
                rewritten.add(path)  # Its last cells hold more now; readers have snapshots.
                continue
            longer = sum(n > k for n, k in zip(new.shape, old.shape, strict=True))
            # References are set box by box: what is longer along two axes has no box of new cells.
            if longer > 1 or not starts_with_box(new, old):
                return replaced
            before = np.zeros(new.shape, bool)
            before[tuple(map(slice, old.shape))] = True
            # What is copied now has other codecs than its reference of before.
            if before.reshape(-1)[plan.arrays[path].misread].any():
                return replaced
            keep[path] = old.shape
        return (
            {**replaced, "keep": keep}
            if len(plan.arrays) == len(keep) + len(rewritten)
            else replaced
        )

    def check_writers(self, location: Location, single_writer: bool) -> None:
        """Refuse file systems only: elsewhere commits depend on what they were made from."""
        if not location.is_remote:
            super().check_writers(location, single_writer)

    def write(self, task: WriteTask) -> Written:
        """Commit references, and chunks that are copied, to the main branch."""
        with writing_errors(task.location.uri):
            return Written(*write_icechunk(task, **task.layout))


FORM = IcechunkForm()
