"""Report of a verification: which client reads what, who refuses why, who is not installed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

Status = Literal["equal", "refused", "wrong", "unsupported", "missing"]

_LONGEST = 160


@dataclass(frozen=True)
class ClientResult:
    """What one client did.

    Attributes
    ----------
    client, version, python : str
        `version` is empty where it is not installed; `python` is the interpreter.
    status : {"equal", "refused", "wrong", "unsupported", "missing"}
        The worst of its arrays: unsupported where it knows no such form at all, missing where it is
        not installed.
    equal : tuple of str
        Paths of arrays of which it reads what we read.
    refused, wrong : dict of str to str
        Messages by path.
    message : str
        Why it read nothing, or how to install it.
    seconds : float
    known : frozenset of str
        Of the paths that are refused, those of which the table of clients says so.
    """

    client: str
    version: str
    python: str
    status: Status
    equal: tuple[str, ...] = ()
    refused: Mapping[str, str] = field(default_factory=dict)
    wrong: Mapping[str, str] = field(default_factory=dict)
    message: str = ""
    seconds: float = 0.0
    known: frozenset[str] = frozenset()


@dataclass(frozen=True)
class VerifyReport:
    """What all clients did.

    Attributes
    ----------
    target, form : str
    zarr_format : int
    arrays : tuple of str
        Paths of what was compared.
    clients : tuple of ClientResult
    """

    target: str
    form: str
    zarr_format: int
    arrays: tuple[str, ...]
    clients: tuple[ClientResult, ...]

    @property
    def exit_code(self) -> int:
        """0 if every client that knows the form reads all, 1 if one refuses, 2 if one is wrong.

        1, too, if there is no client that could try.
        """
        statuses = {result.status for result in self.clients}
        if "wrong" in statuses:
            return 2
        return 0 if "equal" in statuses and "refused" not in statuses else 1

    @property
    def good(self) -> bool:
        """Whether every client that knows the form reads all."""
        return self.exit_code == 0

    def __repr__(self) -> str:
        return self.text()

    def text(self) -> str:
        """Return a table, and the reasons below it.

        Examples
        --------
        >>> clients = (ClientResult("zarr", "3.4.2", "python", "equal", ("air",)),
        ...            ClientResult("zarrs", "", "python", "missing", message="pip install zarrs"))
        >>> print(VerifyReport("air.json", "json", 2, ("air",), clients).text())
        air.json: json, Zarr v2, 1 array
        client  version  status   equal  refused  wrong
        zarr    3.4.2    equal        1        0      0
        zarrs            missing      0        0      0  pip install zarrs
        """
        head = ("client", "version", "status", "equal", "refused", "wrong")
        rows = [
            (r.client, r.version, r.status, len(r.equal), len(r.refused), len(r.wrong), r.message)
            for r in self.clients
        ]
        texts = [[*head, ""], *([*map(str, row)] for row in rows)]
        widths = [max(map(len, column)) for column in zip(*texts, strict=True)]
        count = f"{len(self.arrays)} array{'' if len(self.arrays) == 1 else 's'}"
        lines = [f"{self.target}: {self.form}, Zarr v{self.zarr_format}, {count}"]
        # Counts to the right, as numbers are; a message is as long as a line bears.
        for row in texts:
            cells = [
                text.rjust(width) if 3 <= i <= 5 else text.ljust(width)
                for i, (text, width) in enumerate(zip(row[:6], widths, strict=False))
            ]
            lines.append("  ".join([*cells, row[6][:_LONGEST]]).rstrip())
        for result in self.clients:
            expected = {p: why for p, why in result.refused.items() if p in result.known}
            unknown = {p: why for p, why in result.refused.items() if p not in result.known}
            for word, messages in (
                ("WRONG", result.wrong), ("refused", unknown), ("refused, as is known", expected)
            ):  # fmt: skip
                by_reason: dict[str, list[str]] = {}
                for path, why in messages.items():
                    by_reason.setdefault(" ".join(why.split())[:_LONGEST], []).append(path or "/")
                lines += [
                    f"  {result.client}: {word}: {', '.join(paths)}: {why}"
                    for why, paths in by_reason.items()
                ]
        return "\n".join(lines)
