"""Base of the forms that other readers open: planned, protected from overwriting, written whole."""

from __future__ import annotations

import logging
import os
from abc import abstractmethod
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

from virtualzarr.array import Array
from virtualzarr.errors import PublishError, SourceError, SourceNotFoundError
from virtualzarr.hierarchy.group import Group
from virtualzarr.hierarchy.inventory import list_arrays, list_sources, list_zarr_formats
from virtualzarr.metadata import ArrayMetadata
from virtualzarr.redaction import hide_in_url
from virtualzarr.references.form import (
    AppendRequest,
    Capabilities,
    OpenedReferences,
    PublishOptions,
    ReferenceForm,
    RenameRequest,
)
from virtualzarr.references.inline_policy import InlinePolicy
from virtualzarr.references.join_published import join_published, select_new
from virtualzarr.references.materialize import rename_sources
from virtualzarr.references.new_names import resolve_names
from virtualzarr.references.overwrite import check_replaceable
from virtualzarr.references.plan import Plan, make_plan
from virtualzarr.references.portable import NO_PLUGINS, PLUGINS, has_plugin_codecs, is_regular
from virtualzarr.references.preview import Preview, preview_plan
from virtualzarr.references.receipt import read_copied_sources
from virtualzarr.references.report import PublishReport
from virtualzarr.references.several_writers import LostRaceError, check_writers, reading, rebase
from virtualzarr.references.write_plan import WriteTask, Written, write_plan
from virtualzarr.stores.atomic_files import lock_for_writing
from virtualzarr.stores.files import Connection
from virtualzarr.stores.location import Location
from virtualzarr.stores.uris import ANYWHERE

_log = logging.getLogger(__name__)


