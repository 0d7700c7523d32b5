"""Anomalies: what is odd in an archive, with its kind, files and variable."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from os.path import commonprefix
from typing import Any, Literal, cast, get_args

from virtualzarr.redaction import HiddenRepr

Kind = Literal[
    # files
    "empty", "truncated", "no permission", "not the format", "not supported", "damaged metadata",
    "damaged chunk", "gone", "dangling link", "unreachable", "changed during the scan",
    "same content twice", "replaced", "half-written", "name contradicts coordinate",
    # the axis
    "step missing", "span missing", "overlap", "order unlike names", "not monotonic",
    "value repeated", "jitter", "step changes", "missing value", "no rows", "no coordinate",
    "epoch", "calendar",
    # structure
    "variable gone", "variable added", "variable renamed", "variable skipped", "dimension order",
    "dimensions", "length off the axis", "static coordinate", "reversed", "data type",
    "byte order", "chunk shape", "filters", "lossy parameter", "format",
    # meaning
    "units", "scale/offset", "fill", "flags/valid range", "meaning",
]  # fmt: skip
"""What can be odd."""


TIME_UNITS = "time units"
"""The property that is hours, days, ... of a time; that of other variables is ``units``."""


CALENDAR_NAMES = "calendar name"
"""The property that is how a calendar is called, where ``calendar`` is which one it is."""

_MOST_OF_REASONS = 200
"""Characters of why a variable was skipped."""


def as_kind(text: str) -> Kind:
    """Return a kind by its name. Raises `ValueError` if it is none."""
    if text not in get_args(Kind):
        raise ValueError(f"there is no kind {text!r}")
    return cast(Kind, text)


@dataclass(frozen=True, repr=False)
class Anomaly(HiddenRepr):
    """Something odd in an archive.

    Parameters
    ----------
    kind : str
    files : tuple of str
        Those that it is about; of a missing step, the files before and after it.
    variable : str
        Its path, a pattern of several (``CMI_*``), or empty.
    detail : str
        What exactly, in words.
    era : int, optional
        The number of the era that begins with it; None if it is of single files.
    span : (str, str), optional
        Between which coordinates it is, as text.
    """

    kind: Kind
    files: tuple[str, ...]
    variable: str = ""
    detail: str = ""
    era: int | None = None
    span: tuple[str, str] | None = None

    @property
    def can_convert(self) -> bool:
        """Whether joins can convert what differs, if they convert what is of its kind."""
        if self.kind == "calendar":
            return self.detail.startswith(CALENDAR_NAMES)
        return self.kind != "units" or self.detail.startswith(TIME_UNITS)

    def __str__(self) -> str:
        names = ", ".join(self.files[:2]) + (", ..." if len(self.files) > 2 else "")
        count = f" ({len(self.files):,} files)" if len(self.files) > 1 else ""
        variable = f" of {self.variable}" if self.variable else ""
        detail = f" ({self.detail})" if self.detail else ""
        return f"{self.kind}{variable}{detail}: {names}{count}"


@dataclass(frozen=True)
class Change:
    """A property of a variable that differs between files.

    Parameters
    ----------
    variable, name : str
        The property, as in `FileFacts.properties`; ``variable`` for the variable itself.
    before, after : object
        None where there is none.
    """

    variable: str
    name: str
    before: Any
    after: Any

    @property
    def kind(self) -> Kind:
        """Which kind of anomaly it is."""
        name = self.name
        if name == "name":
            return "variable renamed"
        if name == "variable":
            return "variable added" if self.before is None else "variable gone"
        if name == "skipped":
            return "variable skipped"
        if name == "dimensions":
            is_order = sorted(map(str, self.before or ())) == sorted(map(str, self.after or ()))
            return "dimension order" if is_order else "dimensions"
        if name.startswith("length along"):
            return "length off the axis"
        if name.startswith("chunk along"):
            return "chunk shape"
        return _KINDS.get(name, "meaning")

    def describe(self) -> str:
        """Return what changed, without the variable.

        Examples
        --------
        >>> Change("air", "filters", ["zlib"], ["shuffle", "zlib"]).describe()
        'gain shuffle'
        >>> Change("air", "units", "'K'", None).describe()
        "units 'K' gone"
        """
        if self.name == "variable":
            return "added" if self.before is None else "gone"
        if self.name == "name":
            return f"called {_show(self.before)} before"
        if self.name == "skipped":
            return "not skipped" if self.after is None else _show(self.after, _MOST_OF_REASONS)
        if self.name == "chunks":
            return "chunks are missing" if self.before is None else "no chunk is missing"
        if self.name in ("values", "reversed values"):
            return "other values"
        if self.name == "filters" and self.before is not None and self.after is not None:
            gained = [name for name in self.after if name not in self.before]
            removed = [name for name in self.before if name not in self.after]
            words = [f"gain {', '.join(gained)}"] if gained else []
            words += [f"lose {', '.join(removed)}"] if removed else []
            return " and ".join(words) or "filters in another order"
        if self.before is None or self.after is None:
            value, word = (self.after, "added") if self.before is None else (self.before, "gone")
            return f"{self.name} {_show(value)} {word}"
        return f"{self.name} {_show(self.before)} becomes {_show(self.after)}"


_KINDS: dict[str, Kind] = {
    "data type": "data type", "dtype": "data type", "byte order": "byte order",
    "filters": "filters", "fill value": "fill", "_FillValue": "fill", "missing_value": "fill",
    "scale_factor": "scale/offset", "add_offset": "scale/offset", "_Unsigned": "data type",
    "units": "units", TIME_UNITS: "units", "epoch": "epoch", "calendar": "calendar",
    CALENDAR_NAMES: "calendar", "values": "static coordinate",
    "reversed values": "reversed", "valid_min": "flags/valid range",
    "valid_max": "flags/valid range", "valid_range": "flags/valid range",
    "flag_values": "flags/valid range", "flag_masks": "flags/valid range",
    "flag_meanings": "flags/valid range", "format": "format",
    "lossy": "lossy parameter", "chunks": "half-written",
}  # fmt: skip


def _show(value: Any, most: int = 60) -> str:
    text = f"({', '.join(map(str, value))})" if isinstance(value, list) else str(value)
    return text if len(text) <= most else f"{text[: most - 3]}..."


def merge_changes(
    changes: Iterable[Change], variables: Sequence[str]
) -> list[tuple[Kind, str, str]]:
    """Return kind, variables and words of changes, those that are the same for several as one.

    Parameters
    ----------
    changes : iterable of Change
    variables : sequence of str
        All that there are: a pattern names no other.

    Examples
    --------
    >>> two = [Change(f"CMI_{k}", "data type", "int16", "int32") for k in (1, 2)]
    >>> merge_changes(two, ["CMI_1", "CMI_2", "x"])
    [('data type', 'CMI_*', 'data type int16 becomes int32')]
    """
    together: dict[tuple[Kind, str], list[str]] = {}
    for change in changes:
        names = together.setdefault((change.kind, change.describe()), [])
        if change.variable not in names:
            names.append(change.variable)
    return [
        (kind, variable, words)
        for (kind, words), names in together.items()
        for variable in _as_pattern(names, variables)
    ]


def _as_pattern(names: Sequence[str], variables: Sequence[str]) -> list[str]:
    """Return one pattern that fits exactly these names, or the names."""
    prefix = commonprefix(names)  # noqa: RUF071
    if len(names) > 1 and prefix and not any(char in prefix for char in "*?["):
        pattern = f"{prefix}*"
        if {name for name in variables if fnmatchcase(name, pattern)} == set(names):
            return [pattern]
    return list(names)
