"""Paths and URLs: parsing, containment, and the host that a URL asks."""

from __future__ import annotations

import os
import re
from contextlib import suppress
from ipaddress import IPv6Address
from pathlib import Path, PurePath
from typing import Any
from urllib.parse import SplitResult, quote, unquote, urlsplit

from virtualzarr.errors import SourceNotFoundError, UnsupportedError

ANYWHERE = "*"

_BUCKETS = frozenset(["s3", "s3a", "gs", "gcs", "oci", "oss", "obs", "cos", "hf", "memory"])
"""Protocols whose URLs name a bucket where others name a host: the service is always the same."""

_AZURE = frozenset(["az", "abfs", "abfss"])
_ADDRESS = re.compile(
    r"((?:\A|::)[A-Za-z][A-Za-z0-9+.-]*://(?:[^/?#@\[]*@)?)\[([0-9a-fA-F:.]+)\](?=[:/?#]|\Z)"
)
_COLLAPSED = re.compile(
    r"(?:.*::)?(?:https?|ftps?|sftp|s3a?|gcs|gs|az|abfss?|memory|hf|webdavs?|hdfs):/(?!/)",
    re.IGNORECASE | re.DOTALL,
)
_ARCHIVES = ("zip://", "tar://")
_PORTS = {"http": 80, "https": 443, "ftp": 21, "sftp": 22}


_O_PATH: int = getattr(os, "O_PATH", 0)
_CACHES = frozenset(["simplecache", "filecache", "blockcache", "cached"])


def is_url(uri: str) -> bool:
    """Tell whether a text begins with a protocol, as fsspec understands it.

    Examples
    --------
    >>> is_url("s3://bucket/a.nc"), is_url("zip://a.nc::b.zip"), is_url("/data/run::2/a.nc")
    (True, True, False)
    """
    return ("://" in uri or "::" in uri) and not uri.startswith(("/", "./", "../"))


def resolve_uri(path_or_url: Any) -> str:
    """Return a URL as it is and a local path (or ``file://`` URL) as an absolute path.

    What follows ``file://`` is taken literally, as fsspec does: ``%20`` is not a blank. A path is
    without ``..``, so that a file has the same name from wherever it is named, unless a link before
    it leads elsewhere.

    Examples
    --------
    >>> resolve_uri("s3://bucket/a.nc"), resolve_uri("file:///tmp/a.nc")
    ('s3://bucket/a.nc', '/tmp/a.nc')
    """
    text = os.fspath(path_or_url)
    if not isinstance(text, str):
        raise TypeError(f"a path or URL is text, not {type(text).__name__}")
    if "\0" in text:
        raise SourceNotFoundError("no path or URL holds a NUL character", file=ascii(text))
    for prefix in ("file://", "local://"):
        if text.startswith(prefix):
            text = text.removeprefix(prefix)
    if "[" in text:
        text = expand_address(text)
    if _is_plain(text):
        return text  # as pathlib would return it, which takes ten times as long
    members, archive = split_archives(text)
    if members and archive and not is_url(archive) and not archive.startswith("~"):
        return members + resolve_uri(archive)  # "~" is a home to fsspec
    local = isinstance(path_or_url, PurePath) or not is_url(text) or is_file_name(text)
    if _COLLAPSED.match(text) and not os.path.exists(text.partition("/")[0]):
        raise UnsupportedError(
            "this is a URL with one slash where it needs two, as path objects leave it: give URLs "
            "as text",
            file=text,
        )
    return _without_parents(str(Path(text).absolute())) if local else text


def is_file_name(uri: str) -> bool:
    """Tell whether a text with two colons is the name of a file, and no chain of protocols.

    Examples
    --------
    >>> is_file_name("run::2.nc"), is_file_name("reference::a.json")
    (True, False)
    """
    from fsspec.registry import known_implementations, registry

    if "://" in uri or "::" not in uri:
        return False
    protocol = uri.partition("::")[0]
    return (protocol not in known_implementations and protocol not in registry) or (
        os.path.exists(uri)
    )


def expand_address(url: str) -> str:
    """Return a URL in which the address of a host has all its groups: ``::`` is that of a chain.

    Examples
    --------
    >>> expand_address("http://[::1]:80/a.nc")
    'http://[0000:0000:0000:0000:0000:0000:0000:0001]:80/a.nc'
    """

    def expand(match: re.Match[str]) -> str:
        with suppress(ValueError):
            return f"{match[1]}[{IPv6Address(match[2]).exploded}]"
        return match[0]

    return _ADDRESS.sub(expand, url)


def _without_parents(path: str) -> str:
    if f"{os.sep}.." not in path:
        return path
    plain = os.path.normpath(path)
    return plain if os.path.realpath(plain) == os.path.realpath(path) else path


def _is_plain(text: str) -> bool:
    """Tell whether a text is an absolute path without empty parts, and without dots as parts."""
    has_others = any(part in text for part in ("//", "/./", "/..")) or text.endswith(("/", "/."))
    return os.sep == "/" and text.startswith("/") and not has_others


def origin_of(url: str) -> tuple[str, str, int | None]:
    """Return whom a URL asks: the protocol, the host, and the port.

    Buckets of one service are no hosts: all are asked of the same service.

    Examples
    --------
    >>> origin_of("https://Host.org:443/a.nc"), origin_of("s3://bucket/a.nc")
    (('https', 'host.org', 443), ('s3', '', None))
    """
    parts = parse_url(url.rpartition("::")[2])
    scheme = parts.scheme.lower()
    if scheme in _BUCKETS:
        return scheme, "", None
    if scheme in _AZURE:
        return scheme, parts.netloc.rpartition("@")[2].lower() if "@" in parts.netloc else "", None
    try:
        port = parts.port
    except ValueError:  # no number: equal to that of no other URL
        port = -1
    return scheme, (parts.hostname or "").lower(), port or _PORTS.get(scheme)


