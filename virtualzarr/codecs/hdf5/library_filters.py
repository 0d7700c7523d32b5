"""Any filters of HDF5, undone by the HDF5 library."""

from __future__ import annotations

import base64
import struct
from collections.abc import Iterable, Sequence
from functools import cached_property
from importlib.util import find_spec

from virtualzarr.codecs.core.base import Block, Buffer, BytesBytes, as_u1, nbytes_of
from virtualzarr.codecs.hdf5.library_file import _H5PY_ERRORS, _head, _message
from virtualzarr.errors import MissingDependencyError, UnsupportedError

# Chunks of HDF5 are shorter.
_LONGEST_CHUNK = (1 << 32) - 1
_NOT_BY_LIBRARY = {4: "szip", 5: "nbit", 6: "scaleoffset"}
"""The library crashes on broken chunks of these, of which this package has codecs of its own."""
PLUGINS = {
    307: "bzip2", 32001: "blosc", 32004: "lz4", 32008: "bitshuffle", 32013: "zfp", 32015: "zstd",
    32017: "sz", 32018: "fcidecomp", 32024: "sz3", 32026: "blosc2", 32028: "sperr",
    32033: "htj2k",
}  # fmt: skip
"""The filters that the package hdf5plugin brings."""


class Filters(BytesBytes):
    """Any HDF5 filters (``virtualzarr.hdf5_chunk``), undone by the HDF5 library.

    The only member of the configuration is `filters`, a filter pipeline message (version 2,
    base64). The library is given the chunk in a file of a few hundred bytes in memory. What it
    decodes must be as long as the block: it does not check that itself. Filters of the package
    hdf5plugin work when that is installed. Filters are code of others, some of which crashes on
    chunks made to that end.
    """

    portable_formats = ()
    compressor = True

    def validate(self) -> None:
        """Check that the message is one."""
        self.check_members(["filters"])
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
                # Version 2 leaves out the name of the library's own filters, below 256.
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
        for number in numbers:
            if number in _NOT_BY_LIBRARY:
                raise self.invalid(
                    f"{_NOT_BY_LIBRARY[number]} is not left to the HDF5 library, which crashes on "
                    "broken chunks"
                )
        return tuple(entries), tuple(numbers)

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
        available = h5z.filter_avail(number)
        if not available and number in PLUGINS and find_spec("hdf5plugin"):
            import hdf5plugin  # noqa: F401

            available = h5z.filter_avail(number)
    except _H5PY_ERRORS:  # HDF5_PLUGIN_PATH names no folder
        return False
    if available:
        _AVAILABLE.add(number)
    return bool(available)
