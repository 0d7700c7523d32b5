"""Servers on loopback that speak as GCS and Azure do, as far as datasets ask them.

What they know is what both document: GCS compares generations and nothing else, Azure entity tags,
which say nothing of the bytes; both answer `412` where a condition does not hold, but Azure `409`
to who creates what is there already, and both `404` to who deletes what is not.
"""

from __future__ import annotations

import re
from email.utils import formatdate
from itertools import count
from urllib.parse import unquote, urlsplit
from xml.sax.saxutils import escape

from tests.dataset.s3_server import Server, error, etag, span


class CloudServer(Server):
    """Objects in memory, with the number of the request that stored each."""

    scheme = ""

    def __init__(self) -> None:
        super().__init__()
        self.numbers: dict[str, int] = {}
        self.next_number = count(1_700_000_000_000_001)

    def store(self, key: str, body: bytes) -> dict[str, str]:
        self.objects[key], self.numbers[key] = body, next(self.next_number)
        return self.tags(key)

    def tags(self, key: str) -> dict[str, str]:
        raise NotImplementedError

    def of_object(self, method, key, headers, body):
        if method == "PUT":
            refusal = self.find_refusal(key, headers)
            if refusal is not None and (self.is_strict or refusal[0] == 400):
                return refusal
            return 201, self.store(key, body), b""
        if key not in self.objects:
            return self.missing()
        if method == "DELETE":
            del self.objects[key]
            return 204, {}, b""
        data = self.objects[key]
        found = self.tags(key) | {"Last-Modified": formatdate(1e9, usegmt=True)}
        if match := re.fullmatch(r"bytes=(\d*)-(\d*)", headers.get("Range", "")):
            start, stop = span(match, len(data))
            if start >= len(data):
                return error(416, "InvalidRange")
            found["Content-Range"] = f"bytes {start}-{stop - 1}/{len(data)}"
            return 206, found, data[start:stop]
        return 200, found, data

    def missing(self):
        return error(404, "NoSuchKey")


class GcsServer(CloudServer):
    """The XML interface of GCS."""

    scheme = "gs"

    def options(self):
        return {"token": "anon", "endpoint_url": self.url}

    def tags(self, key):
        number = str(self.numbers[key])
        return {"ETag": etag(self.objects[key]), "x-goog-generation": number}

    def find_refusal(self, key, headers):
        """Look at the generation; headers that S3 knows are not understood."""
        expected = headers.get("x-goog-if-generation-match")
        if expected is None:
            return None
        if not expected.isdigit():
            return error(400, "InvalidArgument")
        current = self.numbers[key] if key in self.objects else 0
        return None if int(expected) == current else error(412, "PreconditionFailed")

    def of_bucket(self, method, bucket, query, body):
        if method == "POST":
            return error(400, "InvalidArgument")  # it has no way to delete many
        return super().of_bucket(method, bucket, query, body)


class AzureServer(CloudServer):
    """Blobs of an account whose name is the first part of each path, as in emulators."""

    scheme = "az"
    account = "devstoreaccount1"

    def options(self):
        key = "c2VjcmV0"
        return {
            "connection_string": f"AccountName={self.account};AccountKey={key};"
            f"BlobEndpoint={self.url}/{self.account};"
        }

    def tags(self, key):
        return {"ETag": f'"0x8D{self.numbers[key]:013X}"'}

    def find_refusal(self, key, headers):
        current = self.tags(key)["ETag"] if key in self.objects else None
        if headers.get("If-None-Match") == "*" and current is not None:
            return error(409, "BlobAlreadyExists")
        if (expected := headers.get("If-Match")) is None:
            return None
        if not re.fullmatch(r'"0x[0-9A-F]+"', expected):
            return error(400, "InvalidHeaderValue")
        return None if expected == current else error(412, "ConditionNotMet")

    def missing(self):
        return error(404, "BlobNotFound")

    def perform(self, method, path, headers, body):
        return super().perform(method, path.removeprefix(f"/{self.account}"), headers, body)

    def of_bucket(self, method, bucket, query, body):
        if method == "POST" and query.get("comp") == ["batch"]:
            return self.delete_batch(body)
        prefix, delimiter = query.get("prefix", [""])[0], query.get("delimiter", [""])[0]
        names, prefixes = [], set()
        for key in sorted(self.objects):
            name = key.removeprefix(f"{bucket}/")
            if name.startswith(prefix):
                first, mark, _ = name[len(prefix) :].partition(delimiter or "\0")
                if mark:
                    prefixes.add(prefix + first + mark)
                else:
                    names.append(name)
        blobs = "".join(
            f"<Blob><Name>{escape(name)}</Name><Properties><Last-Modified>"
            f"{formatdate(1e9, usegmt=True)}</Last-Modified><Content-Length>"
            f"{len(self.objects[f'{bucket}/{name}'])}</Content-Length><Etag>0x8D</Etag>"
            "<Content-Type>application/octet-stream</Content-Type><BlobType>BlockBlob</BlobType></Properties></Blob>"
            for name in names
        )
        blobs += "".join(f"<BlobPrefix><Name>{escape(p)}</Name></BlobPrefix>" for p in prefixes)
        document = (
            f'<?xml version="1.0" encoding="utf-8"?><EnumerationResults ContainerName="{bucket}">'
            f"<Prefix>{escape(prefix)}</Prefix><Blobs>{blobs}</Blobs><NextMarker/></EnumerationResults>"
        )
        return 200, {"Content-Type": "application/xml"}, document.encode()

    def delete_batch(self, body):
        """Delete up to 256 blobs; each part of the answer has a status of its own."""
        parts = []
        for number, path in enumerate(re.findall(r"DELETE (\S+) HTTP", body.decode())):
            key = unquote(urlsplit(path).path).removeprefix(f"/{self.account}").strip("/")
            known = self.objects.pop(key, None) is not None
            status = "202 Accepted" if known else "404 The specified blob does not exist."
            parts.append(
                "--batchresponse_1\r\nContent-Type: application/http\r\n"
                f"Content-ID: {number}\r\n\r\nHTTP/1.1 {status}\r\nx-ms-version: 2023-11-03\r\n\r\n"
            )
        answer = "".join(parts) + "--batchresponse_1--\r\n"
        return 202, {"Content-Type": "multipart/mixed; boundary=batchresponse_1"}, answer.encode()


class SignedAzureServer(AzureServer):
    """Answers to a shared access signature alone, in pages of few blobs."""

    signature = "sv=2023&sig=S%2Bec%2Fret%3D"

    def options(self):
        place = f"AccountName={self.account};BlobEndpoint={self.url}/{self.account};"
        return {"connection_string": place, "sas_token": f"?{self.signature}"}

    def perform(self, method, path, headers, body):
        if self.signature not in path and b"batch" not in body:
            return error(403, "AuthenticationFailed")
        status, found, document = super().perform(method, path, headers, body)
        return (202 if method == "DELETE" and status == 204 else status), found, document

    def of_bucket(self, method, bucket, query, body):
        status, found, document = super().of_bucket(method, bucket, query, body)
        if method == "POST":
            return status, found, document
        pages = re.findall(rb"<Blob>.*?</Blob>|<BlobPrefix>.*?</BlobPrefix>", document)
        first = int(query.get("marker", ["0"])[0])
        mark = str(first + 3) if first + 3 < len(pages) else ""
        listed = b"".join(pages[first : first + 3]).decode()
        document = (
            f"<EnumerationResults><Blobs>{listed}</Blobs><NextMarker>{mark}</NextMarker>"
            "</EnumerationResults>"
        )
        return status, found, document.encode()
