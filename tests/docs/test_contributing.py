"""The map in CONTRIBUTING.md: every file it names exists, and every room is in it, in its order."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "virtualzarr"
LINES = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8").splitlines()

_PATH = re.compile(r"`([\w./-]+(?:\.py|\.toml|\.yml|/))`")
_ROOM = re.compile(r"^\| `(\w+)(?:/|\.py)` \|")


def test_contributing_names_what_exists():
    named = 0
    for line in LINES:
        paths = _PATH.findall(line)
        # Rows of the table name modules as seen from their room, all other text from the package.
        room = PACKAGE / paths[0] if _ROOM.match(line) else PACKAGE
        for path in paths:
            named += 1
            assert any((base / path).exists() for base in (ROOT, PACKAGE, room)), path
    assert named > 100


def test_contributing_lists_rooms_in_the_order_of_imports():
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    contract = settings["tool"]["importlinter"]["contracts"][0]
    order = [layer.removeprefix("virtualzarr.") for layer in contract["layers"]]
    assert [match[1] for match in map(_ROOM.match, LINES) if match] == order
    modules = {path.stem for path in PACKAGE.iterdir() if path.suffix == ".py" or path.is_dir()}
    assert modules - set(order) <= {"__init__", "__main__", "__pycache__"}
