"""The file of a ledger: its lock, its place, and its connection."""

from __future__ import annotations

import os
import socket
import sqlite3
import time
from contextlib import suppress
from functools import partial
from importlib import import_module
from typing import Any

from virtualzarr.errors import LedgerError, LedgerWarning, warn_caller

FORMAT = 3
"""Version of the tables."""

DAMAGE = (sqlite3.Error, UnicodeDecodeError)
"""What SQLite raises; messages may quote what is damaged, which Python then cannot decode."""

_APPLICATION = 0x565A4C44  # "VZLD"
_MAGIC = b"SQLite format 3\0"
_NETWORK = frozenset(
    ["nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "afs", "ceph", "lustre", "gpfs", "beegfs",
     "fuse.sshfs", "fuse.s3fs", "fuse.gcsfuse", "fuse.rclone", "fuse.glusterfs"]
)  # fmt: skip
_TABLES = """
CREATE TABLE run(id INTEGER PRIMARY KEY, options TEXT, scanner TEXT, UNIQUE(options, scanner));
CREATE TABLE schema(hash BLOB PRIMARY KEY, body BLOB) WITHOUT ROWID;
CREATE TABLE properties(hash TEXT PRIMARY KEY, body TEXT) WITHOUT ROWID;
CREATE TABLE batch(hash BLOB PRIMARY KEY, schema BLOB, columns BLOB);
CREATE TABLE file(
    key BLOB, run INTEGER, uri TEXT, size INTEGER, tag TEXT, weak INTEGER, batch BLOB,
    row INTEGER, nskipped INTEGER, properties TEXT, facts TEXT, error TEXT, digest BLOB,
    PRIMARY KEY(key, run)
) WITHOUT ROWID;
"""


def take_lock(path: str) -> Any:
    """Return the locked file beside a ledger that says who has it.

    Raises `LedgerError` if another process has, or the ledger lies where locks do not hold.
    """
    _check_file_system(path)
    try:
        file = open(f"{path}.lock", "a+", encoding="utf-8")  # noqa: SIM115
    except OSError as error:
        raise LedgerError(f"the ledger cannot be written: {error.strerror}", file=path) from error
    if not _try_lock(file.fileno()):
        file.seek(0)
        owner = file.read() or "another process"
        file.close()
        raise LedgerError(f"the ledger is in use by {owner}", file=path)
    file.truncate(0)
    file.write(f"process {os.getpid()} on {socket.gethostname()}")
    file.flush()
    return file


def open_ledger(path: str) -> sqlite3.Connection:
    """Return a connection to a ledger, which is created if there is none.

    A damaged one, and one of an older version, is set aside. Raises `LedgerError` for what is no
    ledger, or of a newer version.
    """
    if os.path.exists(path) and os.path.getsize(path):
        with open(path, "rb") as file:
            head = file.read(72)
        # Whatever it is: it is not ours to move.
        if not head.startswith(_MAGIC) or head[68:72] != _APPLICATION.to_bytes(4, "big"):
            raise LedgerError("the file is no ledger", file=path)
        try:
            return _connect(path)
        except DAMAGE as error:
            _set_aside(path, str(error))
    try:
        _create(path)
        return _connect(path)
    except DAMAGE as error:
        raise LedgerError(f"the ledger cannot be used: {error}", file=path) from error


def _create(path: str) -> None:
    """Put an empty ledger into place, whole: whoever is killed leaves none without tables."""
    new = f"{path}.new"
    with suppress(FileNotFoundError):
        os.unlink(new)
    connection = sqlite3.connect(new, isolation_level=None)
    try:
        connection.execute(f"PRAGMA application_id={_APPLICATION}")
        connection.execute(f"PRAGMA user_version={FORMAT}")
        connection.executescript(_TABLES)
    finally:
        connection.close()
    os.replace(new, path)


def _connect(path: str) -> sqlite3.Connection:
    connection = sqlite3.connect(path, isolation_level=None)
    # Texts that are damaged are told by their digests, like all else.
    connection.text_factory = partial(str, encoding="utf-8", errors="surrogateescape")
    try:
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("PRAGMA synchronous=NORMAL")
        # Keys are hashes: a transaction changes pages anywhere, which are copied less often so.
        connection.execute("PRAGMA wal_autocheckpoint=8000")
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        if version > FORMAT:
            raise LedgerError(
                f"the ledger is of version {version}, and this program knows {FORMAT}; "
                "take a newer one, or another ledger",
                file=path,
            )
        if version < FORMAT:
            raise sqlite3.DatabaseError(f"it is of version {version}, which is not read any more")
        problem = connection.execute("PRAGMA quick_check(1)").fetchone()[0]
        if problem != "ok":
            raise sqlite3.DatabaseError(problem)
        # No check of SQLite tells whether names of columns are those that were written.
        tables = {text for (text,) in connection.execute("SELECT sql FROM sqlite_master") if text}
        if tables != {text.strip() for text in _TABLES.split(";") if text.strip()}:
            raise sqlite3.DatabaseError("its tables are not those of a ledger")
    except BaseException:
        connection.close()
        raise
    return connection


def _set_aside(path: str, why: str) -> None:
    """Rename a ledger that is of no use, which is never mended, and warn."""
    aside = f"{path}.damaged-{time.time_ns()}"
    for end in ("", "-wal", "-shm"):
        with suppress(FileNotFoundError):
            os.replace(path + end, aside + end)
    warn_caller(
        f"the ledger {path} is damaged ({why}), and is {aside} now; a new one is begun",
        LedgerWarning,
    )


_fcntl: Any = import_module("fcntl") if os.name == "posix" else None


def _try_lock(descriptor: int) -> bool:
    """Lock an open file for this process, without waiting; tell whether that succeeded."""
    try:
        if _fcntl is not None:
            _fcntl.flock(descriptor, _fcntl.LOCK_EX | _fcntl.LOCK_NB)
        else:
            # Locked bytes cannot be read on Windows: one that is behind the text.
            os.lseek(descriptor, 1 << 20, os.SEEK_SET)
            msvcrt: Any = import_module("msvcrt")
            msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
    except OSError:
        return False
    return True


def _check_file_system(path: str) -> None:
    """Raise an error if a path is on a network file system, where the system tells."""
    kind = find_file_system(os.path.realpath(os.path.dirname(path)))
    if kind in _NETWORK:
        raise LedgerError(
            f"a ledger cannot lie on a network file system ({kind}): locks do not hold there",
            file=path,
        )


def find_file_system(folder: str) -> str | None:
    """Return the type of the file system of a folder; None where only others would know."""
    try:
        with open("/proc/self/mounts", encoding="utf-8", errors="surrogateescape") as file:
            mounts = [line.split()[1:3] for line in file]
    except OSError:  # not Linux
        return None
    inside = f"{folder.rstrip('/')}/"
    # The last mount of several over one another is the one that is seen.
    best: tuple[str, str | None] = ("", None)
    for mount, kind in mounts:
        mount = mount.replace("\\040", " ").rstrip("/") + "/"
        if inside.startswith(mount) and len(mount) >= len(best[0]):
            best = (mount, kind)
    return best[1]
