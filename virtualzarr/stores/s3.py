"""Objects of S3 and what speaks like it: every answer has an entity tag, which is passed on."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from virtualzarr.errors import SourceError
from virtualzarr.stores.fingerprints import Fingerprint, check_length, to_nanoseconds
from virtualzarr.stores.listing import Listings
from virtualzarr.stores.retry import TransientError, gather_ranges, retry

_SPAN = re.compile(r"bytes (\d+)-(\d+)/(\d+)$")


class S3Transport(Listings):
    """Objects of S3, asked for through s3fs, which repeats requests that fail before the body.

    Parameters
    ----------
    fs : s3fs.S3FileSystem
    """

    def fetch(
        self, path: str, start: int, stop: int | None, limit: int | None = None
    ) -> tuple[bytes, Fingerprint]:
        """Return bytes of an object; see `Transport`."""
        result: tuple[bytes, Fingerprint] = self._run(self._fetch, path, start, stop, limit)
        return result

    def fetch_many(
        self, path: str, ranges: Sequence[tuple[int, int]]
    ) -> list[tuple[bytes, Fingerprint]]:
        """Return several ranges of an object, requested side by side."""

        def fetch(start: int, stop: int) -> Awaitable[tuple[bytes, Fingerprint]]:
            return self._fetch(path, start, stop, None)

        result: list[tuple[bytes, Fingerprint]] = self._run(gather_ranges, fetch, ranges)
        return result

    def fingerprint(self, path: str) -> Fingerprint:
        """Return an object's size and entity tag."""
        found: Fingerprint = self._run(self._fingerprint, path)
        return found

    def _run(self, work: Callable[..., Awaitable[Any]], *values: Any) -> Any:
        from fsspec.asyn import sync

        return sync(self._fs.loop, work, *values)

    def _place(self, path: str) -> dict[str, str]:
        bucket, key, version = self._fs.split_path(path)
        if not key:
            raise IsADirectoryError(21, "it is a bucket, not an object")
        place = {"Bucket": bucket, "Key": key}
        return place | {"VersionId": version} if version else place

    async def _fingerprint(self, path: str) -> Fingerprint:
        found = await self._fs._call_s3("head_object", **self._place(path))
        return _fingerprint(found, found["ContentLength"])

    async def _fetch(
        self, path: str, start: int, stop: int | None, limit: int | None
    ) -> tuple[bytes, Fingerprint]:
        return await retry(lambda: self._attempt(path, start, stop, limit))

    async def _attempt(
        self, path: str, start: int, stop: int | None, limit: int | None
    ) -> tuple[bytes, Fingerprint]:
        asked = self._place(path)
        if start or stop is not None:
            last = "" if stop is None else stop - 1
            asked["Range"] = f"bytes={start}" if start < 0 else f"bytes={start}-{last}"
        answer = await self._fs._call_s3("get_object", **asked)
        body, length = answer["Body"], answer["ContentLength"]
        try:
            size = _size_of(answer, start, stop) if "Range" in asked else length
            check_length(path, length, limit)
            data = await _read(body, length)
        finally:
            body.close()
        return data, _fingerprint(answer, size)


def _fingerprint(answer: Any, size: int) -> Fingerprint:
    return Fingerprint(size, to_nanoseconds(answer.get("LastModified")), answer.get("ETag") or None)


async def _read(body: Any, length: int) -> bytes:
    import aiohttp
    from botocore.exceptions import HTTPClientError, IncompleteReadError, ResponseStreamingError

    cut = (HTTPClientError, IncompleteReadError, ResponseStreamingError, aiohttp.ClientError)
    try:
        data: bytes = await body.read()
    except (*cut, OSError) as error:
        named = SourceError(f"the answer was cut off: {error}")
        named.__cause__ = error
        raise TransientError(named) from error
    if len(data) != length:
        raise TransientError(SourceError(f"{length} bytes were announced and {len(data)} came"))
    return data


def _size_of(answer: Any, start: int, stop: int | None) -> int:
    """Return the size of an object by an answer with a part of it, which must be the right one."""
    found = _SPAN.match(answer.get("ContentRange", ""))
    if found is None:
        raise SourceError("the store does not understand byte ranges")
    begin, end, size = int(found[1]), int(found[2]) + 1, int(found[3])
    right = (max(size + start, 0), size) if start < 0 else (start, min(stop or size, size))
    if (begin, end) != right:
        raise SourceError(f"bytes {right[0]} to {right[1]} were asked for, {begin} to {end} came")
    return size
