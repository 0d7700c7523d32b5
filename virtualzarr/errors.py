"""Exceptions of this package: each says what happened, where, and what to do."""

from __future__ import annotations

import re
import reprlib
import sys
import threading
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from difflib import get_close_matches
from importlib import import_module
from typing import Any

from virtualzarr.redaction import hide_in_url, hide_secrets

_PACKAGE = re.compile(r"(virtualzarr|grids|contextlib)(\.|$)")


def format_place(file: str | None, variable: str | None, chunk: str | None) -> str:
    """Return where something happened, as far as it is known, without secrets.

    Examples
    --------
    >>> format_place("https://host/a.nc?sig=a1b2", "", "0.1")
    'file https://host/a.nc?sig=***, chunk 0.1'
    """
    context = {"file": file and hide_in_url(file), "variable": variable, "chunk": chunk}
    return ", ".join(f"{name} {value}" for name, value in context.items() if value)


class VirtualZarrError(Exception):
    """Base of every error this package raises on purpose.

    Parameters
    ----------
    message : str
        What happened and what to do about it.
    file, variable, chunk : str, optional
        Where it happened. Callers that know more than the raiser add it with `at`.

    Examples
    --------
    >>> str(CodecError("zlib data is truncated", chunk="0.1").at(variable="air"))
    'zlib data is truncated [variable air, chunk 0.1]'
    """

    def __init__(
        self,
        message: str,
        *,
        file: str | None = None,
        variable: str | None = None,
        chunk: str | None = None,
    ) -> None:
        # Here, and not where it is shown: errors are logged, pickled and sent to trackers.
        if file and file in message:
            message = message.replace(file, hide_in_url(file))
        self.message = hide_secrets(message)
        super().__init__(self.message)
        self.file = file
        self.variable = variable
        self.chunk = chunk

    @property
    def file(self) -> str | None:
        """The file or URL, without secrets."""
        return self._file

    @file.setter
    def file(self, file: str | None) -> None:
        self._file = None if file is None else hide_in_url(file)

    def at(
        self, *, file: str | None = None, variable: str | None = None, chunk: str | None = None
    ) -> VirtualZarrError:
        """Fill in what is missing of where it happened, and return the error itself."""
        self.file = self.file or file
        self.variable = self.variable or variable
        self.chunk = self.chunk or chunk
        return self

    def __reduce__(self) -> Any:
        # tblib, which dask and distributed install for all exceptions defined by then, has
        # copies share one `__dict__` unless there is this method: `at` would change them both.
        state = dict(self.__dict__)
        cause = self.__cause__
        # What the system said goes with it to other processes: no permission is no damage.
        if isinstance(cause, OSError) and type(cause).__module__ == "builtins":
            state["__cause__"] = cause
        return type(self), (self.message,), state

    def __str__(self) -> str:
        where = format_place(self.file, self.variable, self.chunk)
        return f"{self.message} [{where}]" if where else self.message


class MetadataError(VirtualZarrError, ValueError):
    """A metadata document breaks its specification."""


class CodecError(VirtualZarrError, ValueError):
    """Bytes do not decode to the block they should be, or a codec's configuration is wrong."""


class UnsupportedError(VirtualZarrError, NotImplementedError):
    """The input is legal, but this package does not support it."""


class MissingPropertyError(UnsupportedError, AttributeError):
    """An array or group has no such property, being virtual, or being stored."""


class MissingDependencyError(VirtualZarrError, ImportError):
    """An optional package is needed; the message names the extra that installs it."""


class MismatchError(VirtualZarrError, ValueError):
    """Arrays or groups to be combined differ in something that matters."""


class SourceError(VirtualZarrError, OSError):
    """A source file is missing, truncated, or changed since it was scanned."""


class SourceNotFoundError(SourceError, FileNotFoundError):
    """There is no such source file."""


class SourceChangedError(SourceError):
    """A source file is not the one it was when it was scanned."""


class BadReferenceError(VirtualZarrError, ValueError):
    """A reference file breaks its specification, or a reference cannot be right."""


class AccessError(VirtualZarrError, PermissionError):
    """A reference reaches outside the places the caller allowed."""


class NodeNotFoundError(VirtualZarrError, KeyError):
    """No array or group is stored under the path."""

    # That of KeyError shows the message as a literal, in quotes.
    __str__ = VirtualZarrError.__str__


class NodeExistsError(VirtualZarrError, FileExistsError):
    """There is an array or group where a new one is to be created."""

    __str__ = VirtualZarrError.__str__


class ChunkNotFoundError(VirtualZarrError, KeyError):
    """A chunk is missing and missing chunks are not to be filled."""

    __str__ = VirtualZarrError.__str__


class PublishError(VirtualZarrError, ValueError):
    """Something cannot be published so that foreign readers would read it right."""


class WriteError(PublishError, OSError):
    """A file cannot be written: there is no space, no permission, or no such folder."""


class LedgerError(VirtualZarrError, OSError):
    """A ledger of scans cannot be used: others have it, or it is none."""


class CommitFailedError(VirtualZarrError):
    """A commit to a dataset did not take place, and will not."""


