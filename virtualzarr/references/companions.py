"""Companions of references: the page and the document of STAC that are written beside them."""

from __future__ import annotations

from typing import Protocol

from virtualzarr.array import Array
from virtualzarr.choices import StacKind, check_choice
from virtualzarr.hierarchy.group import Group
from virtualzarr.references.form import ReferenceForm
from virtualzarr.references.report import PublishReport
from virtualzarr.references.stac import StacDocument
from virtualzarr.stores.location import Location


class Companion(Protocol):
    """A file beside references, before they are published."""

    def write(self, form: ReferenceForm, report: PublishReport) -> PublishReport:
        """Write the file after the references, and return the report that says where it is."""
        ...


def plan_companions(
    node: Group | Array, location: Location, *, page: bool, stac: StacKind | None, overwrite: bool
) -> list[Companion]:
    """Return what is to be written beside references, in this order; the page is named in the rest.

    Parameters
    ----------
    node : Group or Array
        What is published.
    location : Location
        Of the references.

    Raises
    ------
    NodeExistsError
        There is something else where one of them is to be.
    PublishError
        STAC wants an extent that is not known.
    """
    if (page or stac is not None) and not location.uri:
        raise ValueError("pages and STAC documents lie beside references: give a path or URL")
    companions: list[Companion] = []
    if page:
        # Imported here, as pages are drawn above: they show whatever can be opened.
        from virtualzarr.serve.page.single_file import Page

        companions.append(Page(node, location, overwrite=overwrite))
    if stac is not None:
        check_choice("stac", stac, StacKind)
        companions.append(StacDocument(stac, node, location, overwrite=overwrite))
    return companions
