"""Sources of references: foreign files, each with its fingerprint when scanned, or inline bytes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, fields, replace
from typing import Any, overload
from weakref import ref

import numpy as np
from numpy.typing import NDArray

from virtualzarr.config import config
from virtualzarr.errors import SourceChangedError, UnsupportedError
from virtualzarr.redaction import hide_in_url
from virtualzarr.stores.archive import MemberChecksums
from virtualzarr.stores.files import Fingerprint, take_fingerprint
from virtualzarr.stores.fingerprints import check_unchanged
from virtualzarr.stores.location import Location
from virtualzarr.stores.pins import READ_TWICE, Pins, check_read_once, join_pins
from virtualzarr.stores.uris import resolve_links


@dataclass(frozen=True, slots=True)
class Source:
    """One foreign file, or a heap of inline bytes.

    Parameters
    ----------
    uri : str
        Absolute path of a local file, or a URL that fsspec opens. Empty for an inline heap.
    size : int, optional
        Bytes in the file when it was scanned.
    mtime_ns : int, optional
        Modification time of a file when it was scanned, in nanoseconds: of a remote file only
        where it has no strong entity tag.
    etag : str, optional
        Entity tag of this version of the object in a remote store.
    data : bytes, optional
        The bytes themselves: an inline heap, which is just another source.
    storage_options : mapping, optional
        How fsspec opens the URL. Never compared, published or shown.
    not_after_ns : int, optional
        A date after which it must not have been modified, where nothing else is recorded.
    digest : str, optional
        Digest of samples of its bytes, where requested.
    checksums : MemberChecksums, optional
        Checksums of the members of a local zip file, compared on reading.
    redirects : tuple of str, optional
        Prefixes that redirects of the server must lead below: see `Location`.
    pins : Pins, optional
        Where the version that is read first is noted, for other arrays of the same document.

    Examples
    --------
    >>> Source("/archive/air.nc", size=1024)
    Source(uri='/archive/air.nc', size=1024, mtime_ns=None, etag=None)
    """

    uri: str
    size: int | None = None
    mtime_ns: int | None = None
    etag: str | None = None
    data: bytes | None = field(default=None, repr=False)
    storage_options: Mapping[str, Any] | None = field(default=None, repr=False, compare=False)
    checksums: MemberChecksums | None = field(default=None, repr=False, compare=False)
    not_after_ns: int | None = field(default=None, repr=False)
    digest: str | None = field(default=None, repr=False, compare=False)
    redirects: tuple[str, ...] | None = field(default=None, repr=False, compare=False)
    pins: Pins | None = field(default=None, repr=False, compare=False)
    withheld: bool = field(default=False, repr=False, compare=False)

    def __repr__(self) -> str:
        version = f"size={self.size}, mtime_ns={self.mtime_ns}, etag={self.etag!r}"
        return f"Source(uri={hide_in_url(self.uri)!r}, {version})"

    def __getstate__(self) -> tuple[Any, ...]:
        if self.pins is None or self.fingerprint.has_version:
            # Names of tasks follow from it, which are the same for the same version.
            return tuple(None if name == "pins" else getattr(self, name) for name in _FIELDS)
        read = self.pins.read_version(self.uri)
        state = tuple(getattr(self, name) for name in _FIELDS)
        return state if read is None else (*state, read)

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        for name, value in zip(_FIELDS, state, strict=False):
            object.__setattr__(self, name, value)
        if self.pins is not None and len(state) > len(_FIELDS):
            # Who reads it elsewhere, or here by a copy, reads the same version, or nothing.
            self.pins.hold({self.uri: state[-1]})

    @classmethod
    def from_file(
        cls, path_or_url: Any, storage_options: Mapping[str, Any] | None = None
    ) -> Source:
        """Take the fingerprint of a file as it is now.

        Raises
        ------
        SourceError
            If there is no such file.
        """
        location = Location.of(path_or_url, storage_options)
        return cls.at(location, take_fingerprint(location).as_recorded())

    @classmethod
    def at(cls, location: Location, fingerprint: Fingerprint) -> Source:
        """Return the file at a location, which was scanned with a fingerprint."""
        return cls(
            location.uri, fingerprint.size, fingerprint.mtime_ns, fingerprint.etag,
            storage_options=location.storage_options, not_after_ns=fingerprint.not_after_ns,
            redirects=location.redirects, withheld=location.withheld,
        )  # fmt: skip

    @classmethod
    def inline(cls, data: bytes) -> Source:
        """Return a heap of bytes that references can point into."""
        return cls("", size=len(data), data=bytes(data))

    def with_uri(self, uri: str) -> Source:
        """Return a copy of the file at another URI: its bytes are the same, its dates are not."""
        return replace(self, uri=uri, mtime_ns=None, etag=None, not_after_ns=None, checksums=None)

    def pin(self) -> None:
        """Note of which version a file is now, if none was noted, and none of it has been read."""
        if self.pins is None or self.fingerprint.has_version or not config.verify_sources:
            return
        pin = self.pins.at(self.uri)
        if pin.fingerprint is None:
            pin.check(self.uri, take_fingerprint(self.location).as_recorded())

    def with_read_version(self) -> Source:
        """Return the file with the version that was read of it, where none was noted."""
        pin = None if self.pins is None else self.pins.find(self.uri)
        check_read_once(self.uri, pin)
        read = None if pin is None else pin.fingerprint
        return self if read is None or self.fingerprint.has_version else self._with_version(read)

    def _with_version(self, version: Fingerprint) -> Source:
        size = self.size if version.size is None else version.size
        return replace(self, size=size, mtime_ns=version.mtime_ns, etag=version.etag)

    @property
    def location(self) -> Location:
        """Where the file is and how it is opened."""
        return Location(
            self.uri, self.storage_options, redirects=self.redirects, withheld=self.withheld
        )

    @property
    def fingerprint(self) -> Fingerprint:
        """The fingerprint of the file when it was scanned."""
        return Fingerprint(self.size, self.mtime_ns, self.etag, self.not_after_ns)

    def check_unchanged(self) -> None:
        """Raise `SourceChangedError` if a local file is not as it was when it was scanned.

        Of a remote file each response says of which version it is.
        """
        if not self.location.is_remote:
            check_unchanged(self.uri, self.fingerprint, take_fingerprint(self.location))

    def find_size(self) -> int:
        """Return how many bytes there are: what a scan recorded, or what the file has now.

        Raises
        ------
        UnsupportedError
            The server does not say.
        """
        size = self.size
        if size is None:
            size = take_fingerprint(self.location).size
        if size is None:
            raise UnsupportedError("the server does not say how large the file is", file=self.uri)
        return size

    @property
    def is_inline(self) -> bool:
        """Whether the bytes are here and not in a file."""
        return self.data is not None


_FIELDS = tuple(each.name for each in fields(Source))


@dataclass(frozen=True, slots=True)
class _Named:
    """Rows of a table that are made of names when they are asked for."""

    names: Sequence[str]
    make: Callable[[str], Source]

    def __len__(self) -> int:
        return len(self.names)

    def __getitem__(self, index: Any) -> Any:
        some = self.names[index]
        return self.make(some) if isinstance(some, str) else tuple(map(self.make, some))


class Sources(Sequence[Source]):
    """An immutable table of sources; references hold row numbers of it.

    Examples
    --------
    >>> Sources([Source("a.nc"), Source("b.nc")])
    Sources(2: a.nc, b.nc)
    """

    __slots__ = ("__weakref__", "_openings", "_rows")

    def __init__(self, rows: Iterable[Source] = ()) -> None:
        self._rows: tuple[Source, ...] | _Named = tuple(rows)
        self._openings: list[Pins] | None = None

    @classmethod
    def named(cls, names: Sequence[str], make: Callable[[str], Source]) -> Sources:
        """Return a table whose sources are made of names when they are asked for.

        Of a million files, a read needs a few. `make` must not fail for any of them.
        """
        sources = cls()
        sources._rows = _Named(names, make)
        return sources

    def _make_all(self) -> tuple[Source, ...]:
        rows = self._rows
        if isinstance(rows, _Named):
            rows = self._rows = rows[:]
        return rows

    @property
    def openings(self) -> list[Pins]:
        """What notes versions of files that the table has none of: one of each opening."""
        if self._openings is None:
            # All names of a document are of one.
            rows = self._rows[:1] if isinstance(self._rows, _Named) else self._rows
            found = {id(row.pins): row.pins for row in rows if row.pins is not None}
            self._openings = [*found.values()]
        return self._openings

    def __reduce__(self) -> tuple[Any, ...]:
        return Sources, (self._make_all(),)

    @overload
    def __getitem__(self, index: int) -> Source: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Source]: ...
    def __getitem__(self, index: int | slice) -> Source | Sequence[Source]:
        rows: Source | Sequence[Source] = self._rows[index]
        return rows

    def with_read_versions(self, is_used: NDArray[np.bool_] | None = None) -> Sources:
        """Return the sources with the versions that were read of those used, if none was noted."""
        noted = {}
        for row in range(len(self)) if is_used is None else np.flatnonzero(is_used).tolist():
            source = self[row]
            if source.pins is not None and (known := source.with_read_version()) is not source:
                noted[row] = known
        # Tables are large, and arrays share them: most stay the same object.
        return Sources(noted.get(i, row) for i, row in enumerate(self)) if noted else self

    def select(self, rows: NDArray[Any]) -> list[Source]:
        """Return the sources of some rows, each once and in the order of the table."""
        return [self[row] for row in np.flatnonzero(self.find_used(rows)).tolist()]

    def find_used(self, *rows: NDArray[Any]) -> NDArray[np.bool_]:
        """Tell of each source whether any of some rows is its."""
        # One entry more than there are sources: missing chunks have the row -1.
        is_used = np.zeros(len(self) + 1, bool)
        for each in rows:
            is_used[each] = True
        return is_used[:-1]

    def __len__(self) -> int:
        return len(self._rows)

    def __iter__(self) -> Iterator[Source]:
        return iter(self._make_all())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sources) and self._make_all() == other._make_all()

    def __hash__(self) -> int:
        return hash(self._make_all())

    def __repr__(self) -> str:
        rows = self._rows[:3]
        names = [hide_in_url(source.uri) or f"{source.size} inline bytes" for source in rows]
        ellipsis = ", ..." if len(self) > 3 else ""
        return f"Sources({len(self)}: {', '.join(names)}{ellipsis})"

    @staticmethod
    def merge(tables: Sequence[Sources]) -> tuple[Sources, list[NDArray[np.int32]]]:
        """Join tables into one without repeated rows.

        Returns
        -------
        sources : Sources
        remaps : list of int32 arrays
            For each table, the new row of each old row, followed by one -1, so that indexing
            with the -1 of a missing chunk gives -1 again.
        """
        if all(table is tables[0] for table in tables[1:]) and tables:
            return tables[0], [np.append(np.arange(len(tables[0])), -1).astype(np.int32)] * len(
                tables
            )
        for last in _last_merge:
            if (found := last.find(tables)) is not None:
                return found
        noted = _find_noted(tables)
        join_openings(tables)
        # Sources hash by uri and fingerprint: one file scanned in two versions stays two rows, as
        # references of the old version must not be read from the new one.
        rows: dict[Source, int] = {}
        remaps = [
            np.array([rows.setdefault(row, len(rows)) for row in table] + [-1], dtype=np.int32)
            for table in (_with_noted(table, noted) if noted else table for table in tables)
        ]
        merged = Sources(_with_pins([*rows], tables, remaps))
        _last_merge[:] = [_Merge([*map(ref, tables)], ref(merged), remaps)]
        return merged, remaps


def _find_noted(tables: Sequence[Sources]) -> dict[str, Fingerprint]:
    """Return the versions that some tables note of files, by the URIs of those that note none.

    Raises
    ------
    SourceChangedError
        Another version of one has been read by who notes none.
    """
    if not any(table.openings for table in tables):
        return {}
    rows = [row for table in tables for row in table]
    noting = [row for row in rows if _has_version(row)]
    # Of servers that tell neither tag nor date, there is nothing but this.
    sized = [row for row in rows if row.uri and row.size is not None and not _has_version(row)]
    free = [row for row in rows if row.pins is not None and not _has_version(row)]
    if not (noting or sized) or not free:
        return {}
    versions, sizes = _group_versions(noting), _group_versions(sized)
    found: dict[str, Fingerprint] = {}
    for row in free:
        path = resolve_links(row.uri)
        noted = versions.get(path) or sizes.get(path) or set()
        if len(noted) != 1:  # which of several is meant, nobody says
            continue
        (found[row.uri],) = noted
        assert row.pins is not None
        read = row.pins.find(row.uri)
        check_read_once(row.uri, read)
        if read is not None and read.fingerprint is not None:
            check_unchanged(row.uri, found[row.uri], read.fingerprint)
    return found


def _group_versions(rows: Iterable[Source]) -> dict[str, set[Fingerprint]]:
    """Return what sources note of each file, by its name without links."""
    versions: dict[str, set[Fingerprint]] = {}
    for row in rows:
        versions.setdefault(resolve_links(row.uri), set()).add(row.fingerprint)
    return versions


def _with_noted(table: Sources, noted: Mapping[str, Fingerprint]) -> Iterator[Source]:
    """Yield the sources of a table, those without a version with the one noted of their file."""
    for row in table:
        is_free = row.uri in noted and row.pins is not None and not _has_version(row)
        yield row._with_version(noted[row.uri]) if is_free else row


def _has_version(row: Source) -> bool:
    return row.mtime_ns is not None or row.etag is not None


def _with_pins(
    rows: list[Source], tables: Sequence[Sources], remaps: Sequence[NDArray[np.int32]]
) -> list[Source]:
    """Return rows that note the version that is read, where an equal one in a table does."""
    if not any(_is_free(row) for row in rows):
        return rows
    for table, remap in zip(tables, remaps, strict=True):
        for row, number in zip(table, remap.tolist(), strict=False):
            if row.pins is not None and rows[number].pins is None:
                rows[number] = row
    return rows


def _is_free(row: Source) -> bool:
    """Whether a file is read in any version."""
    return row.pins is None and row.uri != "" and not _has_version(row)


def join_openings(tables: Sequence[Sources], others: Iterable[Pins] = ()) -> None:
    """Have what several openings read be of one version of each file from now on.

    Parameters
    ----------
    tables : sequence of Sources
        Of arrays that are joined.
    others : iterable of Pins
        Those of arrays whose tables are not loaded.

    Raises
    ------
    SourceChangedError
        A file has been read in two versions.
    """
    of_tables = [pins for table in tables for pins in table.openings]
    openings = [*{id(pins): pins for pins in [*of_tables, *others]}.values()]
    if len(openings) < 2:
        return
    if read_twice := frozenset[str]().union(*(pins.read_twice for pins in openings)):
        _check_apart(tables, read_twice)
    join_pins(openings)


def _check_apart(tables: Sequence[Sources], read_twice: Set[str]) -> None:
    """Refuse files that one opening has read in two versions, and that another one has, too."""
    seen: dict[str, Pins] = {}
    for row in (row for table in tables for row in table):
        if row.pins is None or row.fingerprint.has_version:
            continue
        path = resolve_links(row.uri)
        if path in read_twice and seen.setdefault(path, row.pins) is not row.pins:
            raise SourceChangedError(READ_TWICE, file=row.uri)


@dataclass(frozen=True)
class _Merge:
    """What came of tables that were merged, as long as somebody holds it."""

    tables: list[ref[Sources]]
    merged: ref[Sources]
    remaps: list[NDArray[np.int32]]

    def find(self, tables: Sequence[Sources]) -> tuple[Sources, list[NDArray[np.int32]]] | None:
        """Return what came of the same tables; None of any others."""
        merged = self.merged()
        if merged is None or len(self.tables) != len(tables):
            return None
        same = all(one() is table for one, table in zip(self.tables, tables, strict=True))
        return (merged, self.remaps) if same else None


# All variables of the same files have the same tables, of thousands of rows each: one is enough.
_last_merge: list[_Merge] = []
