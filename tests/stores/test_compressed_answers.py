"""Servers that compress answers, though they are asked not to: all of each, or an error."""

import gzip
import os
import zlib

import pytest

import virtualzarr as vz
from tests.stores.webserver import web_server
from virtualzarr.errors import SourceError, UnsupportedError
from virtualzarr.ingest.find_files import find_files
from virtualzarr.stores.files import take_fingerprint
from virtualzarr.stores.fsspec_connection import Connection
from virtualzarr.stores.location import Location

pytest.importorskip("aiohttp")
NAMES = [f"air-{os.urandom(8).hex()}.nc" for _ in range(200)]


def squeeze_raw(data):
    """Compress as the servers that leave out the head of zlib."""
    squeezer = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    return squeezer.compress(data) + squeezer.flush()


def squeeze_in_members(data):
    half = len(data) // 2
    return gzip.compress(data[:half]) + gzip.compress(data[half:])


SQUEEZERS = {
    "gzip": ("gzip", gzip.compress),
    "GZIP": ("GZIP", gzip.compress),
    "x-gzip": ("x-gzip", gzip.compress),
    "members": ("gzip", squeeze_in_members),
    "deflate": ("deflate", zlib.compress),
    "raw deflate": ("deflate", squeeze_raw),
}


class Squeezing:
    """Makes compressed answers, of which it cuts off the end."""

    def __init__(self, kind, is_chunked=False):
        self.encoding, self.squeeze = SQUEEZERS[kind]
        self.is_chunked, self.share, self.cuts = is_chunked, 1.0, 99

    def __call__(self, request, status, headers, body):
        if request.command == "HEAD" or status != 200:
            return status, headers, body
        body = self.squeeze(body)
        if self.share < 1 and self.cuts:
            self.cuts -= 1
            body = body[: min(int(len(body) * self.share), len(body) - 1)]
        headers = headers | {"Content-Encoding": self.encoding, "Content-Length": str(len(body))}
        if self.is_chunked:
            body = (b"%x\r\n%s\r\n" % (len(body), body) if body else b"") + b"0\r\n\r\n"
            headers |= {"Content-Length": None, "Transfer-Encoding": "chunked"}
        return status, headers, body


@pytest.fixture(autouse=True)
def impatient(monkeypatch):
    monkeypatch.setattr(vz.config, "retry_seconds", 0.002)
    monkeypatch.setattr(vz.config, "retries", 2)


@pytest.fixture
def folder(tmp_path):
    for name in NAMES:
        (tmp_path / name).touch()
    (tmp_path / "names.txt").write_text("\n".join(NAMES))
    return tmp_path


@pytest.mark.parametrize("kind", SQUEEZERS)
@pytest.mark.parametrize("is_chunked", [True, False])
def test_answers_that_are_cut_off_are_no_answers(folder, kind, is_chunked):
    """HTTP's own framing is whole: only the end of what is compressed is missing."""
    squeezing = Squeezing(kind, is_chunked)
    with web_server(folder, lists=True, rewrite=squeezing) as server:
        assert len(find_files(f"{server.url}/air-*.nc")) == len(NAMES)
        assert len(vz.read_listing(f"{server.url}/names.txt")) == len(NAMES)
        for squeezing.share in (0, 0.002, 0.3, 0.7, 0.9999):
            for read in (
                lambda: find_files(f"{server.url}/air-*.nc"),
                lambda: vz.read_listing(f"{server.url}/names.txt"),
            ):
                with pytest.raises(SourceError, match="cut off or damaged"):
                    read()
        squeezing.cuts = 1  # in passing
        assert len(find_files(f"{server.url}/air-*.nc")) == len(NAMES)


@pytest.mark.parametrize("kind", ["gzip", "deflate"])
def test_compressed_answers_fill_no_memory(folder, kind):
    (folder / "zeros.bin").write_bytes(bytes(1 << 22))
    with web_server(folder, rewrite=Squeezing(kind)) as server:
        location = Location(f"{server.url}/zeros.bin")
        connection = Connection(location)
        assert len(connection.fetch(connection.path, location.uri, 0, None, 1 << 22)[0]) == 1 << 22
        with pytest.raises(SourceError, match="bytes are too many"):
            connection.fetch(connection.path, location.uri, 0, None, (1 << 22) - 1)
        with (
            vz.config.limits.set(unannounced_bytes=1 << 20),
            pytest.raises(UnsupportedError, match=r"limits\.unannounced_bytes"),
        ):
            connection.fetch(connection.path, location.uri, 0, None)


@pytest.mark.parametrize("encoding", ["br", "zstd", "compress", "gzip, gzip", "identity, br"])
def test_compressions_that_cannot_be_undone_are_refused(folder, encoding):
    def rewrite(request, status, headers, body):
        return status, headers | {"Content-Encoding": encoding}, body

    with (
        web_server(folder, rewrite=rewrite) as server,
        pytest.raises(SourceError, match=r"compresses what it sends \('.*'\), which"),
    ):
        vz.read_listing(f"{server.url}/names.txt")


@pytest.mark.parametrize("encoding", ["Identity", "aws-chunked", "utf-8", "identity,aws-chunked"])
def test_names_of_no_compression(folder, encoding):
    def rewrite(request, status, headers, body):
        return status, headers | {"Content-Encoding": encoding}, body

    with web_server(folder, rewrite=rewrite) as server:
        assert len(vz.read_listing(f"{server.url}/names.txt")) == len(NAMES)
        location = Location(f"{server.url}/names.txt")
        connection = Connection(location)
        assert connection.fetch(connection.path, location.uri, 4, 20)[0] == NAMES[0][4:20].encode()


def test_compressed_pages_in_the_place_of_a_file_are_none(folder):
    page = gzip.compress(b"<!DOCTYPE html><html>Please log in</html>" + bytes(1000))

    def rewrite(request, status, headers, body):
        if request.command == "HEAD":
            return 405, {}, b""
        return 200, {"Content-Type": "text/html", "Content-Encoding": "gzip"}, page

    with (
        web_server(folder, rewrite=rewrite) as server,
        pytest.raises(SourceError, match="answered with a web page"),
    ):
        take_fingerprint(Location(f"{server.url}/names.txt"))
