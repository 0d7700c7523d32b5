"""Installation check: ``import grids`` must find the package that comes with this one."""

from __future__ import annotations

import os
import sys
from importlib.util import find_spec

_OURS = ("axis.py", "grid.py", "layout.py")
"""Modules by which our package ``grids`` is recognized."""


def check_grids() -> None:
    """Check that ``import grids`` finds the package that is installed with this one.

    PyPI has another one, of which the import name is the same.

    Raises
    ------
    ImportError
        It finds none, or another.
    """
    # By its modules, not by its version: the other package has one, too, and may be anywhere.
    try:
        spec = sys.modules["grids"].__spec__ if "grids" in sys.modules else find_spec("grids")
    except ValueError:  # a module without a spec, put there by hand
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
