"""What Icechunk notes of the sources of virtual chunks, damaged repositories, and messages."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
from contextlib import suppress
from datetime import UTC, datetime

import numpy as np
import pytest

import virtualzarr as vz
from tests.stores.webserver import web_server
from virtualzarr.errors import (
    BadReferenceError,
    NodeNotFoundError,
    PublishError,
    SourceChangedError,
    SourceError,
    VirtualZarrError,
)
from virtualzarr.references.icechunk.bindings import container_of, reading_errors
from virtualzarr.references.icechunk.manifests import read_checksums
from virtualzarr.references.icechunk.read import NATIVE, VIRTUAL, _source
from virtualzarr.stores.files import take_fingerprint
from virtualzarr.stores.location import Location

icechunk = pytest.importorskip("icechunk")
zarr = pytest.importorskip("zarr")
if int(icechunk.__version__.split(".")[0]) < 2:
    pytest.skip("older versions do not tell where chunks are", allow_module_level=True)
if not hasattr(icechunk.Session, "get_node_id"):
    pytest.skip("older versions do not tell identifiers of arrays", allow_module_level=True)

pytestmark = [pytest.mark.interop, pytest.mark.filterwarnings("ignore")]
OLD, NEW = 1_000_000_000, 1_000_000_600
LATER = datetime.fromtimestamp(OLD + 60, UTC)


def store_of(path, prefix, write=False):
    config = icechunk.RepositoryConfig.default()
    container, access = container_of(prefix, None)
    config.set_virtual_chunk_container(container)
    storage = icechunk.local_filesystem_storage(str(path))
    options = {"config": config, "authorize_virtual_chunk_access": {prefix: access}}
    repository = icechunk.Repository.open_or_create(storage, **options)
    session = repository.writable_session("main") if write else repository.readonly_session("main")
    return session, session.store


def write_file(path, value, when):
    path.write_bytes(np.full(12, value, "<i4").tobytes())
    os.utime(path, (when, when))


def write_repository(path, prefix, checks, array="x"):
    """Write a repository with an array of one chunk for each file; return the files' names."""
    session, store = store_of(path, prefix, write=True)
    shape = (len(checks), 12)
    zarr.create_array(store, name=array, shape=shape, chunks=(1, 12), dtype="i4", compressors=None,
                      filters=None, fill_value=-1, overwrite=True)  # fmt: skip
    specs = [
        icechunk.VirtualChunkSpec([k, 0], f"{prefix}{k}.bin", 0, 48, **check)
        for k, check in enumerate(checks)
    ]
    assert not store.set_virtual_refs(f"/{array}", specs)
    session.commit("refs")


def test_sources_that_changed_are_refused_as_icechunk_refuses_them(tmp_path):
    folder, prefix = tmp_path / "files", f"file://{tmp_path}/files/"
    folder.mkdir()
    files = [folder / f"{k}.bin" for k in range(6)]
    for path in files:
        write_file(path, 1, OLD)
    dated = {"last_updated_at_checksum": LATER}
    exact = {"last_updated_at_checksum": datetime.fromtimestamp(OLD, UTC)}
    early = {"last_updated_at_checksum": datetime.fromtimestamp(OLD - 1, UTC)}
    checks = [dated, {"etag_checksum": "other"}, {}, dated, exact, early]
    write_repository(tmp_path / "repo", prefix, checks)
    for path in files[:3]:
        write_file(path, 2, NEW)
    ours = vz.open(tmp_path / "repo")["x"]
    theirs = zarr.open_array(store_of(tmp_path / "repo", prefix)[1], path="x", mode="r")
    read = []
    for k in range(6):
        try:
            expected = theirs[k]
        except icechunk.IcechunkError:
            with pytest.raises(SourceChangedError, match=rf"changed.*{k}\.bin.*chunk {k}"):
                ours[k]
        else:
            assert np.array_equal(ours[k], expected)
            read.append(k)
    assert read == [2, 3, 4]
    report = vz.check_references(tmp_path / "repo")
    assert {os.path.basename(name) for name in report.changed} == {"0.bin", "1.bin", "5.bin"}


