"""Clients that publications are made for, and which codecs each of them reads.

The table `clients.json` is written by ``python -m tests.interop.matrix``, which asks the clients
themselves.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from functools import lru_cache
from importlib.resources import files
from typing import Any

from virtualzarr.metadata import ArrayMetadata

TABLE: Any = files("virtualzarr.references") / "clients.json"

PYTHON = ("zarr", "dask", "xarray")
"""Clients that decode by zarr-python and numcodecs."""

REFERENCES = (*PYTHON, "zarr2", "zarrs", "kerchunk", "gdal")
"""Clients that open references themselves; others need a Zarr hierarchy."""

ICECHUNK = (*PYTHON, "zarrs")
"""Clients that open Icechunk repositories, by Icechunk's store."""


@lru_cache(maxsize=1)
def read_table() -> dict[str, Any]:
    """Return what each client reads: by format and chain of codecs."""
    table: dict[str, Any] = json.loads(TABLE.read_text())
    return table


def choose_clients(portable: str | Iterable[str]) -> tuple[str, ...]:
    """Return the clients that the parameter `portable` of `publish` names.

    Examples
    --------
    >>> choose_clients("python")
    ('zarr', 'dask', 'xarray')
    """
    known = sorted({*read_table(), "kerchunk"})
    if portable == "all":
        return tuple(name for name in known if name != "kerchunk")
    if portable == "python":
        return PYTHON
    names = (portable,) if isinstance(portable, str) else tuple(portable)
    for name in names:
        if name not in known:
            raise ValueError(f'portable is "all", "python", or of {", ".join(known)}; not {name!r}')
    return names


def list_features(metadata: ArrayMetadata) -> list[str]:
    """Return the codecs of an array, as the table names them."""
    features = []
    for codec in metadata.pipeline.codecs:
        name = codec.name.removeprefix("numcodecs.")
        if name == "bytes":
            is_big = codec.configuration.get("endian") == "big"
            name = "big" if is_big and metadata.itemsize > 1 else "bytes"
            if name == "big" and metadata.dtype.kind == "c":
                name = "big complex"
        features.append(name)
    return features


def explain_unreadable(
    metadata: ArrayMetadata, zarr_format: int, clients: Sequence[str]
) -> str | None:
    """Return which clients do not decode the chunks of an array in a format, or None.

    A chain that was not tried as a whole is read where each of its codecs is.
    """
    features = list_features(metadata)
    unable = [name for name in clients if not _reads(name, features, str(zarr_format))]
    if not unable:
        return None
    chain = " and ".join(feature for feature in features if feature != "bytes") or "chunks"
    return f"{', '.join(unable)} cannot read {chain} in Zarr v{zarr_format}"


def _reads(client: str, features: list[str], zarr_format: str) -> bool:
    # xarray's engine kerchunk opens Zarr v2 only, by zarr-python.
    if client == "kerchunk":
        return zarr_format == "2" and _reads("zarr", features, zarr_format)
    tried: dict[str, bool] = read_table().get(client, {}).get(zarr_format, {})
    whole = tried.get("+".join(features))
    if whole is not None:
        return whole
    known = {feature for chain, reads in tried.items() if reads for feature in chain.split("+")}
    return set(features) <= known
