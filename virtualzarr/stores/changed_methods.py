"""Whether file systems of fsspec read and write as their class does, or were changed."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any


def is_unchanged(fs: Any, kind: str, hooks: Collection[str] = ()) -> bool:
    """Tell whether a file system reads and writes as a class of fsspec does.

    Parameters
    ----------
    fs : fsspec.AbstractFileSystem
    kind : str
        Module and name of the class.
    hooks : collection of str
        Methods that may be others.

    Examples
    --------
    >>> from fsspec.implementations.memory import MemoryFileSystem
    >>> class Encrypted(MemoryFileSystem):
    ...     def cat_file(self, path, **options): ...
    >>> kind = "fsspec.implementations.memory.MemoryFileSystem"
    >>> is_unchanged(MemoryFileSystem(), kind), is_unchanged(Encrypted(), kind)
    (True, False)
    """
    kinds = type(fs).__mro__
    names = [f"{each.__module__}.{each.__name__}" for each in kinds]
    if kind not in names:
        return False
    position = names.index(kind)
    changed = {name for each in kinds[:position] for name in vars(each)} | {*replaced_methods(fs)}
    changes = {name for name in changed - {*hooks} if not name.startswith("__")}
    return not any(callable(getattr(kinds[position], name, None)) for name in changes)


def replaced_methods(fs: Any) -> list[str]:
    """Return the names of methods that were replaced after a file system was made."""
    # Caches show attributes of what is beneath as their own, and have one of theirs. Methods that
    # wait for those of a loop are made of these.
    members: dict[str, Any] = object.__getattribute__(fs, "__dict__")
    return [name for name, value in members.items() if name != "_strip_protocol"
            and callable(value) and callable(getattr(type(fs), name, None))
            and not hasattr(value, "__wrapped__")]  # fmt: skip
