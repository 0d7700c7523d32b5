"""Damage of what has checksums, or means nothing: what is read is what was written, or an error.

``python -m tests.fuzz checked`` looks for damage that changes values in silence, or that gives an
error which is none of this package's.
"""

from __future__ import annotations

import contextlib
import io
import shutil
import tempfile
import time
import traceback
import warnings
import zipfile
from collections.abc import Callable, Iterator, Mapping
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

import virtualzarr as vz
from tests.fuzz.loop import kind
from tests.fuzz.mutation import mutated
from tests.fuzz.target import TooSlow, limits
from virtualzarr.errors import VirtualZarrError
from virtualzarr.stores.zip import LOCAL_HEADER_BYTES, member_data_offset

Values = dict[str, Any]
Files = dict[str, bytes]
"""Content of files by their path below a folder."""

Finding = tuple[str, str, str]
A = np.arange(24, dtype="<i4").reshape(6, 4)
B = np.linspace(0, 1, 7)


def npz(folder: Path) -> None:
    """Write arrays in a zip archive, some of them empty."""
    np.savez(folder / "x.npz", a=A, b=B, empty=A[:0], scalar=np.float32(2))


def zip2(folder: Path) -> None:
    """Write a hierarchy of Zarr v2 in a zip archive."""
    _zip(folder, 2)


def zip3(folder: Path) -> None:
    """Write a hierarchy of Zarr v3 in a zip archive."""
    _zip(folder, 3)


def _zip(folder: Path, zarr_format: int) -> None:
    from virtualzarr.stores import ZipStore

    with ZipStore(folder / "x.zip", "w") as store:
        group = vz.create_group(store, zarr_format=zarr_format)
        group.create_array("a", data=A, chunks=(2, 4), compressors=None)
        group.create_array("b", data=B, chunks=(3,))


def native(folder: Path) -> None:
    """Write references in the native form, with decoders and inline values."""
    np.save(folder / "a.npy", A)
    np.save(folder / "c.npy", A.astype(">f4"))
    one, other = (vz.open(folder / f"{name}.npy")["data"] for name in "ac")
    inline = vz.create_array({}, data=np.arange(90), chunks=(1,), compressors="gzip")
    joined = vz.concat([one, other, one])
    vz.Group({"title": "x"}, {"a": joined, "b": inline}).publish(folder / "x.zarr")


def icechunk(folder: Path) -> None:
    """Write references in an Icechunk repository."""
    np.save(folder / "a.npy", A)
    array = vz.open(folder / "a.npy")["data"]
    vz.Group({}, {"a": array, "b": vz.concat([array, array])}).publish(folder / "x.icechunk")


def fits(folder: Path) -> None:
    """Write three images of FITS."""
    from astropy.io import fits as astropy

    file = io.BytesIO()
    parts = [astropy.PrimaryHDU(A), astropy.ImageHDU(B, name="B"), astropy.ImageHDU(A[0], name="C")]
    astropy.HDUList(parts).writeto(file)
    (folder / "x.fits").write_bytes(file.getvalue())


def read_zip(path: Path) -> Values:
    """Return values of a zip archive, also as references into it."""
    group = vz.open(path)
    found = _values(group)
    for name, array in group.arrays():
        with contextlib.suppress(VirtualZarrError):
            found[f"joined {name}"] = vz.concat([array, array], axis=0)[...]
    return found


def _values(group: Any) -> Values:
    """Return the values of all arrays that can be read, in parts and whole."""
    found: Values = {}
    for name, array in group.members(None):
        if isinstance(array, vz.Array):
            with contextlib.suppress(VirtualZarrError):
                if array.ndim:
                    found[f"part of {name}"] = array[-1:]
            with contextlib.suppress(VirtualZarrError):
                found[name] = array[...]
    return found


def anything(files: Files, random: Random) -> Files:
    """Damage a file or two in any way."""
    result = dict(files)
    for _ in range(random.choice((1, 1, 2))):
        name = random.choice(list(files))
        result[name] = mutated(files[name], list(files.values()), random)
    return result


def members(files: Files, random: Random) -> Files:
    """Damage what members of zip archives hold: their directory has no checksum."""
    ((name, raw),) = files.items()
    out = bytearray(raw)
    with zipfile.ZipFile(io.BytesIO(raw)) as archive:
        for entry in random.choices([e for e in archive.infolist() if e.file_size], k=2):
            begin = member_data_offset(raw[entry.header_offset :][:LOCAL_HEADER_BYTES], entry)
            place = begin + random.randrange(entry.file_size)
            out[place] ^= random.randrange(1, 256)
    return {name: bytes(out)}


