"""XML of DMR++ documents, parsed without trust and without an object for each chunk.

Nearly all of a large document are elements ``<dmrpp:chunk .../>`` that follow each other and are
written alike. Such runs are cut out first and become columns by array operations; the rest is
parsed as XML.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterator
from typing import Any
from xml.etree import ElementTree

import numpy as np
from numpy.typing import NDArray

from virtualzarr.errors import SourceError, UnsupportedError

MAX_BYTES = 1 << 30
"""Bytes of a document: some hundred million."""
MAX_DEPTH = 64
"""Groups within groups, structures and attributes included."""

Element = ElementTree.Element
_RUN = re.compile(rb"(?:<dmrpp:chunk\s[^<>/]*+/>\s*+){2,}+")
_XML_ATTRIBUTE = re.compile(rb'\s([\w:]+)="([^"]*)"')
_DIGITS = b"0123456789"
_DIGITS_ONLY = bytes(code if code in _DIGITS else 32 for code in range(256))
_MAX_NUMBER = 2**62
_COLUMNS = {b"offset", b"nBytes", b"chunkPositionInArray", b"fm"}


class Run:
    """Chunks that are written alike, one after another.

    Attributes
    ----------
    offset, length : int64 arrays
    position : int64 array, shape (chunks, axes), or None
        Of the first element of each chunk in the array.
    mask : int64 array or None
        Of the filters that a chunk did not go through.
    """

    def __init__(self, names: list[bytes], counts: list[int], numbers: NDArray[np.int64]) -> None:
        ends = np.cumsum(counts)
        columns = {
            name: numbers[:, end - count : end]
            for name, count, end in zip(names, counts, ends, strict=True)
        }
        self.offset, self.length = columns[b"offset"][:, 0], columns[b"nBytes"][:, 0]
        self.position = columns.get(b"chunkPositionInArray")
        self.mask = columns[b"fm"][:, 0] if b"fm" in columns else None


class Document:
    """A parsed document.

    Attributes
    ----------
    root : Element
    """

    def __init__(self, raw: bytes) -> None:
        if len(raw) > MAX_BYTES:
            raise UnsupportedError(f"a DMR++ document of {len(raw)} bytes")
        self._runs: list[Run] = []
        # Random, as it stands for chunks: a document must not be able to name a run itself.
        self._mark = f"run-{secrets.token_hex(8)}"
        remaining = _RUN.sub(self._cut, raw) if _is_ascii_compatible(raw) else raw
        self.root = _parse(remaining)
        if get_tag(self.root) != "Dataset":
            raise SourceError(f"the document is no DMR++, but {get_tag(self.root)!r}")

    def _cut(self, match: re.Match[bytes]) -> bytes:
        run = _parse_run(match[0])
        if run is None:
            return match[0]
        self._runs.append(run)
        return f'<dmrpp:chunk {self._mark}="{len(self._runs) - 1}"/>'.encode()

    def run(self, chunk: Element) -> Run | None:
        """Return the run that an element stands for, if it does for one."""
        number = chunk.get(self._mark)
        return None if number is None else self._runs[int(number)]


def _is_ascii_compatible(raw: bytes) -> bool:
    return b"\0" not in raw[:4] and raw[:2] not in (b"\xff\xfe", b"\xfe\xff")


def _parse_run(text: bytes) -> Run | None:
    """Return the chunks of a run, if all of them are written as the first one is."""
    first = text[: text.index(b"/>") + 2]
    members = _XML_ATTRIBUTE.findall(first)
    names = [name for name, _ in members]
    if not {b"offset", b"nBytes"} <= set(names) <= _COLUMNS or len(names) != len(set(names)):
        return None
    counts = [len(re.findall(rb"[0-9]+", value)) for _, value in members]
    count = text.count(b"<")
    # Without digits, elements that are written alike are equal: comparing with the first one,
    # repeated, checks all of them in one step. XML that differs in a blank goes the slow way.
    skeleton = text.rstrip().translate(None, _DIGITS)
    between = text[len(first) : text.index(b"<", len(first))].translate(None, _DIGITS)
    unit = first.translate(None, _DIGITS) + between
    if skeleton != unit * (count - 1) + unit[: len(unit) - len(between)]:
        return None
    if any(
        not re.fullmatch(rb"[0-9]+" if name != b"chunkPositionInArray" else rb"\[[0-9,]*\]", value)
        for name, value in members
    ):
        return None
    # All that is no digit becomes a blank, and numpy parses the whole run at once.
    numbers = np.fromstring(text.translate(_DIGITS_ONLY), np.int64, sep=" ")
    if (
        numbers.size != count * sum(counts) or numbers.max() > _MAX_NUMBER
    ):  # or it was cut off there
        return None
    return Run(names, counts, numbers.reshape(count, sum(counts)))


class _Builder(ElementTree.TreeBuilder):
    """Builds the tree; refuses declarations of entities, and elements too deep."""

    depth = 0

    def start(self, tag: Any, attrs: Any, /) -> Element:
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise SourceError(f"the document has more than {MAX_DEPTH} elements within each other")
        return super().start(tag, attrs)

    def end(self, tag: Any, /) -> Element:
        self.depth -= 1
        return super().end(tag)

    def doctype(self, name: str, pubid: str | None, system: str | None) -> None:
        raise UnsupportedError("DMR++ documents with a document type declaration")


def _parse(raw: bytes) -> Element:
    parser = ElementTree.XMLParser(target=_Builder())
    try:
        parser.feed(raw)
        root: Element = parser.close()
    except (ElementTree.ParseError, LookupError, ValueError) as error:
        raise SourceError(f"the document is no XML: {error}") from error
    return root


def get_tag(element: Element) -> str:
    """Return the name of an element without its namespace."""
    return str(element.tag).rpartition("}")[2]


def iter_children(element: Element, name: str) -> Iterator[Element]:
    """Yield the children of a name, in any namespace."""
    return (child for child in element if get_tag(child) == name)


def find_child(element: Element, name: str) -> Element | None:
    """Return the first child of a name, in any namespace."""
    return next(iter_children(element, name), None)


def get_attr(element: Element, name: str) -> str | None:
    """Return a member of an element, in any namespace."""
    value = element.get(name)
    if value is not None:
        return value
    return next((v for k, v in element.items() if k.rpartition("}")[2] == name), None)
