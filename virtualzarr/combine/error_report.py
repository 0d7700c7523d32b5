"""Error report: mismatches of all inputs, collected and raised as one error."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from virtualzarr.array import Array
from virtualzarr.combine.options import DEFAULT, ParsedOptions
from virtualzarr.errors import MismatchError
from virtualzarr.hierarchy.group import Group
from virtualzarr.hierarchy.inventory import list_uris

MAX_LISTED = 5
"""How many problems an error lists."""


class InputLabels:
    """Names of inputs in messages, derived lazily.

    Parameters
    ----------
    items : sequence of Array or Group
    files : sequence of str, optional
        Where the items come from. Without it, the sources of their references tell.

    Examples
    --------
    >>> InputLabels([Group(), Group()], ["/archive/a.nc", "/archive/b.nc"])[1]
    'input 1 (/archive/b.nc)'
    """

    def __init__(
        self, items: Sequence[Array] | Sequence[Group], files: Sequence[str] | None = None
    ) -> None:
        self._items = items
        self._files = files
        # Labels look through all sources of an input: for thousands of inputs that costs more than
        # joining them, and most are never shown.
        self._texts: dict[int, str] = {}

    def __getitem__(self, index: int) -> str:
        if index not in self._texts:
            self._texts[index] = self._label(index)
        return self._texts[index]

    def select(self, indices: Sequence[int]) -> InputLabels:
        """Return the names of some of the inputs, which keep their numbers."""
        return _SelectedLabels(self, indices)

    def _label(self, index: int) -> str:
        if self._files is not None:
            return f"input {index} ({self._files[index]})"
        uris = list_uris(self._items[index])
        others = f" and {len(uris) - 1} more" if len(uris) > 1 else ""
        return f"input {index} ({uris[0]}{others})" if uris else f"input {index}"

    def file(self, index: int) -> str | None:
        """Return the file of an input, if it is one."""
        if self._files is not None:
            return self._files[index]
        uris = list_uris(self._items[index])
        return uris[0] if len(uris) == 1 else None


class _SelectedLabels(InputLabels):
    """Names of some inputs, by their index among these."""

    def __init__(self, labels: InputLabels, indices: Sequence[int]) -> None:
        self._labels, self._indices = labels, indices

    def __getitem__(self, index: int) -> str:
        return self._labels[self._indices[index]]

    def select(self, indices: Sequence[int]) -> InputLabels:
        return _SelectedLabels(self._labels, [self._indices[index] for index in indices])

    def file(self, index: int) -> str | None:
        return self._labels.file(self._indices[index])


@dataclass
class ErrorReport:
    """Problems noted so far, for all variables and inputs.

    Attributes
    ----------
    labels : InputLabels
    problems : list of (variable, file, text)
    remedies : dict
        Values of options that may resolve some of them, and the names of these options.
    """

    labels: InputLabels
    problems: list[tuple[str, str | None, str]] = field(default_factory=list)
    remedies: dict[str, str] = field(default_factory=dict)

    def for_inputs(self, indices: Sequence[int]) -> ErrorReport:
        """Return the same problems, for a part of the inputs by their number within it."""
        # The lists are shared on purpose: what parts note belongs to the one error of the whole.
        return ErrorReport(self.labels.select(indices), self.problems, self.remedies)

    def add(self, variable: str, index: int, text: str) -> None:
        """Note a problem of one variable in one input."""
        self.problems.append((variable, self.labels.file(index), text))

    def add_difference(
        self, variable: str, index: int, baseline: int, name: str, value: Any, expected: Any
    ) -> None:
        """Note that an input differs from the one it is compared with."""
        self.add(
            variable,
            index,
            f"{self.labels[index]} has {name} {value}, but {self.labels[baseline]} has {expected}",
        )

    def raise_problems(self, action: str, options: ParsedOptions = DEFAULT) -> None:
        """Raise all problems as one error, if there are any.

        Parameters
        ----------
        action : str
            What cannot be done, as an infinitive.
        options : ParsedOptions
            Remedies that are in use already are not named again.

        Raises
        ------
        MismatchError
            Its file and variable are those of the first problem.
        """
        if not self.problems:
            return
        has_several = len({name for name, _, _ in self.problems}) > 1
        lines = [
            f"{name}: {text}" if has_several else text
            for name, _, text in self.problems[:MAX_LISTED]
        ]
        if len(self.problems) > MAX_LISTED:
            lines.append(f"and {len(self.problems) - MAX_LISTED} more problems")
        lines += self._format_remedies(options)
        variable, file, _ = self.problems[0]
        separator = "\n  " if len(lines) > 1 else " "
        raise MismatchError(
            f"cannot {action}:{separator}" + "\n  ".join(lines),
            file=file,
            variable=variable or None,
        )

    def _format_remedies(self, options: ParsedOptions) -> list[str]:
        """Return lines that name the options which may resolve the problems."""
        rules = [value for value, option in self.remedies.items() if option == "harmonize"]
        # A remedy that is in use already did not help.
        rules = [rule for rule in rules if rule not in options.harmonize]
        lines = []
        if rules:
            value = repr(rules[0]) if len(rules) == 1 else repr(rules)
            lines.append(
                f"(harmonize={value} may resolve that: inputs are then decoded each in its own way)"
            )
        if "override" in self.remedies and options.compat == DEFAULT.compat:
            lines.append(
                '(compat="override" takes variables that are not joined from the first input, '
                'compat="minimal" leaves out those that differ)'
            )
        return lines
