"""Redaction: texts for people without the passwords and signatures that URLs in them have.

The one place that says which parameters of a query are secrets: for what is shown, published, and
noted in ledgers.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from functools import lru_cache
from itertools import pairwise
from typing import Any
from urllib.parse import unquote

from virtualzarr.url_logins import find_logins

_WORDS = frozenset(
    ["token", "sig", "signature", "secret", "password", "passwd", "pwd", "passphrase", "apikey",
     "auth", "authorization", "credential", "credentials", "jwt", "bearer", "sas", "hdnea", "hdnts"]
)  # fmt: skip
"""Parts of names whose values are secrets."""

_PAIRS = frozenset(
    [("api", "key"), ("access", "key"), ("subscription", "key"), ("secret", "key"),
     ("private", "key"), ("account", "key"), ("access", "id")]
)  # fmt: skip
"""Parts of names that make secrets where one follows the other."""

_ENDS = (
    "token", "signature", "urlsig", "secret", "password", "passwd", "apikey", "accesskey",
    "accesskeyid", "accessid", "secretkey", "privatekey", "accountkey", "subscriptionkey",
    "credential", "credentials", "authorization", "authkey",
)  # fmt: skip
"""What names of secrets end with that are written in one."""

_OFTEN = frozenset(["key", "code"])
"""Names of logins at some services, and of what is asked for at others."""

_BESIDE = re.compile(
    r"(x-(amz|goog|oss)-.*|q-.*|s[eprtv]|spr|sk[toesv]*|expires|policy|key-pair-id|ossaccesskeyid)",
    re.IGNORECASE,
)
"""Names that are part of a signature where there is one, and change with it."""

_SCHEMES = frozenset(["basic", "bearer", "digest", "negotiate", "token"])
"""First words of logins in headers, which are no secrets."""

_SHORTEST = 4
"""Characters of a secret that is looked for in texts: shorter ones are in any."""

_UNMISTAKABLE = 8
"""Characters of a secret that is looked for within words, too."""

_PLAIN = re.compile(r"[A-Za-z0-9]+")
_BACKSLASH = r"(?:\\|%(?:25)*+5[cC])"
_BACKSLASHES = re.compile(_BACKSLASH + "{64,}+")

_URL = re.compile(r"[a-z][a-z0-9+.-]*://", re.IGNORECASE)
_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
# Also within a URL that another one has in it, escaped once or more often, or not at all.
_COLON, _SLASH = (rf"%(?:25)*+(?:{code})" for code in ("3[aA]", "2[fF]"))
_MARK = r"%(?:25)*+(?:3[bBfF]|2[36])"
_EQUALS = r"%(?:25)*+3[dD]"
_INNER = re.compile(rf"(?:{_COLON}(?:{_SLASH}|/){{1,2}}|:{_SLASH}(?:{_SLASH}|/)?|://)")
_NAME = re.compile(rf"(?:[?&;#]|{_MARK})((?:(?!{_MARK}|{_EQUALS})[^=&;?#\s])+)(?:=|{_EQUALS})")
_NESTED = re.compile(
    rf"{_MARK}((?:(?!{_MARK}|{_EQUALS})[^=&;?#\s])+)(?:=|{_EQUALS})(?:(?!{_MARK})[^&#])*"
)
_ESCAPED_PERCENT = re.compile(r"%(?:25)+")
_URL_VALUE = re.compile(r"[^&#]*")
_TEXT_VALUE = re.compile(r"[^&#\s\"<>]*")
# Within another URL, which may have a query of its own.
_INNER_VALUES = {_URL_VALUE: re.compile(r"[^&#?]*"), _TEXT_VALUE: re.compile(r"[^&#?\s\"<>]*")}


def hide_secrets(text: str) -> str:
    """Return a text without the logins and signatures of URLs in it.

    A value in a text ends before a blank or a quotation mark; of a URL, `hide_in_url` knows more.

    Examples
    --------
    >>> hide_secrets("cannot open https://me:secret@host/a.nc?x=1&sig=ab%2F [variable b]")
    'cannot open https://***@host/a.nc?x=1&sig=*** [variable b]'
    >>> hide_secrets("az://container@account/a.nc"), hide_secrets("ftp://me:secret@host/a.nc")
    ('az://container@account/a.nc', 'ftp://me:***@host/a.nc')
    """
    return _hide_values(_hide_logins(text), _TEXT_VALUE)


def hide_in_url(url: str) -> str:
    """Return a URL without its login and signature.

    Examples
    --------
    >>> hide_in_url("https://me:a@b c@host/a.nc?accessToken=a b'c&x=1")
    'https://***@host/a.nc?accessToken=***&x=1'
    """
    return _hide_values(_hide_logins(url), _URL_VALUE)


def hide_in_json(value: Any) -> Any:
    """Return a JSON value whose texts are without logins and signatures.

    Examples
    --------
    >>> hide_in_json({"files": ("https://me:a@host/b.nc", 1)})
    {'files': ['https://***@host/b.nc', 1]}
    """
    if isinstance(value, str):
        return hide_in_url(value) if _URL.match(value) else hide_secrets(value)
    if isinstance(value, Mapping):
        return {key: hide_in_json(each) for key, each in value.items()}
    return [*map(hide_in_json, value)] if isinstance(value, list | tuple) else value


def find_secrets(options: Mapping[str, Any], url: str = "") -> frozenset[str]:
    """Return the secrets of options and of a URL, in the forms in which a server may repeat them.

    Examples
    --------
    >>> found = find_secrets({"headers": {"Authorization": "Bearer abcd"}, "anon": "none"})
    >>> sorted(found)
    ['Bearer abcd', 'abcd']
    """
    values = {*_find_in_url(url)}
    for name, value in options.items():
        if name in ("headers", "cookies") and isinstance(value, Mapping):
            values.update(form for text in value.values() for form in _forms_of_header(str(text)))
        elif isinstance(value, Mapping):
            values |= find_secrets(value)
        elif _is_hidden(str(name)) and isinstance(value, tuple) and len(value) > 1:
            values.update(_forms_of_login(*map(str, value[:2])))  # `aiohttp.BasicAuth`
        elif _is_hidden(str(name)) and isinstance(value, str):
            values |= {value, *_find_in_url(f"?{value.removeprefix('?')}")}
    return frozenset(text for text in values if len(text) >= _SHORTEST)


def hide_known(text: str, secrets: Iterable[str]) -> str:
    """Return a text in which asterisks stand for secrets that are known, however they are escaped.

    Examples
    --------
    >>> hide_known("no rights for Bearer ab/d (Bearer%20ab%252fd)", ["ab/d", "Bearer ab/d"])
    'no rights for *** (***)'
    """
    # A server may send very many, at each of which a search would begin that reads all that follow.
    text = _BACKSLASHES.sub(r"\\", text)
    # Of one with `&sig=` in it, our errors have hidden a part already.
    forms = {form for secret in secrets for form in (secret, hide_secrets(secret))}
    forms |= {decoded for form in forms if len(decoded := _decode(form)) >= _SHORTEST}
    for secret in sorted(forms, key=len, reverse=True):
        # However it is escaped, letters and digits are as they are.
        if max(_PLAIN.findall(secret), key=len, default="") in text:
            text = _as_pattern(secret).sub("***", text)
    return text


@lru_cache(maxsize=256)
def _as_pattern(secret: str) -> re.Pattern[str]:
    """Return what matches a secret, also as in a URL, within another one, or in a `repr`."""
    ends = ("", "") if len(secret) >= _UNMISTAKABLE else (r"(?<!\w)", r"(?!\w)")
    # However many there are, in the secret or in the text, they are one.
    parts = re.sub(r"\\+", r"\\", secret)
    return re.compile("".join(map(_escape, parts, [False, *[True] * len(parts)])).join(ends))


def _escape(char: str, may_be_escaped: bool) -> str:
    if char.isascii() and char.isalnum():
        return char
    if char == "\\":
        return rf"{_BACKSLASH}++"
    is_byte = "\udc80" <= char <= "\udcff"
    data = char.encode("utf-8", "surrogateescape" if is_byte else "surrogatepass")
    quoted = "".join(f"%(?:25)*{byte:02x}" for byte in data)
    plus = r"|\+" if char == " " else ""
    before = rf"{_BACKSLASH}*+" if may_be_escaped else ""
    return rf"{before}(?:{re.escape(char)}|(?i:{quoted}){plus})"


def _find_in_url(url: str) -> Iterator[str]:
    for login in find_logins(url):
        name, password = url[login.start : login.name_stop], url[login.password_start : login.stop]
        yield from (url[login.start : login.stop], password or name)
        for decode in (unquote, _decode):
            yield from _forms_of_login(decode(name), decode(password))
    for start, stop in _find_values(url, _is_secret):
        match = _URL_VALUE.match(url, stop)
        assert match is not None
        yield from (match[0], unquote(match[0]))
        if url[start] == "%":  # within another URL, where it may have been cut out of that
            yield re.split(_MARK, match[0], maxsplit=1)[0]


def _forms_of_login(name: str, password: str) -> Iterator[str]:
    login = f"{name}:{password}".encode("utf-8", "surrogateescape")
    yield from (password, base64.b64encode(login).decode())


def _forms_of_header(text: str) -> Iterator[str]:
    yield text
    scheme, _, rest = text.partition(" ")
    if scheme.lower() in _SCHEMES:
        yield rest
        with suppress(ValueError):
            yield base64.b64decode(rest, validate=True).decode().partition(":")[2]
    for cookie in text.split(";"):
        yield cookie.partition("=")[2].strip()


class HiddenRepr:
    """A dataclass whose representation has no logins and signatures of URLs in its fields."""

    def __repr__(self) -> str:
        members = (f"{name}={_hide_in_value(value)!r}" for name, value in vars(self).items())
        return f"{type(self).__name__}({', '.join(members)})"


def _hide_in_value(value: Any) -> Any:
    hidden = hide_in_json(value)
    return tuple(hidden) if isinstance(value, tuple) else hidden


def has_secrets(url: str) -> bool:
    """Tell whether a URL has a login or a signature, and not only what often is none.

    Examples
    --------
    >>> has_secrets("https://host/a.nc?X-Amz-Signature=ab"), has_secrets("https://host/a.nc?key=1")
    (True, False)
    """
    if not _holds_url(url):
        return False
    if next(find_logins(url), None) is not None:
        return True
    values = _find_values(url, _is_secret, is_chain=True) if _has_parameters(url) else ()
    return any(url[stop : stop + 1] not in ("", "&", "#") for _, stop in values)


def _holds_url(text: str) -> bool:
    """Tell whether a text is a URL, or one of fsspec's chains with one, escaped or not."""
    is_url = "://" in text or ("::" in text and _INNER.search(text) is not None)
    return is_url and not text.startswith("/")


