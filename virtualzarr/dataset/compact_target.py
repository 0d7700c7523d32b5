"""`compact`: small chunks folded where a path leads to, or what has to be done there first."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from virtualzarr.array import Array
from virtualzarr.choices import Keep
from virtualzarr.dataset.compact import CompactReport
from virtualzarr.dataset.dataset import Dataset
from virtualzarr.dataset.detect import is_dataset
from virtualzarr.errors import SourceNotFoundError, UnsupportedError, VirtualZarrError
from virtualzarr.hierarchy.group import Group
from virtualzarr.hierarchy.open_node import open_hierarchy
from virtualzarr.keywords import strict_keywords
from virtualzarr.stores import open_store
from virtualzarr.stores.files import resolve_uri


@strict_keywords()
def compact(
    target: Any,
    chunks: int | Mapping[str, int],
    *,
    shards: int | Mapping[str, int] | None = None,
    keep: Keep = "new",
    memory: int = 1 << 28,
    budget: int | None = None,
    message: str | None = None,
    parallel: Any = None,
    allowed: str | Iterable[str] | None = None,
    storage_options: Mapping[str, Any] | None = None,
    single_writer: bool = False,
) -> CompactReport:
    """Fold small chunks of a dataset into the shape that is read, beside readers and writers.

    Parameters
    ----------
    target : path, URL or Dataset
    chunks, shards, keep, memory, budget, message, parallel
        As for `Dataset.compact`.
    allowed, storage_options, single_writer
        As for `Dataset`.

    Returns
    -------
    CompactReport

    Raises
    ------
    UnsupportedError
        It is a Zarr hierarchy. Chunks are named by their numbers there, all of which change with
        the first fold: readers who know the old ones would take what is gone for fill values.
        `upgrade` makes a dataset of it in place, with its own chunks and with references.
    SourceNotFoundError
        There is nothing.

    Examples
    --------
    >>> import tempfile
    >>> import numpy as np
    >>> import virtualzarr as vz
    >>> path = tempfile.mkdtemp() + "/air.zarr"
    >>> array = vz.create_group(path).create_array(
    ...     "air", data=np.arange(6), chunks=[[1] * 6], dimension_names=["time"]
    ... )
    >>> dataset = vz.upgrade(path, "time")
    >>> vz.compact(path, 3).rows, vz.open(path)["air"].chunks
    (6, (3,))
    """
    options: Any = {"shards": shards, "keep": keep, "memory": memory, "budget": budget}
    options["parallel"] = parallel
    if isinstance(target, Dataset):
        return target.compact(chunks, message=message, **options)
    if isinstance(target, Array | Group):
        raise UnsupportedError("datasets are folded, by their path: not arrays and groups")
    uri = resolve_uri(target).rstrip("/")
    if not is_dataset(uri, storage_options):
        raise _explain(uri, storage_options)
    dataset = Dataset(
        uri, allowed=allowed, storage_options=storage_options, single_writer=single_writer
    )
    return dataset.compact(chunks, message=message, **options)


def _explain(uri: str, storage_options: Mapping[str, Any] | None) -> VirtualZarrError:
    """Return the error for what is no dataset."""
    try:
        node = open_hierarchy(open_store(uri, storage_options))
    except VirtualZarrError:
        return SourceNotFoundError("there is no dataset", file=uri)
    remedy = "copy it with other chunks (virtualzarr.copy)"
    if isinstance(node, Group):
        remedy = f"make it a dataset (virtualzarr.upgrade), or {remedy}"
    return UnsupportedError(
        "chunks of Zarr hierarchies are named by their numbers, and readers would take those that "
        f"are folded for missing ones: {remedy}",
        file=uri,
    )
