"""S3 transport: bytes of objects, each with the entity tag of the response they came in."""

from __future__ import annotations

import re
import sys
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import Any

from virtualzarr.errors import SourceError
from virtualzarr.stores.async_transport import AsyncTransport, range_header
from virtualzarr.stores.conditional import UNKNOWN_CODES, ConflictError, Replaced
from virtualzarr.stores.fingerprints import (
    Fingerprint,
    OutOfRangeError,
    as_source_error,
    check_length,
    to_nanoseconds,
)
from virtualzarr.stores.foreign_errors import is_nobody_there
from virtualzarr.stores.hedging import hedge_of, send_hedged
from virtualzarr.stores.request_window import RequestWindow, window_of
from virtualzarr.stores.retry import (
    BUSY_STATUSES,
    TRANSIENT_STATUSES,
    TransientError,
    parse_retry_after,
    retry,
)
from virtualzarr.stores.s3_sessions import share_models

_PART = 50 * 2**20  # bytes, as s3fs has it

_SPAN = re.compile(r"bytes (\d+)-(\d+)/(\d+)$")


_TRANSIENT_CODES = frozenset(["RequestTimeout", "SlowDown", "InternalError"])
"""Codes of errors that another attempt may not get, whatever the status is."""


_EXPIRED_CODES = frozenset(["ExpiredToken", "ExpiredTokenException", "TokenRefreshRequired", "400"])
"""Codes of errors by which S3 says, with status 400, that credentials are to be renewed.

The last is what botocore has for an answer without a body, as those to HEAD are: this may be why.
"""


REDIRECTS = (301, 302, 307, 308)
_ELSEWHERE = (
    "(the bucket is elsewhere, and where is not said: name its endpoint_url or region_name, in "
    "client_kwargs of storage_options)"
)


def is_refusal(error: Exception) -> bool:
    """Tell whether S3 refuses a request to the credentials that it was made with."""
    return status_of(error) in (401, 403) or code_of(error) in _EXPIRED_CODES


def is_login_missing(error: Exception) -> bool:
    """Tell whether botocore has found no credentials, or not all of them."""
    from botocore.exceptions import NoCredentialsError, PartialCredentialsError, ProfileNotFound

    kinds = NoCredentialsError, PartialCredentialsError, ProfileNotFound
    return isinstance(error, kinds) or isinstance(error.__cause__, kinds)