def _has_parameters(text: str) -> bool:
    return "=" in text or "3D" in text or "3d" in text


def strip_secrets(url: str, *, keep_often: bool = False) -> str:
    """Return a URL without its login, and without what belongs to a signature.

    Parameters
    ----------
    keep_often : bool
        Whether to keep what is a secret at some services only.

    Examples
    --------
    >>> strip_secrets("https://me:secret@host/a.nc?version=2&X-Amz-Signature=ab&sig=c")
    'https://host/a.nc?version=2'
    >>> strip_secrets("https://proxy/?url=https%3A%2F%2Fhost%2Fa.nc%3Fsig%3Dab%26v%3D2")
    'https://proxy/?url=https%3A%2F%2Fhost%2Fa.nc%26v%3D2'
    """
    if not _holds_url(url):
        return url
    url = _strip_logins(url)
    if not _has_parameters(url):
        return url
    # Links of a chain of fsspec, each of which has its own.
    return "::".join(_strip_parameters(link, keep_often) for link in url.split("::"))


def _strip_parameters(url: str, keep_often: bool) -> str:
    is_signed = any(_find_values(url, _is_secret, is_chain=True))

    def is_kept(part: str) -> bool:
        names = [match[1] for match in _NAME.finditer(f"&{part}") if match[0][0] != "%"]
        if is_signed and any(map(_BESIDE.fullmatch, names)):
            return False
        return not any(map(_is_secret if keep_often else _is_hidden, names))

    # Of a URL within this one, all but the secrets tells which file it is.
    inner = _find_inner(url, is_chain=True)
    url = _NESTED.sub(
        lambda match: "" if match.start() > inner and not is_kept(f"{match[1]}=") else match[0], url
    )
    rest, mark, fragment = url.partition("#")
    base, query_mark, query = rest.partition("?")
    kept = "&".join(filter(is_kept, query.split("&")))
    end = f"{mark}{fragment}" if is_kept(fragment) else ""
    return f"{base}{query_mark if kept or not query else ''}{kept}{end}"


