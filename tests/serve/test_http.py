"""Answers of the server: keys, tags, ranges, conditions, failures, and who may ask."""

from __future__ import annotations

import asyncio
import base64
import gzip
import json
import os
import shutil
import struct
import zlib

import h5py
import imagecodecs
import numcodecs
import numcodecs.blosc
import numpy as np
import pytest

import virtualzarr as vz
from tests.serve.nasty import iter_arrays, make_hdf5, make_joined, make_masked, make_stored
from tests.serve.serving import ask, ask_async
from virtualzarr.cli import main
from virtualzarr.cli.commands.serve import is_loopback
from virtualzarr.serve import create_app, run_in_thread
from virtualzarr.stores.files import OpenFile


@pytest.fixture(scope="module")
def app(tmp_path_factory):
    folder = tmp_path_factory.mktemp("one")
    return create_app({
        "joined": make_joined(folder), "many": make_hdf5(folder), "stored": make_stored(folder),
        "masked": make_masked(folder),
    })  # fmt: skip


def test_documents_are_padded_and_compressed_for_who_asks(app):
    plain = ask(app, "/joined/v3/zarr.json")
    assert plain.status == 200
    assert len(plain.body) % 4096 == 0
    assert {*json.loads(plain.body)["consolidated_metadata"]["metadata"]} == {
        "air", "time", "x", "y", "station",
    }  # fmt: skip
    packed = ask(app, "/joined/v3/zarr.json", headers={"accept-encoding": "gzip, br"})
    assert packed.headers["content-encoding"] == "gzip"
    assert gzip.decompress(packed.body) == plain.body
    assert packed.headers["etag"] != plain.headers["etag"]
    assert "Accept-Encoding" in packed.headers["vary"]
    again = {"accept-encoding": "gzip", "if-none-match": packed.headers["etag"]}
    assert ask(app, "/joined/v3/zarr.json", headers=again).status == 304
    part = {"range": "bytes=0-99", "accept-encoding": "gzip"}
    assert ask(app, "/joined/v3/zarr.json", headers=part).body == plain.body[:100]


@pytest.mark.parametrize(
    ("path", "kind"), [("/joined/v3/air/c/0/0/0", "encoded"), ("/joined/v3/y/c/0", "passthrough")]
)
def test_chunks_have_tags_ranges_and_heads(app, path, kind):
    whole = ask(app, path)
    tag, size = whole.headers["etag"], len(whole.body)
    assert (whole.status, whole.headers["content-length"]) == (200, str(size))
    head = ask(app, path, "HEAD")
    assert (head.status, head.body) == (200, b"")
    assert head.headers == whole.headers
    fresh = ask(app, path, headers={"if-none-match": f'"other", W/{tag}'})
    assert (fresh.status, fresh.body, fresh.headers["etag"]) == (304, b"", tag)
    assert ask(app, path, headers={"if-match": '"other"'}).status == 412
    for text, start, stop in [("0-9", 0, 10), ("5-", 5, size), ("-7", size - 7, size),
                              (f"3-{size + 9}", 3, size)]:  # fmt: skip
        part = ask(app, path, headers={"range": f"bytes={text}"})
        assert (part.status, part.body) == (206, whole.body[start:stop])
        assert part.headers["content-range"] == f"bytes {start}-{stop - 1}/{size}"
        assert part.headers["content-length"] == str(stop - start)
    for text in ("bytes=0-1,4-5", "bytes=9-3", "bytes=x", "lines=0-1"):
        assert ask(app, path, headers={"range": text}).body == whole.body
    beyond = ask(app, path, headers={"range": f"bytes={size}-"})
    assert (beyond.status, beyond.headers["content-range"]) == (416, f"bytes */{size}")
    stale = {"range": "bytes=0-1", "if-range": '"other"'}
    assert ask(app, path, headers=stale).status == 200
    # If-Match first, and strongly.
    assert ask(app, path, headers={"if-match": tag, "if-none-match": '"other"'}).status == 200
    assert ask(app, path, headers={"if-match": f"W/{tag}"}).status == 412
    assert ask(app, path, headers={"if-match": '"other"', "if-none-match": tag}).status == 412


def test_conditions_of_documents_are_looked_at_in_their_order(app):
    path = "/joined/v3/zarr.json"
    tag = ask(app, path).headers["etag"]
    assert ask(app, path, headers={"if-match": '"other"', "if-none-match": tag}).status == 412
    assert ask(app, path, headers={"if-match": f"W/{tag}"}).status == 412
    packed = ask(app, path, headers={"if-match": tag, "accept-encoding": "gzip"})
    assert (packed.status, packed.headers["content-encoding"]) == (200, "gzip")
    head = ask(app, path, "HEAD", headers={"accept-encoding": "gzip"})
    assert (head.headers, head.body) == (packed.headers, b"")


