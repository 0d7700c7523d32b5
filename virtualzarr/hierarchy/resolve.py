"""Resolution of target, path and mode: where a node is opened or created, and with what rights."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple, TypeVar, get_args

from virtualzarr.errors import NodeExistsError, NodeNotFoundError
from virtualzarr.metadata import ArrayMetadata, GroupMetadata, loads_json, normalize_path
from virtualzarr.nodes.documents import join, read_node
from virtualzarr.nodes.replace_documents import settle_pending
from virtualzarr.stores import Store, open_store
from virtualzarr.stores.read_only import as_read_only
from virtualzarr.stores.renamed_document import RenamedDocument

T = TypeVar("T")

Mode = Literal["r", "r+", "a", "w", "w-"]
MODES = get_args(Mode)


class ResolvedTarget(NamedTuple):
    """Where a node is, or is to be, and what may be done to it.

    Attributes
    ----------
    store : Store
        Read-only with the mode "r".
    path : str
        Normalized.
    mode : {"r", "r+", "a", "w", "w-"}
    zarr_format : int or None
        Only nodes of this format count; v3 before v2 for None.
    """

    store: Store
    path: str
    mode: Mode
    zarr_format: int | None = None

    def read(self, node_type: Literal["array", "group"] | None = None) -> Any:
        """Return the metadata of the stored node; None where the mode has it created.

        A commit to its arrays that was cut short is finished first, if it may be written to.

        Parameters
        ----------
        node_type : {"array", "group"}, optional
            What the node must be.

        Raises
        ------
        NodeNotFoundError
            There is no such node, and the mode creates none.
        """
        # No request: "w" replaces any node, and writing refuses one for "w-", also a later one.
        if self.mode in ("w", "w-"):
            return None
        try:
            metadata = read_node(self.store, self.path, self.zarr_format)
        except NodeNotFoundError:
            if self.mode != "a":
                raise
            return None
        check_node_type(metadata, node_type, self.store, self.path)
        settle_pending(self.store, self.path, metadata)
        return metadata

    def make(self, create: Callable[[], T]) -> T | None:
        """Create the node; None where the mode opens one that another process was quicker to make.

        Raises
        ------
        NodeExistsError
            There is one already, or something else.
        """
        try:
            return create()
        except NodeExistsError:
            if self.mode != "a" or self.read() is None:
                raise
            return None


def resolve(
    target: Any,
    path: str = "",
    mode: Mode | None = None,
    *,
    storage_options: Mapping[str, Any] | None = None,
    zarr_format: int | None = None,
    metadata_key: str | None = None,
) -> ResolvedTarget:
    """Return where a node is opened or created; every opener takes its arguments to this.

    Parameters
    ----------
    target : path, URL, mapping or store
    path : str
    mode : {"r", "r+", "a", "w", "w-"}, optional
        Default: "a", or "r" for stores that can only be read.
    storage_options, zarr_format, metadata_key
        As for `open_array`.

    Raises
    ------
    ValueError
        There is no such mode.
    """
    check_mode(mode)
    store = open_store(target, storage_options)
    # As zarr-python: whoever says nothing gets what the store allows.
    if mode is None:
        mode = "a" if getattr(store, "writable", False) else "r"
    path = normalize_path(path)
    if metadata_key is not None:
        # Under another name than usual there is a document of one format only: it says which.
        if not zarr_format:
            created = mode in ("w", "w-")
            data = None if created else store.get(join(path, metadata_key))
            document = None if data is None else loads_json(data)
            is_v2 = isinstance(document, Mapping) and document.get("zarr_format") == 2
            zarr_format = 2 if is_v2 else 3
        store = RenamedDocument(store, path, metadata_key, zarr_format)
    elif isinstance(store, RenamedDocument):
        zarr_format = store.zarr_format
    # The store itself refuses writes: whatever is reached through the node is safe, too.
    return ResolvedTarget(as_read_only(store) if mode == "r" else store, path, mode, zarr_format)


def check_mode(mode: str | None) -> None:
    """Raise a ValueError unless nodes can be opened in a mode."""
    if mode not in (None, *MODES):
        raise ValueError(f"mode must be one of {', '.join(MODES)}, not {mode!r}")


def check_node_type(
    metadata: ArrayMetadata | GroupMetadata, node_type: str | None, store: Store, path: str
) -> Any:
    """Return the metadata of a node, if it is an array or a group as required."""
    # Not a MismatchError: for who wants an array, a group under its path is no answer at all.
    is_array = isinstance(metadata, ArrayMetadata)
    if node_type is not None and is_array != (node_type == "array"):
        stored = "an array" if is_array else "a group"
        raise NodeNotFoundError(
            f"there is no {node_type} at {path!r}, but {stored}", file=store.uri
        )
    return metadata
