"""Every array is a Zarr array. Every chunk is some bytes, somewhere, and a way to decode them.

Examples
--------
>>> import virtualzarr as vz
>>> g = vz.virtualize("archive/*.nc", concat_dim="time")  # doctest: +SKIP
>>> g["air"][0, :, 10]  # doctest: +SKIP
>>> g.publish("air.json")  # doctest: +SKIP
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from virtualzarr.installation import check_grids

check_grids()

from virtualzarr.config import config  # noqa: E402

if TYPE_CHECKING:
    from grids import ChunkLayout
    from virtualzarr import models
    from virtualzarr.array import Array, ChunkCache, missing_like, split_chunks
    from virtualzarr.combine import (
        combine_by_coords,
        concat,
        from_attribute,
        from_filename,
        from_variable,
        merge,
        stack,
    )
    from virtualzarr.copying import copy
    from virtualzarr.creation import create_array, open_array
    from virtualzarr.formats.raw import virtualize_raw
    from virtualzarr.group import Group
    from virtualzarr.growing import append, check, convert, rename
    from virtualzarr.integrations.xarray_virtual import open_virtual_dataset
    from virtualzarr.manifest import Manifest
    from virtualzarr.nodes import create_group, open_group
    from virtualzarr.opening import open
    from virtualzarr.virtualizing import virtualize

__version__ = "0.1.0"

_HOMES = {
    "Array": "virtualzarr.array",
    "ChunkCache": "virtualzarr.array",
    "ChunkLayout": "grids",
    "Group": "virtualzarr.group",
    "Manifest": "virtualzarr.manifest",
    "append": "virtualzarr.growing",
    "check": "virtualzarr.growing",
    "combine_by_coords": "virtualzarr.combine",
    "from_attribute": "virtualzarr.combine",
    "from_filename": "virtualzarr.combine",
    "from_variable": "virtualzarr.combine",
    "merge": "virtualzarr.combine",
    "concat": "virtualzarr.combine",
    "convert": "virtualzarr.growing",
    "copy": "virtualzarr.copying",
    "create_array": "virtualzarr.creation",
    "create_group": "virtualzarr.nodes",
    "missing_like": "virtualzarr.array",
    "models": "virtualzarr.models",
    "open": "virtualzarr.opening",
    "open_array": "virtualzarr.creation",
    "open_group": "virtualzarr.nodes",
    "open_virtual_dataset": "virtualzarr.integrations.xarray_virtual",
    "rename": "virtualzarr.growing",
    "split_chunks": "virtualzarr.array",
    "stack": "virtualzarr.combine",
    "virtualize": "virtualzarr.virtualizing",
    "virtualize_raw": "virtualzarr.formats.raw",
}

__all__ = [
    "Array",
    "ChunkCache",
    "ChunkLayout",
    "Group",
    "Manifest",
    "append",
    "check",
    "combine_by_coords",
    "concat",
    "config",
    "convert",
    "copy",
    "create_array",
    "create_group",
    "from_attribute",
    "from_filename",
    "from_variable",
    "merge",
    "missing_like",
    "models",
    "open",
    "open_array",
    "open_group",
    "open_virtual_dataset",
    "rename",
    "split_chunks",
    "stack",
    "virtualize",
    "virtualize_raw",
]


def __getattr__(name: str) -> Any:
    # Names are imported when first used: importing the package costs next to nothing.
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    home = import_module(_HOMES[name])
    value = home if name == "models" else getattr(home, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    # What is meant to be used: neither modules of the inside nor what is imported here.
    return sorted([*__all__, "__version__", "errors"])
