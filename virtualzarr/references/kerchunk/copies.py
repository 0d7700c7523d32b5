"""Names of files with copied chunks in reference files: as they lie from the references.

Readers of JSON know no relative names, but templates, which can be given other values on opening
the file. The value that is written is the folder at that time; this package takes that in which the
references are now.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from virtualzarr.references.materialize import is_copy
from virtualzarr.references.plan import Plan
from virtualzarr.stores.files import is_url
from virtualzarr.stores.location import Location

COPIES_TEMPLATE = "here"
"""The template that stands for the folder of the references."""


def name_copies(plan: Plan, uri: str) -> dict[str, str]:
    """Return the names, by URI, of the files with copied chunks that lie beside references.

    There are none where other names look like templates, which readers would replace, nor for
    GDAL, which knows no templates.
    """
    folder = _real_folder(uri)
    uris = [source.uri for source in plan.sources()]
    copies = [u for u in uris if is_copy(u) and os.path.dirname(u) == folder]
    if (
        "gdal" in plan.clients
        or "{" in folder
        or any("{{" in u for u in uris)
        or any("{" in u for u in copies)
    ):
        return {}
    return {u: f"{{{{{COPIES_TEMPLATE}}}}}/{os.path.basename(u)}" for u in copies}


def locate_copies(
    templates: Mapping[str, str], name: object, location: Location
) -> Mapping[str, str]:
    """Return the templates with the folder where references are now in place of that of before.

    Parameters
    ----------
    name : object
        What the references say that the template is called, if they say so.
    location : Location
        Of the references; without a URI, they are in memory.
    """
    if not isinstance(name, str) or name not in templates or not location.uri:
        return templates
    return {**templates, name: _real_folder(location.uri)}


def _real_folder(uri: str) -> str:
    # Copies lie where links to the references lead to.
    return os.path.dirname(uri if is_url(uri) else os.path.realpath(uri))
