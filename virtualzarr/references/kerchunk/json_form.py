"""The form JSON: one reference file as kerchunk and fsspec have it, version 1."""

from __future__ import annotations

import os
import re
import secrets
import shlex
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from virtualzarr.errors import AccessError, MissingDependencyError, UnsupportedError
from virtualzarr.references.form import Capabilities, OpenedReferences, PublishOptions
from virtualzarr.references.kerchunk.compressed import (
    GZIP,
    ZSTD,
    compression_of,
    decompress_head,
)
from virtualzarr.references.kerchunk.copies import COPIES_TEMPLATE, name_copies
from virtualzarr.references.kerchunk.scan import open_references
from virtualzarr.references.kerchunk.show_opening import show_kerchunk, show_zarr
from virtualzarr.references.kerchunk.write_json import replace_json, write_json
from virtualzarr.references.overwrite import read_head
from virtualzarr.references.parquet_folder import is_folder
from virtualzarr.references.plan import Plan
from virtualzarr.references.portable import is_regular
from virtualzarr.references.portable_form import PortableForm
from virtualzarr.references.several_writers import (
    LONGEST_LOG,
    check_writers,
    is_object_store,
    open_conditional,
)
from virtualzarr.references.write_plan import WriteTask, Written
from virtualzarr.stores.location import Location
from virtualzarr.stores.uris import resolve_links

_DOCUMENT = re.compile(rb'(\.zgroup|\.zarray|zarr\.json)"')
_DOCUMENT_NAMES = ("zarr.json", ".zarray", ".zgroup", ".zattrs", ".zmetadata")
_BLOCK_BYTES = 1 << 20
_LONGEST_KEY = 16


class JsonForm(PortableForm):
    """Reference files in JSON."""

    name = "json"
    capabilities = Capabilities(
        "JSON of Zarr v2", (2, 3), digests=True, media_type="application/json"
    )
    is_single_file = True

    def recognizes(self, uri: str, file_format: str) -> bool:
        """Tell whether a file of kerchunk's is no folder in Parquet."""
        return file_format == "kerchunk" and not is_folder(uri)

    def is_replaceable(self, path: str) -> bool:
        """Tell whether a file is empty, or holds references."""
        return is_reference_file(path)

    def find_foreign(self, location: Location) -> str | None:
        """Return the name of a file that holds no references."""
        if location.is_remote:
            head = read_head(location, _BLOCK_BYTES)
            is_own = not head or self.matches_content(head)
        else:
            path = resolve_links(location.uri)
            is_own = not os.path.isfile(path) or self.is_replaceable(path)
        return None if is_own else os.path.basename(location.uri)

    def matches_content(self, head: bytes) -> bool:
        """Tell whether a file that begins so holds references."""
        head = decompress_head(head, _BLOCK_BYTES)
        return _is_object(head) and _DOCUMENT.search(head) is not None

    def open(self, location: Location) -> OpenedReferences:
        """Read the file."""
        return open_references(location)

    def show_opening(
        self, name: str, zarr_format: int, protocols: Sequence[str] = ()
    ) -> dict[str, str]:
        """Return code that opens a file: by fsspec, and by what knows kerchunk's v2."""
        snippets = {
            "Python: zarr": show_zarr(name, zarr_format, protocols),
            **super().show_opening(name, zarr_format),
        }
        if zarr_format == 3:
            return snippets
        source = f'ZARR:"/vsikerchunk_json_ref/{{{name}}}"'
        return {
            **show_kerchunk(name, protocols),
            **snippets,
            "GDAL": f"gdalmdiminfo {shlex.quote(source)}",
        }

    def state(self, location: Location) -> object:
        """Return what a file system or server says of the file's version."""
        if is_object_store(location):
            with suppress(AccessError, MissingDependencyError, UnsupportedError):
                return open_conditional(location).tag()
        return super().state(location)

    def check_writers(self, location: Location, single_writer: bool) -> None:
        """Refuse to change a file elsewhere if that cannot be made to depend on its version."""
        if not single_writer and is_object_store(location):
            open_conditional(location)
        else:
            check_writers(location, "nothing compares versions when files are put", single_writer)

    def layout_to_replace(self, opened: OpenedReferences, state: object) -> dict[str, Any]:
        """Return the version that is replaced, and the changes that made it."""
        commits = (*opened.layout["commits"][1 - LONGEST_LOG :], secrets.token_hex(8))
        return {"state": state, "commits": commits}

    def condition(self, location: Location, options: PublishOptions) -> dict[str, Any]:
        """Return the version of the object that is there, unless whatever is there is replaced."""
        if options.overwrite or not is_object_store(location):
            return {}
        try:
            target = open_conditional(location)
        except (AccessError, MissingDependencyError, UnsupportedError) as error:
            return {"unconditional": error.message}
        return {"target": target, "state": target.tag(), "commits": (secrets.token_hex(8),)}

    def write(self, task: WriteTask) -> Written:
        """Replace the file at once."""
        state, commits = task.layout.get("state"), task.layout.get("commits", ())
        target, notes = task.layout.get("target"), self.list_notes(task)
        # What is no tag of an object store was asked of something else.
        if target is None and is_object_store(task.location) and isinstance(state, str):
            target = open_conditional(task.location)
        nbytes = write_json(task) if target is None else replace_json(task, target, state, commits)
        if reason := task.layout.get("unconditional"):
            notes.append(f"who else writes there at the same time is not noticed: {reason}")
        return Written(nbytes, notes=notes)

    def list_notes(self, task: WriteTask) -> list[str]:
        """Return what others need to know who open the references."""
        return [*_notes(task.plan), *_notes_on_opening(task)]


