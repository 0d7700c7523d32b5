"""The demonstration: scan, join, publish and read sample files, compared with other readers."""

from __future__ import annotations

import importlib.util
import tempfile
import textwrap
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import virtualzarr
from virtualzarr.array import Array
from virtualzarr.cli.describe import count
from virtualzarr.cli.samples import (
    FULL,
    PARTIAL,
    read_archive,
    read_stacks,
    write_archive,
    write_stacks,
)
from virtualzarr.display.summaries import chunk_lengths
from virtualzarr.errors import PublishError
from virtualzarr.hierarchy.group import Group
from virtualzarr.ingest.detect import scan


class Checks:
    """Comparisons made so far; each is printed as a line of a table."""

    def __init__(self) -> None:
        self.failed = 0

    def compare(
        self, label: str, expected: dict[str, NDArray[Any]], read: Callable[[str], Any]
    ) -> None:
        """Compare all variables bit for bit and print one line."""
        wrong = [name for name, values in expected.items() if not _same(read(name), values)]
        self.failed += bool(wrong)
        count = sum(values.size for values in expected.values())
        verdict = f"DIFFERENT: {', '.join(wrong)}" if wrong else "equal"
        print(f"  {label:<44} {count:>9,} values  {verdict}")

    def skip(self, label: str, reason: str) -> None:
        """Print a line for a comparison that cannot be made here."""
        print(f"  {label:<44} {'':>9}         skipped: {reason}")


def _same(actual: Any, expected: NDArray[Any]) -> bool:
    """Compare to the last bit: NaN equals NaN only if its bits do, 0.0 is not -0.0."""
    values = np.asarray(actual)
    return (
        # Bytes, not ==: the last bit counts, NaN must be NaN, and 0.0 is not -0.0.
        values.shape == expected.shape
        and values.dtype == expected.dtype
        and values.tobytes() == expected.tobytes()
    )


def run_demo(folder: Path | None = None) -> bool:
    """Make files, virtualize, concatenate, publish, open again, compare.

    Parameters
    ----------
    folder : Path, optional
        Where to put the files; by default a temporary place that is removed at the end.

    Returns
    -------
    bool
        Whether every value was equal.
    """
    if folder is not None:
        return _run(folder, kept=True)
    with tempfile.TemporaryDirectory(prefix="virtualzarr-demo-") as temporary:
        return _run(Path(temporary), kept=False)


def _run(folder: Path, kept: bool) -> bool:
    checks = Checks()
    _one_file(folder, checks)
    _full_chunks(folder, checks)
    _partial_chunk(folder, checks)
    _short_strips(folder, checks)
    if checks.failed:
        print(f"\n{checks.failed} comparisons found DIFFERENCES: please report this.")
        return False
    print("\nEvery value is equal to what h5py and tifffile read.")
    if kept:
        print(_LOOK.format("", folder / "air.json"))
    else:
        print(_LOOK.format("virtualzarr demo --keep demo && ", "demo/air.json"))
    print(_NEXT)
    return True


def _one_file(folder: Path, checks: Checks) -> None:
    _title("One HDF5 file, as any Zarr reader can open it")
    paths = write_archive(folder / "archive", FULL, "air")[:1]
    _job(checks, virtualzarr.virtualize(paths), folder / "one.json", _hdf5(paths))


def _full_chunks(folder: Path, checks: Checks) -> None:
    _title("Three HDF5 files with chunks of 8, 12 and 6 hours, gzip levels 1, 5 and 9")
    paths = write_archive(folder / "archive", FULL, "air")
    group = virtualzarr.virtualize(paths, concat_dim="time")
    _job(checks, group, folder / "air.json", _hdf5(paths))


def _partial_chunk(folder: Path, checks: Checks) -> None:
    _title("The same, but the second file ends with a chunk that is only half full")
    paths = write_archive(folder / "partial", PARTIAL, "air")
    group = virtualzarr.virtualize(paths, concat_dim="time")
    try:
        group.publish(folder / "partial.json")
    # The error is part of the demonstration: what cannot be exact is refused, with a remedy.
    except PublishError as error:
        text = f"without copy=True it is refused, as it should be: {error}"
        print(textwrap.indent(textwrap.fill(text, 96), "  "))
    else:
        checks.failed += 1
        print("  WRONG: a chunk was published that other readers cannot cut")
    _job(checks, group, folder / "partial.json", _hdf5(paths), copy=True)


def _short_strips(folder: Path, checks: Checks) -> None:
    _title("Two TIFF stacks, joined along the pages; the last strip of each page is short")
    paths = write_stacks(folder)
    group = virtualzarr.concat([scan(path) for path in paths], dim="z")
    (name,) = group
    _job(checks, group, folder / "stack.json", {name: read_stacks(paths)})


