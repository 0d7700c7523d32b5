"""Objects of a dataset: written once under a name with an epoch, checked when they are read."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from hashlib import sha256
from typing import Any

import zstandard

from virtualzarr.dataset.named import Named
from virtualzarr.dataset.operations import Get, NewId, Protocol, Put
from virtualzarr.errors import MetadataError, SourceNotFoundError, VirtualZarrError
from virtualzarr.metadata.json_documents import dumps_json, loads_json

_LARGEST = 1 << 28

_NAME = re.compile(
    r"(?:log|schemas|index|segments|data|staged)/(\d+)-[0-9a-f]{16}(?:(?:\.[0-9a-f]{16})?\.new)?",
    re.ASCII,
)
"""Names of objects, also of files that are being written: nothing else is of a dataset."""


_BLOCK = 4096


def dump(document: Any) -> bytes:
    """Return a document as JSON; long lists in blocks, as Python makes a text of each item first.

    Examples
    --------
    >>> dump({"files": ["a", "b"]})
    b'{"files": ["a", "b"]}'
    """
    if not _is_long(document):
        return dumps_json(document, indent=None, allow_nan=False)
    if isinstance(document, dict):
        members = (dump(name) + b": " + dump(value) for name, value in document.items())
        return b"{" + b", ".join(members) + b"}"
    starts = range(0, len(document), _BLOCK)
    blocks = (dump(document[start : start + _BLOCK])[1:-1] for start in starts)
    return b"[" + b", ".join(blocks) + b"]"


def _is_long(document: Any) -> bool:
    if isinstance(document, dict):
        return all(isinstance(name, str) for name in document) and any(
            map(_is_long, document.values())
        )
    return isinstance(document, list | tuple) and len(document) > _BLOCK


def encode(document: Any, level: int = 3) -> bytes:
    """Return a document as JSON, compressed at a level of Zstandard."""
    return compress(dump(document), level)


def compress(raw: bytes, level: int = 3) -> bytes:
    """Return bytes that are compressed at a level of Zstandard."""
    # With a checksum: nothing names the head by a digest.
    data: bytes = zstandard.ZstdCompressor(level, write_checksum=True).compress(raw)
    return data


def decode(data: bytes) -> Any:
    """Return the document that `encode` was given.

    Raises
    ------
    MetadataError
        If it is damaged, or larger than any that is written.
    """
    try:
        return loads_json(decompress(data))
    except ValueError as error:
        raise MetadataError(f"a document of a dataset is damaged: {error}") from error


@contextmanager
def parse_errors(file: str) -> Iterator[None]:
    """Say which object it is whose document is not what it should be.

    Raises
    ------
    MetadataError
        Instead of what Python raises where a document has other members and types.
    """
    try:
        yield
    except VirtualZarrError as error:
        raise error.at(file=file) from error.__cause__
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        problem = f"a document of a dataset is malformed: {type(error).__name__}: {error}"
        raise MetadataError(problem, file=file) from error


def decompress(data: bytes) -> bytes:
    """Return what was compressed.

    Raises
    ------
    MetadataError
        If it is damaged, or larger than anything that is written.
    """
    try:
        if zstandard.frame_content_size(data) > _LARGEST:
            raise MetadataError("an object of a dataset is too large")
        raw: bytes = zstandard.decompress(data, max_output_size=_LARGEST)
    except zstandard.ZstdError as error:
        raise MetadataError(f"an object of a dataset is damaged: {error}") from error
    return raw


def digest(data: bytes) -> str:
    """Return the digest that objects are named with: half of SHA-256."""
    return sha256(data).hexdigest()[:32]


def epoch_of(name: str) -> int | None:
    """Return the epoch in the name of an object; None if it is not one of a dataset.

    Examples
    --------
    >>> epoch_of("segments/3-0123456789abcdef")
    3
    >>> epoch_of("segments/notes.txt")
    """
    match = _NAME.fullmatch(name)
    return None if match is None else int(match[1])


def put(kind: str, epoch: int, data: bytes) -> Protocol[Named]:
    """Store an object of a kind under a fresh name."""
    name = f"{kind}/{epoch}-{(yield NewId())}"
    yield Put(name, data)
    return Named(name, len(data), digest(data))


def put_by_content(
    kind: str, epoch: int, data: bytes, checked: str | None = None
) -> Protocol[Named]:
    """Store an object of a kind under the hash of its bytes, which may be there already.

    Who does the same work again, as nobody knows what became of it, stores the same object.

    Parameters
    ----------
    checked : str, optional
        The digest that it is checked by when it is read; of all bytes by default.
    """
    content = digest(data)
    name = f"{kind}/{epoch}-{content[:16]}"
    yield Put(name, data, may_repeat=True)
    return Named(name, len(data), checked or content)


def read(objects: Sequence[Named]) -> Protocol[list[bytes]]:
    """Read named objects, all at once.

    Raises
    ------
    SourceNotFoundError
        If one is missing: its version has expired, or the dataset is damaged.
    MetadataError
        If one is not what was named.
    """
    answers = yield [
        Get(item.name, None if item.offset is None else (item.offset, item.offset + item.size))
        for item in objects
    ]
    return [_check(item, answer) for item, answer in zip(objects, answers, strict=True)]


def _check(expected: Named, answer: tuple[bytes, str] | None) -> bytes:
    if answer is None:
        raise SourceNotFoundError("an object of a dataset is missing", file=expected.name)
    data = answer[0]
    if len(data) != expected.size or digest(data) != expected.digest:
        raise MetadataError(
            "an object of a dataset is not the one that was named", file=expected.name
        )
    return data
