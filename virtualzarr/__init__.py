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
    from virtualzarr.archive.survey import Survey, survey
    from virtualzarr.array import Array, ChunkCache
    from virtualzarr.combine import (
        combine_by_coords,
        concat,
        from_attribute,
        from_filename,
        from_variable,
        stack,
    )
    from virtualzarr.combine.merge_groups import merge
    from virtualzarr.curate.run_decisions import run_decisions
    from virtualzarr.dataset.compact_target import compact
    from virtualzarr.dataset.create import create_dataset
    from virtualzarr.dataset.dataset import Dataset
    from virtualzarr.dataset.upgrade import upgrade
    from virtualzarr.formats.raw import virtualize_raw
    from virtualzarr.hierarchy.create import create_array, open_array
    from virtualzarr.hierarchy.group import Group
    from virtualzarr.hierarchy.open_node import create_group, open_group
    from virtualzarr.ingest.listing import Listing, read_listing
    from virtualzarr.ingest.open_target import open
    from virtualzarr.ingest.virtualize import virtualize
    from virtualzarr.integrations.xarray_datasets import open_virtual_dataset
    from virtualzarr.manifest import Manifest
    from virtualzarr.rechunk.copy import copy
    from virtualzarr.references.append import append
    from virtualzarr.references.check import check_references
    from virtualzarr.references.convert import convert_references
    from virtualzarr.references.publish import preview, publish
    from virtualzarr.references.rename import rename_paths
    from virtualzarr.verification.verify import verify
    from virtualzarr.virtual.derived import empty_like, split_chunks

__version__ = "0.1.0"

_MODULES = {
    "Array": "virtualzarr.array",
    "ChunkCache": "virtualzarr.array",
    "ChunkLayout": "grids",
    "Dataset": "virtualzarr.dataset.dataset",
    "Group": "virtualzarr.hierarchy.group",
    "Listing": "virtualzarr.ingest.listing",
    "Manifest": "virtualzarr.manifest",
    "Survey": "virtualzarr.archive.survey",
    "append": "virtualzarr.references.append",
    "check_references": "virtualzarr.references.check",
    "combine_by_coords": "virtualzarr.combine",
    "from_attribute": "virtualzarr.combine",
    "from_filename": "virtualzarr.combine",
    "from_variable": "virtualzarr.combine",
    "merge": "virtualzarr.combine.merge_groups",
    "concat": "virtualzarr.combine",
    "convert_references": "virtualzarr.references.convert",
    "copy": "virtualzarr.rechunk.copy",
    "create_array": "virtualzarr.hierarchy.create",
    "compact": "virtualzarr.dataset.compact_target",
    "create_dataset": "virtualzarr.dataset.create",
    "create_group": "virtualzarr.hierarchy.open_node",
    "empty_like": "virtualzarr.virtual.derived",
    "models": "virtualzarr.models",
    "open": "virtualzarr.ingest.open_target",
    "open_array": "virtualzarr.hierarchy.create",
    "open_group": "virtualzarr.hierarchy.open_node",
    "open_virtual_dataset": "virtualzarr.integrations.xarray_datasets",
    "preview": "virtualzarr.references.publish",
    "publish": "virtualzarr.references.publish",
    "read_listing": "virtualzarr.ingest.listing",
    "rename_paths": "virtualzarr.references.rename",
    "split_chunks": "virtualzarr.virtual.derived",
    "stack": "virtualzarr.combine",
    "run_decisions": "virtualzarr.curate.run_decisions",
    "survey": "virtualzarr.archive.survey",
    "upgrade": "virtualzarr.dataset.upgrade",
    "verify": "virtualzarr.verification.verify",
    "virtualize": "virtualzarr.ingest.virtualize",
    "virtualize_raw": "virtualzarr.formats.raw",
}

__all__ = [
    "Array",
    "ChunkCache",
    "ChunkLayout",
    "Dataset",
    "Group",
    "Listing",
    "Manifest",
    "Survey",
    "append",
    "check_references",
    "combine_by_coords",
    "compact",
    "concat",
    "config",
    "convert_references",
    "copy",
    "create_array",
    "create_dataset",
    "create_group",
    "empty_like",
    "from_attribute",
    "from_filename",
    "from_variable",
    "merge",
    "models",
    "open",
    "open_array",
    "open_group",
    "open_virtual_dataset",
    "preview",
    "publish",
    "read_listing",
    "rename_paths",
    "run_decisions",
    "split_chunks",
    "stack",
    "survey",
    "upgrade",
    "verify",
    "virtualize",
    "virtualize_raw",
]


def __getattr__(name: str) -> Any:
    # Names are imported when first used: importing the package costs next to nothing.
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = import_module(_MODULES[name])
    value = module if name == "models" else getattr(module, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    # The public names: neither internal modules nor what is imported here.
    return sorted([*__all__, "__version__", "errors"])