class S3Transport(AsyncTransport):
    """Objects of S3, asked for through s3fs.

    botocore and s3fs would repeat requests by clocks of their own, whatever `Retry-After` says.

    Parameters
    ----------
    fs : s3fs.S3FileSystem
    """

    knows_lengths = True

    def __init__(self, fs: Any) -> None:
        super().__init__(fs)
        self.has_conditions = True  # until the service says that it knows none
        # Options of nobody else: `filesystem` has added `without_own_retries` to them.
        fs.retries = 1
        # Options that make no sense are an error of the first request, as s3fs says it.
        with suppress(TypeError, AttributeError):
            from aiobotocore.session import AioSession

            session = fs.session or share_models(AioSession(**fs.kwargs))  # as s3fs makes it
            # Once for all transports of a file system: a handler is known by its identifier.
            for event, handler in _HANDLERS.items():
                session.register(event, handler, unique_id=f"{__name__}: {event}")
            fs.session = session

    def _parameters(self, path: str) -> dict[str, str]:
        bucket, key, version = self._fs.split_path(path)
        if not key:
            raise IsADirectoryError(21, "it is a bucket, not an object")
        parameters = {"Bucket": bucket, "Key": key}
        return parameters | {"VersionId": version} if version else parameters

    async def fingerprint_in_loop(self, path: str) -> Fingerprint:
        """Request what tells the version of an object."""

        async def head() -> Fingerprint:
            async with self._window.slot():
                response = await self._call("head_object", self._parameters(path))
            return _fingerprint(response, _length_of(response))

        return await retry(head)

    def connect(self) -> str:
        """Connect, which no request needs; return where the service is."""
        client = self._run(self._fs.set_session)
        return str(client.meta.endpoint_url)

    def send_once(self, method: str, parameters: Mapping[str, Any]) -> Any:
        """Make a request of another kind, and only one; raise `TransientError` as `fetch_once`."""

        async def send() -> Any:
            async with self._window.slot():
                return await self._call(method, parameters, is_hedged=False)

        return self._run(send)

    async def _attempt(
        self, path: str, start: int, stop: int | None, limit: int | None
    ) -> tuple[bytes, Fingerprint]:
        parameters = self._parameters(path) | range_header(start, stop)
        async with self._window.slot():
            # `cat_file` of s3fs returns bytes alone: the entity tag of this very response would be
            # lost, and a second request may be answered for a newer version.
            response = await self._call("get_object", parameters)
            body = response["Body"]
            try:
                length = _length_of(response)
                size = _size_of(response, start, stop) if "Range" in parameters else length
                check_length(path, length, limit)
                data = await _read_body(body, length)
            finally:
                body.close()
        return data, _fingerprint(response, size)

    @property
    def _window(self) -> RequestWindow:
        """What bounds the requests under way: `config.requests` alone, from the first one on."""
        return window_of(self._fs, first=sys.maxsize)

    async def _call(
        self, method: str, parameters: Mapping[str, Any], *, is_hedged: bool = True
    ) -> Any:
        hedge, window = hedge_of(self._fs), self._window

        def send() -> Awaitable[Any]:
            return self._fs._call_s3(method, **parameters)

        try:
            answer = await (send_hedged(hedge, send, _discard, window) if is_hedged else send())
            window.note_answer(keeps_open=True)
            return answer
        except Exception as error:
            transient, status = self.as_transient(error), status_of(error)
            is_busy = None if status is None else status in BUSY_STATUSES
            if is_busy is not None:
                seconds = 0.0 if transient is None else transient.retry_after
                window.note_answer(keeps_open=True, is_busy=is_busy, retry_after=seconds)
            if status in REDIRECTS:
                text = as_source_error(error, "").message
                raise SourceError(f"the service answered {status}: {text} {_ELSEWHERE}") from error
            if isinstance(error, FileNotFoundError) and status != 404:
                # s3fs looks at the code alone.
                raise SourceError(f"the service answered {status}: {error}") from error
            if status == 416:
                raise OutOfRangeError(as_source_error(error, "").message) from error
            if transient is None:
                raise
            hedge.note_busy()
            with window.note_failures(is_busy=False if _is_silence(error) else is_busy):
                raise transient from error

    def write(self, path: str, data: bytes, replaced: Replaced | None = None) -> None:
        """Store an object; only in the place of what may be replaced, if the service knows that."""
        if replaced is None or not self.has_conditions:
            super().write(path, data)
            return
        options: dict[str, Any] = {"Metadata": replaced.metadata}
        options |= {"IfNoneMatch": "*"} if replaced.tag is None else {"IfMatch": replaced.tag}
        try:
            # In one part, which conditions are for.
            self.fs.pipe_file(path, data, chunksize=max(_PART, len(data)), **options)
        except Exception as error:
            if _is_conflict(error, replaced):
                if not self._is_own(path, replaced):
                    raise ConflictError("somebody else wrote it meanwhile", file=path) from error
            elif _is_unknown(error):
                super().write(path, data)
                self.has_conditions = False
            else:
                raise

    def _is_own(self, path: str, replaced: Replaced) -> bool:
        """Tell whether an object is what was to be written: the answer to that may be lost."""
        try:
            head = self.fs.call_s3("head_object", **self._parameters(path))
        except FileNotFoundError:
            return False
        return replaced.is_own(head.get("Metadata") or {})

    def is_refusal(self, error: Exception) -> bool:
        """Tell whether other credentials may be accepted."""
        return is_refusal(error)

    def as_transient(self, error: Exception) -> TransientError | None:
        """Return what another attempt may put right, and when the service asks for it."""
        import aiohttp
        from botocore import exceptions

        if isinstance(error, SourceError):
            return None
        cause = error if error.__cause__ is None else error.__cause__
        if isinstance(cause, exceptions.ClientError):
            answer = cause.response.get("ResponseMetadata", {})
            code = cause.response.get("Error", {}).get("Code")
            if answer.get("HTTPStatusCode") in TRANSIENT_STATUSES or code in _TRANSIENT_CODES:
                seconds = parse_retry_after(answer.get("HTTPHeaders", {}).get("retry-after"))
                status = answer.get("HTTPStatusCode")
                return TransientError(as_source_error(error, ""), seconds, status=status)
            return None
        is_lasting = isinstance(cause, exceptions.SSLError)
        if isinstance(cause, exceptions.EndpointConnectionError) and cause.__context__ is not None:
            # Said of connections that break, too.
            has_answered = self._window.answered > 0
            is_lasting = is_nobody_there(cause.__context__, has_answered=has_answered)
        broken = (
            exceptions.HTTPClientError, exceptions.EndpointConnectionError,
            exceptions.ConnectTimeoutError, aiohttp.ClientError, ConnectionError, TimeoutError,
        )  # fmt: skip
        # What breaks an answer is the cause of an exception that says so.
        is_broken = isinstance(cause, broken) or isinstance(error, broken)
        if is_broken and not is_lasting:
            return TransientError(as_source_error(error, ""), is_broken=True)
        return None


