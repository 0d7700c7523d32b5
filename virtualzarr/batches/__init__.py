"""Batches: what came of scans of many files that are alike, as one schema and columns."""

from virtualzarr.batches.batch import Batch, Row, RowValues, has_manifests, make_batches
from virtualzarr.batches.collect import RowCollector
from virtualzarr.batches.schema import ChunkColumns, Schema

__all__ = [
    "Batch",
    "ChunkColumns",
    "Row",
    "RowCollector",
    "RowValues",
    "Schema",
    "has_manifests",
    "make_batches",
]
