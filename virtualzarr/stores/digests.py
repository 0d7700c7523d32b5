"""Sample digests: what tells a file from another of the same length and date."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

from virtualzarr.errors import SourceError
from virtualzarr.stores.files import ByteFile

SAMPLES, SAMPLE_BYTES = 64, 4096
"""Samples, and bytes of each, of a larger file; the first and last bytes are among them."""

_NAME = f"blake2b-{SAMPLES}x{SAMPLE_BYTES}"


def sample_digest(file: ByteFile, size: int) -> str:
    """Return a digest of the length of a file, and of samples of it at equal distances.

    Files of up to `SAMPLES` times `SAMPLE_BYTES` bytes are read whole. The name of the method comes
    first, so that digests of others are never compared.

    Examples
    --------
    >>> from virtualzarr.stores.files import InlineFile
    >>> sample_digest(InlineFile(b"abc"), 3)
    'blake2b-64x4096:10366aba46518e2b9d040dde242bbc5a'
    """
    # The length is hashed, too: it tells files apart whose samples agree.
    hasher = hashlib.blake2b(size.to_bytes(8, "little"), digest_size=16)
    with file.open() as opened:
        for start, stop in sample_ranges(size):
            hasher.update(opened.read(start, stop))
    return f"{_NAME}:{hasher.hexdigest()}"


def sample_ranges(size: int) -> Iterable[tuple[int, int]]:
    """Return the ranges that are taken of a file of some size.

    Examples
    --------
    >>> list(sample_ranges(3)), list(sample_ranges(2**30))[-1] == (2**30 - 4096, 2**30)
    ([(0, 3)], True)
    """
    if size <= SAMPLES * SAMPLE_BYTES:
        return [(0, size)] if size else []
    last = size - SAMPLE_BYTES
    return [
        (last * k // (SAMPLES - 1), last * k // (SAMPLES - 1) + SAMPLE_BYTES)
        for k in range(SAMPLES)
    ]


def is_comparable_digest(digest: str) -> bool:
    """Tell whether a digest was made by the method of this version."""
    return digest.startswith(f"{_NAME}:")


def require_size(size: int | None, uri: str) -> int:
    """Return the size of a file, which must be known."""
    if size is None:
        raise SourceError("the server does not say how long the file is", file=uri)
    return size
