"""Messages in the words of the command line: options where the package speaks of arguments."""

from __future__ import annotations

import argparse
import re

_ASSIGNMENT = re.compile(r"""\b([a-z_]+)=(True\b|"[^"\s]*"|'[^'\s]*'|\[[^]]*\]|(?=[\s,.;:)]|$))""")
_ALIASES = {"concat_dim": "dim", "dims": "dim"}
_CHOICES = {("duplicates", "skip"): "skip_duplicates"}
_FLAGS = {"harmonize": {"packing", "time", "fill"}}  # what an option without a value stands for


def in_options(text: str, parser: argparse.ArgumentParser) -> str:
    """Return a message with the options of a command for arguments of functions.

    Arguments that the command has no option for stay as they are.

    Examples
    --------
    >>> parser = argparse.ArgumentParser()
    >>> for option in ("--copy", "--on-error", "--skip-duplicates", "--dim"):
    ...     _ = parser.add_argument(option)
    >>> in_options('publish with copy=True, or on_error="warn"; dtype= is another way', parser)
    'publish with --copy, or --on-error warn; dtype= is another way'
    >>> in_options('duplicates="skip" leaves them out; concat_dim is missing', parser)
    '--skip-duplicates leaves them out; --dim is missing'
    >>> _ = parser.add_argument("--harmonize", action="store_true")
    >>> in_options("harmonize=['packing', 'time'] resolves that, harmonize='unmask' this", parser)
    "--harmonize resolves that, harmonize='unmask' this"
    """
    names = {
        action.dest: next(o for o in action.option_strings if o.startswith("--"))
        for action in parser._actions
        if any(option.startswith("--") for option in action.option_strings)
    }

    def assigned(match: re.Match[str]) -> str:
        name, value = match[1], match[2].strip("\"'")
        if (choice := _CHOICES.get((name, value))) in names:
            return names[choice]
        option = names.get(_ALIASES.get(name, name))
        if option is None:
            return match[0]
        if name in _FLAGS and value != "True":
            return option if _FLAGS[name].issuperset(re.findall(r"\w+", value)) else match[0]
        return option if value in ("True", "") else f"{option} {value}"

    def named(match: re.Match[str]) -> str:
        return names.get(_ALIASES.get(match[0], match[0]), match[0])

    # Words with an underscore are no words of the language.
    return re.sub(r"(?<![\w-])[a-z]+_[a-z_]+(?![\w=(])", named, _ASSIGNMENT.sub(assigned, text))
