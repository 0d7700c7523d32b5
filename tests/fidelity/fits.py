"""Fidelity of the FITS scanner against astropy: values as stored, decoded images, and headers."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from tests.fidelity.compare import Row, difference
from virtualzarr.array import Array
from virtualzarr.errors import VirtualZarrError
from virtualzarr.formats.fits import scan
from virtualzarr.hierarchy.group import Group


def files(directory: Path) -> list[Path]:
    """List the files to check."""
    return sorted(path for path in directory.rglob("*") if path.suffix in (".fits", ".fit", ".fts"))


def check(path: Path) -> Iterator[Row]:
    """Compare every part of a file."""
    from astropy.io import fits

    warnings.simplefilter("ignore")
    try:
        with (
            fits.open(path, memmap=False) as decoded,
            fits.open(path, memmap=False, do_not_scale_image_data=True) as stored,
        ):
            parts = list(zip(stored, decoded, strict=True))
            yield from _compare_file(path, parts)
    except (OSError, ValueError, TypeError, KeyError, fits.VerifyError) as error:
        yield _unopened(path, error)


def _unopened(path: Path, error: Exception) -> Row:
    try:
        group = scan(path, on_error="warn")
    except VirtualZarrError:
        return Row("", "unreadable", f"astropy cannot read the file: {error!r}")
    values = [node for _, node in group.members(None) if isinstance(node, Array)]
    return Row("", "wrong" if values else "unreadable", f"astropy cannot read the file: {error!r}")


def _compare_file(path: Path, parts: list[Any]) -> Iterator[Row]:
    try:
        group = scan(path, on_error="warn")
    except VirtualZarrError as error:
        yield Row("", "refused", error.message)
        return
    groups = [("", group)] + [(n, node) for n, node in group.items() if isinstance(node, Group)]
    if len(groups) != len(parts):
        yield Row("", "wrong", f"{len(groups)} parts, not {len(parts)}")
        return
    for (name, part), (stored, decoded) in zip(groups, parts, strict=True):
        full = f"{name}/data".lstrip("/")
        if full in group.skipped:
            yield Row(full, "refused", group.skipped[full])
            continue
        found = _header(part.attrs, stored.header)
        if found:
            yield Row(name, "wrong", found)
        try:
            theirs = decoded.data
        except _failure() as error:
            yield _undecoded(full, part, error)
            continue
        if theirs is None or type(decoded).__name__ == "_NonstandardHDU":
            if "data" in part:
                yield Row(full, "wrong", "astropy has no values")
        elif "data" not in part:
            yield Row(full, "wrong", "vanished")
        else:
            found = _values(part["data"], stored, theirs)
            yield Row(full, "wrong" if found else "equal", found or "")
            yield from _columns(part, name, stored)


def _failure() -> type[Exception]:
    """Return what astropy raises for tiles that do not decode."""
    from astropy.io.fits.hdu.compressed import _compression

    failure: type[Exception] = _compression.CfitsioException
    return failure


def _undecoded(name: str, part: Any, error: Exception) -> Row:
    try:
        part["data"][...]
    except VirtualZarrError:
        return Row(name, "unreadable", f"astropy cannot decode it: {error!r}")
    return Row(name, "wrong", f"astropy cannot decode it: {error!r}")


def _columns(part: Any, name: str, hdu: Any) -> Iterator[Row]:
    """Compare columns of variable-length arrays."""
    columns = [column for column in getattr(hdu, "columns", ()) if column.format.lstrip("01")[:1] in
               ("P", "Q") and not column.format.startswith("0")]  # fmt: skip
    arrays = [(member, array) for member, array in part.items()
              if isinstance(array, Array) and member != "data"]  # fmt: skip
    if type(hdu).__name__ != "BinTableHDU" or "data" not in part:
        return
    if len(columns) != len(arrays):
        yield Row(name, "wrong", f"{len(arrays)} columns of arrays, not {len(columns)}")
        return
    for column, (member, array) in zip(columns, arrays, strict=True):
        try:
            theirs = np.asarray(hdu.data[column.name], object)
        except (UnboundLocalError, ValueError, TypeError) as error:
            yield Row(f"{name}/{member}", "unreadable", f"astropy cannot read it: {error!r}")
            continue
        found = difference(*_alike(array[...], theirs, column.format.strip("01PQ")[:1]))
        yield Row(f"{name}/{member}", "wrong" if found else "equal", found or "")


def _alike(ours: Any, theirs: Any, letter: str) -> tuple[Any, Any]:
    """Return texts as such, and logical elements as astropy has them, some as it wrote them."""
    if letter == "A":
        joined = ["".join(np.asarray(each).tolist()).rstrip() for each in theirs]
        theirs = np.array([*joined, None], object)[:-1]
    if letter == "L":
        ours = ours.copy()
        for i, each in enumerate(ours):
            ours[i] = (each == b"T") | (each == b"\1")
    return ours, theirs


def _values(array: Any, stored: Any, decoded: Any) -> str | None:
    if array.dtype.names is not None and type(stored).__name__ == "TableHDU":
        return _text(array[...], stored.data)
    if array.dtype.names is not None:
        return _table(array[...], np.asarray(stored.data))
    found = None
    if decoded.dtype.newbyteorder("=") != array.dtype or decoded.dtype.kind == "f":
        found = difference(array[...], stored.data)
    return found or _decoded(array, decoded)


def _decoded(array: Any, theirs: Any) -> str | None:
    """Compare what xarray's rules make of an image with what astropy makes of it."""
    import xarray
    from xarray.conventions import decode_cf_variable

    variable = xarray.Variable(array.dims, array[...], dict(array.attrs))
    ours = decode_cf_variable("data", variable).values
    theirs = np.asarray(theirs)
    if theirs.dtype.kind == "f" and ours.shape == theirs.shape and ours.dtype == theirs.dtype:
        ours = np.where(np.isnan(ours), np.nan, ours).astype(ours.dtype)
        theirs = np.where(np.isnan(theirs), np.nan, theirs).astype(theirs.dtype)
    return difference(ours, theirs)


