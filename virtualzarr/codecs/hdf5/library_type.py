"""Elements of any HDF5 datatype, converted by the HDF5 library."""

from __future__ import annotations

import base64
from functools import cached_property, lru_cache
from typing import Any

import numpy as np

from virtualzarr.codecs.core.base import U1, ArrayBytes, Block, Buffer, ChunkSpec, as_u1, nbytes_of
from virtualzarr.codecs.hdf5 import check_datatype as hdf5_datatype
from virtualzarr.codecs.hdf5.library_file import _H5PY_ERRORS, _message
from virtualzarr.errors import CodecError, SourceError, UnsupportedError


class Type(ArrayBytes):
    """Elements of any HDF5 datatype (``virtualzarr.hdf5_type``), converted by the HDF5 library.

    The only member of the configuration is `datatype`, a datatype message (base64) without
    variable-length parts and references.
    """

    portable_formats = ()

    def validate(self) -> None:
        """Check that the message is one."""
        self.check_members(["datatype"])
        message = _message(self, "datatype")
        if len(message) < 8 or not 1 <= self._size < 1 << 31:
            raise self.invalid("the datatype message is not one")

    @cached_property
    def _size(self) -> int:
        return int.from_bytes(_message(self, "datatype")[4:8], "little")

    def compute_encoded_size(self, spec: ChunkSpec) -> int | None:
        """Return the bytes of the elements as stored."""
        return spec.size * self._size

    def decode(self, data: Buffer, spec: ChunkSpec) -> Block:
        """Return the converted elements."""
        from h5py import h5t

        size = self._size
        need, width = spec.size * size, spec.dtype.itemsize
        if nbytes_of(data) != need:
            raise self.size_error(nbytes_of(data), need)
        # Converted in place, hence as wide as the wider of both types.
        buffer = np.zeros(spec.size * max(size, width), U1)
        buffer[:need] = as_u1(data)
        try:
            stored, target, dtype = self._conversion(spec.dtype)
            if target.get_size() != width:  # fields that overlap: h5py has no such type
                raise self.error(f"HDF5 has no type like {spec.dtype}")
            # Parts of the target that nothing is converted to keep what is in the background.
            h5t.convert(stored, target, spec.size, buffer, np.zeros_like(buffer))
        except CodecError:
            raise
        except _H5PY_ERRORS as error:
            raise self.error(f"HDF5 cannot convert the elements: {error}") from error
        block = buffer[: spec.size * width].view(dtype).reshape(spec.shape)
        return block if dtype is spec.dtype else block.astype(spec.dtype)

    def _conversion(self, dtype: np.dtype[Any]) -> tuple[Any, Any, np.dtype[Any]]:
        """Return the types that elements are converted from and to, and the dtype of the latter.

        Finding them costs far more than converting a small chunk. They are remembered for dtype
        objects, not for equal ones: those may differ in what only their metadata say.
        """
        from h5py import h5t

        key = self.configuration["datatype"], id(dtype)
        entry = _conversions.get(key)
        if entry is None:
            if len(_conversions) >= _MOST_CONVERSIONS:
                _conversions.clear()
            stored = _datatype(_message(self, "datatype"))
            target = _keep_byte_order(stored, dtype)
            entry = _conversions[key] = dtype, stored, h5t.py_create(target), target
        return entry[1:]


# The dtype is kept so that no other gets its address.
_conversions: dict[tuple[str, int], tuple[np.dtype[Any], Any, Any, np.dtype[Any]]] = {}
_MOST_CONVERSIONS = 256


def _keep_byte_order(tid: Any, dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return a dtype with integers in the byte order they are stored in, if that is big-endian."""
    from h5py import h5t

    # To integers of the same size and another byte order, the HDF5 library (2.0.0) swaps bytes and
    # nothing else: of those that do not fill their bytes, it loses the sign. numpy swaps then.
    if dtype.subdtype is not None and isinstance(tid, h5t.TypeArrayID):
        base = _keep_byte_order(tid.get_super(), dtype.base)
        return dtype if base is dtype.base else np.dtype((base, dtype.shape))
    if dtype.names is not None and isinstance(tid, h5t.TypeCompoundID):
        types = {tid.get_member_name(k): tid.get_member_type(k) for k in range(tid.get_nmembers())}
        parts = [(types.get(name.encode()), dtype[name]) for name in dtype.names]
        formats = [part if one is None else _keep_byte_order(one, part) for one, part in parts]
        if all(new is old for new, (_, old) in zip(formats, parts, strict=True)):
            return dtype
        offsets = [dtype.fields[name][1] for name in dtype.names] if dtype.fields else []
        return np.dtype({"names": list(dtype.names), "formats": formats, "offsets": offsets,
                         "itemsize": dtype.itemsize})  # fmt: skip
    if isinstance(tid, h5t.TypeEnumID):
        tid = tid.get_super()
    is_big = isinstance(tid, h5t.TypeIntegerID) and tid.get_order() == h5t.ORDER_BE
    return dtype.newbyteorder(">") if is_big and dtype.kind in "iu" else dtype


@lru_cache(256)
def _datatype(message: bytes) -> Any:
    """Return the type of a datatype message."""
    from h5py import h5t

    try:
        tid = h5t.decode(b"\x03\x00" + hdf5_datatype.check_datatype(message) + bytes(64))
    except (SourceError, UnsupportedError) as error:
        raise CodecError(f"virtualzarr.hdf5_type: {error.message}") from error
    if not is_flat(tid):
        raise CodecError("virtualzarr.hdf5_type: the elements hold pointers or references")
    return tid


def is_flat(tid: Any) -> bool:
    """Whether elements of an HDF5 datatype lie in the chunks as a whole.

    Parameters
    ----------
    tid : h5py.h5t.TypeID
    """
    from h5py import h5t

    kind = tid.get_class()
    if kind in (h5t.VLEN, h5t.REFERENCE) or (kind == h5t.STRING and tid.is_variable_str()):
        return False
    if kind == h5t.ARRAY:
        return is_flat(tid.get_super())
    if kind == h5t.COMPOUND:
        return all(is_flat(tid.get_member_type(k)) for k in range(tid.get_nmembers()))
    return True


def type_message(tid: Any) -> str:
    """Return an HDF5 datatype as the configuration of `Type` holds it.

    Parameters
    ----------
    tid : h5py.h5t.TypeID

    Raises
    ------
    UnsupportedError
        If the HDF5 library writes a message for it that it reads as another type.
    """
    from h5py import h5t

    encoded = bytes(tid.encode())
    # VAX byte order is known to version 3 of the message, but written in version 1.
    for version in (encoded[2] >> 4, 3):
        message = bytes([encoded[2] & 0x0F | version << 4]) + encoded[3:]
        if h5t.decode(encoded[:2] + message).equal(tid):
            return base64.b64encode(message).decode()
    raise UnsupportedError("the HDF5 library cannot write this datatype as a message")


def type_of(text: str) -> Any:
    """Return the HDF5 datatype of which `type_message` made a message."""
    from h5py import h5t

    return h5t.decode(b"\x03\x00" + base64.b64decode(text))
