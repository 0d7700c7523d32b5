"""Servers that fail now and then: what is read is right, or an error; never a fill value."""

import asyncio
import threading
import time
from types import SimpleNamespace

import h5py
import numpy as np
import pytest
import zarr

import virtualzarr as vz
from tests.dataset.s3_server import running
from tests.stores.webserver import FAULTS, Handler, web_server
from virtualzarr.errors import SourceError, SourceNotFoundError, UnsupportedError, VirtualZarrError
from virtualzarr.ingest.find_files import find_files
from virtualzarr.stores import FsspecStore
from virtualzarr.stores import retry as retries
from virtualzarr.stores.files import Fingerprint, RemoteFile, take_fingerprint
from virtualzarr.stores.location import Location
from virtualzarr.stores.read_only import unwrap

pytest.importorskip("aiohttp")
pytestmark = pytest.mark.filterwarnings("ignore:Consolidated metadata")
VALUES = np.arange(1, 301, dtype="i4").reshape(15, 20)


@pytest.fixture
def impatient(monkeypatch):
    """Wait little between attempts."""
    monkeypatch.setattr(vz.config, "retry_seconds", 0.002)


def write_zarr(folder, version=3):
    root = zarr.create_group(folder, zarr_format=version)
    for name in "ab":
        array = root.create_array(name, shape=(15, 20), chunks=(5, 4), dtype="i4", fill_value=-1,
                                  dimension_names=["y", "x"] if version == 3 else None)  # fmt: skip
        array[...] = VALUES
    zarr.consolidate_metadata(folder)
    return folder


def write_hdf5(path, start=0):
    with h5py.File(path, "w") as file:
        data = np.arange(start, start + 400, dtype="i4").reshape(40, 10)
        file.create_dataset("v", data=data, chunks=(4, 5), compression="gzip")
    return data


def store_of(array):
    return unwrap(array.chunk_source.store)


def attempt(work):
    """Return what some work gives, or None if an error of this package says why not."""
    try:
        return work()
    except VirtualZarrError:
        return None


@pytest.mark.parametrize("retry", [0, 5])
@pytest.mark.parametrize("lists", [False, True])
def test_nothing_is_missing_because_a_server_is_busy(
    tmp_path, impatient, monkeypatch, lists, retry
):
    monkeypatch.setattr(vz.config, "retries", retry)
    for version in (2, 3):
        write_zarr(tmp_path / f"{version}.zarr", version)
    done = 0
    with web_server(tmp_path, rate=0.08, lists=lists) as server:
        for server.seed in range(2):
            for version in (2, 3):
                url = f"{server.url}/{version}.zarr"
                group = attempt(lambda url=url: vz.open(url))
                for name in "ab" if group is not None else ():
                    read = attempt(lambda group=group, name=name: group[name][...])
                    assert read is None or np.array_equal(read, VALUES)
                    done += read is not None

                def publish(url=url):
                    vz.virtualize(url).publish(tmp_path / "refs.json")
                    return vz.open(tmp_path / "refs.json")

                for name in "ab" if (refs := attempt(publish)) is not None else ():
                    server.rate = 0
                    assert np.array_equal(refs[name][...], VALUES)
                    server.rate = 0.08
                    done += 1

                def join(url=url):
                    part = vz.open(url)["a"]
                    return vz.concat([part, part], axis=0)

                joined = attempt(join)
                if joined is not None:
                    server.rate = 0
                    assert np.array_equal(joined[...], np.concatenate([VALUES, VALUES]))
                    server.rate = 0.08
                    done += 1
    assert done > (15 if retry else 0)


def test_scans_of_files_are_right_or_errors(tmp_path, impatient):
    data = write_hdf5(tmp_path / "a.h5")
    done = 0
    with web_server(tmp_path, rate=0.08) as server:
        for server.seed in range(10):
            group = attempt(lambda: vz.virtualize(f"{server.url}/a.h5"))
            if group is not None:
                read = attempt(lambda group=group: group["v"][...])
                assert read is None or np.array_equal(read, data)
                done += read is not None
    assert done > 7


