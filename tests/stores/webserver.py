"""A web server on loopback that is as faulty as it is told to be, the same each time."""

from __future__ import annotations

import functools
import hashlib
import http.server
import os
import socket
import struct
import threading
from collections import Counter
from contextlib import contextmanager
from email.utils import formatdate

FAULTS = (503, 429, 500, "reset", "cut")


class Handler(http.server.SimpleHTTPRequestHandler):
    """Files of a folder, with byte ranges; what it says of itself is in attributes of the server.

    Attributes of the server
    ------------------------
    rate, seed : float, int
        How often a request fails, and which do: it depends on the method, the path and how often
        that was asked for, and on nothing else.
    faults : tuple
        Statuses, "reset" (the connection is closed before an answer) and "cut" (within it).
    tags, dates, lists, head : bool
        Whether there are entity tags, dates and listings, and whether HEAD is understood.
    links : callable, optional
        Returns which links a listing has, given those that it should have.
    before : callable, optional
        Called with each request's method and path.
    rewrite : callable, optional
        Makes other ``(status, headers, body)`` of the right ones.
    """

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # or each answer waits for the one before to be confirmed

    def log_message(self, *args):
        pass

    def do_HEAD(self):
        self.answer("HEAD")

    def do_GET(self):
        self.answer("GET")

    def answer(self, method):
        server = self.server
        if server.before is not None:
            server.before(method, self.path)
        with server.lock:
            server.requests.append((method, self.path, dict(self.headers)))
            server.count[method, self.path] += 1
            attempt = server.count[method, self.path]
        fault = self.fault(method, attempt)
        if fault == "reset":
            # Without the usual farewell.
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.close_connection = True
            self.connection.close()
            return
        status, headers, body = (fault, {}, b"busy") if isinstance(fault, int) else self.content()
        if method == "HEAD" and not server.head:
            status, headers, body = 405, {}, b""
        if server.rewrite is not None:
            status, headers, body = server.rewrite(self, status, headers, body)
        self.send_response(status)
        for name, value in ({"Content-Length": str(len(body))} | headers).items():
            if value is not None:
                self.send_header(name, value)
        self.end_headers()
        if method == "GET":
            self.wfile.write(body[: len(body) // 2] if fault == "cut" else body)
        if fault == "cut" or server.rewrite is not None:
            self.close_connection = True

    def fault(self, method, attempt):
        name = f"{self.server.seed} {method} {self.path} {attempt}".encode()
        number = int.from_bytes(hashlib.sha256(name).digest()[:4], "big")
        if number / 2**32 >= self.server.rate:
            return None
        faults = self.server.faults
        return faults[number % len(faults)]

    def content(self):
        path = self.translate_path(self.path)
        if os.path.isdir(path) and self.server.lists:
            names = sorted(
                name + "/" * os.path.isdir(os.path.join(path, name)) for name in os.listdir(path)
            )
            names = names if self.server.links is None else self.server.links(names)
            body = "".join(f'<a href="{name}">{name}</a>\n' for name in names).encode()
            return 200, {"Content-Type": "text/html"}, b"<html>" + body + b"</html>"
        try:
            with open(path, "rb") as file:
                data, found = file.read(), os.fstat(file.fileno())
        except OSError:
            return 404, {}, b"no such file"
        headers = {"Accept-Ranges": "bytes"}
        if self.server.tags:
            headers["ETag"] = '"' + hashlib.sha256(data).hexdigest()[:16] + '"'
        if self.server.dates:
            headers["Last-Modified"] = formatdate(found.st_mtime, usegmt=True)
        span = self.headers.get("Range")
        if span is None:
            return 200, headers, data
        first, last = span.removeprefix("bytes=").split("-")
        start = int(first) if first else max(len(data) - int(last), 0)
        stop = min(int(last) + 1, len(data)) if first and last else len(data)
        if start >= len(data):
            return 416, headers | {"Content-Range": f"bytes */{len(data)}"}, b""
        span = f"bytes {start}-{stop - 1}/{len(data)}"
        return 206, headers | {"Content-Range": span}, data[start:stop]


class Server(http.server.ThreadingHTTPServer):
    """A server that does not speak of connections that were closed."""

    daemon_threads = True

    def handle_error(self, request, client_address):
        pass


@contextmanager
def web_server(folder, host="127.0.0.1", family=socket.AF_INET, handler=Handler, **settings):
    """Serve a folder; the server has a `url`, and `requests` with method, path and headers."""
    handler = functools.partial(handler, directory=str(folder))
    kind = type(Server.__name__, (Server,), {"address_family": family})
    server = kind((host, 0), handler)
    server.lock, server.requests, server.count = threading.Lock(), [], Counter()
    start = {"rate": 0.0, "seed": 0, "faults": FAULTS, "tags": True, "dates": True, "lists": False,
             "head": True, "links": None, "before": None, "rewrite": None}  # fmt: skip
    for name, value in (start | settings).items():
        setattr(server, name, value)
    server.url = f"http://{host}:{server.server_address[1]}"
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
