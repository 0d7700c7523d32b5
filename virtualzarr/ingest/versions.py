"""Versions of files: what tells that a file still is the one that was scanned."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from virtualzarr.errors import VirtualZarrError
from virtualzarr.stores.files import Fingerprint, is_url, take_fingerprint
from virtualzarr.stores.location import Location
from virtualzarr.stores.thread_pools import run_shared

WEAK_SECONDS = 2
"""A file that was modified so shortly before its scan may change without another time."""


@dataclass(frozen=True, slots=True)
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

    @classmethod
    def of(cls, fingerprint: Fingerprint) -> Version:
        """Return the version that a fingerprint, taken now, tells of.

        Examples
        --------
        >>> Version.of(Fingerprint(3, etag='"a"'))
        Version(size=3, tag='etag a', is_weak=False)
        """
        if fingerprint.etag is not None:
            # Servers put strong tags into quotation marks, and inventories do not.
            return cls(fingerprint.size, "etag " + fingerprint.etag.strip('"'))
        modified = fingerprint.mtime_ns
        age = None if modified is None else time.time_ns() - modified
        is_weak = age is None or age < WEAK_SECONDS * 10**9
        return cls(fingerprint.size, f"modified {modified}", is_weak)

    def is_same(self, other: Version) -> bool:
        """Tell whether two versions are one, as far as their tags say."""
        return (self.size, self.tag) == (other.size, other.tag)


def take_version(file: str, storage_options: Mapping[str, Any] | None = None) -> Version:
    """Return the version of a file as it is now. Raises `SourceError` if it cannot be reached."""
    return Version.of(take_fingerprint(Location.of(file, storage_options)))


def take_versions(
    files: Sequence[str], storage_options: Mapping[str, Any] | None = None
) -> list[Version | VirtualZarrError]:
    """Return the version of each file, or why it cannot be reached; remote ones side by side."""
    outcomes: dict[int, Version | VirtualZarrError] = {}

    def ask(number: int) -> None:
        try:
            outcomes[number] = take_version(files[number], storage_options)
        except VirtualZarrError as error:
            outcomes[number] = error

    remote = [number for number, file in enumerate(files) if is_url(file)]
    run_shared([partial(ask, number) for number in remote], remote=True)
    for number in range(len(files)):
        if number not in outcomes:
            try:
                status = os.stat(files[number])
                outcomes[number] = Version.of(Fingerprint(status.st_size, status.st_mtime_ns))
            except (OSError, ValueError):
                ask(number)  # names that are written otherwise, and what is wrong
    return [outcomes[number] for number in range(len(files))]