@pytest.mark.parametrize("status", [400, 401, 403, 429, 500, 503])
def test_only_404_and_410_mean_missing(tmp_path, impatient, status):
    store = write_zarr(tmp_path / "x.zarr")
    with web_server(tmp_path) as server:
        array = vz.open(f"{server.url}/x.zarr")["a"]

        def rewrite(request, *answer):
            return (status, {}, b"") if "/a/c/1/2" in request.path else answer

        server.rewrite = rewrite
        with pytest.raises(SourceError, match=rf"answered {status}.*c/1/2"):
            array[...]
        with pytest.raises(SourceError, match=rf"answered {status}.*c/1/2"):
            vz.virtualize(f"{server.url}/x.zarr").publish(tmp_path / "refs.json")
        assert not (tmp_path / "refs.json").exists()
        assert store_of(array).size("a/c/0/0") == (store / "a/c/0/0").stat().st_size
        with pytest.raises(SourceError, match=f"answered {status}"):
            store_of(array).size("a/c/1/2")
        status = 410
        for server.rewrite in (None, rewrite):
            (store / "a/c/1/2").unlink(missing_ok=True)
            assert store_of(array).size("a/c/1/2") is None
            assert array[5, 8] == -1
            with pytest.raises(SourceNotFoundError):
                take_fingerprint(Location.of(f"{server.url}/x.zarr/a/c/1/2"))


def test_a_listing_has_no_gaps(tmp_path, monkeypatch):
    """A folder that cannot be listed is not one without chunks."""
    monkeypatch.setattr(vz.config, "retries", 0)
    write_zarr(tmp_path / "x.zarr")
    for k in range(3):
        (tmp_path / f"d{k}").mkdir()
        write_hdf5(tmp_path / f"d{k}" / "a.h5")
    with web_server(tmp_path, lists=True) as server:
        array = vz.open(f"{server.url}/x.zarr")["a"]
        assert len([*store_of(array).list("a/c")]) == 15
        pattern = f"{server.url}/d*/*.h5"
        assert len(find_files(pattern)) == 3
        for fault in (503, 429, 500, "cut"):

            def rewrite(request, *answer, fault=fault):
                if request.path.rstrip("/").endswith(("/c/1", "/d1")):
                    return (
                        (fault, {}, b"")
                        if isinstance(fault, int)
                        else (200, {"Content-Length": "999"}, b"")
                    )
                return answer

            server.rewrite = rewrite
            with pytest.raises(VirtualZarrError):
                [*store_of(array).list("a/c")]
            with pytest.raises(VirtualZarrError):
                find_files(pattern)


def test_a_server_that_forbids_listing_is_asked_for_each_chunk(tmp_path):
    write_zarr(tmp_path / "x.zarr")

    def rewrite(request, status, headers, body):
        return (
            (403, {}, b"")
            if request.path.endswith(("/c", "/c/", "/a", "/a/"))
            else (status, headers, body)
        )

    with web_server(tmp_path, rewrite=rewrite) as server:
        vz.open(f"{server.url}/x.zarr").publish(tmp_path / "refs.json")
        assert np.array_equal(vz.open(tmp_path / "refs.json")["a"][...], VALUES)


# --- answers with other bytes ------------------------------------------------------------------


def shifted(request, status, headers, body):
    """The range after the one that was asked for."""
    if status == 206:
        first, rest = headers["Content-Range"].removeprefix("bytes ").split("-")
        last, size = rest.split("/")
        headers = headers | {"Content-Range": f"bytes {int(first) + 1}-{int(last) + 1}/{size}"}
    return status, headers, body


def unlabelled(request, status, headers, body):
    return status, headers | {"Content-Range": None}, body


def whole(request, status, headers, body):
    del request.headers["Range"]
    return request.content()


def short(request, status, headers, body):
    if status == 206:
        first, rest = headers["Content-Range"].removeprefix("bytes ").split("-")
        last, size = rest.split("/")
        headers = headers | {"Content-Range": f"bytes {first}-{int(last) - 1}/{size}"}
        body = body[:-1]
    return status, headers, body


