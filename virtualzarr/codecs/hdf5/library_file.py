"""An HDF5 file in memory around one chunk, from which the HDF5 library reads it."""

from __future__ import annotations

import ctypes
import struct
from functools import lru_cache
from typing import Any

from virtualzarr.codecs.core.base import Codec
from virtualzarr.stores.forks import ForkSafeLock

_UNDEFINED_ADDRESS = b"\xff" * 8
_LONGEST_MESSAGE = 1 << 16
# The library reads before the start of what is shorter than the checksum.
_FLETCHER32 = 3
_H5PY_ERRORS = (TypeError, ValueError, OSError, RuntimeError, KeyError, MemoryError)


@lru_cache(64)
def _frame(
    entries: tuple[bytes, ...], numbers: tuple[int, ...], size: int
) -> tuple[bytes, int, int]:
    """Return a file up to the chunk, and where the chunk's length and the file's end go.

    Superblock 0, a root group with one link, and one dataset of bytes with a single chunk
    (layout version 4): none of them has a checksum.
    """
    # Filters are undone from last to first, so that the check sees the result of the first one.
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
    layout_length = len(_pack_message(0x08, layout + bytes(20)))
    chunk_at = dataset_at + 16 + len(before) + layout_length
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


def _pass_if_whole(flags: int, count: int, values: Any, nbytes: int, size: Any, data: Any) -> int:
    """Pass on what was decoded if it is long enough."""
    return nbytes if nbytes >= values[0] | values[1] << 32 else 0


_PASS_CALLBACK = _Callback(_pass_if_whole)


def _size_check_entry(size: int) -> bytes:
    """Return the entry of a filter that fails when it is given fewer bytes."""
    return struct.pack("<HHHH2I", _register_size_check(), 0, 0, 2, size & 0xFFFFFFFF, size >> 32)


_registered: list[_FilterClass] = []
_lock = ForkSafeLock()


def _register_size_check() -> int:
    """Return the number of a filter that fails when it is given too few bytes.

    Without it the library would copy whatever lies in memory behind a chunk that is too short.
    """
    from h5py import h5z

    with _lock:
        if not _registered:
            # Numbers of this range are for private use; the first free one will do.
            number = next(n for n in range(511, 255, -1) if not _is_number_used(n))
            filter_class = _FilterClass(1, number, 0, 1, b"size check", None, None, _PASS_CALLBACK)
            h5z.register_filter(ctypes.addressof(filter_class))
            _registered.append(filter_class)
        return int(_registered[0].id)


def _is_number_used(number: int) -> bool:
    from h5py import h5z

    try:
        return bool(h5z.filter_avail(number))
    except _H5PY_ERRORS:  # HDF5_PLUGIN_PATH names no folder
        return False


def _message(codec: Codec, member: str) -> bytes:
    """Return the bytes of a message of the configuration."""
    text, problem = codec.configuration.get(member), f"{member} must be a message in base64"
    if not isinstance(text, str) or len(text) > 2 * _LONGEST_MESSAGE:
        raise codec.invalid(problem)
    return codec.decode_base64(text, problem)
