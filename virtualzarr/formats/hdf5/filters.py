"""Filter pipelines of HDF5 as codecs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

from virtualzarr.codecs import Codec, Pipeline, make
from virtualzarr.codecs.core.base import BytesBytes
from virtualzarr.codecs.hdf5.library_filters import PLUGINS, filters_message, is_available
from virtualzarr.errors import CodecError, MetadataError, UnsupportedError
from virtualzarr.formats.hdf5.element_type import ElementType
from virtualzarr.formats.hdf5.messages import Filter

# Registered filters, so that messages can name them.
_NAMES = PLUGINS | {
    4: "szip", 5: "nbit", 6: "scaleoffset", 305: "lzo", 32000: "lzf", 32002: "mafisc",
    32005: "apax", 32006: "cbf", 32009: "spdp", 32010: "lpc-rice", 32011: "ccsds-123",
    32012: "jpeg-ls", 32014: "fpzip", 32016: "b3d", 32019: "jpeg", 32020: "vbz", 32021: "fapec",
    32025: "delta-rice", 32027: "flac", 32029: "trpx", 32030: "ffmpeg", 32031: "j2k",
}  # fmt: skip
_BLOSC = ("blosclz", "lz4", "lz4hc", "snappy", "zlib", "zstd")
_Translation = Callable[[Sequence[int], int], list[Codec]]
"""Gets the parameters of a filter and the bytes of an element; returns codecs."""
_SOME_ELEMENTS = 1 << 10


@dataclass(frozen=True)
class FilterPipeline:
    """The codecs of a dataset, and those of chunks that skipped some of its filters."""

    element: ElementType
    filters: tuple[Filter, ...] = ()

    @cached_property
    def pipeline(self) -> Pipeline:
        """The codecs of a chunk that skipped no filter.

        Raises `UnsupportedError` if the HDF5 library has no such filter.
        """
        return _make_pipeline(self.element, self.filters)

    def without_skipped(self, mask: int) -> Pipeline:
        """Return the codecs of a chunk for which the filters in `mask` were skipped."""
        applied = [step for k, step in enumerate(self.filters) if not mask >> k & 1]
        return _make_pipeline(self.element, tuple(applied))

    @property
    def all_skipped(self) -> int:
        """The mask that skips every filter."""
        return (1 << len(self.filters)) - 1


def filter_pipeline(element: ElementType, filters: Sequence[Filter] = ()) -> FilterPipeline:
    """Translate a filter pipeline.

    HDF5 applies its filters in order when writing, as a codec chain does. Filters that have no
    codec of their own are left to the HDF5 library, with those applied before that change sizes.
    One that the library does not have, either, is refused when a chunk needs it.
    """
    return FilterPipeline(element, tuple(filters))


@lru_cache(256)
def _make_pipeline(element: ElementType, filters: tuple[Filter, ...]) -> Pipeline:
    """Return the codecs of filters that were applied in this order."""
    parts: list[list[Codec]] = []
    starts: list[int] = []  # the first filter of each part
    # The bytes before each part; None where they depend on the data.
    sizes: list[int | None] = [_SOME_ELEMENTS * element.itemsize]
    for k, step in enumerate(filters):
        codecs, start = _translate(step, element), k
        if codecs is None:
            # What the library is to decode must have a known size: it does the rest, too.
            while sizes[-1] is None:
                start = starts.pop()
                parts.pop()
                sizes.pop()
            codecs = [_make_library_codec(filters[start : k + 1])]
        # A library codec must declare its decoded size; after a compressor, that depends on the
        # data.
        size = sizes[-1]
        for codec in codecs:
            assert isinstance(codec, BytesBytes)
            size = codec.compute_encoded_size(size)
        parts.append(codecs)
        starts.append(start)
        sizes.append(size)
    return Pipeline([*element.codecs, *(codec for codecs in parts for codec in codecs)])


def _translate(step: Filter, element: ElementType) -> list[Codec] | None:
    """Return the codecs of one filter, none of them if nothing needs to be done.

    None for a filter that only the HDF5 library undoes.
    """
    translate = _TRANSLATIONS.get(step.number)
    if translate is None:
        return None
    try:
        return translate(step.values, element.itemsize)
    except (CodecError, MetadataError, IndexError):
        return None  # parameters nobody has seen: the library knows better


def _make_library_codec(filters: Sequence[Filter]) -> Codec:
    for step in filters:
        # What hdf5plugin brings is referenced also where it is not installed.
        if step.number not in PLUGINS and not is_available(step.number):
            name = _NAMES.get(step.number) or step.name or "unknown"
            raise UnsupportedError(
                f"HDF5 filter {step.number} ({name}) is not supported: the HDF5 library does not "
                "find it, either"
            )
    entries = [(step.number, step.name, step.values) for step in filters]
    try:
        return make("virtualzarr.hdf5_chunk", filters=filters_message(entries))
    except CodecError as error:
        numbers = [step.number for step in filters]
        raise UnsupportedError(f"HDF5 filters {numbers}: {error.message}") from error


def _with_options(name: str, **options: Any) -> _Translation:
    """Return the translation to a codec that the filter's parameters say nothing about."""
    return lambda values, itemsize: [make(name, **options)]


