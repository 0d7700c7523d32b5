"""Storage of a variable in a netCDF or HDF5 file, as far as Zarr metadata do not say."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from virtualzarr.codecs import Pipeline


@dataclass(frozen=True)
class FileLayout:
    """What writes a variable again as its file had it.

    Parameters
    ----------
    chunks : tuple of int, optional
        Elements of a chunk along each axis; None where the values are not chunked.
    pipeline : Pipeline, optional
        Its codecs, if they are not those of the array: of a filter that no chunk has passed
        through, the array does not know.
    unlimited : tuple of bool
        Which axes may grow without end.
    labels : mapping
        Names of the values of an enumeration.
    type_name : str
        Name of that type in the file, if it has one.
    """

    chunks: tuple[int, ...] | None = None
    pipeline: Pipeline | None = None
    unlimited: tuple[bool, ...] = ()
    labels: Mapping[str, int] = field(default_factory=dict)
    type_name: str = ""
