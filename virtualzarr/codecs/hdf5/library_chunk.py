"""What only the HDF5 library decodes, decoded by it: filters of any kind, and types of any kind.

Both codecs hold messages of an HDF5 object header (HDF5 file format specification, section IV.A.2),
so that nothing is lost in translation: `Filters` a filter pipeline, `Type` a datatype. They are the
last resort: h5py works on one chunk at a time, whatever the number of threads. They cannot encode.
"""

from __future__ import annotations

import base64
import binascii
import ctypes
import struct
import threading
from collections.abc import Iterable, Sequence
from functools import cached_property, lru_cache
from importlib.util import find_spec
from typing import Any

import numpy as np

from virtualzarr.codecs.core.base import (
    U1,
    ArrayBytes,
    Block,
    Buffer,
    BytesBytes,
    ChunkSpec,
    Codec,
    as_u1,
    nbytes_of,
)
from virtualzarr.codecs.core.scratch import allocate
from virtualzarr.codecs.hdf5 import check_datatype as hdf5_datatype
from virtualzarr.errors import CodecError, MissingDependencyError, SourceError, UnsupportedError

_UNDEFINED_ADDRESS = b"\xff" * 8
_LONGEST_MESSAGE = 1 << 16
# Chunks of HDF5 are shorter.
_LONGEST_CHUNK = (1 << 32) - 1
# The library reads before the start of what is shorter than the checksum.
_FLETCHER32 = 3
_SZIP = 4
_H5PY_ERRORS = (TypeError, ValueError, OSError, RuntimeError, KeyError, MemoryError)

PLUGINS = {
    307: "bzip2", 32001: "blosc", 32004: "lz4", 32008: "bitshuffle", 32013: "zfp", 32015: "zstd",
    32017: "sz", 32018: "fcidecomp", 32024: "sz3", 32026: "blosc2", 32028: "sperr",
    32033: "htj2k",
}  # fmt: skip
"""The filters that the package hdf5plugin brings."""


# -- filters ---------------------------------------------------------------------------------------


class Filters(BytesBytes):
    """Any HDF5 filters (``virtualzarr.hdf5_chunk``), undone by the HDF5 library.

    The only member of the configuration is `filters`, a filter pipeline message (version 2,
    base64). The library is given the chunk in a file of a few hundred bytes in memory. What it
    decodes must be as long as the block: it does not check that itself. Filters of the package
    hdf5plugin work when that is installed. Filters are code of others, some of which crashes on
    chunks made to that end.
    """

    compressor = True

    def validate(self) -> None:
        """Check that the message is one."""
        if set(self.configuration) != {"filters"}:
            raise self.invalid("the only member is filters, a filter pipeline message")
        self._parsed  # noqa: B018

    @cached_property
    def _parsed(self) -> tuple[tuple[bytes, ...], tuple[int, ...]]:
        """The entries of the message, and the numbers of the filters."""
        message = _message(self, "filters")
        try:
            version, count = message[:2]
            at, numbers, entries = 2, [], []
            for _ in range(count):
                start = at
                (number,) = struct.unpack_from("<H", message, at)
                long = number >= 256
                named = struct.unpack_from("<H", message, at + 2)[0] if long else 0
                at += 4 if long else 2
                (values,) = struct.unpack_from("<H", message, at + 2)
                at += 4 + named + 4 * values
                numbers.append(number)
                entries.append(message[start:at])
        except (struct.error, ValueError) as error:
            raise self.invalid("the filter pipeline message ends early") from error
        if version != 2 or at != len(message) or not 1 <= count <= 15:
            raise self.invalid("the filter pipeline message is not one of version 2, or too long")
        if _SZIP in numbers:
            raise self.invalid(
                "szip is not left to the HDF5 library, which crashes on broken chunks"
            )
        return tuple(entries), tuple(numbers)

    def is_portable(self, zarr_format: int) -> bool:
        """Return False: no other package knows this codec."""
        return False

    def decode(self, data: Buffer, size: int | None, limit: int) -> Buffer:
        """Return the bytes that all filters were given."""
        if size is None:
            raise self.error("the decoded size must be known, and what follows does not tell it")
        out = allocate((size,), U1)
        self.decode_into(data, out)
        return out

    def decode_into(self, data: Buffer, out: Block) -> None:
        """Let the HDF5 library decode."""
        from h5py import h5d, h5f, h5s

        if max(out.size, nbytes_of(data)) > _LONGEST_CHUNK:
            raise self.error("chunks of 4 GiB and more are not supported")
        if not out.size:
            return
        entries, numbers = self._parsed
        for number in numbers:
            require_filter(number)
        head = _head(entries, numbers, out.size, nbytes_of(data))
        try:
            fid = h5f.open_file_image(head + bytes(as_u1(data)))
            try:
                dsid = h5d.open(fid, b"x")
                dsid.read(h5s.ALL, h5s.ALL, out, mtype=dsid.get_type())
            finally:
                fid.close()
        except _H5PY_ERRORS as error:
            raise self.error(f"HDF5 cannot decode the chunk: {error}") from error

    def encode(self, data: Buffer) -> Buffer:
        """Refuse."""
        raise UnsupportedError(f"codec {self.name}: encoding is not supported")