def test_sources_at_servers(tmp_path):
    write_file(tmp_path / "0.bin", 1, OLD)
    write_file(tmp_path / "1.bin", 1, OLD)
    with web_server(tmp_path) as server:
        tag = take_fingerprint(Location.of(f"{server.url}/0.bin")).etag.strip('"')
        checks = [{"etag_checksum": tag}, {"last_updated_at_checksum": LATER}]
        write_repository(tmp_path / "repo", f"{server.url}/", checks)
        array = vz.open(tmp_path / "repo")["x"]
        assert (array[...] == 1).all()
        for k in range(2):
            write_file(tmp_path / f"{k}.bin", 2, NEW)
            for again in (array, vz.open(tmp_path / "repo")["x"]):
                with pytest.raises(SourceChangedError, match=rf"{k}\.bin"):
                    again[k]


def test_chunks_of_one_file_that_were_noted_at_different_times(tmp_path):
    """Each chunk has a checksum of its own, also where several manifests hold them."""
    folder, prefix = tmp_path / "files", f"file://{tmp_path}/files/"
    folder.mkdir()
    write_file(folder / "0.bin", 1, OLD)
    session, store = store_of(tmp_path / "repo", prefix, write=True)
    count = 300
    for name in ("x", "y"):
        zarr.create_array(store, name=name, shape=(count, 6), chunks=(1, 6), dtype="i4",
                          compressors=None, fill_value=-1)  # fmt: skip

    def early(k):
        return datetime.fromtimestamp(OLD - 1 - k, UTC)

    right = random.Random(0).choices([True, False], k=count)
    specs = [
        icechunk.VirtualChunkSpec([k, 0], f"{prefix}0.bin", 24 * (k % 2), 24,
                                  last_updated_at_checksum=LATER if right[k] else early(k))
        for k in range(count)
    ]  # fmt: skip
    store.set_virtual_refs("/y", specs)
    store.set_virtual_refs("/x", specs[::-1][:5])
    session.commit("refs")
    array = vz.open(tmp_path / "repo")["y"]
    for k in range(count):
        if right[k]:
            assert (array[k] == 1).all()
        else:
            with pytest.raises(SourceChangedError):
                array[k]


def test_references_that_are_written_again_keep_what_was_noted(tmp_path):
    folder, prefix = tmp_path / "files", f"file://{tmp_path}/files/"
    folder.mkdir()
    for k in range(2):
        write_file(folder / f"{k}.bin", 1, OLD)
    write_repository(tmp_path / "repo", prefix, [{"last_updated_at_checksum": LATER}] * 2)
    for form in ("json", "parquet", "icechunk"):
        place = tmp_path / f"refs.{form}"
        vz.open(tmp_path / "repo").publish(place, reference_format=form)
    write_file(folder / "1.bin", 2, NEW)
    for form in ("json", "parquet", "icechunk"):
        array = vz.open(tmp_path / f"refs.{form}")["x"]
        assert (array[0] == 1).all()
        with pytest.raises(SourceChangedError):
            array[1]


@pytest.mark.parametrize(
    ("kind", "place"),
    [(NATIVE, "../../../secret"), (NATIVE, "/etc/passwd"), (NATIVE, ""), (NATIVE, "A" * 19 + "\n"),
     (NATIVE, "file:///etc/passwd"), (VIRTUAL, "../../x"), (VIRTUAL, ""), (7, "s3://b/a")],
)  # fmt: skip
def test_places_that_are_none(kind, place):
    with pytest.raises(BadReferenceError):
        _source(kind, place, (None, None), "/data/repo", Location.of("/data/repo"))


