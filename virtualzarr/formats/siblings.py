"""Sibling files: headers and images stored in separate files of one folder."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from virtualzarr.errors import SourceNotFoundError
from virtualzarr.formats.other_files import note_other_file
from virtualzarr.manifest import Source
from virtualzarr.stores.files import is_url, resolve_uri


def split_name(path_or_url: Any) -> tuple[str, str, str]:
    """Return the path of a file without its extension, the extension, and the query of a URL.

    Examples
    --------
    >>> split_name("https://host/a.b/scene.hdr?key=1")
    ('https://host/a.b/scene', '.hdr', '?key=1')
    """
    uri = resolve_uri(path_or_url)
    path, mark, query = uri.partition("?") if is_url(uri) else (uri, "", "")
    folder, _, name = path.rpartition("/")
    stem, dot, extension = name.rpartition(".")
    if not stem:
        return path, "", mark + query
    return f"{folder}/{stem}", dot + extension, mark + query


def find_sibling(
    candidates: Iterable[str], description: str, storage_options: Mapping[str, Any] | None = None
) -> Source:
    """Return the first of some files that exists.

    Raises `SourceNotFoundError` if none exists.
    """
    note_other_file()
    tried = []
    for candidate in candidates:
        try:
            return Source.from_file(candidate, storage_options)
        except SourceNotFoundError:
            tried.append(candidate.rpartition("/")[2])
    raise SourceNotFoundError(
        f"{description} is missing; tried {', '.join(tried)} in the same folder"
    )