def shorter_than_said(request, status, headers, body):
    return status, headers, body[:-1]


def several(request, status, headers, body):
    headers = headers | {"Content-Range": None, "Content-Type": "multipart/byteranges; boundary=x"}
    return status, headers, b"--x\r\n\r\n" + body


def squeezed(request, status, headers, body):
    import zlib

    return status, headers | {"Content-Encoding": "deflate"}, zlib.compress(body)


WRONG = [shifted, unlabelled, whole, short, shorter_than_said, several, squeezed]


@pytest.mark.parametrize("wrong", WRONG)
def test_a_wrong_range_is_an_error(tmp_path, monkeypatch, wrong):
    monkeypatch.setattr(vz.config, "retries", 0)
    (tmp_path / "a.bin").write_bytes(bytes(range(200)))
    write_hdf5(tmp_path / "a.h5")
    with web_server(tmp_path) as server:
        group = vz.virtualize(f"{server.url}/a.h5")
        server.rewrite = wrong
        for fingerprint in (None, Fingerprint(200)):
            file = RemoteFile(Location.of(f"{server.url}/a.bin"), fingerprint)
            with pytest.raises(SourceError, match=r"a\.bin"):
                file.read(10, 20)
            with pytest.raises(SourceError, match=r"a\.bin"):
                file.read_many([(10, 20), (30, 50)])
            if wrong is not whole:
                with pytest.raises(SourceError, match=r"a\.bin"):
                    file.tail(7)
        with pytest.raises(VirtualZarrError, match=r"a\.h5"):
            group["v"][...]


def test_sizes_are_found_by_servers_that_know_no_head(tmp_path):
    (tmp_path / "a.bin").write_bytes(bytes(50))
    (tmp_path / "empty").write_bytes(b"")
    with web_server(tmp_path, head=False) as server:
        assert take_fingerprint(Location.of(f"{server.url}/a.bin")).size == 50
        assert take_fingerprint(Location.of(f"{server.url}/empty")).size == 0


# --- attempts ------------------------------------------------------------------------------------


@pytest.mark.parametrize("fault", FAULTS)
def test_requests_are_repeated_and_not_for_ever(tmp_path, impatient, fault):
    (tmp_path / "a.bin").write_bytes(bytes(range(200)))
    with web_server(tmp_path, faults=(fault,), rate=1) as server:
        file = RemoteFile(Location.of(f"{server.url}/a.bin"))

        def heal(method, path):
            server.rate = float(len(server.requests) < 3)

        with pytest.raises(SourceError):
            file.read(0, 100)
        # The library repeats a request of its own accord, where a connection was open already.
        assert (
            0
            <= len(server.requests) - 1 - vz.config.retries
            <= (vz.config.retries + 1 if fault == "reset" else 0)
        )
        server.requests.clear()
        server.before = heal
        assert bytes(file.read(0, 100)) == bytes(range(100))
        assert len(server.requests) >= 4


def test_other_answers_are_not_asked_for_again(tmp_path):
    with web_server(tmp_path) as server:
        for server.rewrite in (None, lambda *answer: (403, {}, b"")):
            server.requests.clear()
            with pytest.raises(SourceError):
                RemoteFile(Location.of(f"{server.url}/a.bin")).read(0, 100)
            assert len(server.requests) == 1


def replace_clock(monkeypatch, sleep, clock=time):
    """Replace the clock of retries, and of nothing else: event loops go by it, too."""
    monkeypatch.setattr("virtualzarr.stores.retry.asyncio", SimpleNamespace(sleep=sleep))
    monkeypatch.setattr("virtualzarr.stores.retry.time", clock)


