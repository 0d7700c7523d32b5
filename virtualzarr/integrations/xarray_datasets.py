"""Virtual datasets of xarray: opened over virtual arrays, and turned into groups again."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import numpy as np

from virtualzarr.choices import OnError
from virtualzarr.combine.versions import join_versions
from virtualzarr.errors import MissingDependencyError, UnsupportedError

try:
    import xarray as xr
    from xarray import Variable
except ImportError as error:
    raise MissingDependencyError(
        "virtual datasets need xarray: pip install 'virtualzarr[xarray]'"
    ) from error

from virtualzarr.array import Array
from virtualzarr.codecs import Codec, Pipeline
from virtualzarr.codecs.core.base import ArrayArray, ChunkSpec
from virtualzarr.codecs.unpack import Unpack
from virtualzarr.combine.attributes import PACKING_ATTRIBUTES
from virtualzarr.combine.cf_packing import CFPacking, with_decoding
from virtualzarr.hierarchy.create import create_array
from virtualzarr.hierarchy.group import Group
from virtualzarr.integrations import xarray_backend, xarray_duck_array
from virtualzarr.keywords import strict_keywords
from virtualzarr.manifest import Decoder
from virtualzarr.metadata import json_attributes, portable
from virtualzarr.metadata.fill import is_same_fill
from virtualzarr.virtual.from_store import as_virtual

if TYPE_CHECKING:
    from virtualzarr.references.report import PublishReport

_MEANING_ATTRIBUTES = (
    "units",
    "calendar",
    "positive",
    "flag_values",
    "flag_masks",
    "flag_meanings",
)
"""Attributes of decoded variables by which equal numbers mean different things."""


@strict_keywords(xr.open_dataset)
def open_virtual_dataset(
    target: Any,
    *,
    group: str | None = None,
    storage_options: Mapping[str, Any] | None = None,
    on_error: OnError = "warn",
    allowed: str | Iterable[str] | None = None,
    check: bool = True,
    **decoding: Any,
) -> xr.Dataset:
    """Open a dataset whose variables xarray selects from, joins and pads without reading them.

    Parameters
    ----------
    target : str, path, Group or Array
        Anything `virtualzarr.open` takes, or what it returns.
    group : str, optional
        Path of the group within the hierarchy.
    storage_options : mapping, optional
        How fsspec opens a URL.
    on_error : "warn" or "raise"
        What to do about variables that cannot be virtualized.
    allowed : str or iterable of str, optional
        What references may reach, as for `virtualzarr.open`.
    check : bool
        Whether joining variables is an error that differ in attributes such as ``units``, by which
        equal numbers mean different things. xarray itself does not look at them.
    **decoding
        `mask_and_scale`, `decode_times`, `drop_variables` and so on: as for `xarray.open_dataset`.

    Returns
    -------
    xarray.Dataset
        Its variables are decoded as xarray does: packed numbers are unpacked chunk by chunk when
        they are read. ``isel``, ``sel``, ``concat``, ``combine_by_coords``, ``merge``,
        ``reindex``, ``align``, ``pad``, ``shift``, ``roll``, ``transpose``, ``expand_dims``,
        ``broadcast``, ``astype`` and ``where`` with a mask along axes read nothing but indexes.
        All else, and ``load``, reads what it needs. Index coordinates are in memory. Times and
        texts that have to be decoded are lazy as in ``xarray.open_dataset``: joining reads them.

    See Also
    --------
    to_group : the way back, to publish what was made.

    Examples
    --------
    >>> import virtualzarr as vz
    >>> from virtualzarr.integrations.xarray_datasets import open_virtual_dataset, to_group
    >>> a = vz.create_array({}, shape=(4, 6), chunks=(2, 6), dtype="f4", dimension_names=("y", "x"))
    >>> ds = open_virtual_dataset(vz.Group({}, {"a": a}))
    >>> both = xr.concat([ds, ds.isel(y=slice(2))], dim="y")
    >>> to_group(both)["a"]
    <Array a (6, 6) float32, 3 chunks, virtual>
    """
    node = xarray_backend.open_node(target, storage_options, on_error, group, allowed=allowed)
    if isinstance(node, Array):
        node = Group({}, {node.name or "data": node})
    # Opened again by xarray itself: names, coordinates and decoding are its own, only the data of
    # variables are exchanged below.
    opened: Any = node  # which xarray hands to the engine as it is
    dataset = xr.open_dataset(
        opened, engine=xarray_backend.VirtualZarrBackendEntrypoint, on_error=on_error, **decoding
    )
    source = xarray_backend.encoding_source(target)
    if source is not None:
        dataset.encoding["source"] = source
    masked = decoding.get("mask_and_scale", decoding.get("decode_cf", True))
    coordinates: dict[Any, Variable] = {}
    variables: dict[Any, Variable] = {}
    for name, variable in dataset.variables.items():
        # Indexes are in memory: xarray has read them to build pandas' index.
        if name in dataset.xindexes:
            continue
        is_masked = masked.get(name, True) if isinstance(masked, Mapping) else masked
        duck = _as_duck_array(node[str(name)], variable, unpack=is_masked is not False, check=check)
        if duck is not None:
            virtual = Variable(
                variable.dims, duck, variable.attrs, variable.encoding, fastpath=True
            )
            (coordinates if name in dataset.coords else variables)[name] = virtual
    # Coordinates that are to have no index get none here either.
    dataset = dataset.assign_coords(xr.Coordinates(coordinates, indexes={}))
    return dataset.assign(variables)


def _as_duck_array(
    array: Any, variable: Variable, *, unpack: bool, check: bool
) -> xarray_duck_array.VirtualDuckArray | None:
    """Return a variable's elements, decoded; None if that takes more than unpacking numbers."""
    try:
        bare = xarray_duck_array.as_bare_virtual(array)
    except UnsupportedError:
        return None
    packed = None
    masks = {"_FillValue", "missing_value"} & variable.encoding.keys()
    if unpack and array.dtype.kind in "iuf" and array.dtype.names is None:
        packing = CFPacking.from_array(array)
        codec = packing.codec(array, packing.calculated)
        if codec is not None:
            packed = _get_packing_attributes(array)
            bare = with_decoding(bare, codec, dtype=packing.calculated)
    # Masks of text or times need xarray's decoding, which reads.
    elif unpack and masks:
        return None
    # Decoded to something else than unpacked numbers, such as times or joined characters: left to
    # xarray's own lazy decoding.
    if bare.dtype != variable.dtype or bare.shape != variable.shape:
        return None
    names = (*_MEANING_ATTRIBUTES, *PACKING_ATTRIBUTES) if check else ()
    meaning = {name: variable.attrs[name] for name in names if name in variable.attrs}
    return xarray_duck_array.VirtualDuckArray(bare, meaning, packed)


