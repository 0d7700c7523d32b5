"""Listings of archives: files of names, inventories of object stores, and documents of STAC."""

from __future__ import annotations

import csv
import gzip
import hashlib
import io
import json
import os
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, overload
from urllib.parse import unquote_plus

from virtualzarr.errors import SourceError, UnsupportedError, import_optional
from virtualzarr.ingest.stac_links import find_stac_assets, is_stac
from virtualzarr.ingest.versions import Version
from virtualzarr.keywords import strict_keywords
from virtualzarr.redaction import take_message
from virtualzarr.stores.files import is_url, open_file
from virtualzarr.stores.fingerprints import Fingerprint, to_nanoseconds
from virtualzarr.stores.location import Location

MAX_DOCUMENT_BYTES = 256 << 20
"""Documents and files of names are not larger than this."""

_MAX_NAME = 8192
# What S3, Google Cloud Storage, Azure and people call the same thing.
_COLUMNS = {
    "bucket": ("bucket", "container"),
    "key": ("key", "name"),
    "uri": ("uri", "url", "path", "file"),
    "size": ("size", "contentlength", "bytes"),
    "etag": ("etag",),
    "date": ("lastmodifieddate", "lastmodified", "updated", "modified"),
    "latest": ("islatest", "iscurrentversion"),
    "deleted": ("isdeletemarker", "deleted"),
}


class Listing(Sequence[str]):
    """Names of files, and what a listing says of their versions.

    Parameters
    ----------
    versions : mapping
        The version of each file by its name, None where nothing is said, and of local files. It
        is then not asked for: a million files cost no request.
    assets : iterable of str, optional
        Names or roles of the assets of STAC that they are, if some were chosen.

    Examples
    --------
    >>> Listing({"a.nc": None, "b.nc": None})[:1]
    ['a.nc']
    """

    def __init__(
        self, versions: Mapping[str, Version | None], assets: Iterable[str] | None = None
    ) -> None:
        self.versions = dict(versions)
        self.assets = None if assets is None else tuple(assets)
        self._names = list(self.versions)

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[str]: ...
    def __getitem__(self, index: int | slice) -> str | Sequence[str]:
        return self._names[index]

    def __len__(self) -> int:
        return len(self._names)

    def __repr__(self) -> str:
        return f"<Listing of {len(self):,} files>"


@strict_keywords()
def read_listing(
    path: str | os.PathLike[str],
    *,
    assets: str | Iterable[str] | None = None,
    storage_options: Mapping[str, Any] | None = None,
    allowed: str | Iterable[str] | None = None,
) -> Listing:
    """Read which files an archive has, instead of listing folders or buckets.

    Parameters
    ----------
    path : path or URL
        One of these:

        - text with a path or URL in each line; relative ones are beside it;
        - ``manifest.json`` of an S3 inventory, whose CSV or Parquet files are read, too;
        - CSV with names of columns in the first line, also compressed by gzip, or Parquet: ``uri``,
          or ``bucket`` and ``key``; and ``size``, ``etag``, ``last_modified``, as far as known;
        - an item, an item collection, a collection or a catalogue of STAC, whose links to items,
          children and next pages are followed.
    assets : str or iterable of str, optional
        Names or roles of assets of STAC; by default those with the role "data", or where an item
        has none, all that are no pictures and texts.
    storage_options : mapping, optional
        How URLs are opened.
    allowed : str or iterable of str, optional
        Places that a listing may name: see `virtualzarr.open`.

    Returns
    -------
    Listing
        For `survey`, `virtualize` and others that take paths.

    Raises
    ------
    SourceError
        It cannot be read, or is damaged.
    UnsupportedError
        It is of another kind, such as an inventory in ORC.

    Examples
    --------
    >>> _ = open("files.txt", "w").write("a.nc\\nb.nc\\n")
    >>> [os.path.basename(name) for name in read_listing("files.txt")]
    ['a.nc', 'b.nc']
    """
    places = None if allowed is None else [allowed] if isinstance(allowed, str) else list(allowed)
    location = Location.of(path, storage_options, allowed=places)
    name = location.uri.split("?")[0].lower()
    if name.endswith((".parquet", ".parq")):
        return Listing(dict(_list_rows(_read_parquet(location), location)))
    data = _read_whole(location)
    if name.endswith((".csv", ".csv.gz")):
        return Listing(dict(_list_rows(_read_csv(data, None, location), location)))
    # What is JSON has any name: services of STAC give theirs at URLs without an ending.
    if data.lstrip()[:1] == b"{":
        document = _parse_json(data, location)
        if "fileSchema" in document:
            return Listing(dict(_read_inventory(document, location)))
        if is_stac(document):
            chosen = [assets] if isinstance(assets, str) else assets
            chosen = None if chosen is None else sorted({*chosen})
            names = None if chosen is None else {*chosen}

            def fetch(uri: str) -> Any:
                at = location.locate(uri)
                return _parse_json(_read_whole(at), at)

            by_asset = dict(find_stac_assets(document, location, fetch, names))
            return Listing(by_asset, chosen)
        raise UnsupportedError(
            "the document is no inventory of S3, and nothing of STAC", file=location.uri
        )
    return Listing(dict(_read_names(data, location)))


