"""Zip store, in one zip file.

The directory at the end of a zip file says which members it has. It is never overwritten: new
members go behind it, and behind those a new directory. So a process that dies leaves a file whose
last directory is intact, with all that it names; we look for that one, not for the end of the file.
"""

from __future__ import annotations

import io
import lzma
import os
import struct
import sys
import threading
import zipfile
import zlib
from collections.abc import Hashable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, BinaryIO, Literal, Self

from virtualzarr.config import config
from virtualzarr.errors import SourceError, SourceNotFoundError, UnsupportedError, error_context
from virtualzarr.stores.archive import MemberChecksums
from virtualzarr.stores.files import (
    Buffer,
    ByteFile,
    InlineFile,
    LocalFile,
    check_length,
    resolve_uri,
)
from virtualzarr.stores.fingerprints import Fingerprint, check_unchanged
from virtualzarr.stores.store import (
    DOCUMENTS,
    ByteRange,
    Change,
    check_key,
    list_children,
    read_only_error,
    slice_bytes,
)

_DAMAGED = (
    *(OSError, EOFError, zipfile.BadZipFile, zlib.error, lzma.LZMAError),
    *(NotImplementedError, RuntimeError),  # encrypted, or compressed in a way unknown here
    *(UnicodeDecodeError, struct.error),  # names and extra fields
)

_MEMBER = b"PK\x03\x04"
LOCAL_HEADER_BYTES = 30
"""Bytes at the beginning of each member, before its name."""

_END = b"PK\x05\x06"
_END_SIZE = 22
_DIRECTORY_RATIO = 4  # directories take at most one byte for so many others


