"""Catalogue: the datasets that are served, each at its newest version or at an older one."""

from __future__ import annotations

import logging
import os
import re
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any, Literal

from virtualzarr.array import Array
from virtualzarr.dataset.version import DatasetVersion
from virtualzarr.errors import VirtualZarrError
from virtualzarr.hierarchy.group import Group
from virtualzarr.ingest.detect import detect
from virtualzarr.ingest.open_target import open
from virtualzarr.serve.codecs import FACES, FaceName
from virtualzarr.serve.face import Face, make_faces
from virtualzarr.stores.files import Fingerprint, Location, resolve_uri, take_fingerprint
from virtualzarr.stores.fingerprints import differences
from virtualzarr.stores.lru_cache import LRUCache
from virtualzarr.stores.uris import parse_url

_log = logging.getLogger(__name__)

Follow = Literal["append", "all", "none"]
"""Which commits unpinned URLs follow."""

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
RESERVED = frozenset(["healthz", "metrics", *FACES])

_PINNED = 16
"""Older versions that are kept open."""

_HARMLESS = frozenset(["merge", "compact", "tag", "delete tag", "vacuum", "attributes"])
"""Verbs of commits after which all rows are where they were, with the same values."""


@dataclass(frozen=True)
class Snapshot:
    """A dataset as it is served at one version.

    Attributes
    ----------
    node : Group or Array
    faces : dict of Face by name
    skipped : dict of str by name of the face
        Why there are not more faces.
    version : int, optional
        Of a dataset with versions.
    source : DatasetVersion, optional
    """

    node: Group | Array
    faces: dict[str, Face]
    skipped: dict[str, str]
    version: int | None = None
    source: DatasetVersion | None = None


@dataclass
class Entry:
    """A dataset of the catalogue.

    Parameters
    ----------
    name : str
        In URLs; empty for the only one without a name.
    target : path, URL, Group or Array
    options : mapping
        How it is opened, as for `virtualzarr.open`.
    follow : {"append", "all", "none"}

    Attributes
    ----------
    snapshot : Snapshot
        What URLs without a version give.
    held_back : int, optional
        A newer version, which does not just append.
    """

    name: str
    target: Any
    options: Mapping[str, Any] = field(default_factory=dict)
    follow: Follow = "append"
    faces: Sequence[FaceName] = FACES

    def __post_init__(self) -> None:
        self.held_back: int | None = None
        self._pinned: LRUCache[int, Snapshot] = LRUCache(_PINNED)
        self._lock = threading.Lock()
        # Before it is opened: what comes in between is seen by the next look.
        self._file = self._take_fingerprint()
        self.snapshot = self._open()

    @property
    def has_versions(self) -> bool:
        """Whether it is a dataset with versions."""
        return self.snapshot.source is not None

    @property
    def is_watched(self) -> bool:
        """Whether `refresh` may find something new."""
        return self.follow != "none" and (self.has_versions or self._file is not None)

    def _take_fingerprint(self) -> Fingerprint | None:
        """Return the fingerprint of a target that is one file, such as of references."""
        if not isinstance(self.target, str | os.PathLike):
            return None
        uri = resolve_uri(self.target)
        if os.path.isdir(uri):
            return None
        try:
            return take_fingerprint(Location(uri, self.options.get("storage_options")))
        except VirtualZarrError:
            return None

    def _open(self) -> Snapshot:
        if isinstance(self.target, Group | Array):
            return self._make(self.target)
        access = self._access
        which: dict[str, Any] = {name: self.options.get(name) for name in ("version", "at", "tag")}
        if any(value is not None for value in which.values()):
            self.follow = "none"
        format = self.options.get("format")
        if (format or self._detect()) == "dataset":
            source = DatasetVersion(self.target, **access, **which)
            return self._make(source.group, source)
        options: dict[str, Any] = {"on_error": "warn", "format": format, **access, **which}
        return self._make(open(self.target, **options))

    @property
    def _access(self) -> dict[str, Any]:
        return {name: self.options.get(name) for name in ("storage_options", "allowed")}

    def _detect(self) -> str | None:
        if not isinstance(self.target, str | os.PathLike):
            return None
        return detect(os.fspath(self.target), self.options.get("storage_options"))

    def _make(
        self,
        node: Group | Array,
        source: DatasetVersion | None = None,
        earlier: Mapping[str, Face] | None = None,
    ) -> Snapshot:
        growing = None if source is None else source.dimension
        faces, skipped = make_faces(node, self.faces, earlier, growing)
        for name, why in skipped.items():
            _log.warning("%s: there is no face %s: %s", self.name or "/", name, why)
        for name, face in faces.items():
            for path, why in face.skipped.items():
                _log.warning("%s: %s is not in %s: %s", self.name or "/", path, name, why)
        return Snapshot(node, faces, skipped, None if source is None else source.version, source)

    def recall(self, version: int | None) -> Snapshot | None:
        """Return what URLs with a version, or without, give now; None if it is not open."""
        if version is None:
            return self.snapshot
        pinned: Snapshot | None = self._pinned.get(version)
        return pinned

    def at_version(self, version: int) -> Snapshot | None:
        """Return the dataset at a version; None if there is no such one."""
        if not self.has_versions:
            return None
        snapshot: Snapshot | None = self._pinned.get(version)
        if snapshot is None:
            try:
                # It may be newer than the one that other URLs follow.
                source = DatasetVersion(self.target, version=version, **self._access)
                snapshot = self._make(source.group, source)
            except (VirtualZarrError, IndexError, KeyError) as error:
                _log.info("%s: version %d cannot be opened: %s", self.name or "/", version, error)
                return None
            self._pinned.put(version, snapshot)
        return snapshot

    def refresh(self) -> None:
        """Go on to the newest version, if what came is what is followed."""
        current = self.snapshot.source
        if self.follow == "none":
            return
        with self._lock:
            if current is None:
                self._refresh_file()
                return
            newest = current.refresh()
            if newest.version == current.version:
                return
            if self.follow == "append" and not is_append(current, newest):
                if self.held_back != newest.version:
                    _log.warning(
                        "%s: stays at version %d, as version %d does more than append; start the "
                        "server again, or use URLs with @version", self.name or "/",
                        current.version, newest.version,
                    )  # fmt: skip
                self.held_back = newest.version
                return
            self.snapshot = self._make(newest.group, newest, self.snapshot.faces)
            self.held_back = None
            _log.info("%s: now at version %d", self.name or "/", newest.version)

    def _refresh_file(self) -> None:
        """Open a file again that was replaced, if everything is followed; else say that it was."""
        taken = self._take_fingerprint()
        if self._file is None or taken is None or not differences(self._file, taken):
            return
        if self.follow == "all":
            opened = self._open()
            # Only what is certainly whole: a file that is being written fails, or changes again.
            self.snapshot, self._file = opened, taken
            _log.info("%s: the file was replaced, and opened again", self.name or "/")
            return
        self._file = taken
        _log.warning(
            "%s: the file was replaced: what is served is what it was; start the server again, or "
            "let it follow everything", self.name or "/",
        )  # fmt: skip


