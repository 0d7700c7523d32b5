"""Ledger of scans: an SQLite file that says what was scanned, and what came of it."""

from __future__ import annotations

import json
import os
import socket
import sqlite3
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from hashlib import blake2b
from importlib import import_module
from types import TracebackType
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

from virtualzarr.archive.facts import FileFacts, digest_json
from virtualzarr.errors import LedgerError, LedgerWarning, warn_caller
from virtualzarr.stores.files import is_url

SCANNER = 1
"""Version of scans and of facts: rows of another one are not believed."""

FORMAT = 1
"""Version of the tables."""

AT_ONCE = 25
"""Files of one transaction, at most; what a process that is killed loses."""

SECONDS = 0.25
"""A transaction is not longer open than this when the next file comes."""

_APPLICATION = 0x565A4C44  # "VZLD"
_MAGIC = b"SQLite format 3\0"
_NETWORK = frozenset(
    ["nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "afs", "ceph", "lustre", "gpfs", "beegfs",
     "fuse.sshfs", "fuse.s3fs", "fuse.gcsfuse", "fuse.rclone", "fuse.glusterfs"]
)  # fmt: skip
_SECRETS = ("sig", "se", "sp", "sv", "sr", "st", "token", "awsaccesskeyid", "signature", "expires",
            "googleaccessid", "key", "access_token", "policy", "key-pair-id")  # fmt: skip
_TABLES = """
CREATE TABLE run(id INTEGER PRIMARY KEY, options TEXT, scanner INTEGER, UNIQUE(options, scanner));
CREATE TABLE schema(hash TEXT PRIMARY KEY, s TEXT, m TEXT, c TEXT, body TEXT) WITHOUT ROWID;
CREATE TABLE file(
    key BLOB, run INTEGER, uri TEXT, size INTEGER, tag TEXT, weak INTEGER, schema TEXT,
    facts TEXT, error TEXT, PRIMARY KEY(key, run)
) WITHOUT ROWID;
"""


@dataclass(frozen=True)
class Version:
    """Which version of a file was scanned.

    Parameters
    ----------
    size : int or None
    tag : str
        Its entity tag, or else its modification time.
    is_weak : bool
        Whether the file may have been changed since without another tag.
    """

    size: int | None
    tag: str
    is_weak: bool = False


@dataclass(frozen=True)
class Outcome:
    """What came of a scan: facts, or else the kind and the text of an error."""

    facts: FileFacts | None
    error: tuple[str, str] | None = None