def filters_message(filters: Iterable[tuple[int, str, Sequence[int]]]) -> str:
    """Return filters as the configuration of `Filters` holds them.

    Parameters
    ----------
    filters : iterable of (int, str, sequence of int)
        Number, name and parameters of each, in the order of writing.

    Examples
    --------
    >>> filters_message([(2, "shuffle", [4])])
    'AgECAAAAAQAEAAAA'
    """
    entries = []
    for number, name, values in filters:
        raw = name.encode() + b"\0" if number >= 256 else b""
        named = struct.pack("<H", len(raw)) if number >= 256 else b""
        head = struct.pack("<H", number) + named + struct.pack("<HH", 0, len(values))
        entries.append(head + raw + struct.pack(f"<{len(values)}I", *values))
    return base64.b64encode(bytes([2, len(entries)]) + b"".join(entries)).decode()


def require_filter(number: int) -> None:
    """Make sure that the HDF5 library has a filter.

    Raises
    ------
    MissingDependencyError
        If hdf5plugin would bring it.
    UnsupportedError
        If nothing known does.
    """
    if is_available(number):
        return
    if number in PLUGINS and not find_spec("hdf5plugin"):
        raise MissingDependencyError(
            f"HDF5 filter {number} ({PLUGINS[number]}) needs the package hdf5plugin: "
            "pip install 'virtualzarr[hdf5plugin]'"
        )
    raise UnsupportedError(
        f"the HDF5 library has no filter {number}; HDF5_PLUGIN_PATH says where it looks for more"
    )


_AVAILABLE: set[int] = set()


def is_available(number: int) -> bool:
    """Whether the HDF5 library has a filter, hdf5plugin being loaded when it may bring it."""
    if number in _AVAILABLE:
        return True
    from h5py import h5z

    try:
        found = h5z.filter_avail(number)
        if not found and number in PLUGINS and find_spec("hdf5plugin"):
            import hdf5plugin  # noqa: F401

            found = h5z.filter_avail(number)
    except _H5PY_ERRORS:  # HDF5_PLUGIN_PATH names no folder
        return False
    if found:
        _AVAILABLE.add(number)
    return bool(found)


# -- the file around a chunk -----------------------------------------------------------------------


