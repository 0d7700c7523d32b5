"""Reference documents parsed: regular members as columns, everything else as Python objects."""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from virtualzarr.config import config
from virtualzarr.errors import BadReferenceError, MissingDependencyError
from virtualzarr.redaction import take_message
from virtualzarr.references.kerchunk.bytescan import MARGIN, Text
from virtualzarr.references.kerchunk.compressed import GZIP, ZSTD
from virtualzarr.references.kerchunk.fingerprints import Fingerprints
from virtualzarr.references.kerchunk.members import (
    Members,
    Stretch,
    cut_out,
    find_members,
    find_styles,
)

_MOST_EXPANSION = 500


@dataclass
class Document:
    """What a reference file says.

    Attributes
    ----------
    text, members
        The regular members `"key":["uri",offset,length]` and the text they lie in; None when
        everything is in `others`.
    others : dict
        All other members by key: metadata, inline chunks, whole files, irregular references.
    templates, generators
        The blocks `templates` and `gen` of version 1.
    fingerprints : Fingerprints
        Of source files when they were scanned, where the file says so.
    relative : bool
        Whether the file says that its URLs are relative to where it lies.
    commits : tuple of str
        Ids of the last changes that several writers made, the newest last.
    receipt : mapping
        How it was published.
    beside : object
        Which template stands for the folder that it lies in.
    """

    text: Text | None = None
    members: Members | None = None
    others: dict[str, Any] = field(default_factory=dict)
    templates: dict[str, Any] = field(default_factory=dict)
    generators: list[Any] = field(default_factory=list)
    fingerprints: Fingerprints = field(default_factory=Fingerprints)
    relative: bool = False
    commits: tuple[str, ...] = ()
    receipt: Mapping[str, Any] = field(default_factory=dict)
    beside: object = None


def read_document(data: bytes | Mapping[str, Any]) -> Document:
    """Take a reference file apart.

    Raises `BadReferenceError` if it is no JSON object, repeats a key, or has a version other than 0
    or 1.

    Parameters
    ----------
    data : bytes or mapping
        The file's bytes (plain, or compressed with gzip or zstd), or the parsed document.
    """
    if isinstance(data, Mapping):
        return _from_object(data)
    data = _decompress(data)
    # Array operations are not worth it for less.
    minimum = config.tuning.json_vectorized_bytes + 2 * MARGIN
    document = _read_regular(data) if len(data) > minimum else None
    return document or _from_object(_loads(data))


def _read_regular(data: bytes) -> Document | None:
    """Read a document of mostly regular members, or return None."""
    styles = find_styles(data)
    parsed = find_members(text := Text(data), styles) if styles else None
    if parsed is None:
        return None
    members, following = parsed
    # The remainder is parsed by json, with a mark for each stretch; a mark that is not in the
    # references shows that its members were inside something else.
    for _ in range(3):
        cut = cut_out(data, members, following, most=1000 + len(members) // 8)
        if cut is None:
            return None
        remainder, stretches = cut
        document = _from_object(_loads(remainder))
        strays = [s for s in stretches if document.others.pop(s.mark, None) is None]
        if not strays:
            document.text, document.members = text, members
            return document
        # Members of something else than the references, say of an attribute: leave them there.
        keep = _all_but(strays, len(members))
        members, following = members[keep], following[keep]
        if not len(members):
            break
    return None


def _all_but(stretches: list[Stretch], count: int) -> np.ndarray:
    keep = np.ones(count, bool)
    for stretch in stretches:
        keep[stretch.first : stretch.last] = False
    return keep


def _from_object(document: Mapping[str, Any]) -> Document:
    """Sort out a parsed document by the version it has."""
    # Version 0 is the references alone, without a version; version 1 has them in `refs`
    # (kerchunk's specification).
    version = document.get("version")
    if version is None and not isinstance(document.get("refs"), dict):
        return Document(others=dict(document))
    # True equals 1 in Python, and 1.0 too: neither is a version.
    if version not in (None, 1) or isinstance(version, (bool, float)):
        raise BadReferenceError(f"unknown version {version!r} of reference files; known: 0 and 1")
    parts = {
        "refs": document.get("refs", {}),
        "templates": document.get("templates") or {},
        "gen": document.get("gen") or [],
        "virtualzarr": document.get("virtualzarr") or {},
    }
    for name, part in parts.items():
        if not isinstance(part, list if name == "gen" else Mapping):
            raise BadReferenceError(f"the member {name!r} is a {type(part).__name__}")
    return Document(
        others=dict(parts["refs"]),
        templates=dict(parts["templates"]),
        generators=list(parts["gen"]),
        fingerprints=Fingerprints(parts["virtualzarr"]),
        relative=parts["virtualzarr"].get("relative") is True,
        commits=_to_commits(parts["virtualzarr"].get("commits")),
        beside=parts["virtualzarr"].get("beside"),
        receipt=as_receipt(parts["virtualzarr"].get("receipt")),
    )


def as_receipt(value: Any) -> Mapping[str, Any]:
    """Return what a document says of its publication, if it says something."""
    return value if isinstance(value, Mapping) else {}


def _to_commits(value: Any) -> tuple[str, ...]:
    """Return the ids that a document has, if it has any: nobody reads by them."""
    return tuple(
        filter(lambda item: isinstance(item, str), value if isinstance(value, list) else [])
    )


def _loads(data: bytes) -> Mapping[str, Any]:
    try:
        document = json.loads(data, object_pairs_hook=_unique_members)
    except BadReferenceError:
        raise
    except RecursionError as error:
        raise BadReferenceError("the JSON is nested too deeply for a reference file") from error
    except ValueError as error:
        raise BadReferenceError(f"not a JSON document: {take_message(error)}") from error
    if not isinstance(document, dict):
        raise BadReferenceError(f"the document is a JSON {type(document).__name__}, not an object")
    return document


def _unique_members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) != len(pairs):
        seen: set[str] = set()
        repeated = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise BadReferenceError("the key stands in the document more than once", chunk=repeated)
    return members


def _decompress(data: bytes) -> bytes:
    """Undo gzip or zstd."""
    # Checked while decompressing, not after: a bomb must not take the memory first.
    most = max(config.limits.document_bytes, _MOST_EXPANSION * len(data))
    try:
        if data.startswith(GZIP):
            text = _ungzip(data, most + 1)
        elif data.startswith(ZSTD):
            text = _unzstd(data, most + 1)
        else:
            return data
    except zlib.error as error:
        raise BadReferenceError(f"the gzip data do not decompress: {error}") from error
    if len(text) > most:
        raise BadReferenceError(f"the reference file decompresses to more than {most} bytes")
    return text


def _ungzip(data: bytes, most: int) -> bytes:
    members: list[bytes] = []
    while data and most > 0:
        # 31 means gzip with a header; a file may have several members one after the other (RFC
        # 1952, section 2.2).
        engine = zlib.decompressobj(31)
        members.append(engine.decompress(data, most))
        most -= len(members[-1])
        data = engine.unused_data
        if not engine.eof and most > 0:
            raise zlib.error("they end early")
    return b"".join(members)


def _unzstd(data: bytes, most: int) -> bytes:
    try:
        import zstandard
    except ImportError as error:
        raise MissingDependencyError("the reference file is zstd; install zstandard") from error
    try:
        with zstandard.ZstdDecompressor(max_window_size=1 << 27).stream_reader(
            data, read_across_frames=True
        ) as stream:
            text: bytes = stream.read(most)
    except zstandard.ZstdError as error:
        raise BadReferenceError(f"the zstd data do not decompress: {error}") from error
    return text
