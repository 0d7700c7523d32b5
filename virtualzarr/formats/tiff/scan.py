"""A TIFF file as a group: an array for each series of images, a group for each pyramid."""

from __future__ import annotations

import re
import warnings
from collections.abc import Mapping
from typing import Any, Literal

from virtualzarr.array import Array
from virtualzarr.errors import (
    RefusedWarning,
    SourceError,
    VirtualZarrError,
)
from virtualzarr.formats.tiff.attributes import file_attributes
from virtualzarr.formats.tiff.coordinates import coordinate_arrays
from virtualzarr.formats.tiff.files import Files, opened, parsing
from virtualzarr.formats.tiff.series import series_array
from virtualzarr.group import Group
from virtualzarr.manifest import Source


def scan(
    path_or_url: Any,
    *,
    on_error: Literal["raise", "warn"] = "raise",
    storage_options: Mapping[str, Any] | None = None,
) -> Group:
    """Scan a TIFF file into a group of virtual arrays.

    Each series of images, as tifffile groups the pages of a file, becomes an array that reads
    exactly what ``tifffile.TiffFile(path).series[i].asarray()`` reads. Arrays are named after
    their series if there are several and all have different names, else ``"0"``, ``"1"``, ...; a
    file with one series has the array ``"0"``. A series with several resolutions is a group of
    arrays ``"0"`` (full resolution), ``"1"``, ... Dimensions are named by tifffile's axis letters
    in lower case. Beside GeoTIFF images are their coordinates ``"x"`` and ``"y"``, of the centres
    of pixels; those of a group of resolutions are of the full one.

    Parameters
    ----------
    path_or_url : path or str
    on_error : {"raise", "warn"}
        What to do about a series that cannot be virtualized: raise, or warn, leave it out, and
        note it in the group's `refused`.
    storage_options : mapping, optional
        How fsspec opens a URL.

    Returns
    -------
    Group

    Raises
    ------
    SourceError
        If the file is missing or is no readable TIFF.
    UnsupportedError
        If a series uses what is not supported; the message names it.
    """
    source = Source.of_file(path_or_url, storage_options)
    with opened(source) as files:
        group = _Scan(files, on_error).group()
    for path, reason in group.refused.items():
        message = f"left out: {reason} [file {source.uri}, variable {path}]"
        warnings.warn(RefusedWarning(message), stacklevel=2)
    return group


class _Scan:
    """The scan of one open file."""

    def __init__(self, files: Files, on_error: str) -> None:
        self.tiff = files.tiff
        self.uri = files.uri
        self.on_error = on_error
        self.refused: dict[str, str] = {}
        self.files = files

    def group(self) -> Group:
        with parsing(self.uri):
            self.files.check_chain()
            series = list(self.tiff.series)
            attributes = file_attributes(self.tiff)
        if not series:
            raise SourceError("the TIFF file has no images", file=self.uri)
        members: dict[str, Array | Group] = {}
        images: list[tuple[Array, Any]] = []
        for name, image in zip(_names(series), series, strict=True):
            node = self.pyramid(image, name) if len(image.levels) > 1 else self.array(image, name)
            if node is not None:
                members[name] = node
            if isinstance(node, Array):
                images.append((node, image.keyframe))
        members |= self.coordinates(images, members, "")
        return Group(attributes, members, refused=self.refused)

    def pyramid(self, series: Any, path: str) -> Group:
        """Return the resolutions of a series as a group."""
        levels = {}
        for index, level in enumerate(series.levels):
            array = self.array(level, f"{path}/{index}")
            if array is not None:
                levels[str(index)] = array
        datasets = [{"path": name} for name in levels]
        attributes = {"multiscales": [{"name": series.name or path, "datasets": datasets}]}
        members: dict[str, Array | Group] = {**levels}
        if "0" in levels:
            members |= self.coordinates([(levels["0"], series.keyframe)], levels, path)
        return Group(attributes, members, path)

    def coordinates(
        self, images: list[tuple[Array, Any]], taken: Mapping[str, Any], path: str
    ) -> dict[str, Array]:
        """Return coordinate variables for the arrays of a group."""
        with parsing(self.uri):
            return coordinate_arrays(images, taken, path)

    def array(self, series: Any, path: str) -> Array | None:
        """Return the array of a series, or None if it is refused."""
        try:
            with parsing(self.uri):
                self.files.check_present(series)
                return series_array(series, path, self.files)
        except VirtualZarrError as error:
            error.at(file=self.uri, variable=path)
            if self.on_error == "raise":
                raise
            self.refused[path] = error.message
            return None


def _names(series: list[Any]) -> list[str]:
    """Return a name for each series."""
    names = [re.sub(r"[^\w.() -]+", "_", image.name).strip(". ") for image in series]
    if len(series) > 1 and all(names) and len(set(names)) == len(names):
        return names
    return [str(index) for index in range(len(series))]