class ZipStore:
    """A store in one zip file, written by one process and closed at the end.

    Values are stored as they are: chunks are compressed already. Replaced and deleted ones leave
    the archive's directory, but their bytes stay in the file, as do directories that were followed
    by others. A directory is written by `close`, `flush`, and behind metadata documents where much
    more was written than the last directory takes. Of a process that dies, what there was at the
    last directory is left: this store reads it, other readers may need that the file is opened
    with "a" and closed.

    Parameters
    ----------
    path : str or path
    mode : {"r", "w", "a"}
        Read; write anew; or add to what is there.

    Raises
    ------
    SourceError
        The file is not there, or not a zip file.

    Attributes
    ----------
    version : Fingerprint, optional
        Of the file that is read; none of one that is written.

    Examples
    --------
    >>> import tempfile
    >>> path = tempfile.mkdtemp() + "/a.zip"
    >>> with ZipStore(path, "w") as store:
    ...     store.set("zarr.json", b"{}")
    >>> ZipStore(path).get("zarr.json")
    b'{}'
    """

    guarantees = (
        "update excludes threads that use this very store; no other process may write to the "
        "file; others read what there was when a directory was written last, at latest by close()"
    )
    problem = (
        "the store is read-only: to write into a zip file, give a store that you close, as in "
        'with virtualzarr.stores.ZipStore(path, "a") as store'
    )

    def __init__(self, path: str | os.PathLike[str], mode: Literal["r", "w", "a"] = "r") -> None:
        self.uri = resolve_uri(path)
        self.mode = mode
        self.version: Fingerprint | None = None
        self._open()

    def _open(self) -> None:
        self._process = os.getpid()
        self._lock = threading.RLock()
        self._opening = object()
        self.checksums = MemberChecksums()  # of what was asked for by `places`
        try:
            self._zip = _open(self.uri, self.mode)
            if self.writable:
                self._behind()
                if self.mode == "w":
                    self.flush()
        except FileNotFoundError as error:
            raise SourceNotFoundError("there is no such zip file", file=self.uri) from error
        except _DAMAGED as error:
            raise SourceError(f"cannot open the zip file: {error}", file=self.uri) from error
        if not self.writable:
            self._check_version()

    def _check_version(self) -> None:
        """Note the version of the file, or refuse another one than was noted."""
        any_archive: Any = self._zip
        status = os.fstat(any_archive.fp.fileno())
        current = Fingerprint(status.st_size, status.st_mtime_ns)
        check_unchanged(self.uri, self.version, current)
        self.version = current

    def _behind(self) -> None:
        """Make the archive go on at the end of the file."""
        file: Any = self._zip.fp
        self._end = self._zip.start_dir = file.seek(0, os.SEEK_END)
        self._directory = 0

    def flush(self) -> None:
        """Write the archive's directory as it is now, and go on behind it."""
        with self._archive() as archive:
            any_archive: Any = archive
            if not self.writable or not any_archive._didModify:
                return
            any_archive.fp.seek(archive.start_dir)
            any_archive._write_end_record()
            any_archive._didModify = False
            if config.sync_files:
                os.fsync(any_archive.fp.fileno())
            start = archive.start_dir
            self._behind()
            self._directory = self._end - start

    @contextmanager
    def _archive(self) -> Iterator[zipfile.ZipFile]:
        """Lend the archive to one thread at a time.

        A process that was forked shares lock and file position with its parent: it opens its own.
        """
        if self._process != os.getpid():
            if self.writable:
                raise SourceError("the zip file is being written by another process", file=self.uri)
            self._open()
        with self._lock:
            yield self._zip

    @property
    def writable(self) -> bool:
        """Whether the file was opened to be written."""
        return self.mode != "r"

    def close(self) -> None:
        """Write the archive's directory, and close the file."""
        with self._archive() as archive:
            file = archive.fp
            if file is not None:
                self.flush()
            archive.close()
            if file is not None:
                file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __reduce__(self) -> tuple[Any, ...]:
        if self.writable:
            raise TypeError("a zip file that is being written cannot be pickled")
        return _open_version, (self.uri, self.version)

    def get(self, key: str, byte_range: ByteRange | None = None) -> bytes | None:
        """Return the value of a key, or None."""
        with self._archive() as archive:
            entry = archive.NameToInfo.get(key)
            if entry is None:
                return None
            _check_document(entry, f"{self.uri}/{key}")
            try:
                self._check_size(archive, entry)
                return slice_bytes(archive.read(entry), byte_range)
            except _DAMAGED as error:
                if not self.writable:
                    self._check_version()  # which tells more of what is wrong
                raise SourceError(str(error), file=f"{self.uri}/{key}") from error

    def _check_size(self, archive: zipfile.ZipFile, entry: zipfile.ZipInfo) -> None:
        """Refuse a member that is longer than the file, before memory is taken for it."""
        file: Any = archive.fp
        if not self.writable and entry.compress_size > os.fstat(file.fileno()).st_size:
            raise zipfile.BadZipFile("the zip archive's directory is damaged")

    def file(self, key: str) -> ByteFile | None:
        """Return the value of a key as a file, or None."""
        with self._archive() as archive:
            entry = archive.NameToInfo.get(key)
        if entry is None:
            return None
        # Members are never overwritten while the archive is open: their offsets name versions.
        return _MemberFile(self, key, entry.file_size, (self._opening, entry.header_offset))

    def places(self, keys: Iterable[str]) -> tuple[list[int], list[int]]:
        """Return where in the file the values of keys begin, and how many bytes they have.

        Raises
        ------
        UnsupportedError
            A value is compressed in the archive, or the archive is being written.
        SourceError
            The archive is damaged.
        """
        if self.writable:
            raise UnsupportedError("the zip file is being written", file=self.uri)
        with self._archive() as archive:
            entries = [archive.NameToInfo[key] for key in keys]
        compressed = next((e for e in entries if e.compress_type != zipfile.ZIP_STORED), None)
        if compressed is not None:
            raise UnsupportedError(
                f"{compressed.filename} is compressed in the archive (so that its bytes have no "
                "place in it); pack the files again without compression (zip -0)",
                file=self.uri,
            )
        with LocalFile(self.uri, self.version).open() as file, error_context(file=self.uri):
            begins = [
                member_data_offset(file.read(at := e.header_offset, at + LOCAL_HEADER_BYTES), e)
                for e in entries
            ]
        sizes = [entry.file_size for entry in entries]
        self.checksums.add(begins, sizes, (entry.CRC for entry in entries))
        return begins, sizes

    def list_dir(self, prefix: str) -> Iterator[str]:
        """Yield the names under a prefix."""
        return list_children((key for key, _ in self.list()), prefix)

    def list(self, prefix: str = "") -> Iterator[tuple[str, int]]:
        """Yield keys and sizes under a prefix."""
        start = f"{prefix}/" if prefix else ""
        with self._archive() as archive:
            entries = [*archive.NameToInfo.items()]
        for key, entry in entries:
            if key.startswith(start) and key and not key.endswith("/"):
                yield key, entry.file_size

    def set(self, key: str, data: Buffer) -> None:
        """Give a key a value."""
        check_key(key, self.uri)
        with self._archive() as archive:
            self._drop(key)
            archive.writestr(key, bytes(data))
            written = archive.start_dir - self._end
            if (
                written >= _DIRECTORY_RATIO * self._directory
                and key.rsplit("/", 1)[-1] in DOCUMENTS
            ):
                self.flush()

    def delete(self, key: str) -> None:
        """Take a key's value away, if it has one."""
        with self._archive():
            self._drop(key)

    def _drop(self, key: str) -> None:
        if not self.writable:
            raise read_only_error(self.uri)
        entry = self._zip.NameToInfo.pop(key, None)
        if entry is not None:
            self._zip.filelist = [other for other in self._zip.filelist if other is not entry]
            # The setter of `comment` makes zipfile write the directory, even if nothing is added.
            self._zip.comment = self._zip.comment

    def delete_dir(self, prefix: str) -> None:
        """Take away all keys under a prefix."""
        for key, _ in [*self.list(prefix)]:
            self.delete(key)

    def update(self, key: str, change: Change) -> None:
        """Replace a key's value by what `change` makes of it."""
        check_key(key, self.uri)
        with self._archive():
            old = self.get(key)
            new = change(old)
            if new is None:
                self.delete(key)
            elif new is not old:
                self.set(key, new)