def test_keys_are_found_or_missing(app):
    for path in (
        "/joined/v3", "/joined/v3/", "/joined/v3/air", "/joined/v3/air/", "/joined/v3/air/c",
        "/joined/v3/air/c/0/0", "/joined/v3/air/c/9/0/0", "/joined/v3/air/c/00/0/0",
        "/joined/v3/air/c/0/0/0/", "/joined/v3/air/c/99999999999999999999/0/0",
        "/joined/v3/.zarray", "/joined/v3/air/0.0.0", "/joined/v2/air/c/0/0/0",
        "/joined/v2/zarr.json", "/joined/v2/air/0.0", "/joined/@1/v3/zarr.json", "/joined/v4/a",
        "/nothing/v3/zarr.json", "/many/v3/none/c/0/0",
    ):  # fmt: skip
        assert ask(app, path).status == 404, path
    assert ask(app, "/many/v3/scalar/c").body == np.float64(2.5).tobytes()
    assert ask(app, "/many/v2/scalar/0").body == np.float64(2.5).tobytes()
    assert ask(app, "/many/v3/inner/c/c/0").body == np.arange(5, dtype="<u8").tobytes()


def test_a_chunk_that_is_missing_is_404_and_one_of_fill_values_where_v2_cannot_say_so(app):
    assert ask(app, "/many/v3/never/c/0/0").status == 404
    assert ask(app, "/masked/v3/a/c/0/0").status == 404
    assert ask(app, "/masked/v2/a/0.0").status == 404
    # Here the fill value is no missing value: in v2 xarray would take it for one.
    filled = ask(app, "/many/v2/never/0.0")
    np.testing.assert_array_equal(np.frombuffer(filled.body, "<i4"), [-7] * 20)
    assert json.loads(ask(app, "/many/v2/never/.zarray").body)["fill_value"] is None


def test_zlib_is_rewrapped_for_v3(app):
    path = "/many/v3/smooth/c/0/0"
    passed, rewrapped = ask(app, "/many/native-grids/smooth/c/0/0"), ask(app, path)
    # The same stream behind a head of Blosc: nothing was compressed anew.
    assert rewrapped.body[24:] == passed.body
    assert bytes(numcodecs.blosc.decompress(rewrapped.body)) == zlib.decompress(passed.body)
    for span in ((0, 1), (3, 24), (5, 40), (24, 40), (23, 25), (60, len(rewrapped.body))):
        headers = {"range": f"bytes={span[0]}-{span[1] - 1}"}
        part = ask(app, path, headers=headers)
        assert part.body == rewrapped.body[slice(*span)]
    head = ask(app, path, "HEAD")
    assert head.headers["content-length"] == str(len(rewrapped.body))


@pytest.mark.parametrize("compression", ["zlib", "zstd"])
@pytest.mark.parametrize("dtype", ["<f4", ">f8", "<i2", "u1", "<c16", [("a", "<i4"), ("b", "u1")]])
@pytest.mark.parametrize("shuffle", [True, False])
def test_shuffled_chunks_get_a_head_of_blosc(tmp_path, dtype, shuffle, compression):
    dtype = np.dtype(dtype)
    random = np.random.default_rng(0)
    numbers = random.integers(0, 99, (7, 40 * 30 * dtype.itemsize), "u1").cumsum(axis=1) // 1000
    values = numbers.astype("u1").view(dtype).reshape(7, 40, 30)
    options = (
        {"compression": 4}
        if compression == "zlib"
        else {"compression": 32015, "compression_opts": (3,)}
    )
    if compression == "zstd":
        pytest.importorskip("hdf5plugin")
    write(tmp_path / "a.h5", values, chunks=(1, 40, 30), shuffle=shuffle, **options)
    array = vz.open(tmp_path / "a.h5")["x"]
    app = create_app(array)
    served = json.loads(ask(app, "/v3/zarr.json").body)
    if compression == "zstd" and not shuffle:
        assert served["codecs"][-1]["name"] == "zstd"  # which passes as it is
        return
    assert served["codecs"][-1]["configuration"]["cname"] == compression
    for number in range(7):
        body = ask(app, f"/v3/c/{number}/0/0").body
        source = array.manifest
        assert len(body) == 24 + int(source.length[number, 0, 0])
        assert bytes(numcodecs.blosc.decompress(body)) == values[number].tobytes()
        assert imagecodecs.blosc_decode(body) == values[number].tobytes()
    assert b'kind="rewrapped"' in ask(app, "/metrics").body


CHECKED = {"shuffle": True, "compression": "gzip", "fletcher32": True}
SHUFFLED = {"shuffle": True, "compression": "lzf"}


