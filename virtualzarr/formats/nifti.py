"""NIfTI-1 and NIfTI-2 images: a binary header, and voxels in Fortran order."""

from __future__ import annotations

import io
import math
import zlib
from dataclasses import dataclass
from typing import Any, Literal, Unpack, get_args

import numpy as np

from virtualzarr.errors import SourceError, UnsupportedError
from virtualzarr.formats.headers import HeaderReader
from virtualzarr.formats.on_error import ScanOptions, begin_scan
from virtualzarr.formats.plain import fortran, plain_array
from virtualzarr.formats.siblings import find_sibling, split_name
from virtualzarr.hierarchy.group import Group
from virtualzarr.metadata import json_attributes

_TYPES: dict[int, Any] = {
    2: "u1", 4: "i2", 8: "i4", 16: "f4", 32: "c8", 64: "f8", 256: "i1", 512: "u2", 768: "u4",
    1024: "i8", 1280: "u8", 1792: "c16",
    128: [("R", "u1"), ("G", "u1"), ("B", "u1")],
    2304: [("R", "u1"), ("G", "u1"), ("B", "u1"), ("A", "u1")],
}  # fmt: skip
_NAMES = {1: "binary", 1536: "float128", 2048: "complex256"}
_SIZES = {348: 1, 540: 2}
Order = Literal["<", ">"]
_GZIP = b"\x1f\x8b"
_HEAD = 4096
_BEHIND = 1 << 20
"""Most bytes that may follow the values."""

_DENSEST = 1032
"""Highest compression ratio of Deflate: 258 bytes for 2 bits."""

# Type and offset of the fields of nifti1.h and nifti2.h that are used here, by version and name.
_FIELDS = {
    1: {
        "magic": ("S4", 344), "dim": ("8i2", 40), "datatype": ("i2", 70), "pixdim": ("8f4", 76),
        "vox_offset": ("f4", 108), "scl_slope": ("f4", 112), "scl_inter": ("f4", 116),
        "xyzt_units": ("u1", 123), "descrip": ("S80", 148), "qform_code": ("i2", 252),
        "sform_code": ("i2", 254), "quatern": ("3f4", 256), "qoffset": ("3f4", 268),
        "srow": ("(3,4)f4", 280), "intent_code": ("i2", 68), "intent_name": ("S16", 328),
    },
    2: {
        "magic": ("S8", 4), "dim": ("8i8", 16), "datatype": ("i2", 12), "pixdim": ("8f8", 104),
        "vox_offset": ("i8", 168), "scl_slope": ("f8", 176), "scl_inter": ("f8", 184),
        "xyzt_units": ("i4", 500), "descrip": ("S80", 240), "qform_code": ("i4", 344),
        "sform_code": ("i4", 348), "quatern": ("3f8", 352), "qoffset": ("3f8", 376),
        "srow": ("(3,4)f8", 400), "intent_code": ("i4", 504), "intent_name": ("S16", 508),
    },
}  # fmt: skip
_DESCRIPTIVE = (
    "descrip", "xyzt_units", "intent_code", "intent_name", "qform_code", "sform_code", "quatern",
    "qoffset", "srow",
)  # fmt: skip


def scan(path_or_url: Any, **options: Unpack[ScanOptions]) -> Group:
    """Scan a NIfTI image into a group with the array ``data`` of dimensions x, y, z, t, ...

    The array has the stored numbers. Slope and intercept, if given, are the attributes
    `scale_factor` and `add_offset`, with which xarray decodes to what nibabel reads.

    A header ``.hdr`` has an ``.img`` beside it. A file ``.nii.gz`` is one chunk: every read
    decompresses all of it. Types that Zarr lacks raise `UnsupportedError`. There is only one
    array: if it cannot be virtualized, that raises for any `on_error`.
    """
    with begin_scan(path_or_url, **options) as refusals:
        source = refusals.source
        file = HeaderReader(source)
        # By content: the name may be anything at a URL.
        packed = file.size >= len(_GZIP) and file.take(len(_GZIP)) == _GZIP
        file.seek(0)
        header = _header(_Unpacked(file) if packed else file)
        image = source
        if not header.single:
            if packed:
                raise UnsupportedError("pairs of compressed files; decompress them (gunzip)")
            stem, _, query = split_name(path_or_url)
            beside = [f"{stem}{extension}{query}" for extension in (".img", ".IMG")]
            image = find_sibling(beside, "the image of the NIfTI header", source.storage_options)
        shape = header.shape
        array = plain_array(
            image, header.offset, header.dtype, shape, axes=fortran(len(shape)), path="data",
            dimension_names=tuple("xyztuvw"[: len(shape)]), attributes=header.attributes(),
            unpacked=_find_unpacked_size(file, header) if packed else None,
        )  # fmt: skip
    return Group({}, {"data": array})


