"""What was scanned against what the format's own reader reads, in a process that may crash."""

from __future__ import annotations

import contextlib
import os
import pickle
import re
import resource
import select
import signal
import sys
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any, BinaryIO

from tests.fuzz.target import failure, path_of

_SECONDS = 30.0
_NBYTES = 4 << 30
# Readers check much that means nothing for the values. A reference to what is no more has no name.
_LENIENT = re.compile(r"cannot (open|read) the file|, not None$")


def compared(name: str, raw: bytes, folder: Path) -> str:
    """Scan a file, now with the library being asked, and compare what was read with the oracle.

    Returns
    -------
    str
        What is wrong; "" if nothing is. That the oracle itself crashes or hangs is nothing.
    """
    oracle = _oracle(name)
    sys.stdout.flush()
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        os.close(reading)
        with open(writing, "wb") as file:
            _work(name, raw, folder, oracle, file)
        os._exit(0)
    os.close(writing)
    with open(reading, "rb") as file:
        found = list(_received(file))
    with contextlib.suppress(ProcessLookupError):
        os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    if not found:
        return "the process died, or came to no end, while our scanner was at work"
    return "\n".join(line for line in found if line)


def _received(file: BinaryIO) -> Iterator[str]:
    """Yield what the child says, until it ends or says nothing for long."""
    while select.select([file], [], [], _SECONDS)[0]:
        try:
            yield pickle.load(file)
        except (EOFError, pickle.UnpicklingError):
            return


def _oracle(name: str) -> Callable[[Path], Iterator[Any]]:
    """Return what compares a file, with all that it needs already in memory."""
    if name == "hdf5":
        import hdf5plugin  # noqa: F401
    oracle: Callable[[Path], Iterator[Any]] = import_module(f"tests.fidelity.{name}").check
    return oracle


def _work(
    name: str, raw: bytes, folder: Path, oracle: Callable[[Path], Iterator[Any]], file: BinaryIO
) -> None:
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 2)  # libraries complain much about damaged files
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))

    def say(what: Any) -> None:
        pickle.dump(what, file)
        file.flush()

    found = failure(name, raw, folder, library=True)
    say(found)
    if found:
        return
    resource.setrlimit(resource.RLIMIT_AS, (_NBYTES, resource.RLIM_INFINITY))
    # The oracle's errors are no concern of ours, nor are those of its comparison with nothing.
    with contextlib.suppress(Exception):
        for row in oracle(path_of(name, folder)):
            if row.outcome == "wrong" and not _LENIENT.search(row.reason):
                say(f"{row.variable}: {row.reason}")
