"""TIFF codecs: decoding of strips and tiles exactly as tifffile does."""

from __future__ import annotations

import base64
import math
from typing import Any

import numpy as np

from virtualzarr.codecs import Codec, Pipeline, make
from virtualzarr.codecs.core.base import ChunkSpec
from virtualzarr.codecs.tiff.jpeg_frame import read_jpeg_frame
from virtualzarr.codecs.tiff.segment import CODECS, JPEG, TiffSegment
from virtualzarr.config import config
from virtualzarr.errors import UnsupportedError
from virtualzarr.formats.tiff.layout import Segments

_BYTES = {
    5: ("imagecodecs_lzw", {}),
    8: ("numcodecs.zlib", {"level": 1}),
    32946: ("numcodecs.zlib", {"level": 1}),
    50013: ("numcodecs.zlib", {"level": 1}),
    32773: ("imagecodecs_packbits", {}),
    34925: ("imagecodecs_lzma", {}),
    34926: ("zstd", {"level": 0, "checksum": False}),
    50000: ("zstd", {"level": 0, "checksum": False}),
}
"""Compressions of bytes (tag 259), whose content is as in an uncompressed file."""

_CODED = {
    2: "imagecodecs_ccittrle",
    3: "imagecodecs_ccittfax3",
    4: "imagecodecs_ccittfax4",
    34887: "imagecodecs_lerc",
}
"""Compressions whose decoder yields samples; fill order is the file's."""

_IMAGES = {
    22610: "imagecodecs_jpegxr",
    34934: "imagecodecs_jpegxr",
    33003: "imagecodecs_jpeg2k",
    33004: "imagecodecs_jpeg2k",
    33005: "imagecodecs_jpeg2k",
    34712: "imagecodecs_jpeg2k",
    34933: "imagecodecs_png",
    34927: "imagecodecs_webp",
    50001: "imagecodecs_webp",
    50002: "imagecodecs_jpegxl",
    52546: "imagecodecs_jpegxl",
}
"""Compressions of images: dtype, byte order, predictor and fill order are the codec's own."""

_PREDICTORS = {
    2: ("delta", 1),
    3: ("floatpred", 1),
    34894: ("floatpred", 2),
    34895: ("floatpred", 4),
}
"""Horizontal differencing of samples, or of the byte planes of floats: kind and distance."""


def check_supported(page: Any) -> None:
    """Raise for features that tifffile does not decode, by their names.

    Raises `UnsupportedError`.
    """
    if page.dtype is None:
        raise UnsupportedError(
            f"TIFF sample format {_format_tag(page.sampleformat)} of {page.bitspersample} bits"
        )
    if page.planarconfig not in (1, 2):
        raise UnsupportedError(f"TIFF planar configuration {page.planarconfig}")
    if page.is_subsampled and (page.compression not in JPEG or page.planarconfig == 2):
        raise UnsupportedError("TIFF chroma subsampling without JPEG compression")
    if page.predictor in (34892, 34893):
        raise UnsupportedError(
            f"TIFF predictor {_format_tag(page.predictor)}"
        )  # imagecodecs has none
    if page.is_contiguous and page.predictor != 1:
        # libtiff ignores the predictor, but tifffile undoes it as if all rows were one.
        raise UnsupportedError(f"TIFF predictor {_format_tag(page.predictor)} without compression")
    if page.bitspersample == 24 and page.dtype.kind in "iu" and page.parent.byteorder == ">":
        # tifffile unpacks them shifted by one byte.
        raise UnsupportedError("TIFF samples of 24 bits in a big-endian file")
    formats = np.unique(page.tags.valueof(339, 1))
    if len(formats) > 1:
        raise UnsupportedError(f"TIFF samples of different formats {formats.tolist()[:9]}")


def page_pipeline(
    page: Any,
    axis: int | None,
    dtype: np.dtype[Any],
    tables: bytes | None = None,
    odd_jpeg: bool = False,
) -> Pipeline:
    """Return the codecs of a page's strips or tiles: portable ones, or else the tifffile codec.

    Raises `UnsupportedError` if tifffile does not decode them; the message names the feature;
    `MissingDependencyError` if the installed imagecodecs lacks the decoder.

    Parameters
    ----------
    page : tifffile.TiffPage
        A page or key frame.
    axis : int or None
        The array's axis along rows, which predictors work on; None if rows are one sample long and
        the axis is squeezed.
    dtype : numpy.dtype
        Of the array.
    tables : bytes or None
        JPEG tables of this page (tag 347).
    odd_jpeg : bool
        Whether JPEG images differ from their strips or tiles (`directories.has_odd_jpeg`).
    """
    try:
        # Chains of numcodecs and imagecodecs can be read by zarr-python and others without this
        # package: the codec that calls tifffile is for what they cannot express.
        return _portable_codecs(page, axis, dtype, tables, odd_jpeg)
    except UnsupportedError as reason:
        if int(page.compression) != 1 and int(page.compression) not in CODECS:
            raise
        segment = _segment(page, tables, odd_jpeg)
        # Contiguous pages are read in strips of our choice.
        edges = page.shaped if page.is_contiguous else Segments.of(page).edges
        try:
            segment.check(ChunkSpec(edges, dtype))
        except UnsupportedError as error:
            raise UnsupportedError(f"{reason.message}: {error.message}") from error
        return Pipeline([segment])