def columns(files: Files, random: Random) -> Files:
    """Damage what is no document of a native hierarchy, nor a source."""
    below = [name for name in files if "/" in name and not name.endswith(".json")]
    part = {name: files[name] for name in below if not name.endswith("/inline")}
    return {**files, **anything(part, random)}


def behind_end(files: Files, random: Random) -> Files:
    """Put something behind the END of a header of FITS that is no part of a name."""
    ((name, raw),) = files.items()
    ends = [at for at in range(0, len(raw), 80) if raw[at : at + 80] == b"END".ljust(80)]
    out = bytearray(raw)
    for at in random.sample(ends, random.randint(1, len(ends))):
        out[at + 3] = random.choice(b" /=x\0\xff\n.")
        for _ in range(random.randint(1, 20)):
            out[at + random.randrange(4, 80)] = random.randrange(256)
    return {name: bytes(out)}


Damage = Callable[[Files, Random], Files]
Read = Callable[[Path], Values]


def _open(path: Path) -> Values:
    return _values(vz.open(path))


TARGETS: dict[str, tuple[Callable[[Path], None], str, Read, Damage, bool]] = {
    "npz": (npz, "x.npz", _open, anything, True),
    "zip2": (zip2, "x.zip", read_zip, members, True),
    "zip3": (zip3, "x.zip", read_zip, members, True),
    "zip directories": (zip3, "x.zip", read_zip, anything, False),
    "native": (native, "x.zarr", _open, columns, True),
    "native documents": (native, "x.zarr", _open, anything, False),
    "icechunk": (icechunk, "x.icechunk", _open, anything, False),
    "fits": (fits, "x.fits", _open, behind_end, True),
}
"""What writes, what is opened, what reads it, what damages, and whether values must be equal."""


def available() -> list[str]:
    """Return the targets that the installed packages can read."""
    missing = {"fits"} if find_spec("astropy") is None else set()
    if find_spec("icechunk") is None or version("icechunk").startswith("1."):
        missing.add("icechunk")  # older versions do not tell where chunks are
    return [name for name in TARGETS if name not in missing]


def look(
    random: Random, count: int | None = None, seconds: float = float("inf"), names: Any = None
) -> Iterator[Finding]:
    """Yield what was found: which target, what was damaged, and what is wrong.

    Parameters
    ----------
    random : Random
    count : int, optional
        How many times to try each target.
    seconds : float, optional
        For how long to try.
    names : sequence of str, optional
        Of targets; all by default.
    """
    stop, tried, seen = time.monotonic() + seconds, 0, set[str]()
    with tempfile.TemporaryDirectory() as name:
        targets = {key: _made(key, Path(name)) for key in names or available()}
        while tried != count and time.monotonic() < stop:
            tried += 1
            for key, (folder, files, values) in targets.items():
                damaged = TARGETS[key][3](files, random)
                text = failure(key, folder, files, damaged, values)
                if text and kind(text) not in seen:
                    seen.add(kind(text))
                    names = ", ".join(n for n in files if damaged.get(n) != files[n])
                    yield key, names, text


def _made(name: str, folder: Path) -> tuple[Path, Files, Values]:
    folder = folder / name
    folder.mkdir()
    write, entry, read, *_ = TARGETS[name]
    write(folder)
    values = read(folder / entry)
    files = {str(path.relative_to(folder)): path for path in folder.rglob("*") if path.is_file()}
    below = {name: path.read_bytes() for name, path in files.items() if name.startswith(entry)}
    assert values
    return folder, below, values


def failure(
    name: str, folder: Path, files: Files, damaged: Mapping[str, bytes], values: Values
) -> str:
    """Return what is wrong with what is read of damaged files; "" if nothing is."""
    entry, read, equal = (TARGETS[name][i] for i in (1, 2, 4))
    place = folder / entry
    _write(folder, damaged)
    try:
        with limits(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                found = read(place)
            except VirtualZarrError:
                return ""
            for key in found.keys() & values.keys() if equal else ():
                assert _same(found[key], values[key]), f"{key}: {found[key]!r}"
    except (Exception, TooSlow) as error:
        return "".join(traceback.format_exception(error, limit=-6))
    finally:
        if place.is_dir():
            shutil.rmtree(place)
        _write(folder, files)
    return ""


def _write(folder: Path, files: Mapping[str, bytes]) -> None:
    for name, raw in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(raw)


def _same(a: Any, b: Any) -> bool:
    return a.shape == b.shape and a.dtype == b.dtype and bool(np.array_equal(a, b))
