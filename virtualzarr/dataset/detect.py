"""Datasets with versions as a source format: recognized, at little cost for all that are none."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from virtualzarr.dataset.operations import HEAD
from virtualzarr.formats.registry import has_extension
from virtualzarr.stores import open_store
from virtualzarr.stores.files import is_url
from virtualzarr.stores.upgraded import is_dataset_root


def is_dataset(uri: str, storage_options: Mapping[str, Any] | None = None) -> bool:
    """Tell whether a dataset is at a path or URL."""
    if not is_url(uri):
        return os.path.isfile(os.path.join(uri, HEAD)) and _has_root(uri, storage_options)
    # Names of files are not probed for keys below them, which would only cost requests.
    return not has_extension(uri) and _has_root(uri, storage_options)


def _has_root(uri: str, storage_options: Mapping[str, Any] | None) -> bool:
    document = open_store(uri, storage_options).get("zarr.json")
    return document is not None and is_dataset_root(document)