def _table(ours: Any, theirs: Any) -> str | None:
    """Compare the bytes of columns: their types differ in how they are called."""
    if ours.shape != theirs.shape:
        return f"shape {ours.shape}, not {theirs.shape}"
    names = [name for name in theirs.dtype.names if theirs.dtype[name].itemsize]
    if len(names) != len(ours.dtype.names):
        return f"columns {ours.dtype.names}, not {names}"
    for mine, name in zip(ours.dtype.names, names, strict=True):
        a, b = np.ascontiguousarray(ours[mine]), np.ascontiguousarray(theirs[name])
        if a.tobytes() != b.tobytes():
            return f"column {name}"
    return None


def _text(ours: Any, theirs: Any) -> str | None:
    """Compare the columns of a table of text."""
    if len(ours.dtype.names) != len(theirs.names):
        return f"columns {ours.dtype.names}, not {theirs.names}"
    for mine, name in zip(ours.dtype.names, theirs.names, strict=True):
        a, b = ours[mine], np.asarray(theirs[name])
        if b.dtype.kind == "U":
            a, b = np.char.rstrip(a), np.char.encode(np.char.rstrip(b), "latin-1").astype(a.dtype)
        found = difference(a.astype(b.dtype) if b.dtype.kind == "S" else a, b)
        if found:
            return f"column {name}: {found}"
    return None


def _header(ours: Any, theirs: Any) -> str | None:
    from astropy.io import fits

    for name, value in ours.items():
        if name in ("COMMENT", "HISTORY") or name not in theirs:
            continue
        try:
            other = theirs[name]
        except fits.VerifyError:
            continue
        if isinstance(other, bool | int | float) and value != other:
            return f"{name} is {value!r}, not {other!r}"
        if isinstance(other, str) and value != other.rstrip():
            return f"{name} is {value!r}, not {other!r}"
    return None
