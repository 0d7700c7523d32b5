"""What is fuzzed: the bytes of a file are scanned and read, within limits of time and memory."""

from __future__ import annotations

import contextlib
import logging
import resource
import signal
import traceback
import warnings
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

from virtualzarr.array import Array
from virtualzarr.errors import SourceError, VirtualZarrError

SECONDS = 5.0
NBYTES = 512 << 20
_READ = 1 << 20
_AT_ONCE = 50
EXTENSIONS = {"hdf5": "h5", "tiff": "tif", "netcdf3": "nc", "fits": "fits", "grib": "grib",
              "npy": "npy", "nifti": "nii", "kerchunk": "json", "dmrpp": "dmrpp"}  # fmt: skip


class TooSlow(BaseException):
    """More processor time went by than any small file may take."""


def load_scan(name: str) -> Callable[..., Any]:
    """Return the scanner of a format."""
    room = "references" if name == "kerchunk" else "formats"
    scan: Callable[..., Any] = import_module(f"virtualzarr.{room}.{name}").scan
    return scan


def path_of(name: str, folder: Path) -> Path:
    """Return where `check` writes the file."""
    return folder / f"fuzzed.{EXTENSIONS[name]}"


def check(name: str, raw: bytes, folder: Path, library: bool = False) -> None:
    """Scan a file and read the small arrays of it: that must work, or be a clear error.

    Parameters
    ----------
    name : str
        The format.
    raw : bytes
        The file.
    folder : Path
        Where to write it.
    library : bool
        Whether the HDF5 library is asked for what our reader does not know. It may crash.

    Raises
    ------
    Exception
        Anything but a `VirtualZarrError`, which is a finding.
    TooSlow
    """
    path = path_of(name, folder)
    if name == "hdf5":
        from tests.fuzz.repair import repaired

        with limits():
            raw = repaired(raw)
    path.write_bytes(raw)
    logging.getLogger("tifffile").setLevel(logging.CRITICAL)
    with limits(), _unasked(library), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            group = load_scan(name)(path, on_error="warn")
        except VirtualZarrError as error:
            if path.name not in str(error):
                raise AssertionError("the error does not name the file") from error
            return
        for variable, node in group.members(None):
            if isinstance(node, Array):
                _check_array(variable, node, len(raw), path)


def failure(name: str, raw: bytes, folder: Path, library: bool = False) -> str:
    """Return the traceback of what `check` raises; "" if that is nothing."""
    try:
        check(name, raw, folder, library)
    except (Exception, TooSlow) as error:
        return "".join(traceback.format_exception(error, limit=-6))
    return ""


def _check_array(variable: str, array: Array, size: int, path: Path) -> None:
    manifest = array.manifest
    for number, source in enumerate(manifest.sources):
        if source.is_inline or Path(source.uri).name != path.name:
            continue
        stored = np.asarray(manifest.source) == number
        if stored.any():
            first = np.asarray(manifest.offset)[stored]
            length = np.asarray(manifest.length)[stored]
            assert int(first.min()) >= 0, f"{variable}: a reference before the file"
            assert int(length.min()) >= 0, f"{variable}: a reference of negative length"
            assert int((first + length).max()) <= size, f"{variable}: a reference past the end"
    if array.nbytes < _READ:
        with contextlib.suppress(VirtualZarrError):
            array[...]


@contextlib.contextmanager
def limits(seconds: float = SECONDS, nbytes: int = NBYTES) -> Iterator[None]:
    """Limit the processor time and the memory that is taken inside."""

    def stop(*_: Any) -> None:
        raise TooSlow(f"more than {seconds} s")

    used = int(Path("/proc/self/statm").read_text().split()[5]) * resource.getpagesize()
    old, hard = resource.getrlimit(resource.RLIMIT_DATA)
    handler = signal.signal(signal.SIGVTALRM, stop)
    resource.setrlimit(resource.RLIMIT_DATA, (used + nbytes, hard))
    signal.setitimer(signal.ITIMER_VIRTUAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, handler)
        resource.setrlimit(resource.RLIMIT_DATA, (old, hard))


@contextlib.contextmanager
def _unasked(library: bool) -> Iterator[None]:
    """Keep the HDF5 library away from damaged files, unless it may be asked."""
    from virtualzarr.formats.hdf5.h5py_fallback import Library

    def refuse(self: Any, *args: Any) -> Any:
        raise SourceError("the HDF5 library is not asked")

    with contextlib.ExitStack() as stack:
        if not library:
            stack.enter_context(mock.patch.object(Library, "call_worker", refuse))
        yield
