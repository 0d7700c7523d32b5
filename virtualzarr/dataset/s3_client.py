"""Client of S3: the connections, logins and options by which files there are read, too."""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from zlib import crc32

from virtualzarr.dataset.object_client import (
    ABSENT,
    ANY,
    ConditionError,
    Replaceable,
    refused,
    tag_of,
    unreachable,
)
from virtualzarr.errors import AccessError, SourceError, UnsupportedError
from virtualzarr.redaction import hide_known
from virtualzarr.stores.credential_providers import Credential
from virtualzarr.stores.credentials import advise_login, find_keyring, secrets_of
from virtualzarr.stores.fingerprints import as_source_error
from virtualzarr.stores.location import Location
from virtualzarr.stores.retry import TransientError
from virtualzarr.stores.s3 import (
    REDIRECTS,
    S3Transport,
    code_of,
    is_login_missing,
    is_refusal,
    status_of,
)
from virtualzarr.stores.transport import transport_for
from virtualzarr.stores.url_file_systems import filesystem

_DELETED_AT_ONCE = 1000
"""Names that one request may have (S3's API reference, DeleteObjects)."""


class S3Client:
    """Objects below a folder in a bucket; see `ObjectClient`.

    Through s3fs, which follows no redirects as it is used here: who does may send the token of a
    session to another host, and takes what that has for what the bucket has.

    Parameters
    ----------
    location : Location

    Raises
    ------
    UnsupportedError
        Its options make no sense.
    MissingDependencyError
        s3fs is not installed.
    """

    def __init__(self, location: Location) -> None:
        self._location = location.with_uri(location.uri.rstrip("/"))
        keyring = find_keyring(location.storage_options)
        self._provider = None if keyring is None else keyring.find(location.uri)
        self._files: S3Transport | None = None
        self._credential: Credential | None = None
        self.endpoint: str | None = self._connect()

    def __reduce__(self) -> tuple[Any, ...]:
        return S3Client, (self._location,)

    def _connect(self) -> str:
        """Return where the service is. No request is made yet, but for keys."""
        from botocore.exceptions import BotoCoreError

        try:
            transport = self._transport()
            try:
                return transport.connect()
            except (TypeError, ValueError, AttributeError) as error:
                options, uri = self._location.storage_options, self._location.uri
                problem = hide_known(str(error), secrets_of(options, uri))
                raise UnsupportedError(
                    f"these options are none to open S3 with: {problem}", file=uri
                ) from None
        except BotoCoreError as error:
            raise self.outcome(error, "").__cause__ or error from None

    def _transport(self) -> S3Transport:
        """Return what requests are made by, with the keys that there are now."""
        credential = None if self._provider is None else self._provider.get()
        if self._files is None or credential is not self._credential:
            fs, path = filesystem(self._location, credential)
            self._bucket, _, folder = path.partition("/")
            self._prefix = f"{folder}/" if folder else ""
            files = transport_for(fs, self._location)
            if not isinstance(files, S3Transport):
                raise UnsupportedError(
                    "datasets are read from S3 by s3fs alone, and a file system of one's own is "
                    "registered for it",
                    file=self._location.uri,
                )
            self._files, self._credential = files, credential
        return self._files

    def _send(self, method: str, **parameters: Any) -> Any:
        return self._transport().send_once(method, {"Bucket": self._bucket, **parameters})

    def get(self, name: str, byte_range: tuple[int, int] | None) -> tuple[bytes, str]:
        """Return an object, or some of its bytes, and its tag."""
        start, stop = byte_range or (0, None)
        path = f"{self._bucket}/{self._prefix}{name}"
        data, fingerprint = self._transport().fetch_once(path, start, stop)
        return data, _as_tag(fingerprint.etag) or "{}"

    def look(self, name: str) -> None:
        """Ask whether there is an object, without its bytes."""
        self._send("head_object", Key=self._prefix + name)

    def put(self, name: str, data: bytes, replaced: Replaceable) -> str | None:
        """Store an object, if it may take the place of what is there: its tag, if that is told."""
        conditions: dict[str, str] = {}
        if replaced == ABSENT:
            conditions["IfNoneMatch"] = "*"
        elif replaced != ANY:
            conditions["IfMatch"] = tag_of(replaced, f"{self._location.uri}/{name}")
        # Given here, it is a header: over HTTPS, botocore has it behind the bytes, which services
        # of other makers do not all understand.
        checksum = b64encode(crc32(data).to_bytes(4, "big")).decode()
        answer = self._send(
            "put_object", Key=self._prefix + name, Body=data, ChecksumCRC32=checksum, **conditions
        )
        return _as_tag(answer.get("ETag"))

    def list_objects(self) -> dict[str, int]:
        """Return the sizes of all objects by name."""
        start = len(self._prefix)
        return {
            item["Key"][start:]: item["Size"]
            for page in self._pages()
            for item in page.get("Contents", ())
        }

    def list_top(self) -> list[str]:
        """Return the names of what is right below the folder; those of folders end with a slash."""
        start = len(self._prefix)
        names = []
        for page in self._pages(Delimiter="/"):
            names += [folder["Prefix"] for folder in page.get("CommonPrefixes", ())]
            names += [item["Key"] for item in page.get("Contents", ())]
        return [name[start:] for name in names if name != self._prefix]

    def _pages(self, **parameters: str) -> Iterator[Mapping[str, Any]]:
        tokens = set()
        while True:
            page = self._send("list_objects_v2", Prefix=self._prefix, **parameters)
            yield page
            if not page.get("IsTruncated"):
                return
            parameters["ContinuationToken"] = token = page["NextContinuationToken"]
            if token in tokens:
                raise ConnectionError("the service shows the same part of a listing again")
            tokens.add(token)

    def delete(self, names: Sequence[str]) -> None:
        """Delete objects, a thousand by one request."""
        keys = [self._prefix + name for name in names]
        if len(keys) == 1:
            self._send("delete_object", Key=keys[0])
            return
        for first in range(0, len(keys), _DELETED_AT_ONCE):
            some = keys[first : first + _DELETED_AT_ONCE]
            objects = [{"Key": key} for key in some]
            answer = self._send("delete_objects", Delete={"Objects": objects, "Quiet": False})
            gone = {each.get("Key") for each in answer.get("Deleted", ())}
            for problem in answer.get("Errors", ()):
                if problem.get("Code") not in ("NoSuchKey", "404"):
                    raise _NotDeletedError(problem)
                gone.add(problem.get("Key"))
            # Some services name none, or in another way.
            if any(self._is_there(key) for key in some if key not in gone):
                raise ConnectionError("the service says that it has deleted what is still there")

    def _is_there(self, key: str) -> bool:
        try:
            self._send("head_object", Key=key)
        except FileNotFoundError:
            return False
        return True

    def outcome(self, error: Exception, name: str) -> Exception:
        """Return what an error means; see `ObjectClient`."""
        from botocore.exceptions import BotoCoreError

        if isinstance(error, AccessError):  # which is an OSError, too
            return error
        if not isinstance(
            error, OSError | BotoCoreError | SourceError | TransientError | _NotDeletedError
        ):
            return error
        options, file = self._location.storage_options, f"{self._location.uri}/{name}"
        status, problem = status_of(error), _describe(error)
        problem = hide_known(problem, secrets_of(options, file))
        if status == 404 or isinstance(error, FileNotFoundError):
            return FileNotFoundError(problem)
        if status == 412:
            return ConditionError(problem)
        if is_login_missing(error) or is_refusal(error):
            advice = advise_login(self._provider, f"s3://{self._bucket}", options=options)
            return refused(f"{problem}: {advice}", file)
        if status in REDIRECTS or getattr(error, "code", None) == "AccessDenied":
            return refused(problem, file)
        outcome = unreachable(problem, file)
        outcome.retry_after = error.retry_after if isinstance(error, TransientError) else 0.0
        return outcome


class _NotDeletedError(Exception):
    """An object could not be deleted, by an answer about many: code and message."""

    def __init__(self, problem: Mapping[str, str]) -> None:
        self.code = problem.get("Code") or "no code"
        super().__init__(f"{self.code}: {problem.get('Message') or 'it was not deleted'}")


def _describe(error: Exception) -> str:
    """Return what went wrong in one line, with what the service calls it."""
    failure = error.error if isinstance(error, TransientError) else error
    status, code = status_of(error), code_of(error)
    message = " ".join(as_source_error(failure, "").message.split())
    if status is None or str(status) in message:
        return message
    named = "" if code in (None, str(status)) or code in message else f" {code}"
    return f"the service answered {status}{named}: {message}"


def _as_tag(etag: str | None) -> str | None:
    return json.dumps({"e_tag": etag}) if etag else None
