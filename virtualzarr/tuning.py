"""Tuning parameters: sizes of batches, and thresholds between ways of doing the same thing."""

from __future__ import annotations

from dataclasses import dataclass

from virtualzarr.limits import Settings


@dataclass
class Tuning(Settings):
    """Sizes of batches and thresholds, which change what things cost, never what values are read.

    They are settings of `virtualzarr.config.tuning`. The defaults were measured; other values are
    for measuring on other machines, and for testing what large data run into with small data.
    Other versions may have others.

    Attributes
    ----------
    small_chunk_bytes : int
        Decoded bytes below which opening the file of a chunk takes longer than decoding it: such
        chunks are read and written by more threads, and those of one codec decoded in batches.
        Larger where opening a file is slow.
    prefetch_batches : int
        Batches of small files that a task reads, before it is measured again whether reading waits
        for the disk. Fewer notice a slow disk sooner.
    strided_chunks : int
        From this many chunks in memory layout on, they are copied together by strides. Fewer chunks
        are not worth the planning.
    strided_chunks_per_read : int
        They are so only if that many share a read on average. More where a system call is slow.
    chunk_cost_bytes : int
        Decoded bytes that take as long as one more chunk: by it, reads choose the cheaper of two
        chunkings of the same rows. More where each chunk is a request.
    write_cells : int
        Chunks that a write plans at a time: each takes some 100 bytes of memory while it is.
    compared_bytes : int
        Bytes of values in memory at a time while arrays are compared. Fewer take less memory.
    scan_messages : int
        About how many messages executors are given by one scan, at least, while files are enough.
        More of them share work better among many workers, and cost more themselves.
    long_scan_seconds : float
        Local files whose scans would take longer are given to processes of our own, if there may be
        any (`config.processes`): these take half a second to start, while this one goes on.
    staged_files : int
        Files that a worker stages as one segment of a dataset; fewer files than that are joined by
        the process that commits. More make fewer segments; fewer lose less when a worker dies.
    remote_header_bytes : int
        What is read first of a remote file whose metadata are parsed: larger saves round trips
        where metadata are long, and is wasted where they are short.
    disk_cache_block_bytes : int
        Blocks of the disk cache (`config.disk_cache`), which are requested whole: larger ones are
        fewer files, smaller ones bring less that nobody needs.
    templates : bool
        Whether files that are alike are scanned by comparing what a scan of another looked at; see
        the page on archives of the documentation.
    hdf5_node_count : int
        Nodes of a version 1 B-tree of an HDF5 file in memory at a time.
    hdf5_node_bytes : int
        Bytes of nodes of a version 2 B-tree of an HDF5 file in memory at a time.
    hdf5_vectorized_heaps : int
        From this many collections of a global heap on, their objects are listed by array
        operations; of fewer, one after the other.
    hdf5_checked_string_bytes : int
        Of local HDF5 datasets up to this many bytes, strings are read when scanned: if they are
        padded as numpy's are, they need no codec that other readers lack. Zero reads none.
    grib_compared_points : int
        Points of a regular GRIB grid up to which all coordinates are computed to compare them. Each
        takes some 16 bytes of memory; of larger grids, one row and one column are computed.
    tiff_jpeg_page_bytes : int
        Decoded bytes of a JPEG page in TIFF files up to which the page is one chunk if its tiles
        share samples; tiles of larger ones are chunks.
    xarray_text_bytes : int
        Bytes of inline text with all elements of equal length, up to which xarray is told that it
        may be so; text beyond is left at variable length.
    json_cells : int
        Cells whose text is made at once when kerchunk JSON is written: what it takes should fit the
        processor's cache.
    json_inline_characters : int
        Characters of inlined chunks that are made at once when kerchunk JSON is written. Fewer take
        less memory.
    json_vectorized_bytes : int
        From about this many bytes on, regular members of kerchunk JSON are parsed by array
        operations.
    column_cells : int
        About how many cells are in a chunk of a column of the native reference form. More compress
        better; fewer are read faster when few references are needed.
    listed_values : int
        Values up to which a column of the native reference form is listed in a document.
    measured_values : int
        Values from which on a column of the native reference form is encoded in several ways, to
        store the smallest. Fewer make small parts smaller, and appends slower.
    small_parts : int
        When so many small parts of a native manifest follow one another, the next append makes one
        of them. Fewer open faster, and are rewritten more often.
    merge_fan_in : int
        Segments of a dataset that are merged into one. Fewer open faster, and are rewritten more
        often.
    coordinate_rows : int
        Rows in a block of the coordinates of a segment. A search reads a block, and what is said of
        all of them: fewer rows take fewer bytes of the one, and more of the other.

    Examples
    --------
    >>> import virtualzarr
    >>> with virtualzarr.config.tuning.set(merge_fan_in=3):
    ...     virtualzarr.config.tuning.merge_fan_in
    3
    """

    _noun = "tuning parameter"

    small_chunk_bytes: int = 16 * 1024
    prefetch_batches: int = 64
    strided_chunks: int = 32
    strided_chunks_per_read: int = 8
    chunk_cost_bytes: int = 64 * 1024
    write_cells: int = 1 << 16
    compared_bytes: int = 64 * 1024 * 1024
    scan_messages: int = 200
    long_scan_seconds: float = 3.0
    staged_files: int = 256
    remote_header_bytes: int = 1024 * 1024
    disk_cache_block_bytes: int = 128 * 1024
    templates: bool = True
    hdf5_node_count: int = 2048
    hdf5_node_bytes: int = 4 * 1024 * 1024
    hdf5_vectorized_heaps: int = 64
    hdf5_checked_string_bytes: int = 256 * 1024
    grib_compared_points: int = 1 << 23
    tiff_jpeg_page_bytes: int = 512 * 1024 * 1024
    xarray_text_bytes: int = 256 * 1024 * 1024
    json_cells: int = 1 << 14
    json_inline_characters: int = 1 << 22
    json_vectorized_bytes: int = 16 * 1024
    column_cells: int = 1 << 16
    listed_values: int = 64
    measured_values: int = 4096
    small_parts: int = 16
    merge_fan_in: int = 10
    coordinate_rows: int = 1 << 14
