"""Power cuts: what a disk may have when the power goes, by what was synced and what was not.

The calls that change a folder are recorded. A cut after any of them leaves what was synced, and
any of the rest: names that came, went or changed, each or not; files that are empty, cut off, or
whole.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock


@dataclass
class File:
    """Bytes of a file, and whether they are on the disk."""

    data: bytes
    is_synced: bool = False


@dataclass
class Disk:
    """Names as the disk has them, and changes of names by folder that it may have."""

    names: dict[str, File] = field(default_factory=dict)
    folders: set[str] = field(default_factory=set)
    pending: dict[str, list[tuple[str, str, File | None]]] = field(default_factory=dict)
    current: dict[str, File] = field(default_factory=dict)

    def change(self, kind: str, path: str, file: File | None = None) -> None:
        """Give a name to a file or folder, or take it away, as far as memory goes."""
        self.pending.setdefault(os.path.dirname(path), []).append((kind, path, file))
        if kind == "name":
            assert file is not None
            self.current[path] = file
        elif kind == "unname":
            self.current.pop(path, None)

    def apply(self, kind: str, path: str, file: File | None) -> None:
        """Do a change of a name on the disk."""
        if kind == "folder":
            self.folders.add(path)
        elif kind == "name":
            assert file is not None
            self.names[path] = file
        else:
            self.names.pop(path, None)

    def run(self, event: tuple[Any, ...]) -> None:
        """Do what a call does."""
        kind, path, *more = event
        if kind == "write":
            self.change("name", path, File(more[0]))
        elif kind == "sync":
            self.current[path].is_synced = True
        elif kind == "rename":
            file = self.current[path]
            self.change("name", more[0], file)
            self.change("unname", path)
        elif kind == "link":
            self.change("name", more[0], self.current[path])
        elif kind == "unlink":
            self.change("unname", path)
        elif kind == "mkdir":
            self.change("folder", path)
        else:
            assert kind == "sync folder", kind
            for change in self.pending.pop(path, []):
                self.apply(*change)

    def cut(self, chance: random.Random, root: str, target: Path) -> None:
        """Write what is left, if the power goes now, to another folder."""
        share = chance.choice([0.0, 0.5, 0.5, 1.0])
        for changes in self.pending.values():
            for change in changes:
                if chance.random() < share:
                    self.apply(*change)
        for path, file in self.names.items():
            folder = os.path.dirname(path)
            # Everything is lost below a folder that is.
            while folder != root and folder in self.folders:
                folder = os.path.dirname(folder)
            if folder != root:
                continue
            left = file.data
            if not file.is_synced:
                left = left[: chance.choice([0, len(left) // 2, len(left)])]
            new = target / os.path.relpath(path, root)
            new.parent.mkdir(parents=True, exist_ok=True)
            new.write_bytes(left)


@contextmanager
def record_calls(root: Path) -> Iterator[list[tuple[Any, ...]]]:
    """Record calls that change a folder; what was written to a file, when it is synced or named."""
    events: list[tuple[Any, ...]] = []
    written: set[str] = set()

    def is_inside(path: Any) -> bool:
        return os.fspath(path).startswith(f"{root}/")

    def write(path: str) -> None:
        if path not in written:
            written.add(path)
            events.append(("write", path, Path(path).read_bytes()))

    def fsync(descriptor: int) -> None:
        path = os.readlink(f"/proc/self/fd/{descriptor}")
        if os.path.isdir(path):
            events.append(("sync folder", path))
        elif is_inside(path):
            write(path)
            events.append(("sync", path))

    def rename(source: Any, target: Any) -> None:
        if is_inside(source):
            write(os.fspath(source))
            events.append(("rename", os.fspath(source), os.fspath(target)))
            written.discard(os.fspath(source))
        real["replace"](source, target)

    def link(source: Any, target: Any) -> None:
        real["link"](source, target)
        if is_inside(source):
            write(os.fspath(source))
            events.append(("link", os.fspath(source), os.fspath(target)))

    def unlink(path: Any, *arguments: Any, **options: Any) -> None:
        real["unlink"](path, *arguments, **options)
        if is_inside(path):
            events.append(("unlink", os.fspath(path)))

    def mkdir(path: Any, *arguments: Any, **options: Any) -> None:
        real["mkdir"](path, *arguments, **options)
        if is_inside(path):
            events.append(("mkdir", os.fspath(path)))

    real = {name: getattr(os, name) for name in ("replace", "link", "unlink", "mkdir")}
    with (
        mock.patch("os.fsync", fsync),
        mock.patch("os.replace", rename),
        mock.patch("os.link", link),
        mock.patch("os.unlink", unlink),
        mock.patch("os.mkdir", mkdir),
    ):
        yield events