def _hide_logins(text: str) -> str:
    return _replace(text, ((login.secret_start, login.stop) for login in find_logins(text)), "***")


def _strip_logins(text: str) -> str:
    return _replace(
        text,
        (
            # Of one with a name that stays, the sign behind it does, too.
            (login.start, login.host_start) if login.is_web else (login.name_stop, login.stop)
            for login in find_logins(text)
        ),
        "",
    )


def _replace(text: str, spans: Iterable[tuple[int, int]], by: str) -> str:
    parts, at = list[str](), 0
    for start, stop in spans:
        parts += [text[at:start], by]
        at = stop
    return "".join([*parts, text[at:]])


def _hide_values(text: str, value: re.Pattern[str]) -> str:
    if not _has_parameters(text):
        return text
    spans, at = list[tuple[int, int]](), 0
    for start, stop in _find_values(text, _is_hidden):
        if start < at:
            continue
        match = (_INNER_VALUES[value] if text[start] == "%" else value).match(text, stop)
        assert match is not None
        secret = match[0]
        if value is _TEXT_VALUE:
            # What follows a URL in a sentence, or in brackets.
            secret = secret.rstrip("'`)]},.:;")
        if secret:
            at = stop + len(secret)
            spans.append((stop, at))
    return _replace(text, spans, "***")


