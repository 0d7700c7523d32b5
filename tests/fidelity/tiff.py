"""Fidelity of the TIFF scanner: every series and level that tifffile sees, against its values."""

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
from virtualzarr.group import Group

PAGES = 64
"""Pages of a series that are also compared one by one, read anew."""


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
    names = sorted({*images, *(name.split("/")[0] for name in group.refused)}, key=_place)
    if len(names) != len(series):
        yield Row("", "wrong", f"{len(names)} members for {len(series)} series")
        return
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
    if name in group.refused:
        return "refused", group.refused[name]
    array = group[name]
    assert isinstance(array, Array)
    try:
        ours = array[...]
    except VirtualZarrError as error:
        return "refused", f"when read: {error.message}"
    found = difference(ours, theirs)
    if found is None:
        found = _compare_pages(ours, image)
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
    if name not in group.refused:
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


def _unopened(path: Path, error: Exception) -> Row:
    try:
        scan(path)
    except VirtualZarrError:
        return Row("", "unreadable", f"tifffile cannot open the file: {type(error).__name__}")
    return Row("", "wrong", f"tifffile cannot open the file ({error}), but it was scanned")
