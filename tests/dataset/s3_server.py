"""An S3 server on loopback: conditions hold atomically, and it fails in all ways it is told to.

It knows objects of buckets by path, with their metadata: GET (with ranges), HEAD, PUT with
If-Match and If-None-Match, CopyObject, DELETE, DeleteObjects and ListObjectsV2. Credentials are not
looked at.
"""

from __future__ import annotations

import hashlib
import http.server
import random
import re
import socket
import struct
import threading
import time
import uuid
from collections.abc import Callable
from contextlib import contextmanager
from email.utils import formatdate
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape, unescape

FAULTS = (503, 500, 429, 409, "reset", "lost", "failed", "late")
"""Statuses before anything is done, a connection that is closed before, answers that are lost
after it was done (or that say 500 then), and requests that are done after their answer was lost.

There are "cut", a connection that is closed in the middle of an answer, and "abort", one that is
reset before anything is done, too.
"""


class Server(http.server.ThreadingHTTPServer):
    """Objects in memory.

    Attributes
    ----------
    latency : float
        Seconds from a request to its answer, at least.
    fault : callable
        Is given the method and the path of a request, and returns one of `FAULTS`, a status with
        headers, or None.
    page_keys : int
        Keys in a page of a listing, at most.
    is_strict : bool
        Whether conditions are looked at. There are servers that ignore them.
    requests : list of (str, str, float, float)
        Method and path of all requests, when they came and when they were answered.
    """

    daemon_threads = True
    request_queue_size = 256

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.objects: dict[str, bytes] = {}
        self.headers: dict[str, dict[str, str]] = {}
        self.lock = threading.Lock()
        self.latency = 0.0
        self.fault: Callable[[str, str], object] = lambda method, path: None
        self.page_keys = 1000
        self.is_strict = True
        self.late: list[threading.Timer] = []
        self.requests: list[tuple[str, str, float, float]] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def options(self) -> dict[str, object]:
        """Return how this package opens it."""
        return {"key": "test", "secret": "test", "client_kwargs": {"endpoint_url": self.url}}

    def handle_error(self, request, client_address):
        pass  # clients that were killed

    def fail_at(self, rate: float, seed: int = 0) -> None:
        """Let some of all requests fail, chosen at random; only replacements of heads arrive late.

        A PUT of another object that arrives late changes nothing: its name and bytes are fixed.
        """
        chance = random.Random(seed)

        def fault(method: str, path: str) -> object:
            return chance.choice(FAULTS) if chance.random() < rate else None

        self.fault = fault

    def wait(self) -> None:
        """Wait for all that is late."""
        for timer in self.late:
            timer.join()

    def perform(self, method: str, path: str, headers, body: bytes):
        """Do what a request asks for: status, headers and body of the answer."""
        url = urlsplit(path)
        query = parse_qs(url.query, keep_blank_values=True)
        key = unquote(url.path).strip("/")
        with self.lock:
            if "/" not in key:
                return self.of_bucket(method, key, query, body)
            return self.of_object(method, key, headers, body)

    def of_object(self, method, key, headers, body):
        data = self.objects.get(key)
        tag = None if data is None else etag(data)
        if method == "PUT":
            refused = "If-None-Match" in headers and tag is not None
            refused |= "If-Match" in headers and not matches(headers["If-Match"], tag)
            if refused and self.is_strict:
                missing = "If-Match" in headers and tag is None
                return error(404, "NoSuchKey") if missing else error(412, "PreconditionFailed")
            if "X-Amz-Copy-Source" in headers:
                return self.copy(key, headers)
            self.store(key, body, meta_of(headers))
            return 200, {"ETag": etag(body)}, b""
        if method == "DELETE":
            self.objects.pop(key, None)
            return 204, {}, b""
        if data is None:
            return error(404, "NoSuchKey")
        found = {"Last-Modified": formatdate(1e9, usegmt=True)} | self.headers.get(key, {})
        found["ETag"] = tag
        if matches(headers.get("If-None-Match"), tag):
            return 304, found, b""
        if match := re.fullmatch(r"bytes=(\d*)-(\d*)", headers.get("Range", "")):
            start, stop = span(match, len(data))
            if start >= len(data):
                return error(416, "InvalidRange")
            found["Content-Range"] = f"bytes {start}-{stop - 1}/{len(data)}"
            return 206, found, data[start:stop]
        return 200, found, data

    def store(self, key, data, meta):
        # Icechunk compares the time with its own clock, and knows by a header what it wrote.
        self.headers[key] = meta | {"Last-Modified": formatdate(time.time(), usegmt=True)}
        self.objects[key] = data

    def copy(self, key, headers):
        source = unquote(headers["X-Amz-Copy-Source"]).strip("/")
        if (data := self.objects.get(source)) is None:
            return error(404, "NoSuchKey")
        condition = headers.get("X-Amz-Copy-Source-If-Match")
        if condition is not None and not matches(condition, etag(data)):
            return error(412, "PreconditionFailed")
        self.store(key, data, self.headers.get(source, {}))
        document = f"<CopyObjectResult><ETag>{escape(etag(data))}</ETag></CopyObjectResult>"
        return 200, {"Content-Type": "application/xml"}, document.encode()

    def of_bucket(self, method, bucket, query, body):
        if method == "POST" and "delete" in query:
            names = re.findall(r"<Key>(.*?)</Key>", body.decode())
            for name in names:
                self.objects.pop(f"{bucket}/{unescape(name)}", None)
            deleted = "".join(f"<Deleted><Key>{name}</Key></Deleted>" for name in names)
            document = f'<?xml version="1.0"?><DeleteResult>{deleted}</DeleteResult>'
            return 200, {}, document.encode()
        if method != "GET":
            return 200, {}, b""
        prefix, delimiter = query.get("prefix", [""])[0], query.get("delimiter", [""])[0]
        start = len(bucket) + 1
        names = sorted(key[start:] for key in self.objects if key.startswith(f"{bucket}/"))
        after, limit = query.get("continuation-token", [""])[0], self.page_keys
        contents, prefixes = [], set()
        for name in names:
            if not name.startswith(prefix) or name <= after:
                continue
            head, mark, _ = name[len(prefix) :].partition(delimiter) if delimiter else ("", "", "")
            if mark:
                prefixes.add(prefix + head + mark)
                continue
            contents.append(name)
        page = contents[:limit]
        text = "".join(
            f"<Contents><Key>{escape(name)}</Key><Size>{len(self.objects[f'{bucket}/{name}'])}"
            "</Size><LastModified>2001-09-09T01:46:40.000Z</LastModified></Contents>"
            for name in page
        )
        text += "".join(f"<CommonPrefixes><Prefix>{escape(p)}</Prefix></CommonPrefixes>"
                        for p in sorted(prefixes))  # fmt: skip
        more = len(contents) > limit
        token = f"<NextContinuationToken>{escape(page[-1])}</NextContinuationToken>" if more else ""
        document = (
            f'<?xml version="1.0"?><ListBucketResult><Name>{bucket}</Name><Prefix>{escape(prefix)}'
            f"</Prefix><KeyCount>{len(page)}</KeyCount><MaxKeys>{limit}</MaxKeys>"
            f"<IsTruncated>{str(more).lower()}</IsTruncated>{token}{text}</ListBucketResult>"
        )
        return 200, {"Content-Type": "application/xml"}, document.encode()