def test_a_server_is_given_the_time_it_asks_for(tmp_path, monkeypatch):
    waited = []

    async def sleep(seconds):
        waited.append(seconds)

    replace_clock(monkeypatch, sleep)
    with web_server(tmp_path) as server:
        server.rewrite = lambda *answer: (503, {"Retry-After": "3"}, b"")
        with pytest.raises(SourceError, match="answered 503"):
            RemoteFile(Location.of(f"{server.url}/a.bin")).read(0, 100)
        assert len(waited) == vz.config.retries
        assert all(3 <= seconds < 3 + vz.config.max_retry_seconds for seconds in waited)
        waited.clear()
        server.rewrite = lambda *answer: (503, {"Retry-After": "3600"}, b"")
        with pytest.raises(SourceError, match="answered 503"):
            RemoteFile(Location.of(f"{server.url}/a.bin")).read(0, 100)
        assert not waited


@pytest.mark.parametrize("blocking", [False, True])
def test_services_are_given_the_time_they_ask_for(monkeypatch, blocking):
    """botocore's own retries, and those of s3fs, would come back at once."""
    pytest.importorskip("s3fs")
    waited = []

    async def sleep(seconds):
        waited.append(seconds)

    replace_clock(monkeypatch, sleep, SimpleNamespace(monotonic=lambda: 0.0, sleep=waited.append))
    with running() as server:
        server.store("bucket/a.bin", bytes(100), {})
        faults = [(503, {"Retry-After": "3"}), (429, {"Retry-After": "2"}), 500]
        server.fault = lambda method, path: faults.pop(0) if faults else None
        if blocking:
            FsspecStore("s3://bucket/folder", server.options()).set("b", b"1")
            assert server.objects["bucket/folder/b"] == b"1"
        else:
            location = Location("s3://bucket/a.bin", server.options())
            assert RemoteFile(location).read(0, 100) == bytes(100)
        assert [int(seconds) for seconds in waited] == [3, 2, 0]


@pytest.mark.parametrize("status", [301, 307])
def test_redirects_of_services_to_nowhere_are_errors(status):
    """botocore asks where a bucket is without end, if that is redirected, too."""
    pytest.importorskip("s3fs")
    text = "The bucket must be addressed using the specified endpoint."
    document = f"<Error><Code>PermanentRedirect</Code><Message>{text}</Message></Error>"
    with running() as server:
        server.perform = lambda *request: (status, {}, document.encode())
        location = Location("s3://bucket/a.nc", server.options())
        for work, told in (
            (lambda: RemoteFile(location).read(0, 4), f"answered {status}: {text} .*endpoint_url"),
            (lambda: take_fingerprint(location), f"answered {status}: .*endpoint_url"),
            (lambda: vz.virtualize("s3://bucket/a.nc", storage_options=server.options()), "answer"),
            (lambda: vz.virtualize("s3://bucket/*.nc", storage_options=server.options()), text),
            (lambda: FsspecStore("s3://bucket/a", server.options()).set("b", b"1"), text),
        ):
            server.requests.clear()
            with pytest.raises(SourceError, match=told):
                work()
            assert 1 <= len(server.requests) <= 3


@pytest.mark.parametrize("says", ["GET", "HEAD"])
def test_redirects_of_services_to_another_region_are_followed(says):
    """Where any answer about the bucket names it."""
    pytest.importorskip("s3fs")
    with running() as server:
        server.store("bucket/a.bin", bytes(100), {})
        perform = server.perform

        def redirect(method, path, headers, body):
            region = {"X-Amz-Bucket-Region": "eu-far-1"} if method == says else {}
            if "/eu-far-1/" not in headers["Authorization"]:
                return 301, region, b""
            status, found, content = perform(method, path, headers, body)
            return status, found | region, content

        server.perform = redirect
        options = server.options()
        assert RemoteFile(Location("s3://bucket/a.bin", options)).read(0, 100) == bytes(100)
        assert take_fingerprint(Location("s3://bucket/a.bin", options)).size == 100


