"""Report of a publication, and the counts it is made of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Counts:
    """References written so far, and how many of them are inline."""

    references: int = 0
    inlined: int = 0


@dataclass(frozen=True)
class PublishReport:
    """What was written.

    Attributes
    ----------
    path : str
        The reference file.
    zarr_format : int
        2 or 3: of all documents in it.
    why_v3 : tuple of str
        Why Zarr v2 would not do; empty where it does, or where v3 was asked for.
    arrays, groups : int
    references : int
        Chunks that the file refers to, those within it included.
    inlined : int
        Chunks within the file.
    copied : int
        Chunks that were decoded and stored again, as other readers would have read them wrong.
    copied_bytes : int
        Bytes of these.
    copied_to : str or None
        The file they are in.
    nbytes : int
        Size of the reference file.
    skipped : dict of str to str
        Arrays that were left out, by path, and why.
    notes : tuple of str
        What those who open it need to know.
    receipt : mapping
        Sources, versions, hashes, and for each array what was copied and why; it is stored with the
        references.
    page : str or None
        The page for people, with ``page=True``.
    stac : str or None
        The document of STAC, with ``stac=``.
    """

    path: str
    zarr_format: int
    why_v3: tuple[str, ...]
    arrays: int
    groups: int
    references: int
    inlined: int
    copied: int
    copied_bytes: int
    copied_to: str | None
    nbytes: int
    skipped: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    receipt: Mapping[str, Any] = field(default_factory=dict)
    page: str | None = None
    stac: str | None = None

    @property
    def copied_share(self) -> float:
        """Which part of all chunks was copied, from 0 to 1."""
        return self.copied / self.references if self.references else 0.0

    def __repr__(self) -> str:
        return self.text()

    def text(self) -> str:
        """Return what was written, line by line.

        Examples
        --------
        >>> print(PublishReport("air.json", 2, (), 3, 1, 12, 2, 0, 0, None, 2345).text())
        air.json: 2,345 bytes, Zarr v2
          3 arrays in 1 group, 12 references, 2 of them inline
        """
        inlined = f", {self.inlined:,} of them inline" if self.inlined else ""
        groups = f" in {many(self.groups, 'group')}" if self.groups else ""
        lines = [
            f"{many(self.arrays, 'array')}{groups}, {many(self.references, 'reference')}{inlined}",
        ]
        if self.copied_to:
            lines.append(
                f"{many(self.copied, 'chunk')} copied, {self.copied_bytes:,} bytes, "
                f"{self.copied_share:.2%} of all chunks, to {self.copied_to}"
            )
        if self.page:
            lines.append(f"a page for people: {self.page}")
        if self.stac:
            lines.append(f"a document of STAC: {self.stac}")
        lines += [f"v3 because: {reason}" for reason in self.why_v3]
        lines += [f"left out: {path}: {reason}" for path, reason in self.skipped.items()]
        lines += [f"note: {note}" for note in self.notes]
        # Appends to the native form count what is new: no group, and no file that is all of it.
        size = f"{self.nbytes:,} bytes, " if self.nbytes else ""
        return "\n  ".join([f"{self.path}: {size}Zarr v{self.zarr_format}", *lines])


def many(count: int, noun: str) -> str:
    """A number and a noun."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"
