"""Backend entrypoint `virtualzarr` of xarray: lazy datasets over anything that `open` takes."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from xarray import Variable
from xarray.backends import AbstractDataStore, BackendArray, BackendEntrypoint
from xarray.backends.store import StoreBackendEntrypoint
from xarray.core import indexing

from virtualzarr.array import Array
from virtualzarr.choices import OnError, check_choice
from virtualzarr.errors import (
    UnsupportedError,
    VirtualZarrError,
    warn_caller,
)
from virtualzarr.hierarchy.group import Group
from virtualzarr.integrations.xarray_encoding import encoding_of
from virtualzarr.metadata import numpy_attributes, portable
from virtualzarr.metadata.dimension_names import Dimensions, real_name
from virtualzarr.metadata.dtypes import vlen_kind
from virtualzarr.metadata.ome import level_paths
from virtualzarr.redaction import hide_in_url
from virtualzarr.stores.files import is_url

if TYPE_CHECKING:
    from xarray import Dataset, DataTree

# What tells references from other files: JSON, Parquet, and Zarr with manifests.
_SIGNATURES = {
    "": (b'"refs"', b'.zgroup"', b'.zattrs"', b'zarr.json"'),
    ".zmetadata": (b'"record_size"',),
    "zarr.json": (b'"virtualzarr.manifest"', b'"virtualzarr.dataset"'),
}
_MAX_HEAD = 1 << 20
"""Bytes that are looked at to guess what a file is."""


class VirtualZarrBackendEntrypoint(BackendEntrypoint):
    """``xarray.open_dataset(target, engine="virtualzarr")``.

    The target is anything `virtualzarr.open` takes, or an `Array` or `Group` itself. Variables are
    lazy: chunks are read when values are used. Variables that could not be virtualized are named
    in a `SkippedVariableWarning`; ``on_error="raise"`` makes them an error instead.

    Examples
    --------
    >>> import xarray as xr
    >>> group = Group({"title": "nothing yet"})
    >>> xr.open_dataset(group, engine=VirtualZarrBackendEntrypoint).attrs
    {'title': 'nothing yet'}
    """

    description: ClassVar[str] = "Open reference files, HDF5, TIFF and Zarr with virtualzarr"
    supports_groups: ClassVar[bool] = True
    # Spelled out because xarray finds them by itself only for engines it knows by name.
    open_dataset_parameters: ClassVar[tuple[str, ...]] = (
        *("filename_or_obj", "mask_and_scale", "decode_times", "concat_characters"),
        *("decode_coords", "drop_variables", "use_cftime", "decode_timedelta"),
        *("group", "storage_options", "on_error", "allowed", "version", "at", "tag", "concat_dim"),
    )

    def guess_can_open(self, filename_or_obj: Any) -> bool:
        """Claim groups, arrays, and local references; everything else has its own engine."""
        if isinstance(filename_or_obj, (Group, Array)):
            return True
        if not isinstance(filename_or_obj, (str, os.PathLike)):
            return False
        path = os.fspath(filename_or_obj)
        # Only references: HDF5, TIFF and Zarr have engines of their own, which people expect.
        for name, marks in _SIGNATURES.items():
            file = os.path.join(path, name) if name else path
            if (name or path.endswith(".json")) and os.path.isfile(file):
                with open(file, "rb") as opened:
                    head = opened.read(_MAX_HEAD)
                if any(mark in head for mark in marks):
                    return True
        return False

    def open_dataset(
        self,
        filename_or_obj: Any,
        *,
        group: str | None = None,
        storage_options: Mapping[str, Any] | None = None,
        on_error: OnError = "warn",
        allowed: str | Iterable[str] | None = None,
        version: int | None = None,
        at: datetime | str | None = None,
        tag: str | None = None,
        concat_dim: str | None = None,
        **decoding: Any,
    ) -> Dataset:
        """Open one group, the root group if none is named, as a dataset.

        Parameters
        ----------
        filename_or_obj : str, path, Group, Array, or several files
            Several files, given by a list or a pattern with ``*``, are virtualized.
        group : str, optional
            Path of the group within the hierarchy.
        storage_options : mapping, optional
            How fsspec opens a URL.
        on_error : "warn" or "raise"
            What to do about variables that cannot be virtualized.
        allowed : str or iterable of str, optional
            What references may reach, as for `virtualzarr.open`.
        version, at, tag
            At which version a dataset with versions is opened, as for `virtualzarr.open`.
        concat_dim : str, optional
            The dimension along which several files are joined.
        **decoding
            As for `to_dataset`.

        Raises
        ------
        virtualzarr.errors.VirtualZarrError
            If the target cannot be opened, or has no such group.
        """
        which: dict[str, Any] = {"version": version, "at": at, "tag": tag}
        which |= {"allowed": allowed, "concat_dim": concat_dim}
        node = open_node(filename_or_obj, storage_options, on_error, group, **which)
        return to_dataset(node, on_error, source=encoding_source(filename_or_obj), **decoding)

    def open_groups_as_dict(
        self,
        filename_or_obj: Any,
        *,
        group: str | None = None,
        storage_options: Mapping[str, Any] | None = None,
        on_error: OnError = "warn",
        allowed: str | Iterable[str] | None = None,
        version: int | None = None,
        at: datetime | str | None = None,
        tag: str | None = None,
        concat_dim: str | None = None,
        **decoding: Any,
    ) -> dict[str, Dataset]:
        """Open a group and all groups below it, each as a dataset, by path."""
        which: dict[str, Any] = {"version": version, "at": at, "tag": tag}
        which |= {"allowed": allowed, "concat_dim": concat_dim}
        root = open_node(filename_or_obj, storage_options, on_error, group, **which)
        nodes = {"/": root}
        if isinstance(root, Group):
            below = root.members(max_depth=None)
            nodes |= {f"/{path}": node for path, node in below if isinstance(node, Group)}
        source = encoding_source(filename_or_obj)
        return {
            path: to_dataset(node, on_error, source=source, **decoding)
            for path, node in nodes.items()
        }

    def open_datatree(self, filename_or_obj: Any, **options: Any) -> DataTree:
        """Open a group and all groups below it as a tree; options as for `open_dataset`."""
        from xarray import DataTree

        groups = self.open_groups_as_dict(filename_or_obj, **options)
        tree = DataTree.from_dict(groups)
        for path, dataset in groups.items():
            # DataTree.from_dict copies datasets without their closers.
            tree[path].set_close(dataset._close)
        return tree


def encoding_source(target: Any) -> str | None:
    """Return what a dataset is opened from, as xarray writes it into its encoding."""
    if not isinstance(target, str | os.PathLike):
        return None
    path = os.fspath(target)
    return hide_in_url(path) if is_url(path) else os.path.abspath(os.path.expanduser(path))


def _is_several(target: Any) -> bool:
    """Tell whether a target is several files, or a pattern of their names."""
    if isinstance(target, str | os.PathLike):
        path = os.fspath(target)
        return "*" in path and (is_url(path) or not os.path.exists(path))
    return isinstance(target, list | tuple)


def open_node(
    target: Any,
    storage_options: Mapping[str, Any] | None,
    on_error: OnError,
    group: str | None,
    concat_dim: str | None = None,
    allowed: str | Iterable[str] | None = None,
    **which: Any,
) -> Array | Group:
    """Open the target, at a version if it has any, and go to the group that is wanted."""
    check_choice("on_error", on_error, OnError)
    node: Array | Group = target
    if not isinstance(target, (Array, Group)):
        import virtualzarr

        how: dict[str, Any] = {
            "on_error": on_error, "storage_options": storage_options, "allowed": allowed,
        }  # fmt: skip
        if _is_several(target):
            node = virtualzarr.virtualize(target, concat_dim, **how)
        else:
            node = virtualzarr.open(target, **how, **which)
    if not (group or "").strip("/"):
        return node
    if not isinstance(node, Group):
        raise UnsupportedError(f"there is no group {group!r}: the target is a single array")
    inner = node[str(group)]
    if not isinstance(inner, Group):
        raise UnsupportedError(f"{group!r} is an array, not a group; open the group it is in")
    return inner


def to_dataset(
    node: Array | Group, on_error: OnError = "raise", *, source: str | None = None, **decoding: Any
) -> Dataset:
    """Return a group's arrays as a lazy dataset, decoded by the CF conventions.

    Parameters
    ----------
    node : Group or Array
        A lone array becomes the variable of its name, or ``data``.
    on_error : "raise" or "warn"
        What to do about members that cannot be opened.
    source : str, optional
        What it is opened from, for the encodings.
    **decoding
        `mask_and_scale`, `decode_times`, `concat_characters`, `decode_coords`, `drop_variables`,
        `use_cftime`, `decode_timedelta`: as for `xarray.open_dataset`. Sequences of variable
        length are given as they are: the CF conventions do not know them.

    Raises
    ------
    ValueError
        If two variables give one dimension different lengths.

    Examples
    --------
    >>> to_dataset(Group({"title": "nothing yet"})).sizes
    Frozen({})
    """
    # Registers the accessor `dataset.virtualzarr`; imported late, as that module imports this.
    from virtualzarr.integrations.xarray_datasets import Accessor  # noqa: F401

    if isinstance(node, Array):
        node = Group({}, {node.name or "data": node})
    store = GroupDataStore(node, on_error, source)
    plain = [name for name, array in store.arrays.items() if _is_ragged(array)]
    if plain:
        # xarray's decoders take an object array for text and fail on sequences.
        decoding |= _disable_decoding(decoding, store.arrays, plain)
    return StoreBackendEntrypoint().open_dataset(store, **decoding)


def _is_ragged(array: Array) -> bool:
    """Whether elements are sequences of variable length."""
    return array.dtype.kind == "O" and vlen_kind(array.dtype) is None


def _disable_decoding(
    decoding: Mapping[str, Any], names: Iterable[str], plain: Iterable[str]
) -> dict[str, dict[str, Any]]:
    """Return how variables are decoded, one by one, where some are not decoded."""
    result: dict[str, dict[str, Any]] = {}
    for option in ("mask_and_scale", "decode_times", "decode_timedelta"):
        value = decoding.get(option)
        if option != "decode_timedelta":
            # None is xarray's own default; per variable it must be spelled out.
            value = True if value is None else value
        if value is not None:
            each = dict(value) if isinstance(value, Mapping) else dict.fromkeys(names, value)
            result[option] = {**each, **dict.fromkeys(plain, False)}
    return result


class GroupDataStore(AbstractDataStore):
    """What xarray's decoding needs of a group: its variables and attributes."""

    def __init__(self, group: Group, on_error: OnError, source: str | None) -> None:
        self.group = group
        self.on_error = on_error
        self.source = source
        self.unlimited: set[str] | None = None
        arrays = dict(self._arrays())
        self.arrays = arrays | _rename_level_dims(group, arrays)

    def get_attrs(self) -> dict[str, Any]:
        """Return the group's attributes, without those by which libraries sign their files."""
        attributes = numpy_attributes(self.group.attrs)
        # As the netCDF library hides `_NCProperties`: written again, it would lie about the writer.
        return {k: v for k, v in attributes.items() if not k.startswith("_NC")}

    def get_variables(self) -> dict[str, Variable]:
        """Return the group's arrays as lazy variables."""
        taken = {dim for array in self.arrays.values() for dim in array.dims if dim is not None}
        # Names must be one for the group, as xarray takes equal names for one dimension.
        names = _PhonyNames(taken, _find_ambiguous_names(self.arrays.values()))
        dims = {name: names.of(array) for name, array in self.arrays.items()}
        for name, array in self.arrays.items():
            if array.file_layout is not None:
                grows = zip(dims[name], array.file_layout.unlimited, strict=False)
                self.unlimited = (self.unlimited or set()) | {dim for dim, free in grows if free}
        return {
            name: to_variable(array, dims[name], self.source) for name, array in self.arrays.items()
        }

    def _arrays(self) -> Iterator[tuple[str, Array]]:
        for name in self.group:
            try:
                node = self.group[name]
            except VirtualZarrError as error:
                if self.on_error != "warn":
                    raise
                warn_caller(f"{name} is left out: {error}")
                continue
            if isinstance(node, Array):
                yield name, node

    def get_encoding(self) -> dict[str, Any]:
        """Return which dimensions are unlimited in the file, and where that is."""
        encoding = {"unlimited_dims": self.unlimited, "source": self.source}
        return {name: value for name, value in encoding.items() if value is not None}

    def close(self) -> None:
        """Do nothing: files are open only while they are read."""


