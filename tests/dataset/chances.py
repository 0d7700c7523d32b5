"""Random choices, by a seed or by hypothesis."""

from __future__ import annotations

import random
from typing import Any

from hypothesis import strategies as st


class Chance:
    """Random choices, the same for the same seed."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def integer(self, low: int, high: int) -> int:
        """Return an integer, both bounds included."""
        return self._random.randint(low, high)

    def choose(self, *choices: Any) -> Any:
        """Return one of some values."""
        return choices[self.integer(0, len(choices) - 1)]


class Drawn(Chance):
    """Choices of hypothesis, which finds the shortest history that goes wrong."""

    def __init__(self, data: Any) -> None:
        self._data = data

    def integer(self, low: int, high: int) -> int:
        return int(self._data.draw(st.integers(low, high)))
