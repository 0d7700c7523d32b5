"""Hierarchies that were upgraded to datasets while something read them.

Such an upgrade moves chunks elsewhere. Who opened the hierarchy before would take those that it no
longer finds for chunks that were never written.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from virtualzarr.errors import MetadataError, VirtualZarrError
from virtualzarr.stores.local import LocalStore
from virtualzarr.stores.read_only import unwrap

DATASET_MARKER = b'"virtualzarr.dataset"'
"""The member of the root document of a dataset with versions, which is no hierarchy itself."""

_ROOT = "zarr.json"
_DOCUMENTS = (_ROOT, ".zarray")


def is_dataset_root(document: bytes) -> bool:
    """Tell whether the document of a root group is that of a dataset with versions."""
    return DATASET_MARKER in document


def upgraded_error(folder: str) -> VirtualZarrError:
    """Return the error for a hierarchy that is a dataset now."""
    return MetadataError(
        "the hierarchy was upgraded to a dataset since it was opened; open it anew", file=folder
    )


def check_not_upgraded(store: Any, path: str, *, is_group: bool = False) -> None:
    """Check that a node of which something is missing is still one of a hierarchy.

    Documents are deleted before chunks: where an array's own is there, nothing was moved before. A
    group's may be that of the dataset. Only hierarchies in directories can be upgraded.

    Raises
    ------
    MetadataError
        The hierarchy was upgraded to a dataset.
    """
    local = unwrap(store)
    if not isinstance(local, LocalStore):
        return
    folder = local.to_uri(path)
    if not is_group:
        if any(os.path.exists(f"{folder}/{name}") for name in _DOCUMENTS):
            return
        folder = os.path.dirname(folder)
    # What has no document is a part of an array, or was deleted; the next one above decides.
    for each in (folder, *map(str, Path(folder).parents)):
        try:
            document = Path(each, _ROOT).read_bytes()
        except OSError:
            continue  # there is none, or one that only others may read
        if is_dataset_root(document):
            raise upgraded_error(each).at(variable=path)
        return
