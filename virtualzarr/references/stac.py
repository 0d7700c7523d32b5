"""STAC documents of publications: an item or a collection beside the references."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from virtualzarr.array import Array
from virtualzarr.choices import StacKind
from virtualzarr.errors import PublishError
from virtualzarr.hierarchy.group import Group
from virtualzarr.hierarchy.inventory import list_arrays
from virtualzarr.references.form import ReferenceForm
from virtualzarr.references.overwrite import check_companion
from virtualzarr.references.report import PublishReport
from virtualzarr.references.stac_extent import (
    WGS84,
    Axis,
    find_axes,
    find_crs,
    merge_degrees,
    merge_times,
)
from virtualzarr.stores.atomic_files import AtomicFile
from virtualzarr.stores.location import Location

VERSION = "1.1.0"
DATACUBE = "https://stac-extensions.github.io/datacube/v2.3.0/schema.json"
PROJECTION = "https://stac-extensions.github.io/projection/v2.0.0/schema.json"

_LICENSE = re.compile(r"CC0-1\.0|CC-BY(-(SA|NC|ND|NC-SA|NC-ND))?-\d\.\d|ODbL-1\.0|MIT|Apache-2\.0")


class StacDocument:
    """A STAC item or collection of a group, before it is published.

    Parameters
    ----------
    kind : {"item", "collection"}
    node : Group or Array
    location : Location
        Of the references.
    overwrite : bool
        Whether to replace a file that is no document of STAC.

    Raises
    ------
    PublishError
        STAC wants an extent that is not known.
    NodeExistsError
        There is something else where it is to be.
    """

    def __init__(
        self, kind: StacKind, node: Group | Array, location: Location, *, overwrite: bool = False
    ) -> None:
        self.kind = kind
        self.location = location.with_uri(f"{os.path.splitext(location.uri)[0]}.stac.json")
        # Everything that may be refused is, before anything is published.
        check_companion(node, self.location, "document of STAC", overwrite)
        self.name = location.uri.replace(os.sep, "/").rpartition("/")[2]
        self.arrays = list_arrays(node)
        self.attributes: Mapping[str, Any] = (
            node.attributes if isinstance(node, Group) else node.metadata.attributes
        )
        self.axes = list(find_axes(self.arrays))
        self.times = merge_times(self.axes)
        self.bbox = merge_degrees(self.axes, self.arrays)
        if kind == "item" and self.times is None:
            raise PublishError(
                "a STAC item needs a time, and no coordinate has times of a standard calendar: "
                'stac="collection" needs none',
                file=location.uri,
            )
        if kind == "collection" and self.bbox is None:
            raise PublishError(
                "a STAC collection needs a place, and there are no coordinates in degrees of "
                'latitude and longitude: stac="item" needs none',
                file=location.uri,
            )

    def write(self, form: ReferenceForm, report: PublishReport) -> PublishReport:
        """Write the document beside the references, and return the report that says where."""
        document = self.make(form, report)
        with AtomicFile(self.location) as file:
            file.write(json.dumps(document, indent=2, allow_nan=False).encode())
            file.commit()
        return replace(report, stac=self.location.uri)

    def make(self, form: ReferenceForm, report: PublishReport) -> dict[str, Any]:
        """Return the document.

        Parameters
        ----------
        form : ReferenceForm
        report : PublishReport
            Of the publication.
        """
        cube = self._describe_cube(set(report.skipped))
        projection = self._describe_projection()
        extensions = [DATACUBE] + [PROJECTION] * bool(projection)
        head = {"stac_version": VERSION, "stac_extensions": extensions, "id": self._stem}
        end = {"links": [], "assets": self._list_assets(form, report)}
        if self.kind == "collection":
            return {"type": "Collection", **head, **self._describe_collection(), **cube, **end}
        properties = {**self._describe_times(), **self._describe_title(), **projection, **cube}
        geometry = {"geometry": None} if self.bbox is None else make_geometry(self.bbox)
        return {"type": "Feature", **head, **geometry, "properties": properties, **end}

    @property
    def _stem(self) -> str:
        return os.path.splitext(self.name)[0]

    def _text(self, *names: str) -> str:
        texts = (self.attributes.get(name) for name in names)
        return next((text for text in texts if isinstance(text, str) and text.strip()), "")

    def _describe_title(self) -> dict[str, str]:
        title, summary = self._text("title"), self._text("summary", "description", "comment")
        return ({"title": title} if title else {}) | ({"description": summary} if summary else {})

    def _describe_times(self) -> dict[str, Any]:
        assert self.times is not None
        start, end = (_time_text(time) for time in self.times)
        created = {"created": _time_text(datetime.now(UTC).replace(microsecond=0))}
        if start == end:
            return {"datetime": start, **created}
        return {"datetime": None, "start_datetime": start, "end_datetime": end, **created}

    def _describe_collection(self) -> dict[str, Any]:
        text = self._text("license")
        times = self.times or (None, None)
        about = f"References to {len(self.arrays):,} arrays"
        return {
            "description": about,
            **self._describe_title(),
            "license": text if _LICENSE.fullmatch(text) else "other",
            "extent": {
                "spatial": {"bbox": [list(self.bbox or ())]},
                "temporal": {"interval": [[time and _time_text(time) for time in times]]},
            },
        }

    def _describe_projection(self) -> dict[str, Any]:
        """Return the reference system of coordinates that are no degrees of WGS 84."""
        code = find_crs(self.arrays)
        sides = {axis.kind: axis for axis in self.axes if not axis.is_degrees}
        if code is None or code == WGS84 or self.kind == "collection":
            return {}
        described: dict[str, Any] = {"proj:code": f"EPSG:{code}"}
        if "x" in sides and "y" in sides:
            x, y = sides["x"], sides["y"]
            described["proj:bbox"] = [x.low, y.low, x.high, y.high]
        return described

    def _describe_cube(self, skipped: set[str]) -> dict[str, Any]:
        """Return dimensions and variables as the extension for data cubes has them."""
        code = find_crs(self.arrays)
        dimensions = {axis.name: _describe_axis(axis, code) for axis in self.axes}
        variables: dict[str, Any] = {}
        for path, array in self.arrays.items():
            if path in dimensions or path in skipped:
                continue
            folder = path.rpartition("/")[0]
            dims = [
                self._add_dimension(dimensions, folder, dim or f"{path}:{axis}", length)
                for axis, (dim, length) in enumerate(zip(array.dims, array.shape, strict=True))
            ]
            variables[path or self._stem] = _describe_variable(array, dims)
        return {"cube:dimensions": dimensions, "cube:variables": variables}

    def _add_dimension(self, dimensions: dict[str, Any], folder: str, dim: str, length: int) -> str:
        """Return the path of a dimension's coordinate; without one, it is counted."""
        path = f"{folder}/{dim}" if folder else dim
        while path not in dimensions and folder and dim not in self.arrays:
            folder = folder.rpartition("/")[0]
            path = f"{folder}/{dim}" if folder else dim
        if path not in dimensions:
            # An extent is required: of one whose values are not known, the ends are open.
            counted = [0, length - 1] if length and path not in self.arrays else [None, None]
            dimensions[path] = {"type": "count" if counted[1] else "other", "extent": counted}
        return path

    def _list_assets(self, form: ReferenceForm, report: PublishReport) -> dict[str, Any]:
        assets: dict[str, Any] = {
            "references": {
                "href": f"./{self.name}",
                "type": form.capabilities.media_type,
                "title": f"{form.capabilities.title}: Zarr v{report.zarr_format}",
                "roles": ["data", "references"],
            }
        }
        if report.page is not None:
            page = report.page.replace(os.sep, "/").rpartition("/")[2]
            assets["page"] = {"href": f"./{page}", "type": "text/html", "roles": ["overview"]}
        return assets


