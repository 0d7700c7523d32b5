"""Recognition of the form of stored references, by what lies at a path or URL."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from virtualzarr.errors import UnsupportedError
from virtualzarr.ingest.detect import detect
from virtualzarr.references.form import ReferenceForm
from virtualzarr.references.registry import all_forms
from virtualzarr.stores.files import resolve_uri


def match_form(
    target: Any, storage_options: Mapping[str, Any] | None = None
) -> tuple[ReferenceForm | None, str]:
    """Return the form of what lies somewhere, None for any other file; and its file format."""
    uri = resolve_uri(target)
    file_format = detect(uri, storage_options)
    forms = (form for form in all_forms() if form.recognizes(uri, file_format))
    return next(forms, None), file_format


def find_form(uri: str, storage_options: Mapping[str, Any] | None = None) -> ReferenceForm:
    """Return the form of published references.

    Raises
    ------
    UnsupportedError
        There are no references.
    """
    form, file_format = match_form(uri, storage_options)
    if form is None:
        raise UnsupportedError(f"there are no references, but {file_format}", file=uri)
    return form


def resolve_target(target: Any) -> str:
    """Return the absolute path or URL of references."""
    return resolve_uri(target).rstrip("/")