def test_retries_end_when_their_time_has_passed(tmp_path, monkeypatch):
    now = [0.0]

    async def sleep(seconds):
        now[0] += seconds

    replace_clock(monkeypatch, sleep, SimpleNamespace(monotonic=lambda: now[0]))
    monkeypatch.setattr(vz.config, "retries", 10_000)
    monkeypatch.setattr(vz.config, "total_retry_seconds", 30.0)
    with web_server(tmp_path, rate=1, faults=(503,)) as server:
        with pytest.raises(
            SourceError, match=r"answered 503.*asked \d+ times in \d\d s: see stall"
        ):
            RemoteFile(Location.of(f"{server.url}/a.bin")).read(0, 100)
        assert 10 < now[0] <= 30
        server.requests.clear()
        server.rewrite = lambda *answer: (503, {"Retry-After": "9"}, b"")
        with pytest.raises(SourceError, match="answered 503"):
            RemoteFile(Location.of(f"{server.url}/a.bin")).read(0, 100)
        assert len(server.requests) <= 4


def test_errors_after_all_retries_have_no_circle_of_causes(impatient):
    def attempt():
        try:
            raise ConnectionError("fake")
        except ConnectionError as error:
            raise retries.TransientError(error) from error

    async def attempt_in_loop():
        attempt()

    for work in (
        lambda: retries.retry_blocking(attempt),
        lambda: asyncio.run(retries.retry(attempt_in_loop)),
    ):
        with pytest.raises(ConnectionError) as raised:
            work()
        error, seen = raised.value, set()
        while error is not None:
            assert id(error) not in seen
            seen.add(id(error))
            error = error.__cause__ or error.__context__


def test_nobody_waits_after_the_first_connection_that_breaks(monkeypatch):
    monkeypatch.setattr(retries, "back_off_seconds", lambda number, rest=0.0: 10 + number + rest)
    broken = retries.TransientError(SourceError("cut off"), is_broken=True)
    busy = retries.TransientError(SourceError("503"), 2.0)
    for failures, waits in (
        ((broken, broken, broken, busy), [0, 10, 11, 14]),
        ((busy, broken, busy, broken), [12, 0, 13, 12]),
    ):
        budget = retries.RetryBudget()
        assert [budget.seconds_to_wait(each) for each in failures] == waits
    monkeypatch.setattr(vz.config, "retries", 2)
    budget = retries.RetryBudget()
    assert [budget.seconds_to_wait(broken) for _ in range(2)] == [0, 10]
    with pytest.raises(SourceError, match="cut off"):
        budget.seconds_to_wait(broken)


def test_waiting_grows_and_is_random(monkeypatch):
    assert max(retries.back_off_seconds(0) for _ in range(50)) <= vz.config.retry_seconds
    assert len({retries.back_off_seconds(9) for _ in range(50)}) == 50
    assert max(retries.back_off_seconds(60) for _ in range(50)) <= vz.config.max_retry_seconds


@pytest.mark.parametrize("announced", [True, False])
def test_documents_that_never_end(tmp_path, announced):
    write_zarr(tmp_path / "a.zarr")
    body = b" " * (1 << 22)

    def rewrite(request, *answer):
        if not request.path.endswith("zarr.json"):
            return answer
        return 200, {} if announced else {"Content-Length": None, "Connection": "close"}, body

    with web_server(tmp_path, rewrite=rewrite) as server:
        store = FsspecStore(f"{server.url}/a.zarr")
        with vz.config.limits.set(document_bytes=1 << 16):
            for work in (lambda: store.get("zarr.json"), lambda: vz.open(f"{server.url}/a.zarr")):
                with pytest.raises(UnsupportedError, match=r"limits\.document_bytes.*zarr\.json"):
                    work()


def test_long_documents_of_any_file_system():
    store = FsspecStore("memory://long-documents")
    store.set("zarr.json", b" " * 2000)
    store.set("c/0", b" " * 2000)
    with vz.config.limits.set(document_bytes=1000):
        assert len(store.get("c/0")) == 2000
        assert store.get(".zarray") is None
        with pytest.raises(UnsupportedError, match=r"limits\.document_bytes.*zarr\.json"):
            store.get("zarr.json")
    assert len(store.get("zarr.json")) == 2000