def _get_packing_attributes(array: Array) -> dict[str, Any]:
    """Return the attributes by which the stored numbers are unpacked."""
    attributes = portable.with_typed_mask(array.metadata).attributes
    return {name: attributes[name] for name in PACKING_ATTRIBUTES if name in attributes}


# -- the way back ---------------------------------------------------------------------------------


@strict_keywords()
def to_group(dataset: xr.Dataset) -> Group:
    """Return a dataset as a group that can be published or kept.

    Parameters
    ----------
    dataset : xarray.Dataset
        Variables that are virtual stay references, as they are stored: packed numbers are packed
        again, unless inputs were joined that are packed in different ways. All others are encoded
        by xarray and kept in memory.

    Returns
    -------
    Group
        Also as ``dataset.virtualzarr.to_group()``.
    """
    variables, attributes = xr.conventions.encode_dataset_coordinates(dataset)
    members = {str(name): _to_array(str(name), variable) for name, variable in variables.items()}
    join_versions(members.values())  # xarray has put together what may be of several openings
    return Group(json_attributes(attributes), members)


def _to_array(name: str, variable: Variable) -> Array:
    data = variable._data
    if not isinstance(data, xarray_duck_array.VirtualDuckArray):
        with_gaps = _without_integer_encoding(variable)
        return _inline(name, _encode_losslessly(with_gaps, name))
    attributes = variable.attrs
    array = data.array
    # Packed numbers go back as they are stored: unpacking and packing again could round.
    stored = None if data.packed is None else _repack(array)
    if stored is not None:
        array, attributes = stored, {**attributes, **(data.packed or {})}
    return _with_name(array, name, variable.dims, attributes)