def _find_values(
    text: str, is_wanted: Callable[[str], bool], *, is_chain: bool = False
) -> Iterator[tuple[int, int]]:
    """Yield where parameters begin, and where their values do."""
    inner = _find_inner(text, is_chain)
    for match in _NAME.finditer(text):
        if is_wanted(match[1]) and (text[match.start()] != "%" or match.start() > inner):
            yield match.span()


def _find_inner(text: str, is_chain: bool) -> int:
    """Return where a URL within another one begins: only in that, escapes are marks of a query.

    Parameters
    ----------
    is_chain : bool
        Whether it is one URL of fsspec, of which what follows ``::`` is no part of the others.
    """
    if "%" not in text:
        return len(text)
    outer = text.find("://", max(text.rfind("::"), 0) if is_chain else 0)
    match = _INNER.search(text, outer + 3 if outer >= 0 else 0)
    return len(text) if match is None else match.end()


@lru_cache(maxsize=1024)
def _is_hidden(name: str) -> bool:
    """Tell whether a parameter is not shown: it is a secret, or often is one."""
    return _is_secret(name) or _decode(name).lower() in _OFTEN


@lru_cache(maxsize=1024)
def _is_secret(name: str) -> bool:
    name = _decode(name)
    words = [word.lower() for word in _WORD.findall(name)]
    if not _WORDS.isdisjoint(words) or not _PAIRS.isdisjoint(pairwise(words)):
        return True
    return "".join(words).endswith(_ENDS)


def _decode(name: str) -> str:
    name = _ESCAPED_PERCENT.sub("%", name)  # at once: each round would take one of many
    while (plain := unquote(name, errors="surrogateescape")) != name:
        name = plain
    return name


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


def take_message(error: Exception) -> str:
    """Return what an error says of a text that cannot be read, and take the text out of the error.

    Errors that come of it have it as their cause, which trackers record: answers of servers may
    repeat credentials.

    Examples
    --------
    >>> error = json.JSONDecodeError("Expecting value", "secret", 0)
    >>> take_message(error), error.doc
    ('Expecting value: line 1 column 1 (char 0)', '')
    """
    message = str(error)
    if isinstance(error, json.JSONDecodeError):
        error.doc = ""
    elif isinstance(error, UnicodeDecodeError):
        error.object = b""
        error.args = (error.encoding, b"", error.start, error.end, error.reason)
    return message
