"""Validation of keyword arguments: unknown ones of public functions are refused by name."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable
from typing import Any, ParamSpec, TypeVar

from virtualzarr.errors import suggest

P = ParamSpec("P")
R = TypeVar("R")

NAMED = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


def check_keywords(function: str, names: Iterable[str], parameters: Iterable[str]) -> None:
    """Refuse keyword arguments that a function does not have.

    Raises
    ------
    TypeError
        One is no parameter; the message has the nearest name.

    Examples
    --------
    >>> check_keywords("open", ["fomat"], ["format", "mode"])
    Traceback (most recent call last):
    TypeError: open() has no parameter 'fomat'; is 'format' meant?
    >>> check_keywords("open", ["branch"], ["format", "mode"])
    Traceback (most recent call last):
    TypeError: open() has no parameter 'branch'; there are format and mode
    """
    existing = sorted(parameters)
    for name in names:
        if name in existing:
            continue
        raise TypeError(f"{function}() has no parameter {name!r}; {suggest(name, existing)}")


def strict_keywords(*targets: Any) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Return a decorator that checks keyword arguments before a function is called.

    Parameters
    ----------
    *targets : type or callable
        What the function passes other arguments on to: functions, or typed dictionaries whose keys
        they are.

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
        parameters = parameters_of(function).union(*map(parameters_of, targets))
        name = function.__name__

        @functools.wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            # One set operation for each call; names are compared only where one is wrong.
            if kwargs.keys() - parameters:
                check_keywords(name, kwargs, parameters)
            return function(*args, **kwargs)

        return call

    return decorate


@functools.cache
def parameters_of(target: Any) -> frozenset[str]:
    """Return the names by which a function takes arguments, or the keys of a typed dictionary."""
    if isinstance(target, type):
        return frozenset(name for each in target.__mro__ for name in inspect.get_annotations(each))
    parameters = inspect.signature(target).parameters
    names = {name for name, each in parameters.items() if each.kind in NAMED}
    return frozenset(names - {"self", "cls"})