def cut_pipeline(page: Any) -> Pipeline:
    """Return the codecs of tiles that may be cropped at the edges of the image.

    Raises `UnsupportedError` if tifffile does not decode them; the message names the feature.
    """
    segment = _segment(page, None, cut=True)
    segment.check(ChunkSpec(Segments.of(page).edges, page.dtype.newbyteorder("=")))
    return Pipeline([segment])


def _portable_codecs(
    page: Any, axis: int | None, dtype: np.dtype[Any], tables: bytes | None, odd_jpeg: bool
) -> Pipeline:
    """Return codecs of numcodecs and imagecodecs, or raise `UnsupportedError`."""
    compression = int(page.compression)
    if compression in JPEG:
        if odd_jpeg or page.jpegheader is not None or dtype.kind not in "iu":
            raise UnsupportedError("TIFF of JPEG images that are not the strips or tiles")
        return Pipeline([_jpeg(page, tables)])
    if compression in _IMAGES:
        if dtype.kind == "b":
            raise UnsupportedError(f"TIFF samples of 1 bit with compression {compression}")
        return Pipeline([_image(page)])
    if compression in _CODED:
        chain = _fax_or_lerc_codecs(page, axis, dtype)
    else:
        chain = _predictor(page, axis, dtype)
        if not chain or chain[-1].kind == "array_array":
            chain.append(_samples(page, dtype))
        if compression in _BYTES:
            name, configuration = _BYTES[compression]
            chain.append(make(name, **configuration))
        elif compression != 1:
            raise UnsupportedError(f"TIFF compression {_format_tag(page.compression)}")
    # FillOrder 2 reverses the bits of stored bytes, so it is undone before decompression: last in a
    # chain that is listed in encoding order.
    if page.fillorder == 2:
        chain.append(make("imagecodecs_bitorder"))
    return Pipeline(chain)


def _segment(page: Any, tables: bytes | None, cut: bool) -> TiffSegment:
    """Return the codec that decodes strips or tiles with tifffile."""
    # Of planar pages each segment has one sample per pixel, whatever SamplesPerPixel says.
    separate = page.planarconfig == 2
    samples = 1 if separate else int(page.shaped[-1])
    # All tags that the decoder of tifffile depends on, and no others: pages of equal encoding must
    # have equal configurations, which become one codec.
    tags: dict[int, Any] = {
        258: page.bitspersample,
        259: page.compression,
        262: page.photometric,
        266: page.fillorder,
        277: samples,
        284: page.planarconfig,
        317: page.predictor,
        338: page.extrasamples or None,
        339: page.sampleformat,
        530: page.subsampling,
        **{code: page.tags.valueof(code) for code in (292, 65007, 65008, 65009)},
    }
    if page.is_tiled and not page.is_contiguous:
        tags |= {322: page.tilewidth, 323: page.tilelength}
        tags |= {32998: page.tiledepth} if page.tiledepth > 1 else {}
        # With the size of the page tifffile decodes cropped tiles; without it, the codec serves
        # pages of any size.
        tags |= {256: page.imagewidth, 257: page.imagelength} if cut else {}
    else:
        tags[256] = page.imagewidth
    configuration: dict[str, Any] = {
        "byteorder": page.parent.byteorder,
        "tags": {str(code): _numbers(value) for code, value in tags.items() if value is not None},
    }
    if tables:
        configuration["tags"]["347"] = base64.b64encode(tables).decode()
    if page.jpegheader is not None:
        configuration["jpegheader"] = base64.b64encode(page.jpegheader).decode()
    if page.is_jfif:
        configuration["jfif"] = True
    codec = make("virtualzarr.tiff_segment", **configuration)
    assert isinstance(codec, TiffSegment)
    return codec


def _numbers(value: Any) -> int | list[int]:
    return [int(each) for each in value] if isinstance(value, (tuple, list)) else int(value)


def is_one_jpeg(page: Any) -> bool:
    """Whether to decode a page of an NDPI slide as the one JPEG image that it is.

    tifffile finds tiles in it, which are decoded on their own; but pages that libjpeg can decode
    it decodes as a whole. That differs where colours are stored at a lower resolution, and are
    interpolated across the edges of tiles. Very large pages are left in tiles.
    """
    frame = None if page.jpegheader is None else read_jpeg_frame(page.jpegheader)
    if frame is None or 273 not in page.tags or max(page.imagewidth, page.imagelength) > 65500:
        return False
    # 65500 is the largest dimension of libjpeg. 0x11 is a component without subsampling (1 by 1).
    alike = set(frame.sampling) == {0x11} and page.photometric in (1, 6)
    return not alike and math.prod(page.shaped) <= config.tuning.tiff_jpeg_page_bytes


