"""Conversion of references into another form."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from virtualzarr.hierarchy.inventory import list_arrays
from virtualzarr.ingest.open_target import open as open_node
from virtualzarr.keywords import strict_keywords
from virtualzarr.references.portable import has_plugin_codecs
from virtualzarr.references.preview import Preview
from virtualzarr.references.publish import preview, publish
from virtualzarr.references.registry import locate_target, match_form
from virtualzarr.references.report import PublishReport
from virtualzarr.stores.files import is_url


@strict_keywords(publish)
def convert_references(
    source: Any,
    target: Any,
    *,
    dry_run: bool = False,
    storage_options: Mapping[str, Any] | None = None,
    allowed: str | Iterable[str] | None = None,
    **options: Any,
) -> PublishReport | Preview:
    """Write references in another form: JSON, Parquet, Icechunk or native. No chunk is read.

    Parameters
    ----------
    source : path or str
        Anything that `open` opens.
    target : path or str
        As for `publish`.
    dry_run : bool
        Whether nothing is written, and what would be is returned.
    storage_options, allowed
        As for `open`.
    **options
        As for `publish`.

    Examples
    --------
    >>> convert_references("air.json", "air.parq")  # doctest: +SKIP
    """
    origin, uri = locate_target(source, storage_options, allowed), locate_target(target).uri
    if Path(uri).exists() and not is_url(uri) and os.path.samefile(origin.uri, uri):
        raise ValueError("source and target are the same")
    form, _ = match_form(origin)
    if form is not None:
        # Not by `open`, which puts an array at the root of references into a group.
        node = form.open(origin).node
    else:
        node = open_node(source, storage_options=storage_options, allowed=allowed)
    if form is not None and not form.capabilities.as_is:
        # Who reads them now has the codecs.
        options.setdefault("plugin_codecs", has_plugin_codecs(list_arrays(node).values()))
    if dry_run:
        names = (
            "reference_format",
            "zarr_format",
            "plugin_codecs",
            "inline",
            "regular",
            "split",
            "portable",
        )
        return preview(node, uri, **{name: options[name] for name in names if name in options})
    return publish(node, target, storage_options=storage_options, **options)
