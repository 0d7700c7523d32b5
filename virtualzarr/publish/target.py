"""Files that appear whole or not at all: a local path or a URL that fsspec opens."""

from __future__ import annotations

import hashlib
import os
import secrets
import tempfile
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Self

from virtualzarr.errors import PublishError
from virtualzarr.stores.files import filesystem, is_url


class Target:
    """A file written beside its place and put there when all of it is on the disk.

    Parameters
    ----------
    uri : str
        An absolute local path, or a URL.
    storage_options : mapping, optional
        How fsspec opens the URL.
    digest : bool
        Whether `digest` will be asked for.

    Examples
    --------
    >>> with Target("/tmp/virtualzarr-doctest.json") as target:
    ...     target.write(b"{}")
    ...     target.commit()
    >>> open("/tmp/virtualzarr-doctest.json").read()
    '{}'
    """

    def __init__(
        self,
        uri: str,
        storage_options: Mapping[str, Any] | None = None,
        *,
        digest: bool = False,
    ) -> None:
        self.uri = uri
        self.nbytes = 0
        self._storage_options = storage_options
        self._digest = hashlib.sha256() if digest else None
        self._file: BinaryIO | None = None

    def __enter__(self) -> Self:
        folder = tempfile.gettempdir() if is_url(self.uri) else os.path.dirname(self.uri)
        self._temporary = os.path.join(folder, f".{secrets.token_hex(8)}.part")
        try:
            self._file = open(self._temporary, "xb")
        except OSError as error:
            raise PublishError(f"cannot write here: {error.strerror}", file=self.uri) from error
        return self

    def write(self, data: bytes) -> None:
        """Append bytes."""
        assert self._file is not None
        self._file.write(data)
        if self._digest is not None:
            self._digest.update(data)
        self.nbytes += len(data)

    @property
    def digest(self) -> str:
        """What was written so far, as 16 hexadecimal digits."""
        assert self._digest is not None
        return self._digest.hexdigest()[:16]

    def commit(self, uri: str | None = None) -> None:
        """Put the file in its place, or in another in the same folder."""
        assert self._file is not None
        self.uri = uri or self.uri
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        self._file = None
        if is_url(self.uri):
            self._upload()
        else:
            os.replace(self._temporary, self.uri)
            _sync_folder(os.path.dirname(self.uri))

    def _upload(self) -> None:
        fs, path = filesystem(self.uri, self._storage_options)
        try:
            fs.makedirs(fs._parent(path), exist_ok=True)
            fs.put_file(self._temporary, path)
        except (OSError, NotImplementedError) as error:
            raise PublishError(f"cannot write here: {error}", file=self.uri) from error

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._file is not None:
            self._file.close()
        Path(self._temporary).unlink(missing_ok=True)


def _sync_folder(folder: str) -> None:
    """Make the new name itself durable, where folders can be opened."""
    try:
        descriptor = os.open(folder, os.O_RDONLY)
    except OSError:
        return
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
