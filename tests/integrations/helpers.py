"""Small virtual arrays to try integrations on."""

from __future__ import annotations

from virtualzarr.codecs import Pipeline
from virtualzarr.metadata import ArrayMetadata


def metadata(grid, dtype, **more):
    """Metadata of uncompressed little-endian chunks."""
    pipeline = Pipeline.from_v3([{"name": "bytes", "configuration": {"endian": "little"}}])
    fill = more.pop("fill_value", b"" if str(dtype)[0] == "S" else 0)
    return ArrayMetadata(grid.shape, dtype, grid, pipeline, fill, **more)
