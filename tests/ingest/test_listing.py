"""Listings: files of names, inventories of object stores, and links of STAC."""

import csv
import gzip
import hashlib
import io
import json
import os
from datetime import UTC, datetime
from urllib.parse import quote_plus

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import virtualzarr as vz
from tests.archive.archives import write_archive
from virtualzarr.archive import inventory
from virtualzarr.errors import AccessError, SourceError, UnsupportedError
from virtualzarr.ingest import noted_scans
from virtualzarr.ingest.versions import Version, take_version

KEYS = ["a/air 1.nc", "a/air+2.nc", "a/ä,3.nc", "a/folder/"]


def write_inventory(folder, form="CSV", keys=KEYS, **changed):
    """Write an inventory as S3 does: keys in CSV as in URLs, parts beside its folder."""
    rows = [("b", key, 100 + n, "2026-01-02T03:04:05.000Z", f"etag{n}", "true", "false")
            for n, key in enumerate(keys)]  # fmt: skip
    rows += [("b", "a/old.nc", 7, "2020-01-02T03:04:05.000Z", "old", "false", "false"),
             ("b", "a/gone.nc", 7, "2020-01-02T03:04:05.000Z", "gone", "true", "true")]  # fmt: skip
    schema = "Bucket, Key, Size, LastModifiedDate, ETag, IsLatest, IsDeleteMarker"
    if form == "CSV":
        text = io.StringIO()
        csv.writer(text, quoting=csv.QUOTE_ALL).writerows(
            [(row[0], quote_plus(row[1], safe="/"), *row[2:]) for row in rows]
        )
        data, name = gzip.compress(text.getvalue().encode()), "data/part.csv.gz"
    else:
        names = ["bucket", "key", "size", "last_modified_date", "e_tag", "is_latest",
                 "is_delete_marker"]  # fmt: skip
        columns = [list(column) for column in zip(*rows, strict=True)]
        columns[5:] = [[value == "true" for value in column] for column in columns[5:]]
        buffer = io.BytesIO()
        pq.write_table(pa.table(columns, names), buffer)
        data, name = buffer.getvalue(), "data/part.parquet"
    path = folder / "inventory" / "b" / "all"
    (path / "data").mkdir(parents=True)
    (path / "2026-01-02T00-00Z").mkdir()
    (path / name).write_bytes(data)
    entry = {"key": f"inventory/b/all/{name}", "size": len(data),
             "MD5checksum": hashlib.md5(data).hexdigest()}  # fmt: skip
    manifest = {"sourceBucket": "b", "destinationBucket": "arn:aws:s3:::inventories",
                "fileFormat": form, "fileSchema": schema, "files": [entry], **changed}  # fmt: skip
    place = path / "2026-01-02T00-00Z" / "manifest.json"
    place.write_text(json.dumps(manifest))
    return place


@pytest.mark.parametrize("form", ["CSV", "Parquet"])
def test_inventories_of_s3_name_files_and_versions(tmp_path, form):
    listing = vz.read_listing(write_inventory(tmp_path, form))
    assert list(listing) == [f"s3://b/{key}" for key in KEYS[:3]]
    assert listing.versions["s3://b/a/air+2.nc"] == Version(101, "etag etag1")


def test_damaged_inventories_are_refused(tmp_path):
    manifest = write_inventory(tmp_path / "a")
    part = tmp_path / "a" / "inventory" / "b" / "all" / "data" / "part.csv.gz"
    part.write_bytes(part.read_bytes()[:-9])
    with pytest.raises(SourceError, match="checksum"):
        vz.read_listing(manifest)
    part.unlink()
    with pytest.raises(SourceError, match="missing"):
        vz.read_listing(manifest)
    with pytest.raises(UnsupportedError, match="ORC"):
        vz.read_listing(write_inventory(tmp_path / "b", fileFormat="ORC"))
    with pytest.raises(SourceError, match="files"):
        vz.read_listing(write_inventory(tmp_path / "c", files=None))


def test_tables_and_texts_name_files(tmp_path):
    (tmp_path / "a.csv").write_text("url,bytes,last_modified\ns3://b/x.nc,5,2026-01-02T00:00:00Z\n")
    listing = vz.read_listing(tmp_path / "a.csv")
    assert listing.versions == {"s3://b/x.nc": Version(5, "modified 1767312000000000000")}
    (tmp_path / "a.txt").write_text("b.nc\n/data/c.nc\nhttps://host/d.nc\n")
    names = [str(tmp_path / "b.nc"), "/data/c.nc", "https://host/d.nc"]
    assert list(vz.read_listing(tmp_path / "a.txt")) == names
    # As spreadsheets write it, with a mark in front.
    (tmp_path / "d.txt").write_text("b.nc\n", encoding="utf-8-sig")
    (tmp_path / "d.csv").write_text("uri,size\nb.nc,5\n", encoding="utf-8-sig")
    for name in ("d.txt", "d.csv"):
        assert list(vz.read_listing(tmp_path / name)) == [str(tmp_path / "b.nc")]
    (tmp_path / "b.csv").write_text("color\nred\n")
    with pytest.raises(UnsupportedError, match="no column uri"):
        vz.read_listing(tmp_path / "b.csv")
    (tmp_path / "c.csv").write_text("uri,size\na.nc,large\n")
    with pytest.raises(SourceError, match="'large' is no size"):
        vz.read_listing(tmp_path / "c.csv")
    (tmp_path / "b.txt").write_bytes(b"a\x00b\n")
    with pytest.raises(SourceError, match="line 1"):
        vz.read_listing(tmp_path / "b.txt")
    with pytest.raises(AccessError):
        vz.read_listing(tmp_path / "a.txt", allowed=str(tmp_path))


