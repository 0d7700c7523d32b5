"""Functions with one condition of theirs changed, to see whether a test notices."""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Callable
from typing import Any

import pytest


def mutate(
    monkeypatch: pytest.MonkeyPatch, function: Callable[..., Any], old: str, new: str
) -> None:
    """Give a function other code until the end of a test: some of its text is replaced."""
    source = textwrap.dedent(inspect.getsource(function))
    assert source.count(old) == 1, f"{old!r} is {source.count(old)} times in {function.__name__}"
    text = "from __future__ import annotations\n" + source.replace(old, new)
    namespace: dict[str, Any] = {}
    exec(compile(text, "<mutation>", "exec"), function.__globals__, namespace)
    # In place: others have imported the function already.
    monkeypatch.setattr(function, "__code__", namespace[function.__name__].__code__)