class PortableForm(ReferenceForm):
    """A form that other readers open.

    Attributes
    ----------
    is_single_file : bool
        Whether the references are one file, not a folder.
    overwrites_anything : bool
        Whether ``overwrite=True`` replaces whatever lies there.
    """

    is_single_file = False
    overwrites_anything = True

    @abstractmethod
    def is_replaceable(self, path: str) -> bool:
        """Tell whether a local file or folder is empty, or holds references of this form."""

    @abstractmethod
    def write(self, task: WriteTask) -> Written:
        """Write what is planned, so that readers see all of it or what was there before."""

    def matches_content(self, head: bytes) -> bool:
        """Tell whether an object at a URL that begins so holds references of this form."""
        return False

    def layout_to_publish(self, options: PublishOptions) -> dict[str, Any]:
        """Return what `write` needs for new references."""
        return {}

    def condition(self, location: Location, options: PublishOptions) -> dict[str, Any]:
        """Return what `write` needs in order to replace only what is there now."""
        return {}

    def layout_to_replace(self, opened: OpenedReferences, state: object) -> dict[str, Any]:
        """Return what `write` needs in order to replace references by others of their layout."""
        return dict(opened.layout)

    def layout_to_append(
        self, opened: OpenedReferences, plan: Plan, state: object
    ) -> dict[str, Any]:
        """Return what `write` needs in order to add to references, and leave alone what stays."""
        return self.layout_to_replace(opened, state)

    def state(self, location: Location) -> object:
        """Return what tells that somebody wrote to references; None where nothing is there."""
        return file_state(location)

    def check_state(self, location: Location, before: object) -> None:
        """Refuse to replace references that others have replaced since their state was taken.

        Raises `LostRaceError`.
        """
        if self.state(location) != before:
            raise LostRaceError(
                "somebody else wrote here meanwhile; nothing was written: do it again",
                file=location.uri,
            )

    def check_writers(self, location: Location, single_writer: bool) -> None:
        """Refuse to change references where nothing keeps several writers apart.

        Raises `AccessError`.
        """
        check_writers(location, "references are several objects", single_writer)

    def check_target(self, node: Group | Array, location: Location, *, overwrite: bool) -> None:
        """Refuse a place where something else lies, or a source."""
        check_replaceable(self, location, list_sources(node), overwrite=overwrite)

    def publish(
        self, node: Group | Array, location: Location, options: PublishOptions
    ) -> PublishReport:
        """Plan, then write with the lock held; what lies there is checked before and after."""
        condition = self.condition(location, options)
        # Before the plan, which may take long, and again with the lock held, as now the sources
        # are known: none of them may be replaced.
        check_replaceable(self, location, overwrite=options.overwrite)
        node, notes = self._as_group(node, location.uri)
        plan = self.make_plan(node, options)
        with lock_for_writing(location.uri):
            sources = (s for array in plan.arrays.values() for s in array.manifest.sources)
            check_replaceable(self, location, sources, overwrite=options.overwrite)
            return write_plan(
                self, plan, location, notes, progress=options.progress, relative=options.relative,
                digests=options.digests, layout=self.layout_to_publish(options) | condition,
            )  # fmt: skip

    def make_plan(self, node: Group | Array, options: PublishOptions) -> Plan:
        """Decide what is published."""
        plan = make_plan(
            node, copy=options.copy, zarr_format=self._choose_format(node, options),
            on_error=options.on_error, capabilities=self._with_plugins(options.plugin_codecs),
            inline=options.inline, regular=options.regular, clients=options.clients,
        )  # fmt: skip
        plan.split, plan.parallel = options.split, options.parallel
        return plan

    def preview(self, node: Group | Array, uri: str, options: PublishOptions) -> Preview:
        """Plan with copies, and count."""
        node = self._as_group(node, uri)[0]
        return preview_plan(
            self._plan_copies(node, options, self._choose_format(node, options)), uri, self.name
        )

    def _plan_copies(
        self, node: Group | Array, options: PublishOptions, zarr_format: int | None
    ) -> Plan:
        return make_plan(
            node, copy=True, zarr_format=zarr_format,
            on_error="ignore", capabilities=self._with_plugins(options.plugin_codecs),
            inline=options.inline, regular=options.regular, clients=options.clients,
        )  # fmt: skip

    def _choose_format(self, node: Group | Array, options: PublishOptions) -> int | None:
        """Choose the Zarr format in which clients that are named need the fewest bytes copied."""
        formats = self.capabilities.zarr_formats
        if options.zarr_format is not None or not options.clients or len(formats) < 2:
            return options.zarr_format

        def rank(zarr_format: int) -> tuple[int, int]:
            plan = self._plan_copies(node, options, zarr_format)
            lines = preview_plan(plan, "", self.name).lines
            return len(plan.skipped), sum(line.copied_bytes for line in lines)

        return min(formats, key=rank)

    def append(self, location: Location, request: AppendRequest) -> PublishReport | Preview | None:
        """Join new files to what is there, with the lock held from reading that to writing."""
        if request.dry_run:
            return self._append(location, request)
        self.check_writers(location, request.single_writer)
        with lock_for_writing(location.uri):
            return rebase(lambda: self._append(location, request))

    def _append(self, location: Location, request: AppendRequest) -> PublishReport | Preview | None:
        with reading(location.uri):
            before = self.state(location)
            opened = self.open(location)
        if opened.receipt.get("split"):
            raise PublishError(
                'references that were split into runs (split="runs") do not grow: new files may '
                "begin another run; publish all files anew",
                file=location.uri,
            )
        copied = read_copied_sources(opened.receipt, location)
        new = select_new(opened.node, request, copied)
        _log.info(
            "%s: %d of %d files are to be added",
            hide_in_url(location.uri),
            len(new),
            len(request.files),
        )
        if not new:
            return None
        node = join_published(opened.node, new, request.dim, request.join_options)
        formats = self.capabilities.zarr_formats
        zarr_format = 3 if 3 in list_zarr_formats(opened.node) and 3 in formats else None
        plugins = request.plugin_codecs or has_plugin_codecs(list_arrays(opened.node).values())
        frozen = _frozen(opened.node)
        if request.dry_run:
            options = PublishOptions(
                zarr_format=zarr_format, plugin_codecs=plugins, regular=opened.regular or None
            )
            return self.preview(node, location.uri, options)
        # on_error is always "raise": no array that is there already may be left out.
        plan = make_plan(
            node, copy=request.copy, zarr_format=zarr_format, on_error="raise",
            capabilities=self._with_plugins(plugins), frozen=frozen,
            regular=opened.regular or None,
        )  # fmt: skip
        self.check_state(location, before)
        return write_plan(
            self, plan, location, [], progress=request.progress, relative=opened.relative,
            digests=any(source.digest is not None for source in list_sources(opened.node)),
            layout=self.layout_to_append(opened, plan, before), before=opened.receipt,
            copied=copied,
        )  # fmt: skip

    def rename_paths(self, location: Location, request: RenameRequest) -> dict[str, str]:
        """Write the references again with other names; a dry run takes no lock."""
        if not request.dry_run:
            self.check_writers(location, request.single_writer)
        with nullcontext() if request.dry_run else lock_for_writing(location.uri):
            return rebase(lambda: self._rename_paths(location, request))

    def _rename_paths(self, location: Location, request: RenameRequest) -> dict[str, str]:
        with reading(location.uri):
            before = self.state(location)
            # No source is looked at, so that none needs to be allowed.
            opened = self.open(replace(location, allowed=(ANYWHERE,)))
        copied = read_copied_sources(opened.receipt, replace(location, allowed=(ANYWHERE,)))
        sources = [source.uri for source in (*list_sources(opened.node), *copied)]
        new = resolve_names(request.names, dict.fromkeys(sources), location.uri)
        relative = opened.relative if request.relative is None else request.relative
        if request.dry_run or (not new and relative == opened.relative):
            return new
        plan = make_plan(
            _with_names(opened.node, new), copy=False, on_error="raise",
            zarr_format=max(list_zarr_formats(opened.node), default=None),
            capabilities=self._with_plugins(has_plugin_codecs(list_arrays(opened.node).values())),
            inline=InlinePolicy.parse(0), regular=opened.regular or None,
        )  # fmt: skip
        self.check_state(location, before)
        layout = self.layout_to_replace(opened, before)
        write_plan(
            self, plan, location, [], relative=relative, layout=layout, before=opened.receipt,
            copied=[s.with_uri(new[s.uri]) if s.uri in new else s for s in copied],
        )  # fmt: skip
        return new

    def _with_plugins(self, plugin_codecs: bool) -> Capabilities:
        return replace(self.capabilities, plugin_codecs=PLUGINS if plugin_codecs else NO_PLUGINS)

    def _as_group(self, node: Group | Array, uri: str) -> tuple[Group | Array, list[str]]:
        """Put an array into a group where readers know no array at the root."""
        if isinstance(node, Group) or self.capabilities.root_array:
            return node, []
        name = node.name or uri.rpartition("/")[2].partition(".")[0] or "array"
        note = f"the array is the member {name!r} of a group"
        return Group({}, {name: node.with_path(name)}), [note]


def file_state(location: Location) -> object:
    """Return what a file system or server says of a file's version; None where there is none."""
    if not location.is_remote:
        if not os.path.exists(location.uri):
            return None
        status = os.stat(location.uri)
        return status.st_ino, status.st_mtime_ns, status.st_size
    connection = Connection(location)
    try:
        return connection.fingerprint(connection.path, location.uri)
    except SourceNotFoundError:
        return None
    except SourceError as error:
        if isinstance(error.__cause__, IsADirectoryError):
            return None
        raise


def _frozen(node: Group | Array) -> dict[str, ArrayMetadata]:
    """Return metadata of regular arrays, whose chunk shapes and codecs stay.

    Readers hold metadata while chunks come.
    """
    arrays = list_arrays(node).items()
    return {path: array.metadata for path, array in arrays if is_regular(array.metadata)}


def _with_names(node: Group | Array, names: Mapping[str, str]) -> Group | Array:
    """Return a hierarchy whose sources have other names."""

    def rename(array: Array) -> Array:
        return array.replace(
            chunk_source=rename_sources(array.manifest, lambda old: names.get(old, old))
        )

    return rename(node) if isinstance(node, Array) else node.map_arrays(rename)
