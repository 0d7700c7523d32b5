"""Contract of scans: their options, and errors that are raised, or skip the variable."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypedDict

from virtualzarr.choices import OnError
from virtualzarr.errors import VirtualZarrError, error_context, warn_caller
from virtualzarr.manifest import Source


class ScanOptions(TypedDict, total=False):
    """Keyword arguments of the function `scan` of a format, which returns a `Group`.

    All scans raise `SourceError` if there is no such file, or it is truncated or damaged, and
    `UnsupportedError` for what cannot be referenced exactly. Those that reach other files take
    `allowed` as well, as `virtualzarr.open` does.

    Attributes
    ----------
    on_error : {"raise", "warn"}
        What to do about a variable that cannot be virtualized: raise, or warn, leave it out and
        note it in the group's `skipped`.
    storage_options : mapping, optional
        How fsspec opens a URL.
    """

    on_error: OnError
    storage_options: Mapping[str, Any] | None


class Refusals:
    """Variables that cannot be virtualized: raised, or collected with a warning.

    Parameters
    ----------
    source : Source
        The file, which messages name.
    on_error : {"raise", "warn"}

    Attributes
    ----------
    reasons : dict
        Reasons by the name of each skipped variable, for the group's `skipped`.
    """

    def __init__(self, source: Source, on_error: OnError) -> None:
        self.source = source
        self.on_error = on_error
        self.reasons: dict[str, str] = {}

    @contextmanager
    def of(self, name: str) -> Iterator[None]:
        """Handle errors in the body as errors of one variable."""
        try:
            yield
        except VirtualZarrError as error:
            error.at(file=self.source.uri, variable=name)
            if self.on_error == "raise":
                raise
            self.reasons[name] = error.message
            warn_caller(f"could not be virtualized: {error}")


@contextmanager
def begin_scan(
    path_or_url: Any,
    on_error: OnError = "raise",
    storage_options: Mapping[str, Any] | None = None,
) -> Iterator[Refusals]:
    """Take the fingerprint of a file, whose name errors in the body get."""
    source = Source.from_file(path_or_url, storage_options)
    with error_context(file=source.uri):
        yield Refusals(source, on_error)
