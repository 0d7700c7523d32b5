"""Ledger of scans: an SQLite file that says what was scanned, and what came of it."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import blake2b
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from virtualzarr.batches import Batch, Row, Schema, make_batches
from virtualzarr.batches.stored import dump_batch, dump_schema, load_batch, load_schema
from virtualzarr.config import config
from virtualzarr.errors import LedgerError, LedgerWarning, VirtualZarrError, warn_caller
from virtualzarr.ingest.differences import find_difference
from virtualzarr.ingest.ledger_file import DAMAGE, open_ledger, take_lock
from virtualzarr.ingest.versions import Version
from virtualzarr.redaction import strip_secrets
from virtualzarr.stores.files import is_url

SCANNER = 5
"""Version of scans and of facts: rows of another one, or of another release, are not believed."""

AT_ONCE = 16
"""Files of one transaction, at most; with those that are read ahead, what a kill loses."""

SECONDS = 0.25
"""A file does not wait longer than this for its transaction when the next one comes."""

_ASKED_AT_ONCE = 500
_SCHEMAS = 64
_TEXTS = 4096
_BATCHES = 4


@dataclass(frozen=True, slots=True)
class Entry:
    """What the ledger has of a file.

    Attributes
    ----------
    batch, row : bytes and int, or None
        Where its scan is: the hash of a batch; None if that is not stored.
    nskipped : int
        Variables that the scan skipped.
    properties, facts : str or None
        What a survey noted: the hash of properties, which many files share, and the rest.
    error : (str, str) or None
        Kind and text of an error, which a survey noted.
    """

    batch: bytes | None
    row: int | None
    nskipped: int
    properties: str | None
    facts: str | None
    error: tuple[str, str] | None


class Ledger:
    """What was scanned with some options; the only writer of its file.

    Parameters
    ----------
    path : str
        A local file; it is created if it is not there.
    options : mapping
        What changes scans, as JSON: rows with other options are not seen.
    storage_options : mapping, optional
        How files are opened; never written.

    Raises
    ------
    LedgerError
        Another process uses it, it is no ledger or one of a newer version, or it lies on a network
        file system.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        options: Mapping[str, Any],
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        self.path = os.path.abspath(os.fspath(path))
        self._storage_options = storage_options
        self._pending: list[tuple[tuple[Any, ...], Row | None, tuple[Any, ...]]] = []
        self._began = 0.0
        self._hashes: dict[int, tuple[Schema, bytes | None]] = {}
        self._schemas: dict[bytes, Schema] = {}
        self._batches: dict[bytes, Batch] = {}
        self._texts: dict[str, None] = {}  # hashes of properties that are there
        if is_url(os.fspath(path)):
            raise LedgerError("a ledger is a local file", file=os.fspath(path))
        self._lock = take_lock(self.path)
        try:
            self._connection = open_ledger(self.path)
            with self._report_errors():
                self._run = self._find_run(json.dumps(dict(options), sort_keys=True))
        except BaseException:
            self._lock.close()
            raise

    @contextmanager
    def _report_errors(self) -> Iterator[None]:
        try:
            yield
        except DAMAGE as error:
            raise LedgerError(f"the ledger cannot be used: {error}", file=self.path) from error

    def _find_run(self, options: str) -> int:
        row = (options, f"{SCANNER} {find_release()}")
        # Rows are of these options, whatever number they are under.
        self._seed = _hash("\0".join(row).encode())
        self._connection.execute("INSERT OR IGNORE INTO run(options, scanner) VALUES(?, ?)", row)
        query = "SELECT id FROM run WHERE options=? AND scanner=?"
        number: int = self._connection.execute(query, row).fetchone()[0]
        return number

    # -- reading --------------------------------------------------------------------------------

    def find(self, uris: Sequence[str], versions: Sequence[Version | None]) -> list[Entry | None]:
        """Return what there is of versions of files; None where there is nothing."""
        entries: list[Entry | None] = [None] * len(uris)
        keys = [None if version is None or version.is_weak else _key(uri)
                for uri, version in zip(uris, versions, strict=True)]  # fmt: skip
        numbers = {key: number for number, key in enumerate(keys) if key is not None}
        damaged = []
        for *noted, digest in self._select(list(numbers)):
            key, size, tag, batch, row, nskipped, properties, facts, error = noted
            if digest != self._digest(noted):
                damaged.append(key)
                continue
            number = numbers[key]
            expected = versions[number]
            if expected is not None and (size, tag) == (expected.size, expected.tag):
                failure = None if error is None else tuple(json.loads(error))
                entries[number] = Entry(batch, row, nskipped, properties, facts, failure)
        if damaged:
            self._warn_of_damage(f"what it has of {len(damaged)} files")
        # The same file twice in a list: both are asked for.
        for number, key in enumerate(keys):
            if key is not None and numbers[key] != number:
                entries[number] = entries[numbers[key]]
        return entries

    def _select(self, keys: Sequence[bytes]) -> Iterator[tuple[Any, ...]]:
        columns = "key, size, tag, batch, row, nskipped, properties, facts, error, digest"
        for start in range(0, len(keys), _ASKED_AT_ONCE):
            some = keys[start : start + _ASKED_AT_ONCE]
            marks = ",".join("?" * len(some))
            query = f"SELECT {columns} FROM file WHERE run=? AND NOT weak AND key IN ({marks})"
            with self._report_errors():
                yield from self._connection.execute(query, [self._run, *some])

    def load(self, entry: Entry) -> Row | None:
        """Return the scan of a file; None if it is not stored, or is damaged."""
        if entry.batch is None or entry.row is None:
            return None
        try:
            if entry.batch not in self._batches:
                _shrink(self._batches, _BATCHES)
                self._batches[entry.batch] = self._load_batch(entry.batch)
            return self._batches[entry.batch].row(entry.row)
        except (VirtualZarrError, ValueError, KeyError, TypeError, IndexError) as error:
            if isinstance(error, LedgerError):
                raise
            self._warn_of_damage(f"a scan ({error})")
            # So that the next run notes its files again.
            with self._report_errors():
                self._connection.execute("DELETE FROM file WHERE batch=?", (entry.batch,))
            return None

    def _load_batch(self, batch: bytes) -> Batch:
        schema, columns = self._find_body("batch", "schema, columns", batch)
        if schema not in self._schemas:
            (body,) = self._find_body("schema", "body", schema)
            _shrink(self._schemas, _SCHEMAS)
            self._schemas[schema] = load_schema(body, self._storage_options)
        return load_batch(self._schemas[schema], columns, self._storage_options)

    def _find_body(self, table: str, columns: str, key: bytes) -> tuple[bytes, ...]:
        """Return what a table has under its hash. Raises `ValueError` if that is something else."""
        with self._report_errors():
            query = f"SELECT {columns} FROM {table} WHERE hash=?"
            row = self._connection.execute(query, (key,)).fetchone()
            if row is not None and _hash(b"".join(map(_encode, row))) == key:
                return tuple(row)
            self._connection.execute(f"DELETE FROM {table} WHERE hash=?", (key,))
        raise ValueError(f"its {table} is gone" if row is None else f"its {table} has changed")

    def _warn_of_damage(self, what: str) -> None:
        warn_caller(
            f"{what} in the ledger {self.path} is damaged; such files are scanned again",
            LedgerWarning,
        )

    def load_properties(self, hashes: Iterable[str]) -> dict[str, Any]:
        """Return properties of files by their hashes, as JSON; none that are damaged."""
        loaded = {}
        for each in set(hashes):
            with self._report_errors():
                query = "SELECT body FROM properties WHERE hash=?"
                row = self._connection.execute(query, (each,)).fetchone()
                if row is not None and _hash(_encode(row[0])).hex() == each:
                    loaded[each] = json.loads(row[0])
                    continue
                self._connection.execute("DELETE FROM properties WHERE hash=?", (each,))
                self._texts.pop(each, None)
            self._warn_of_damage("what a survey noted")
        return loaded

    # -- writing --------------------------------------------------------------------------------

    def put(
        self,
        uri: str,
        version: Version,
        row: Row | None = None,
        *,
        nskipped: int = 0,
        properties: str | None = None,
        facts: str | None = None,
        error: tuple[str, str] | None = None,
    ) -> None:
        """Note what came of a scan; it is safe from kills at the latest with the 16th after it.

        Parameters
        ----------
        row : Row, optional
            The scan; without one, only what else is given is noted.
        nskipped : int
            Variables that it skipped.
        properties, facts : str, optional
            What a survey notes: what many files share, and the rest.
        error : (str, str), optional
            Kind and text.
        """
        if not self._pending:
            self._began = time.monotonic()
        noted = None
        if properties is not None:
            noted = _hash(_encode(properties)).hex()
            if noted not in self._texts:
                with self._report_errors():
                    query = "INSERT OR IGNORE INTO properties VALUES(?, ?)"
                    self._connection.execute(query, (noted, properties))
                _shrink(self._texts, _TEXTS)
                self._texts[noted] = None
        first = (_key(uri), self._run, strip_secrets(uri), version.size, version.tag,
                 version.is_weak)  # fmt: skip
        columns = (nskipped, noted, facts, None if error is None else json.dumps(error))
        self._pending.append((first, row, columns))
        if len(self._pending) >= AT_ONCE or time.monotonic() - self._began >= SECONDS:
            self.flush()

    def flush(self) -> None:
        """Write what waits, as one transaction."""
        if not self._pending:
            return
        with self._report_errors():
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                self._write(self._pending)
            except BaseException:
                self._connection.execute("ROLLBACK")
                self._hashes.clear()  # schemas that were stored in it are gone again
                raise
            self._connection.execute("COMMIT")
        self._pending = []

    def _write(self, pending: Sequence[tuple[tuple[Any, ...], Row | None, Any]]) -> None:
        numbers = [n for n, (_, row, _) in enumerate(pending)
                   if row is not None and _is_public(row) and self._hash_schema(row)]  # fmt: skip
        places: dict[int, tuple[bytes, int]] = {}
        rows = [row for n in numbers if (row := pending[n][1]) is not None]
        for batch, members in make_batches(rows):
            key = self._hashes[id(batch.schema)][1]
            try:
                columns = dump_batch(batch)
            except VirtualZarrError:  # a source that is more than a name: scanned each time
                continue
            assert key is not None
            digest = _hash(key + columns)
            query = "INSERT OR REPLACE INTO batch VALUES(?, ?, ?)"
            self._connection.execute(query, (digest, key, columns))
            places |= {numbers[m]: (digest, k) for k, m in enumerate(members)}
        lines = []
        for n, (first, _, rest) in enumerate(pending):
            key, _, _, size, tag, _ = first
            position = places.get(n, (None, None))
            lines.append(
                (*first, *position, *rest, self._digest([key, size, tag, *position, *rest]))
            )
        self._connection.executemany(
            f"INSERT OR REPLACE INTO file VALUES({', '.join('?' * 13)})", lines
        )

    def _digest(self, noted: Sequence[Any]) -> bytes:
        """Return the digest of what is noted of a file: SQLite does not see that bits change."""
        return blake2b(repr(noted).encode(), digest_size=8, key=self._seed).digest()

    def _hash_schema(self, row: Row) -> bytes | None:
        """Return the key under which the schema of a row is stored; None if it cannot be.

        What is stored once is read back once: a schema of which not exactly the same group is made
        again is of no use.
        """
        key = id(row.schema)
        if key in self._hashes:
            # The last that was used comes last: none that a transaction needs makes room.
            self._hashes[key] = self._hashes.pop(key)
        else:
            _shrink(self._hashes, _SCHEMAS)
            self._hashes[key] = row.schema, self._store_schema(row)
        return self._hashes[key][1]

    def _store_schema(self, row: Row) -> bytes | None:
        # Signatures and passwords would be in the file.
        if any(strip_secrets(uri) != uri for uri in row.schema.list_uris()):
            return None
        try:
            body = dump_schema(row.schema)
            again = load_schema(body, self._storage_options)
        except (VirtualZarrError, ValueError, TypeError):
            return None  # of what has no form in documents: its files are scanned each time
        digest = _hash(body)
        query = "SELECT 1 FROM schema WHERE hash=?"
        if self._connection.execute(query, (digest,)).fetchone():
            return digest
        twin = Row(again, row.source, row.addresses, row.lengths, row.attributes)
        if find_difference(row.group(), twin.group()):
            return None
        self._connection.execute("INSERT INTO schema VALUES(?, ?)", (digest, body))
        return digest

    def close(self) -> None:
        """Write what waits, and let others have the ledger."""
        try:
            self.flush()
        finally:
            self._connection.close()
            self._lock.close()

    def __enter__(self) -> Ledger:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def scan_options(
    format: str | None,
    allowed: str | Iterable[str] | None,
    storage_options: Mapping[str, Any] | None,
) -> dict[str, Any]:
    """Return what changes scans, as JSON.

    Secrets are in no file, not even by a digest: options of access count by their names.
    """
    places = None if allowed is None else [allowed] if isinstance(allowed, str) else list(allowed)
    options = storage_options or {}
    client = options.get("client_kwargs") or {}
    endpoint = options.get("endpoint_url") or client.get("endpoint_url")
    return {
        "format": format,
        "allowed": places,
        "access": sorted(options),
        "endpoint": None if endpoint is None else strip_secrets(str(endpoint)),
        "inline_bytes": config.inline_bytes,
        "limits": {name: repr(value) for name, value in vars(config.limits).items()},
    }


def find_release() -> str:
    """Return which release of this package scans."""
    try:
        return version("virtualzarr")
    except PackageNotFoundError:  # used from its sources
        return "unknown"


def _is_public(row: Row) -> bool:
    return row.source is None or strip_secrets(row.source.uri) == row.source.uri


def _shrink(cache: dict[Any, Any], most: int) -> None:
    """Make room for one more: what came first goes first."""
    while len(cache) >= most:
        del cache[next(iter(cache))]


def _key(uri: str) -> bytes:
    # What is a login at some services names the file at others.
    return _hash(_encode(strip_secrets(uri, keep_often=True)))


def _encode(value: Any) -> bytes:
    """Return the bytes of a value; what is damaged may have become of any type."""
    if isinstance(value, str):
        return value.encode(errors="surrogateescape")
    return value if isinstance(value, bytes) else b""


def _hash(data: bytes) -> bytes:
    return blake2b(data, digest_size=16).digest()
