"""References into data that datasets have written themselves, which their vacuums may delete."""

from __future__ import annotations

import re
from importlib import import_module

import numpy as np
import numpy.typing as npt

from virtualzarr.errors import PublishError
from virtualzarr.manifest import Manifest, Source

_OBJECT = re.compile(r"/data/[0-9]+-[0-9a-f]{16}\Z")

REASON = "the chunks are a dataset's own data, which its vacuum deletes unless a tag holds them"


class DatasetData:
    """What of the own data of datasets stays; each object is looked up once."""

    def __init__(self) -> None:
        self._is_unkept: dict[str, bool] = {}

    def find_unkept(self, manifest: Manifest) -> npt.NDArray[np.int64]:
        """Return the cells, by number, whose chunks a vacuum may delete."""
        sources = manifest.sources
        numbers = [n for n, s in enumerate(sources) if s.uri and _OBJECT.search(s.uri) is not None]
        if not numbers:
            return np.empty(0, np.int64)
        self._look_up([sources[n] for n in numbers])
        rows = [n for n in numbers if self._is_unkept[sources[n].uri]]
        return np.flatnonzero(np.isin(np.asarray(manifest.source).reshape(-1), rows))

    def _look_up(self, sources: list[Source]) -> None:
        new = [source for source in sources if source.uri not in self._is_unkept]
        if not new:
            return
        # Rooms above this one know what a dataset is.
        unkept = import_module("virtualzarr.dataset.kept_data").find_unkept(new)
        self._is_unkept |= {source.uri: source.uri in unkept for source in new}

    def check(self, manifest: Manifest, path: str, remedy: str) -> None:
        """Raise a `PublishError` if there are such cells."""
        cells = self.find_unkept(manifest)
        if len(cells):
            uri = manifest.sources[int(np.asarray(manifest.source).reshape(-1)[cells[0]])].uri
            raise PublishError(f"{REASON}: tag the version, or {remedy}", file=uri, variable=path)
