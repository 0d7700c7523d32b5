"""Run of one client in a process of its own, with limits of time and memory."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from virtualzarr.verification.probe import CLIENTS, MARK
from virtualzarr.verification.report import ClientResult, Status
from virtualzarr.verification.samples import Sample

INSTALL = {
    "zarr": 'pip install "zarr[remote]"',
    "zarrs": "pip install zarrs",
    "dask": 'pip install "dask[array]" zarr',
    "xarray": "pip install xarray zarr",
    "kerchunk": "pip install kerchunk",
    "tensorstore": "pip install tensorstore",
    "gdal": "pip install rasterio",
    "netcdf": "pip install netCDF4",
}
"""How each client is installed."""

_FOREIGN = ("ZARR_", "DASK_", "XARRAY_", "GDAL_", "CPL_", "PYTHONSTARTUP", "VIRTUALZARR_")


def run_client(
    client: str,
    python: str,
    request: Mapping[str, Any],
    samples: Sequence[Sample],
    *,
    timeout: float,
    memory: int,
) -> ClientResult:
    """Have a client read the samples; a crash and a time-out are results, too."""
    wanted = [{"path": sample.path, "boxes": sample.boxes} for sample in samples]
    message = json.dumps({**request, "client": client, "arrays": wanted, "memory": memory})
    start = time.monotonic()
    process = subprocess.Popen(
        [python, str(Path(__file__).with_name("probe.py"))],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        env=_environment(), start_new_session=True, text=True, errors="replace",
    )  # fmt: skip
    try:
        out, err = process.communicate(message, timeout=timeout)
        end = _describe_end(process.returncode, err)
    except subprocess.TimeoutExpired:
        # Its children, too: all of its session.
        os.killpg(process.pid, signal.SIGKILL)
        out, err = process.communicate()
        end = f"no answer within {timeout:g} seconds"
    answers = [json.loads(line[len(MARK) :]) for line in out.split("\n") if line.startswith(MARK)]
    return _judge(client, python, answers, end, samples, time.monotonic() - start)


def _environment() -> dict[str, str]:
    """Return the environment without what configures clients, but with GDAL's retries.

    GDAL takes a chunk that it cannot get for missing, unless it asks again for all errors.
    """
    clean = {name: text for name, text in os.environ.items() if not name.startswith(_FOREIGN)}
    return {
        **clean, "GDAL_HTTP_MAX_RETRY": "3", "GDAL_HTTP_RETRY_CODES": "ALL",
        "PYTHONWARNINGS": "ignore",
    }  # fmt: skip


def _describe_end(code: int, err: str) -> str:
    if not code:
        return ""
    last = (err.strip().splitlines() or [""])[-1]
    how = f"killed by signal {-code}" if code < 0 else f"exit code {code}"
    return f"the client's process ended: {how}{': ' if last else ''}{last}"


def _judge(
    client: str,
    python: str,
    answers: Sequence[Mapping[str, Any]],
    end: str,
    samples: Sequence[Sample],
    seconds: float,
) -> ClientResult:
    head = answers[0] if answers else {}
    if "missing" in head:
        hint = f"not installed: {INSTALL[client]}"
        return ClientResult(client, "", python, "missing", message=hint)
    by_path = {answer["path"]: answer for answer in answers if "path" in answer}
    equal: list[str] = []
    refused: dict[str, str] = {}
    wrong: dict[str, str] = {}
    unsupported: list[str] = []
    for sample in samples:
        answer = by_path.get(sample.path)
        # A client that ended before it came to an array has not read it; why it ended says more.
        if answer is None:
            refused[sample.path] = end or "no answer"
        elif "unsupported" in answer:
            unsupported.append(answer["unsupported"])
        elif "error" in answer:
            refused[sample.path] = answer["error"]
        elif (why := _compare(sample, answer)) is not None:
            wrong[sample.path] = why
        else:
            equal.append(sample.path)
    status: Status = "wrong" if wrong else "refused" if refused else "equal"
    if unsupported and not (equal or refused or wrong):
        status = "unsupported"
    note = unsupported[0] if unsupported else ""
    return ClientResult(
        client, head.get("version", ""), python, status, tuple(equal), refused, wrong, note,
        round(seconds, 2),
    )  # fmt: skip


def _compare(sample: Sample, answer: Mapping[str, Any]) -> str | None:
    """Return how what a client read differs from ours, or None."""
    if answer["shape"] is not None and tuple(answer["shape"]) != sample.shape:
        return f"the shape is {tuple(answer['shape'])}, not {sample.shape}"
    pairs = zip(sample.boxes, sample.hashes, answer["hashes"], strict=True)
    for box, (ours, our_constant), (theirs, constant) in pairs:
        if ours != theirs:
            where = ", ".join(f"{a}:{b}" for a, b in box)
            what = "one value everywhere" if constant and not our_constant else "other values"
            return f"[{where}]: {what}"
    return None


def all_clients() -> tuple[str, ...]:
    """Return the names of all clients."""
    return tuple(CLIENTS)
