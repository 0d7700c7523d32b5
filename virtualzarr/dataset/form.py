"""Datasets with versions as a form of references."""

from __future__ import annotations

from typing import Any

from virtualzarr.array import Array
from virtualzarr.combine import concat
from virtualzarr.dataset.create import check_place, create_dataset
from virtualzarr.dataset.dataset import Dataset
from virtualzarr.errors import MismatchError, NodeExistsError, UnsupportedError
from virtualzarr.hierarchy.group import Group
from virtualzarr.hierarchy.inventory import list_arrays
from virtualzarr.metadata.dimension_names import real_name
from virtualzarr.references.form import (
    AppendRequest,
    Capabilities,
    OpenedReferences,
    PublishOptions,
    ReferenceForm,
    RenameRequest,
)
from virtualzarr.references.join_published import with_dimension
from virtualzarr.references.preview import Preview, preview_as_is
from virtualzarr.references.report import PublishReport
from virtualzarr.stores.location import Location
from virtualzarr.virtual.from_store import build_manifest


class DatasetForm(ReferenceForm):
    """Datasets, which hold references as they are, and keep every version."""

    name = "dataset"
    capabilities = Capabilities("a dataset", (3,), as_is=True)

    def recognizes(self, uri: str, file_format: str) -> bool:
        """Tell whether there is a dataset."""
        return file_format == "dataset"

    def open(self, location: Location) -> OpenedReferences:
        """Open the newest version; references are read when their chunks are asked for."""
        return OpenedReferences(Dataset(location.uri, **_access(location)).group)

    def check_target(self, node: Group | Array, location: Location, *, overwrite: bool) -> None:
        """Refuse a place where there is something already."""
        check_place(location)

    def publish(
        self, node: Group | Array, location: Location, options: PublishOptions
    ) -> PublishReport:
        """Create a dataset that grows along the one dimension that its files call unlimited.

        Raises
        ------
        UnsupportedError
            Which dimension grows is not clear: `virtualzarr.create_dataset` is told.
        NodeExistsError
            There is something already.
        """
        uri = location.uri
        if not isinstance(node, Group):
            raise UnsupportedError("a dataset is a group: put the array into one", file=uri)
        if options.overwrite:
            raise NodeExistsError("datasets keep their history and are not replaced", file=uri)
        dimension = find_unlimited(node)
        create_dataset(uri, node, dimension, relative=options.relative, **_access(location))
        return _report(node, uri)

    def preview(self, node: Group | Array, uri: str, options: PublishOptions) -> Preview:
        """Count the references; nothing is ever copied."""
        return preview_as_is(node, uri, self.name)

    def append(self, location: Location, request: AppendRequest) -> PublishReport | Preview | None:
        """Add scanned files where their coordinates belong, as one commit."""
        uri = location.uri
        dataset = Dataset(uri, **_access(location))
        if request.dim != dataset.dimension:
            raise MismatchError(
                f"the dataset grows along {dataset.dimension!r}, not along {request.dim!r}",
                file=uri,
            )
        files = dataset.select_new_files(request.files, request.duplicates)
        chosen = [group for file, group in zip(request.files, request.groups, strict=True)
                  if file in files]  # fmt: skip
        if not chosen:
            return None
        new = with_dimension(chosen, request.dim)
        addition = new[0] if len(new) == 1 else concat(new, dim=request.dim, **request.join_options)
        if request.dry_run:
            return self.preview(addition, uri, PublishOptions())
        dataset.append(addition, **request.join_options)
        return _report(addition, uri)

    def rename_paths(self, location: Location, request: RenameRequest) -> dict[str, str]:
        """Refuse: what versions refer to never changes.

        Raises
        ------
        UnsupportedError
        """
        raise UnsupportedError(
            "the versions of a dataset never change: files cannot be renamed in them; replace() "
            "the rows by those of the renamed files",
            file=location.uri,
        )


def _access(location: Location) -> dict[str, Any]:
    return {"storage_options": location.storage_options, "allowed": location.allowed}


def find_unlimited(group: Group) -> str:
    """Return the dimension that files say is unlimited.

    Raises
    ------
    UnsupportedError
        There is none, or are several.
    """
    names: set[str] = set()
    for array in list_arrays(group).values():
        if array.file_layout is not None:
            grows = zip(array.dims, array.file_layout.unlimited, strict=False)
            names |= {name for dim, free in grows if free and (name := real_name(dim))}
    if len(names) != 1:
        problem = "several dimensions are" if names else "no dimension is"
        raise UnsupportedError(
            f"{problem} unlimited in the files; create_dataset() is told along which one rows come"
        )
    return names.pop()


def _report(group: Group, uri: str) -> PublishReport:
    arrays = list_arrays(group).values()
    return PublishReport(
        path=uri, zarr_format=3, why_v3=(), arrays=len(arrays),
        groups=sum(isinstance(node, Group) for _, node in group.members(None)),
        references=sum(build_manifest(array).nrefs for array in arrays),
        inlined=0, copied=0, copied_bytes=0, copied_to=None, nbytes=0,
    )  # fmt: skip


FORM = DatasetForm()
