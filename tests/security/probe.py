"""Processes that open and read a hostile input, with little memory, and say what came out."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import warnings

import numpy as np

import virtualzarr as vz
import virtualzarr.formats.hdf5
from virtualzarr.errors import VirtualZarrError

MOST = 64 << 20


def limit_memory(megabytes: int) -> None:
    """Let this process take so much more than it has now."""
    import resource

    with open("/proc/self/status") as file:
        (now,) = re.findall(r"VmSize:\s*(\d+) kB", file.read())
    most = int(now) * 1024 + (megabytes << 20)
    resource.setrlimit(resource.RLIMIT_AS, (most, most))


def arrays(node, path=""):
    """Yield all arrays of a node by path."""
    if isinstance(node, vz.Array):
        yield path, node
        return
    for name, member in node.members(max_depth=None):
        if isinstance(member, vz.Array):
            yield name, member


def read(node) -> str:
    """Read all arrays, of large ones a corner; return what is in them."""
    shown = []
    for name, array in arrays(node):
        small = array.size * max(array.dtype.itemsize, 1) <= MOST
        values = array[...] if small else array[tuple(slice(0, 1) for _ in array.shape)]
        shown.append(f"{name}: {np.asarray(values).reshape(-1)[:1000].tolist()!r}")
        shown.append(repr(dict(array.attrs)))
    return "\n".join(shown)


def main(target: str, megabytes: int, reads: bool, allowed: list[str] | None) -> dict[str, object]:
    """Open and read; return the error and all that was said and read."""
    said: dict[str, object] = {"error": None, "own": True, "text": "", "values": ""}
    limit_memory(megabytes)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            node = vz.open(target, allowed=allowed)
            said["values"] = read(node) if reads else ""
        except BaseException as error:
            said["own"] = isinstance(error, VirtualZarrError)
            said["error"] = [kind.__name__ for kind in type(error).__mro__]
            said["text"] = str(error)
    said["warned"] = [str(warning.message) for warning in caught]
    return said


def serve() -> None:
    """Answer requests, a line of JSON each, in a process of its own that has all imports."""
    for line in sys.stdin:
        request = json.loads(line)
        child = os.fork()
        if child:
            _, status = os.waitpid(child, 0)
            print(json.dumps({"ended": os.waitstatus_to_exitcode(status)}), flush=True)
            continue
        os.chdir(request["folder"])
        os.environ.update(request["environment"])
        signal.alarm(request["seconds"])
        names = ("target", "megabytes", "reads", "allowed")
        print(json.dumps(main(*(request[name] for name in names))))
        sys.stdout.flush()
        os._exit(0)


if __name__ == "__main__":
    serve()