def _with_parameters(name: str) -> _Translation:
    """Return the translation to a codec that takes the filter's parameters as they are."""
    return lambda values, itemsize: [make(name, parameters=list(values))]


def _shuffle(values: Sequence[int], itemsize: int) -> list[Codec]:
    return [make("numcodecs.shuffle", elementsize=values[0] if values else itemsize)]


def _szip(values: Sequence[int], itemsize: int) -> list[Codec]:
    # The parameters are the library's own, in this order; 4 bytes of size precede the stream.
    names = ("options_mask", "pixels_per_block", "bits_per_pixel", "pixels_per_scanline")
    options = {name: values[k] for k, name in enumerate(names)}
    return [make("imagecodecs_szip", header=True, **options)]


def _blosc(values: Sequence[int], itemsize: int) -> list[Codec]:
    # Values 0 and 1 are versions, 3 the bytes of a chunk; older writers leave the last ones out.
    compressor = values[6] if len(values) > 6 else 0
    shuffle = values[5] if len(values) > 5 else 1
    options = {
        "cname": _BLOSC[compressor],
        "clevel": values[4] if len(values) > 4 else 5,
        "shuffle": ("noshuffle", "shuffle", "bitshuffle")[shuffle],
        "typesize": values[2] or itemsize,
        "blocksize": 0,
    }
    return [make("blosc", **options)]


def _zstd(values: Sequence[int], itemsize: int) -> list[Codec]:
    level = values[0] if values else 3
    # Negative levels are kept in an unsigned number.
    return [make("zstd", level=level - (1 << 32) if level >> 31 else level, checksum=False)]


def _nbit(values: Sequence[int], itemsize: int) -> list[Codec]:
    if values[1]:
        return []  # the type fills its bytes: nothing was packed
    return [make("virtualzarr.hdf5_nbit", parameters=list(values))]


_TRANSLATIONS: dict[int, _Translation] = {
    1: lambda values, _: [make("numcodecs.zlib", level=min(values[0], 9) if values else 1)],
    2: _shuffle,
    3: _with_options("numcodecs.fletcher32"),
    4: _szip,
    5: _nbit,
    6: _with_parameters("virtualzarr.hdf5_scaleoffset"),
    305: _with_options("imagecodecs_lzo", header=False),
    307: lambda values, _: [make("numcodecs.bz2", level=values[0] if values else 9)],
    32000: _with_options("imagecodecs_lzf", header=False),
    32001: _blosc,
    32004: _with_options("imagecodecs_lz4h5"),
    32008: _with_parameters("virtualzarr.hdf5_bitshuffle"),
    32013: _with_parameters("virtualzarr.hdf5_zfp"),
    32015: _zstd,
    32018: _with_parameters("virtualzarr.hdf5_jpegls"),
    32026: _with_parameters("virtualzarr.hdf5_blosc2"),
    # Bit grooming only loses digits when writing: nothing is to be undone.
    32022: lambda values, itemsize: [],
    32023: lambda values, itemsize: [],
}
