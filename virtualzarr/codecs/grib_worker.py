"""ecCodes in a process of its own, for packings and grids whose numbers cannot be checked before.

ecCodes ends the process where they are wrong.
"""

from __future__ import annotations

import os
import select
import struct
import subprocess
import sys
import threading
from typing import IO

import numpy as np
from numpy.typing import NDArray

from virtualzarr.codecs.base import Buffer
from virtualzarr.errors import CodecError

TIMEOUT = 60.0
WHAT = ("values", "latitudes", "longitudes")
_MEMORY = 16 << 30

_lock = threading.Lock()
_running: list[subprocess.Popen[bytes]] = []

if hasattr(os, "register_at_fork"):
    # Its pipes are the parent's.
    os.register_at_fork(after_in_child=_running.clear)


def apart(message: Buffer, what: str, size: int) -> NDArray[np.float64]:
    """Return numbers that ecCodes calculates of a message, in a process of its own.

    Parameters
    ----------
    message : bytes
    what : str
        "values", "latitudes" or "longitudes".
    size : int
        How many there must be.

    Raises
    ------
    CodecError
        ecCodes finds something wrong with it, or crashes, or does not end.
    """
    with _lock:
        worker = _running[0] if _running else _start()
        try:
            return _ask(worker, message, WHAT.index(what), size)
        except (OSError, EOFError) as error:
            _running.clear()
            worker.kill()
            worker.communicate()
            raise CodecError(f"ecCodes crashed: the message is damaged ({error})") from error


def _start() -> subprocess.Popen[bytes]:
    worker = subprocess.Popen(
        [sys.executable, "-m", __name__],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )
    _running.append(worker)
    return worker


def _ask(
    worker: subprocess.Popen[bytes], message: bytes, what: int, size: int
) -> NDArray[np.float64]:
    assert worker.stdin is not None
    assert worker.stdout is not None
    worker.stdin.write(struct.pack("<BQQ", what, len(message), size))
    worker.stdin.write(message)
    worker.stdin.flush()
    ready, _, _ = select.select([worker.stdout], [], [], TIMEOUT)
    if not ready:
        raise EOFError(f"no answer for {TIMEOUT:.0f} s")
    wrong, length = struct.unpack("<?Q", _exactly(worker.stdout, 9))
    answer = _exactly(worker.stdout, length)
    if wrong:
        raise CodecError(answer.decode("utf-8", "replace"))
    return np.frombuffer(answer, "<f8").astype(np.float64)


def _exactly(file: IO[bytes], count: int) -> bytes:
    data = file.read(count)
    if len(data) != count:
        raise EOFError("the process has ended")
    return data


def main(source: IO[bytes], sink: IO[bytes]) -> None:
    """Answer until the other side has closed."""
    from virtualzarr.codecs.grib import located, values_of

    _limit_memory()
    while True:
        head = source.read(17)
        if len(head) < 17:
            return
        what, length, size = struct.unpack("<BQQ", head)
        message = source.read(length)
        answer: bytes
        try:
            found = located(message, WHAT[what], size) if what else values_of(message, size)
            wrong, answer = False, found.astype("<f8").tobytes()
        except CodecError as error:
            wrong, answer = True, error.message.encode()
        sink.write(struct.pack("<?Q", wrong, len(answer)))
        sink.write(answer)
        sink.flush()


def _limit_memory() -> None:
    """Let what claims too much fail here, where systems have such a limit."""
    try:
        import resource
    except ImportError:
        return
    _, most = resource.getrlimit(resource.RLIMIT_AS)
    if most == resource.RLIM_INFINITY or most > _MEMORY:
        resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, most))


if __name__ == "__main__":
    main(sys.stdin.buffer, sys.stdout.buffer)
