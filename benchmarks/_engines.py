"""The Zarr engines that are installed, each as a function that opens a stored array of Zarr v3."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

import virtualzarr

Opener = Callable[[Path], Any]

PIPELINES = {
    "zarr-python fused": ("zarr", "zarr.core.codec_pipeline.FusedCodecPipeline"),
    "zarr-python + zarrs": ("zarrs", "zarrs.ZarrsCodecPipeline"),
}


def engines() -> dict[str, Opener]:
    """Return what opens an array for reading and writing by ``[]``, by the name of the engine."""
    found: dict[str, Opener] = {"ours": lambda path: virtualzarr.open(path, mode="r+")}
    if importlib.util.find_spec("zarr"):
        import zarr

        found["zarr-python"] = lambda path: zarr.open_array(path, mode="r+")
        for name, (package, pipeline) in PIPELINES.items():
            if importlib.util.find_spec(package) and _exists(pipeline):
                found[name] = _with_pipeline(pipeline)
    if importlib.util.find_spec("tensorstore"):
        found["TensorStore"] = _Tensorstore
    return found


def _exists(name: str) -> bool:
    module, _, attribute = name.rpartition(".")
    return hasattr(importlib.import_module(module), attribute)


def _with_pipeline(pipeline: str) -> Opener:
    def opened(path: Path) -> Any:
        import zarr

        with zarr.config.set({"codec_pipeline.path": pipeline}):
            return zarr.open_array(path, mode="r+")

    return opened


class _Tensorstore:
    """An array of TensorStore, which does not wait for the disk, as the others do not."""

    def __init__(self, path: Path) -> None:
        import tensorstore

        context = tensorstore.Context({"file_io_sync": False})
        store = {"driver": "file", "path": f"{path}/"}
        spec = {"driver": "zarr3", "kvstore": store}
        self.array: Any = tensorstore.open(spec, context=context, open=True).result()

    def __getitem__(self, selection: Any) -> Any:
        return self.array[selection].read().result()

    def __setitem__(self, selection: Any, value: Any) -> None:
        self.array[selection].write(value).result()
