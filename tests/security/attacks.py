"""Attacks: how to build each hostile input, and what must come out of opening and reading it.

To add one, write a function that gets a folder and the folder of a secret, puts files into the
first and returns what is to be opened, and decorate it with `attack`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

SECRET = 4242424
"""What the files in the folder of the secret hold; it must not come out."""

ANYTHING = "*"
"""Either it is read or there is an error of this package; the process goes on."""

Build = Callable[[Path, Path], Any]


@dataclass(frozen=True)
class Attack:
    """One attack.

    Parameters
    ----------
    name : str
    build : callable
        Gets a folder for the input, and one that must not be read; returns what is to be opened:
        a path, a URL, or a reference file's document.
    error : str, optional
        Name of the error class, or of a base of it, that must come out, or several with ``|``; None
        where it must be read without harm; or `ANYTHING`.
    match : str
        Regular expression for the error's text.
    megabytes : int
        Memory that the process may take.
    seconds : int
        Time that it may take, import included; far above what it needs, as machines are busy.
    reads : bool
        Whether arrays are read, too, not only opened.
    narrow : bool
        Whether `allowed` is the folder of the input.
    environment : dict
        Variables; ``{secret}`` stands for the folder of the secret.
    """

    name: str
    build: Build
    error: str | None
    match: str = ""
    megabytes: int = 512
    seconds: int = 60
    reads: bool = True
    narrow: bool = False
    environment: dict[str, str] = field(default_factory=dict)


ATTACKS: list[Attack] = []


def attack(error: str | None, match: str = "", **options: Any) -> Callable[[Build], Build]:
    """Add a function to the table; see `Attack`."""

    def add(build: Build) -> Build:
        ATTACKS.append(Attack(build.__name__, build, error, match, **options))
        return build

    return add


def attacks(error: str | None, match: str = "", **options: Any) -> Callable[[Any], Any]:
    """Add a generator of (name, build) to the table."""

    def add(generate: Callable[[], Any]) -> Any:
        for name, build in generate():
            full = f"{generate.__name__}-{name}"
            ATTACKS.append(Attack(full, build, error, match, **options))
        return generate

    return add