@dataclass(frozen=True)
class _Header:
    """Fields of a header as numpy values."""

    version: int
    order: Order
    fields: dict[str, Any]

    @property
    def single(self) -> bool:
        """Whether the values are in the same file (magic n+1 or n+2, not ni1 or ni2)."""
        return bytes(self.fields["magic"])[1:2] == b"+"

    @property
    def shape(self) -> tuple[int, ...]:
        dim = self.fields["dim"].tolist()
        # dim[0] is the number of dimensions, of which there are at most 7.
        if not 0 <= dim[0] <= 7 or min(dim[1 : dim[0] + 1], default=0) < 0:
            raise SourceError(f"the NIfTI header has the dimensions {dim}")
        return tuple(dim[1 : dim[0] + 1])

    @property
    def dtype(self) -> np.dtype[Any]:
        code = int(self.fields["datatype"])
        if code not in _TYPES:
            raise UnsupportedError(f"NIfTI data type {code} ({_NAMES.get(code, 'not known')})")
        return np.dtype(_TYPES[code]).newbyteorder(self.order)

    @property
    def offset(self) -> int:
        offset = float(self.fields["vox_offset"])
        # Behind the header and the four bytes that flag extensions; vox_offset of NIfTI-1 is a
        # float.
        least = (352, 544)[self.version - 1] if self.single else 0
        if not (math.isfinite(offset) and offset >= least and offset == int(offset)):
            raise SourceError(f"the NIfTI header says that the values begin at {offset}")
        return int(self.fields["vox_offset"])

    def attributes(self) -> dict[str, Any]:
        """Return CF scaling, and the fields for orientation and description that are set."""
        slope, inter = float(self.fields["scl_slope"]), float(self.fields["scl_inter"])
        attributes: dict[str, Any] = {}
        # A slope of 0 means that the numbers are not scaled (nifti1.h); nibabel takes NaN so, too.
        if math.isfinite(slope) and slope != 0:
            if not math.isfinite(inter):
                raise SourceError(f"the NIfTI header has the slope {slope}, but intercept {inter}")
            # Scaling does not apply to RGB voxels.
            if self.dtype.names is None and (slope, inter) != (1, 0):
                attributes |= {"scale_factor": np.float64(slope), "add_offset": np.float64(inter)}
        ndim = int(self.fields["dim"][0])
        attributes |= {"pixdim": self.fields["pixdim"][1 : ndim + 1].astype("f8")}
        attributes |= {name: _plain(self.fields[name]) for name in _DESCRIPTIVE}
        return json_attributes(
            {name: value for name, value in attributes.items() if _is_set(value)}
        )


class _Unpacked:
    """Sequential reader of the first decompressed bytes of a gzip file."""

    def __init__(self, file: HeaderReader) -> None:
        raw = file.take(min(file.size, _HEAD))
        try:
            self._data = io.BytesIO(zlib.decompressobj(31).decompress(raw, _HEAD))
        except zlib.error as error:
            raise SourceError(f"the NIfTI file is damaged: {error}") from error

    def take(self, count: int) -> bytes:
        """Return the next `count` bytes."""
        data = self._data.read(count)
        if len(data) < count:
            raise SourceError("the NIfTI header is truncated or damaged")
        return data


def _find_unpacked_size(file: HeaderReader, header: _Header) -> int:
    """Return the decompressed bytes of a gzip file, from its last field (ISIZE, modulo 2**32)."""
    least = header.offset + math.prod(header.shape) * header.dtype.itemsize
    file.seek(file.size - 4)
    # Only 32 bits are stored: the header says the least size, and the trailer how many bytes
    # follow. A truncated file has other bytes here, which hardly ever look like so small a surplus.
    surplus = (int.from_bytes(file.take(4), "little") - least) % 2**32
    if surplus > _BEHIND or least + surplus > _DENSEST * file.size:
        raise SourceError(
            f"the NIfTI header needs {least} bytes, and gzip has not packed so many into the "
            f"{file.size} that there are; the file is truncated or damaged"
        )
    return least + surplus


def _header(file: HeaderReader | _Unpacked) -> _Header:
    first = file.take(4)
    # sizeof_hdr, 348 or 540, tells both the version and the byte order.
    for order in get_args(Order):
        size = int(np.frombuffer(first, f"{order}i4")[0])
        version = _SIZES.get(size)
        if version is not None:
            raw = first + file.take(size - 4)
            return _Header(version, order, _members(raw, version, order))
    raise SourceError(f"the file begins with {first!r}: it is no NIfTI image")


def _members(raw: bytes, version: int, order: Order) -> dict[str, Any]:
    fields = {}
    for name, (form, at) in _FIELDS[version].items():
        dtype = np.dtype(form)
        value = np.ndarray((), dtype.newbyteorder(order), raw, at)[()]
        fields[name] = raw[at : at + dtype.itemsize] if dtype.kind == "S" else value
    if fields["magic"][:4] not in (b"n+%d\0" % version, b"ni%d\0" % version):
        raise SourceError(f"the NIfTI header has the magic {fields['magic']!r}")
    return fields


def _plain(value: Any) -> Any:
    if isinstance(value, bytes):
        return value.split(b"\0")[0]
    return np.asarray(value).astype("f8") if np.asarray(value).dtype.kind == "f" else value


def _is_set(value: Any) -> bool:
    """Tell whether a field is set: most are zero, or empty, in most files."""
    return bool(value) if isinstance(value, bytes) else bool(np.any(value))
