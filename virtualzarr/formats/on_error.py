"""What is done about a variable that cannot be virtualized."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager

from virtualzarr.choices import OnError
from virtualzarr.errors import SkippedVariableWarning, VirtualZarrError
from virtualzarr.manifest import Source


class Refusals:
    """Raises what is wrong with a variable, or warns and goes on, as `on_error` has it.

    Parameters
    ----------
    source : Source
        The file, which messages name.
    on_error : {"raise", "warn"}

    Attributes
    ----------
    reasons : dict
        What was skipped, and why, for the group's `skipped`.
    """

    def __init__(self, source: Source, on_error: OnError) -> None:
        self.source = source
        self.on_error = on_error
        self.reasons: dict[str, str] = {}

    @contextmanager
    def of(self, name: str) -> Iterator[None]:
        """Take care of errors that concern the variable of a name."""
        try:
            yield
        except VirtualZarrError as error:
            error.at(file=self.source.uri, variable=name)
            if self.on_error == "raise":
                raise
            self.reasons[name] = error.message
            warnings.warn(
                f"could not be virtualized: {error}", SkippedVariableWarning, stacklevel=4
            )
