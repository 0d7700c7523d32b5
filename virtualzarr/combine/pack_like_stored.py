"""New numbers packed as stored ones: only where unpacking gives exactly the same numbers again."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from virtualzarr.array import Array
from virtualzarr.combine.attributes import MEANING_ATTRIBUTES, PACKING_ATTRIBUTES
from virtualzarr.combine.cf_packing import CFPacking, mask_values, with_decoding
from virtualzarr.config import config
from virtualzarr.errors import VirtualZarrError
from virtualzarr.hierarchy.group import Group
from virtualzarr.metadata.portable import with_typed_mask
from virtualzarr.virtual.inline import inline_like

_LARGEST_IN_FLOATS = 2**53
"""Integers up to which 64-bit floats have each one."""


def pack_group_like_stored(stored: Group, new: Group) -> Group:
    """Return what is to be appended with numbers packed as they are stored, where that is exact.

    What is packed otherwise, and is no larger than `config.inline_bytes`, is read, and kept with
    the references. Anything else is left as it is, to be found when arrays are joined.
    """
    members: dict[str, Array | Group] = {}
    for name in new:
        node, old = new[name], stored.get(name)
        if isinstance(node, Group) and isinstance(old, Group):
            node = pack_group_like_stored(old, node)
        elif isinstance(node, Array) and isinstance(old, Array):
            node = pack_like_stored(old, node) or node
        members[name] = node
    return new.replace(members=members)


def pack_like_stored(stored: Array, new: Array) -> Array | None:
    """Return an array packed like a stored one; None where it is so already, or cannot be."""
    old, packing = CFPacking.from_array(stored), CFPacking.from_array(new)
    same = old.meaning == packing.meaning and stored.dtype == new.dtype
    kinds = {stored.dtype.kind, new.dtype.kind}
    if same or not kinds <= {*"iuf"} or stored.ndim != new.ndim:
        return None
    # Other attributes that give numbers their meaning are no matter of packing.
    others = [name for name in MEANING_ATTRIBUTES if name not in PACKING_ATTRIBUTES]
    if any(stored.attrs.get(name) != new.attrs.get(name) for name in others):
        return None
    if new.size * max(stored.dtype.itemsize, new.dtype.itemsize) > config.inline_bytes:
        return None
    numbers = _unpack(new)
    packed = _pack(numbers, stored, old)
    if packed is None:
        return None
    template = stored.replace(with_typed_mask(stored.metadata))
    attributes = {k: v for k, v in new.attrs.items() if k not in PACKING_ATTRIBUTES}
    attributes |= {k: v for k, v in template.attrs.items() if k in PACKING_ATTRIBUTES}
    try:
        result = inline_like(packed, template, attributes).with_path(new.path)
    except VirtualZarrError:  # codecs that cannot encode
        return None
    # The proof: what a reader makes of the packed numbers.
    unpacked = _unpack(result)
    if unpacked.dtype != numbers.dtype and _is_beyond_floats(numbers):
        return None  # numpy would compare rounded numbers
    is_float = unpacked.dtype.kind == "f" and numbers.dtype.kind == "f"
    return result if np.array_equal(unpacked, numbers, equal_nan=is_float) else None


def _is_beyond_floats(numbers: NDArray[Any]) -> bool:
    """Tell whether there are integers that not all 64-bit floats can tell from others."""
    return numbers.dtype.kind in "iu" and bool(
        ((numbers > _LARGEST_IN_FLOATS) | (numbers < -_LARGEST_IN_FLOATS)).any()
    )


def _unpack(array: Array) -> NDArray[Any]:
    """Return an array's numbers as readers decode them, NaN for those that are missing."""
    packing = CFPacking.from_array(array)
    codec = packing.codec(array, packing.calculated)
    if codec is not None:
        array = with_decoding(array, codec, dtype=packing.calculated)
    return array.read()


def _pack(numbers: NDArray[Any], stored: Array, packing: CFPacking) -> NDArray[Any] | None:
    """Return numbers that are near what is to be stored; None where there is no place for one."""
    dtype = stored.dtype
    missing = np.isnan(numbers) if numbers.dtype.kind == "f" else np.zeros(numbers.shape, bool)
    masks = mask_values(stored)
    if missing.any() and not masks and dtype.kind != "f":
        return None
    if packing.scale_factor is None and packing.add_offset is None:
        quotient = numbers
    else:
        scale = 1 if packing.scale_factor is None else packing.scale_factor
        offset = 0 if packing.add_offset is None else packing.add_offset
        with np.errstate(all="ignore"):
            quotient = (numbers.astype("f8") - offset) / scale
    # What does not fit would wrap around when it is cast, and look like a number.
    if dtype.kind in "iu" and quotient.dtype.kind == "f":
        quotient = np.where(missing, 0, np.rint(quotient))
        limits = np.iinfo(dtype)
        if (
            not np.isfinite(quotient).all()
            or ((quotient < float(limits.min)) | (quotient > float(limits.max))).any()
        ):
            return None
    with np.errstate(all="ignore"):
        packed: NDArray[Any] = quotient.astype(dtype)
    if missing.any():
        packed[missing] = masks[0] if masks else np.nan
    return packed