def _title(text: str) -> None:
    print(f"\n{text}")


def _hdf5(paths: list[Path]) -> dict[str, NDArray[Any]]:
    """Return what h5py reads: `air` and `time` of all files, the rest of the first."""
    truth = {name: read_archive(paths, name) for name in ("air", "time")}
    return truth | {name: read_archive(paths[:1], name) for name in ("y", "x", "station")}


def _job(
    checks: Checks, group: Group, path: Path, truth: dict[str, NDArray[Any]], copy: bool = False
) -> None:
    """Publish a group, and compare it, before and after, with the truth."""
    name = next(iter(truth))
    print(f"  chunks of {name}: {chunk_lengths(_array(group, name))}")
    report = group.publish(path, copy=copy)
    print(
        f"  published {path.name}: {report.nbytes:,} bytes, {report.references} references, "
        f"Zarr v{report.zarr_format}; {count(report.copied, 'chunk')} copied, "
        f"{report.copied_bytes:,} bytes"
    )
    again = virtualzarr.open(path)
    assert isinstance(again, Group)
    checks.compare("virtual arrays", truth, lambda name: _array(group, name)[...])
    checks.compare("reference file, opened again", truth, lambda name: _array(again, name)[...])
    _compare_xarray(checks, path, truth)
    _compare_zarr_python(checks, path, truth, report.zarr_format)
    _compare_served(checks, path, truth)


def _array(group: Group, name: str) -> Array:
    node = group[name]
    assert isinstance(node, Array)
    return node


def _compare_xarray(checks: Checks, path: Path, truth: dict[str, NDArray[Any]]) -> None:
    label = 'xarray, engine="virtualzarr"'
    if importlib.util.find_spec("xarray") is None:
        checks.skip(label, "xarray is not installed")
        return
    import xarray

    from virtualzarr.integrations.xarray_backend import VirtualZarrBackendEntrypoint

    dataset = xarray.open_dataset(path, engine=VirtualZarrBackendEntrypoint, decode_cf=False)
    checks.compare(label, truth, lambda name: dataset[name].values)


def _compare_zarr_python(
    checks: Checks, path: Path, truth: dict[str, NDArray[Any]], zarr_format: int
) -> None:
    """Compare with what fsspec and zarr-python read, without any of this package."""
    label = "fsspec + zarr-python"
    if importlib.util.find_spec("zarr") is None:
        checks.skip(label, "zarr is not installed")
        return
    import fsspec
    import zarr

    version = tuple(int(part) for part in zarr.__version__.split(".")[:2])
    needed = (3, 2) if zarr_format == 3 else (3, 0)
    if version < needed:
        checks.skip(label, f"zarr {zarr.__version__} is older than {needed[0]}.{needed[1]}")
        return
    # zarr-python's store is asynchronous, and so must be the file system below it.
    options = {"remote_protocol": "file", "remote_options": {"asynchronous": True}}
    fs = fsspec.filesystem("reference", fo=str(path), asynchronous=True, **options)
    # Unequal chunks are off by default in zarr-python, as the grid is an extension.
    settings = {"array.rectilinear_chunks": True} if zarr_format == 3 else {}
    with zarr.config.set(settings), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        group: Any = zarr.open_group(
            zarr.storage.FsspecStore(fs, read_only=True, path=""), mode="r"
        )
        checks.compare(label, truth, lambda name: group[name][...])


def _compare_served(checks: Checks, path: Path, truth: dict[str, NDArray[Any]]) -> None:
    """Compare with what zarr-python reads from the server, with no setting and no plug-in."""
    label = "virtualzarr serve + zarr-python, over HTTP"
    needed = ("zarr", "aiohttp", "uvicorn", "httptools", "prometheus_client")
    missing = [name for name in needed if importlib.util.find_spec(name) is None]
    if missing:
        checks.skip(label, f"{missing[0]} is not installed")
        return
    import zarr

    from virtualzarr.serve import create_app, run_in_thread

    with run_in_thread(create_app(path, page=False)) as url, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        group: Any = zarr.open_group(f"{url}/v3", mode="r")
        checks.compare(label, truth, lambda name: group[name][...])


_LOOK = """
Look at it in a browser, and open it with anything that reads Zarr:
  {}virtualzarr serve {}"""

_NEXT = """
What next:
  virtualzarr info FILE                                     what is in one of your files
  virtualzarr scan FILES --concat-dim time -o refs.json     join yours
  virtualzarr demo --keep DIR                               leave the files of this run in DIR
  docs/getting-started.md                                   the same from Python"""