def _read_whole(location: Location) -> bytes:
    return bytes(open_file(location).read(0, None, MAX_DOCUMENT_BYTES))


def _parse_json(data: bytes, location: Location) -> Any:
    try:
        document = json.loads(data)
    except (ValueError, RecursionError) as error:
        message = take_message(error)
        raise SourceError(f"the document is no JSON: {message}", file=location.uri) from error
    if not isinstance(document, dict):
        raise SourceError("the document is no JSON object", file=location.uri)
    return document


def _read_names(data: bytes, location: Location) -> Iterator[tuple[str, Version | None]]:
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        take_message(error)
        raise UnsupportedError("the listing is no text", file=location.uri) from error
    for number, line in enumerate(text.splitlines(), 1):
        if not line:
            continue
        if len(line) > _MAX_NAME or not line.isprintable():
            raise SourceError(f"line {number} is no path", file=location.uri)
        yield location.resolve_uri(line), None


# -- tables -------------------------------------------------------------------------------------

_Row = Mapping[str, Any]


def _list_rows(rows: Iterable[_Row], location: Location) -> Iterator[tuple[str, Version | None]]:
    """Yield name and version of each file of a table: the latest one, and none that is deleted."""
    names: dict[str, str] = {}
    for row in rows:
        if not names:
            names = _match_columns(row, location)
        value = {known: row.get(column) for known, column in names.items()}
        if _is_no(value.get("latest")) or _is_yes(value.get("deleted")):
            continue
        if value.get("uri"):
            uri = str(value["uri"])
        elif value.get("bucket") and value.get("key"):
            uri = f"s3://{value['bucket']}/{value['key']}"
        else:
            raise SourceError("a row names no file", file=location.uri)
        if uri.endswith("/"):
            continue  # a folder, as consoles make them
        uri = location.resolve_uri(uri)
        version = _version_of(value, location)
        # Local files have no tags, and listings round their dates: they are asked themselves.
        yield uri, version if is_url(uri) else None


def _match_columns(row: _Row, location: Location) -> dict[str, str]:
    plain = {name.lower().replace("_", "").replace("-", "").replace(" ", ""): name for name in row}
    names = {
        known: plain[alias]
        for known, aliases in _COLUMNS.items()
        for alias in aliases
        if alias in plain
    }
    if "uri" not in names and not {"bucket", "key"} <= names.keys():
        raise UnsupportedError(
            f"the table has no column uri, nor bucket and key, but {', '.join(row)}",
            file=location.uri,
        )
    return names


def _version_of(value: Mapping[str, Any], location: Location) -> Version | None:
    try:
        size = None if value.get("size") in (None, "") else int(value["size"])
    except ValueError as error:
        raise SourceError(f"{value['size']!r} is no size", file=location.uri) from error
    etag = value.get("etag") or None
    modified = to_nanoseconds(value.get("date"))
    if size is None or (etag is None and modified is None):
        return None
    return Version.of(Fingerprint(size, modified, None if etag is None else str(etag)))