class Ledger:
    """What was scanned with some options; the only writer of its file.

    Parameters
    ----------
    path : str
        A local file; it is created if it is not there.
    options : mapping
        What changes scans, as JSON: rows with other options are not seen.

    Attributes
    ----------
    nreused : int
        Files that were not scanned again.

    Raises
    ------
    LedgerError
        Another process uses it, it is no ledger or one of a newer version, or it lies on a network
        file system.
    """

    def __init__(self, path: str | os.PathLike[str], options: Mapping[str, Any]) -> None:
        self.path = os.path.abspath(os.fspath(path))
        self.nreused = 0
        if is_url(os.fspath(path)):
            raise LedgerError("a ledger is a local file", file=os.fspath(path))
        _check_file_system(self.path)
        self._lock = self._take_lock()
        try:
            self._connection = self._open()
            with self._report_errors():
                self._run = self._find_run(digest_json(dict(options)))
        except BaseException:
            self._lock.close()
            raise
        self._npending, self._began = 0, 0.0

    def _take_lock(self) -> Any:
        """Return the locked file that says who has the ledger."""
        try:
            file = open(f"{self.path}.lock", "a+", encoding="utf-8")  # noqa: SIM115
        except OSError as error:
            raise LedgerError(
                f"the ledger cannot be written: {error.strerror}", file=self.path
            ) from error
        if not _try_lock(file.fileno()):
            file.seek(0)
            owner = file.read() or "another process"
            file.close()
            raise LedgerError(f"the ledger is in use by {owner}", file=self.path)
        file.truncate(0)
        file.write(f"process {os.getpid()} on {socket.gethostname()}")
        file.flush()
        return file

    def _open(self) -> sqlite3.Connection:
        if os.path.exists(self.path) and os.path.getsize(self.path):
            with open(self.path, "rb") as file:
                head = file.read(72)
            # Whatever it is: it is not ours to move.
            if not head.startswith(_MAGIC) or head[68:72] != _APPLICATION.to_bytes(4, "big"):
                raise LedgerError("the file is no ledger", file=self.path)
            try:
                return self._connect()
            except sqlite3.DatabaseError as error:
                self._set_aside(str(error))
        with self._report_errors():
            self._create()
            return self._connect()

    def _create(self) -> None:
        """Put an empty ledger into place, whole: whoever is killed leaves none without tables."""
        new = f"{self.path}.new"
        with suppress(FileNotFoundError):
            os.unlink(new)
        connection = sqlite3.connect(new, isolation_level=None)
        try:
            connection.execute(f"PRAGMA application_id={_APPLICATION}")
            connection.execute(f"PRAGMA user_version={FORMAT}")
            connection.executescript(_TABLES)
        finally:
            connection.close()
        os.replace(new, self.path)

    def _connect(self) -> sqlite3.Connection:
        connection = sqlite3.connect(self.path, isolation_level=None)
        try:
            connection.execute("PRAGMA journal_mode=WAL")
            connection.execute("PRAGMA synchronous=NORMAL")
            (version,) = connection.execute("PRAGMA user_version").fetchone()
            if version > FORMAT:
                raise LedgerError(
                    f"the ledger is of version {version}, and this program knows {FORMAT}; "
                    "take a newer one, or another ledger",
                    file=self.path,
                )
            if version:
                problem = connection.execute("PRAGMA quick_check(1)").fetchone()[0]
                if problem != "ok":
                    raise sqlite3.DatabaseError(problem)
        except BaseException:
            connection.close()
            raise
        return connection

    def _set_aside(self, why: str) -> None:
        """Rename a damaged ledger, which is never mended, and warn."""
        aside = f"{self.path}.damaged-{time.time_ns()}"
        for end in ("", "-wal", "-shm"):
            with suppress(FileNotFoundError):
                os.replace(self.path + end, aside + end)
        warn_caller(
            f"the ledger {self.path} is damaged ({why}), and is {aside} now; a new one is begun",
            LedgerWarning,
        )

    @contextmanager
    def _report_errors(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise LedgerError(f"the ledger cannot be used: {error}", file=self.path) from error

    def _find_run(self, options: str) -> int:
        row = (options, SCANNER)
        self._connection.execute("INSERT OR IGNORE INTO run(options, scanner) VALUES(?, ?)", row)
        query = "SELECT id FROM run WHERE options=? AND scanner=?"
        number: int = self._connection.execute(query, row).fetchone()[0]
        return number

    def find(self, uri: str, version: Version) -> Outcome | None:
        """Return what came of a scan of this version of a file; None if there was none."""
        if version.is_weak:
            return None
        query = (
            "SELECT facts, body, error FROM file LEFT JOIN schema ON schema.hash = file.schema "
            "WHERE key=? AND run=? AND size IS ? AND tag=? AND NOT weak"
        )
        with self._report_errors():
            row = (_key(uri), self._run, version.size, version.tag)
            stored = self._connection.execute(query, row).fetchone()
        if stored is None:
            return None
        self.nreused += 1
        facts, body, error = stored
        if error is not None:
            kind, text = json.loads(error)
            return Outcome(None, (kind, text))
        format, axes, digest = json.loads(facts)
        return Outcome(FileFacts(format, json.loads(body), axes, digest))

    def put(self, uri: str, version: Version, outcome: Outcome) -> None:
        """Note what came of a scan; it is safe from kills at the latest with the 25th after it."""
        facts, schema = outcome.facts, None
        with self._report_errors():
            if not self._npending:
                self._connection.execute("BEGIN")
                self._began = time.monotonic()
            if facts is not None:
                schema = digest_json(facts.properties)
                row = (schema, *facts.fingerprints(), json.dumps(facts.properties))
                self._connection.execute("INSERT OR IGNORE INTO schema VALUES(?, ?, ?, ?, ?)", row)
            self._connection.execute(
                "INSERT OR REPLACE INTO file VALUES(?, ?, ?, ?, ?, ?, ?, ?, ?)",
                (
                    _key(uri), self._run, strip_secrets(uri), version.size, version.tag,
                    version.is_weak, schema,
                    None if facts is None else json.dumps([facts.format, facts.axes, facts.digest]),
                    None if outcome.error is None else json.dumps(outcome.error),
                ),
            )  # fmt: skip
            self._npending += 1
            if self._npending >= AT_ONCE or time.monotonic() - self._began >= SECONDS:
                self.flush()

    def flush(self) -> None:
        """End the transaction."""
        if self._npending:
            with self._report_errors():
                self._connection.execute("COMMIT")
            self._npending = 0

    def close(self) -> None:
        """End the transaction, and let others have the ledger."""
        try:
            self.flush()
        finally:
            self._connection.close()
            self._lock.close()

    def __enter__(self) -> Ledger:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


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


def _key(uri: str) -> bytes:
    return blake2b(strip_secrets(uri).encode(errors="surrogateescape"), digest_size=16).digest()


def strip_secrets(uri: str) -> str:
    """Return a URI without user, password and signatures.

    Examples
    --------
    >>> strip_secrets("https://me:secret@host/a.nc?version=2&X-Amz-Signature=ab&sig=c")
    'https://host/a.nc?version=2'
    """
    if not is_url(uri):
        return uri
    parts = urlsplit(uri)
    query = [
        (name, value)
        for name, value in parse_qsl(parts.query, keep_blank_values=True)
        if name.lower() not in _SECRETS and not name.lower().startswith(("x-amz-", "x-goog-"))
    ]
    host = parts.netloc.rpartition("@")[2]
    return urlunsplit((parts.scheme, host, parts.path, urlencode(query), ""))


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
