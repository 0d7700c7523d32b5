"""What static type checkers make of models with attributes of a type of their own."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import pytest

PROGRAM = """
    from collections.abc import Mapping
    from dataclasses import dataclass
    from typing import Any
    from virtualzarr.models import v2

    @dataclass
    class Dims:
        _ARRAY_DIMENSIONS: list[str]

    DimsArray = v2.ArraySpec[Dims]
    DimsGroup = v2.GroupSpec[Any, Mapping[str, DimsArray]]
    x = DimsArray(
        attributes=ATTRIBUTES, shape=(4,), chunks=(4,), dtype="<i4", compressor=None, fill_value=0
    )
    group = DimsGroup(attributes={}, members={"x": x})
    read: DimsArray = DimsArray.from_json(x.to_json(), Dims)
    names: list[str] = read.attributes._ARRAY_DIMENSIONS
"""


@pytest.mark.parametrize(
    ("attributes", "right"), [("Dims(['a'])", True), ("{'foo': 10}", False)], ids=["right", "wrong"]
)
def test_checked_statically(attributes, right, tmp_path):
    pytest.importorskip("mypy")
    program = tmp_path / "program.py"
    program.write_text(textwrap.dedent(PROGRAM).replace("ATTRIBUTES", attributes))
    command = [sys.executable, "-m", "mypy", "--follow-imports=silent", str(program)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode == 0) is right, done.stdout + done.stderr
    assert right or 'incompatible type "dict[str, int]"; expected "Dims"' in done.stdout