def _rename_level_dims(group: Group, arrays: Mapping[str, Array]) -> dict[str, Array]:
    """Return resolutions of an OME-Zarr image with a name for each length of a dimension.

    OME-Zarr 0.5 wants one name for all of them, of which xarray would make no dataset.
    """
    levels = {path: arrays[path] for path in level_paths(group.attributes) if path in arrays}
    dimensions, renamed = Dimensions(), {}
    for path, array in levels.items():
        if all(array.dims):
            names = dimensions.name([name or "" for name in array.dims], array.shape)
            if names != array.dims:
                renamed[path] = array.lazy.rename_dims(dict(enumerate(names)))
    return renamed


def _find_ambiguous_names(arrays: Iterable[Array]) -> set[str]:
    """Return names made up by readers that stand for axes of several lengths: files were merged."""
    lengths: dict[str, set[int]] = {}
    for array in arrays:
        for name, length in zip(array.dims, array.shape, strict=True):
            if name is not None and real_name(name) is None:
                lengths.setdefault(name, set()).add(length)
    return {name for name, sizes in lengths.items() if len(sizes) > 1}


class _PhonyNames:
    """Names for axes that have none, or one of those that are `ambiguous`.

    As the netCDF library does: axes of one length share a name, but not within one array.
    """

    def __init__(self, taken: set[str], ambiguous: set[str]) -> None:
        self._taken = taken
        self._ambiguous = ambiguous
        self._names: dict[tuple[int, int], str] = {}

    def of(self, array: Array) -> tuple[str, ...]:
        seen: dict[int, int] = {}
        dims = []
        for name, length in zip(array.dims, array.shape, strict=True):
            if name is None or name in self._ambiguous:
                seen[length] = seen.get(length, 0) + 1
                name = self._phony(length, seen[length])
            dims.append(name)
        return tuple(dims)

    def _phony(self, length: int, occurrence: int) -> str:
        if (length, occurrence) not in self._names:
            number = len(self._names)
            while f"phony_dim_{number}" in self._taken:
                number += 1
            # A variable of the file may be called so by chance.
            self._taken.add(f"phony_dim_{number}")
            self._names[length, occurrence] = f"phony_dim_{number}"
        return self._names[length, occurrence]


