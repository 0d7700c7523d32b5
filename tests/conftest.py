"""Fixtures that several rooms use."""

from __future__ import annotations

import functools
import http.server
import os
import threading

import pytest
from hypothesis import settings

from tests.sweeps import IS_THOROUGH
from virtualzarr.config import config

# Tests count requests, and machines that are busy answer late.
config.hedge_requests = False

# Busy machines are no failures. Continuous integration tries the same examples every time, so that
# a change is judged by what it changes; runs by hand go on looking.
settings.register_profile("house", deadline=None)
settings.register_profile("ci", deadline=None, derandomize=True)
settings.load_profile("ci" if os.environ.get("CI") else "house")


def pytest_ignore_collect(collection_path, config):
    """Leave xarray's own tests to runs of the marker: they need the newest of others' libraries.

    Continuous integration runs them there, beside which they would be run twice.
    """
    is_named = "interop" in config.option.markexpr or any(
        "xarray_suite" in argument for argument in config.args
    )
    if collection_path.name == "test_xarray_suite.py" and not (is_named or IS_THOROUGH):
        return True
    return None


class RangeHandler(http.server.SimpleHTTPRequestHandler):
    """A plain file server that understands byte ranges and counts requests."""

    requests: list[str]

    def log_message(self, *args):
        pass

    def do_GET(self):
        path = self.translate_path(self.path)
        self.server.requests.append(self.path)
        if not os.path.isfile(path):
            self.send_error(404)
            return
        with open(path, "rb") as file:
            data = file.read()
        span = self.headers.get("Range")
        if span is None:
            self.send_response(200)
        else:
            first, last = span.removeprefix("bytes=").split("-")
            start = int(first) if first else max(len(data) - int(last), 0)
            stop = int(last) + 1 if first and last else len(data)
            if start >= len(data):
                self.send_error(416)
                return
            self.send_response(206)
            self.send_header(
                "Content-Range", f"bytes {start}-{min(stop, len(data)) - 1}/{len(data)}"
            )
            data = data[start:stop]
        self.send_header("Content-Length", str(len(data)))
        self.send_header("Accept-Ranges", "bytes")
        self.end_headers()
        self.wfile.write(data)


@pytest.fixture
def http_server():
    """Serve folders on loopback: ``http_server(folder) -> URL``; requests are in `.requests`."""
    pytest.importorskip("aiohttp")
    servers = []

    def serve(folder):
        handler = functools.partial(RangeHandler, directory=str(folder))
        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
        server.requests = serve.requests
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        servers.append(server)
        return f"http://127.0.0.1:{server.server_address[1]}"

    serve.requests = []
    yield serve
    for server in servers:
        server.shutdown()
        server.server_close()
