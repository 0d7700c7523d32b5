"""Datasets with versions as a source format: opened at a version."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

from virtualzarr.choices import OnError
from virtualzarr.dataset.version import DatasetVersion
from virtualzarr.hierarchy.group import Group


def scan(
    path_or_url: Any,
    *,
    on_error: OnError = "raise",
    storage_options: Mapping[str, Any] | None = None,
    allowed: str | Iterable[str] | None = None,
    version: int | None = None,
    at: datetime | str | None = None,
    tag: str | None = None,
) -> Group:
    """Open the arrays of a dataset at a version, by default the newest."""
    return DatasetVersion(
        path_or_url, version=version, at=at, tag=tag, allowed=allowed,
        storage_options=storage_options,
    ).group  # fmt: skip