def parse_url(url: str) -> SplitResult:
    """Return the parts of a URL; `UnsupportedError` if its host is none."""
    with suppress(ValueError):
        return urlsplit(url)
    # Not chained, not even as context: what urllib says may be a part of a login.
    raise UnsupportedError("this is no URL: its host is in brackets, and no address", file=url)


def is_object_store(url: str) -> bool:
    """Tell whether a URL names an object in a bucket, where there are no folders to be made.

    Examples
    --------
    >>> is_object_store("s3://bucket/a.nc"), is_object_store("sftp://host/a.nc")
    (True, False)
    """
    scheme = url.rpartition("::")[2].partition("://")[0].lower()
    return scheme in (_BUCKETS | _AZURE) - {"memory"}


def without_query(uri: str) -> str:
    """Return the address that a redirect leads to without its query: signatures are there.

    Examples
    --------
    >>> without_query("https://host/a?sig=1#b")
    'https://host/a'
    """
    return uri.partition("#")[0].partition("?")[0]


def is_web(uri: str) -> bool:
    """Tell whether a URL is a web address, in which some characters of names are quoted."""
    return uri.lower().startswith(("http://", "https://"))


def is_cached(uri: str) -> bool:
    """Tell whether a chain of URLs leads through a cache of fsspec.

    Examples
    --------
    >>> is_cached("simplecache::s3://bucket/a"), is_cached("zip://a::s3://bucket/a.zip")
    (True, False)
    """
    return any(link.partition("://")[0] in _CACHES for link in uri.split("::"))


def protocol_of(uri: str) -> str:
    """Return the protocol of a URL, ``"file"`` of a local path.

    Examples
    --------
    >>> protocol_of("s3://bucket/a.nc"), protocol_of("/data/a.nc")
    ('s3', 'file')
    """
    return uri.partition("://")[0] if is_url(uri) else "file"


def from_name(name: str, folder: str) -> str:
    """Return a relative name as the end of a URL that begins as `folder` does.

    Names are as in a folder: they mean the same wherever the folder is copied to.

    Examples
    --------
    >>> from_name("a#1.nc", "https://host/data"), from_name("./x::y", "s3://bucket")
    ('a%231.nc', 'x::y')
    """
    name = name.removeprefix("./")
    return quote(name, errors="surrogateescape") if is_web(folder) else name


def to_name(end: str, folder: str) -> str | None:
    """Return what `from_name` makes the end of a URL, or of a path, of; None if it is no name.

    Examples
    --------
    >>> to_name("a%231.nc", "https://host"), to_name("x::y", "/data"), to_name("a?b", "https://host")
    ('a#1.nc', './x::y', None)
    """
    name = unquote(end, errors="surrogateescape") if is_web(folder) else end
    if ":" in name.partition("/")[0] or is_url(name):
        name = f"./{name}"
    return name if from_name(name, folder) == end else None


def split_archives(uri: str) -> tuple[str, str]:
    """Split a chain of URLs into what is within archives, and where the outermost archive is.

    Examples
    --------
    >>> split_archives("zip://a.nc::https://host/b.zip"), split_archives("s3://bucket/a.nc")
    (('zip://a.nc::', 'https://host/b.zip'), ('', 's3://bucket/a.nc'))
    """
    members, mark, archive = uri.rpartition("::")
    if not mark or not all(link.startswith(_ARCHIVES) for link in members.split("::")):
        return "", uri
    return members + mark, archive


def strip_members(uri: str) -> str:
    """Return the file that a URI reaches: of a member of an archive, the archive."""
    return split_archives(uri)[1]


def is_below(uri: str, prefix: str) -> bool:
    """Tell whether a URI is a prefix or lies below it, also after links and `..` are followed.

    Examples
    --------
    >>> is_below("https://host/data/a.nc", "https://host/data"), is_below("s3://a/b", "s3://a/c")
    (True, False)
    """
    if prefix == ANYWHERE:
        return True
    if not is_url(uri):
        # A real path, so that neither `..` nor a link leads out.
        return not is_url(prefix) and _starts(os.path.realpath(uri), prefix)
    # A server may take %2e%2e for .. and lead out of the prefix.
    plain = unquote(uri)
    if ".." in plain.replace("\\", "/").split("/") or uri.count("::") != prefix.count("::"):
        return False
    return is_url(prefix) and _starts(uri, prefix)


def _starts(text: str, prefix: str) -> bool:
    if not text.startswith(prefix):
        return False
    return len(text) == len(prefix) or prefix.endswith("/") or text[len(prefix)] == "/"


def resolve_links(uri: str) -> str:
    """Return the path of a local file without links, as they are now; other URIs as they are."""
    if is_url(uri):
        return uri
    if _O_PATH:  # by the system, in a sixth of the time
        try:
            descriptor = os.open(uri, _O_PATH | os.O_CLOEXEC)
        except OSError:  # reading it says what is wrong
            return os.path.realpath(uri)
        try:
            path = os.readlink(f"/proc/self/fd/{descriptor}")
        except OSError:
            path = ""
        finally:
            os.close(descriptor)
        if path.startswith("/") and not path.endswith(" (deleted)"):
            return path
    return os.path.realpath(uri)
