"""The server beside nginx (chunks that pass through) and xpublish (chunks of other codecs).

Each server is one process: on the first core beside nginx, on all beside xpublish. The client is
another process. zarr-python 3.4 has no HTTP server to compare with.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import h5py
import numpy as np

from benchmarks._load import Load, put_load
from benchmarks._table import Row

MIB = 1 << 20
_CODECS = {"rewrapped": ("zlib", 4), "checked": ("zlib", 4), "encoded": ("lz4", 5)}
"""How chunks come that others cannot read, and the compressor and level of Blosc they have then."""

_CHUNKS = {"8 MiB": 8 * MIB, "4 MiB": 4 * MIB, "64 KiB": 1 << 16}


@dataclass(frozen=True)
class Server:
    """A server that runs: its process, port, and what to ask it for."""

    process: int
    port: int
    requests: list[tuple[str, str]]


def run(quick: bool = False) -> list[Row]:
    """Ask the servers for the same bytes, in turns."""
    seconds = 0.5 if quick else 2.0
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        spans = _write_plain(folder / "plain.h5", (32 if quick else 128) * MIB)
        rows = []
        for label in _CHUNKS:
            rows += _compare_passing(folder, label, spans[label], seconds)
        for width in (512, 128):
            for kind in _CODECS:
                rows += _compare_others(folder, kind, width, 16 if quick else 96, seconds)
        return rows + _measure_memory(folder)


def _write_plain(path: Path, nbytes: int) -> dict[str, list[tuple[int, int]]]:
    """Write uncompressed chunks of several sizes; return offsets and lengths of each."""
    values = np.random.default_rng(0).integers(0, 1 << 16, nbytes // 2, "u2")
    spans = {}
    with h5py.File(path, "w") as file:
        for label, size in _CHUNKS.items():
            array = values.reshape(-1, size // 2)
            data = file.create_dataset(label, data=array, chunks=(1, array.shape[1])).id
            infos = [data.get_chunk_info(i) for i in range(len(array))]
            spans[label] = [(each.byte_offset, each.size) for each in infos]
    return spans


def _write_packed(path: Path, kind: str, count: int, width: int) -> None:
    """Write chunks as most HDF5 files have them: shuffled and deflated, what others cannot read.

    LZF chunks of h5py have to be encoded anew.
    """
    random = np.random.default_rng(0)
    walk = random.normal(size=(count, width, width)).astype("f4").cumsum(axis=2)
    with h5py.File(path, "w") as file:
        options = {"shuffle": True, "chunks": (1, width, width)}
        options["compression"] = "lzf" if kind == "encoded" else "gzip"
        options["fletcher32"] = kind == "checked"
        data = file.create_dataset("a", data=np.round(walk, 2), **options)
        for axis, label in enumerate(("time", "y", "x")):
            file[label] = np.arange(data.shape[axis])
            file[label].make_scale(label)
            data.dims[axis].attach_scale(file[label])


def _compare_passing(
    folder: Path, label: str, spans: list[tuple[int, int]], seconds: float
) -> list[Row]:
    keys = [(f"/v3/{label.replace(' ', '%20')}/c/{i}/0", "") for i in range(len(spans))]
    ranges = [("/plain.h5", f"bytes={start}-{start + size - 1}") for start, size in spans]
    with contextlib.ExitStack() as stack:
        servers = {"ours": stack.enter_context(_serve(folder / "plain.h5", keys))}
        if shutil.which("nginx"):
            servers["nginx"] = stack.enter_context(_serve_nginx(folder, ranges))
        for server in servers.values():
            _pin(server.process)
        loads = _alternate(servers, seconds)
    target = ">= 0.8 x nginx" if spans[0][1] >= 4 * MIB else ""
    rate = {tool: max(x.nbytes / x.seconds for x in each) / 1e6 for tool, each in loads.items()}
    often = {tool: max(x.requests / x.seconds for x in each) for tool, each in loads.items()}
    cost = {tool: min(x.cpu / x.requests for x in each) * 1e6 for tool, each in loads.items()}
    name = f"passed through, {label}"
    return [
        _as_row(name, rate, "MB/s", target),
        _as_row(name, often, "requests/s"),
        _as_row(f"{name}, CPU time a request", cost, "us"),
    ]


def _pin(process: int) -> None:
    """Keep a process, with all its threads, on the first core."""
    for thread in os.listdir(f"/proc/{process}/task"):
        os.sched_setaffinity(int(thread), {0})


def _alternate(servers: dict[str, Server], seconds: float) -> dict[str, list[Load]]:
    loads: dict[str, list[Load]] = {name: [] for name in servers}
    for _ in range(4):
        for name, server in servers.items():
            load = put_load(
                server.process, server.port, server.requests, seconds=seconds, core=_client_core()
            )
            loads[name].append(load)
    # The first is to warm up: sources are opened, and pages of the file come into memory.
    return {name: each[1:] for name, each in loads.items()}


def _compare_others(folder: Path, kind: str, width: int, count: int, seconds: float) -> list[Row]:
    path = folder / f"{kind}-{width}.h5"
    _write_packed(path, kind, count, width)
    ours = [(f"/v3/a/c/{i}/0/0", "") for i in range(count)]
    theirs = [(f"/zarr/a/c/{i}/0/0", "") for i in range(count)]
    # Each server on both cores, which the client shares.
    makers = {"ours": lambda: _serve(path, ours)}
    if importlib.util.find_spec("xpublish_zarr"):
        makers["xpublish"] = lambda: _serve_xpublish(path, theirs, *_CODECS[kind])
    cold: dict[str, float] = {}
    cost: dict[str, float] = {}
    warm: dict[str, float] = {}
    if shutil.which("nginx"):
        sent = folder / f"sent-{kind}-{width}"
        warm["nginx"] = _measure_files(sent, makers["ours"], seconds / 2)
    for _ in range(3):
        for name, make in makers.items():
            with make() as server:
                # One answer first: what a server loads or compiles once is not meant.
                _ask(server, server.requests[-1:], None)
                load = _ask(server, server.requests[:-1], None)
                cold[name] = max(cold.get(name, 0), load.requests / load.seconds)
                cost[name] = min(cost.get(name, 1e9), load.cpu / load.requests * 1e3)
                load = _ask(server, server.requests[1:9], seconds / 2)
                warm[name] = max(warm.get(name, 0), load.requests / load.seconds)
    name = f"{kind} for v3, {width * width * 4 >> 10} KiB"
    return [
        _as_row(f"{name}, cold", cold, "chunks/s", ">= 5 x xpublish"),
        _as_row(f"{name}, cold, CPU time a chunk", cost, "ms"),
        _as_row(f"{name}, again", warm, "chunks/s", ">= 5 x xpublish"),
    ]


def _measure_files(
    folder: Path, serve: Callable[[], contextlib.AbstractContextManager[Server]], seconds: float
) -> float:
    """Return how often nginx sends what was encoded, from files: sending takes so long."""
    folder.mkdir()
    with serve() as server:
        for number, (path, _) in enumerate(server.requests[1:9]):
            with urllib.request.urlopen(f"http://127.0.0.1:{server.port}{path}") as answer:
                (folder / str(number)).write_bytes(answer.read())
    with _serve_nginx(folder, [(f"/{number}", "") for number in range(8)]) as server:
        loads = [_ask(server, server.requests, seconds) for _ in range(3)]
    return max(load.requests / load.seconds for load in loads)


def _ask(server: Server, requests: list[tuple[str, str]], seconds: float | None) -> Load:
    core = _client_core()
    return put_load(server.process, server.port, requests, seconds=seconds, core=core)


def _measure_memory(folder: Path) -> list[Row]:
    """Peak memory of the process after 64 clients have asked for cells of 8 MiB."""
    path = folder / "eight.h5"
    # Half of the bytes are zeros: LZF leaves chunks alone that it does not make smaller.
    values = np.random.default_rng(0).normal(size=(24, MIB)).astype("f4").astype("f8")
    with h5py.File(path, "w") as file:
        file.create_dataset("packed", data=values, chunks=(1, MIB), compression="lzf", shuffle=True)
        file.create_dataset("plain", data=values, chunks=(1, MIB))
    rows = []
    for kind in ("plain", "packed"):
        with _serve(path, [(f"/v3/{kind}/c/{i}/0", "") for i in range(24)]) as server:
            for _ in range(2):
                put_load(server.process, server.port, server.requests * 8, seconds=None,
                         connections=64, core=_client_core())  # fmt: skip
            rows.append(Row(
                f"peak memory, 64 clients, 8 MiB cells, {kind}", _peak(server.process) / MIB,
                target="<= 256 MiB", unit="MiB",
            ))  # fmt: skip
    return rows


def _peak(process: int) -> float:
    lines = Path(f"/proc/{process}/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))


def _as_row(name: str, values: dict[str, float], unit: str, target: str = "") -> Row:
    theirs = {tool: value for tool, value in values.items() if tool != "ours"}
    return Row(name, values["ours"], theirs, target, unit)


def _client_core() -> int | None:
    return 1 if (os.cpu_count() or 1) > 1 else None


@contextlib.contextmanager
def _start(command: list[str], port: int, requests: list[tuple[str, str]]) -> Iterator[Server]:
    """Run a server until it is no longer needed."""
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
        try:
            _wait_for(port, process)
            yield Server(process.pid, port, requests)
        finally:
            process.terminate()
            process.wait(20)


def _wait_for(port: int, process: subprocess.Popen[bytes]) -> None:
    for _ in range(600):
        if process.poll() is not None:
            raise RuntimeError(f"a server ended with {process.returncode}")
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)):
            return
        time.sleep(0.05)
    raise RuntimeError("a server did not start")


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        return int(listening.getsockname()[1])


def _serve(
    path: Path, requests: list[tuple[str, str]]
) -> contextlib.AbstractContextManager[Server]:
    port = _free_port()
    command = [sys.executable, "-m", "virtualzarr", "serve", str(path), "--port", str(port)]
    return _start([*command, "--no-page"], port, requests)


_NGINX = """
daemon off; master_process off; worker_processes 1; pid {folder}/nginx.pid;
error_log {folder}/error.log;
events {{ worker_connections 512; }}
http {{
  access_log {folder}/access.log; sendfile on; keepalive_requests 1000000;
  client_body_temp_path {folder}; proxy_temp_path {folder}; fastcgi_temp_path {folder};
  uwsgi_temp_path {folder}; scgi_temp_path {folder};
  server {{ listen 127.0.0.1:{port}; root {folder}; }}
}}
"""


def _serve_nginx(
    folder: Path, requests: list[tuple[str, str]]
) -> contextlib.AbstractContextManager[Server]:
    port = _free_port()
    (folder / "nginx.conf").write_text(_NGINX.format(folder=folder, port=port))
    return _start(["nginx", "-c", str(folder / "nginx.conf")], port, requests)


_XPUBLISH = """
import xarray, xpublish, zarr.codecs
dataset = xarray.open_dataset({path!r}, engine="h5netcdf", chunks={{}})
codec = zarr.codecs.BloscCodec(cname={cname!r}, clevel={level}, shuffle="shuffle", typesize=4)
dataset["a"].encoding = {{"compressors": [codec], "chunks": dataset["a"].encoding["chunksizes"]}}
rest = xpublish.SingleDatasetRest(dataset, cache_kws={{"available_bytes": 16e6}})
rest.serve(host="127.0.0.1", port={port}, log_level="info")
"""


def _serve_xpublish(
    path: Path, requests: list[tuple[str, str]], cname: str, level: int
) -> contextlib.AbstractContextManager[Server]:
    port = _free_port()
    script = _XPUBLISH.format(path=str(path), port=port, cname=cname, level=level)
    return _start([sys.executable, "-c", script], port, requests)
