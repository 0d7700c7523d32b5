"""Heads of requests that an attacker would send, made at random, and what they reach."""

from __future__ import annotations

import random
import socket
from collections import Counter

SECRET = b"the secret"

PARTS = [
    b"..", b".", b"", b"%2e%2e", b"%2E%2e", b"%252e%252e", b"..%2f", b"..%5c", b"\\", b"%5c..",
    b"%00", b"secret.txt", b"%2fetc%2fpasswd", b"etc", b"passwd", b"file:", b"%ff", b"%c0%ae",
    b"%", b"%zz", b"~", b"C:", b"a" * 300, b"v3", b"v2", b"native-grids", b"x", b"c", b"0", b"0.0",
    b"-1", b"1e9", b"00", b"99999999999999999999", b"zarr.json", b".zarray", b"@1", b"@-1", b"@x",
    b"-", b"*", b"?", b";", b"%0d%0aSet-Cookie:a", b"\xe2\x80\xae", b"<script>", b"'", b'"',
]  # fmt: skip
"""Parts of hostile paths."""

_GOOD = (b"/v3/zarr.json", b"/v2/.zmetadata", b"/v3/x/c/0/0", b"/v2/x/0.0", b"/", b"/metrics")
_BEFORE = (b"", b"http://localhost", b"http://localhost@127.0.0.1:22", b"file://", b"gopher://x")
_METHODS = (b"GET",) * 20 + (b"HEAD", b"POST", b"PUT", b"TRACE", b"CONNECT", b"get", b"G\x00T")
_VERSIONS = (b"HTTP/1.1",) * 30 + (b"HTTP/1.0", b"HTTP/0.9", b"HTTP/2.0", b"HTTP/9.9", b"")
_ENDS = (b"\r\n",) * 99 + (b"\n", b"\r", b"\r\n ", b"\x00\r\n")
_HEADERS = [
    b"Host: localhost", b"Host: evil.example", b"Host: localhost:x", b"Host: [::1", b"Host:",
    b"Range: bytes=0-1", b"Range: bytes=-0", b"Range: bytes=9-1", b"Range: bytes=-99999999999999",
    b"Range: bytes=0-" + b"9" * 400, b"Range: bytes=" + b"0-1," * 4000, b"Range: secret=0-1",
    b"If-Range: " + b'"' * 500, b"If-None-Match: *", b"If-None-Match: " + b'W/"",' * 3000,
    b"If-Match: \xff\xfe", b"Content-Length: 0", b"Content-Length: -1", b"Content-Length: 99999",
    b"Content-Length: 0x10", b"Transfer-Encoding: chunked", b"Transfer-Encoding: identity, x",
    b"Expect: 100-continue", b"Connection: Upgrade\r\nUpgrade: websocket", b"Connection: close",
    b"Upgrade: h2c", b"Accept-Encoding: gzip;q=x, *;q=9e9", b"X-Forwarded-For: ../secret.txt",
    b"X-Original-URL: /../secret.txt", b"X-Rewrite-URL: /etc/passwd", b"Origin: null",
    b"Origin: http://localhost:1\r\nAccess-Control-Request-Method: PUT", b"Origin: http://[",
    b"Authorization: Basic " + b"A" * 999, b"Authorization: Bearer \x00", b"Cookie: a=b",
    b"X: " + b"a" * 40_000, b"X" * 40_000 + b": a", b": nothing", b"No colon", b"X : space",
    b"X:\ttab", b"X: a\r\n folded", b"\x00: nul",
]  # fmt: skip


def make_head(choose: random.Random) -> bytes:
    """Return a request, most of which are none."""
    path = b"/" + b"/".join(choose.choices(PARTS, k=choose.randint(1, 8)))
    target = choose.choice(_BEFORE[:1] * 6 + _BEFORE) + (
        path if choose.random() < 0.4 else choose.choice(_GOOD)
    )
    lines = [b" ".join((choose.choice(_METHODS), target, choose.choice(_VERSIONS)))]
    lines += choose.sample(_HEADERS, choose.randint(0, 3))
    if choose.random() < 0.7:
        lines.append(b"Host: localhost")
    head = b"".join(line + choose.choice(_ENDS) for line in lines)
    return head + choose.choice((b"\r\n", b"\r\n", b"\r\nbody", b""))


def send_head(port: int, head: bytes) -> bytes:
    """Send a head and nothing more; return all that comes back."""
    answer = b""
    with socket.create_connection(("127.0.0.1", port), 5) as connection:
        connection.settimeout(5)
        try:
            connection.sendall(head)
            connection.shutdown(socket.SHUT_WR)
            while data := connection.recv(1 << 16):
                answer += data
        except ConnectionError:
            pass
    return answer


def attack(port: int, count: int, seed: int) -> Counter[bytes]:
    """Send so many heads; return how often each status came (empty: no answer).

    Raises
    ------
    AssertionError
        Something came that is not served, or the server failed.
    """
    choose, statuses = random.Random(seed), Counter[bytes]()
    for _ in range(count):
        head = make_head(choose)
        answer = send_head(port, head)
        assert SECRET not in answer, head
        assert b"root:" not in answer, head
        assert b"set-cookie" not in answer.lower(), head
        status = answer[9:12]
        assert status in ALLOWED, (status, head[:300])
        statuses[status] += 1
    return statuses


ALLOWED = (
    b"", b"100", b"200", b"204", b"206", b"304", b"400", b"401", b"403", b"404", b"405", b"412",
    b"416", b"502",
)  # fmt: skip
"""Statuses of answers: others, such as 500, would be a failure of the server."""
