"""Folders of references in object stores, which one of several publishers creates.

The metadata are claimed before anything else is put, and replaced in the end if they still are
what the claim was. Records are put where there are none. So whoever is told that it went well has
all of the folder, however long others slept in between.

Source: ``specs/reference-file.md``, section 6.
"""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from virtualzarr.config import config
from virtualzarr.errors import AccessError, PublishError, SourceChangedError
from virtualzarr.metadata import dumps_json

INTENT = "intent"


def create_folder(target: Any, files: Mapping[str, str], series: str, last: str) -> None:
    """Put files into a folder that has none of them.

    Parameters
    ----------
    target : virtualzarr.dataset.conditional_object.ConditionalObject
        The file that is put last.
    files : mapping of str to str
        Local paths by name; each file has the series in it.
    series : str
        What no other folder has.
    last : str
        The name of that file.

    Raises
    ------
    PublishError
        There are references already, or somebody else publishes there.
    SourceChangedError
        Somebody else has changed the folder meanwhile.
    AccessError, CommitUnknownError
        As `virtualzarr.dataset.conditional_object.ConditionalObject.replace`.
    """
    claim = dumps_json({"virtualzarr": {INTENT: series}}, indent=None)
    tag = target.replace(claim, None, series)
    if tag is None:
        raise explain(target)

    def create(name: str) -> None:
        if target.replace(Path(files[name]).read_bytes(), None, series, name=name) is None:
            raise _interfered(f"{target.uri.rpartition('/')[0]}/{name}")

    try:
        with ThreadPoolExecutor(config.requests) as pool:
            for _ in pool.map(create, (name for name in files if name != last)):
                pass
        if target.replace(Path(files[last]).read_bytes(), tag, series) is None:
            raise _interfered(target.uri)
    except AccessError as error:
        raise AccessError(
            "the references were not published, but parts of them lie there: delete the folder, or "
            f"write to another place ({error.__cause__ or error.message})",
            file=target.uri.rpartition("/")[0],
        ) from error


def explain(target: Any) -> PublishError:
    """Return the error for a folder that is there."""
    folder = target.uri.rpartition("/")[0]
    if f'"{INTENT}"'.encode() in (target.read() or b""):
        return PublishError(
            "somebody publishes there at this moment, or did not finish: nothing was written. If "
            "nobody does, delete the folder, or write to another place",
            file=folder,
        )
    return PublishError(
        "there are references already, and they cannot be replaced all at once: "
        "write to another place, or delete them before",
        file=folder,
    )


def _interfered(uri: str) -> SourceChangedError:
    return SourceChangedError(
        "there is something that somebody else has put there, or left: the references were not "
        "published. Delete the folder if nobody publishes there, or write to another place",
        file=uri,
    )