def _end_redirects(request_dict: Any, response: Any, **others: Any) -> None:
    """Let botocore not ask where a bucket is when this was asked already, and not answered.

    It asks by HEAD of the bucket, and again where that is redirected, too, without end. Amazon
    names the region then; not all services do.
    """
    answer = {} if response is None else response[1].get("ResponseMetadata", {})
    if "x-amz-bucket-region" not in answer.get("HTTPHeaders", {}):
        request_dict["context"].setdefault("s3_redirect", {})["redirected"] = True


def _check_page(http_response: Any, parsed: Mapping[str, Any], **others: Any) -> None:
    """Refuse a page of a listing that is none: the paginator of botocore would end there.

    Source: S3's API reference, ListObjectsV2: the elements of its response.
    """
    if http_response.status_code != 200:
        return
    if not parsed.keys() & {"IsTruncated", "KeyCount", "Name", "Contents", "CommonPrefixes"}:
        raise ConnectionError("the service answered a request for a listing without any")
    if parsed.get("IsTruncated") and not parsed.get("NextContinuationToken"):
        raise ConnectionError("the service said that more is listed, and not where")


_HANDLERS: dict[str, Callable[..., None]] = {
    "needs-retry.s3.HeadBucket": _end_redirects,
    "after-call.s3.ListObjectsV2": _check_page,
}


def _answer_of(error: Exception) -> Mapping[str, Any]:
    """Return what S3 answered, if an error is about an answer; nothing otherwise."""
    from botocore.exceptions import ClientError

    each: BaseException | None = error
    while each is not None and not isinstance(each, ClientError):
        each = each.__cause__
    return {} if each is None else each.response


def status_of(error: Exception) -> int | None:
    """Return the status by which S3 answered, if an error is about an answer."""
    status: int | None = _answer_of(error).get("ResponseMetadata", {}).get("HTTPStatusCode")
    return status


def code_of(error: Exception) -> str | None:
    """Return the code by which S3 named an error."""
    code: str | None = _answer_of(error).get("Error", {}).get("Code")
    return code


def _is_conflict(error: Exception, replaced: Replaced) -> bool:
    """Tell whether a service did not write what it was to write only if nobody else did.

    Source: S3's API reference, PutObject: errors of conditional writes.
    """
    is_gone = replaced.tag is not None and code_of(error) == "NoSuchKey"
    is_other = status_of(error) == 412 or code_of(error) == "ConditionalRequestConflict"
    return is_gone or is_other


def _is_unknown(error: Exception) -> bool:
    """Tell whether a service, or an old botocore, knows no conditions for what it writes."""
    from botocore.exceptions import ParamValidationError

    cause = error if error.__cause__ is None else error.__cause__
    is_refused = status_of(error) == 501 or code_of(error) in UNKNOWN_CODES
    return is_refused or isinstance(cause, ParamValidationError)


def _is_silence(error: Exception) -> bool:
    from botocore import exceptions

    cause = error if error.__cause__ is None else error.__cause__
    return isinstance(cause, exceptions.ReadTimeoutError | exceptions.ConnectTimeoutError)


def _length_of(response: Any) -> int:
    if "ContentLength" not in response:
        raise SourceError("the service does not say how many bytes there are")
    return int(response["ContentLength"])


def _fingerprint(response: Any, size: int) -> Fingerprint:
    mtime_ns = to_nanoseconds(response.get("LastModified"))
    return Fingerprint(size, mtime_ns, response.get("ETag") or None)


def _discard(response: Any) -> None:
    if "Body" in response:
        response["Body"].close()


async def _read_body(body: Any, length: int) -> bytes:
    import aiohttp
    from botocore.exceptions import HTTPClientError, IncompleteReadError, ResponseStreamingError

    cut = (HTTPClientError, IncompleteReadError, ResponseStreamingError, aiohttp.ClientError)
    try:
        data: bytes = await body.read()
    except (*cut, OSError) as error:
        source_error = SourceError(f"the answer was cut off: {error}")
        source_error.__cause__ = error
        raise TransientError(source_error, is_broken=True) from error
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
