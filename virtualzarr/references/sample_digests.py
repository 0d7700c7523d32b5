"""Digests of samples of source files, noted in references."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from virtualzarr.array.chunk_source import open_source
from virtualzarr.config import config
from virtualzarr.manifest import Source, Sources
from virtualzarr.references.plan import Plan
from virtualzarr.stores.digests import require_size, sample_digest


def add_digests(plan: Plan) -> None:
    """Note digests of samples of all files that have none yet.

    Raises `SourceError` if a file cannot be read, or is no longer as it was scanned.
    """
    # Each file once, however many arrays refer to it, and all of them side by side: most of the
    # time is latency.
    every = list(dict.fromkeys(s for array in plan.arrays.values() for s in array.manifest.sources))
    with ThreadPoolExecutor(config.requests) as pool:
        with_digests = dict(zip(every, pool.map(_with_digest, every), strict=True))
    for array in plan.arrays.values():
        sources = Sources(with_digests[source] for source in array.manifest.sources)
        array.manifest = array.manifest.replace(sources=sources)


def _with_digest(source: Source) -> Source:
    if source.is_inline or source.digest is not None:
        return source
    size = require_size(source.size, source.uri)
    return replace(source, digest=sample_digest(open_source(source), size))
