"""Run of one client in a process of its own, with limits of time and memory."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from virtualzarr.verification.logins import NO_LOGIN, ClientLogin
from virtualzarr.verification.probe import CLIENTS, MARK
from virtualzarr.verification.report import ClientResult, Status
from virtualzarr.verification.samples import Sample

INSTALL = {
    "zarr": 'pip install "zarr[remote]"',
    "zarr2": 'pip install "zarr<3" aiohttp, in an environment: --client zarr2=ENV/bin/python',
    "zarrs": "pip install zarrs",
    "dask": 'pip install "dask[array]" zarr',
    "xarray": "pip install xarray zarr",
    "kerchunk": "pip install kerchunk",
    "tensorstore": "pip install tensorstore",
    "gdal": "pip install rasterio",
    "netcdf": "pip install netCDF4",
    "zarrita": "npm install zarrita, in a folder: --client zarrita=FOLDER",
}
"""How each client is installed."""

_SCRIPTS = ("zarrita",)

_FOREIGN = ("ZARR_", "DASK_", "XARRAY_", "GDAL_", "CPL_", "PYTHONSTARTUP", "VIRTUALZARR_")


def run_client(
    client: str,
    python: str,
    request: Mapping[str, Any],
    samples: Sequence[Sample],
    *,
    timeout: float,
    memory: int,
    login: ClientLogin = NO_LOGIN,
) -> ClientResult:
    """Have a client read the samples; a crash and a time-out are results, too.

    `python` is an interpreter; of zarrita, the folder whose modules it is among.
    """
    start = time.monotonic()
    targets = [as_target(login.add_to(request, client), samples)]
    answers, end = run_probe(client, python, targets, timeout=timeout, memory=memory, login=login)
    result = judge(client, python, answers, end, samples, time.monotonic() - start)
    lacks = [login.explain(client), _explain_protocols(client, request)]
    if not (reason := "; ".join(filter(None, lacks))):
        return result
    # What it lacked comes first: what it says itself may be of something that follows from that.
    refused = {path: f"{reason}: {why}" for path, why in result.refused.items()}
    return replace(result, refused=refused)


def _explain_protocols(client: str, request: Mapping[str, Any]) -> str:
    """Return why a client does not reach some sources; "" if it can reach all."""
    protocols = request.get("sources") or {}
    if client != "kerchunk" or len(protocols) < 2:
        return ""
    return f"the engine kerchunk opens sources of one protocol, not of {' and '.join(protocols)}"


def as_target(request: Mapping[str, Any], samples: Sequence[Sample]) -> dict[str, Any]:
    """Return what a probe is asked of one publication."""
    arrays = [{"path": sample.path, "boxes": sample.boxes} for sample in samples]
    return {**request, "arrays": arrays}


def run_probe(
    client: str,
    python: str,
    targets: Sequence[Mapping[str, Any]],
    *,
    timeout: float,
    memory: int,
    login: ClientLogin = NO_LOGIN,
) -> tuple[list[dict[str, Any]], str]:
    """Return the answers of a client about several publications, and how its process ended."""
    message = json.dumps({"client": client, "targets": targets, "memory": memory})
    command, folder = _command(client, python)
    if command is None:
        return [{"missing": "node"}], ""
    process = subprocess.Popen(
        command, cwd=folder, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        env=_environment(login.variables), start_new_session=True, text=True, errors="replace",
    )  # fmt: skip
    try:
        out, err = process.communicate(message, timeout=timeout)
        end = _describe_end(process.returncode, err)
    except subprocess.TimeoutExpired:
        # Its children, too: all of its session.
        os.killpg(process.pid, signal.SIGKILL)
        out, err = process.communicate()
        end = f"no answer within {timeout:g} seconds"
    lines = [line for line in login.redact(out).split("\n") if line.startswith(MARK)]
    return [json.loads(line[len(MARK) :]) for line in lines], login.redact(end)


def _command(client: str, python: str) -> tuple[list[str] | None, str | None]:
    """Return the command of a probe, None if there is no such program, and where it runs."""
    script = Path(__file__)
    if client not in _SCRIPTS:
        return [python, str(script.with_name("probe.py"))], None
    node = shutil.which("node")
    # Modules are looked for where node runs, if it is given text.
    code = script.with_name("probe.mjs").read_text()
    return [node, "--input-type=module", "-e", code] if node else None, python


def _environment(secrets: frozenset[str] = frozenset()) -> dict[str, str]:
    """Return the environment without secrets and what configures clients, but with GDAL's retries.

    GDAL takes a chunk that it cannot get for missing, unless it asks again. Not for all errors:
    what is missing on purpose would be asked for again and again, with long pauses. Nor often: of
    Zarr v3 it asks hosts that are called like dimensions for their coordinates.
    """
    clean = {
        name: text
        for name, text in os.environ.items()
        if name not in secrets and not name.startswith(_FOREIGN)
    }
    return {
        **clean, "GDAL_HTTP_MAX_RETRY": "1", "GDAL_HTTP_RETRY_DELAY": "0.02",
        "GDAL_HTTP_RETRY_CODES": "429,500,502,503,504", "GDAL_HTTP_USERAGENT": "GDAL",
        "PYTHONWARNINGS": "ignore",
    }  # fmt: skip


def _describe_end(code: int, err: str) -> str:
    if not code:
        return ""
    last = (err.strip().splitlines() or [""])[-1]
    how = f"killed by signal {-code}" if code < 0 else f"exit code {code}"
    return f"the client's process ended: {how}{': ' if last else ''}{last}"


def judge(
    client: str,
    python: str,
    answers: Sequence[Mapping[str, Any]],
    end: str,
    samples: Sequence[Sample],
    seconds: float,
) -> ClientResult:
    """Return what a client did, by its answers about one publication."""
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
            difference = "one value everywhere" if constant and not our_constant else "other values"
            return f"[{where}]: {difference}"
    return None


def all_clients() -> tuple[str, ...]:
    """Return the names of all clients."""
    return (*CLIENTS, *_SCRIPTS)


def python_clients(names: Iterable[str]) -> list[str]:
    """Return those clients that run in an interpreter of Python."""
    return [name for name in names if name not in _SCRIPTS]


def find_default(client: str) -> str:
    """Return where a client is looked for: this interpreter, or the current folder."""
    return os.getcwd() if client in _SCRIPTS else sys.executable
