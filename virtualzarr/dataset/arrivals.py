"""Files that arrive in a folder: listed, and told when they have settled.

A file has settled when nobody is writing it any more, as far as that can be seen: its size and
date stay the same for some time, or it was renamed into place.
"""

from __future__ import annotations

import glob
import math
import os
import stat
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from datetime import datetime
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from virtualzarr.errors import SourceNotFoundError, UnsupportedError
from virtualzarr.stores.files import is_url, resolve_uri
from virtualzarr.stores.fsspec_connection import Connection
from virtualzarr.stores.location import Location

Facts = tuple[Any, ...]
"""Size of a file, its date in nanoseconds since 1970, and what else tells its states apart."""


def list_folder(
    folder: str, pattern: str, storage_options: Mapping[str, Any] | None = None
) -> dict[str, Facts]:
    """Return the files of a folder whose names match a pattern, hidden ones excepted.

    Parameters
    ----------
    folder : str
        As `resolve_uri` has it.
    pattern : str
        Of names below the folder; ``**`` stands for any folders in between.

    Raises
    ------
    SourceNotFoundError
        There is no such folder.
    """
    if is_url(folder):
        return _list_url(folder, pattern, storage_options)
    if not os.path.isdir(folder):
        raise SourceNotFoundError("there is no such folder to watch", file=folder)
    files: dict[str, Facts] = {}
    for name in glob.iglob(pattern, root_dir=folder, recursive=True):
        path = os.path.join(folder, name)
        # What is renamed or deleted meanwhile is none of the folder any more.
        with suppress(FileNotFoundError):
            status = os.stat(path)
            if stat.S_ISREG(status.st_mode):
                files[path] = (status.st_size, status.st_mtime_ns)
    return files


def _list_url(
    url: str, pattern: str, storage_options: Mapping[str, Any] | None
) -> dict[str, Facts]:
    if "::" in url:
        raise UnsupportedError("folders in chained URLs cannot be watched", file=url)
    connection = Connection(Location(url, storage_options))

    def list_files(system: Any) -> dict[str, Facts]:
        # A listing of before would be given again.
        system.invalidate_cache()
        matches = system.glob(f"{connection.path}/{pattern}", detail=True)
        return {
            connection.url_of(name): _facts_of(info)
            for name, info in matches.items()
            if info.get("type") == "file"
        }

    return connection.attempt(list_files, url)


def _facts_of(info: Mapping[str, Any]) -> Facts:
    """Return size, date in nanoseconds since 1970 (0 where there is none), and entity tag."""
    dates = (info.get(name) for name in ("LastModified", "mtime", "updated", "created"))
    date = next((each for each in dates if each is not None), 0)
    if isinstance(date, str):
        date = datetime.fromisoformat(date)
    seconds = date.timestamp() if isinstance(date, datetime) else date
    return (info.get("size"), int(seconds * 10**9), str(info.get("ETag", info.get("etag", ""))))


class Arrivals:
    """Files of a folder that are new, and have settled.

    Parameters
    ----------
    folder : path or URL
    pattern : str
    settle : float
        Seconds for which size and date must stay the same.
    clock : callable
        Seconds, by a clock that nobody sets: those of file systems may differ from ours.
    """

    def __init__(
        self,
        folder: str,
        pattern: str = "*",
        settle: float = 5.0,
        storage_options: Mapping[str, Any] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.folder = resolve_uri(folder).rstrip("/")
        self.pattern, self.settle, self.clock = pattern, settle, clock
        self._options = storage_options
        self._seen: dict[str, tuple[Facts, float]] = {}
        self._done: dict[str, Facts] = {}
        self._put_off: dict[str, tuple[Facts, float]] = {}
        # Filled by the thread that hears of renamed files.
        self._renamed: deque[str] = deque()

    def look(self) -> list[str]:
        """Return files that have settled and are neither done nor put off, by name."""
        now = self.clock()
        files = list_folder(self.folder, self.pattern, self._options)
        # Taken off one by one: the thread that listens may add some meanwhile.
        renamed = set()
        while self._renamed:
            renamed.add(self._renamed.popleft())
        seen = {}
        for file, facts in files.items():
            if self._done.get(file) == facts:
                continue
            before, since = self._seen.get(file, (None, now))
            # Whoever writes a file goes on changing it: it settles when its facts stay the same. A
            # file that was renamed was complete before it had the name.
            if facts != before:
                since = now
            seen[file] = (facts, now - self.settle if file in renamed else since)
        self._seen = seen
        self._done = {file: facts for file, facts in self._done.items() if file in files}
        self._put_off = {
            file: (facts, until)
            for file, (facts, until) in self._put_off.items()
            if file in seen and seen[file][0] == facts
        }
        return sorted(
            file
            for file, (_, since) in seen.items()
            if now - since >= self.settle and now >= self._put_off.get(file, ((), now))[1]
        )

    def require_folder(self) -> None:
        """Raise a `SourceNotFoundError` if there is no such folder."""
        list_folder(self.folder, self.pattern, self._options)

    def facts(self, file: str) -> Facts:
        """Return what a file was when it was looked at."""
        return self._seen[file][0]

    def finish(self, files: Iterable[str]) -> None:
        """Take files off the list, until they change."""
        for file in files:
            self._done[file] = self._seen.pop(file)[0]
            self._put_off.pop(file, None)

    def put_off(self, file: str, seconds: float) -> None:
        """Do not return a file for some time, unless it changes."""
        self._put_off[file] = (self.facts(file), self.clock() + seconds)

    def is_left_out(self, file: str) -> bool:
        """Tell whether a file was put off until it changes."""
        return self._put_off.get(file, ((), 0.0))[1] == math.inf

    @property
    def open(self) -> list[str]:
        """The files that are not done: not settled yet, or put off."""
        return sorted(self._seen)

    def delay(self) -> float | None:
        """Return in how many seconds another file will have settled; None if there is none."""
        now = self.clock()
        times = [
            max(since + self.settle, self._put_off.get(file, ((), now))[1])
            for file, (_, since) in self._seen.items()
        ]
        return max(min(times) - now, 0.0) if times else None

    def listen(self, wake: Callable[[], None]) -> AbstractContextManager[bool]:
        """Be told by the system of files that come, where it can; see `watch_events`.

        What is renamed into place from within the folder has settled at once.
        """

        def notify(renamed: str | None) -> None:
            if renamed is not None:
                self._renamed.append(renamed)
            wake()

        return watch_events(self.folder, "/" in self.pattern or "**" in self.pattern, notify)


@contextmanager
def watch_events(folder: str, recursive: bool, notify: Callable[[str | None], None]) -> Any:
    """Call a function, in another thread, when a file comes or changes; yield whether it will be.

    Without the package ``watchdog``, or for URLs, it will not: then listing has to do.
    """
    if is_url(folder) or find_spec("watchdog") is None:
        yield False
        return
    events, observers = import_module("watchdog.events"), import_module("watchdog.observers")

    class Handler(events.FileSystemEventHandler):  # type: ignore[misc, name-defined]
        def on_any_event(self, event: Any) -> None:
            if event.event_type in ("created", "closed", "moved"):
                notify(os.fspath(event.dest_path) if event.event_type == "moved" else None)

    observer = observers.Observer()
    observer.schedule(Handler(), folder, recursive=recursive)
    try:
        observer.start()
    except OSError:
        # Systems have a limit of folders that are watched; listing has none.
        yield False
        return
    try:
        yield True
    finally:
        observer.stop()
        observer.join()
