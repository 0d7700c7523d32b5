"""Registry of reference forms: by name, and by how paths end."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any

from virtualzarr.choices import ReferenceFormat

if TYPE_CHECKING:
    from virtualzarr.references.form import ReferenceForm

FORMS: dict[ReferenceFormat, str] = {
    "json": "virtualzarr.references.kerchunk.json_form",
    "parquet": "virtualzarr.references.kerchunk.parquet_form",
    "icechunk": "virtualzarr.references.icechunk.form",
    "native": "virtualzarr.references.native.form",
    "dataset": "virtualzarr.dataset.form",
}
"""The modules of the forms, which have them as `FORM`: imported when a form is first asked for."""

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
