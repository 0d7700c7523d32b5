"""Recognition of the form of stored references, by what lies at a path or URL."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from virtualzarr.errors import UnsupportedError
from virtualzarr.ingest.detect import detect
from virtualzarr.references.form import ReferenceForm
from virtualzarr.references.registry import all_forms
from virtualzarr.stores.location import Location


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