def to_variable(
    array: Array, dims: tuple[str, ...] | None = None, source: str | None = None
) -> Variable:
    """Return an array as a lazy variable, its attributes as CF decoding expects them.

    In Zarr v2 the fill value of the metadata is the CF `_FillValue`, as xarray's own engine has it;
    in v3 and in foreign files only the attribute counts.
    """
    # As numpy scalars, which is how xarray's own engines have them: decoding depends on the dtype.
    raw_attributes = {
        name: value for name, value in array.attrs.items() if name != portable.PRIVATE_FILL
    }
    mask = portable.get_mask(array.metadata)
    if array.dtype.names is not None:
        raw_attributes.pop(portable.FILL, None)  # which xarray fails for
    elif mask is not None:
        raw_attributes[portable.FILL] = mask
    attributes = numpy_attributes(raw_attributes)
    # Collects selections until values are used: isel of a dataset reads nothing.
    data = indexing.LazilyIndexedArray(BackendArrayWrapper(array))
    dims = _PhonyNames(set(), set()).of(array) if dims is None else dims
    return Variable(dims, data, attributes, encoding_of(array, dims, source))


class BackendArrayWrapper(BackendArray):
    """An `Array` as xarray indexes arrays that are not in memory."""

    __slots__ = ("_array", "dtype", "shape")

    def __init__(self, array: Array) -> None:
        self._array = array
        self.shape = array.shape
        kind = vlen_kind(array.dtype)
        # By this mark xarray's writers know text without looking at it.
        self.dtype = array.dtype if kind is None else np.dtype("O", metadata={"element_type": kind})

    def __dask_tokenize__(self) -> Any:
        return self._array.__dask_tokenize__()

    def __getitem__(self, key: indexing.ExplicitIndexer) -> Any:
        """Read what xarray's indexer names."""
        # xarray names three kinds of selections; ours are `vindex`, `oindex` and plain slices, so
        # that IndexingSupport.VECTORIZED needs no detour over whole blocks.
        if isinstance(key, indexing.VectorizedIndexer):
            method = self._array.vindex.__getitem__
        elif isinstance(key, indexing.OuterIndexer):
            method = self._array.oindex.__getitem__
        else:
            method = self._array.__getitem__
        values = indexing.explicit_indexing_adapter(
            key, self.shape, indexing.IndexingSupport.VECTORIZED, method
        )
        return values if self.dtype.kind != "O" else _as_objects(values, self._array.dtype)

    async def async_getitem(self, key: indexing.ExplicitIndexer) -> Any:
        """Read what xarray's indexer names, in a thread."""
        # The read engine is synchronous with threads of its own: the event loop only waits.
        return await asyncio.to_thread(self.__getitem__, key)


def _as_objects(values: Any, dtype: np.dtype[Any]) -> NDArray[Any]:
    """Return one object as an array of no axes: sequences would be taken for their elements."""
    if isinstance(values, np.ndarray) and values.dtype == dtype:
        return values
    one = np.empty((), object)
    one[()] = values
    return one