def is_reference_file(path: str) -> bool:
    """Tell whether a local file is empty, or an object with documents of Zarr among its keys."""
    if os.path.basename(path) in _DOCUMENT_NAMES:
        return False
    if not os.path.getsize(path):
        return True
    with open(path, "rb") as file:
        block = file.read(_BLOCK_BYTES)
        if block.startswith((GZIP, ZSTD)):
            head = decompress_head(block, _BLOCK_BYTES)
            return _is_object(head) and _DOCUMENT.search(head) is not None
        if not _is_object(block):
            return False
        end = b""
        while block:
            if _DOCUMENT.search(end + block) is not None:
                return True
            end = block[-_LONGEST_KEY:]  # a name may lie across two blocks
            block = file.read(_BLOCK_BYTES)
    return False


def _is_object(head: bytes) -> bool:
    return re.match(rb"\s*\{", head) is not None


def _notes(plan: Plan) -> list[str]:
    """Return what readers need for Zarr v3 that were written for v2."""
    if plan.zarr_format == 2:
        return []
    notes = [
        "the documents are of Zarr v3: zarr-python and xarray's engine zarr open them through "
        "fsspec; the engine kerchunk reads Zarr v2 only, and finds no group"
    ]
    rectilinear = [path for path, array in plan.arrays.items() if not is_regular(array.metadata)]
    if rectilinear:
        notes.append(
            f"chunks of {', '.join(path or '/' for path in rectilinear)} have several shapes: "
            "zarr-python reads them from version 3.2 on, with "
            'zarr.config.set({"array.rectilinear_chunks": True}), else it refuses the group; '
            "virtualzarr.copy writes chunks of one shape"
        )
    return notes


def _notes_on_opening(task: WriteTask) -> list[str]:
    """Return how others open references that are compressed, or have chunks in a file beside."""
    notes, uri = [], task.location.uri
    if (compression := compression_of(uri)) is not None:
        options = f'{{"compression": "{compression}"}}'
        notes.append(f"the references are compressed: fsspec needs target_options={options}")
    if not task.relative and (beside := name_copies(task.plan, uri)):
        names = ", ".join(name.rpartition("/")[2] for name in beside.values())
        notes.append(
            f"copied chunks lie beside the references, in {names}: where both were moved, fsspec "
            f'needs template_overrides={{"{COPIES_TEMPLATE}": FOLDER}}; GDAL reads no templates, '
            'but the absolute path that portable=["gdal"] writes'
        )
    return notes


FORM = JsonForm()