@lru_cache(64)
def _frame(
    entries: tuple[bytes, ...], numbers: tuple[int, ...], size: int
) -> tuple[bytes, int, int]:
    """Return a file up to the chunk, and where the chunk's length and the file's end go.

    Superblock 0, a root group with one link, and one dataset of bytes with a single chunk
    (layout version 4): none of them has a checksum.
    """
    steps = [_size_check_entry(size)]
    for entry, number in zip(entries, numbers, strict=True):
        steps += [entry, _size_check_entry(4)] if number == _FLETCHER32 else [entry]
    filters = bytes([2, len(steps)]) + b"".join(steps)
    dataset_at = 96 + 80
    link_info = bytes(2) + 2 * _UNDEFINED_ADDRESS
    link = b"\x01\x00\x01x" + struct.pack("<Q", dataset_at)
    root = _header(_pack_message(0x02, link_info) + _pack_message(0x06, link), 2)
    space = struct.pack("<BBB5xQ", 1, 1, 0, size)
    datatype = struct.pack("<BBBBIHH", 0x10, 0, 0, 0, 1, 0, 8)
    # Version, chunked, "single chunk, filtered"; two axes, the second the bytes of an element.
    width = (size.bit_length() + 7) // 8
    edges = size.to_bytes(width, "little") + (1).to_bytes(width, "little")
    layout = bytes([4, 2, 2, 2, width]) + edges + b"\x01"
    before = (
        _pack_message(0x01, space)
        + _pack_message(0x03, datatype)
        + _pack_message(0x05, b"\x02\x02\x02\x00")
    )
    before += _pack_message(0x0B, filters)
    length_at = dataset_at + 16 + len(before) + 8 + len(layout)
    rest = len(_pack_message(0x08, layout + bytes(20)))
    chunk_at = dataset_at + 16 + len(before) + rest
    messages = before + _pack_message(0x08, layout + struct.pack("<QIQ", 0, 0, chunk_at))
    superblock = b"\x89HDF\r\n\x1a\n" + struct.pack("<8BHHI", 0, 0, 0, 0, 0, 8, 8, 0, 4, 16, 0)
    end_at = len(superblock) + 16
    superblock += struct.pack("<Q8sQ8s", 0, _UNDEFINED_ADDRESS, 0, _UNDEFINED_ADDRESS)
    superblock += struct.pack("<QQI4x16x", 0, 96, 0)
    return superblock + root.ljust(80, b"\0") + _header(messages, 5), length_at, end_at


def _pack_message(kind: int, body: bytes) -> bytes:
    """Return a message of an object header of version 1."""
    body += bytes(-len(body) % 8)
    return struct.pack("<HHB3x", kind, len(body), 0) + body


def _header(messages: bytes, count: int) -> bytes:
    return struct.pack("<BBHII4x", 1, 0, count, 1, len(messages)) + messages


def _head(entries: tuple[bytes, ...], numbers: tuple[int, ...], size: int, stored: int) -> bytes:
    """Return the file up to the chunk of `stored` bytes."""
    frame, length_at, end_at = _frame(entries, numbers, size)
    head = bytearray(frame)
    struct.pack_into("<Q", head, length_at, stored)
    struct.pack_into("<Q", head, end_at, len(head) + stored)
    return bytes(head)


# -- the check of the size -------------------------------------------------------------------------

_Callback = ctypes.CFUNCTYPE(
    ctypes.c_size_t,
    ctypes.c_uint,
    ctypes.c_size_t,
    ctypes.POINTER(ctypes.c_uint),
    ctypes.c_size_t,
    ctypes.POINTER(ctypes.c_size_t),
    ctypes.POINTER(ctypes.c_void_p),
)


class _FilterClass(ctypes.Structure):
    """The library's `H5Z_class2_t`."""

    _fields_ = (
        ("version", ctypes.c_int),
        ("id", ctypes.c_int),
        ("encoder_present", ctypes.c_uint),
        ("decoder_present", ctypes.c_uint),
        ("name", ctypes.c_char_p),
        ("can_apply", ctypes.c_void_p),
        ("set_local", ctypes.c_void_p),
        ("filter", _Callback),
    )


def _pass_if_whole(flags: int, count: int, values: Any, nbytes: int, room: Any, data: Any) -> int:
    """Pass on what was decoded if it is long enough."""
    return nbytes if nbytes >= values[0] | values[1] << 32 else 0


_PASS_CALLBACK = _Callback(_pass_if_whole)