_INTEGER_ENCODING = ("dtype", "scale_factor", "add_offset", "_Unsigned")
"""How numbers without a place for missing ones are encoded."""


def _without_integer_encoding(variable: Variable) -> Variable:
    """Return a variable that is encoded as floats if there is no number for what is missing.

    Reindexing makes gaps in Booleans and integers, which xarray would cast to what they were.
    """
    encoding = variable.encoding
    dtype = np.dtype(encoding.get("dtype", variable.dtype))
    marked = any(encoding.get(name) is not None for name in ("_FillValue", "missing_value"))
    if (
        dtype.kind not in "biuO"
        or (marked and dtype.kind in "iu")
        or variable.dtype.kind not in "fO"
    ):
        return variable
    values = variable.values
    if values.dtype.kind == "O":
        values = _as_floats(values)
    if values is None or not np.isnan(values).any():
        return variable
    remaining = {key: value for key, value in encoding.items() if key not in _INTEGER_ENCODING}
    return Variable(variable.dims, values, variable.attrs, remaining)


def _as_floats(values: Any) -> Any:
    """Return Booleans and NaN in an array of objects as floats, None for anything else."""
    if all(isinstance(value, bool | float | np.bool_ | np.floating) for value in values.flat):
        return values.astype(np.float64)
    return None


_LARGEST_IN_FLOATS = 2**53
"""Integers up to which 64-bit floats have each one."""

_LOSSY_ENCODING = (*_INTEGER_ENCODING, "_FillValue", "missing_value", "units", "calendar")
"""What of a variable's encoding may change its values."""

_NOT_ENCODABLE = (ValueError, TypeError, LookupError, ArithmeticError)
"""What xarray raises where values do not suit their encoding."""


def _encode_losslessly(variable: Variable, name: str) -> Variable:
    """Return a variable encoded as its encoding says, or, if that loses any value, as it is.

    xarray keeps the encoding of the first of the variables that it joins, in which there may be no
    room for longer texts, larger or finer numbers, or gaps, or which it cannot apply to others.
    """
    with suppress(*_NOT_ENCODABLE):  # then it is tried without its encoding
        encoded = xr.conventions.encode_cf_variable(variable, name=name)
        # Tried out: encoding is only kept if decoding gives the same values again.
        if _decodes_to(encoded, variable, name):
            return encoded
    remaining = {
        key: value for key, value in variable.encoding.items() if key not in _LOSSY_ENCODING
    }
    plain = Variable(variable.dims, variable.values, variable.attrs, remaining)
    try:
        return xr.conventions.encode_cf_variable(plain, name=name)
    except _NOT_ENCODABLE as error:
        raise UnsupportedError(f"xarray cannot encode it: {error}", variable=name) from error


def _decodes_to(encoded: Variable, variable: Variable, name: str) -> bool:
    kind, values = variable.dtype.kind, variable.values
    decoded = xr.conventions.decode_cf_variable(
        name,
        encoded.copy(deep=False),  # attributes are taken out of what is decoded
        concat_characters=False,
        decode_times=kind in "MO",
        decode_timedelta=kind == "m",
    ).values
    if values.shape != decoded.shape:
        return False
    if kind in "OSU":
        pairs = zip(values.flat, decoded.flat, strict=True)
        return all(a == b or (a != a and b != b) for a, b in pairs)
    # Comparing int64 with float64 rounds the integers first, so that they would seem equal.
    if kind in "iu" and decoded.dtype.kind == "f" and _is_beyond_floats(values):
        return False
    return bool(np.all((values == decoded) | ((values != values) & (decoded != decoded))))


