"""Code that opens references by fsspec, for people to copy."""

from __future__ import annotations

import json
from collections.abc import Sequence

_ASYNCHRONOUS = frozenset(["http", "https", "s3", "s3a", "gs", "gcs", "az", "abfs", "abfss"])
"""Protocols whose file systems in fsspec are asynchronous where they are told so."""


def show_zarr(name: str, zarr_format: int, protocols: Sequence[str]) -> str:
    """Return code that opens references with zarr-python.

    Its store is asynchronous, and so must be what lies below it. fsspec sees to that for file
    systems that are synchronous, such as that of local files, but not if several are handed over.

    Parameters
    ----------
    name : str
        Of the references.
    protocols : sequence of str
        Of the sources; ``"file"`` for local paths.

    Examples
    --------
    >>> print(show_zarr("a.json", 2, ["https"]))
    import fsspec
    import zarr
    <BLANKLINE>
    fs = fsspec.filesystem(
        "reference", fo="a.json", remote_protocol="https",
        remote_options={"asynchronous": True}, asynchronous=True,
    )
    group = zarr.open(zarr.storage.FsspecStore(fs, read_only=True, path=""))
    group
    """
    quoted = json.dumps(name)
    imports, files = "import fsspec\nimport zarr\n", ""
    how = f'fs = fsspec.filesystem("reference", fo={quoted}, asynchronous=True)\n'
    if len(protocols) > 1:
        entries = [_show_entry(protocol) for protocol in protocols]
        if any("Wrapper" in entry for entry in entries):
            imports += "from fsspec.implementations.asyn_wrapper import AsyncFileSystemWrapper\n"
        files = f"files = {{\n{''.join(entries)}}}\n"
        how = f'fs = fsspec.filesystem("reference", fo={quoted}, fs=files, asynchronous=True)\n'
    elif protocols and protocols[0] in _ASYNCHRONOUS:
        how = (
            f'fs = fsspec.filesystem(\n    "reference", fo={quoted}, '
            f"remote_protocol={json.dumps(protocols[0])},\n"
            '    remote_options={"asynchronous": True}, asynchronous=True,\n)\n'
        )
    # From version 3.2 on, zarr-python reads chunks of several shapes where it is told to.
    flag = 'zarr.config.set({"array.rectilinear_chunks": True})\n' if zarr_format == 3 else ""
    return (
        f"{imports}\n{flag}{files}{how}"
        'group = zarr.open(zarr.storage.FsspecStore(fs, read_only=True, path=""))\ngroup'
    )


def _show_entry(protocol: str) -> str:
    """Return the file system of one of several protocols, as fsspec takes them."""
    quoted = json.dumps(protocol)
    if protocol in _ASYNCHRONOUS:
        return f'    {quoted}: {{"asynchronous": True}},\n'
    # Paths have no protocol.
    key = "None" if protocol == "file" else quoted
    opened = f"fsspec.filesystem({quoted})"
    return f"    {key}: AsyncFileSystemWrapper({opened}, asynchronous=True),\n"


def show_kerchunk(name: str, protocols: Sequence[str]) -> dict[str, str]:
    """Return code that opens references with the engine kerchunk, by title.

    There is none where sources are of several protocols, of which it opens one.
    """
    if len(protocols) > 1:
        return {}
    code = (
        "import xarray as xr\n\n"
        f'ds = xr.open_dataset({json.dumps(name)}, engine="kerchunk", chunks={{}})\nds'
    )
    return {"Python: xarray, with kerchunk": code}