def _time_text(time: datetime) -> str:
    return time.isoformat().replace("+00:00", "Z")


def _describe_axis(axis: Axis, code: int | None) -> dict[str, Any]:
    if axis.kind == "time":
        return {"type": "temporal", "extent": [_time_text(axis.low), _time_text(axis.high)]}
    extent = [axis.low, axis.high]
    if axis.kind == "other":
        return {"type": "other", "extent": extent}
    described = {"type": "spatial", "axis": axis.kind, "extent": extent}
    return {**described, "reference_system": code} if code is not None else described


def _describe_variable(array: Array, dims: list[str]) -> dict[str, Any]:
    attributes = array.metadata.attributes
    described: dict[str, Any] = {"dimensions": dims, "variable_type": "data"}
    for name, key in (("long_name", "description"), ("units", "unit")):
        if isinstance(text := attributes.get(name), str) and text:
            described[key] = text
    return described


def make_geometry(bbox: tuple[float, float, float, float]) -> dict[str, Any]:
    """Return a box as GeoJSON: its corners, in two parts where it lies across 180°.

    Examples
    --------
    >>> make_geometry((0.0, 1.0, 2.0, 3.0))["geometry"]["type"]
    'Polygon'
    >>> make_geometry((170.0, 1.0, -170.0, 3.0))["geometry"]["type"]
    'MultiPolygon'
    """
    west, south, east, north = bbox
    if west <= east:
        geometry = {"type": "Polygon", "coordinates": _ring(west, south, east, north)}
    else:
        parts = [_ring(west, south, 180.0, north), _ring(-180.0, south, east, north)]
        geometry = {"type": "MultiPolygon", "coordinates": parts}
    return {"geometry": geometry, "bbox": list(bbox)}


def _ring(west: float, south: float, east: float, north: float) -> list[list[list[float]]]:
    corners = [[west, south], [east, south], [east, north], [west, north], [west, south]]
    return [corners]
