"""The documentation site: it lists every page, and its reference has every public name."""

from __future__ import annotations

import argparse
import re
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

import pytest

import virtualzarr
from virtualzarr.cli.parser import build_parser

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"

MODULES = {"virtualzarr.models", "virtualzarr.errors", "virtualzarr.config"}
"""Public names that are modules: the reference has the public names in them."""

PUBLIC = ("virtualzarr", "grids", "virtualzarr.codecs", "virtualzarr.formats",
          "virtualzarr.manifest", "virtualzarr.models", "virtualzarr.stores")  # fmt: skip


def listed(entry):
    """Yield the pages of a part of the navigation."""
    if isinstance(entry, str):
        yield entry
    for inner in entry.values() if isinstance(entry, dict) else entry * isinstance(entry, list):
        yield from listed(inner)


def rendered():
    """Public paths of what the reference renders from docstrings."""
    pages = (DOCS / "reference").glob("*.md")
    text = "\n".join(page.read_text(encoding="utf-8") for page in pages)
    return re.findall(r"^::: (\S+)$", text, re.MULTILINE)


def resolve(path):
    """Import the module that a path begins with, and take the rest from it."""
    module, _, name = path.rpartition(".")
    try:
        return getattr(import_module(module), name)
    except ModuleNotFoundError:
        return getattr(resolve(module), name)


def is_module(path):
    try:
        return find_spec(path) is not None
    except ModuleNotFoundError:
        return False


def test_navigation_lists_every_page():
    yaml = pytest.importorskip("yaml")
    navigation = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))["nav"]
    pages = [page.relative_to(DOCS).as_posix() for page in DOCS.rglob("*.md")]
    assert sorted(listed(navigation)) == sorted(pages)


def test_reference_names_exist_and_come_once():
    names = rendered()
    assert len(names) == len(set(names))
    for name in names:
        if ".integrations." in name:
            pytest.importorskip(name.split(".integrations.")[1].split(".")[0].split("_")[0])
        assert resolve(name) is not None, name


def test_reference_names_are_not_those_of_modules():
    # What renders docstrings takes a module for an object of the same name beside it.
    homes = {f"virtualzarr.{name}": f"{home}.{name}" for name, home in virtualzarr._MODULES.items()}
    paths = {homes.get(name, name) for name in rendered()} | set(homes.values())
    assert {path for path in paths if is_module(path)} <= MODULES


@pytest.mark.parametrize("module", PUBLIC)
def test_every_public_name_is_in_the_reference(module):
    # What is public in two places is shown where it is used most.
    shown = {id(resolve(path)) for path in rendered()}
    public = {name: getattr(import_module(module), name) for name in import_module(module).__all__}
    missing = {name for name, value in public.items() if id(value) not in shown}
    assert {name for name in missing if not isinstance(public[name], ModuleType)} == set()


def test_settings_and_errors_are_in_the_reference():
    names = rendered()
    assert {"virtualzarr.limits.Limits", "virtualzarr.tuning.Tuning"} <= set(names)
    assert {"virtualzarr.config", "virtualzarr.errors"} <= set(names)


def test_every_argument_of_the_command_line_says_what_it_is():
    (commands,) = (a for a in build_parser()._actions if isinstance(a, argparse._SubParsersAction))
    for name, command in commands.choices.items():
        assert [a.dest for a in command._actions if not a.help] == [], name