def _is_beyond_floats(values: Any) -> bool:
    """Tell whether integers may be rounded as floats, and equal to them once they are compared."""
    return bool(np.any((values > _LARGEST_IN_FLOATS) | (values < -_LARGEST_IN_FLOATS)))


def _with_name(array: Array, name: str, dims: Any, attributes: Mapping[str, Any]) -> Array:
    metadata = array.metadata.replace(
        attributes=json_attributes(attributes), dimension_names=tuple(map(str, dims))
    )
    return array.replace(metadata, path=name)


def _inline(name: str, variable: Variable) -> Array:
    """Return a variable's elements as an array over bytes in memory."""
    values = variable.values
    dtype: Any = "str" if values.dtype.kind in "OU" else values.dtype
    if values.dtype.kind == "O" and not all(isinstance(value, str) for value in values.flat):
        raise UnsupportedError(
            'objects that are no text, such as gaps, have no form; fill them: .fillna("")',
            variable=name,
        )
    array = create_array(
        {}, shape=values.shape, dtype=dtype, chunks=tuple([max(1, n) for n in values.shape])
    )
    array[...] = values
    return _with_name(as_virtual(array), name, variable.dims, variable.attrs)


def _repack(array: Array) -> Array | None:
    """Return an array of the numbers that are stored, None if not all are packed alike."""
    metadata, manifest = array.metadata, array.manifest
    codec = next((c for c in metadata.pipeline.codecs if isinstance(c, Unpack)), None)
    # Another packing in one decoder means that no single scale_factor says what is stored.
    if codec is None or any(codec not in d.pipeline.codecs for d in manifest.decoders):
        return None
    dtype = np.dtype(codec.configuration["data_type"])
    fill = _find_stored_fill(codec, metadata.fill_value, metadata.dtype)
    if fill is None:
        return None
    # The first codec decodes last: without it the numbers are those that are stored.
    pipeline = _without_codec(metadata.pipeline, codec)
    decoders = [Decoder(_without_codec(d.pipeline, codec), d.shape) for d in manifest.decoders]
    return array.replace(
        metadata.replace(dtype=dtype, fill_value=fill, pipeline=pipeline, extra={}),
        manifest.replace(decoders=decoders),
    )


def _without_codec(pipeline: Pipeline, codec: Codec) -> Pipeline:
    return Pipeline(one for one in pipeline.codecs if one != codec)


def _find_stored_fill(codec: ArrayArray, fill: Any, dtype: np.dtype[Any]) -> Any:
    """Return a stored number that is unpacked to the fill value, None if none is known."""
    stored = np.dtype(codec.configuration["data_type"])
    candidates = [codec.configuration.get("fill", 0), *codec.configuration.get("masks", ())]
    for number in candidates:
        element = np.array([number], stored)
        if is_same_fill(codec.decode(element, ChunkSpec((1,), dtype))[0], fill):
            return element[0]
    return None


@xr.register_dataset_accessor("virtualzarr")  # type: ignore[no-untyped-call]
class Accessor:
    """What datasets of virtual arrays can do besides: ``dataset.virtualzarr``."""

    def __init__(self, dataset: xr.Dataset) -> None:
        self._dataset = dataset

    def to_group(self) -> Group:
        """Return the dataset as a group; see `to_group`."""
        return to_group(self._dataset)

    def publish(self, path: Any, **options: Any) -> PublishReport:
        """Write a reference file that other tools open; see `Group.publish`."""
        return to_group(self._dataset).publish(path, **options)
