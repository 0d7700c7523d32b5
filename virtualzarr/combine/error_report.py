"""What is wrong with the inputs of a combination: all of it collected, then raised as one error."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from virtualzarr.array import Array
from virtualzarr.combine.options import DEFAULT, Options
from virtualzarr.errors import MismatchError
from virtualzarr.hierarchy.group import Group

SHOWN = 5
"""How many problems an error lists."""


class Labels:
    """Names of inputs for messages, made only when a message is.

    Parameters
    ----------
    items : sequence of Array or Group
    files : sequence of str, optional
        Where the items come from. Without it, the sources of their references tell.

    Examples
    --------
    >>> Labels([Group(), Group()], ["/archive/a.nc", "/archive/b.nc"])[1]
    'input 1 (/archive/b.nc)'
    """

    def __init__(
        self, items: Sequence[Array] | Sequence[Group], files: Sequence[str] | None = None
    ) -> None:
        self._items = items
        self._files = files
        self._known: dict[int, str] = {}

    def __getitem__(self, index: int) -> str:
        if index not in self._known:
            self._known[index] = self._label(index)
        return self._known[index]

    def of(self, indices: Sequence[int]) -> Labels:
        """Return the names of some of the inputs, which keep their numbers."""
        return _Some(self, indices)

    def _label(self, index: int) -> str:
        if self._files is not None:
            return f"input {index} ({self._files[index]})"
        uris = source_uris(self._items[index])
        more = f" and {len(uris) - 1} more" if len(uris) > 1 else ""
        return f"input {index} ({uris[0]}{more})" if uris else f"input {index}"

    def file(self, index: int) -> str | None:
        """Return the file of an input, if it is one."""
        if self._files is not None:
            return self._files[index]
        uris = source_uris(self._items[index])
        return uris[0] if len(uris) == 1 else None


class _Some(Labels):
    """Names of some inputs, by their place among these."""

    def __init__(self, labels: Labels, indices: Sequence[int]) -> None:
        self._labels, self._indices = labels, indices

    def __getitem__(self, index: int) -> str:
        return self._labels[self._indices[index]]

    def of(self, indices: Sequence[int]) -> Labels:
        return _Some(self._labels, [self._indices[index] for index in indices])

    def file(self, index: int) -> str | None:
        return self._labels.file(self._indices[index])


def source_uris(item: Array | Group) -> list[str]:
    """Return the files that the references of an array or group point into, each once."""
    arrays = [item] if isinstance(item, Array) else [a for _, a in item.members(None)]
    sources = (
        source
        for array in arrays
        if isinstance(array, Array) and array.is_virtual
        for source in array.manifest.sources
    )
    return list(dict.fromkeys(source.uri for source in sources if source.uri))


@dataclass
class Problems:
    """Everything found wrong so far.

    Attributes
    ----------
    labels : Labels
    found : list of (variable, file, text)
    ways : dict
        What may resolve some of it: values of options, and names of these options.
    """

    labels: Labels
    found: list[tuple[str, str | None, str]] = field(default_factory=list)
    ways: dict[str, str] = field(default_factory=dict)

    def of(self, indices: Sequence[int]) -> Problems:
        """Return the same problems, for a part of the inputs by their number within it."""
        return Problems(self.labels.of(indices), self.found, self.ways)

    def add(self, variable: str, index: int, text: str) -> None:
        """Note a problem of one variable in one input."""
        self.found.append((variable, self.labels.file(index), text))

    def differ(self, variable: str, index: int, model: int, what: str, mine: Any, its: Any) -> None:
        """Note that an input differs from the input it is held against."""
        self.add(
            variable,
            index,
            f"{self.labels[index]} has {what} {mine}, but {self.labels[model]} has {its}",
        )

    def check(self, doing: str, options: Options = DEFAULT) -> None:
        """Raise what was found.

        Parameters
        ----------
        doing : str
            What cannot be done.
        options : Options
            What was asked for already.

        Raises
        ------
        MismatchError
            Its file and variable are those of the first problem.
        """
        if not self.found:
            return
        several = len({name for name, _, _ in self.found}) > 1
        lines = [f"{name}: {text}" if several else text for name, _, text in self.found[:SHOWN]]
        if len(self.found) > SHOWN:
            lines.append(f"and {len(self.found) - SHOWN} more problems")
        lines += self._advice(options)
        variable, file, _ = self.found[0]
        between = "\n  " if len(lines) > 1 else " "
        raise MismatchError(
            f"cannot {doing}:{between}" + "\n  ".join(lines),
            file=file,
            variable=variable or None,
        )

    def _advice(self, options: Options) -> list[str]:
        """Return what may be asked for to resolve what was found."""
        rules = [way for way, option in self.ways.items() if option == "harmonize"]
        rules = [rule for rule in rules if rule not in options.harmonize]
        lines = []
        if rules:
            value = repr(rules[0]) if len(rules) == 1 else repr(rules)
            lines.append(
                f"(harmonize={value} may resolve that: inputs are then decoded each in its own way)"
            )
        if "override" in self.ways and options.compat == DEFAULT.compat:
            lines.append(
                '(compat="override" takes variables that are not joined from the first input, '
                'compat="minimal" leaves out those that differ)'
            )
        return lines
