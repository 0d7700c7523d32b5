"""Runs the check of one format over many files, in a process that may crash or hang."""

from __future__ import annotations

import multiprocessing
import re
from collections import Counter
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

from tests.fidelity.compare import OUTCOMES, Row

TIMEOUT = 120.0


def _work(name: str, pipe: Any) -> None:
    """Check the files whose paths come through the pipe."""
    check = import_module(f"tests.fidelity.{name}").check
    for path in iter(pipe.recv, None):
        try:
            for row in check(path):
                pipe.send(row)
        except Exception as error:
            pipe.send(Row("", "wrong", f"{type(error).__name__}: {error}"))
        pipe.send(None)


class Worker:
    """A process that checks one file after another."""

    def __init__(self, name: str) -> None:
        self._context = multiprocessing.get_context("spawn")
        self._name = name
        self._start()

    def _start(self) -> None:
        self._pipe, other = self._context.Pipe()
        self._process = self._context.Process(target=_work, args=(self._name, other), daemon=True)
        self._process.start()
        other.close()

    def check(self, path: Path) -> Iterator[Row]:
        """Yield the rows of one file; a crash or a hang is the last of them."""
        self._pipe.send(path)
        while True:
            try:
                if not self._pipe.poll(TIMEOUT):
                    yield self._replace(f"nothing for {TIMEOUT:.0f} s")
                    return
                row = self._pipe.recv()
            except EOFError:
                self._process.join()
                yield self._replace(f"the process died: {self._process.exitcode}")
                return
            if row is None:
                return
            yield row

    def _replace(self, reason: str) -> Row:
        self.close()
        self._start()
        return Row("", "unreadable", reason)

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.join()
        self._pipe.close()


def run(name: str, directory: Path) -> Iterator[tuple[Path, Row]]:
    """Yield a row for each variable of each file under a directory."""
    worker = Worker(name)
    try:
        for path in import_module(f"tests.fidelity.{name}").files(directory):
            for row in worker.check(path):
                yield path, row
    finally:
        worker.close()


def kind_of(reason: str) -> str:
    """Return a reason without names and most numbers, so that like reasons are counted together."""
    reason = re.sub(r"'[^']*'|b'[^']*'|\"[^\"]*\"", "'…'", reason)
    reason = re.sub(r"(?<!filter )\b\d+\b(?! bits)", "N", reason)
    return reason if len(reason) <= 110 else reason[:109] + "…"


def report(rows: list[tuple[Path, Row]]) -> str:
    """Return the counts as a table."""
    counts = Counter(row.outcome for _, row in rows)
    lines = [f"{counts[outcome]:7} {outcome}" for outcome in OUTCOMES]
    for outcome in ("refused", "wrong", "unreadable"):
        reasons = Counter(kind_of(row.reason) for _, row in rows if row.outcome == outcome)
        lines += ["", f"{outcome}:"] if reasons else []
        lines += [f"{count:7} {reason}" for reason, count in reasons.most_common()]
    return "\n".join(lines)
