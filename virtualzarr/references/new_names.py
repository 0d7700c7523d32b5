"""New names for source files: by prefixes of paths and URLs, or by a callable."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping

from virtualzarr.errors import MismatchError

NewNames = Mapping[str, str] | Callable[[str], str]
"""New names of source files by old ones, also of folders; or what returns the new name."""

_SHOWN = 3


def resolve_names(names: NewNames, uris: Iterable[str], references: str) -> dict[str, str]:
    """Return new names by old ones, of the files whose names change.

    Raises `MismatchError` if none of the files is, or lies below, any that is to be renamed, or has
    its new name.

    Parameters
    ----------
    names : mapping of str to str, or callable
        New URLs or paths by old ones, also of folders: the longest that fits counts. Or what
        returns the new name for an old one.
    uris : iterable of str
        The files that are referred to.
    references : str
        Where the references are, for errors.

    Examples
    --------
    >>> resolve_names({"/a": "s3://b", "/a/c.nc": "/d.nc"}, ["/a/b.nc", "/a/c.nc", "/e.nc"], "refs")
    {'/a/b.nc': 's3://b/b.nc', '/a/c.nc': '/d.nc'}
    """
    uris = list(uris)
    if callable(names):
        renamed = {old: names(old) for old in uris}
    else:
        renamed = {
            uri: _replace_prefix(uri, old, names[old])
            for uri in uris
            if (old := _longest_prefix(names, uri)) is not None
        }
        # Who does it again, after a process died, finds all of them renamed.
        again = any(_longest_prefix(names.values(), uri) is not None for uri in uris)
        if names and not renamed and not again:
            raise MismatchError(_no_source(names, uris), file=references)
    return {old: new for old, new in renamed.items() if new != old}


def _longest_prefix(names: Iterable[str], uri: str) -> str | None:
    """Return the longest of some folders or files that a name is, or lies below."""
    # Only whole path components match: /data/a is no prefix of /data/ab.
    fitting = (old for old in names if uri == old or uri.startswith(_as_folder(old)))
    return max(fitting, key=len, default=None)


def _replace_prefix(uri: str, old: str, new: str) -> str:
    return new if uri == old else _as_folder(new) + uri[len(_as_folder(old)) :]


def _as_folder(name: str) -> str:
    return name if name.endswith("/") else f"{name}/"


def _no_source(names: Iterable[str], uris: Iterable[str]) -> str:
    """Say that nothing is renamed, and where the sources are."""
    requested = " or ".join(map(repr, names))
    folders = list(dict.fromkeys(os.path.dirname(uri) for uri in uris))
    if not folders:
        return f"no file is renamed: the references have no source {requested}, and no other either"
    others = f" and {len(folders) - _SHOWN:,} other places" if len(folders) > _SHOWN else ""
    where = ", ".join(map(repr, folders[:_SHOWN]))
    return f"no source is {requested}, or lies below; the sources lie in {where}{others}"
