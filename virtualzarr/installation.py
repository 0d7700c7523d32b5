"""What must be installed beside this package for it to work at all."""

from __future__ import annotations

import os
import sys
from importlib.util import find_spec

_OURS = ("axis.py", "grid.py", "layout.py")
"""Modules of the package ``grids`` that is meant."""


def check_grids() -> None:
    """See to it that ``import grids`` finds the package that is installed with this one.

    PyPI has another one, of which the import name is the same.

    Raises
    ------
    ImportError
        It finds none, or another.
    """
    try:
        spec = sys.modules["grids"].__spec__ if "grids" in sys.modules else find_spec("grids")
    except ValueError:  # somebody put something there that was not imported
        spec = None
    if spec is None:
        raise ImportError(
            "the package grids, which is installed with virtualzarr, is not there: "
            "pip install --force-reinstall virtualzarr",
            name="grids",
        )
    folders = list(spec.submodule_search_locations or ())
    if any(all(os.path.exists(os.path.join(f, name)) for name in _OURS) for f in folders):
        return
    raise ImportError(
        "virtualzarr brings a package grids of its own, but here `import grids` finds another: "
        f"{spec.origin or folders}. Remove that (pip uninstall grids, or another name for your "
        "own module), then pip install --force-reinstall virtualzarr",
        name="grids",
        path=spec.origin,
    )