def etag(data: bytes) -> str:
    return f'"{hashlib.md5(data).hexdigest()}"'


def matches(condition, tag) -> bool:
    """Tell whether a tag is that of a condition, whose quotes Icechunk leaves out."""
    return condition is not None and tag is not None and condition.strip('"') == tag.strip('"')


def meta_of(headers) -> dict[str, str]:
    return {name: value for name, value in headers.items() if name.lower().startswith("x-amz-meta")}


def span(match, size: int) -> tuple[int, int]:
    if not match[1]:
        return max(size - int(match[2]), 0), size
    return int(match[1]), min(int(match[2]) + 1, size) if match[2] else size


def error(status: int, code: str):
    return status, {}, f"<Error><Code>{code}</Code></Error>".encode()


def abort(handler: http.server.BaseHTTPRequestHandler) -> None:
    """Reset a connection: a client is told so, and not only that nothing more comes."""
    handler.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    for end in (handler.rfile, handler.wfile, handler.connection):
        end.close()
    handler.close_connection = True


class Handler(http.server.BaseHTTPRequestHandler):
    """One connection."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: Server

    def log_message(self, *args):
        pass

    def answer(self):
        server, began = self.server, time.monotonic()
        length = int(self.headers.get("Content-Length") or 0)
        body = self.rfile.read(length)
        if len(body) < length:  # whoever sent it was killed: S3 stores nothing of that
            self.close_connection = True
            return
        fault = server.fault(self.command, self.path)
        time.sleep(server.latency / 2)
        if fault == "abort":
            abort(self)
            return
        request = (self.command, self.path, self.headers, body)
        if fault == "late":
            timer = threading.Timer(random.random() / 5, server.perform, request)
            timer.start()
            server.late.append(timer)
        if fault in ("late", "reset"):
            self.close_connection = True
            return
        if isinstance(fault, tuple):
            status, headers, content = *fault, b""
        elif isinstance(fault, int):
            is_conflict = fault == 409 and {"If-Match", "If-None-Match"} & {*self.headers}
            code = "ConditionalRequestConflict" if is_conflict else "Injected"
            status, headers, content = error(fault, code)
        else:
            status, headers, content = server.perform(*request)
        time.sleep(server.latency / 2)
        if fault == "failed":
            status, headers, content = error(500, "InternalError")
        server.requests.append((self.command, self.path, began, time.monotonic()))
        if fault == "lost":
            self.close_connection = True
            return
        self.send_response(status)
        size = {} if status == 304 else {"Content-Length": str(len(content))}
        for name, value in (size | headers).items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content[: len(content) // 2] if fault == "cut" else content)
        if fault == "cut":
            self.close_connection = True

    do_GET = do_HEAD = do_PUT = do_DELETE = do_POST = answer


@contextmanager
def running(kind=Server):
    """Run a server within a with statement."""
    server = kind()
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()


def count_rounds(requests) -> int:
    """Return how many requests had to wait for others: those that overlap are one round."""
    rounds, end = 0, 0.0
    for _, _, began, answered in sorted(requests, key=lambda request: request[2]):
        if began >= end:
            rounds, end = rounds + 1, answered
        else:
            end = min(end, answered)
    return rounds


def count_up(store, times):
    """Increment a counter as often as that is told to have been done."""
    from obstore.exceptions import PreconditionError

    for _ in range(times):
        while True:
            response = store.get("counter")
            value = int(bytes(response.bytes()))
            mode = {"e_tag": response.meta["e_tag"]}
            try:
                store.put("counter", str(value + 1).encode(), mode=mode)
                break
            except PreconditionError:
                continue


def check_counter(options):
    """Let 16 clients count together: what a store must get right before it judges anything."""
    from obstore.store import S3Store

    store = S3Store(
        "bucket",
        prefix=uuid.uuid4().hex,
        endpoint=options["client_kwargs"]["endpoint_url"],
        access_key_id=options["key"],
        secret_access_key=options["secret"],
        client_options={"allow_http": True},
    )
    store.put("counter", b"0")
    threads = [threading.Thread(target=count_up, args=(store, 10)) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return int(bytes(store.get("counter").bytes()))