def _is_no(value: Any) -> bool:
    return value is False or str(value).lower() == "false"


def _is_yes(value: Any) -> bool:
    return value is True or str(value).lower() == "true"


def _read_csv(data: bytes, names: Sequence[str] | None, location: Location) -> Iterator[_Row]:
    """Yield rows; names of columns are in the first one if they are not given."""
    raw: Any = io.BytesIO(data)
    if data[:2] == b"\x1f\x8b":
        raw = gzip.GzipFile(fileobj=raw)
    try:
        with io.TextIOWrapper(raw, encoding="utf-8-sig", newline="") as text:
            yield from csv.DictReader(text, names, strict=True)
    except (OSError, EOFError, zlib.error, UnicodeDecodeError, csv.Error) as error:
        message = take_message(error)
        raise SourceError(f"the table is damaged: {message}", file=location.uri) from error


def _read_parquet(location: Location) -> Iterator[_Row]:
    parquet: Any = import_optional(
        "pyarrow.parquet", "inventories in Parquet need pyarrow (pip install virtualzarr[parquet])"
    )
    pyarrow: Any = import_optional("pyarrow", "pyarrow")
    try:
        table = parquet.ParquetFile(
            io.BytesIO(_read_whole(location)) if location.is_remote else location.uri
        )
        for batch in table.iter_batches(4096):
            yield from batch.to_pylist()
    except (OSError, pyarrow.ArrowException) as error:
        raise SourceError(f"the table is damaged: {error}", file=location.uri) from error


# -- inventories of S3 --------------------------------------------------------------------------


def _read_inventory(
    manifest: Mapping[str, Any], location: Location
) -> Iterator[tuple[str, Version | None]]:
    """Yield what an inventory of S3 lists.

    Source: Amazon S3 User Guide, inventory list and manifest.
    """
    try:
        form, schema = manifest["fileFormat"], manifest["fileSchema"]
        files = [(entry["key"], entry.get("MD5checksum")) for entry in manifest["files"]]
    except (KeyError, TypeError, AttributeError) as error:
        text = "the manifest lacks its format, its schema or its files"
        raise SourceError(text, file=location.uri) from error
    if form not in ("CSV", "Parquet"):
        raise UnsupportedError(
            f"an inventory as {form}; CSV and Parquet are read", file=location.uri
        )
    for key, checksum in files:
        at = _locate_part(str(key), location)
        if checksum is not None:
            digest = hashlib.md5(_read_whole(at), usedforsecurity=False).hexdigest()
            if digest != checksum:
                raise SourceError("a part of the inventory has another checksum", file=at.uri)
        if form == "Parquet":
            yield from _list_rows(_read_parquet(at), location)
            continue
        names = [name.strip() for name in str(schema).split(",")]
        rows = _read_csv(_read_whole(at), names, at)
        # In CSV, keys are as in URLs; in Parquet they are as they are.
        plain = ({**row, "Key": unquote_plus(row.get("Key") or "")} for row in rows)
        yield from _list_rows(plain, location)


def _locate_part(key: str, location: Location) -> Location:
    """Return where a part of an inventory is: in the bucket of the manifest, or in a copy of it."""
    if location.is_remote and is_url(location.uri):
        scheme, _, rest = location.uri.partition("://")
        return location.locate(location.resolve_uri(f"{scheme}://{rest.split('/')[0]}/{key}"))
    folder = os.path.dirname(location.uri)
    for name in (key, os.path.basename(key)):
        folder_path = folder
        while True:
            if os.path.isfile(os.path.join(folder_path, name)):
                return location.locate(os.path.join(folder_path, name))
            if folder_path == os.path.dirname(folder_path):
                break
            folder_path = os.path.dirname(folder_path)
    raise SourceError(f"a part of the inventory is missing: {key}", file=location.uri)
