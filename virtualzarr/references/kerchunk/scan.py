"""Reference files and folders of kerchunk, scanned into groups of virtual arrays."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from virtualzarr.array import Array
from virtualzarr.choices import OnError, check_choice
from virtualzarr.config import config
from virtualzarr.errors import (
    BadReferenceError,
    SourceError,
    SourceNotFoundError,
    VirtualZarrError,
    error_context,
    warn_caller,
)
from virtualzarr.hierarchy.group import Group
from virtualzarr.references.form import OpenedReferences
from virtualzarr.references.kerchunk import chunk_cells, generators, read_parquet, templates
from virtualzarr.references.kerchunk.columns import Columns
from virtualzarr.references.kerchunk.copies import locate_copies
from virtualzarr.references.kerchunk.document import Document, read_document
from virtualzarr.references.kerchunk.hierarchy import (
    Hierarchy,
    build_node,
    is_document,
    read_hierarchy,
)
from virtualzarr.references.parquet_folder import is_folder
from virtualzarr.stores.files import (
    RemoteFile,
    open_file,
    open_regular,
    resolve_uri,
    take_fingerprint,
)
from virtualzarr.stores.location import Location

_LONGEST_METADATA = 1 << 28


def scan(
    path_or_url: Any,
    *,
    on_error: OnError = "raise",
    storage_options: Mapping[str, Any] | None = None,
    allowed: str | Iterable[str] | None = None,
) -> Group:
    """Open a reference file as a group of arrays whose chunks lie where it says.

    Parameters
    ----------
    path_or_url : path, str or mapping
        The file (plain, gzip or zstd), or the parsed document itself.
    on_error : {"raise", "warn"}
        As in `ScanOptions`. If no array is left, that is an error.
    storage_options : mapping, optional
        How fsspec opens URLs: of the file and, for the same protocol and host, of its sources.
    allowed : str or iterable of str, optional
        Prefixes of URLs, or local folders, that references may lie below; ``"*"`` for anything. By
        default a file from a URL reaches no local files, and protocols are the usual ones.

    Raises
    ------
    BadReferenceError
        If the file breaks the specification: the error names the key.
    AccessError
        If a reference reaches outside what is allowed.
    MetadataError, UnsupportedError
        If an array's metadata are wrong or not supported.

    Notes
    -----
    Source: the kerchunk specification of references, versions 0 and 1, as fsspec reads them, with
    `gen` blocks and templates. See ``specs/reference-file.md`` for every rule.

    Examples
    --------
    >>> group = scan({".zgroup": '{"zarr_format": 2}', "x/.zarray": {"zarr_format": 2, "shape": [2],
    ...     "chunks": [2], "dtype": "|u1", "compressor": None, "fill_value": None, "order": "C",
    ...     "filters": None}, "x/0": "ab"})
    >>> group["x"][:]
    array([97, 98], dtype=uint8)
    """
    document = path_or_url if isinstance(path_or_url, Mapping) else None
    location = Location.of(path_or_url if document is None else None, storage_options, allowed)
    node = open_references(location, on_error, document).node
    if isinstance(node, Group):
        return node
    name = "array" if isinstance(path_or_url, Mapping) else Path(resolve_uri(path_or_url)).name
    return Group({}, {(name := name.split(".")[0] or "array"): node.with_path(name)})


def open_references(
    location: Location, on_error: OnError = "raise", document: Mapping[str, Any] | None = None
) -> OpenedReferences:
    """Do what `scan` does, but return what is at the root, and what else the file says."""
    scan = _Scan(location, on_error)
    if document is not None:
        return scan.of_document(document)
    with error_context(file=location.uri):
        if is_folder(location.uri):
            return scan.of_folder(read_parquet.Folder(location))
        return scan.of_document(_read(location))


class _Scan:
    """One reference file on its way to a group."""

    def __init__(self, location: Location, on_error: OnError) -> None:
        check_choice("on_error", on_error, OnError)
        self.on_error = on_error
        self.skipped: dict[str, str] = {}
        self.first_error: VirtualZarrError | None = None
        self.document = Document()
        self.location = location
        self.templates = templates.Templates()

    def of_folder(self, folder: read_parquet.Folder) -> OpenedReferences:
        """Read the metadata of references in Parquet; records are read when they are needed."""
        hierarchy = self._hierarchy({k: v for k, v in folder.metadata.items() if is_document(k)})
        arrays = {path: folder.array(path, metadata) for path, metadata in hierarchy.arrays.items()}
        return OpenedReferences(
            build_node(hierarchy, arrays, self.skipped),
            folder.relative,
            {"folder": folder},
            folder.receipt,
        )

    def of_document(self, data: bytes | Mapping[str, Any]) -> OpenedReferences:
        """Read metadata, then references, then build the group."""
        document = self.document = read_document(data)
        self.templates = templates.Templates(
            locate_copies(document.templates, document.beside, self.location)
        )
        metadata = {k: v for k, v in document.others.items() if is_document(k)}
        objects = {k: v for k, v in document.others.items() if k not in metadata}
        hierarchy = self._hierarchy(metadata)
        located, strays = self._locate(hierarchy)
        if any(is_document(key) for key in strays):
            # Metadata by reference looked like chunks: now that they are known, once more.
            documents = {k: v for k, v in strays.items() if is_document(k)}
            _check_distinct(metadata, documents)
            metadata |= documents
            hierarchy = self._hierarchy(metadata)
            located, strays = self._locate(hierarchy)
            strays = {k: v for k, v in strays.items() if not is_document(k)}
        spaces = chunk_cells.spaces_of(hierarchy.arrays)
        columns = Columns(spaces, self.location, self.templates, document.fingerprints)
        if document.text is not None and document.members is not None:
            columns.add_members(document.text, document.members, located)
        _check_distinct(objects, strays)
        self._add_objects(columns, {**objects, **strays}, hierarchy)
        self._add_generated(columns)
        arrays = self._arrays(columns, hierarchy)
        node = build_node(hierarchy, arrays, self.skipped)
        if isinstance(node, Group):
            node.ignored_keys = columns.ignored
        return OpenedReferences(
            node, document.relative, {"commits": document.commits}, document.receipt
        )

    def _hierarchy(self, metadata: Mapping[str, Any]) -> Hierarchy:
        hierarchy = read_hierarchy(metadata, self._fetch)
        for path, error in hierarchy.errors.items():
            self._refuse(path, error)
        if not hierarchy.arrays and not hierarchy.groups and not hierarchy.errors:
            raise BadReferenceError("the document holds no Zarr metadata: is it a reference file?")
        return hierarchy

    def _refuse(self, path: str, error: VirtualZarrError) -> None:
        if self.on_error == "raise":
            raise error
        self.first_error = self.first_error or error
        if path not in self.skipped:
            self.skipped[path] = str(error)
            warn_caller(f"{path or '/'} was left out: {error}")

    def _fetch(self, value: Any) -> bytes:
        """The bytes of metadata that are given as a reference."""
        if not isinstance(value, list) or len(value) not in (1, 3):
            raise BadReferenceError(
                f"metadata are an object, a text or a reference, not {value!r:.99}"
            )
        fingerprints = self.document.fingerprints
        source = Columns(
            chunk_cells.spaces_of({}), self.location, self.templates, fingerprints
        ).source_of(value[0])
        start, length = value[1:] if len(value) == 3 else (0, -1)
        if type(start) is not int or type(length) is not int or start < 0:
            raise BadReferenceError(f"offset and length are integers, not {value[1:]!r:.99}")
        if length < 0:
            length = take_fingerprint(source.location).size or 0
        if length > _LONGEST_METADATA:
            raise BadReferenceError(f"metadata of {length} bytes", file=source.uri)
        return bytes(open_file(source.location).read(start, start + length))

    def _locate(self, hierarchy: Hierarchy) -> tuple[list[chunk_cells.Located], dict[str, Any]]:
        """Regular members by array, and those whose keys are no chunk's, as objects."""
        text, members = self.document.text, self.document.members
        if text is None or members is None:
            return [], {}
        located, unknown = chunk_cells.locate_members(
            text, members, chunk_cells.spaces_of(hierarchy.arrays)
        )
        strays: dict[str, Any] = {}
        for key, value in chunk_cells.member_items(text, members, unknown):
            if key in strays:
                raise BadReferenceError("the key stands in the document more than once", chunk=key)
            strays[key] = value
        return located, strays

    def _add_objects(
        self, columns: Columns, objects: Mapping[str, Any], hierarchy: Hierarchy
    ) -> None:
        """Add references that are Python objects, array by array."""
        owners: dict[str, int] = {}
        by_owner: dict[int, tuple[list[str], list[Any]]] = {}
        for key, value in objects.items():
            folder = key.rpartition("/")[0]
            owner = owners.get(folder)
            if owner is None:
                owner = owners[folder] = columns.spaces.owner(key)
            if owner < 0:
                # Below nodes that could not be read, keys may be chunks.
                columns.ignored += not _within(folder, hierarchy.errors)
                continue
            keys, values = by_owner.setdefault(owner, ([], []))
            keys.append(key)
            values.append(value)
        for owner, (keys, values) in by_owner.items():
            columns.add_objects(owner, keys, values)

    def _add_generated(self, columns: Columns) -> None:
        if not self.document.generators:
            return
        most = sum(math.prod(space.shape) for space in columns.spaces.all)
        count = 0
        for block in self.document.generators:
            try:
                generated = generators.generate(block, self.templates, columns.spaces, most)
                count += sum(len(part.which) for part in generated)
                config.limits.check("generated", count, "references of gen blocks")
            except VirtualZarrError as error:
                self._refuse("gen", error)
                continue
            for part in generated:
                columns.add_generated(part)

    def _arrays(self, columns: Columns, hierarchy: Hierarchy) -> dict[str, Array]:
        arrays: dict[str, Array] = {}
        for number, (path, metadata) in enumerate(hierarchy.arrays.items()):
            try:
                manifest = columns.manifest(number, tuple(metadata.grid.grid_shape))
            except VirtualZarrError as error:
                self._refuse(path, error.at(variable=path or "/"))
                continue
            arrays[path] = Array.from_manifest(metadata, manifest, path)
        if self.first_error is not None and not arrays:
            raise self.first_error  # an empty group would be no part of what is there
        return arrays


def _check_distinct(some: Mapping[str, Any], others: Mapping[str, Any]) -> None:
    for key in some.keys() & others.keys():
        raise BadReferenceError("the key stands in the document more than once", chunk=key)


def _within(folder: str, paths: Mapping[str, Any]) -> bool:
    """Whether a folder is one of some nodes' or lies below."""
    while folder:
        if folder in paths:
            return True
        folder = folder.rpartition("/")[0]
    return "" in paths


def _read(location: Location) -> bytes:
    uri = location.uri
    if location.is_remote:
        return bytes(RemoteFile(location).read(0, None))
    try:
        with open_regular(uri) as file:
            return file.read()
    except FileNotFoundError as error:
        raise SourceNotFoundError("there is no such reference file", file=uri) from error
    except OSError as error:
        raise SourceError(error.strerror or str(error), file=uri) from error
