"""Fidelity of the netCDF3 scanner: variables, values and attributes against netCDF4, or scipy."""

from __future__ import annotations

import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from tests.fidelity.compare import Row, difference
from virtualzarr.array import Array
from virtualzarr.errors import VirtualZarrError
from virtualzarr.formats.netcdf3 import scan
from virtualzarr.hierarchy.group import Group
from virtualzarr.metadata import TypedFloat, json_attributes

_OPEN = """
import resource, sys
resource.setrlimit(resource.RLIMIT_AS, (1 << 31, 1 << 31))
import netCDF4
file = netCDF4.Dataset(sys.argv[1])
for variable in file.variables.values():
    variable.set_auto_maskandscale(False)
    variable[...]
"""


def files(directory: Path) -> list[Path]:
    """List the files to check."""
    found = (path for path in directory.rglob("*") if path.is_file())
    return sorted(path for path in found if path.read_bytes()[:3] == b"CDF")


def check(path: Path) -> Iterator[Row]:
    """Compare every variable of a file, and the attributes of the file."""
    import netCDF4  # noqa: F401  (not to be taken for a file that it cannot open)

    warnings.simplefilter("ignore")
    try:
        group = scan(path, on_error="warn")
    except VirtualZarrError as error:
        # On damaged files the netCDF library may crash, or never come back.
        yield Row("", "refused" if _readable(path) else "unreadable", error.message)
        return
    try:
        variables, attributes = _oracle(path)
    except Exception as error:  # whatever it raises
        values = any(isinstance(node, Array) and node.size for node in group.values())
        outcome = "wrong" if values else "unreadable"
        yield Row("", outcome, f"netCDF4 and scipy cannot open the file ({error}); we can")
        return
    found = _attributes(group.attributes, attributes)
    if found:
        yield Row("", "wrong", found)
    if set(variables) != {*group, *group.skipped}:
        yield Row("", "wrong", f"variables {sorted(group)}, not {sorted(variables)}")
        return
    for name, (dims, values, attributes) in variables.items():
        yield Row(name, *_compare(group, name, dims, values, attributes))


def _compare(group: Group, name: str, dims: Any, values: Any, attributes: Any) -> tuple[str, str]:
    if name in group.skipped:
        return "refused", group.skipped[name]
    array = group[name]
    assert isinstance(array, Array)
    try:
        ours = array[...]
    except VirtualZarrError as error:
        return "refused", f"when read: {error.message}"
    found = difference(ours, values) or _attributes(array.attrs, attributes)
    if not found and array.dims != dims:
        found = f"dimensions {array.dims}, not {dims}"
    return ("wrong", found) if found else ("equal", "")


def _attributes(ours: Any, theirs: Any) -> str | None:
    theirs = json_attributes(theirs)
    if ours.keys() != theirs.keys():
        return f"attributes {list(ours)}, not {list(theirs)}"
    for name in theirs:
        # Of single values the data types must be the same, too.
        if repr(ours[name]) != repr(theirs[name]) or _dtype(ours[name]) != _dtype(theirs[name]):
            return f"attribute {name}: {ours[name]!r}, not {theirs[name]!r}"
    return None


def _dtype(value: Any) -> Any:
    return value.dtype if isinstance(value, TypedFloat) else type(value)


def _oracle(path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return variables (dimensions, values, attributes) and the attributes of the file."""
    import netCDF4

    try:
        file = netCDF4.Dataset(path)
    except OSError:
        return _scipy(path)
    with file:
        file.set_auto_maskandscale(False)
        file.set_auto_chartostring(False)
        variables = {
            name: (each.dimensions, np.asarray(each[...]), _of_netcdf4(each))
            for name, each in file.variables.items()
        }
        return variables, _of_netcdf4(file)


def _of_netcdf4(node: Any) -> dict[str, Any]:
    return {name: node.getncattr(name) for name in node.ncattrs()}


def _scipy(path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    from scipy.io import netcdf_file

    with netcdf_file(path, mmap=False) as file:
        variables = {}
        for name, each in file.variables.items():
            values = np.array(each[...] if each.shape else each.getValue())
            variables[name] = (each.dimensions, values, dict(each._attributes))
        return variables, dict(file._attributes)


def _readable(path: Path) -> bool:
    try:
        run = subprocess.run(
            [sys.executable, "-c", _OPEN, str(path)], capture_output=True, timeout=4
        )
    except subprocess.TimeoutExpired:
        return False
    return run.returncode == 0
