"""The `numcodecs.base64` codec: bytes as text."""

from __future__ import annotations

import base64
import binascii

from virtualzarr.codecs.core.base import Buffer, BytesBytes, as_u1, as_view, nbytes_of


class Base64(BytesBytes):
    """Base64 text (RFC 4648)."""

    # In v3, no other package has a codec of this name.
    portable_formats = (2,)
    decoding_fields = ()

    def compute_encoded_size(self, size: int | None) -> int | None:
        """Return four characters for each three bytes begun."""
        return None if size is None else -(-size // 3) * 4

    def decode(self, data: Buffer, size: int | None, limit: int) -> Buffer:
        """Return the bytes, at most those allowed."""
        allowed = limit if size is None else size
        length = nbytes_of(data) // 4 * 3
        if length - 2 > allowed:
            raise self.size_error(length, allowed)
        try:
            return base64.b64decode(bytes(as_u1(data)), validate=True)
        except binascii.Error as error:
            raise self.error(f"the text is not base64 ({error})") from error

    def encode(self, data: Buffer) -> Buffer:
        """Return the text."""
        return base64.standard_b64encode(as_view(data))
