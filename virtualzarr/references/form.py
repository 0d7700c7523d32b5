"""Reference form: the protocol that every form of published references implements.

A form is one object in a room of its own, beside its reader and its writer. `publish`, `preview`,
`append`, `rename_paths` and `convert_references` ask it; none of them knows any form by name.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from virtualzarr.choices import Duplicates, OnError, ReferenceFormat, Split
from virtualzarr.references.new_names import NewNames
from virtualzarr.stores.location import Location

if TYPE_CHECKING:
    from virtualzarr.array import Array
    from virtualzarr.hierarchy.group import Group
    from virtualzarr.references.inline_policy import InlinePolicy
    from virtualzarr.references.preview import Preview
    from virtualzarr.references.report import PublishReport


@dataclass(frozen=True)
class Capabilities:
    """What a form of references can hold.

    Attributes
    ----------
    title : str
        What messages call it.
    zarr_formats : tuple of int
        The one that is preferred first.
    any_grid : bool
        Whether chunk grids need not be regular.
    missing_chunks : bool
        Whether readers tell missing chunks from others. Where not, a chunk of fill values is
        written out for all of them.
    chunks : bool
        Whether chunks are stored in it as in any store: then there is no limit to them, and no
        file beside it is needed.
    root_array : bool
        Whether readers open an array at the root.
    any_file_name : bool
        Whether names of source files need not be UTF-8.
    copied_bytes : int
        Up to how many bytes (decoded) all copied chunks are stored within the references.
    beside : bool
        Whether there is a place for a file beside them, in which more copied chunks are stored.
    relative : bool
        Whether source files can be named relative to the references.
    digests : bool
        Whether digests of samples of source files can be noted.
    plugin_codecs : frozenset of str
        What the names of codecs begin with that readers have by plug-ins: this package's, and those
        of imagecodecs.
    as_is : bool
        Whether everything is held as it is, so that nothing is inlined or put on other grids.
    media_type : str
        What catalogues call it.
    document_prefix : str
        What readers take for documents where names of nodes begin with it, so that chunks are
        missing for them.
    """

    title: str
    zarr_formats: tuple[int, ...]
    any_grid: bool = True
    missing_chunks: bool = True
    chunks: bool = False
    root_array: bool = True
    any_file_name: bool = True
    copied_bytes: int = 0
    beside: bool = True
    relative: bool = True
    digests: bool = False
    plugin_codecs: frozenset[str] = frozenset()
    as_is: bool = False
    media_type: str = "application/vnd.zarr; version=3"
    document_prefix: str = ""


@dataclass(frozen=True)
class PublishOptions:
    """The options of `publish`, with its defaults."""

    copy: bool = False
    zarr_format: int | None = None
    on_error: OnError = "raise"
    progress: bool | None = None
    relative: bool = False
    record_size: int | None = None
    plugin_codecs: bool = False
    overwrite: bool = False
    digests: bool = False
    inline: InlinePolicy | None = None
    regular: bool | None = None
    clients: tuple[str, ...] = ()
    split: Split | None = None
    parallel: Any = None


@dataclass(frozen=True)
class AppendRequest:
    """What is to be appended to references, and how.

    Attributes
    ----------
    files, groups : sequences
        The new files, and what each was scanned into.
    dim : str
        The dimension along which they follow.
    duplicates : {"raise", "skip"}
    join_options : dict
        Options of `concat`.
    single_writer : bool
        Whether the caller answers for it that nobody else writes at the same time.
    """

    files: Sequence[str]
    groups: Sequence[Group]
    dim: str
    duplicates: Duplicates
    dry_run: bool
    copy: bool
    plugin_codecs: bool
    progress: bool | None
    join_options: dict[str, Any]
    single_writer: bool = False


@dataclass(frozen=True)
class RenameRequest:
    """Which files get other names in references, and how.

    Attributes
    ----------
    names : mapping or callable
        New names by old ones.
    dry_run, relative, single_writer
        As for `virtualzarr.rename_paths`.
    """

    names: NewNames
    dry_run: bool
    relative: bool | None
    single_writer: bool


@dataclass(frozen=True)
class OpenedReferences:
    """Published references, read back.

    Attributes
    ----------
    node : Group or Array
        The root; its arrays are virtual.
    relative : bool
        Whether they name their source files relative to themselves.
    layout : mapping
        What else the form's writer needs in order to write them again as they are.
    receipt : mapping
        How they were published; see `virtualzarr.references.receipt`.
    """

    node: Group | Array
    relative: bool = False
    layout: Mapping[str, Any] = field(default_factory=dict)
    receipt: Mapping[str, Any] = field(default_factory=dict)

    @property
    def regular(self) -> bool:
        """Whether all grids were to be regular when they were published."""
        return self.receipt.get("regular") is True


class ReferenceForm(ABC):
    """A form of references: what it can hold, and how it is read, written and changed.

    Attributes
    ----------
    name : str
        Its name in the registry.
    suffixes : tuple of str
        How paths end that get this form unless another is asked for.
    """

    name: ReferenceFormat
    suffixes: tuple[str, ...] = ()
    capabilities: Capabilities

    @abstractmethod
    def recognizes(self, uri: str, file_format: str) -> bool:
        """Tell whether references are in this form.

        Parameters
        ----------
        file_format : str
            What `virtualzarr.ingest.detect` says they are.
        """

    @abstractmethod
    def open(self, location: Location) -> OpenedReferences:
        """Open references."""

    @abstractmethod
    def check_target(self, node: Group | Array, location: Location, *, overwrite: bool) -> None:
        """Refuse a place where `publish` would refuse to put references, before it is called.

        Raises
        ------
        NodeExistsError
            There is something that is not to be replaced.
        """

    def find_foreign(self, location: Location) -> str | None:
        """Return the name of something at a place that was not published in this form.

        For who replaces results and nothing else: `publish` with ``overwrite=True`` replaces more.
        Of forms that delete nothing, nobody has to know.
        """
        return None

    @abstractmethod
    def publish(
        self, node: Group | Array, location: Location, options: PublishOptions
    ) -> PublishReport:
        """Write references to a node, whole or not at all."""

    @abstractmethod
    def preview(self, node: Group | Array, uri: str, options: PublishOptions) -> Preview:
        """Count what `publish` would do with ``copy=True``, without writing or reading chunks."""

    @abstractmethod
    def append(self, location: Location, request: AppendRequest) -> PublishReport | Preview | None:
        """Append scanned files; None if all of them are referred to already."""

    def list_history(self, location: Location) -> list[tuple[str, str, str, str]]:
        """Return name, time, verb and message of the last versions; none where none are kept."""
        return []

    def show_opening(
        self, name: str, zarr_format: int, protocols: Sequence[str] = ()
    ) -> dict[str, str]:
        """Return code that opens references, by title.

        Parameters
        ----------
        name : str
            Of the references.
        protocols : sequence of str
            Of their sources, each once; ``"file"`` for local paths.
        """
        quoted = json.dumps(name)
        return {
            "Python: virtualzarr": f"import virtualzarr as vz\n\nnode = vz.open({quoted})\nnode",
            "Python: xarray, with virtualzarr": (
                "import xarray as xr\n\n"
                f'ds = xr.open_dataset({quoted}, engine="virtualzarr", chunks={{}})\nds'
            ),
        }

    @abstractmethod
    def rename_paths(self, location: Location, request: RenameRequest) -> dict[str, str]:
        """Rename source files; return new names by old ones."""
