"""TIFF scan: an array for each series of a file, a group for each pyramid."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Unpack

import numpy as np
from numpy.typing import NDArray

from virtualzarr.array import Array
from virtualzarr.errors import SourceError
from virtualzarr.formats.on_error import Refusals, ScanOptions, begin_scan
from virtualzarr.formats.tiff.attributes import file_attributes
from virtualzarr.formats.tiff.coordinates import coordinate_arrays, page_coordinates
from virtualzarr.formats.tiff.declare import declare
from virtualzarr.formats.tiff.files import Files, open_tiff, parsing
from virtualzarr.formats.tiff.multiscales import image_attributes, is_valid
from virtualzarr.formats.tiff.ome import ImageMetadata, images_of
from virtualzarr.formats.tiff.series import axes_and_shape, series_array
from virtualzarr.hierarchy.group import Group
from virtualzarr.metadata.dimension_names import Dimensions

if TYPE_CHECKING:
    from virtualzarr.formats.templates.recorder import Recorder


def scan(
    path_or_url: Any, *, recorder: Recorder | None = None, **options: Unpack[ScanOptions]
) -> Group:
    """Scan a TIFF file into a group of virtual arrays; a recorder is told what that depends on.

    Each series of images, as tifffile groups the pages of a file, becomes an array that reads
    exactly what ``tifffile.TiffFile(path).series[i].asarray()`` reads. Arrays are named after
    their series if there are several and all have different names, else ``"0"``, ``"1"``, ...; a
    file with one series has the array ``"0"``. A series with several resolutions is a group of
    arrays ``"0"`` (full resolution), ``"1"``, ..., whose attribute ``multiscales`` says how large
    their pixels are (OME-Zarr 0.4). Dimensions are named by tifffile's axis letters in lower case;
    a letter that comes again in the file with another length or other coordinates is numbered:
    ``"y_1"``. Beside GeoTIFF images are coordinates of the centres of pixels, by those names.

    A series that cannot be virtualized is what may be skipped.
    """
    with (
        begin_scan(path_or_url, **options) as refusals,
        open_tiff(refusals.source, recorder) as files,
    ):
        scan = _Scan(files, refusals)
        group = scan.group()
        if recorder is not None:
            declare(recorder, files, scan.series)
        return group


Image = tuple[Array, Mapping[str, NDArray[np.float64]], Any]
"""An array, coordinates of its columns and rows, and the page with the georeference."""


class _Scan:
    """The scan of one open file."""

    def __init__(self, files: Files, refusals: Refusals) -> None:
        self.tiff, self.uri = files.tiff, files.uri
        self.files, self.refusals = files, refusals
        self.dimensions = Dimensions()
        self.series: list[tuple[str, Any]] = []  # of which each array is, by its path

    def group(self) -> Group:
        with parsing(self.uri):
            self.files.check_chain()
            series = list(self.tiff.series)
            attributes = file_attributes(self.tiff)
            described = images_of(self.tiff, series)
        if not series:
            raise SourceError("the TIFF file has no images", file=self.uri)
        members: dict[str, Array | Group] = {}
        images: list[Image] = []
        single: list[dict[str, Any]] = []
        for index, (name, image) in enumerate(zip(_names(series), series, strict=True)):
            if len(image.levels) > 1:
                members[name] = self.pyramid(image, name, described.get(index, ImageMetadata()))
                continue
            # A series without a pyramid is an array of the root; multiscales of the root then have
            # its path, so that OME-Zarr readers open the file as an image.
            entry = self.image(image, name, image.keyframe)
            if entry is not None:
                members[name] = entry[0]
                images.append(entry)
                if index in described and is_valid(image.axes):
                    level = {name: entry[0]}
                    single.append(image_attributes(image.name, image.axes, level, described[index]))
        if len(described) == len(series):
            attributes |= _root_attributes(members, single)
        members |= coordinate_arrays(images, "")
        return Group(attributes, members, skipped=self.refusals.reasons)

    def pyramid(self, series: Any, path: str, described: ImageMetadata) -> Group:
        """Return the resolutions of a series as a group."""
        levels = {}
        for index, level in enumerate(series.levels):
            entry = self.image(level, f"{path}/{index}", series.keyframe)
            if entry is not None:
                levels[str(index)] = entry
        arrays = {name: array for name, (array, _, _) in levels.items()}
        attributes = image_attributes(series.name or path, series.axes, arrays, described)
        coordinates = coordinate_arrays(levels.values(), path)
        return Group(attributes, {**arrays, **coordinates}, path)

    def image(self, series: Any, path: str, placed: Any) -> Image | None:
        """Return the array of a series, its coordinates and the page with the georeference.

        Parameters
        ----------
        series : tifffile.TiffPageSeries
        placed : tifffile.TiffPage
            Page with the georeference: that of the full resolution.

        Returns
        -------
        tuple or None
            None if the series is skipped.
        """
        with self.refusals.of(path), parsing(self.uri):
            self.files.check_present(series)
            axes, shape = axes_and_shape(series)
            lengths = dict(zip(axes, shape, strict=False))
            where = page_coordinates(placed, lengths.get("X"), lengths.get("Y"))
            alike = len(axes) == len(shape)
            dims = self.dimensions.name(axes.lower(), shape, where) if alike else None
            array = series_array(series, shape, dims, path, self.files)
            self.series.append((path, series))
            return array, where, placed
        return None


def _root_attributes(
    members: Mapping[str, Array | Group], single: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """Return OME-Zarr's attributes of the root: multiscales, or the layout of numbered groups."""
    if single:
        images = [image for each in single for image in each["multiscales"]]
        return {**single[0], "multiscales": images} if len(single) == 1 else {"multiscales": images}
    numbered = list(members) == [str(index) for index in range(len(members))]
    if members and numbered and all(_is_image(node) for node in members.values()):
        return {"bioformats2raw.layout": 3}
    return {}


def _is_image(node: Array | Group) -> bool:
    return isinstance(node, Group) and "version" in node.attributes["multiscales"][0]


def _names(series: list[Any]) -> list[str]:
    """Return a name for each series."""
    names = [re.sub(r"[^\w.() -]+", "_", image.name).strip(". ") for image in series]
    # A single letter, numbered or not, could be the name of a dimension's coordinates beside it.
    usable = not any(re.fullmatch(r"|[a-z](_\d+)?", name) for name in names)
    if len(series) > 1 and usable and len(set(names)) == len(names):
        return names
    return [str(index) for index in range(len(series))]
