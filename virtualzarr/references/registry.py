"""Registry of reference forms: by name, how paths end, and what lies at a path or URL."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, MutableMapping
from importlib import import_module
from typing import Any

from virtualzarr.choices import ReferenceFormat
from virtualzarr.errors import UnsupportedError
from virtualzarr.ingest.detect import detect, is_session
from virtualzarr.references.form import ReferenceForm
from virtualzarr.stores.location import Location

FORMS: dict[ReferenceFormat, str] = {
    "json": "virtualzarr.references.kerchunk.json_form",
    "parquet": "virtualzarr.references.kerchunk.parquet_form",
    "icechunk": "virtualzarr.references.icechunk.form",
    "native": "virtualzarr.references.native.form",
    "dataset": "virtualzarr.dataset.form",
}
"""The modules of the forms, which have them as `FORM`: imported when a form is first asked for."""

_OBJECT_FORMS: dict[ReferenceFormat, str] = {
    "json": "virtualzarr.references.kerchunk.dict_form",
    "icechunk": "virtualzarr.references.icechunk.session_form",
}
"""The modules of forms that are objects of Python."""

DEFAULT: ReferenceFormat = "json"
"""The form of references whose path has the suffix of none."""


def get_form(name: str) -> ReferenceForm:
    """Return the form of a name.

    Raises `ValueError` if there is none.
    """
    modules: Mapping[Any, str] = FORMS
    if name not in modules:
        names = ", ".join(map(repr, FORMS))
        raise ValueError(f"reference_format is one of {names}, not {name!r}")
    form: ReferenceForm = import_module(modules[name]).FORM
    return form


def all_forms() -> Iterator[ReferenceForm]:
    """Yield all forms."""
    return map(get_form, FORMS)


def choose_form(uri: str, reference_format: str | None) -> ReferenceForm:
    """Return the form to write: that of a name, or the one that a path suggests by its suffix."""
    if reference_format is None:
        by_suffix = (f.name for f in all_forms() if f.suffixes and uri.endswith(f.suffixes))
        reference_format = next(by_suffix, DEFAULT)
    return get_form(reference_format)


def choose_target(
    target: Any,
    reference_format: str | None,
    storage_options: Mapping[str, Any] | None = None,
) -> tuple[Location, ReferenceForm]:
    """Return where references are to be written, and their form.

    Parameters
    ----------
    target : path, str, mutable mapping or Icechunk session

    Raises
    ------
    ValueError
        The target has another form than the one that is asked for.
    """
    if isinstance(target, str | os.PathLike | Location):
        location = locate_target(target, storage_options)
        return location, choose_form(location.uri, reference_format)
    if isinstance(target, MutableMapping):
        form: ReferenceForm = import_module(_OBJECT_FORMS["json"]).DictForm(target)
    elif is_session(target):
        form = import_module(_OBJECT_FORMS["icechunk"]).SessionForm(target)
    else:
        kind = type(target).__name__
        raise TypeError(
            f"references go to a path, a URL, a dict or an Icechunk session, not {kind}"
        )
    if reference_format not in (None, form.name):
        raise ValueError(f"what is given holds the form {form.name}, not {reference_format}")
    return Location(""), form


def locate_target(
    target: Any,
    storage_options: Mapping[str, Any] | None = None,
    allowed: str | Iterable[str] | None = None,
) -> Location:
    """Return where references are, without a slash at the end."""
    location = Location.of(target, storage_options, allowed)
    return location.with_uri(location.uri.rstrip("/"))


def match_form(location: Location) -> tuple[ReferenceForm | None, str]:
    """Return the form of what lies somewhere, None for any other file; and its file format."""
    file_format = detect(location)
    forms = (form for form in all_forms() if form.recognizes(location.uri, file_format))
    return next(forms, None), file_format


def find_form(location: Location) -> ReferenceForm:
    """Return the form of published references.

    Raises `UnsupportedError` if there are no references.
    """
    form, file_format = match_form(location)
    if form is None:
        raise UnsupportedError(f"there are no references, but {file_format}", file=location.uri)
    return form
