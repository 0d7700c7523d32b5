"""Format registry: detection by signature or extension, and the scanner of each format."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import Any, Protocol

from virtualzarr.choices import OnError
from virtualzarr.errors import UnsupportedError, warn_caller

GZIP, ZSTD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"
ENTRY_POINTS = "virtualzarr.formats"


class Scanner(Protocol):
    """Scanner of a file into a group of virtual arrays; see `ScanOptions`."""

    def __call__(
        self, path_or_url: Any, *, on_error: OnError, storage_options: Mapping[str, Any] | None
    ) -> Any:
        """Return the `Group` of a file."""
        ...


PathTest = Callable[[str, Mapping[str, Any] | None], bool]


@dataclass(frozen=True)
class Format:
    """A file format.

    Parameters
    ----------
    scanner : callable or str
        Scanner of its files, or the module that has it as `scan`, imported on first use.
    matches : callable, optional
        Predicate of the first `HEAD_BYTES` of a file.
    extensions : tuple of str
        Endings of file names, in lower case: used if the content cannot be read.
    matches_path : callable or str, optional
        Predicate of a path or URL, and the options for it, for formats that are directories; or
        ``"module:function"``, imported on first use.
    reaches_files : bool
        Whether files of this format name other files: `scanner` takes `allowed`, too.
    records : bool
        Whether a scan can be recorded, to scan files that are alike by it: `scanner` takes
        `recorder`, too.
    """

    scanner: Scanner | str
    matches: Callable[[bytes], bool] | None = None
    extensions: tuple[str, ...] = ()
    matches_path: PathTest | str | None = None
    reaches_files: bool = False
    records: bool = False

    def load(self) -> Scanner:
        """Return the scanner, imported if it is named."""
        if isinstance(self.scanner, str):
            scanner: Scanner = import_module(self.scanner).scan
            return scanner
        return self.scanner

    def has_path(self, uri: str, storage_options: Mapping[str, Any] | None = None) -> bool:
        """Tell whether a directory of this format is at a path or URL."""
        test = self.matches_path
        if test is None:
            return False
        return bool((_import_test(test) if isinstance(test, str) else test)(uri, storage_options))


@cache
def _import_test(name: str) -> PathTest:
    """Import ``"module:function"``, cached as every opening of a path needs it."""
    module, _, function = name.partition(":")
    test: PathTest = getattr(import_module(module), function)
    return test


def begins(*signatures: bytes) -> Callable[[bytes], bool]:
    """Return a predicate: whether a file begins with one of some signatures.

    Examples
    --------
    >>> begins(b"II*", b"MM")(b"MM and so on")
    True
    """
    return lambda head: head.startswith(signatures)


def _is_hdf5(head: bytes) -> bool:
    # The signature lies at 0, or behind a user block of 512 bytes, 1024, 2048, ...
    return any(head.startswith(b"\x89HDF\r\n\x1a\n", start) for start in (0, 512, 1024, 2048))


def _is_json(head: bytes) -> bool:
    if head.startswith(GZIP):
        head = _ungzip(head)
    elif head.startswith(ZSTD):
        head = _unzstd(head)
    return head.lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"{")


def _is_npy(head: bytes) -> bool:
    # In the local header of zip, the length of the name is at 26 and the name at 30: an archive is
    # NPZ if its first member is an array.
    member = head[30 : 30 + int.from_bytes(head[26:28], "little")]
    return head.startswith(b"\x93NUMPY") or (
        head.startswith(b"PK\x03\x04") and member.endswith(b".npy")
    )


def _ungzip(head: bytes) -> bytes:
    """Decompress the first bytes of gzip; empty if damaged."""
    try:
        # 31 is gzip with the largest window; 540 bytes are the larger header of NIfTI.
        return zlib.decompressobj(31).decompress(head, 540)
    except zlib.error:
        return b""


def _unzstd(head: bytes) -> bytes:
    """Decompress the first bytes of Zstandard; empty if its first block is not complete."""
    import zstandard

    try:
        # The window is limited, as a frame may claim up to terabytes of memory.
        return zstandard.ZstdDecompressor(max_window_size=1 << 27).decompressobj().decompress(head)
    except zstandard.ZstdError:
        return b""


def _is_nifti(head: bytes) -> bool:
    if head.startswith(GZIP):
        head = _ungzip(head)
    # The magic is behind the fields of NIfTI-1 (it extends ANALYZE 7.5), but in front in NIfTI-2.
    return head[344:348] in (b"n+1\0", b"ni1\0") or head[4:8] in (b"n+2\0", b"ni2\0")


def _is_grib(head: bytes) -> bool:
    # Messages may have bulletin headings before them. The octet of the edition makes the four
    # letters in other files no match.
    at = head.find(b"GRIB")
    while at >= 0 and head[at + 7 : at + 8] not in (b"\x01", b"\x02"):
        at = head.find(b"GRIB", at + 1)
    return at >= 0


def _is_dmrpp(head: bytes) -> bool:
    return head.lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"<") and all(
        word in head for word in (b"<Dataset", b"opendap.org/", b"dmrpp")
    )


_HERE = "virtualzarr.formats"

_REFERENCE_FORMS = "virtualzarr.references"

FORMATS: dict[str, Format] = {
    "hdf5": Format(
        f"{_HERE}.hdf5",
        _is_hdf5,
        (".h5", ".hdf5", ".hdf", ".he5", ".nc", ".nc4"),
        reaches_files=True,
        records=True,
    ),
    "netcdf3": Format(
        f"{_HERE}.netcdf3",
        begins(b"CDF\x01", b"CDF\x02", b"CDF\x05"),
        (".nc", ".nc3", ".cdf"),
        records=True,
    ),
    "tiff": Format(
        f"{_HERE}.tiff",
        begins(b"II*\0", b"MM\0*", b"II+\0", b"MM\0+"),
        (".tif", ".tiff"),
        records=True,
    ),
    "npy": Format(f"{_HERE}.npy", _is_npy, (".npy", ".npz")),
    "nifti": Format(f"{_HERE}.nifti", _is_nifti, (".nii", ".nii.gz")),
    "fits": Format(f"{_HERE}.fits", begins(b"SIMPLE  ="), (".fits", ".fit", ".fts")),
    "envi": Format(f"{_HERE}.envi", begins(b"ENVI"), (".hdr",)),
    "dmrpp": Format(f"{_HERE}.dmrpp", _is_dmrpp, (".dmrpp",), reaches_files=True),
    "kerchunk": Format(
        f"{_REFERENCE_FORMS}.kerchunk",
        _is_json,
        (".json", ".json.gz", ".json.zst", ".json.zstd", ".parq", ".parquet"),
        f"{_REFERENCE_FORMS}.parquet_folder:is_folder",
        reaches_files=True,
    ),
    "grib": Format(
        f"{_HERE}.grib", _is_grib, (".grib", ".grib1", ".grib2", ".grb", ".grb1", ".grb2", ".gb2")
    ),
    "icechunk": Format(
        f"{_REFERENCE_FORMS}.icechunk.read",
        matches_path=f"{_REFERENCE_FORMS}.icechunk.bindings:is_repository",
        reaches_files=True,
    ),
    "zarr": Format(f"{_HERE}.zarr", matches_path=f"{_HERE}.zarr:is_hierarchy"),
    # After Zarr, which says that a dataset is none: then other hierarchies cost no request more.
    "dataset": Format(
        "virtualzarr.dataset.scan",
        matches_path="virtualzarr.dataset.detect:is_dataset",
        reaches_files=True,
    ),
}
"""Formats of this package, and registered ones, in the order of detection."""

BUILT_IN = frozenset(FORMATS)
"""Names of the formats of this package."""


def register(
    name: str,
    scanner: Scanner | str,
    *,
    matches: Callable[[bytes], bool] | None = None,
    extensions: tuple[str, ...] = (),
    matches_path: PathTest | str | None = None,
) -> None:
    """Register a format.

    Packages do it without being imported by an entry point of the group ``virtualzarr.formats``,
    named as the format, that loads a `Format`, or a module or class with `scan` and, if it can tell
    its files, `matches` and `extensions`.

    Parameters
    ----------
    name : str
        Value of `format=` that selects it.
    scanner, matches, extensions, matches_path
        As in `Format`.
    """
    FORMATS[name] = Format(scanner, matches, extensions, matches_path)


def list_formats() -> dict[str, Format]:
    """Return all formats by name: plug-ins, those of this package, and registered ones."""
    return plugins() | FORMATS


def has_extension(url: str) -> bool:
    """Tell whether a URL ends like the name of a file of any format."""
    name = url.split("?")[0].rstrip("/").lower()
    return any(name.endswith(each.extensions) for each in FORMATS.values())


def get_format(name: str) -> Format:
    """Return the format of a name.

    Raises `UnsupportedError` if the name is not registered.
    """
    format_ = FORMATS.get(name) or list_formats().get(name)
    if format_ is None:
        raise UnsupportedError(
            f"no format is called {name!r}; there are {', '.join(list_formats())}"
        )
    return format_


@cache
def plugins() -> dict[str, Format]:
    """Load the formats that other packages register by entry points.

    Warns
    -----
    SkippedVariableWarning
        A package cannot be imported: its formats are skipped.
    """
    from importlib.metadata import entry_points

    formats = {}
    for entry in entry_points(group=ENTRY_POINTS):
        try:
            loaded = entry.load()
        except Exception as error:  # of a package that concerns few files
            why = f"the format {entry.name!r} cannot be loaded from {entry.value}: {error!r}"
            warn_caller(why)
            continue
        if not isinstance(loaded, Format):
            extensions = tuple(getattr(loaded, "extensions", ()))
            loaded = Format(loaded.scan, getattr(loaded, "matches", None), extensions)
        formats[entry.name] = loaded
    return formats