def _open_version(path: str, version: Fingerprint) -> ZipStore:
    """Return a store over a zip file that must be of a version: who reads it has its metadata."""
    store = ZipStore.__new__(ZipStore)
    store.uri, store.mode, store.version = path, "r", version
    store._open()
    return store


def _check_document(entry: zipfile.ZipInfo, file: str) -> None:
    """Refuse large metadata that few compressed bytes unpack to."""
    name, most = entry.filename.rsplit("/", 1)[-1], config.limits.document_bytes
    if entry.compress_size < entry.file_size > most and name in DOCUMENTS:
        raise UnsupportedError(
            f"{entry.file_size} bytes of a metadata document are more than "
            f"virtualzarr.config.limits.document_bytes allows, {most}",
            file=file,
        )


def member_data_offset(header: Buffer, entry: zipfile.ZipInfo) -> int:
    """Return where a member's bytes begin, given the first `LOCAL_HEADER_BYTES` of its header.

    Raises
    ------
    SourceError
        The archive's directory points elsewhere, or the member is encrypted.
    """
    if bytes(header[:4]) != _MEMBER or entry.compress_size < entry.file_size:
        raise SourceError("the zip archive's directory points to no member")
    if entry.flag_bits & 1:
        raise UnsupportedError(f"{entry.filename} is encrypted in the archive")
    # Its name and extra fields need not be as long as in the directory.
    lengths = (int.from_bytes(header[at : at + 2], "little") for at in (26, 28))
    return entry.header_offset + LOCAL_HEADER_BYTES + sum(lengths)


