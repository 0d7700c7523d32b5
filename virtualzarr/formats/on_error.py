"""Error policy of scans: raise, or warn and skip the variable, and errors that name their file."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from virtualzarr.choices import OnError
from virtualzarr.errors import VirtualZarrError, warn_caller
from virtualzarr.manifest import Source


@contextmanager
def name_file(uri: str) -> Iterator[None]:
    """Add the file to errors of this package that are raised in the body."""
    try:
        yield
    except VirtualZarrError as error:
        # The cause is passed on: `raise error` alone would chain the error to itself.
        raise error.at(file=uri) from error.__cause__


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