def _size_check_entry(size: int) -> bytes:
    """Return the entry of a filter that fails when it is given fewer bytes."""
    return struct.pack("<HHHH2I", _register_size_check(), 0, 0, 2, size & 0xFFFFFFFF, size >> 32)


_registered: list[_FilterClass] = []
_lock = threading.Lock()


def _register_size_check() -> int:
    """Return the number of a filter that fails when it is given too few bytes.

    Without it the library would copy whatever lies in memory behind a chunk that is too short.
    """
    from h5py import h5z

    with _lock:
        if not _registered:
            # Numbers of this range are for private use; the first free one will do.
            number = next(n for n in range(511, 255, -1) if not _is_number_used(n))
            made = _FilterClass(1, number, 0, 1, b"size check", None, None, _PASS_CALLBACK)
            h5z.register_filter(ctypes.addressof(made))
            _registered.append(made)
        return int(_registered[0].id)


def _is_number_used(number: int) -> bool:
    from h5py import h5z

    try:
        return bool(h5z.filter_avail(number))
    except _H5PY_ERRORS:  # HDF5_PLUGIN_PATH names no folder
        return False


# -- types -----------------------------------------------------------------------------------------


class Type(ArrayBytes):
    """Elements of any HDF5 datatype (``virtualzarr.hdf5_type``), converted by the HDF5 library.

    The only member of the configuration is `datatype`, a datatype message (base64) without
    variable-length parts and references.
    """

    def validate(self) -> None:
        """Check that the message is one."""
        if set(self.configuration) != {"datatype"}:
            raise self.invalid("the only member is datatype, a datatype message")
        message = _message(self, "datatype")
        if len(message) < 8 or not 1 <= self._size < 1 << 31:
            raise self.invalid("the datatype message is not one")

    @cached_property
    def _size(self) -> int:
        return int.from_bytes(_message(self, "datatype")[4:8], "little")

    def is_portable(self, zarr_format: int) -> bool:
        """Return False: no other package knows this codec."""
        return False

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
        buffer = np.zeros(spec.size * max(size, width), U1)
        buffer[:need] = as_u1(data)
        try:
            stored, target = self._conversion(spec.dtype)
            if target.get_size() != width:  # fields that overlap: h5py has no such type
                raise self.error(f"HDF5 has no type like {spec.dtype}")
            # Parts of the target that nothing is converted to keep what is in the background.
            h5t.convert(stored, target, spec.size, buffer, np.zeros_like(buffer))
        except CodecError:
            raise
        except _H5PY_ERRORS as error:
            raise self.error(f"HDF5 cannot convert the elements: {error}") from error
        return buffer[: spec.size * width].view(spec.dtype).reshape(spec.shape)

    def _conversion(self, dtype: np.dtype[Any]) -> tuple[Any, Any]:
        """Return the types that elements are converted from and to.

        Finding them costs far more than converting a small chunk. They are remembered for dtype
        objects, not for equal ones: those may differ in what only their metadata say.
        """
        from h5py import h5t

        key = self.configuration["datatype"], id(dtype)
        found = _conversions.get(key)
        if found is None:
            if len(_conversions) >= _MOST_CONVERSIONS:
                _conversions.clear()
            types = _datatype(_message(self, "datatype")), h5t.py_create(dtype)
            found = _conversions[key] = dtype, *types
        return found[1:]

    def encode(self, block: Block, spec: ChunkSpec) -> Buffer:
        """Refuse."""
        raise UnsupportedError(f"codec {self.name}: encoding is not supported")


# The dtype is kept so that no other gets its address.
_conversions: dict[tuple[str, int], tuple[np.dtype[Any], Any, Any]] = {}
_MOST_CONVERSIONS = 256


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


def _message(codec: Codec, member: str) -> bytes:
    """Return the bytes of a message of the configuration."""
    text = codec.configuration.get(member)
    if not isinstance(text, str) or len(text) > 2 * _LONGEST_MESSAGE:
        raise codec.invalid(f"{member} must be a message in base64")
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise codec.invalid(f"{member} must be a message in base64") from error