@pytest.mark.parametrize("whole", [False, True])
def test_bodies_that_never_end_are_not_read(tmp_path, impatient, whole):
    write_hdf5(tmp_path / "a.h5")
    sent = []

    def rewrite(request, status, headers, body):
        if request.command != "GET":
            return status, headers, body
        sent.append(0)
        headers |= {"Content-Length": None, "Transfer-Encoding": "chunked", "Connection": "close"}
        request.send_response(status)
        for name, value in headers.items():
            if value is not None:
                request.send_header(name, value)
        request.end_headers()
        part = b"10000\r\n" + bytes(1 << 16) + b"\r\n"
        while sent[-1] < 1 << 29:
            try:
                request.wfile.write(part)
            except OSError:  # nobody reads on
                break
            sent[-1] += 1 << 16
        raise ConnectionError

    with (
        web_server(tmp_path, rewrite=rewrite) as server,
        vz.config.limits.set(unannounced_bytes=1 << 20),
        vz.config.set(retries=1),
    ):
        file = RemoteFile(Location(f"{server.url}/a.h5"), None)
        with pytest.raises(
            UnsupportedError if whole else SourceError,
            match=r"limits\.unannounced_bytes.*a\.h5"
            if whole
            else "8 bytes were announced and more",
        ):
            file.connection.fetch(file.connection.path, file.uri, 0, None if whole else 8)
    assert max(sent) < 1 << 28


def test_a_length_that_is_not_that_of_the_range_is_not_read(tmp_path, impatient):
    write_hdf5(tmp_path / "a.h5")

    def rewrite(request, status, headers, body):
        long = {"Content-Length": str(1 << 40)} if status == 206 else {}
        return status, headers | long, body

    with web_server(tmp_path, rewrite=rewrite) as server:
        file = RemoteFile(Location(f"{server.url}/a.h5"), None)
        with pytest.raises(SourceError, match=rf"8 bytes were announced and {1 << 40} came"):
            file.connection.fetch(file.connection.path, file.uri, 0, 8)


@pytest.mark.parametrize("begun", [False, True])
def test_a_server_that_falls_silent_is_asked_again(tmp_path, impatient, begun):
    data = write_hdf5(tmp_path / "a.h5")
    silent, released = [], threading.Event()

    def rewrite(request, status, headers, body):
        if len(silent) < 2 and request.command == "GET":
            silent.append(request.path)
            if begun:
                request.send_response(status)
                for name, value in (headers | {"Content-Length": str(len(body))}).items():
                    request.send_header(name, value)
                request.end_headers()
                request.wfile.write(body[:1])
            released.wait(60)
            raise ConnectionError
        return status, headers, body

    with web_server(tmp_path, rewrite=rewrite) as server, vz.config.set(stall_seconds=0.3):
        try:
            assert (vz.open(f"{server.url}/a.h5")["v"][...] == data).all()
        finally:
            released.set()
    assert len(silent) == 2


def test_timeouts_of_the_caller_are_kept(tmp_path, impatient):
    write_hdf5(tmp_path / "a.h5")
    released = threading.Event()

    def rewrite(request, *answer):
        released.wait(60)
        return answer

    aiohttp = pytest.importorskip("aiohttp")
    with web_server(tmp_path, rewrite=rewrite) as server, vz.config.set(retries=0):
        try:
            for options in (
                {"timeout": 0.2},
                {"client_kwargs": {"timeout": aiohttp.ClientTimeout(total=0.2)}},
            ):
                with pytest.raises(SourceError, match=r"TimeoutError.*a\.h5"):
                    vz.open(f"{server.url}/a.h5", storage_options=options)
        finally:
            released.set()


LOGIN_PAGE = b"\n<!DOCTYPE html><html><body>Please log in</body></html>"