def test_damaged_manifests(tmp_path):
    write_repository(tmp_path / "repo", f"file://{tmp_path}/files/", [{"etag_checksum": "a"}] * 3)
    (path,) = (tmp_path / "repo" / "manifests").iterdir()
    data = path.read_bytes()
    (found,) = read_checksums(data)
    assert found.tags == ["a"]
    import zstandard

    head = bytearray(data[:39])
    head[38] = 0
    body = zstandard.ZstdDecompressor().stream_reader(data[39:]).read()
    chance = random.Random(0)
    for _ in range(3000):
        damaged = bytearray(body)
        for _ in range(chance.randint(1, 4)):
            damaged[chance.randrange(len(body))] = chance.choice([0, 1, 0x7F, 0x80, 0xFF])
        cut = chance.choice([len(body), chance.randrange(len(body))])
        with suppress(BadReferenceError):
            list(read_checksums(bytes(head + damaged[:cut])))
    for cut in range(len(data)):
        with pytest.raises(BadReferenceError):
            list(read_checksums(data[:cut]))


def test_damaged_repositories_are_errors_of_this_package(tmp_path):
    folder, prefix = tmp_path / "files", f"file://{tmp_path}/files/"
    folder.mkdir()
    write_file(folder / "0.bin", 1, OLD)
    write_repository(tmp_path / "repo", prefix, [{"last_updated_at_checksum": LATER}])
    chance = random.Random(0)
    files = [path for path in (tmp_path / "repo").rglob("*") if path.is_file()]
    failed = 0
    for k in range(120):
        broken = tmp_path / "broken"
        shutil.copytree(tmp_path / "repo", broken)
        path = broken / files[k % len(files)].relative_to(tmp_path / "repo")
        data = bytearray(path.read_bytes())
        for _ in range(chance.randint(1, 3)):
            data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
        text, good = "", True
        path.write_bytes(data[: chance.choice([len(data), chance.randrange(len(data))])])
        try:
            vz.open(broken)["x"][...]
        except NodeNotFoundError:
            # A snapshot has no checksum: what is left of it can be a sound list of no nodes.
            failed += 1
        except VirtualZarrError as error:
            failed += 1
            text = str(error)
            # A location may be damaged, too: "filo:///".
            good = "\n" not in text and "icechunk::" not in text and "[file " in text
        assert good, text
        shutil.rmtree(broken)
    assert failed > 20


@pytest.mark.parametrize("name", ["PanicException", "RustPanic"])
def test_panics_of_rust_are_errors_of_this_package(name):
    """Of code that waits and of code that does not; neither is a class that can be imported."""
    panic = type(name, (BaseException,), {})
    with (
        pytest.raises(SourceError, match=r"failed inside: unknown error \[file /a\]"),
        reading_errors("/a"),
    ):
        raise panic("unknown error")


def test_names_that_are_not_utf8(tmp_path):
    name = os.fsdecode(b"\xff.bin")
    try:
        write_file(tmp_path / name, 1, OLD)
    except OSError:
        pytest.skip("no such names here")
    group = vz.virtualize_raw(tmp_path / name, dtype="<i4", shape=(12,))
    (array,) = (path for path, _ in group.members())
    for form in ("parquet", "icechunk"):
        with pytest.raises(PublishError, match=r"not UTF-8.*udcff\.bin"):
            group.publish(tmp_path / f"refs.{form}", reference_format=form)
    for form in ("json", "native"):
        group.publish(tmp_path / f"refs.{form}", reference_format=form)
        assert (vz.open(tmp_path / f"refs.{form}")[array][...] == 1).all()


def test_opening_prints_nothing(tmp_path):
    """Also where Icechunk was imported before, and its settings are as they were afterwards."""
    folder, prefix = tmp_path / "files", f"file://{tmp_path}/files/"
    folder.mkdir()
    write_file(folder / "0.bin", 1, OLD)
    write_repository(tmp_path / "repo", prefix, [{}])
    code = f"""
import icechunk, virtualzarr as vz
vz.open({str(tmp_path / "repo")!r})["x"][...]
vz.open({str(tmp_path / "repo")!r}).publish({str(tmp_path / "new.icechunk")!r})
"""
    env = {name: value for name, value in os.environ.items() if name != "ICECHUNK_LOG"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
