"""Fidelity of the TIFF scanner: all that tifffile sees, against its values.

Every series, level and page, parts of them, GeoTIFF keys and descriptions; and the same file once
more from a URL.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from tests.fidelity.compare import Row, difference
from virtualzarr.array import Array
from virtualzarr.errors import VirtualZarrError
from virtualzarr.formats.tiff import scan
from virtualzarr.hierarchy.group import Group

PAGES = 64
"""Pages of a series that are also compared one by one, read anew."""

FAR = 1 << 26
"""Bytes of a file that is also scanned from memory, as if it were elsewhere."""


def files(directory: Path) -> list[Path]:
    """List the files to check."""
    return sorted(path for path in directory.rglob("*") if path.is_file())


def check(path: Path) -> Iterator[Row]:
    """Compare every series of a file, with all its resolutions."""
    import tifffile

    logging.getLogger("tifffile").setLevel(logging.CRITICAL)
    warnings.simplefilter("ignore")
    try:
        with tifffile.TiffFile(path) as tiff:
            series = tiff.series
            yield from _compare_file(path, series)
    except Exception as error:  # whatever tifffile raises
        yield _unopened(path, error)


def _compare_file(path: Path, series: list[Any]) -> Iterator[Row]:
    try:
        group = scan(path, on_error="warn")
    except VirtualZarrError as error:
        readable = [image for image in series if not isinstance(_oracle(image), str)]
        yield Row("", "refused" if readable else "unreadable", error.message)
        return
    images = (name for name, node in group.items() if not _is_coordinate(node))
    names = sorted({*images, *(name.split("/")[0] for name in group.skipped)}, key=_place)
    if len(names) != len(series):
        yield Row("", "wrong", f"{len(names)} members for {len(series)} series")
        return
    if path.stat().st_size <= FAR and not any(image.is_multifile for image in series):
        found = _compare_far(path, group)
        if found:
            yield Row("", "wrong", found)
    for name, image in zip(names, _ordered(series, names), strict=True):
        for index, level in enumerate(image.levels):
            full = name if len(image.levels) == 1 else f"{name}/{index}"
            yield Row(full, *_compare(group, full, level))


def _is_coordinate(node: Any) -> bool:
    """Whether a member holds its values itself; those of images are in the file."""
    return isinstance(node, Array) and any(source.is_inline for source in node.manifest.sources)


def _place(name: str) -> tuple[int, str]:
    return (int(name), "") if name.isdigit() else (0, name)


def _ordered(series: list[Any], names: list[str]) -> list[Any]:
    """Return series in the order of sorted names."""
    if all(name.isdigit() for name in names):
        return series
    return sorted(series, key=lambda image: image.name)


def _compare(group: Group, name: str, image: Any) -> tuple[str, str]:
    theirs = _oracle(image)
    if isinstance(theirs, str):
        return _unreadable(group, name, theirs)
    if name in group.skipped:
        return "refused", group.skipped[name]
    array = group[name]
    assert isinstance(array, Array)
    try:
        ours = array[...]
    except VirtualZarrError as error:
        return "refused", f"when read: {error.message}"
    found = (
        difference(ours, theirs)
        or _compare_part(array, theirs)
        or _compare_pages(ours, image)
        or _compare_words(array, image)
    )
    return ("equal", "") if found is None else ("wrong", found)


def _oracle(image: Any) -> Any:
    """Return tifffile's values, or what it says instead."""
    if image.keyframe.dtype is None:  # for which it gives an array of another type without elements
        return "tifffile does not support the data type"
    try:
        return image.asarray(maxworkers=1)
    except Exception as error:  # whatever tifffile raises
        return f"tifffile cannot read it: {type(error).__name__}: {error}"


def _unreadable(group: Group, name: str, reason: str) -> tuple[str, str]:
    """Say that the oracle cannot read; we should not, either."""
    if name not in group.skipped:
        try:
            np.asarray(group[name])
        except VirtualZarrError:
            return "unreadable", reason
        return "wrong", f"was read, but {reason}"
    return "unreadable", reason


def _compare_pages(ours: Any, image: Any) -> str | None:
    """Compare pages read on their own, with all their tags, which a series does not read."""
    pages = [page for page in image if page is not None] if len(image) <= PAGES else []
    if len(pages) < 2 or len(pages) != len(image) or any(page.offset <= 0 for page in pages):
        return None
    ours = ours.reshape(len(pages), -1)
    for index, page in enumerate(pages):
        found = difference(ours[index], page.aspage().asarray(maxworkers=1).reshape(-1))
        if found:
            return f"page {index}: {found}"
    return None


def _compare_part(array: Array, theirs: Any) -> str | None:
    """Compare a part in the middle, which is read anew."""
    part = tuple(slice(n // 3, n // 3 + max(1, n // 2)) for n in theirs.shape)
    found = difference(array[part], theirs[part])
    return found and f"part {part}: {found}"


def _compare_words(array: Array, image: Any) -> str | None:
    """Compare what is said of an image: names of dimensions, GeoTIFF keys, descriptions."""
    page = image.keyframe
    if array.ndim == len(image.axes):
        letters = "".join((dim or "?")[0] for dim in array.dims)
        if letters != image.axes.lower():
            return f"dimensions {array.dims}, not {image.axes}"
    try:
        keys = page.geotiff_tags or {}
    except Exception:  # whatever tifffile raises
        keys = {}
    found = array.attrs.get("GeoTIFF", {})
    for name, value in keys.items():
        if np.isscalar(value) and not isinstance(value, str):
            value = float(value)
            mine = float(found.get(str(name), "nan"))
            if mine != value and not (np.isnan(mine) and np.isnan(value)):
                return f"GeoTIFF key {name} is {mine}, not {value}"
    said = array.attrs.get("ImageDescription")
    if said is not None and said != page.description:
        return f"ImageDescription {said[:40]!r}, not {page.description[:40]!r}"
    return None


def _compare_far(path: Path, near: Group) -> str | None:
    """Scan the file from a URL, too, and compare where chunks are."""
    import fsspec

    place = f"/fidelity/{path.name}"
    memory = fsspec.filesystem("memory")
    memory.pipe_file(place, path.read_bytes())
    try:
        group = scan(f"memory:/{place}", on_error="warn")
    except VirtualZarrError as error:
        return f"from a URL: {error.message}"
    finally:
        memory.rm(place)
    mine, other = _arrays(near), _arrays(group)
    if list(mine) != list(other):
        return f"from a URL: {list(other)}, not {list(mine)}"
    for name, array in mine.items():
        for column in ("offset", "length"):
            a, b = getattr(array.manifest, column), getattr(other[name].manifest, column)
            if not np.array_equal(a, b):
                return f"from a URL: {column}s of {name} differ"
    return None


def _arrays(group: Group) -> dict[str, Array]:
    return {name: node for name, node in group.members(None) if isinstance(node, Array)}


def _unopened(path: Path, error: Exception) -> Row:
    try:
        scan(path)
    except VirtualZarrError:
        return Row("", "unreadable", f"tifffile cannot open the file: {type(error).__name__}")
    return Row("", "wrong", f"tifffile cannot open the file ({error}), but it was scanned")
