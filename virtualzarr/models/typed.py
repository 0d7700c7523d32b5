"""Validation of attributes and members against dataclasses, TypedDicts and models."""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Mapping, Sequence
from typing import (
    Any,
    Literal,
    NotRequired,
    Required,
    Union,
    get_args,
    get_origin,
    get_type_hints,
    is_typeddict,
)

from virtualzarr.errors import MetadataError, UnsupportedError, short
from virtualzarr.metadata.json_documents import as_object, member
from virtualzarr.models.node import NodeSpec


def validate(value: Any, kind: Any) -> Any:
    """Return JSON values, or models by name, as a type has them.

    Parameters
    ----------
    value
    kind : type, or another annotation
        A dataclass, a TypedDict, a class of models, or a container of such; what is annotated is
        checked at every depth. None is anything.

    Raises
    ------
    MetadataError
        A member is missing, unknown, or not of its type; the message names it.

    Examples
    --------
    >>> @dataclasses.dataclass
    ... class Named:
    ...     units: str
    >>> validate({"units": "K"}, Named)
    Named(units='K')
    >>> validate({"units": 1}, Named)
    Traceback (most recent call last):
    virtualzarr.errors.MetadataError: units: must be str, not 1
    """
    return value if kind is None else _validate(value, kind)


def _validate(value: Any, hint: Any) -> Any:
    """Return a JSON value as an annotation has it."""
    origin = get_origin(hint)
    if hint is Any or hint is object:
        return value
    # TypedDicts first: they are mappings as well, and would be taken for plain ones below.
    if is_typeddict(hint) or (isinstance(hint, type) and dataclasses.is_dataclass(hint)):
        return _members(value, hint)
    # Cast, not only checked: the class may declare types of attributes and members in turn.
    if isinstance(origin or hint, type) and issubclass(origin or hint, NodeSpec):
        return (origin or hint).cast(value, *get_args(hint))
    if origin in (Required, NotRequired):
        return _validate(value, get_args(hint)[0])
    if origin in (Union, types.UnionType):
        return _one_of(value, hint)
    if origin is Literal:
        # The type as well: in Python 1 equals True and 1.0, in JSON they are three values.
        if not any(value == choice and type(value) is type(choice) for choice in get_args(hint)):
            raise _wrong(value, hint)
        return value
    return _container(value, origin or hint, get_args(hint))


def _container(value: Any, kind: Any, items: tuple[Any, ...]) -> Any:
    if kind is None or kind is type(None):
        fits = value is None
    elif kind is bool or kind is str:
        fits = isinstance(value, kind)
    # bool is a subclass of int in Python, but no number in JSON.
    elif kind is int or kind is float:
        fits = isinstance(value, int if kind is int else (int, float)) and value is not True
        fits = fits and value is not False
    elif not isinstance(kind, type):
        raise UnsupportedError(f"the annotation {kind!r} cannot be checked")
    elif issubclass(kind, Mapping):
        item = items[1] if len(items) == 2 else Any
        return {name: _inner(name, entry, item) for name, entry in as_object(value).items()}
    elif issubclass(kind, Sequence):
        return _sequence(value, kind, items)
    else:
        raise UnsupportedError(f"the annotation {kind.__name__} cannot be checked")
    if not fits:
        raise _wrong(value, kind)
    return value


def _sequence(value: Any, kind: type, items: tuple[Any, ...]) -> Any:
    if not isinstance(value, list | tuple):
        raise _wrong(value, kind)
    # tuple[int, str] has a type for each item; tuple[int, ...], as lists, one for all.
    if kind is tuple and items and items[-1] is not ...:
        if len(items) != len(value):
            raise MetadataError(f"must have {len(items)} items, not {len(value)}")
        hints: Sequence[Any] = items
    else:
        hints = [items[0] if items else Any] * len(value)
    pairs = enumerate(zip(value, hints, strict=True))
    result = [_inner(f"[{i}]", entry, hint) for i, (entry, hint) in pairs]
    return tuple(result) if kind is tuple else result


def _inner(name: str, value: Any, hint: Any) -> Any:
    with member(name):
        return _validate(value, hint)


def _members(value: Any, kind: Any) -> Any:
    value = as_object(value)
    hints = _hints(kind)
    if is_typeddict(kind):
        needed = required_keys(kind)
    else:
        missing = dataclasses.MISSING
        # Only what __init__ takes: a dataclass computes its other fields itself.
        fields = [f for f in dataclasses.fields(kind) if f.init]
        hints = {f.name: hints[f.name] for f in fields}
        needed = {f.name for f in fields if f.default is missing and f.default_factory is missing}
    for name in sorted(needed - set(value)):
        raise MetadataError(f"{name}: this mandatory member is missing")
    for name in value:
        # Not ignored: a dataclass cannot hold it, and it would be lost when written again.
        if name not in hints:
            raise MetadataError(f"{name}: {kind.__name__} has no such member")
    return kind(**{name: _inner(name, entry, hints[name]) for name, entry in value.items()})


def _hints(kind: Any) -> dict[str, Any]:
    try:
        return get_type_hints(kind, include_extras=True)
    except NameError as error:  # a name of a function's own, in an annotation that is text
        raise UnsupportedError(
            f"the annotations of {kind.__name__} cannot be read: {error}; define it, and what they "
            "name, in a module rather than in a function"
        ) from error


def required_keys(kind: Any) -> set[str]:
    """Return the members that a TypedDict must have, also where its annotations are text."""
    # Where annotations are text, `__required_keys__` knows neither Required nor NotRequired.
    origins = {name: get_origin(hint) for name, hint in _hints(kind).items()}
    always = {name for name, origin in origins.items() if origin is Required}
    return always | {n for n in kind.__required_keys__ if origins[n] is not NotRequired}


def _one_of(value: Any, hint: Any) -> Any:
    # The first that fits, as nothing in JSON says which was meant; order matters for dataclasses.
    for choice in get_args(hint):
        try:
            return _validate(value, choice)
        except MetadataError:
            continue  # the error below names them all
    raise _wrong(value, hint)


def _wrong(value: Any, hint: Any) -> MetadataError:
    return MetadataError(f"must be {getattr(hint, '__name__', hint)}, not {short(value)}")
