"""Tells folders of references in Parquet: all that is opened is asked, so it imports little."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from virtualzarr.stores.files import is_url, open_regular

METADATA = ".zmetadata"


def is_folder(uri: str, storage_options: Mapping[str, Any] | None = None) -> bool:
    """Whether there is a folder of references at a place; of a URL, by how it ends."""
    if is_url(uri):
        return uri.rstrip("/").endswith((".parq", ".parquet"))
    try:
        with open_regular(os.path.join(uri, METADATA)) as file:
            return b'"record_size"' in file.read()
    except OSError:
        return False
