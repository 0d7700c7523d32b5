"""Scan of an HDF5 or netCDF4 file into a group of arrays whose chunks lie in that file."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

import numpy as np

from virtualzarr import errors
from virtualzarr.array import Array
from virtualzarr.array.file_layout import FileLayout
from virtualzarr.array.read.cache_policy import CachePolicy
from virtualzarr.choices import OnError
from virtualzarr.config import config
from virtualzarr.formats.hdf5 import dimensions
from virtualzarr.formats.hdf5.attributes import Attribute, Attributes
from virtualzarr.formats.hdf5.byte_source import UnknownStructureError
from virtualzarr.formats.hdf5.dataset import Values, find_fill_past_end, read_values
from virtualzarr.formats.hdf5.describe import Description
from virtualzarr.formats.hdf5.dimensions import Naming
from virtualzarr.formats.hdf5.h5py_fallback import H5PY_ERRORS
from virtualzarr.formats.hdf5.header import TYPE
from virtualzarr.formats.hdf5.linked_files import GroupKey, LinkedFile, LinkedFiles
from virtualzarr.formats.hdf5.messages import Dataspace
from virtualzarr.formats.hdf5.open_file import OpenFile, open_hdf5
from virtualzarr.formats.hdf5.walk import Node
from virtualzarr.formats.templates.recorder import Recorder
from virtualzarr.hierarchy.group import Group
from virtualzarr.manifest import Manifest
from virtualzarr.metadata import ArrayMetadata
from virtualzarr.stores.files import is_url
from virtualzarr.stores.location import Location
from virtualzarr.virtual.axis_slices import AxisSlices
from virtualzarr.virtual.rechunk import get_axes
from virtualzarr.virtual.transforms import slice_with_fill

# Kinds of dtypes whose scalars are told apart by their type and bytes.
_PLAIN = frozenset("biufcSU")
_MAX_CACHED_METADATA = 4096


def scan(
    path_or_url: Any,
    *,
    on_error: OnError = "raise",
    storage_options: Mapping[str, Any] | None = None,
    allowed: str | Iterable[str] | None = None,
    recorder: Recorder | None = None,
) -> Group:
    """Scan an HDF5 or netCDF4 file, of which links and datasets may be skipped.

    Nothing is copied but compact datasets, values of variable length, and references.

    Parameters
    ----------
    path_or_url, on_error, storage_options
        As in `ScanOptions`.
    allowed : str or iterable of str, optional
        Places where external files, the sources of virtual datasets and the targets of external
        links may be: folders, or URLs up to a ``/``; by default, the folder of the file and what
        is below it.
    recorder : Recorder, optional
        Is told what the group depends on.
    """
    with open_hdf5(path_or_url, storage_options, recorder) as file:
        # By default a file may only name files beside and below it: a scanned file is untrusted
        # input, and an external link to /etc/passwd must not make that readable through a service.
        home = file.source.uri
        folder = home.rpartition("/")[0] if is_url(home) else os.path.dirname(home)
        location = Location.of(home, storage_options, folder if allowed is None else allowed)
        with errors.error_context(file=home):
            return _Scan(file, on_error, location).run()


@dataclass
class _Variable:
    """One dataset, before its axes are named."""

    node: Node
    naming: Naming
    attributes: Attributes
    values: Values
    file: OpenFile
    layout: FileLayout
    # Only of those that may be shorter than their dimension: a million of them would keep the
    # garbage collector busy.
    description: Description | None


@dataclass
class _Contents:
    """One group with what is in it, by the names users will see."""

    path: str
    attributes: dict[str, Any]
    members: dict[str, _Variable | _Contents]


class _Scan:
    """One scan of one open file, and of those that its external links lead to."""

    def __init__(self, file: OpenFile, on_error: OnError, location: Location) -> None:
        self.file = file
        self.on_error = on_error
        self.skipped: dict[str, str] = {}
        self.growth = Growth()
        self.cache_policy = CachePolicy()
        self.alike: dict[Any, ArrayMetadata] = {}
        self.parts = LinkedFiles(location, lambda file: partial(self._refuse, file))

    def run(self) -> Group:
        try:
            first, root = self.parts.open_root(self.file)
            contents = self._group(first, root, ())
        finally:
            self.parts.close()
        assert contents is not None
        group = self._build(contents, dimensions.PhonyNames(len(first.naming.scales)), {})
        if self.file.recorder is not None:
            self._finish_record(self.file.recorder)
        return group

    def _finish_record(self, recorder: Recorder) -> None:
        objects, recorder.source = self.file.objects, self.file.source
        if objects is None or self.file.library.asked:
            recorder.forbid("structures that only the HDF5 library reads")
        else:
            recorder.spent, recorder.cells = objects.superblock.spent

    def _refuse(self, file: OpenFile, path: str, error: errors.VirtualZarrError) -> None:
        """Raise an error, or note it and go on."""
        error.at(file=file.source.uri, variable=path)
        if self.file.recorder is not None:
            self.file.recorder.forbid("variables that are skipped")
        if self.on_error == "raise":
            raise error
        self.skipped[path] = error.message
        errors.warn_caller(f"could not be virtualized: {error}")

    def _attributes(self, part: LinkedFile, node: Node) -> Attributes:
        def complain(name: str, reason: str) -> None:
            location = f"file {part.file.source.uri}, variable {node.path or '/'}"
            subject = f"the attribute {name!r} was" if name else "the attributes were"
            errors.warn_caller(f"{subject} left out: {reason} [{location}]")

        def asked(name: str, reason: str) -> Any:
            return part.file.open_in_library(
                node.path, node.target, f"attribute {name!r}: {reason}"
            )

        object_ = part.file.object(node.address)
        listed = UnknownStructureError("its attributes") if object_ is None else object_.attributes
        if object_ is not None and isinstance(object_.header, UnknownStructureError):
            listed = object_.header
        if isinstance(listed, UnknownStructureError):
            library_object = part.file.open_in_library(node.path, node.target, listed.message)
            listed = [Attribute(name, value) for name, value in library_object.attributes()]
        if isinstance(listed, errors.VirtualZarrError):
            complain("", listed.message)
            listed = []
        return part.attributes.show(listed, complain, asked)

    def _member(
        self, part: LinkedFile, node: Node, above: tuple[GroupKey, ...]
    ) -> _Variable | _Contents | None:
        """Read everything about an object; None for what is no member."""
        if node.external is not None:
            try:
                target = self.parts.follow(part, node, above)
            except errors.VirtualZarrError as error:
                self._refuse(part.file, node.path, error)
                return None
            if target is None:
                return None
            part, node = target
        return (
            self._dataset(part, node) if node.children is None else self._group(part, node, above)
        )

    def _group(self, part: LinkedFile, node: Node, above: tuple[GroupKey, ...]) -> _Contents:
        """Read everything about a group and what is in it."""
        contents = _Contents(node.path, self._attributes(part, node).user, {})
        if self.file.recorder is not None:
            self.file.recorder.groups.append((node.path, node.address))
        members: dict[str, _Variable | _Contents] = {}
        # Addresses alone are not unique: external links lead to other files and back.
        inside = (*above, (part.key, node.address))
        for child in node.children or ():
            member = self._member(part, child, inside)
            if member is not None:
                members[child.name] = member
        for name, member in members.items():
            displayed = dimensions.strip_prefix(name)
            contents.members[name if displayed in members else displayed] = member
        return contents

    def _dataset(self, part: LinkedFile, node: Node) -> _Variable | None:
        """Read everything about a dataset; None when it is skipped or only a dimension."""
        try:
            attributes = self._attributes(part, node)
            if attributes.is_scale:
                self._add_scale(part, node, attributes)
            if dimensions.is_only_dimension(attributes):
                return None
            description = part.file.describe(node.address, node.path, node.target)
            if dimensions.has_scales(attributes):
                part.naming.datasets.append((node.address, attributes, description.shape or ()))
            values = read_values(description, part.context)
        except errors.VirtualZarrError as error:
            self._refuse(part.file, node.path, error)
        except H5PY_ERRORS as error:
            self._refuse(part.file, node.path, errors.SourceError(f"HDF5 cannot read it: {error}"))
        else:
            layout = _make_file_layout(part, node, description, values)
            growing = description if any(layout.unlimited) else None
            return _Variable(node, part.naming, attributes, values, part.file, layout, growing)
        return None

    def _add_scale(self, part: LinkedFile, node: Node, attributes: Attributes) -> None:
        extent = part.file.extent(node.address, node.path, node.target)
        shape, limits = extent.shape or (None,), extent.limits or (0,)
        name = dimensions.strip_prefix(node.name)
        scale = dimensions.Scale(node.address, name, shape[0], limits[0] is None)
        part.naming.add_scale(scale, attributes)

    def _build(
        self, contents: _Contents, phony: dimensions.PhonyNames, above: Mapping[str, int]
    ) -> Group:
        """Make the group; the axes of inner groups are named first, as netCDF4 does."""
        axes = {
            name: dimensions.describe_axes(
                name, member.node.address, member.attributes, member.naming, member.values.shape
            )
            for name, member in contents.members.items()
            if isinstance(member, _Variable)
        }
        # Names of a group before those of groups in it: netCDF dimensions are visible further down.
        lengths = dimensions.use_labels(axes, above)
        inner = {
            name: self._build(member, phony, lengths)
            for name, member in contents.members.items()
            if isinstance(member, _Contents)
        }
        name_axes = phony.start_group()
        members: dict[str, Array | Group] = {}
        for name, member in contents.members.items():
            if isinstance(member, _Contents):
                members[name] = inner[name]
                continue
            path = f"{contents.path}/{name}".lstrip("/")
            names = name_axes(axes[name].names, axes[name].lengths)
            try:
                members[name] = self._array(member, path, axes[name].lengths, names)
            except errors.VirtualZarrError as error:
                self._refuse(self.file, member.node.path, error)
        below = f"{contents.path}/" if contents.path else ""
        skipped = {
            path[len(below) :]: why for path, why in self.skipped.items() if path.startswith(below)
        }
        return Group(contents.attributes, members, contents.path, skipped)

    def _metadata(self, values: Values, names: tuple[str, ...]) -> ArrayMetadata:
        """Return metadata without attributes; those of datasets that are alike are checked once."""
        metadata, key, fill = None, None, values.fill_value
        if values.dtype.kind in _PLAIN and isinstance(fill, np.generic):
            # What is held by an entry keeps its number. Fill values are compared by their bits:
            # zeros have signs, and NaNs are many.
            parts = id(values.dtype), id(values.grid), id(values.pipeline)
            key = values.shape, parts, names, type(fill), fill.tobytes()
            metadata = self.alike.get(key)
        if metadata is None:
            metadata = ArrayMetadata(
                shape=values.shape,
                dtype=values.dtype,
                grid=values.grid,
                pipeline=values.pipeline,
                fill_value=fill,
                dimension_names=names,
            )
            if key is not None and len(self.alike) < _MAX_CACHED_METADATA:
                self.alike[key] = metadata
        return metadata

    def _array(
        self, variable: _Variable, path: str, lengths: tuple[int, ...], names: tuple[str, ...]
    ) -> Array:
        values = variable.values
        attributes = variable.attributes.user
        if values.labels:
            attributes = _make_flag_attributes(values.labels) | attributes
        metadata = self._metadata(values, names).with_attributes(attributes)
        array = Array.from_manifest(metadata, values.manifest, path, self.cache_policy)
        # netCDF's dimensions have one length; HDF5's datasets on them grow one by one.
        recorder = self.file.recorder
        if recorder is not None:
            recorder.arrays.append((path, variable.node.address))
            if lengths != values.shape:
                recorder.pin(variable.node.address)
        if lengths != values.shape:
            description = variable.description or variable.file.describe(
                variable.node.address, variable.node.path, variable.node.target
            )
            fill = find_fill_past_end(description, values.dtype, variable.file)
            array = self.growth.grow(array, lengths, fill)
        array.file_layout = variable.layout
        return array


def _make_file_layout(
    part: LinkedFile, node: Node, description: Description, values: Values
) -> FileLayout:
    """Return what writes a dataset again as it is stored."""
    object_ = part.file.object(node.address)
    limits: tuple[int | None, ...] = ()
    if object_ is not None and isinstance(object_.space, Dataspace):
        limits = object_.space.limits
    chunks = pipeline = None
    if description.layout.kind == "chunked":
        chunks = description.layout.chunk + description.element.inner
        try:
            pipeline = description.decoding().pipeline
        except errors.UnsupportedError:  # a filter that is not there: chunks may skip it
            pipeline = None
    unlimited = None in limits and tuple([limit is None for limit in limits])
    if not values.labels:
        return _plain_layout(chunks, pipeline, unlimited or ())
    return FileLayout(chunks, pipeline, unlimited or (), values.labels, _find_type_name(part, node))


# Most datasets of a file are stored alike: one object for all of them.
_plain_layout = lru_cache(256)(FileLayout)


def _find_type_name(part: LinkedFile, node: Node) -> str:
    """Return the name of a datatype of the file that a dataset has, as netCDF finds it."""
    messages = [
        None
        if object_ is None or isinstance(object_.header, errors.VirtualZarrError)
        else object_.header
        for object_ in map(part.file.object, (node.address, *part.walker.types))
    ]
    datatype, *named = [None if one is None else one.messages.get(TYPE) for one in messages]
    for path, message in zip(part.walker.types.values(), named, strict=True):
        if datatype is not None and message == datatype:
            return path.rpartition("/")[2]
    return ""


def _make_flag_attributes(labels: Mapping[str, int]) -> dict[str, Any]:
    """Return the labels of an enumeration as the CF conventions say (section 3.5)."""
    if not labels:
        return {}
    ordered = sorted(labels.items(), key=lambda item: item[1])
    names = ["_".join(name.split()) for name, _ in ordered]
    return {"flag_values": [value for _, value in ordered], "flag_meanings": " ".join(names)}


class Growth:
    """Lengthens the datasets of one scan, up to a limit: a small file may claim any length.

    Variables of netCDF-4 are as long as the longest dataset on an unlimited dimension.
    """

    def __init__(self) -> None:
        self._most = self._left = config.limits.derived_cells

    def grow(self, array: Array, lengths: tuple[int, ...], fill_value: Any) -> Array:
        """Return an array that is longer, with missing chunks past its old end.

        Raises `UnsupportedError` if there would be too many cells.

        Parameters
        ----------
        lengths : tuple of int
            None is less than the array's own.
        fill_value : scalar
            What is read past the old end.
        """
        grid: Any = array.grid.resize(lengths)
        if not array.manifest.nrefs and (not array.size or _same(array, fill_value)):
            metadata = array.metadata.replace(shape=lengths, grid=grid, fill_value=fill_value)
            return array.replace(metadata, Manifest.missing(grid.grid_shape))
        self._left -= math.prod([axis.ncells + 1 for axis in grid.axes])
        if self._left < 0:
            raise errors.UnsupportedError(
                f"it is shorter than its unlimited dimensions, which make it {lengths}: with the "
                f"chunks that are missing there would be more than {self._most:,} in the file "
                "(virtualzarr.config.limits.derived_cells)"
            )
        pieces = [
            AxisSlices.grow(axis, length) if length > axis.extent else None
            for axis, length in zip(get_axes(array), lengths, strict=True)
        ]
        return slice_with_fill(array, pieces, fill_value)


def _same(array: Array, fill_value: Any) -> bool:
    """Whether missing chunks of an array read as a value, to the bit."""
    if array.dtype.hasobject:
        return bool(array.fill_value == fill_value)
    ours, theirs = (np.asarray(value, array.dtype) for value in (array.fill_value, fill_value))
    return ours.tobytes() == theirs.tobytes()
