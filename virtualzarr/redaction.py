"""Redaction: texts for people without the passwords and signatures that URLs in them have."""

from __future__ import annotations

import re

_SECRETS = (
    "sig|signature|token|access_token|password|passwd|secret|api[_-]?key|subscription-key|"
    "x-amz-signature|x-amz-security-token|x-goog-signature"
)
_OFTEN_SECRETS = "key|auth|awsaccesskeyid|x-amz-credential|x-goog-credential"

_PASSWORD = re.compile(r"(://(?!anonymous:)[^/?#\s@:]*):[^/?#\s@]*@")
# A name alone is a container in Azure, and a login at a web server, often a token.
_LOGIN = re.compile(r"(https?://)[^/?#\s@]*@", re.IGNORECASE)
_VALUE = r"[^&\s\"'<>\[\]()]+"
_QUERY = re.compile(rf"([?&;](?:{_SECRETS}|{_OFTEN_SECRETS})=){_VALUE}", re.IGNORECASE)
_SIGNATURE = re.compile(rf"[?&;](?:{_SECRETS})={_VALUE}", re.IGNORECASE)


def hide_secrets(text: str) -> str:
    """Return a text without the logins and signatures of URLs in it.

    Examples
    --------
    >>> hide_secrets("cannot open https://me:secret@host/a.nc?x=1&sig=ab%2F [variable b]")
    'cannot open https://***@host/a.nc?x=1&sig=*** [variable b]'
    >>> hide_secrets("az://container@account/a.nc"), hide_secrets("ftp://me:secret@host/a.nc")
    ('az://container@account/a.nc', 'ftp://me:***@host/a.nc')
    """
    if "://" not in text:
        return text
    if "@" in text:
        text = _PASSWORD.sub(r"\1:***@", _LOGIN.sub(r"\1***@", text))
    return _QUERY.sub(r"\1***", text) if "?" in text else text


def has_secrets(url: str) -> bool:
    """Tell whether a URL has a login or a signature.

    Examples
    --------
    >>> has_secrets("https://host/a.nc?X-Amz-Signature=ab"), has_secrets("https://host/a.nc?x=1")
    (True, False)
    """
    has_login = "@" in url and (_LOGIN.search(url) or _PASSWORD.search(url))
    return bool(has_login or ("?" in url and _SIGNATURE.search(url)))


def escape_unprintable(text: str) -> str:
    r"""Return text of strangers for a terminal: what would act there, or hide, is escaped.

    Examples
    --------
    >>> print(escape_unprintable("a\x1b[2J\u202eb"))
    a\x1b[2J\u202eb
    """
    if text.isprintable():
        return text
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape").decode() for char in text
    )
