"""Keyword arguments of public functions, checked: what is not known is refused by name."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable
from difflib import get_close_matches
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")

NAMED = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


def check_keywords(function: str, given: Iterable[str], known: Iterable[str]) -> None:
    """Refuse keyword arguments that a function does not have.

    Raises
    ------
    TypeError
        One is not known; the message has the nearest name.

    Examples
    --------
    >>> check_keywords("open", ["fomat"], ["format", "mode"])
    Traceback (most recent call last):
    TypeError: open() has no parameter 'fomat'; is 'format' meant?
    >>> check_keywords("open", ["branch"], ["format", "mode"])
    Traceback (most recent call last):
    TypeError: open() has no parameter 'branch'; there are format and mode
    """
    names = sorted(known)
    for name in given:
        if name in names:
            continue
        near = get_close_matches(name, names, 1, 0.7)
        hint = f"is {near[0]!r} meant?" if near else f"there are {_listed(names)}"
        raise TypeError(f"{function}() has no parameter {name!r}; {hint}")


def _listed(names: list[str]) -> str:
    return f"{', '.join(names[:-1])} and {names[-1]}" if len(names) > 1 else "".join(names)


def strict_keywords(*more: Any) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Return a decorator that checks keyword arguments before a function is called.

    Parameters
    ----------
    *more : type or callable
        What else is known, where the function passes arguments on: typed dictionaries, or functions
        whose parameters these are.

    Examples
    --------
    >>> @strict_keywords(check_keywords)
    ... def make(*, dimension_names=None, **options):
    ...     return dimension_names
    >>> make(dimension_name=["x"])
    Traceback (most recent call last):
    TypeError: make() has no parameter 'dimension_name'; is 'dimension_names' meant?
    """

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        known = parameters_of(function).union(*map(parameters_of, more))
        name = function.__name__

        @functools.wraps(function)
        def checked(*args: P.args, **given: P.kwargs) -> R:
            if given.keys() - known:
                check_keywords(name, given, known)
            return function(*args, **given)

        return checked

    return decorate


@functools.cache
def parameters_of(thing: Any) -> frozenset[str]:
    """Return the names by which a function takes arguments, or the keys of a typed dictionary."""
    if isinstance(thing, type):
        return frozenset(name for each in thing.__mro__ for name in inspect.get_annotations(each))
    parameters = inspect.signature(thing).parameters
    named = {name for name, each in parameters.items() if each.kind in NAMED}
    return frozenset(named - {"self", "cls"})
