"""HDF5 filter pipelines as codecs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from virtualzarr.codecs import Codec, Pipeline, make
from virtualzarr.errors import CodecError, MetadataError, UnsupportedError
from virtualzarr.formats.hdf5.header import Filter
from virtualzarr.formats.hdf5.types import ElementType, StringField

# Registered filters without a codec here, so that messages can name them.
_NAMES = {
    5: "nbit", 32002: "mafisc", 32005: "apax", 32006: "cbf",
    32009: "spdp", 32010: "lpc-rice", 32011: "ccsds-123", 32012: "jpeg-ls",
    32013: "zfp", 32014: "fpzip", 32016: "b3d", 32017: "sz", 32018: "fcidecomp", 32019: "jpeg",
    32020: "vbz", 32021: "fapec", 32024: "sz3", 32025: "delta-rice", 32026: "blosc2",
    32027: "flac", 32028: "sperr", 32029: "trpx", 32030: "ffmpeg", 32031: "j2k", 32033: "htj2k",
}  # fmt: skip
_BLOSC = ("blosclz", "lz4", "lz4hc", "snappy", "zlib", "zstd")


@dataclass(frozen=True)
class FilterPipeline:
    """The codecs of a dataset, and which of them each filter became.

    Parameters
    ----------
    pipeline : Pipeline
    steps : tuple of tuple of int
        For each filter, the places of its codecs in the pipeline.
    """

    pipeline: Pipeline
    steps: tuple[tuple[int, ...], ...] = ()

    def masked(self, mask: int) -> Pipeline:
        """Return the codecs of a chunk for which the filters in `mask` were skipped."""
        skipped = [place for k, step in enumerate(self.steps) if mask >> k & 1 for place in step]
        return self.pipeline.without(*skipped) if skipped else self.pipeline

    @property
    def all_skipped(self) -> int:
        """The mask that skips every filter."""
        return (1 << len(self.steps)) - 1


def filter_pipeline(
    element: ElementType, endian: str | None, filters: Sequence[Filter]
) -> FilterPipeline:
    """Translate a filter pipeline.

    HDF5 applies its filters in order when writing, as a codec chain does: `bytes` comes first.

    Raises
    ------
    UnsupportedError
        If a filter has no codec that decodes the same bytes.
    """
    return _pipeline(element.stored.itemsize, element.strings, endian, tuple(filters))


@lru_cache(256)
def _pipeline(
    itemsize: int,
    strings: tuple[StringField, ...],
    endian: str | None,
    filters: tuple[Filter, ...],
) -> FilterPipeline:
    codecs = [make("bytes", endian=endian) if endian else make("bytes")]
    if strings:
        fields = [[part.offset, part.size, part.padding] for part in strings]
        codecs.append(make("virtualzarr.strings", itemsize=itemsize, fields=fields))
    steps = []
    for step in filters:
        made = _codecs(step, itemsize)
        steps.append(tuple(range(len(codecs), len(codecs) + len(made))))
        codecs += made
    return FilterPipeline(Pipeline(codecs), tuple(steps))


def _codecs(step: Filter, itemsize: int) -> list[Codec]:
    """Return the codecs of one filter; none for one that is undone by doing nothing."""
    translate = _TRANSLATIONS.get(step.number)
    if translate is None:
        name = _NAMES.get(step.number) or step.name or "unknown"
        raise UnsupportedError(f"HDF5 filter {step.number} ({name}) is not supported")
    try:
        return translate(step.values, itemsize)
    except (CodecError, MetadataError) as error:
        raise UnsupportedError(f"HDF5 filter {step.number}: {error.message}") from error
    except IndexError as error:
        raise UnsupportedError(
            f"HDF5 filter {step.number} ({step.name}) has too few parameters: {step.values}"
        ) from error


def _deflate(values: Sequence[int], itemsize: int) -> list[Codec]:
    return [make("numcodecs.zlib", level=min(values[0], 9) if values else 1)]


def _shuffle(values: Sequence[int], itemsize: int) -> list[Codec]:
    return [make("numcodecs.shuffle", elementsize=values[0] if values else itemsize)]


def _fletcher32(values: Sequence[int], itemsize: int) -> list[Codec]:
    return [make("numcodecs.fletcher32")]


def _szip(values: Sequence[int], itemsize: int) -> list[Codec]:
    # The parameters are the library's own, in this order; 4 bytes of size precede the stream.
    names = ("options_mask", "pixels_per_block", "bits_per_pixel", "pixels_per_scanline")
    options = {name: values[k] for k, name in enumerate(names)}
    return [make("imagecodecs_szip", header=True, **options)]


def _bzip2(values: Sequence[int], itemsize: int) -> list[Codec]:
    return [make("numcodecs.bz2", level=values[0] if values else 9)]


def _lzf(values: Sequence[int], itemsize: int) -> list[Codec]:
    return [make("imagecodecs_lzf", header=False)]


def _blosc(values: Sequence[int], itemsize: int) -> list[Codec]:
    compressor = values[6] if len(values) > 6 else 0
    if compressor >= len(_BLOSC):
        raise UnsupportedError(f"HDF5 filter 32001 (blosc) with compressor {compressor}")
    shuffle = values[5] if len(values) > 5 else 1
    options = {
        "cname": _BLOSC[compressor],
        "clevel": values[4] if len(values) > 4 else 5,
        "shuffle": ("noshuffle", "shuffle", "bitshuffle")[shuffle],
        "typesize": values[2] or itemsize,
        "blocksize": 0,
    }
    return [make("blosc", **options)]


def _lz4(values: Sequence[int], itemsize: int) -> list[Codec]:
    return [make("imagecodecs_lz4h5")]


def _zstd(values: Sequence[int], itemsize: int) -> list[Codec]:
    level = values[0] if values else 3
    # Negative levels are kept in an unsigned number.
    return [make("zstd", level=level - (1 << 32) if level >> 31 else level, checksum=False)]


def _nbit(values: Sequence[int], itemsize: int) -> list[Codec]:
    if not values[1]:
        raise UnsupportedError("HDF5 filter 5 (nbit) is not supported")
    return []  # the type fills its bytes: nothing was packed


def _scaleoffset(values: Sequence[int], itemsize: int) -> list[Codec]:
    return [make("virtualzarr.hdf5_scaleoffset", parameters=list(values))]


def _lzo(values: Sequence[int], itemsize: int) -> list[Codec]:
    return [make("imagecodecs_lzo", header=False)]


def _bitshuffle(values: Sequence[int], itemsize: int) -> list[Codec]:
    return [make("virtualzarr.hdf5_bitshuffle", parameters=list(values))]


def _nothing(values: Sequence[int], itemsize: int) -> list[Codec]:
    """Filters that only lose digits when writing (bit grooming)."""
    return []


_TRANSLATIONS: dict[int, Callable[[Sequence[int], int], list[Any]]] = {
    1: _deflate,
    2: _shuffle,
    3: _fletcher32,
    4: _szip,
    5: _nbit,
    6: _scaleoffset,
    305: _lzo,
    307: _bzip2,
    32000: _lzf,
    32001: _blosc,
    32004: _lz4,
    32008: _bitshuffle,
    32015: _zstd,
    32022: _nothing,
    32023: _nothing,
}
