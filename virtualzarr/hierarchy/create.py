"""Creation of stored arrays, and opening them with requirements on what they are."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Unpack

import numpy as np

from virtualzarr.array import Array, ChunkCache
from virtualzarr.array.read.cache_policy import CachePolicy, Recheck
from virtualzarr.errors import MismatchError, NodeExistsError, error_context
from virtualzarr.hierarchy.resolve import Mode, ResolvedTarget, check_node_type, resolve
from virtualzarr.keywords import strict_keywords
from virtualzarr.metadata import ArrayMetadata
from virtualzarr.metadata.create import ArrayParams, create_array_metadata, find_differences
from virtualzarr.metadata.node_documents import array_from_json
from virtualzarr.nodes.documents import find_node, read_node, validate_path
from virtualzarr.nodes.write_nodes import write_node
from virtualzarr.stores import Store
from virtualzarr.stores.read_only import AssumedStore
from virtualzarr.stores.renamed_document import RenamedDocument


@strict_keywords(ArrayParams)
def create_array(
    store: Any,
    *,
    name: str | None = None,
    data: Any = None,
    overwrite: bool = False,
    write_empty_chunks: bool = False,
    fill_missing: bool = True,
    storage_options: Mapping[str, Any] | None = None,
    cache: ChunkCache | None = None,
    recheck_cached_metadata: Recheck | None = None,
    recheck_cached_data: Recheck | None = None,
    metadata_key: str | None = None,
    **params: Unpack[ArrayParams],
) -> Array:
    """Make an array in a store.

    Parameters
    ----------
    store : path, URL, mutable mapping or store
    name : str, optional
        Path within the store; groups above it that are not there are made. The root by default.
    data : array-like, optional
        What the array is filled with, once it is there; it gives the shape and the data type. Who
        is interrupted leaves an array in which chunks are missing; `copy` is all or nothing.
    overwrite : bool
        Whether a node that is there already is deleted, with everything in it.
    write_empty_chunks : bool
        Whether the array returned stores chunks that hold nothing but the fill value.
    fill_missing : bool
        Whether the array returned reads missing chunks as the fill value, or fails.
    storage_options : mapping, optional
        For the file system of a URL.
    cache, recheck_cached_metadata, recheck_cached_data
        As for `open_array`, for the array returned.
    metadata_key : str, optional
        What the metadata document is called, instead of ``zarr.json``, or of v2's ``.zarray``. Only
        who gives this name finds the array again: readers of Zarr, groups and consolidated
        metadata do not.
    shape : tuple of int, or int
    dtype : dtype-like
        Also a v3 data type; `str` and `bytes` have elements of any length. The byte order of a v3
        array is little, whatever is given.
    chunks : "auto", int, sequence, ChunkGrid
        One length for each axis, or for all; -1 or None is the whole axis, "auto" is chosen. A list
        of lengths along an axis makes a rectilinear grid: ``[[10, 20, 30], 512]``. False
        is one chunk for everything. What is chosen is as in TensorStore: about 1024 * 1024
        elements, as nearly a cube as the array allows; see `layout`.
    shards : optional
        The same for shards, which hold many chunks in one object; none by default. A mapping
        with ``shape`` and ``index_location`` ("start" or "end") says both.
    filters, serializer, compressors : codec, list of codecs, or "auto"
        Codecs from array to array, from array to bytes, and from bytes to bytes. A codec is a
        name, a mapping as in v2 or v3 documents, or an object of this package, zarr-python or
        numcodecs. The default is to compress with zstd, level 0; None is no codec.
    codecs : list of codecs, optional
        All of them at once, instead of the three.
    fill_value : optional
        What elements never written are; zero by default, NaT for times. None is v2's null.
    order : {"C", "F"}, optional
        In which order elements are stored in chunks. For v3 "F" puts a transpose in.
    zarr_format : {3, 2}
    attributes : mapping, optional
    dimension_names : sequence of str or None, optional
    dimension_units : sequence of str, number, (number, str) or None, optional
        What one step along each dimension is, such as ``"4 nm"``; kept as an attribute of that
        name, as TensorStore does.
    chunk_key_encoding : {"default", "v2"} or mapping, optional
    dimension_separator : {"/", "."}, optional
        What stands between the numbers in the keys of chunks.
    layout : ChunkLayout or mapping, optional
        Further constraints on chunks: `grids.ChunkLayout`. Different read and write chunks put a
        sharding codec in, an inner order a transpose.

    Returns
    -------
    Array

    Raises
    ------
    NodeExistsError
        There is a node already, or chunks of an array that was deleted in part.
    MetadataError, UnsupportedError, CodecError
        What is asked for cannot be had; the message names the argument.
    AccessError
        The store can only be read.

    Examples
    --------
    >>> import virtualzarr as vz
    >>> vz.create_array({}, name="a/b", shape=(1000, 2000, 3000), dtype="u2").chunks
    (101, 101, 101)
    >>> vz.create_array({}, shape=60, chunks=[[10, 20, 30]], dtype="f4").grid
    RectilinearGrid(shape=(60,), chunk_shapes=[[10, 20, 30]])
    """
    resolved = resolve(
        store,
        name or "",
        "w" if overwrite else "w-",
        storage_options=storage_options,
        zarr_format=params.get("zarr_format"),
        metadata_key=metadata_key,
    )
    target, path = resolved.store, resolved.path
    policy = CachePolicy(cache, recheck_cached_metadata, recheck_cached_data)
    if data is not None:
        data = _fill_params(params, data)
    metadata = create_array_metadata(params)
    validate_path(path, metadata.zarr_format)
    # Chunks of both would have the same keys, which no listing of documents can tell apart.
    if not overwrite:
        _check_shared(target, path)
    with error_context(file=target.uri, variable=path or "/"):
        write_node(target, path, metadata, overwrite=overwrite)
    # Read back what was written: whoever opens the array later must see exactly this one.
    stored = read_node(target, path, metadata.zarr_format)
    stored = check_node_type(stored, "array", target, path)
    array = Array.from_store(stored, target, path, is_stored=True)
    array.write_empty_chunks, array.fill_missing = write_empty_chunks, fill_missing
    array.cache_policy = policy
    array._is_repaired = True  # what was written just now
    # Data last: a write that fails leaves an array that opens, with chunks that read as fill value.
    if data is not None:
        array[...] = data
    return array


def _check_shared(store: Store, path: str) -> None:
    """Refuse a second array in a folder, whose chunks would have the keys of the first."""
    # Only one of the two has a name that others look for; the other would be overwritten unseen.
    if isinstance(store, RenamedDocument) and find_node(store.store, path) is not None:
        raise NodeExistsError(
            "there is a node whose metadata have the usual name; overwrite=True replaces it",
            file=store.uri,
            variable=path or "/",
        )


def _fill_params(params: ArrayParams, data: Any) -> Any:
    """Take shape and data type from the data, where they are not given; return it as an array."""
    # An Array is not read yet: only its shape and data type are needed here.
    data = data if isinstance(data, Array) else np.asarray(data)
    if params.get("shape") is None:
        params["shape"] = data.shape
    if params.get("dtype") is None:
        params["dtype"] = data.dtype
    return data


@strict_keywords(ArrayParams)
def open_array(
    store: Any,
    path: str = "",
    *,
    mode: Mode | None = None,
    data: Any = None,
    assume: bool | ArrayMetadata | Mapping[str, Any] = False,
    assume_cached: bool = False,
    write_empty_chunks: bool = False,
    fill_missing: bool = True,
    storage_options: Mapping[str, Any] | None = None,
    cache: ChunkCache | None = None,
    recheck_cached_metadata: Recheck | None = None,
    recheck_cached_data: Recheck | None = None,
    metadata_key: str | None = None,
    **params: Unpack[ArrayParams],
) -> Array:
    """Open an array, or make it, and see to it that it is as asked for.

    Parameters
    ----------
    store : path, URL, mutable mapping or store
    path : str
    mode : {"r", "r+", "a", "w", "w-"}, optional
        "r" reads what is there, "r+" also writes to it, "a" makes it where there is none, "w"
        makes it anew, deleting what is there, "w-" makes it and fails where there is a node.
        Default: "a", or "r" for stores that can only be read.
    data : array-like, optional
        As in `create_array`, where the array is made.
    assume : bool, ArrayMetadata or mapping
        Neither read nor write metadata, but assume that they are these (or a metadata document),
        or what `create_array` would choose. Wrong assumptions read, and write, wrong data. The
        array cannot be resized.
    assume_cached : bool
        Whether what is assumed stands for what is stored only until that is read: by `append` and
        `resize`, which need it, by `refresh`, and as `recheck_cached_metadata` says.
    write_empty_chunks, fill_missing, storage_options
        As for `create_array`.
    cache : ChunkCache, optional
        Where decoded chunks are kept in memory, which may be shared by many arrays. The default is
        the one of `config.chunk_cache_bytes`, which keeps nothing unless that is set.
    recheck_cached_metadata : bool, "always", "open", "never" or float, optional
        When a read or write looks first whether the stored metadata changed, as when another
        process has resized the array: always (True), or if those known are older than so many
        seconds; not with "open", as opening read them, nor with False or "never". Numbers from
        10^9 on are times, in seconds since 1970: what was known before then is looked up. The
        default is that of `config`, "open".
    recheck_cached_data : bool, "always", "open", "never" or float, optional
        The same for decoded chunks and for the indexes of shards: when a read looks whether the
        file still is what it was. "open" does so for what was kept before the array was opened.
        The default is that of `config`, True.
    metadata_key : str, optional
        What the metadata document is called; see `create_array`. Attributes of v2 are in
        ``.zattrs`` all the same.
    **params
        The parameters of `create_array`. An array that is there must be as they say.

    Raises
    ------
    NodeNotFoundError, NodeExistsError
        There is no array, or there is one already, as the mode has it.
    MismatchError
        The array is not as asked for; the message has both values of whatever differs.

    Examples
    --------
    >>> import virtualzarr as vz
    >>> store = {}
    >>> a = vz.open_array(store, shape=(4, 6), dtype="i4")
    >>> vz.open_array(store, shape=(4, 6), dtype="f4")
    Traceback (most recent call last):
    virtualzarr.errors.MismatchError: dtype: float32 is asked for, but it is int32 [file memory, \
variable /]
    """
    resolved = resolve(
        store,
        path,
        mode,
        storage_options=storage_options,
        zarr_format=params.get("zarr_format"),
        metadata_key=metadata_key,
    )
    # Assumed metadata that last are never compared with what is stored, not even when asked to.
    lasting = assume is not False and not assume_cached
    recheck = False if lasting else recheck_cached_metadata
    policy = CachePolicy(cache, recheck, recheck_cached_data)
    if assume is not False:
        array = _assume_array(resolved, assume, params, lasting)
    else:
        array = _open_or_make(resolved, data, params)
    array.write_empty_chunks, array.fill_missing = write_empty_chunks, fill_missing
    array.cache_policy = policy
    return array


def _open_or_make(resolved: ResolvedTarget, data: Any, params: ArrayParams) -> Array:
    """Return the array that is there, which must be as it is asked for, or make it."""
    metadata = resolved.read("array")
    if metadata is None:
        # The store is resolved already, under the name of the document: it is not opened again.
        options: Any = {"overwrite": resolved.mode == "w", "data": data, **params}
        created = resolved.make(lambda: create_array(resolved.store, name=resolved.path, **options))
        if created is not None:
            return created
        metadata = resolved.read("array")
    array = Array.from_store(metadata, resolved.store, resolved.path, is_stored=True)
    check_params(array, resolved.store.uri, params)
    return array


def check_params(array: Array, uri: str, params: ArrayParams) -> None:
    """Raise a MismatchError unless an array is as the parameters say."""
    if params and (lines := find_differences(array.metadata, params)):
        raise MismatchError("; ".join(lines), file=uri, variable=array.path or "/")


def _assume_array(
    resolved: ResolvedTarget,
    assume: bool | ArrayMetadata | Mapping[str, Any],
    params: ArrayParams,
    lasting: bool,
) -> Array:
    """Return an array of assumed metadata; where they last, those stored are not written either."""
    store, mode = resolved.store, resolved.mode
    if mode in ("w", "w-"):
        raise ValueError(f"assume: with mode {mode!r} the metadata are written, not assumed")
    # A document may be in the spelling of either format, and of drafts, as models take it.
    if isinstance(assume, Mapping):
        assume = array_from_json(assume, 2 if assume.get("zarr_format") == 2 else 3)
    metadata = create_array_metadata(params) if isinstance(assume, bool) else assume
    validate_path(resolved.path, metadata.zarr_format)
    # Attributes and shapes cannot be written back: what is stored may say something else.
    if lasting and mode != "r":
        store = AssumedStore(store)
    array = Array.from_store(metadata, store, resolved.path)
    check_params(array, store.uri, params)
    return array
