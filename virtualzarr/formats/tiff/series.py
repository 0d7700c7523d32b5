"""TIFF series as virtual arrays: grid, codecs and references of its pages."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

import grids
from virtualzarr.array import Array
from virtualzarr.codecs import Pipeline, make
from virtualzarr.codecs.core.base import ArrayArray, ChunkSpec
from virtualzarr.codecs.core.libraries import require_imagecodecs
from virtualzarr.codecs.tiff.segment import JPEG, PACKBITS
from virtualzarr.errors import SourceError, UnsupportedError
from virtualzarr.formats.tiff import references
from virtualzarr.formats.tiff.attributes import page_attributes
from virtualzarr.formats.tiff.directories import check_alike, has_odd_jpeg
from virtualzarr.formats.tiff.files import Files
from virtualzarr.formats.tiff.layout import WIDTH, Layout, Segments, raw_runs, split_plane
from virtualzarr.formats.tiff.pipeline import (
    check_supported,
    cut_pipeline,
    is_one_jpeg,
    page_pipeline,
    row_bytes,
)
from virtualzarr.manifest import Decoder, Manifest, Source, Sources
from virtualzarr.metadata import ArrayMetadata

RAW_CHUNK = 4 * 1024 * 1024
"""Target bytes of a chunk of contiguous pages, whose chunks can be chosen."""


def axes_and_shape(series: Any) -> tuple[str, tuple[int, ...]]:
    """Return the axes of a series and their lengths, as ``series.asarray()`` has them.

    If there are more or fewer pages than the series should have, as of an interrupted acquisition,
    they are stacked along one axis.

    Raises `SourceError` if a length is not an integer.
    """
    axes, shape, page = series.axes, tuple(int(n) for n in series.shape), series.keyframe
    if any(n != int(n) for n in series.shape):
        raise SourceError(f"TIFF series of shape {tuple(series.shape)}")
    expected, each = math.prod(shape), math.prod(page.shape)
    count = len(series) * each
    if not expected or not count or count == expected:
        return axes, shape
    if series.is_truncated or series.dataoffset is not None:
        return axes, shape
    if count % expected == 0:
        return "I" + axes, (count // expected, *shape)
    return "I" + page.axes, (len(series), *page.shape)


def series_array(
    series: Any, shape: tuple[int, ...], dims: tuple[str, ...] | None, path: str, files: Files
) -> Array:
    """Return the virtual array of a tifffile series.

    Raises `UnsupportedError` if no codec decodes exactly what ``series.asarray()`` reads;
    `SourceError` if offsets or byte counts of strips or tiles are impossible.

    Parameters
    ----------
    series : tifffile.TiffPageSeries
    dims : tuple of str, optional
        Names of the dimensions.
    path : str
        Of the array.
    files : Files
        The file, and those beside it that the series spans.
    """
    page = series.keyframe
    computed = _find_transform(series)
    if page.dtype is not None and (0 in shape or 0 in page.shaped):
        references.check_extent(series.dataoffset or 0, 0, files.source(page.parent))
        return _empty(series, shape, path, dims)
    check_supported(page)
    dtype = np.dtype(series.dtype).newbyteorder("=")
    # A page whose uncompressed strips follow one another is contiguous: its chunks may be of any
    # number of rows, however small its strips are.
    build = _contiguous if page.is_contiguous else _build_from_segments
    if is_one_jpeg(page) and len(series) == 1:
        build = _one_jpeg
    # tifffile fills missing tiles with the nodata value, cast to the dtype of the page.
    fill = np.array(page.nodata).astype(page.dtype)
    if computed is None:
        grid, pipeline, manifest = build(series, shape, dtype, files)
    else:
        # Values such as those of MD GEL files are computed from stored integers: a chunk is decoded
        # as stored, then transformed; so is the fill value, as tifffile fills first.
        grid, stored, manifest = build(series, shape, page.dtype.newbyteorder("="), files)
        pipeline = Pipeline([computed, *stored.codecs])
        fill = computed.decode(fill, ChunkSpec((), dtype))
    metadata = ArrayMetadata(
        shape=shape,
        dtype=dtype,
        grid=grid,
        pipeline=pipeline,
        fill_value=dtype.type(fill),
        dimension_names=dims,
        attributes=page_attributes(page),
    )
    return Array.from_manifest(metadata, manifest, path=path)


def _find_transform(series: Any) -> ArrayArray | None:
    """Return the codec that computes values from stored samples; None for series without one.

    Raises `UnsupportedError` if no codec does, or tifffile computes them from other values than the
    stored ones.
    """
    if series.transform is None:
        return None
    reason = f"TIFF series of kind {series.kind!r}, whose values are computed"
    facts = series.keyframe.parent.mdgel_metadata if series.kind == "mdgel" else None
    # MD GEL FileTag: 2 is square root, 128 linear scaling of the stored integers.
    if not facts or facts.get("FileTag") not in (2, 128):
        raise UnsupportedError(reason)
    if series.dataoffset is not None:
        # tifffile reads contiguous integers of the size of floats as floats.
        raise UnsupportedError(f"{reason} from {series.keyframe.dtype}")
    numerator, denominator = facts["ScalePixel"]
    codec = make(
        "virtualzarr.tiff_gel", data_type=series.keyframe.dtype.name,
        scale=numerator / denominator, square=facts["FileTag"] == 2,
    )  # fmt: skip
    assert isinstance(codec, ArrayArray)
    return codec


def _empty(series: Any, shape: tuple[int, ...], path: str, dims: tuple[str, ...] | None) -> Array:
    """Return the array of a series whose pages have no elements."""
    if 0 not in shape:  # tifffile does not give it the shape it announces, either
        shape, dims = (0,), None
    dtype = np.dtype(series.dtype).newbyteorder("=")
    metadata = ArrayMetadata(
        shape=shape,
        dtype=dtype,
        grid=grids.parse([max(1, n) for n in shape], shape),
        pipeline=Pipeline([make("bytes", endian="little")]),
        fill_value=dtype.type(0),
        dimension_names=dims,
        attributes=page_attributes(series.keyframe),
    )
    return Array.from_manifest(metadata, Manifest.missing(metadata.grid.grid_shape), path=path)


Parts = tuple[grids.ChunkGrid, Pipeline, Manifest]


def _contiguous(series: Any, shape: tuple[int, ...], dtype: np.dtype[Any], files: Files) -> Parts:
    """Return grid, pipeline and manifest of contiguous, uncompressed pages."""
    page, start = series.keyframe, series.dataoffset
    segments = Segments(page.shaped, page.shaped, tiled=False)
    if start is not None and start > 0:
        # All pages follow one another: offsets of single pages do not matter, and for ImageJ stacks
        # there are none.
        segments = split_plane(shape, segments)
    layout = Layout.of(shape, segments)
    page_bytes = math.prod(segments.extents) * dtype.itemsize
    if start is not None and start > 0:
        source_file = files.source(page.parent)
        references.check_extent(start, math.prod(shape) * dtype.itemsize, source_file)
        bases = start + page_bytes * np.arange(layout.npages, dtype=np.int64)
        sources, source = Sources([source_file]), np.zeros(layout.npages, np.int32)
    else:
        pages = _pages(series, layout, files)
        bases = references.page_bases(pages)
        sources, source = _sources(pages, files)
        references.check_within(bases, np.full(bases.shape, page_bytes), source, sources)
    runs = raw_runs(segments, dtype.itemsize, RAW_CHUNK)
    grid = grids.parse(layout.chunks(runs), shape)
    offset, length = references.raw_columns(bases, layout, runs, dtype.itemsize)
    pipeline = page_pipeline(page, layout.row_axis, dtype)
    lead = (*shape[: layout.lead], *(1,) * (len(shape) - layout.lead))
    return grid, pipeline, Manifest(
        grid.grid_shape, sources, source.reshape(lead), offset, length
    )  # fmt: skip


def _build_from_segments(
    series: Any, shape: tuple[int, ...], dtype: np.dtype[Any], files: Files
) -> Parts:
    """Return grid, pipeline and manifest of pages of separately encoded strips or tiles."""
    page = series.keyframe
    segments = Segments.of(page)
    references.check_size(segments, dtype.itemsize)
    layout = Layout.of(shape, segments)
    pages = _pages(series, layout, files)
    # All pages share one grid and, but for JPEG tables, one pipeline: pages that differ in anything
    # else were refused by check_alike.
    odd = int(page.compression) in JPEG and has_odd_jpeg(pages, segments, files.directories)
    pipelines, chosen = _pipelines(pages, page, layout.row_axis, dtype, odd)
    offset, length = references.segment_columns(pages, math.prod(segments.counts))
    if page.compression == 1:
        length = references.clip_raw(length, segments.raw_bytes(row_bytes(page)))
    sources, source_of_page = _sources(pages, files)
    references.check_within(offset, length, source_of_page[:, None], sources)
    grid = grids.parse(layout.chunks(segments.runs), shape)
    # A byte count of 0 marks a segment that was never written (sparse files of GDAL).
    source = np.where(length > 0, source_of_page[:, None], np.int32(-1))
    number = np.broadcast_to(chosen[:, None] - 1, length.shape)
    if _is_cut(pages, page, segments, offset[:, -1], length[:, -1]):
        # Number -1 is the pipeline that the array declares, so the list of others begins at 1.
        number = np.where(segments.at_edge, len(pipelines) - 1, number)
        pipelines = [*pipelines, cut_pipeline(page)]
    decoder = number.reshape(grid.grid_shape) if len(pipelines) > 1 else None
    manifest = Manifest(
        grid.grid_shape,
        sources,
        source.reshape(grid.grid_shape),
        offset.reshape(grid.grid_shape),
        length.reshape(grid.grid_shape),
        [Decoder(pipeline) for pipeline in pipelines[1:]],
        decoder,
    )
    return grid, pipelines[0], manifest


def _is_cut(
    pages: Sequence[Any],
    keyframe: Any,
    segments: Segments,
    offset: references.Column,
    length: references.Column,
) -> bool:
    """Whether tiles at the edges are stored cropped to the image, as few writers do.

    One of the last tiles is decoded to tell. Known writers of such files use PackBits only.

    Parameters
    ----------
    pages : sequence of (tifffile.TiffPage, TiffFrame or None)
    keyframe : tifffile.TiffPage
    offset, length : int64 array
        Of the last tile of each page.
    """
    if int(keyframe.compression) != PACKBITS or not segments.at_edge[-1] or not length.any():
        return False
    full_size = math.prod(segments.edges[:WIDTH]) * row_bytes(keyframe)
    index = int(np.flatnonzero(length)[0])
    if length[index] > 2 * full_size:  # PackBits makes nothing longer than by one byte in 128
        return False
    handle = pages[index].parent.filehandle
    handle.seek(int(offset[index]))
    try:
        raw = handle.read(int(length[index]))
        decoded = require_imagecodecs("imagecodecs_packbits").packbits_decode(raw)
    except (RuntimeError, ValueError):  # reading the damaged tile raises with its position
        return False
    return len(decoded) < full_size


def _one_jpeg(series: Any, shape: tuple[int, ...], dtype: np.dtype[Any], files: Files) -> Parts:
    """Return grid, pipeline and manifest of one JPEG image, as in small levels of NDPI slides."""
    page = series.keyframe
    source = files.source(page.parent)
    start, nbytes = (int(page.tags[code].value[0]) for code in (273, 279))
    references.check_extent(start, nbytes, source)
    grid = grids.parse(shape, shape)
    manifest = Manifest.single(source, start, nbytes, len(shape))
    return grid, Pipeline([make("imagecodecs_jpeg")]), manifest


def _pages(series: Any, layout: Layout, files: Files) -> list[Any]:
    """Return the pages of a series, None where one is missing."""
    pages = list(series)
    if len(pages) != layout.npages:
        raise SourceError(
            f"the TIFF series of shape {layout.shape} needs {layout.npages} pages; the file has "
            f"{len(pages)}"
        )
    if series.keyframe.nodata and any(page is None for page in pages):
        # tifffile fills missing pages with 0, but missing tiles with the nodata value.
        raise UnsupportedError("TIFF series with missing pages and a nodata value")
    check_alike(pages, series.keyframe, files.directories)
    return pages


def _sources(pages: Sequence[Any], files: Files) -> tuple[Sources, NDArray[np.int32]]:
    """Return the table of files with pages, and each page's row in it; -1 for missing pages."""
    rows: dict[int, int] = {}
    table: list[Source] = []
    column = np.full(len(pages), -1, np.int32)
    for index, page in enumerate(pages):
        if page is None:
            continue
        row = rows.setdefault(id(page.parent), len(rows))
        if row == len(table):
            table.append(files.source(page.parent))
        column[index] = row
    return Sources(table), column


def _pipelines(
    pages: Sequence[Any], keyframe: Any, axis: int | None, dtype: np.dtype[Any], odd: bool
) -> tuple[list[Pipeline], references.Column]:
    """Return the distinct codec pipelines of pages, and the index of each page's.

    Only JPEG tables may differ within a series.
    """
    tables: dict[bytes | None, int] = {}
    chosen = np.array(
        [0 if page is None else tables.setdefault(page.jpegtables, len(tables)) for page in pages]
    )
    return [page_pipeline(keyframe, axis, dtype, table, odd) for table in tables], chosen