@pytest.mark.parametrize("kind", ["text/html; charset=utf-8", None])
def test_login_pages_are_no_chunks(tmp_path, kind):
    """What servers answer where a login has expired: it was copied, and counted, as chunks."""
    write_zarr(tmp_path / "a.zarr")
    write_hdf5(tmp_path / "a.h5")
    with web_server(tmp_path) as server:
        array = vz.open(f"{server.url}/a.zarr")["a"]
        virtual = vz.open(f"{server.url}/a.h5")["v"]
        server.rewrite = lambda request, *answer: (200, {"Content-Type": kind}, LOGIN_PAGE)
        for work in (
            lambda: array[...],
            lambda: virtual[...],
            lambda: vz.copy(array, {}),
            lambda: vz.open(f"{server.url}/a.zarr"),
            lambda: vz.open(f"{server.url}/a.h5"),
        ):
            with pytest.raises(SourceError, match=r"with a web page|all of them came|changed"):
                work()
        if kind:
            with pytest.raises(SourceError, match="answered with a web page"):
                array.nchunks_initialized  # noqa: B018
        with pytest.raises(SourceError, match=r"no file matches.*or one to log in"):
            vz.virtualize(f"{server.url}/*.h5", "t")


def test_files_that_are_said_to_be_pages_are_read(tmp_path):
    """By servers that say so of everything, such as those of scripts."""
    data = write_hdf5(tmp_path / "a.h5")
    write_zarr(tmp_path / "a.zarr")
    (tmp_path / "page.html").write_bytes(LOGIN_PAGE)
    with web_server(tmp_path) as server:
        server.rewrite = lambda request, status, headers, body: (
            status, headers | {"Content-Type": "text/html"}, body
        )  # fmt: skip
        assert np.array_equal(vz.open(f"{server.url}/a.h5")["v"][...], data)
        assert np.array_equal(vz.open(f"{server.url}/a.zarr")["a"][...], VALUES)
        page = RemoteFile(Location.of(f"{server.url}/page.html"))
        assert bytes(page.read(0, None)) == LOGIN_PAGE


@pytest.mark.parametrize("fault", [408, 429, 500, 502, 503, 504, "reset"])
def test_what_is_written_is_sent_again(tmp_path, impatient, fault):
    """Also where the server is too busy to take it."""
    attempts = {}

    class Taker(Handler):
        def do_PUT(self):
            body = self.rfile.read(int(self.headers["Content-Length"]))
            attempts[self.path] = attempts.get(self.path, 0) + 1
            if attempts[self.path] < 3:
                if fault == "reset":
                    self.close_connection = True
                    return
                self.send_response(fault)
            else:
                path = tmp_path / self.path.strip("/")
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(body)
                self.send_response(201)
            self.send_header("Content-Length", "0")
            self.end_headers()

    with web_server(tmp_path, handler=Taker) as server:
        array = vz.create_array(f"{server.url}/b.zarr", shape=(4,), chunks=(2,), dtype="i4")
        array[...] = [1, 2, 3, 4]
    assert vz.open(tmp_path / "b.zarr")[...].tolist() == [1, 2, 3, 4]
    assert {*attempts.values()} == {3}


def test_an_error_says_for_how_long_a_server_wants_to_rest(tmp_path):
    (tmp_path / "a.bin").write_bytes(bytes(10))
    with web_server(tmp_path) as server:
        server.rewrite = lambda request, *answer: (503, {"Retry-After": "25"}, b"")
        with pytest.raises(SourceError, match=r"rest of 25 s, and virtualzarr.config.max_retry"):
            RemoteFile(Location.of(f"{server.url}/a.bin")).read(0, 10)


def test_connections_that_time_out_are_tried_again(monkeypatch):
    aiobotocore = pytest.importorskip("aiobotocore.httpsession")
    exceptions = pytest.importorskip("botocore.exceptions")
    monkeypatch.setattr(vz.config, "retry_seconds", 0.002)
    send, left = aiobotocore.AIOHTTPSession.send, [True] * 2

    async def time_out(session, request):
        if left:
            left.pop()
            raise exceptions.ConnectTimeoutError(endpoint_url=request.url, error=TimeoutError())
        return await send(session, request)

    monkeypatch.setattr(aiobotocore.AIOHTTPSession, "send", time_out)
    with running() as bucket:
        bucket.objects["bucket/a"] = b"12345"
        assert FsspecStore("s3://bucket", bucket.options()).get("a") == b"12345"
    assert not left