def row_bytes(page: Any) -> int:
    """Return the bytes of one uncompressed row of a strip or tile; packed rows end at a byte."""
    width = page.tilewidth if page.is_tiled else page.imagewidth
    if isinstance(page.bitspersample, tuple):  # a pixel is packed in a number of 1, 2 or 4 bytes
        bits = sum(page.bitspersample)
        return int(width) * (1 if bits <= 8 else 2 if bits <= 16 else 4)
    return -(-int(width) * int(page.shaped[-1]) * int(page.bitspersample) // 8)


def _samples(page: Any, dtype: np.dtype[Any]) -> Codec:
    """Return the array-to-bytes codec of uncompressed samples."""
    bits = page.bitspersample
    if page.sampleformat == 5:
        raise UnsupportedError(f"TIFF complex integers of {bits} bits")
    if isinstance(bits, tuple):
        raise UnsupportedError(f"TIFF samples of different sizes {bits}")
    order = page.parent.byteorder
    if bits in (8, 16, 32, 64, 128):
        return make("bytes", endian="big" if order == ">" else "little")
    if dtype.kind == "f":
        return make("imagecodecs_float24", byteorder=order)
    width = page.tilewidth if page.is_tiled else page.imagewidth
    return make("imagecodecs_packints", bitspersample=bits, runlen=width * int(page.shaped[-1]))


def _predictor(page: Any, axis: int | None, dtype: np.dtype[Any]) -> list[Codec]:
    """Return the predictor's codec, if there is one."""
    if page.predictor == 1:
        return []
    named = f"TIFF predictor {_format_tag(page.predictor)}"
    if page.predictor not in _PREDICTORS:
        raise UnsupportedError(named)
    kind, distance = _PREDICTORS[page.predictor]
    if page.bitspersample not in (8, 16, 32, 64) or page.sampleformat == 5:
        raise UnsupportedError(f"{named} on {page.bitspersample}-bit samples")
    if kind == "floatpred" and dtype.kind != "f":
        raise UnsupportedError(f"{named} on {dtype} samples")
    if axis is not None:
        return [make(f"imagecodecs_{kind}", axis=axis, dist=distance)]
    if kind == "floatpred":
        raise UnsupportedError(f"{named} on rows of one sample")
    return []  # a sample without a neighbour is stored as it is


def _jpeg(page: Any, tables: bytes | None) -> Codec:
    """Return the JPEG codec with the tables and colour spaces that tifffile uses."""
    stored, decoded = _jpeg_colours(page)
    configuration: dict[str, Any] = {}
    if tables:
        configuration["tables"] = tables
    if stored is not None:
        configuration["colorspace_jpeg"] = stored
    if decoded is not None:
        configuration["colorspace_data"] = decoded
    return make("imagecodecs_jpeg", **configuration)


def _jpeg_colours(page: Any) -> tuple[str | None, str | None]:
    """Return the stored and the decoded colour space of JPEG data, as tifffile chooses them.

    YCbCr becomes RGB; RGB data without a JFIF marker are not converted from YCbCr; planar samples
    are gray; others are not converted.
    """
    stored = decoded = None
    if not page.extrasamples:
        if page.photometric in (2, 6):
            decoded = "RGB"
            if page.photometric == 2 and not page.is_jfif:
                stored = "RGB"
        elif page.photometric == 5:
            decoded = "CMYK"
        elif page.photometric > 3 and page.planarconfig == 1:
            raise UnsupportedError(f"TIFF of JPEG in colour space {_format_tag(page.photometric)}")
    return stored, decoded if page.planarconfig == 1 else "GRAYSCALE"


def _fax_or_lerc_codecs(page: Any, axis: int | None, dtype: np.dtype[Any]) -> list[Codec]:
    """Return the codecs of bilevel fax data, which tifffile uses no predictor with, or of LERC."""
    compression = int(page.compression)
    if compression != 34887:
        options = {"t4options": int(page.tags.valueof(292, 0))} if compression == 3 else {}
        return [make(_CODED[compression], **options)]
    if page.bitspersample not in (8, 16, 32, 64) or page.sampleformat == 5:
        raise UnsupportedError(f"TIFF samples of {page.bitspersample} bits with compression 34887")
    if page.parent.byteorder == ">" and page.dtype.itemsize > 1:
        # LERC has its own byte order, but tifffile swaps once more.
        raise UnsupportedError("TIFF compression 34887 (LERC) in a big-endian file")
    chain = _predictor(page, axis, dtype)
    if chain and chain[-1].kind != "array_array":
        raise UnsupportedError(
            f"TIFF predictor {_format_tag(page.predictor)} with compression 34887 (LERC)"
        )
    return [*chain, make(_CODED[34887])]


def _image(page: Any) -> Codec:
    name = _IMAGES[int(page.compression)]
    if name == "imagecodecs_webp" and page.samplesperpixel == 4:
        # Segments may leave out an alpha channel that is opaque throughout.
        return make(name, hasalpha=True)
    return make(name)


def _format_tag(value: Any) -> str:
    """Return a tag's number, and its name if it has one."""
    name = getattr(value, "name", None)
    return f"{int(value)} ({name})" if name else str(value)
