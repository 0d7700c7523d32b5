"""Hooks of the documentation site: sample files, links to the reference, the command line."""

from __future__ import annotations

import argparse
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import virtualzarr.errors
from virtualzarr.cli.parser import build_parser
from virtualzarr.cli.samples import FULL, PARTIAL, write_archive

SAMPLES = Path("build/samples")
"""Where examples run whose results the pages show: ``workdir`` of their code blocks."""

_CODE = re.compile(r"<code>([A-Za-z_][\w.]*)(?:\(\))?</code>")
_PACKAGES = ("virtualzarr", "vz", "grids")


def on_pre_build(config: Any) -> None:
    """Write the files that examples are about."""
    shutil.rmtree(SAMPLES, ignore_errors=True)  # what was published from those of another build
    write_archive(SAMPLES / "archive", FULL, "air")
    write_archive(SAMPLES / "partial", PARTIAL, "air")


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Put the options of all commands where a page asks for them."""
    if "<!-- commands -->" not in markdown:
        return markdown
    return markdown.replace("<!-- commands -->", "\n".join(_commands(build_parser())))


def on_page_content(html: str, **_: Any) -> str:
    """Link names of public objects to the reference, and hide where the samples really are."""
    return _CODE.sub(_linked, html.replace(str(SAMPLES.absolute()), "/data"))


def _linked(match: re.Match[str]) -> str:
    first, _, rest = match[1].partition(".")
    if first in _PACKAGES and rest:
        path = f"{first.replace('vz', 'virtualzarr')}.{rest}"
    elif first in virtualzarr.__all__ and (rest or not first.islower() or "_" in first):
        path = f"virtualzarr.{match[1]}"  # other names in lower case may be those of parameters
    elif hasattr(virtualzarr.errors, first):
        path = f"virtualzarr.errors.{match[1]}"
    else:
        return match[0]
    return f'<autoref identifier="{path}" optional>{match[0]}</autoref>'


def _commands(parser: argparse.ArgumentParser) -> Iterator[str]:
    """Yield Markdown for each command: what it does, how it is called, and its arguments."""
    (commands,) = (a for a in parser._actions if isinstance(a, argparse._SubParsersAction))
    for entry in commands._choices_actions:
        command = commands.choices[entry.dest]
        usage = command.format_usage().removeprefix("usage: ")
        yield f"\n## {entry.dest}\n\n{_sentence(entry.help)}\n\n```text\n{usage}```\n"
        # What has to be given comes first.
        for action in sorted(command._actions, key=lambda action: bool(action.option_strings)):
            if action.dest == "help":
                continue
            name = command._get_formatter()._format_action_invocation(action)
            text = (action.help or "") % {**vars(action), "prog": command.prog}
            yield f"`{name}`\n:   {_sentence(text)}\n"
        if command.epilog:
            yield f"```text\n{command.epilog.strip()}\n```\n"


def _sentence(text: str | None) -> str:
    return f"{text[:1].upper()}{text[1:]}." if text else ""
