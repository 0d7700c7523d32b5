"""Optional libraries of codecs, imported when they are first used."""

from __future__ import annotations

import importlib
import threading
from contextlib import suppress
from functools import lru_cache
from typing import Any

from virtualzarr.codecs.core.base import Codec
from virtualzarr.errors import import_optional


def import_whole(name: str) -> Any:
    """Return a package, None where it is missing, imported in a thread that no Ctrl-C reaches.

    Of one written in C that is interrupted while it is imported, a part stays for good.
    """

    def work() -> None:
        with suppress(ImportError):
            modules.append(importlib.import_module(name))

    modules = list[Any]()
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    return modules[0] if modules else None


@lru_cache(maxsize=64)
def find_imagecodecs(function: str, constants: str) -> Any:
    """Return a function of imagecodecs, None where the package or its codec is missing.

    Parameters
    ----------
    function : str
        Such as ``"zstd_decode"``.
    constants : str
        The name of the codec's constants, which say whether it was built: ``"ZSTD"``.
    """
    try:
        import imagecodecs
    except ImportError:
        return None
    # Builds without a C library still have its functions, which fail when they are called.
    return getattr(imagecodecs, function) if getattr(imagecodecs, constants).available else None


def require_imagecodecs(name: str) -> Any:
    """Return the package imagecodecs, which a codec needs.

    Raises
    ------
    MissingDependencyError
        It is not installed.
    """
    problem = f"codec {name} needs the package imagecodecs: install it"
    return import_optional("imagecodecs", problem)


def call_imagecodecs(codec: Codec, function: str, *args: Any, **options: Any) -> Any:
    """Call a function of imagecodecs; its errors become those of a codec."""
    try:
        return getattr(require_imagecodecs(codec.name), function)(*args, **options)
    except (RuntimeError, ValueError, TypeError) as error:
        raise codec.error(error) from error