def _open(path: str, mode: Literal["r", "w", "a"]) -> zipfile.ZipFile:
    """Open a zip file, also one whose last writer died."""
    end = None if mode == "w" or not os.path.exists(path) else _find_last_directory(path)
    if end is None:
        return zipfile.ZipFile(path, mode)
    raw = _TruncatedFile(path, "rb" if mode == "r" else "r+b")
    try:
        raw.limit = end
        file: Any = io.BufferedReader(raw) if mode == "r" else io.BufferedRandom(raw)
        archive: Any = zipfile.ZipFile(file, mode)
    except BaseException:
        raw.close()
        raise
    raw.limit = sys.maxsize
    # Written anew even if nothing is added: other readers look at the end of the file only.
    archive._didModify = mode == "a"
    return archive


def _find_last_directory(path: str) -> int | None:
    """Return where the last directory ends, if that is not where the file ends.

    None is also for files that have a directory of another kind, or none.
    """
    with open(path, "rb") as file:
        top = size = file.seek(0, os.SEEK_END)
        scan, after = 1 << 12, b""
        while top:
            start = max(0, top - scan)
            file.seek(start)
            part = file.read(top - start) + after
            at = len(part)
            while (at := part.rfind(_END, 0, at)) >= 0:
                end = start + at + (_end_record_length(part[at:]) or size + 1)
                if end <= size and _is_end_record(file, start + at):
                    return None if end == size else end
            # The record may lie across two steps, each four times the one before.
            top, after = start, part[: _END_SIZE - 1]
            scan = min(4 * scan, 1 << 24)
    return None


def _end_record_length(record: bytes) -> int | None:
    """Return the length of the record that ends a directory, if all of it is there."""
    if len(record) < _END_SIZE:
        return None
    return _END_SIZE + int.from_bytes(record[20:22], "little")


def _is_end_record(file: BinaryIO, at: int) -> bool:
    """Tell whether the record at a place is that of a directory of this very file.

    Chunks may be zip files, too: then it would be right with respect to their own start.
    """
    file.seek(at)
    record = file.read(_END_SIZE)
    size, offset = struct.unpack("<II", record[12:20])
    # Zip64: its record (56 bytes) and locator (20) come before, with the numbers in 8 bytes each.
    if at >= 76:
        file.seek(at - 76)
        extra = file.read(76)
        if extra[:4] == b"PK\x06\x06" and extra[56:60] == b"PK\x06\x07":
            size, offset = struct.unpack("<QQ", extra[40:56])
            at -= 76
    return bool(offset + size == at)


class _TruncatedFile(io.FileIO):
    """A file that seems to end at a limit."""

    limit = sys.maxsize

    def seek(self, offset: int, whence: int = os.SEEK_SET, /) -> int:
        """Move to a place, as seen from the limit where it is from the end."""
        if whence == os.SEEK_END and self.limit < sys.maxsize:
            return super().seek(self.limit + offset)
        return super().seek(offset, whence)

    def readinto(self, buffer: Any, /) -> int | None:
        """Read what there is before the limit."""
        view = memoryview(buffer).cast("B")
        return super().readinto(view[: max(0, self.limit - self.tell())])

    def readall(self) -> bytes:
        """Read all there is before the limit."""
        return self.read(max(0, min(self.limit, os.fstat(self.fileno()).st_size) - self.tell()))


class _MemberFile(InlineFile):
    """A value of a zip file, read when it is needed."""

    __slots__ = ("_data", "_key", "_size", "_store", "name")

    def __init__(self, store: ZipStore, key: str, size: int, name: Hashable) -> None:
        self.uri = f"{store.uri}/{key}"
        self.name = name
        self._store, self._key, self._size = store, key, size
        self._data: memoryview | None = None

    @property
    def data(self) -> memoryview:  # type: ignore[override]
        if self._data is None:
            data = self._store.get(self._key)
            if data is None:
                raise SourceNotFoundError("deleted in the meantime", file=self.uri)
            self._data = memoryview(data)
        return self._data

    def read(self, start: int, stop: int | None, limit: int | None = None) -> Buffer:
        check_length(self.uri, self._size, limit)
        return super().read(start, stop)
