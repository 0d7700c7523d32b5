"""S3 transport: bytes of objects, each with the entity tag of the response they came in."""

from __future__ import annotations

import re
from typing import Any

from virtualzarr.errors import SourceError
from virtualzarr.stores.async_transport import AsyncTransport, range_header
from virtualzarr.stores.fingerprints import Fingerprint, check_length, to_nanoseconds
from virtualzarr.stores.retry import TransientError

_SPAN = re.compile(r"bytes (\d+)-(\d+)/(\d+)$")


class S3Transport(AsyncTransport):
    """Objects of S3, asked for through s3fs, which repeats requests that fail before the body.

    Parameters
    ----------
    fs : s3fs.S3FileSystem
    """

    knows_lengths = True

    def _parameters(self, path: str) -> dict[str, str]:
        bucket, key, version = self._fs.split_path(path)
        if not key:
            raise IsADirectoryError(21, "it is a bucket, not an object")
        parameters = {"Bucket": bucket, "Key": key}
        return parameters | {"VersionId": version} if version else parameters

    async def _take_fingerprint(self, path: str) -> Fingerprint:
        response = await self._fs._call_s3("head_object", **self._parameters(path))
        return _fingerprint(response, response["ContentLength"])

    async def _attempt(
        self, path: str, start: int, stop: int | None, limit: int | None
    ) -> tuple[bytes, Fingerprint]:
        parameters = self._parameters(path) | range_header(start, stop)
        # `cat_file` of s3fs returns bytes alone: the entity tag of this very response would be
        # lost, and a second request may be answered for a newer version.
        response = await self._fs._call_s3("get_object", **parameters)
        body, length = response["Body"], response["ContentLength"]
        try:
            size = _size_of(response, start, stop) if "Range" in parameters else length
            check_length(path, length, limit)
            data = await _read_body(body, length)
        finally:
            body.close()
        return data, _fingerprint(response, size)


def _fingerprint(response: Any, size: int) -> Fingerprint:
    mtime_ns = to_nanoseconds(response.get("LastModified"))
    return Fingerprint(size, mtime_ns, response.get("ETag") or None)


async def _read_body(body: Any, length: int) -> bytes:
    import aiohttp
    from botocore.exceptions import HTTPClientError, IncompleteReadError, ResponseStreamingError

    cut = (HTTPClientError, IncompleteReadError, ResponseStreamingError, aiohttp.ClientError)
    try:
        data: bytes = await body.read()
    except (*cut, OSError) as error:
        source_error = SourceError(f"the answer was cut off: {error}")
        source_error.__cause__ = error
        raise TransientError(source_error) from error
    if len(data) != length:
        raise TransientError(SourceError(f"{length} bytes were announced and {len(data)} came"))
    return data


def _size_of(response: Any, start: int, stop: int | None) -> int:
    """Return the size of an object by an answer with a part of it, which must be the right one."""
    match = _SPAN.match(response.get("ContentRange", ""))
    if match is None:
        raise SourceError("the store does not understand byte ranges")
    begin, end, size = int(match[1]), int(match[2]) + 1, int(match[3])
    # A range that begins in the object may end behind it; a suffix may be longer than it.
    expected = (max(size + start, 0), size) if start < 0 else (start, min(stop or size, size))
    if (begin, end) != expected:
        raise SourceError(
            f"bytes {expected[0]} to {expected[1]} were asked for, {begin} to {end} came"
        )
    return size
