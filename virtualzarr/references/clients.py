"""Clients that publications are made for, and which forms, codecs and data types each reads.

The table `clients.json` is written by ``python -m tests.interop.matrix``, which asks the clients
themselves.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from importlib.resources import files
from types import MappingProxyType
from typing import Any

from virtualzarr.metadata import ArrayMetadata
from virtualzarr.metadata.dtypes import vlen_kind
from virtualzarr.references.client_limits import (
    Groups,
    explain_netcdf,
    find_conflicts,
    find_odd_paths,
)

TABLE: Any = files("virtualzarr.references") / "clients.json"

PYTHON = ("zarr", "dask", "xarray")
"""Clients that decode by zarr-python and numcodecs."""

REFERENCES = (*PYTHON, "zarr2", "zarrs", "kerchunk", "gdal")
"""Clients that open references themselves; others need a Zarr hierarchy."""

ICECHUNK = (*PYTHON, "zarrs")
"""Clients that open Icechunk repositories, by Icechunk's store."""


@lru_cache(maxsize=1)
def read_table() -> dict[str, Any]:
    """Return what each client reads, by its name.

    ``"2"`` and ``"3"`` have chains of codecs in each Zarr format, ``"kinds"`` those of elements and
    of shapes, ``"forms"`` what it opens at all. ``"beside"`` says in which formats it reads an
    array beside one that it does not know.
    """
    table: dict[str, Any] = json.loads(TABLE.read_text())
    return table


def choose_clients(portable: str | Iterable[str]) -> tuple[str, ...]:
    """Return the clients that the parameter `portable` of `publish` names.

    Examples
    --------
    >>> choose_clients("python")
    ('zarr', 'dask', 'xarray')
    """
    clients = sorted({*read_table(), "kerchunk"})
    if portable == "all":
        return tuple(name for name in clients if name != "kerchunk")
    if portable == "python":
        return PYTHON
    names = (portable,) if isinstance(portable, str) else tuple(portable)
    for name in names:
        if name not in clients:
            raise ValueError(
                f'portable is "all", "python", or of {", ".join(clients)}; not {name!r}'
            )
    return names


def list_features(metadata: ArrayMetadata) -> list[str]:
    """Return the codecs of an array, as the table names them."""
    features = []
    for codec in metadata.pipeline.codecs:
        name = codec.name.removeprefix("numcodecs.")
        # Texts have no other serializer: whether a client has it, is said by their kind.
        if name in ("vlen-utf8", "vlen-bytes"):
            name = "bytes"
        elif name == "bytes":
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
    answer = tried.get("+".join(features))
    if answer is not None:
        return answer
    readable = {feature for chain, reads in tried.items() if reads for feature in chain.split("+")}
    return set(features) <= readable


def name_form(form: str, zarr_format: int, target: str) -> str:
    """Return what the table calls a form of publication."""
    if form in ("parquet", "icechunk"):
        return form
    if form == "zarr":
        form = "server" if target.startswith(("http://", "https://")) else "folder"
    return f"{form}-v{zarr_format}"


def list_kinds(metadata: ArrayMetadata) -> list[str]:
    """Return what the table calls the elements and the shape of an array.

    Examples
    --------
    >>> import virtualzarr as vz
    >>> list_kinds(vz.create_array({}, shape=(0, 4), dtype="i2").metadata)
    ['int16', 'no elements', 'unnamed dimensions']
    """
    dtype = metadata.dtype
    kind = vlen_kind(dtype)
    if kind is not None:
        element = "text" if kind is str else "bytes"
    elif dtype.names is not None:
        element = "fields" if dtype.isnative else "big-endian fields"
    else:
        fixed = {"S": "fixed bytes", "U": "fixed text", "V": "raw bytes", "M": "datetime64",
                 "m": "timedelta64", "O": "objects"}  # fmt: skip
        element = fixed.get(dtype.kind, dtype.name)
    size = {0: "no dimensions", 1: "one dimension"}.get(len(metadata.shape), "")
    empty = "no elements" if 0 in metadata.shape else ""
    names = metadata.dimension_names or (None,) * len(metadata.shape)
    unnamed = "unnamed dimensions" if None in names else ""
    return [name for name in (element, size, empty, unnamed) if name]


def explain_elements(
    arrays: Mapping[str, ArrayMetadata], zarr_format: int, clients: Sequence[str]
) -> list[str]:
    """Return which of the clients have no such elements as some arrays, whatever the codecs."""
    paths: dict[str, list[str]] = {}
    for path, metadata in arrays.items():
        paths.setdefault(list_kinds(metadata)[0], []).append(path or "/")
    notes = []
    for kind, those in paths.items():
        unable = [
            name
            for name in clients
            if not read_table().get(name, {}).get("kinds", {}).get(str(zarr_format), {}).get(kind)
        ]
        if unable:
            listed = ", ".join(those[:3]) + (f" and {len(those) - 3} more" if those[3:] else "")
            notes.append(f"{', '.join(unable)} cannot read {kind} in Zarr v{zarr_format}: {listed}")
    return notes


def predict_refusals(
    client: str,
    form: str,
    zarr_format: int,
    arrays: Mapping[str, ArrayMetadata],
    groups: Groups = MappingProxyType({}),
) -> dict[str, str]:
    """Return which arrays of a publication a client will refuse as far as is known, and why.

    Parameters
    ----------
    client, form : str
        As the table calls them.
    arrays : mapping of str to ArrayMetadata
        By path, as published.
    groups : mapping of str to mapping
        Attributes of groups by path.
    """
    entry = read_table().get(client)
    if entry is None or not entry.get("forms", {}).get(form, False):
        return dict.fromkeys(arrays, f"opens no {form}")
    # The engine kerchunk is xarray's engine zarr on references.
    entry = entry if "kinds" in entry else read_table()["xarray"]
    kinds = entry["kinds"][str(zarr_format)]
    if client == "netcdf" and (why := explain_netcdf(arrays, groups)) is not None:
        return dict.fromkeys(arrays, why)
    refused = find_conflicts(arrays) if client in ("xarray", "kerchunk", "netcdf") else {}
    refused |= find_odd_paths(client, form, arrays)
    opens_rest = entry["beside"][str(zarr_format)]
    for path, metadata in arrays.items():
        unknown = [kind for kind in list_kinds(metadata) if not kinds.get(kind, False)]
        why = explain_unreadable(metadata, zarr_format, [client])
        if unknown and client == "netcdf":
            opens_rest = False  # of a hierarchy that has such elements somewhere
        if why is not None or unknown:
            refused[path] = why or f"{client} cannot read {', '.join(unknown)}"
    if refused and not opens_rest:
        other = next(iter(refused))
        return dict.fromkeys(arrays, f"opens no group that has {other}") | refused
    return refused
