"""Random reads through the disk cache: files are replaced, servers fail, blocks are damaged.

Every cell of a file has the number of its version, and all versions of a file are equally long, so
that a mixture shows. What is opened gives the version that was scanned, or an error once there is
another; what is read anew gives the current one.
"""

import os
import random
import subprocess
import sys
import threading
import time
from collections import Counter
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

import virtualzarr as vz
from tests.stores.test_replaced_files import OLD, WRITERS, first_array
from tests.stores.webserver import web_server
from virtualzarr.errors import SourceChangedError
from virtualzarr.stores import block_cache
from virtualzarr.stores.files import RemoteFile
from virtualzarr.stores.location import Location

KINDS = (".h5", ".tif", ".npy")
NPY_HEAD = 128


@dataclass
class Opened:
    """An array, and the version of its file when it was scanned."""

    array: vz.Array
    name: str
    version: int


class Hunt:
    """Random steps in a folder that is served."""

    def __init__(self, folder: Path, server, seed: int) -> None:
        self.folder, self.server, self.rng = folder, server, random.Random(seed)
        self.versions: dict[str, int] = {}
        self.last, self.opened, self.done = 0, list[Opened](), Counter()
        for number, kind in enumerate(KINDS):
            self.replace(f"{number}{kind}")

    def run(self, count: int) -> Counter:
        """Do so many steps, and return how often each came and what it ended in."""
        steps = (self.replace, self.replace_while_reading, self.open, self.open, self.read_opened,
                 self.read_opened, self.read_opened, self.read_anew, self.read_anew,
                 self.read_unverified, self.damage, self.bound)  # fmt: skip
        for _ in range(count):
            step = self.rng.choice(steps)
            outcome = step(self.rng.choice([*self.versions]))
            self.done[f"{step.__name__}: {outcome}"] += 1
        return self.done

    def url(self, name: str) -> str:
        """Return where a file is."""
        return f"{self.server.url}/{name}"

    def replace(self, name: str) -> str:
        """Write another version of the same length, with another tag."""
        self.last += 1
        path = self.folder / name
        WRITERS[path.suffix](f"{path}.new", self.last, OLD + self.last)
        assert name not in self.versions or os.path.getsize(f"{path}.new") == path.stat().st_size
        os.replace(f"{path}.new", path)
        self.versions[name] = self.last
        return "done"

    def open(self, name: str) -> str:
        """Scan a file, and maybe publish and open its references."""
        group = vz.virtualize(self.url(name))
        if self.rng.random() < 0.3:
            group.publish(self.folder / "refs.json", overwrite=True)
            group = vz.open(self.folder / "refs.json", allowed="*")
        self.opened = [*self.opened[-5:], Opened(first_array(group), name, self.versions[name])]
        return "done"

    def read_opened(self, _: str) -> str:
        """Read some of what was opened: its own version, or an error if that is not current."""
        if not self.opened:
            return "nothing is open"
        one = self.rng.choice(self.opened)
        start = self.rng.randrange(one.array.shape[0])
        try:
            values = one.array[start : start + self.rng.choice([1, 3, 99])]
        except SourceChangedError:
            assert self.versions[one.name] != one.version
            self.opened.remove(one)
            return "it has changed"
        assert (values == one.version).all(), (one, np.unique(values))
        return "current" if self.versions[one.name] == one.version else "old"

    def read_anew(self, name: str) -> str:
        """Read bytes of a file as it is now."""
        file = RemoteFile(Location(self.url(name)))
        data, rng = (self.folder / name).read_bytes(), self.rng
        start, end = sorted(rng.sample(range(len(data) + 1), 2))
        kind = rng.choice(["range", "ranges", "rest", "tail", "end"])
        if kind == "range":
            assert file.read(start, end) == data[start:end]
        elif kind == "ranges":
            assert file.read_many([(0, start), (start, end)]) == [data[:start], data[start:end]]
        elif kind == "rest":
            assert file.read(start % len(data), None) == data[start % len(data) :]
        elif kind == "tail":
            assert file.tail(end) == data[-end:]
        else:
            span = rng.choice([(0, end), (-end, None)])
            assert file.fetch_end(*span).read(start, end) == data[start:end]
        return kind

    def read_unverified(self, name: str) -> str:
        """Read what was opened, where files need not be what they were."""
        for one in self.opened:
            if one.name == name and not name.endswith(".tif"):
                with vz.config.set(verify_sources=False):
                    assert (one.array[...] == self.versions[name]).all()
                return "done"
        return "it is not open"

    def replace_while_reading(self, name: str) -> str:
        """Replace a file after some requests of a scan and a read: all of one version, or none."""
        before, count, url = self.versions[name], self.rng.randrange(8), self.url(name)
        asked, lock = 0, threading.Lock()

        def replace(method: str, path: str) -> None:
            nonlocal asked
            with lock:  # other processes make requests, too
                asked += 1
                if asked == count:
                    self.replace(name)

        self.server.before = replace
        try:
            values = np.unique(first_array(vz.virtualize(url))[...]).tolist()
        except SourceChangedError:
            values = None
        finally:
            self.server.before = None
            with lock:
                asked = count
        if values is None:
            assert self.versions[name] != before
            return "it has changed"
        assert values in ([before], [self.versions[name]])
        return "old" if values != [self.versions[name]] else "current"

    def damage(self, _: str) -> str:
        """Damage files of the cache, or delete some."""
        folder = Path(vz.config.disk_cache) / block_cache._FOLDER
        paths = [path for path in folder.glob("??/*") if path.is_file()]
        rng = self.rng
        kind = rng.choice(["flip all", "flip", "cut", "swap", "delete", "count"])
        if kind == "count" and folder.is_dir():
            (folder / block_cache._USAGE).write_bytes(rng.randbytes(rng.randrange(30)))
        for path in paths if kind == "flip all" else rng.sample(paths, len(paths) // 4):
            try:
                _damage(path, kind, rng, paths)
            except FileNotFoundError:  # another process evicts
                continue
        return kind

    def bound(self, _: str) -> str:
        """Change how much the cache may take."""
        vz.config.disk_cache_bytes = self.rng.choice([0, 20, 60, 10**6]) * 4096
        return "done"


def _damage(path: Path, kind: str, rng: random.Random, paths: list[Path]) -> None:
    content = bytearray(path.read_bytes())
    if kind == "delete":
        path.unlink()
    elif kind == "swap":
        path.write_bytes(rng.choice(paths).read_bytes())
    elif kind == "cut":
        path.write_bytes(content[: rng.randrange(len(content) + 1)])
    elif content and kind.startswith("flip"):
        content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
        path.write_bytes(content)


def hunt(folder: Path, seed: int, count: int, *, with_readers: bool = False) -> Counter:
    """Do random steps by a seed, and return what came of them.

    Parameters
    ----------
    with_readers : bool
        Whether other processes read by the same cache meanwhile, and are killed.
    """
    files = folder / "files"
    files.mkdir(parents=True)
    block_cache._caches.clear()
    settings = {"disk_cache": str(folder / "cache"), "retry_seconds": 0.001, "retries": 20,
                "disk_cache_bytes": 10**6, "remote_gap": 0, "remote_read": 1500}  # fmt: skip
    faults = {"rate": 0.08, "seed": seed, "faults": (503, "reset", "cut")}
    with (
        web_server(files, **faults) as server,
        vz.config.set(**settings),
        vz.config.tuning.set(disk_cache_block_bytes=random.Random(seed).choice([64, 256, 4096])),
    ):
        one = Hunt(files, server, seed)
        if not with_readers:
            return one.run(count)
        with readers(folder / "cache", one.url("2.npy"), seed):
            return one.run(count)


READER = f"""
import sys
import numpy as np
import virtualzarr as vz
from virtualzarr.errors import SourceError
from virtualzarr.stores.files import RemoteFile
from virtualzarr.stores.location import Location
vz.config.disk_cache, url, block = sys.argv[1], sys.argv[2], int(sys.argv[3])
vz.config.tuning.disk_cache_block_bytes = block
vz.config.retry_seconds = 0.001
vz.config.disk_cache_bytes = 60 * 4096
while True:
    try:
        data = RemoteFile(Location(url)).read(0, None)
        values = np.unique(np.frombuffer(data, "i4", offset={NPY_HEAD}))
        assert values.size == 1, values
    except SourceError:
        pass
"""


@contextmanager
def readers(cache: Path, url: str, seed: int):
    """Have two processes read a file, of which one is killed again and again."""
    block, ended = str(vz.config.tuning.disk_cache_block_bytes), threading.Event()
    command = [sys.executable, "-c", READER, str(cache), url, block]
    lasting = subprocess.Popen(command)
    killed = Counter()

    def kill() -> None:
        rng = random.Random(seed)
        while not ended.is_set():
            process = subprocess.Popen(command)
            ended.wait(1.5 + rng.random())
            assert process.poll() is None, "a reader has failed"
            process.kill()
            process.wait()
            killed["times"] += 1

    thread = threading.Thread(target=kill)
    thread.start()
    try:
        yield
        assert lasting.poll() is None, "a reader has failed"
    finally:
        ended.set()
        thread.join()
        lasting.kill()
        lasting.wait()


def main() -> None:
    """Hunt for a while, from a seed on."""
    import argparse
    import tempfile

    parser = argparse.ArgumentParser(prog="python -m tests.stores.cache_hunt", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--readers", action="store_true", help="with processes that are killed")
    options = parser.parse_args()
    end, seed, done = time.monotonic() + options.seconds, options.seed, Counter()
    while time.monotonic() < end:
        with tempfile.TemporaryDirectory() as folder:
            print("seed", seed, flush=True)
            done += hunt(Path(folder), seed, options.steps, with_readers=options.readers)
        seed += 1
    for name, count in sorted(done.items()):
        print(f"{count:7} {name}")


if __name__ == "__main__":
    main()
