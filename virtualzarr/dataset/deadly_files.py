"""Files that end the process that scans them, found by scanning each in a worker process."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

from virtualzarr.config import config
from virtualzarr.dataset.additions import scan_addition
from virtualzarr.errors import collect_warnings
from virtualzarr.worker import Read, Worker, WorkerCrashError, serve

_TIMES = 2
"""How often a file has to end a process: one may be killed for lack of memory, or by a person."""

_SECONDS = 3600.0
"""A scan that takes as long is none that ends its process."""

_UNLIMITED = 1 << 62


def find_deadly_files(
    files: Sequence[str], dimension: str, options: Mapping[str, Any], settings: Mapping[str, Any]
) -> list[str]:
    """Return those of some files that end the process that scans them, each time.

    Parameters
    ----------
    files : sequence of str
    dimension : str
    options : mapping
        Of `scan_addition`.
    settings : mapping
        Of `virtualzarr.config`.
    """
    worker, dumps = Worker(__name__, _SECONDS), _find_dumps()

    def is_deadly(*some: str) -> bool:
        try:
            worker.ask(dumps((some, dimension, dict(options), dict(settings))))
        except WorkerCrashError:
            return True
        return False

    try:
        # A process that dies without files says nothing about them.
        if is_deadly():
            return []
        return [file for file in files if all(is_deadly(file) for _ in range(_TIMES))]
    finally:
        worker.close()


def _find_dumps() -> Callable[[Any], bytes]:
    """Return what pickles functions of a script, too, where that is installed."""
    try:
        from cloudpickle import dumps
    except ImportError:
        from pickle import dumps
    return cast(Callable[[Any], bytes], dumps)


def _scan(request: bytes, _: Read) -> bytes:
    """Scan files, whatever is wrong with them: the process is still there then."""
    # Pickled by the process that started this one.
    files, dimension, options, settings = pickle.loads(request)
    vars(config).update(settings)
    for file in files:
        with collect_warnings():
            try:
                scan_addition([file], dimension, options)
            except Exception as error:
                return repr(error).encode()
    return b""


if __name__ == "__main__":
    serve(_scan, _UNLIMITED)