class CommitUnknownError(VirtualZarrError):
    """The store could not be asked whether a commit to a dataset took place.

    Attributes
    ----------
    commit : str
        Its id: ask for it later, or repeat the change with it, which is safe.
    """

    def __init__(self, message: str, commit: str = "", **where: str | None) -> None:
        super().__init__(message, **where)
        self.commit = commit


class VersionExpiredError(VirtualZarrError):
    """A version of a dataset can no longer be opened: a vacuum took it away."""


class BelowFloorError(MismatchError):
    """Rows are from before the least coordinate that a dataset keeps."""


class TemplateError(VirtualZarrError, RuntimeError):
    """A file scanned by a template is not what a scan of the file is: a mistake of this package."""


class OutOfMemoryError(VirtualZarrError, MemoryError):
    """What is asked for is larger than the memory there is."""


class DecisionError(VirtualZarrError, ValueError):
    """A decision file cannot be understood, or leaves something undecided."""


class ExecutorError(VirtualZarrError, RuntimeError):
    """Processes of an executor have died or were stopped: because of a file, if it is named."""


class LedgerWarning(UserWarning):
    """A ledger of scans is damaged, and a new one is begun."""


class SkippedVariableWarning(UserWarning):
    """A variable is skipped, as it could not be virtualized or published; the others are there."""


class error_context:
    """Add file, variable and chunk, those that are given, to errors raised in the body."""

    __slots__ = ("_where",)

    # No generator, which takes several times as long: small reads notice it.
    def __init__(self, **where: str) -> None:
        self._where = where

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if isinstance(error, VirtualZarrError):
            error.at(**self._where)


def import_optional(module: str, problem: str) -> Any:
    """Return a module of an optional package.

    Raises
    ------
    MissingDependencyError
        It is not installed; the message is `problem`, which says what needs it.
    """
    try:
        return import_module(module)
    except ImportError as error:
        raise MissingDependencyError(problem) from error


def suggest(name: str, names: Iterable[str]) -> str:
    """Say which name is likely meant by one that there is not, or which there are.

    Examples
    --------
    >>> suggest("fomat", ["format", "mode"]), suggest("dim", ["concat_dim", "dtype"])
    ("is 'format' meant?", "is 'concat_dim' meant?")
    >>> suggest("branch", ["format", "mode"])
    'there are format and mode'
    """
    names = list(names)
    lower = {each.lower(): each for each in reversed(names)}
    near = get_close_matches(name.lower(), lower, 1, 0.7)
    near += [each for each in lower if name.lower() in each.split("_")]
    if near:
        return f"is {lower[near[0]]!r} meant?"
    if len(names) < 2:
        return f"there is {names[0]}" if names else "there is none"
    return f"there are {', '.join(names[:-1])} and {names[-1]}"


_nwarnings = 0
_collected = threading.local()

Warnings = list[tuple[str, type[Warning]]]
"""Messages and categories of warnings, to be given by another process."""


@contextmanager
def collect_warnings() -> Iterator[Warnings]:
    """Collect what this package warns of in this thread, instead of warning of it."""
    before, caught = getattr(_collected, "caught", None), list[tuple[str, type[Warning]]]()
    _collected.caught = caught
    try:
        yield caught
    finally:
        _collected.caught = before


def count_warnings() -> int:
    """Return of how many things this package warned in this process."""
    return _nwarnings


def warn_caller(message: str, category: type[Warning] = SkippedVariableWarning) -> None:
    """Warn of something at the line that called this package, however deep it was noticed."""
    global _nwarnings
    _nwarnings += 1
    message = hide_secrets(message)
    caught = getattr(_collected, "caught", None)
    if caught is not None:
        caught.append((message, category))
        return
    # A fixed stack level would be another for each way in, with decorators and context managers.
    frame, level = sys._getframe(), 1
    while frame.f_back is not None and _PACKAGE.match(frame.f_globals.get("__name__", "")):
        frame, level = frame.f_back, level + 1
    warnings.warn(message, category, stacklevel=level)


def as_memory_error(
    error: MemoryError, *, file: str | None = None, variable: str | None = None
) -> OutOfMemoryError:
    """Return this package's error for one of Python or numpy."""
    return OutOfMemoryError(
        f"there is not enough memory: {error}" if str(error) else "there is not enough memory",
        # It may be a whole document: then its beginning says enough.
        file=short(file) if file and len(file) > 1000 else file,
        variable=variable,
    )


def short(value: Any) -> str:
    """Show `value` in an error message, in at most 80 characters, however large it is."""
    text = _SHORT.repr(value)
    return text if len(text) <= _SHORT.maxother else f"{text[: _SHORT.maxother - 3]}..."


def name_type(value: Any) -> str:
    """Return the name of a value's class, and of the package that it is of.

    Examples
    --------
    >>> name_type([]), name_type(SourceError("a"))
    ('list', 'virtualzarr.SourceError')
    """
    kind = type(value)
    package = kind.__module__.partition(".")[0]
    return kind.__name__ if package == "builtins" else f"{package}.{kind.__name__}"


class _Short(reprlib.Repr):
    def __init__(self) -> None:
        super().__init__()
        self.maxstring = self.maxother = 80

    def repr_int(self, x: int, level: int) -> str:
        # Python refuses to write out integers of more than 4300 digits.
        return repr(x) if x.bit_length() <= 1000 else f"a number of {x.bit_length()} bits"


_SHORT = _Short()
