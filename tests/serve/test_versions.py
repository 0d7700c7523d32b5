"""Datasets with versions: what URLs follow, and what stays as it is."""

from __future__ import annotations

import asyncio
import json

import numpy as np
import pytest

import virtualzarr as vz
from tests.serve.serving import ask, ask_async
from virtualzarr.cli.samples import Part, read_archive, write_archive
from virtualzarr.serve import create_app

PARTS = (Part(24, 8, 1), Part(36, 12, 5), Part(24, 8, 9), Part(24, 6, 1))


@pytest.fixture
def files(tmp_path):
    return [str(path) for path in write_archive(tmp_path / "files", PARTS, "air")]


@pytest.fixture
def dataset(tmp_path, files):
    return vz.create_dataset(tmp_path / "air.dataset", files[:2], "time")


def shape_of(app, url="/v3"):
    return json.loads(ask(app, f"{url}/air/zarr.json").body)["shape"]


def read_all(app, hours, url="/v3"):
    """Decode all chunks of `air`, as a client that has the document would."""
    document = json.loads(ask(app, f"{url}/air/zarr.json").body)
    length = document["chunk_grid"]["configuration"]["chunk_shape"][0]
    face = app.entries[""].snapshot.faces["v3"]
    pipeline = face.arrays["air"].metadata.pipeline
    block = pipeline.for_block((length, 24, 32), np.dtype("f4"), 0)
    chunks = [
        block.decode(ask(app, f"{url}/air/c/{k}/0/0").body) for k in range(-(-hours // length))
    ]
    return np.concatenate(chunks)[:hours]


def test_urls_follow_appends(dataset, files):
    app = create_app(dataset.path)
    truth = read_archive(files, "air")
    np.testing.assert_array_equal(read_all(app, 60), truth[:60])
    lengths = app.entries[""].snapshot.faces["v3"].arrays["air"].choice.lengths
    tags = [ask(app, f"/v3/air/c/{k}/0/0").headers["etag"] for k in range(5)]
    document = ask(app, "/v3/zarr.json").headers["etag"]
    dataset.append(files[2:])
    assert shape_of(app)[0] == 60
    app.entries[""].refresh()
    assert shape_of(app)[0] == 108
    # The grid is what it was, also where other chunks are now the most.
    assert app.entries[""].snapshot.faces["v3"].arrays["air"].choice.lengths == lengths
    np.testing.assert_array_equal(read_all(app, 108), truth)
    for k, tag in enumerate(tags):
        answer = ask(app, f"/v3/air/c/{k}/0/0", headers={"if-none-match": tag})
        assert answer.status == 304, k
    assert ask(app, "/v3/zarr.json", headers={"if-none-match": document}).status == 200


def test_a_client_with_the_old_document_reads_the_old_rows(dataset, files):
    app = create_app(dataset.path)
    length = app.entries[""].snapshot.faces["v3"].arrays["time"].choice.lengths[0]
    assert length >= 4096  # one cell, which rows to come fit in
    before = np.frombuffer(ask(app, "/v3/time/c/0").body, "f8")[:60]
    dataset.append(files[2:])
    app.entries[""].refresh()
    after = np.frombuffer(ask(app, "/v3/time/c/0").body, "f8")
    np.testing.assert_array_equal(after[:60], before)
    np.testing.assert_array_equal(after[:108], np.arange(108))


def test_versions_in_urls_stay(dataset, files):
    truth = read_archive(files, "air")
    dataset.append(files[2:])
    app = create_app(dataset.path)
    assert shape_of(app, "/@1/v3") == [60, 24, 32]
    np.testing.assert_array_equal(read_all(app, 60, "/@1/v3"), truth[:60])
    chunk = ask(app, "/@1/v3/air/c/0/0/0")
    assert "immutable" in chunk.headers["cache-control"]
    assert "immutable" not in ask(app, "/v3/air/c/0/0/0").headers["cache-control"]
    for number in ("99", "0", "99999999999999999999", "x", "-1", ""):
        assert ask(app, f"/@{number}/v3/zarr.json").status == 404
    # A chunk that cannot be had is no chunk that is missing.
    assert ask(app, "/@99/v3/air/c/0/0/0").status == 502


@pytest.mark.parametrize("follow", ["append", "all", "none"])
def test_what_does_more_than_append_is_followed_on_request_only(dataset, files, follow):
    app = create_app(dataset.path, follow=follow)
    tag = ask(app, "/v3/air/c/0/0/0").headers["etag"]
    dataset = dataset.append(files[2])
    dataset.drop(before=12)
    entry = app.entries[""]
    entry.refresh()
    if follow == "all":
        assert shape_of(app)[0] == 72
        return
    assert shape_of(app)[0] == 60
    assert ask(app, "/v3/air/c/0/0/0", headers={"if-none-match": tag}).status == 304
    assert (entry.held_back is None) == (follow == "none")
    assert (b"does more than append" in ask(app, "/").body) == (follow == "append")


def test_rows_between_others_are_no_append(tmp_path, files):
    dataset = vz.create_dataset(tmp_path / "air.dataset", [files[0], files[2]], "time")
    app = create_app(dataset.path)
    dataset.append(files[1])
    app.entries[""].refresh()
    assert shape_of(app)[0] == 48
    assert app.entries[""].held_back


def test_folded_chunks_are_the_same_rows(dataset, files):
    app = create_app(dataset.path)
    dataset.compact({"time": 30})
    dataset.tag("folded")
    app.entries[""].refresh()
    assert app.entries[""].held_back is None
    assert app.entries[""].snapshot.version > 1
    np.testing.assert_array_equal(read_all(app, 60), read_archive(files, "air")[:60])


def test_new_versions_are_looked_for(dataset, files):
    app = create_app(dataset.path, poll=0.05)

    async def run():
        first = await ask_async(app, "/v3/air/zarr.json")
        dataset.append(files[2:])
        for _ in range(200):
            await asyncio.sleep(0.05)
            answer = await ask_async(app, "/v3/air/zarr.json")
            if answer.body != first.body:
                return json.loads(answer.body)["shape"][0]
        return None

    assert asyncio.run(run()) == 108


def test_the_history_is_on_the_page(dataset, files):
    dataset.append(files[2], message="the <third> file")
    text = ask(create_app(dataset.path), "/").body.decode()
    assert "the &lt;third&gt; file" in text
    assert "version 2" in text
    assert "air-2.nc" not in text


@pytest.fixture
def published(tmp_path):
    """References to files, and what they become when they are replaced by others."""
    parts = [(Part(24, 8, 1), Part(36, 12, 5)), (Part(48, 12, 9),)]
    paths = [write_archive(tmp_path / str(i), part, "air") for i, part in enumerate(parts)]
    groups = [vz.virtualize([str(each) for each in some], "time") for some in paths]

    def publish(path, which):
        groups[which].publish(path, overwrite=True)

    return publish, [read_archive([str(each) for each in some], "air") for some in paths]


@pytest.mark.parametrize("name", ["refs.json", "refs.parquet", "refs.zarr"])
def test_references_that_are_replaced_are_what_they_were_or_a_failure(tmp_path, name):
    # Chunks of one shape, which all forms have.
    paths = write_archive(tmp_path / "a", (Part(24, 12, 1), Part(24, 12, 9)), "air")
    older, newer = (vz.open(path) for path in paths)
    older.publish(tmp_path / name)
    app = create_app(tmp_path / name)
    newer.publish(tmp_path / name, overwrite=True)
    answers = [ask(app, f"/v3/air/c/{k}/0/0") for k in range(2)]
    assert shape_of(app)[0] == 24
    if {answer.status for answer in answers} != {502}:
        np.testing.assert_array_equal(read_all(app, 24), read_archive(paths[:1], "air"))


def test_files_that_are_replaced_are_followed_on_request_only(tmp_path, published, caplog):
    publish, truths = published
    publish(tmp_path / "refs.json", 0)
    for follow, hours in (("append", 60), ("all", 48)):
        publish(tmp_path / "refs.json", 0)
        app = create_app(tmp_path / "refs.json", follow=follow)
        assert app.entries[""].is_watched
        publish(tmp_path / "refs.json", 1)
        app.entries[""].refresh()
        assert shape_of(app)[0] == hours
        np.testing.assert_array_equal(read_all(app, hours), truths[follow == "all"])
    assert "was replaced" in caplog.text
    # One that cannot be opened changes nothing, and is tried again.
    (tmp_path / "refs.json").write_text("{")
    with pytest.raises(vz.errors.VirtualZarrError):
        app.entries[""].refresh()
    assert shape_of(app)[0] == 48
    publish(tmp_path / "refs.json", 0)
    app.entries[""].refresh()
    assert shape_of(app)[0] == 60
    assert not create_app(tmp_path / "refs.json", follow="none").entries[""].is_watched
