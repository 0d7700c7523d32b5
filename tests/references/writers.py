"""A process that writes references: it starts when told, dawdles where told, or dies where told.

Run as ``python -m tests.references.writers``, with what it is to do as JSON in the first argument:

target, files, dim
    What is appended, file by file.
ready, go
    A file that it makes when it could begin, and one that it waits for.
pause
    Seconds for which it waits between having read what is there and writing.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import virtualzarr as vz
from virtualzarr.errors import VirtualZarrError

LIMIT = 60


def wait_for(path):
    """Wait until a file is there."""
    end = time.monotonic() + LIMIT
    while not os.path.exists(path):
        if time.monotonic() > end:
            raise TimeoutError(path)
        time.sleep(0.002)


def start(**task):
    """Start a process."""
    command = [sys.executable, "-m", "tests.references.writers", json.dumps(task, default=str)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def said(process):
    """Wait for a process, and return what it says of each file: "ok" or an error."""
    out, errors = process.communicate(timeout=2 * LIMIT)
    assert process.returncode == 0, errors
    return json.loads(out)


def dawdle(seconds):
    """Wait before anything is written, whatever form the references have."""
    from virtualzarr.references import portable_form
    from virtualzarr.references.native import append as native_append

    def slow(module, name):
        real = getattr(module, name)

        def waiting(*args, **options):
            result = real(*args, **options)
            time.sleep(seconds)
            return result

        setattr(module, name, waiting)

    slow(portable_form, "make_plan")
    slow(native_append, "concat")


def die_at(count, folder):
    """Kill this process before the count-th change of a folder's files; return what counts them."""
    left = count
    writing = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC

    def hook(event, args):
        nonlocal left
        if event not in ("open", "os.rename", "os.remove", "os.mkdir", "os.chmod", "os.rmdir"):
            return
        if event == "open" and not (isinstance(args[2], int) and args[2] & writing):
            return
        if isinstance(args[0], str) and args[0].startswith(str(folder)):
            left -= 1
            if left < 0:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(hook)
    return lambda: count - left


def fork(work):
    """Do something in a process of its own; return how that ended: 0, or minus a signal."""
    pid = os.fork()
    if pid == 0:
        try:
            work()
        except BaseException as error:
            print(repr(error), file=sys.stderr)
            os._exit(1)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def main(task):
    """Append files, and print what came of each."""
    if task.get("pause"):
        dawdle(task["pause"])
    if "ready" in task:
        Path(task["ready"]).touch()
        wait_for(task["go"])
    results = []
    for file in task["files"]:
        try:
            report = vz.append(task["target"], file, task["dim"])
            results.append("ok" if report is not None else "there already")
        except VirtualZarrError as error:
            results.append(f"{type(error).__name__}: {error}")
    print(json.dumps(results))


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