def is_append(old: DatasetVersion, new: DatasetVersion) -> bool:
    """Tell whether all rows of a version are at the beginning of a later one, with their values."""
    verbs = [each.about.get("verb") for each in new.history(old.version + 1, new.version + 1)]
    if len(verbs) == new.version - old.version and _HARMLESS.issuperset(verbs):
        return True
    # Rows have ids, which are of the same values in every version; those that are replaced, or
    # folded into other chunks, get others.
    rows = old.read_runs()
    return bool(
        old.dimension == new.dimension and new.read_runs().slice(0, len(rows)).pairs == rows.pairs
    )


def name_targets(targets: Iterable[str]) -> dict[str, str]:
    """Return targets by the names they have in URLs: ``NAME=TARGET``, or named by what they are.

    Raises
    ------
    ValueError
        A name is not one, or there are two of it.

    Examples
    --------
    >>> name_targets(["a/air.json"]), name_targets(["a/air.json", "sea=s3://b/c.nc"])
    ({'': 'a/air.json'}, {'air': 'a/air.json', 'sea': 's3://b/c.nc'})
    """
    listed = list(targets)
    named: dict[str, str] = {}
    for text in listed:
        name, equals, target = text.partition("=")
        if not (equals and NAME.fullmatch(name)):
            name, target = "" if len(listed) == 1 else _name_of(text), text
        if name in named:
            raise ValueError(f"two targets have the name {name!r}; give others: NAME=TARGET")
        named[name] = target
    check_names(named)
    return named


def check_names(names: Iterable[str]) -> None:
    """Raise ValueError for a name that no URL can have."""
    names = list(names)
    for name in names:
        if name == "" and len(names) == 1:
            continue
        if not NAME.fullmatch(name) or name in RESERVED:
            raise ValueError(
                f"{name!r} cannot be a name in URLs; give one of letters, digits, '.', '_' and "
                "'-', that begins with a letter or digit and is no face: NAME=TARGET"
            )


def _name_of(target: str) -> str:
    path = PurePosixPath(parse_url(target).path.rstrip("/") if "://" in target else target)
    return re.sub("[^A-Za-z0-9._-]+", "-", path.name.split(".")[0]).strip("-._")


def make_catalogue(
    targets: Mapping[str, Any],
    options: Mapping[str, Any],
    follow: Follow,
) -> dict[str, Entry]:
    """Open all datasets, by name."""
    check_names(targets)
    return {name: Entry(name, target, options, follow) for name, target in targets.items()}
