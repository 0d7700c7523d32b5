"""NumPy files: one array (NPY), or several in a zip archive (NPZ)."""

from __future__ import annotations

import ast
import io
import zipfile
from dataclasses import replace
from typing import Any, Unpack

import numpy as np

from virtualzarr.array import Array
from virtualzarr.array.chunk_source import open_source
from virtualzarr.errors import SourceError, UnsupportedError
from virtualzarr.formats.headers import HeaderReader
from virtualzarr.formats.on_error import Refusals, ScanOptions, begin_scan
from virtualzarr.formats.plain import check_place, fortran, plain_array
from virtualzarr.hierarchy.group import Group
from virtualzarr.manifest import Source
from virtualzarr.metadata import check_name
from virtualzarr.stores.archive import MemberChecksums
from virtualzarr.stores.files import is_url, open_file
from virtualzarr.stores.seekable import SeekableFile
from virtualzarr.stores.zip import LOCAL_HEADER_BYTES, member_data_offset

MAGIC = b"\x93NUMPY"
NAME = "data"
"""Name of the array of an NPY file, which has none itself."""

_HEADER_LIMIT = 64 * 1024
_ZIP = b"PK\x03\x04"
_ZIP_ERRORS = (zipfile.BadZipFile, NotImplementedError, ValueError, OSError, EOFError, RuntimeError)


def scan(path_or_url: Any, **options: Unpack[ScanOptions]) -> Group:
    """Scan an NPY file into a group with the array ``data``, or an NPZ file into one of all arrays.

    Compressed members, and arrays of Python objects, raise `UnsupportedError`.
    """
    with begin_scan(path_or_url, **options) as refusals:
        source = refusals.source
        if HeaderReader(source).take(4) == _ZIP:
            return _archive(source, refusals)
        members: dict[str, Array | Group] = {}
        with refusals.of(NAME):
            members[NAME] = _array(HeaderReader(source), source, NAME)
        return Group({}, members, skipped=refusals.reasons)


def _array(file: HeaderReader, source: Source, path: str, size: int | None = None) -> Array:
    """Return the array whose header is at the position of the file, of `size` bytes in all.

    Source: numpy.lib.format.
    """
    start = file.position
    magic = file.take(8)
    if magic[:6] != MAGIC or magic[6] not in (1, 2, 3):
        raise SourceError(f"the bytes {magic!r} begin no NPY array of a known version")
    # Version 1.0 has two bytes for the length of the header, 2.0 and 3.0 four; 3.0 is UTF-8.
    length = int.from_bytes(file.take(2 if magic[6] == 1 else 4), "little")
    if length > _HEADER_LIMIT:
        raise SourceError(f"an NPY header of {length} bytes")
    dtype, shape, order = _parse_header(file.take(length), "utf-8" if magic[6] > 2 else "latin-1")
    if size is not None:
        # A member of an archive ends before its file does: what follows is another member.
        ending = Source(source.uri, size=start + size)
        check_place(ending, file.position, shape, dtype)
    axes = fortran(len(shape)) if order else None
    return plain_array(source, file.position, dtype, shape, axes=axes, path=path)


def _parse_header(raw: bytes, encoding: str) -> tuple[np.dtype[Any], tuple[int, ...], bool]:
    try:
        # As numpy.lib.format does: the header is a Python literal, and must not be evaluated. Its
        # length is limited, as deep nesting would exhaust the stack of the parser.
        header = ast.literal_eval(raw.decode(encoding).strip())
        dtype = np.lib.format.descr_to_dtype(header["descr"])
        shape, order = tuple(header["shape"]), header["fortran_order"]
        if not isinstance(order, bool) or any(type(length) is not int for length in shape):
            raise TypeError("not what numpy writes")
    except Exception as error:  # anything may be in there
        raise SourceError(f"the NPY header is damaged: {raw[:200]!r}") from error
    return dtype, shape, order


def _archive(source: Source, refusals: Refusals) -> Group:
    raw = SeekableFile(open_file(source.location, source.fingerprint).read, source.size or 0)
    try:
        with zipfile.ZipFile(io.BufferedReader(raw, 64 * 1024)) as archive:
            entries = archive.infolist()
    except _ZIP_ERRORS as error:
        raise SourceError(f"the zip archive cannot be read: {error}") from error
    members: dict[str, Array | Group] = {}
    # Reads of a reference do not pass zipfile, which verifies CRC-32 at the end of a member: stored
    # checksums let the source verify what is read from members.
    checksums, stored, begins = MemberChecksums(), [], dict[str, int]()
    if not is_url(source.uri):
        source = replace(source, checksums=checksums)
    for entry in entries:
        name = entry.filename.removesuffix(".npy")
        with refusals.of(name):
            _check_entry(entry, name)
            if name in members:
                raise SourceError("another array has the same name")
            file = HeaderReader(source, entry.header_offset)
            # The local header repeats name and extra field with other lengths than the directory,
            # so data begin where only it can tell.
            file.seek(member_data_offset(file.take(LOCAL_HEADER_BYTES), entry))
            begins[name] = file.position
            stored.append((file.position, entry.file_size, entry.CRC))
            members[name] = _array(file, source, name, entry.file_size)
    if stored:
        checksums.add(*zip(*stored, strict=True))
    sound: dict[str, Array | Group] = {}
    for name, array in members.items():
        with refusals.of(name):
            if isinstance(array, Array) and not array.nbytes and source.checksums is not None:
                # An array without elements is never read: its checksum is verified now or never.
                open_source(source).read(begins[name], begins[name] + 1)
            sound[name] = array
    return Group({}, sound, skipped=refusals.reasons)


def _check_entry(entry: zipfile.ZipInfo, name: str) -> None:
    """Raise for members that are not uncompressed NPY files."""
    check_name(name, 2)
    if name == entry.filename:
        raise UnsupportedError("the member of the archive is no .npy file")
    if entry.compress_type != zipfile.ZIP_STORED:
        raise UnsupportedError(
            "the member of the archive is compressed (numpy.savez_compressed), so that its values "
            "have no place in the file; save it with numpy.savez"
        )
    # Of a stored member both are the same; otherwise its range would reach into the next.
    if entry.compress_size != entry.file_size:
        raise SourceError("the zip archive's directory is damaged")
