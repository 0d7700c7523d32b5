"""Receipt of a publication: sources, versions, choices, and what was copied and why.

It says how references came to be, so that they can be checked and grown alike. Readers need none
of it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from virtualzarr.hierarchy.inventory import list_sources
from virtualzarr.manifest import Source
from virtualzarr.references import portable
from virtualzarr.references.array_plan import ArrayPlan
from virtualzarr.references.materialize import is_copy
from virtualzarr.references.plan import Plan
from virtualzarr.stores.fingerprints import Fingerprint
from virtualzarr.stores.location import Location

_KINDS = ("virtual", "inline", "copied")


def make_receipt(
    plan: Plan,
    documents: Mapping[str, bytes],
    before: Mapping[str, Any],
    copied: Iterable[Source],
) -> dict[str, Any]:
    """Return the receipt of what is planned, once copies are stored.

    Parameters
    ----------
    documents : mapping of bytes by key
        Metadata as they are published.
    before : mapping
        The receipt of references that are replaced by these, which grew or got other names.
    copied : iterable of Source
        Files of which everything was copied.

    Returns
    -------
    dict
        ``virtualzarr`` (the version), ``regular`` (whether all grids are to stay regular),
        ``sources`` (their number, the SHA-256 of their fingerprints, and the fingerprints of those
        that no chunk refers to), ``documents`` (the SHA-256 of all), and ``arrays`` by path: chunk
        shape, codecs, counts, reasons of copies. ``split`` where the groups are runs.
    """
    from virtualzarr import __version__

    marks = _list_marks(plan.sources())
    names = sorted(documents)
    arrays = before.get("arrays")
    arrays = arrays if isinstance(arrays, Mapping) else {}
    sources: dict[str, Any] = {
        "count": len(marks), "sha256": _sha256(json.dumps(marks).encode())
    }  # fmt: skip
    if unused := _list_marks(copied):
        sources["copied"] = unused
    split = plan.split or before.get("split")
    return {
        "virtualzarr": __version__,
        "regular": plan.regular,
        "sources": sources,
        "documents": {
            "sha256": _sha256(b"".join(name.encode() + b"\0" + documents[name] for name in names))
        },
        "arrays": {path: _describe(a, arrays.get(path)) for path, a in plan.arrays.items()},
    } | ({"split": split} if split else {})


def find_copied_sources(plan: Plan) -> list[Source]:
    """Return the files that no chunk refers to any more, as all that they have was copied."""
    used: set[str] = set()
    sources: dict[str, Source] = {}
    for array in plan.arrays.values():
        manifest = array.manifest
        rows = np.asarray(manifest.source).reshape(-1)
        rows = np.delete(rows, array.misread) if len(array.misread) else rows
        used |= {source.uri for source in manifest.sources.select(rows)}
        if len(array.misread) and array.array.is_virtual:
            sources |= {source.uri: source for source in list_sources(array.array)}
    return [source for uri, source in sources.items() if uri not in used and not is_copy(uri)]


def read_copied_sources(receipt: Mapping[str, Any], location: Location) -> list[Source]:
    """Return the files of which references have copied everything, as they were then.

    Parameters
    ----------
    location : Location
        Where the references are.
    """
    sources = receipt.get("sources")
    marks = sources.get("copied") if isinstance(sources, Mapping) else None
    copied = []
    for mark in marks if isinstance(marks, list) else ():
        if not isinstance(mark, list) or len(mark) != 5 or not isinstance(mark[0], str):
            continue
        size, mtime = (m if type(m) is int else None for m in mark[1:3])
        etag = mark[3] if isinstance(mark[3], str) else None
        copied.append(Source.at(location.resolve(mark[0]), Fingerprint(size, mtime, etag)))
    return copied


def _list_marks(sources: Iterable[Source]) -> list[list[Any]]:
    """Return names and fingerprints, sorted."""
    distinct = sorted({*sources}, key=lambda source: source.uri)
    return [[s.uri, s.size, s.mtime_ns, s.etag, s.digest] for s in distinct]


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _describe(array: ArrayPlan, before: Any) -> dict[str, Any]:
    metadata = array.metadata
    counts = _count_kinds(array, before)
    always = ("virtual", "inline" if counts["inline"] else "copied")
    described: dict[str, Any] = {
        "codecs": [codec.name for codec in metadata.pipeline.codecs],
        **{kind: n for kind, n in counts.items() if n or kind in always},
    }
    if array.is_regular:
        described["chunks"] = [*portable.chunk_shape(metadata)]
    why = _merge_reasons(array, before) if counts["inline"] or counts["copied"] else {}
    return described | ({"why": why} if why else {})


def _count_kinds(array: ArrayPlan, before: Any) -> dict[str, int]:
    """Count the chunks that lie in sources, in the references, and in copies."""
    manifest = array.manifest
    # Copies are within the references in some forms, and in Icechunk chunks like others: what they
    # were is said by the receipt of before.
    earlier = before if isinstance(before, Mapping) else {}
    inline = 2 if earlier.get("copied") and not earlier.get("inline") else 1
    copy = 1 if earlier.get("inline") else 2
    kinds = [inline if s.is_inline else copy if is_copy(s.uri) else 0 for s in manifest.sources]
    kind = np.array([*kinds, 3])[np.asarray(manifest.source).reshape(-1)]
    # Chunks of a repository are copied when they are written.
    kind[array.misread] = 1 if array.inline else 2
    return dict(zip(_KINDS, np.bincount(kind, minlength=4).tolist(), strict=False))


def _merge_reasons(array: ArrayPlan, before: Any) -> dict[str, int]:
    """Return why chunks are copied: now, and before where those are still there."""
    earlier = before.get("why") if isinstance(before, Mapping) else None
    present = int(np.count_nonzero(np.asarray(array.manifest.source) >= 0))
    reasons = dict(array.reasons)
    if not isinstance(earlier, Mapping) or len(array.misread) == present:
        return reasons
    for reason, count in earlier.items():
        reasons[reason] = reasons.get(reason, 0) + (count if type(count) is int else 0)
    return reasons
