"""One row of a comparison, how it is timed, and how it is printed."""

from __future__ import annotations

import gc
import random
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Row:
    """What one piece of work costs us and others, measured in the same run.

    Attributes
    ----------
    name : str
    ours : float
        In `unit`.
    theirs : dict of str to float
        The same for each other tool that is installed, in the same unit.
    target : str
        What we want to reach, in words: ``<= 0.5 x h5py``.
    unit : str
    note : str
        What went wrong.
    """

    name: str
    ours: float
    theirs: dict[str, float] = field(default_factory=dict)
    target: str = ""
    unit: str = "s"
    note: str = ""


def best(work: Callable[[], Any], repeat: int = 3) -> float:
    """Return the shortest of several runs, in seconds."""
    times = []
    for _ in range(repeat):
        gc.collect()
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return min(times)


def alternate(
    works: dict[str, Callable[[], Any]],
    repeat: int = 3,
    prepare: Callable[[str], Any] | None = None,
) -> dict[str, float]:
    """Return the shortest of several runs of each work, in seconds, taking turns.

    Taking turns spreads the noise of a busy machine over all of them; the turns are in another
    order each time, as the memory that a tool leaves behind is slower or faster to take. What
    `prepare` does with the name of a work before each run of it is not timed.
    """
    times: dict[str, list[float]] = {name: [] for name in works}
    order = random.Random(0)
    for _ in range(repeat):
        for name in order.sample([*works], len(works)):
            if prepare is not None:
                prepare(name)
            times[name].append(best(works[name], 1))
    return {name: min(values) for name, values in times.items()}


def row(name: str, times: dict[str, float], target: str = "", unit: str = "s") -> Row:
    """Make a row of the times of all tools, ours under the name ``ours``."""
    theirs = {tool: value for tool, value in times.items() if tool != "ours"}
    return Row(name, times["ours"], theirs, target, unit)


def show(rows: Iterable[Row]) -> str:
    """Return rows as text: our figure, then each other's, with theirs as a multiple of ours."""
    lines = []
    for item in rows:
        end = f"   [target {item.target}]" if item.target else ""
        end += f"   ({item.note})" if item.note else ""
        others = [_other(tool, value, item.ours) for tool, value in item.theirs.items()]
        figures = ", ".join([f"ours {_number(item.ours)} {item.unit}", *others])
        lines.append(f"  {item.name:<48} {figures}{end}")
    return "\n".join(lines)


def _other(tool: str, value: float, ours: float) -> str:
    return f"{tool} {_number(value)}" + (f" ({value / ours:.2f}x)" if ours else "")


def _number(value: float) -> str:
    return f"{value:,.0f}" if value == 0 or value >= 100 else f"{value:.3g}"
