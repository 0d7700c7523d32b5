"""Receipt of a publication: sources, versions, choices, and what was copied and why.

It says how references came to be, so that they can be checked and grown alike. Readers need none
of it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

import numpy as np

from virtualzarr.references import portable
from virtualzarr.references.array_plan import ArrayPlan
from virtualzarr.references.plan import Plan


def make_receipt(plan: Plan, documents: Mapping[str, bytes]) -> dict[str, Any]:
    """Return the receipt of what is planned, once copies are stored.

    Parameters
    ----------
    documents : mapping of bytes by key
        Metadata as they are published.

    Returns
    -------
    dict
        ``virtualzarr`` (the version), ``regular`` (whether all grids are to stay regular),
        ``sources`` (their number, and the SHA-256 of their fingerprints), ``documents`` (the
        SHA-256 of all), and ``arrays`` by path: chunk shape, codecs, counts, reasons of copies.
    """
    from virtualzarr import __version__

    sources = sorted(plan.sources(), key=lambda source: source.uri)
    marks = [[s.uri, s.size, s.mtime_ns, s.etag, s.digest] for s in sources]
    names = sorted(documents)
    return {
        "virtualzarr": __version__,
        "regular": plan.regular,
        "sources": {"count": len(sources), "sha256": _sha256(json.dumps(marks).encode())},
        "documents": {
            "sha256": _sha256(b"".join(name.encode() + b"\0" + documents[name] for name in names))
        },
        "arrays": {path: _describe(array) for path, array in plan.arrays.items()},
    }


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _describe(array: ArrayPlan) -> dict[str, Any]:
    metadata = array.metadata
    present = int(np.count_nonzero(np.asarray(array.manifest.source) >= 0))
    copies = len(array.misread)
    described: dict[str, Any] = {
        "codecs": [codec.name for codec in metadata.pipeline.codecs],
        "virtual": present - copies,
        "inline" if array.inline else "copied": copies,
    }
    if array.is_regular:
        described["chunks"] = [*portable.chunk_shape(metadata)]
    return described | ({"why": dict(array.reasons)} if array.reasons else {})
