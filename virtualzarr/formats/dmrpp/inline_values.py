"""Inline values of DMR++ documents."""

from __future__ import annotations

import base64
import binascii
import zlib

from virtualzarr.config import config
from virtualzarr.errors import SourceError
from virtualzarr.formats.dmrpp.document import Element, get_attr, iter_children
from virtualzarr.formats.dmrpp.types import parse_int


def decode_base64(text: str | None) -> bytes:
    """Return bytes that are written as base64.

    Raises `SourceError` if they are not.
    """
    try:
        return base64.b64decode("".join((text or "").split()), validate=True)
    except (binascii.Error, ValueError) as error:
        raise SourceError(f"values in the document are no base64: {error}") from error


def list_texts(element: Element, most: int) -> list[str]:
    """Return the texts of a list, of which each may stand for several.

    Raises `SourceError` if they are more than `most`, or than `config.inline_bytes` allows, or
    damaged.
    """
    texts: list[str] = []
    for value in iter_children(element, "v"):
        text = value.text or ""
        size = get_attr(value, "s")
        if size is not None:
            text = _inflate(
                decode_base64(text), parse_int(size, "the size of a text", config.inline_bytes)
            )
        times = parse_int(get_attr(value, "c") or "1", "the number of equal texts")
        if len(texts) + times > min(most, config.inline_bytes // 8):
            raise SourceError(f"more than {most} texts, or too many to keep in the manifest")
        texts += [text] * times
    return texts


def _inflate(raw: bytes, size: int) -> str:
    stream = zlib.decompressobj()
    try:
        text = stream.decompress(raw, size + 1)
    except zlib.error as error:
        raise SourceError(f"a text in the document is no zlib stream: {error}") from error
    if len(text) != size:
        raise SourceError(f"a text in the document has not the {size} bytes that it should")
    return text.decode("utf-8", "replace")
