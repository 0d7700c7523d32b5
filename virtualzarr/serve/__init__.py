"""Zarr over HTTP: an ASGI application that serves datasets to any client, read-only."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from virtualzarr.serve.app import create_app as create_app
    from virtualzarr.serve.server import run_in_thread as run_in_thread

__all__ = ["create_app", "run_in_thread"]


def __getattr__(name: str) -> Any:
    # Imported late: the command line looks into this package to print its help.
    if name == "create_app":
        from virtualzarr.serve.app import create_app

        return create_app
    if name == "run_in_thread":
        from virtualzarr.serve.server import run_in_thread

        return run_in_thread
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