def refuse_engine(monkeypatch):
    def refuse(self, *items, **more):
        raise AssertionError("the engine is not needed")

    monkeypatch.setattr(vz.Array, "read", refuse)


@pytest.mark.parametrize("dtype", ["<f4", "<f8", "<i2", "<c16", ">f4", "u1"])
@pytest.mark.parametrize("noise", [True, False])
def test_shuffled_chunks_are_not_shuffled_back(tmp_path, monkeypatch, dtype, noise):
    random = np.random.default_rng(0)
    numbers = random.integers(0, 256, (5, 40 * 30 * np.dtype(dtype).itemsize), "u1")
    if not noise:
        numbers = (numbers.cumsum(axis=1) // 3000).astype("u1")
    values = numbers.view(dtype).reshape(5, 40, 30)
    array = vz.open(write(tmp_path / "a.h5", values, chunks=(1, 40, 20), **SHUFFLED))["x"]
    app = create_app(array)
    codecs = json.loads(ask(app, "/v3/zarr.json").body)["codecs"]
    served = app.entries[""].snapshot.faces["v3"].arrays[""].metadata
    block = served.pipeline.for_block((1, 40, 20), served.dtype, 0)
    fits = dtype in ("<f4", "<f8", "<i2", "<c16") and not noise
    for number in range(5):
        # The second of each row goes past the array's end.
        for column in (1, 0):
            if fits and not column:
                with monkeypatch.context() as patch:
                    refuse_engine(patch)
                    body = ask(app, f"/v3/c/{number}/0/0").body
                (size,) = struct.unpack("<I", body[8:12])
                assert size == 40 * 20 * np.dtype(dtype).itemsize
            else:
                body = ask(app, f"/v3/c/{number}/0/{column}").body
            expected = np.zeros((1, 40, 20), dtype)
            part = values[number, :, 20 * column : 20 * column + 20]
            expected[0, :, : part.shape[1]] = part
            decoded = block.decode(body)
            assert decoded.tobytes() == expected.astype(decoded.dtype).tobytes()
            if codecs[-1]["name"] == "blosc":
                assert bytes(numcodecs.blosc.decompress(body)) == decoded.tobytes()
                assert imagecodecs.blosc_decode(body) == decoded.tobytes()
    assert b'kind="encoded"' in ask(app, "/metrics").body


@pytest.mark.parametrize("dtype", ["<f4", "<f8", ">i2", "u1"])
@pytest.mark.parametrize("shuffle", [True, False])
def test_chunks_with_checksums_are_checked_and_sent_without(tmp_path, monkeypatch, dtype, shuffle):
    numbers = np.random.default_rng(0).integers(0, 4, (5, 30, 40))
    values = numbers.astype(dtype)
    options = CHECKED | {"shuffle": shuffle, "chunks": (1, 30, 25)}
    array = vz.open(write(tmp_path / "a.h5", values, **options))["x"]
    app = create_app(array)
    refuse_engine(monkeypatch)
    for number in range(5):
        for column in range(2):
            body = ask(app, f"/v3/c/{number}/0/{column}").body
            assert len(body) == 24 + int(array.manifest.length[number, 0, column]) - 4
            part = values[number, :, 25 * column : 25 * column + 25]
            for decode in (numcodecs.blosc.decompress, imagecodecs.blosc_decode):
                decoded = np.frombuffer(decode(body), dtype).reshape(30, 25)
                np.testing.assert_array_equal(decoded[:, : part.shape[1]], part)
            again = ask(app, f"/v3/c/{number}/0/{column}", headers={"range": "bytes=10-40"})
            assert (again.status, again.body) == (206, body[10:41])
            length = ask(app, f"/v3/c/{number}/0/{column}", "HEAD").headers["content-length"]
            assert int(length) == len(body)
    assert b'kind="rewrapped"' in ask(app, "/metrics").body


def test_large_chunks_with_checksums_are_not_read_whole(tmp_path):
    """They are cut, so that a request takes little memory."""
    path = write(tmp_path / "a.h5", np.ones((2, 3 << 20), "f4"), chunks=(1, 3 << 20), **CHECKED)
    app = create_app(path)
    served = app.entries[""].snapshot.faces["v3"].arrays["x"]
    assert not served.choice.rewraps
    assert np.prod(served.metadata.grid.chunk_shape) * 4 <= 8 << 20


@pytest.mark.parametrize("compression", ["gzip", "lzf"])
def test_shuffled_chunks_that_are_damaged_or_without_a_filter(tmp_path, compression):
    checked = CHECKED | {"compression": compression}
    values = (np.arange(4 * 900) // 7).astype("f4").reshape(4, 900)
    with h5py.File(tmp_path / "a.h5", "w") as file:
        x = file.create_dataset("x", data=values, chunks=(1, 900), **checked)
        y = file.create_dataset("y", data=values, chunks=(1, 900), compression=compression)
        stored = x.id.read_direct_chunk((0, 0))[1]
        x.id.write_direct_chunk((0, 0), stored[:-1] + bytes([stored[-1] ^ 1]))
        x.id.write_direct_chunk((1, 0), stored[:40] + bytes(30) + stored[70:])
        # Without the shuffle and the checksum.
        x.id.write_direct_chunk((2, 0), y.id.read_direct_chunk((2, 0))[1], filter_mask=0b101)
    app = create_app(vz.open(tmp_path / "a.h5")["x"])
    assert [ask(app, f"/v3/c/{k}/0").status for k in range(4)] == [502, 502, 200, 200]
    for number in (2, 3):
        body = ask(app, f"/v3/c/{number}/0").body
        assert bytes(numcodecs.blosc.decompress(body)) == values[number].tobytes()


@pytest.mark.parametrize("options", [CHECKED, SHUFFLED])
def test_a_source_that_changes_while_shuffled_chunks_are_read(tmp_path, monkeypatch, options):
    path = write(tmp_path / "a.h5", np.ones((4, 900), "f4"), chunks=(1, 900), **options)
    app = create_app(path)
    read = OpenFile.read

    def change(self, *items):
        os.utime(path, ns=(1, 1))
        return read(self, *items)

    refuse_engine(monkeypatch)
    monkeypatch.setattr(OpenFile, "read", change)
    answer = ask(app, "/v3/x/c/0/0")
    assert (answer.status, b"SourceChangedError" in answer.body) == (502, True)


@pytest.mark.parametrize("change", [0, -1, 1])
def test_streams_as_long_as_what_they_give_get_no_head(tmp_path, change):
    """Blosc takes such a block for bytes that are not compressed."""
    values = np.random.default_rng(0).integers(0, 256, 2000, "u1")
    stream = zlib.compress(values, 0)  # as it is, in stored blocks
    # The stream has more bytes than the cell: give it a cell of as many, or nearly.
    for zeros in range(4000):
        data = np.concatenate([values, np.zeros(zeros, "u1")])
        stream = zlib.compress(data, 1)
        if len(stream) + change == len(data):
            break
    with h5py.File(tmp_path / "a.h5", "w") as file:
        x = file.create_dataset("x", (1, len(data)), "u1", chunks=(1, len(data)), compression=1)
        x.id.write_direct_chunk((0, 0), stream)
    app = create_app(vz.open(tmp_path / "a.h5")["x"])
    body = ask(app, "/v3/c/0/0").body
    assert bytes(numcodecs.blosc.decompress(body)) == data.tobytes()
    assert len(stream) + change == len(data)
    assert body[24:] != stream


def test_rewrapped_streams_that_are_damaged_or_of_another_length_are_errors(tmp_path):
    plain = b"abc" * 500
    stream = zlib.compress(plain)
    for number, bad in enumerate((
        stream[:-1], stream[:-4] + b"0000", b"\x78\xbb" + stream, zlib.compress(plain[:-1]),
        zlib.compress(plain + b"a"),
    )):  # fmt: skip
        path = tmp_path / f"{number}.h5"
        with h5py.File(path, "w") as file:
            x = file.create_dataset("x", (1, 1500), "u1", chunks=(1, 1500), compression=1)
            x.id.write_direct_chunk((0, 0), bad)
        answer = ask(create_app(vz.open(path)["x"]), "/v3/c/0/0")
        assert answer.status == 200
        for decode in (numcodecs.blosc.decompress, imagecodecs.blosc_decode):
            with pytest.raises(RuntimeError):
                decode(answer.body)


def test_streams_without_bytes_are_failures(tmp_path):
    """C-Blosc2, which some clients have, takes a block of no bytes for zeros."""
    plain = b"abc" * 500
    head = struct.pack("<4B5I", 2, 1, 3 << 5 | 16, 1, 1500, 1500, 24, 20, 0)
    assert bytes(imagecodecs.blosc2_decode(head)) == bytes(1500)
    values = np.frombuffer(plain, "u1").reshape(1, 1500)
    array = vz.open(write(tmp_path / "a.h5", values, chunks=(1, 1500), compression=1))["x"]
    cut = array.replace(chunk_source=array.manifest.replace(length=np.zeros((1, 1), "i8")))
    assert ask(create_app(cut), "/v3/c/0/0").status == 502
    assert ask(create_app(array), "/v3/c/0/0").status == 200


def write(path, values, **options):
    with h5py.File(path, "w") as file:
        file.create_dataset("x", data=values, **options)
    return path


@pytest.mark.parametrize(
    "options",
    [{"compression": "lzf", "fletcher32": True}, {"compression": "lzf"}],
)
def test_a_source_that_changes_before_it_is_encoded_is_a_failure(tmp_path, monkeypatch, options):
    """Also of chunks that are encoded: they may be of blocks of two versions."""
    path = write(tmp_path / "x.h5", np.ones((100, 40), "f4"), chunks=(30, 40), **options)
    app = create_app(path)
    read = vz.Array.read

    def change(self, *items, **more):
        values = read(self, *items, **more)
        os.utime(path, ns=(1, 1))
        return values

    monkeypatch.setattr(vz.Array, "read", change)
    answer = ask(app, "/v3/x/c/0/0")
    assert (answer.status, b"SourceChangedError" in answer.body) == (502, True)


@pytest.mark.parametrize("options", [{}, {"chunks": (50, 40), "compression": "lzf"}])
def test_a_source_that_changes_or_goes_is_a_failure_and_never_missing(tmp_path, options):
    values = np.arange(4000, dtype="f4").reshape(100, 40)
    path = write(tmp_path / "secret-name.h5", values, **options)
    app = create_app(path)
    key = "/v3/x/c/0/0"
    before = ask(app, key)
    assert before.status == 200
    app = create_app(path)
    ask(app, "/v3/x/c/5/0")  # what is missing does not matter
    os.utime(path, ns=(1, 1))
    changed = ask(app, key)
    assert changed.status == 502
    assert b"SourceChangedError" in changed.body
    assert b"secret-name" not in changed.body
    # GDAL would take a status for a missing chunk; what does not decode is an error there.
    told = ask(app, key, headers={"user-agent": "GDAL/3.12.2"})
    assert (told.status, told.body, told.headers["cache-control"]) == (200, b"\0", "no-store")
    assert "etag" not in told.headers
    assert b'status="502"} 2' in ask(app, "/metrics").body.replace(b".0", b"")
    os.rename(path, tmp_path / "elsewhere.h5")
    assert ask(app, key).status == 502
    # What the client has already, it may keep: the tag says that it is of the source as it was.
    assert ask(app, key, headers={"if-none-match": before.headers["etag"]}).status == 304


def test_a_source_that_changes_midway_breaks_the_answer(tmp_path):
    values = np.zeros((3, 1 << 18), "f8")
    path = write(tmp_path / "long.h5", values)
    app = create_app(path)

    async def run():
        sent = []

        async def send(message):
            sent.append(message)
            if message["type"] == "http.response.body":
                os.utime(path, ns=(1, 1))

        async def receive():
            await asyncio.sleep(3600)

        scope = {"type": "http", "method": "GET", "raw_path": b"/v3/x/c/0/0", "path": "",
                 "headers": [(b"host", b"localhost")]}  # fmt: skip
        with pytest.raises(vz.errors.SourceChangedError):
            await app(scope, receive, send)
        return sent

    sent = asyncio.run(run())
    promised = int(dict(sent[0]["headers"])[b"content-length"])
    assert 0 < sum(len(each.get("body", b"")) for each in sent[1:]) < promised
    assert all(each["more_body"] for each in sent[1:])


def test_a_chunk_that_came_after_opening_is_a_failure(tmp_path):
    group = vz.create_group(tmp_path / "a.zarr")
    array = group.create_array("x", shape=(8,), chunks=(4,), dtype="i4", fill_value=0)
    other = group.create_array("y", shape=(8, 2), chunks=(4, 2), dtype="i4")
    other[:4] = 1
    app = create_app(tmp_path / "a.zarr")
    assert ask(app, "/native-grids/y/c/1/0").status == 404
    other[4:] = 2
    assert ask(app, "/native-grids/y/c/1/0").status == 502
    assert ask(app, "/native-grids/y/c/0/0").status == 200
    array[...] = 1  # not looked at before: opened as it is now
    assert ask(app, "/native-grids/x/c/1").status == 200


def test_tags_follow_the_source_and_not_the_server(tmp_path):
    values = np.arange(4000, dtype="f4").reshape(100, 40)
    path = write(tmp_path / "a.h5", values, chunks=(50, 40), compression="lzf")
    tags = {ask(create_app(path), "/v3/x/c/0/0").headers["etag"] for _ in range(2)}
    assert len(tags) == 1
    write(path, values + 1, chunks=(50, 40), compression="lzf")
    tags.add(ask(create_app(path), "/v3/x/c/0/0").headers["etag"])
    assert len(tags) == 2
    keys = ("v3/x/c/0/0", "v3/x/c/1/0", "v2/x/0.0", "v2/x/1.0")
    assert len({ask(create_app(path), f"/{key}").headers["etag"] for key in keys}) == 4


def test_references_without_fingerprints_are_pinned_when_they_are_first_used(tmp_path):
    raw = tmp_path / "raw.bin"
    raw.write_bytes(np.arange(6, dtype="<i4").tobytes())
    zarray = {"zarr_format": 2, "shape": [2, 3], "chunks": [1, 3], "dtype": "<i4", "order": "C",
              "fill_value": 0, "filters": None, "compressor": None}  # fmt: skip
    refs = {".zgroup": '{"zarr_format": 2}', "a/.zarray": json.dumps(zarray),
            "a/0.0": [str(raw), 0, 12], "a/1.0": [str(raw), 12, 12]}  # fmt: skip
    (tmp_path / "refs.json").write_text(json.dumps({"version": 1, "refs": refs}))
    app = create_app(tmp_path / "refs.json")
    assert ask(app, "/v2/a/1.0").body == np.array([3, 4, 5], "<i4").tobytes()
    raw.write_bytes(np.arange(1, 7, dtype="<i4").tobytes())
    os.utime(raw, ns=(1, 1))
    assert ask(app, "/v2/a/0.0").status == 502


def test_large_blocks_are_cut_where_they_are_not_compressed(tmp_path, monkeypatch):
    monkeypatch.setattr("virtualzarr.serve.cells.MAX_ENCODED_CELL", 4000)
    monkeypatch.setattr("virtualzarr.serve.face.MAX_ENCODED_CELL", 4000)
    values = np.arange(99 * 40, dtype="f4").reshape(99, 40)
    path = write(tmp_path / "a.h5", values)
    app = create_app(path)
    document = json.loads(ask(app, "/v3/x/zarr.json").body)
    lengths = document["chunk_grid"]["configuration"]["chunk_shape"]
    assert lengths == [25, 40]
    kinds = [app.entries[""].snapshot.faces["v3"].arrays["x"].find((k, 0)).kind for k in range(4)]
    assert kinds == ["passthrough"] * 3 + ["encoded"]
    chunks = [np.frombuffer(ask(app, f"/v3/x/c/{k}/0").body, "f4") for k in range(4)]
    np.testing.assert_array_equal(np.concatenate(chunks)[: 99 * 40], values.ravel())


def test_everything_but_reading_is_refused(app):
    for method in ("PUT", "POST", "DELETE", "PATCH", "PROPFIND", "TRACE"):
        answer = ask(app, "/joined/v3/zarr.json", method)
        assert (answer.status, answer.headers["allow"]) == (405, "GET, HEAD, OPTIONS")
    for headers in ({"content-length": "3"}, {"transfer-encoding": "chunked"}):
        assert ask(app, "/joined/v3/zarr.json", headers=headers).status == 400


TOKEN = "correct horse"


def basic(password):
    return {"authorization": "Basic " + base64.b64encode(f"me:{password}".encode()).decode()}


def test_a_token_is_asked_for_before_anything_else(tmp_path):
    app = create_app(write(tmp_path / "a.h5", np.arange(4)), tokens=[TOKEN, "other"])
    for path in ("/v3/zarr.json", "/nothing", "/", "/metrics", "/v3/x/c/0"):
        for headers in ({}, {"authorization": "Bearer wrong"}, basic("wrong"), basic(""),
                        {"authorization": "Basic %%%"}, {"authorization": TOKEN}):  # fmt: skip
            answer = ask(app, path, headers=headers)
            assert (answer.status, answer.body) == (401, b"a token is needed\n"), (path, headers)
            assert answer.headers["www-authenticate"].startswith("Basic")
    for headers in (basic(TOKEN), basic("other"), {"authorization": f"Bearer {TOKEN}"}):
        assert ask(app, "/v3/zarr.json", headers=headers).status == 200
    assert ask(app, "/healthz").body == b"ok\n"
    preflight = ask(app, "/v3/zarr.json", "OPTIONS", {"origin": "https://a.org"})
    assert preflight.status == 204
    assert "Authorization" in preflight.headers["access-control-allow-headers"]


def test_web_pages_elsewhere_cannot_read_a_local_server(app):
    local = {"origin": "http://localhost:5173"}
    path = "/joined/v3/zarr.json"
    answer = ask(app, path, headers=local)
    assert answer.headers["access-control-allow-origin"] == local["origin"]
    assert "ETag" in answer.headers["access-control-expose-headers"]
    assert ask(app, path, headers={"origin": "https://evil.org"}).status == 403
    assert ask(app, path, headers={"origin": "null"}).status == 403
    for host in ("evil.org", "evil.org:8000", "localhost.evil.org", "", "[::1"):
        assert ask(app, path, headers={"host": host}).status == 403
    for host in ("localhost", "127.0.0.1:8000", "[::1]:8000"):
        assert ask(app, path, headers={"host": host}).status == 200
    refused = ask(app, path, "OPTIONS", {"origin": "https://evil.org"})
    assert "access-control-allow-origin" not in refused.headers


def test_public_servers_are_for_all_pages(tmp_path):
    app = create_app(write(tmp_path / "a.h5", np.arange(4)), public=True)
    headers = {"origin": "https://a.org", "host": "data.example.org"}
    assert ask(app, "/v3/zarr.json", headers=headers).headers["access-control-allow-origin"] == "*"
    named = create_app(tmp_path / "a.h5", public=True, origins=["https://b.org"])
    assert "access-control-allow-origin" not in ask(named, "/v3/zarr.json", headers=headers).headers


def test_mounted_applications_see_the_rest_of_the_path(app):
    scope = {"root_path": "/data"}
    assert ask(app, "/data/joined/v3/zarr.json", scope=scope).status == 200
    without_raw = scope | {"raw_path": None, "path": "/data/joined/v3/zarr.json"}
    assert ask(app, "/", scope=without_raw).status == 200


def test_addresses_that_others_reach_need_a_token_or_public(tmp_path, capsys, monkeypatch):
    monkeypatch.delenv("VIRTUALZARR_TOKEN", raising=False)
    path = str(write(tmp_path / "a.h5", np.arange(4)))
    for host in ("0.0.0.0", "192.168.0.1", "::", "example.org"):
        assert not is_loopback(host)
        assert main(["serve", path, "--host", host]) == 1
        assert "--token-file" in capsys.readouterr().err
    (tmp_path / "empty").write_text("\n")
    assert main(["serve", path, "--token-file", str(tmp_path / "empty")]) == 1
    assert all(map(is_loopback, ["127.0.0.1", "127.0.0.2", "::1", "localhost"]))


def test_names_in_urls(tmp_path):
    paths = [str(write(tmp_path / name, np.arange(4))) for name in ("a.h5", "b.h5")]
    assert {*create_app(paths).entries} == {"a", "b"}
    assert {*create_app([f"sea={paths[0]}", paths[1]]).entries} == {"sea", "b"}
    for bad in ([paths[0], paths[0]], [f"v3={paths[0]}", paths[1]], {"a/b": paths[0]},
                {"..": paths[0]}, {"": paths[0], "b": paths[1]}):  # fmt: skip
        with pytest.raises(ValueError, match="name"):
            create_app(bad)


def test_equal_chunks_asked_at_once_are_encoded_once(tmp_path):
    folder = tmp_path / "joined"
    app = create_app(make_joined(folder))

    async def run():
        answers = [ask_async(app, "/v3/air/c/0/0/0") for _ in range(20)]
        return {answer.body for answer in await asyncio.gather(*answers)}

    assert len(asyncio.run(run())) == 1
    text = app.delivery.metrics.render().decode()
    assert 'virtualzarr_encoded_total{origin="computed"} 1.0' in text


def test_chunks_that_are_encoded_at_the_same_time_are_all_their_own(tmp_path):
    # Decoded in memory that threads use again; the last is padded. NaN and zeros are among them.
    values = np.random.default_rng(0).normal(size=(61, 512)).astype("f4")
    values[5], values[::7] = np.nan, 0
    path = write(tmp_path / "a.h5", values, chunks=(4, 512), compression="gzip", shuffle=True)
    app = create_app(path)

    async def run():
        return await asyncio.gather(*(ask_async(app, f"/v3/x/c/{i}/0") for i in range(16)))

    bodies = [answer.body for answer in asyncio.run(run())]
    blocks = np.stack([np.frombuffer(numcodecs.Blosc().decode(body), "f4") for body in bodies])
    np.testing.assert_array_equal(blocks.reshape(64, 512)[:61], values)
    np.testing.assert_array_equal(blocks.reshape(64, 512)[61:], 0)


async def test_what_is_encoded_for_one_who_goes_is_there_for_the_next(tmp_path):
    app = create_app(make_joined(tmp_path / "joined"))
    first = asyncio.create_task(ask_async(app, "/v3/air/c/0/0/0"))
    second = asyncio.create_task(ask_async(app, "/v3/air/c/0/0/0"))
    while not app.delivery._flights:
        await asyncio.sleep(0)
    first.cancel()
    assert (await second).status == 200
    with pytest.raises(asyncio.CancelledError):
        await first
    assert b'origin="computed"} 1.0' in app.delivery.metrics.render()
    assert app.delivery.budget.used == 0


@pytest.mark.parametrize("resident", [True, False])
def test_a_source_that_changes_while_it_is_read_is_a_failure(tmp_path, monkeypatch, resident):
    path = write(tmp_path / "a.h5", np.arange(4000, dtype="f4").reshape(100, 40))
    app = create_app(path)
    if not resident:
        monkeypatch.setattr("virtualzarr.serve.delivery.read_resident", lambda *_: None)
    expected = np.arange(4000, dtype="<f4").tobytes()
    assert ask(app, "/v3/x/c/0/0").body == expected
    take = OpenFile.take

    def change(self, start, nbytes):
        os.utime(path, ns=(1, 1))
        return take(self, start, nbytes)

    monkeypatch.setattr(OpenFile, "take", change)
    answer = ask(app, "/v3/x/c/0/0")
    assert (answer.status, expected in answer.body) == (502, False)


def test_files_of_the_cache_that_are_renamed_are_damaged(tmp_path):
    group, cache = make_joined(tmp_path / "joined"), tmp_path / "cache"
    app = create_app(group, cache=cache)
    answers = [ask(app, f"/v3/air/c/{k}/0/0") for k in range(2)]
    names = [cache / answer.headers["etag"].strip('"') for answer in answers]
    names[0].replace(names[1])
    again = create_app(group, cache=cache)
    assert [ask(again, f"/v3/air/c/{k}/0/0").body for k in range(2)] == [
        answer.body for answer in answers
    ]


def test_servers_share_a_cache(tmp_path):
    group, cache = make_joined(tmp_path / "joined"), tmp_path / "cache"
    one = create_app(group, cache=cache)
    half_written = cache / f"{'0' * 32}.0123.part"
    half_written.write_bytes(b"of one that writes")
    two = create_app(group, cache=cache)
    expected = ask(one, "/v3/air/c/0/0/0")
    assert ask(two, "/v3/air/c/0/0/0").body == expected.body
    assert b'origin="disk"' in two.delivery.metrics.render()
    assert half_written.exists()
    os.utime(half_written, (0, 0))
    create_app(group, cache=cache)
    assert not half_written.exists()


def test_a_cache_that_cannot_be_written_costs_nothing_but_time(tmp_path, monkeypatch, caplog):
    app = create_app(make_joined(tmp_path / "joined"), cache=tmp_path / "cache")

    def refuse(self, data):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("pathlib.Path.write_bytes", refuse)
    assert ask(app, "/v3/air/c/0/0/0").status == 200
    assert "the cache cannot be written" in caplog.text


def test_the_cache_on_disk_serves_what_was_encoded_before(tmp_path):
    folder, cache = tmp_path / "joined", tmp_path / "cache"
    group = make_joined(folder)
    expected = ask(create_app(group, cache=cache), "/v3/air/c/0/0/0")
    (file,) = cache.iterdir()
    again = create_app(group, cache=cache)
    assert ask(again, "/v3/air/c/0/0/0").body == expected.body
    assert b'origin="disk"' in again.delivery.metrics.render()
    # Damage is found, and the chunk encoded anew.
    file.write_bytes(file.read_bytes()[:-1] + b"?")
    damaged = create_app(group, cache=cache)
    assert ask(damaged, "/v3/air/c/0/0/0").body == expected.body
    assert b'origin="computed"' in damaged.delivery.metrics.render()
    small = create_app(group, cache=cache, cache_size=len(expected.body) + 100)
    for k in range(5):
        ask(small, f"/v3/air/c/{k}/0/0")
    assert sum(each.stat().st_size for each in cache.iterdir()) <= len(expected.body) + 100
    shutil.rmtree(cache)
    assert ask(small, "/v3/air/c/0/0/0").body == expected.body


def test_references_in_a_dict_are_one_dataset(tmp_path):
    group = make_stored(tmp_path)
    references: dict = {}
    group.publish(references)
    app = create_app(references)
    assert set(app.entries) == {""}
    assert set(app.entries[""].snapshot.faces["v3"].arrays) == set(dict(iter_arrays(group)))
    store: dict = {}
    vz.create_array(store, shape=(2,), dtype="i4")
    assert ask(create_app(store), "/v3/zarr.json").status == 200


ODD = ["a#b", "q?x", "%41", "a\tb", "a%2Fb", "%zz", "L" * 300]
EVEN = ["x y", "é", "a.b", "a+b", "a&b", "{{u}}", "a'b", "A"]


def test_names_that_clients_do_not_encode_are_not_served(tmp_path):
    zarr = pytest.importorskip("zarr", minversion="3")
    with h5py.File(tmp_path / "names.h5", "w") as file:
        for i, name in enumerate(ODD + EVEN):
            file[name] = np.arange(3) + i + 1
            file[f"in {name}/v"] = np.arange(3) + i + 1
    group = vz.virtualize(tmp_path / "names.h5")
    app = create_app(group)
    with run_in_thread(app) as url:
        for name, face in app.entries[""].snapshot.faces.items():
            assert set(face.skipped) == {
                path for odd in ODD for path in (odd, f"in {odd}", f"in {odd}/v")
            }
            opened = zarr.open_group(f"{url}/{name}", mode="r")
            for path in face.arrays:
                np.testing.assert_array_equal(opened[path][...], group[path][...])
    assert len(face.arrays) == 2 * len(EVEN)
