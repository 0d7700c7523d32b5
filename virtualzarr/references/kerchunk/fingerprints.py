"""Fingerprints of sources in reference files: size, date, entity tag and digest when scanned."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from virtualzarr.errors import PublishError
from virtualzarr.manifest import Source
from virtualzarr.stores.files import Fingerprint

_MEMBERS = {"sizes": "size", "mtimes": "mtime_ns", "etags": "etag", "digests": "digest"}

_NOTHING = Fingerprint(None)
"""What is known of a source that no fingerprint is noted of."""


class Fingerprints:
    """The fingerprints of source files, by URL as the references have it.

    Parameters
    ----------
    document : mapping, optional
        The member `virtualzarr` of a reference file: `sizes` in bytes, `mtimes` in nanoseconds,
        `etags`, and `digests` of samples, each by URL.

    Examples
    --------
    >>> Fingerprints({"sizes": {"a.nc": 10}, "etags": {"a.nc": "x", "b.nc": 7}}).of("a.nc")
    Fingerprint(size=10, mtime_ns=None, etag='x', not_after_ns=None)
    """

    def __init__(self, document: Mapping[str, Any] | None = None) -> None:
        parts = ((document or {}).get(name) for name in _MEMBERS)
        self._parts = [part if isinstance(part, Mapping) else {} for part in parts]
        self._is_empty = not any(self._parts)

    def of(self, uri: str) -> Fingerprint:
        """Return what is known of a source; what has a wrong type is not."""
        if self._is_empty:
            return _NOTHING
        size, mtime, etag, _ = (part.get(uri) for part in self._parts)
        return Fingerprint(_number(size), _number(mtime), etag if isinstance(etag, str) else None)

    def digest_of(self, uri: str) -> str | None:
        """Return the digest of samples of a source, if one was noted."""
        digest = self._parts[-1].get(uri)
        return digest if isinstance(digest, str) else None

    @staticmethod
    def document(sources: Iterable[Source]) -> dict[str, dict[str, Any]]:
        """Return the fingerprints of sources as a reference file has them.

        Raises
        ------
        PublishError
            Two versions of a file are referred to: a reference file notes one of each.

        Examples
        --------
        >>> Fingerprints.document([Source("a.nc", size=10), Source.inline(b"")])
        {'sizes': {'a.nc': 10}}
        """
        files = sorted({s for s in sources if not s.is_inline}, key=lambda source: source.uri)
        parts: dict[str, dict[str, Any]] = {name: {} for name in _MEMBERS}
        for name, field in _MEMBERS.items():
            for source in files:
                value = getattr(source, field)
                if value is not None and parts[name].setdefault(source.uri, value) != value:
                    raise PublishError(
                        "two versions of the file are referred to, of which this form can note "
                        "one only: publish in the native form, or scan the file again",
                        file=source.uri,
                    )
        return {name: part for name, part in parts.items() if part or name == "sizes"}


def _number(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None