def item(name, **assets):
    return {"stac_version": "1.0.0", "type": "Feature", "id": name,
            "assets": assets or {"data": {"href": f"./{name}.nc", "roles": ["data"]},
                                 "thumbnail": {"href": "t.png", "type": "image/png"}}}  # fmt: skip


def write_catalogue(folder):
    """Write a catalogue of two children that lead to each other, with an item each, and a page."""
    documents = {
        "catalog.json": {"stac_version": "1.0.0", "type": "Catalog", "links": [
            {"rel": "self", "href": "./catalog.json"}, {"rel": "child", "href": "./a/child.json"},
            {"rel": "child", "href": "./b/child.json"}]},
        "a/child.json": {"stac_version": "1.0.0", "type": "Collection", "links": [
            {"rel": "item", "href": "./1.json"}, {"rel": "child", "href": "../b/child.json"}]},
        "b/child.json": {"stac_version": "1.0.0", "type": "Collection", "links": [
            {"rel": "items", "href": "./items.json"}, {"rel": "child", "href": "../a/child.json"}]},
        "a/1.json": item("one"),
        "b/items.json": {"type": "FeatureCollection", "features": [item("two")],
                         "links": [{"rel": "next", "href": "./more.json"}]},
        "b/more.json": {"type": "FeatureCollection", "features": [
            item("three", band={"href": "./band.tif", "type": "image/tiff"},
                 page={"href": "./page.html", "type": "text/html"})]},
    }  # fmt: skip
    for name, document in documents.items():
        path = folder / name
        path.parent.mkdir(exist_ok=True, parents=True)
        path.write_text(json.dumps(document))
    return folder / "catalog.json"


def test_links_of_stac_are_followed(tmp_path):
    path = write_catalogue(tmp_path)
    names = ["a/one.nc", "b/two.nc", "b/band.tif"]
    assert list(vz.read_listing(path)) == [str(tmp_path / name) for name in names]
    chosen = vz.read_listing(path, assets="thumbnail")
    assert list(chosen) == [str(tmp_path / name) for name in ("a/t.png", "b/t.png")]
    (tmp_path / "x.json").write_text("{}")
    with pytest.raises(UnsupportedError, match="nothing of STAC"):
        vz.read_listing(tmp_path / "x.json")


def test_a_survey_of_a_listing_asks_for_no_version(tmp_path, monkeypatch):
    files = write_archive(tmp_path, 6)
    versions = {file: take_version(file) for file in files}
    (tmp_path / "a.csv").write_text("\n".join(["uri", *files]))
    listing = vz.read_listing(tmp_path / "a.csv")
    tagged = {file: Version(versions[file].size, f"etag x{n}") for n, file in enumerate(files)}
    listing.versions.update(tagged)
    # What was listed is another version than what is there: it changed meanwhile.
    assert {each.kind for each in vz.survey(listing).anomalies} == {"changed during the scan"}
    listing.versions.update(versions)
    path = tmp_path / "air.ledger"
    assert vz.survey(listing, ledger=path).anomalies == ()
    asked = []
    for module in (inventory, noted_scans):
        monkeypatch.setattr(module, "take_version", lambda file, options=None: asked.append(file))
    report = vz.survey(listing, ledger=path)
    assert (report.reused, asked) == (6, [])
    assert "air" in vz.virtualize(listing, "time", ledger=path)
    assert asked == []


@pytest.mark.parametrize(
    "columns", ["size", "etag", "size,etag", "size,last_modified", "size,etag,last_modified"]
)
def test_what_listings_say_of_local_files_is_no_version_of_them(tmp_path, columns):
    # Their tags are of where they come from, and dates are not as exact as those of the system.
    files = write_archive(tmp_path, 6)
    rows = []
    for file in files:
        date = datetime.fromtimestamp(int(os.path.getmtime(file)), UTC).isoformat()
        known = {"size": str(os.path.getsize(file)), "etag": "abc", "last_modified": date}
        rows.append(",".join([file, *(known[name] for name in columns.split(","))]))
    (tmp_path / "a.csv").write_text("\n".join([f"uri,{columns}", *rows]))
    listing = vz.read_listing(tmp_path / "a.csv")
    for _ in range(2):
        assert vz.survey(listing, ledger=tmp_path / "air.ledger").anomalies == ()
    assert vz.virtualize(listing, "time")["air"].shape[0] == 24
