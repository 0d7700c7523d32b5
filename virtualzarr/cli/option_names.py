"""Names of options in messages, where the package speaks of arguments of Python."""

from __future__ import annotations

import argparse
import re

_ASSIGNMENT = re.compile(
    r"""\b([a-z_]+)=(True\b|\d+\b|"[^"\s]*"|'[^'\s]*'|\[[^]]*\]|(?=[\s,.;:)]|$))"""
)
_CALL = re.compile(r"(?<![\w.])([a-z_]+)\((?:([a-z_]+)=\.\.\.)?\)")
_ALIASES = {"concat_dim": "dim", "dims": "dim"}
_CHOICES = {("duplicates", "skip"): "skip_duplicates"}
_FLAGS = {"harmonize": {"packing", "time", "fill"}}  # what an option without a value stands for
_COMMANDS = {
    "append", "check", "compact", "convert", "copy", "diff", "drop", "history", "rename", "replace",
    "rollback", "tag", "vacuum",
}  # fmt: skip
"""Functions and methods that are commands, too."""
_NO_OPTIONS = {
    "combine", "combine_attrs", "compat", "coordinate", "drop_variables", "dtype", "gaps",
    "missing", "overlap", "preprocess",
}  # fmt: skip
"""Arguments that no command has an option for. Other assignments may be part of what is shown."""


def in_options(text: str, parser: argparse.ArgumentParser) -> str:
    """Return a message with the options of a command for arguments of functions.

    What no command has an option for, is said to be of Python.

    Examples
    --------
    >>> parser = argparse.ArgumentParser()
    >>> for option in ("--copy", "--on-error", "--skip-duplicates", "--dim"):
    ...     _ = parser.add_argument(option)
    >>> in_options('publish with copy=True, or on_error="warn"; dtype= is another way', parser)
    'publish with --copy, or --on-error warn; dtype= in Python is another way'
    >>> in_options("copy(chunks=...) rewrites them; or stack()", parser)
    'virtualzarr copy --chunks rewrites them; or stack() in Python'
    >>> in_options('duplicates="skip" leaves them out; concat_dim is missing', parser)
    '--skip-duplicates leaves them out; --dim is missing'
    >>> _ = parser.add_argument("--harmonize", action="store_true")
    >>> in_options("harmonize=['packing', 'time'] resolves that, harmonize='unmask' this", parser)
    "--harmonize resolves that, harmonize='unmask' in Python this"
    >>> _ = parser.add_argument("--dry-run", action="store_true")
    >>> in_options("preview() lists what copies less", parser)
    '--dry-run lists what copies less'
    """
    names = {
        action.dest: next(o for o in action.option_strings if o.startswith("--"))
        for action in parser._actions
        if any(option.startswith("--") for option in action.option_strings)
    }

    def replace_assignment(match: re.Match[str]) -> str:
        name, value = match[1], match[2].strip("\"'")
        # An argument with one useful value is a flag here.
        if (choice := _CHOICES.get((name, value))) in names:
            return names[choice]
        option = names.get(_ALIASES.get(name, name))
        if option is None:
            return f"{match[0]} in Python" if name in _NO_OPTIONS else match[0]
        if name in _FLAGS and value != "True":
            # --harmonize stands for all safe rules; a rule that must be replace_name has no option.
            is_same = _FLAGS[name].issuperset(re.findall(r"\w+", value))
            return option if is_same else f"{match[0]} in Python"
        return option if value in ("True", "") else f"{option} {value}"

    def replace_name(match: re.Match[str]) -> str:
        return names.get(_ALIASES.get(match[0], match[0]), match[0])

    def replace_call(match: re.Match[str]) -> str:
        if match[1] == "preview" and "dry_run" in names:
            return names["dry_run"]
        if match[1] not in _COMMANDS:
            return f"{match[0]} in Python"
        return f"virtualzarr {match[1]}" + (f" --{match[2].replace('_', '-')}" if match[2] else "")

    # Calls first: their arguments would be taken for assignments of the command at hand.
    text = _ASSIGNMENT.sub(replace_assignment, _CALL.sub(replace_call, text))
    # Words with an underscore are no words of the language.
    return re.sub(r"(?<![\w-])[a-z]+_[a-z_]+(?![\w=(])", replace_name, text)
