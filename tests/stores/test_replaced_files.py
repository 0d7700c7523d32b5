"""Files elsewhere that are replaced while they are read: one version or an error, no mixture."""

import copy
import io
import json
import os
import pickle
import shutil
import tarfile
import zipfile
from functools import partial, partialmethod
from pathlib import Path

import fsspec
import h5py
import numpy as np
import pytest
import tifffile
import zarr

import virtualzarr as vz
from tests.stores.webserver import web_server
from virtualzarr.array.cut_array import cut_array
from virtualzarr.errors import SourceChangedError, SourceNotFoundError
from virtualzarr.integrations.dask import to_dask
from virtualzarr.manifest import Manifest, Source, Sources
from virtualzarr.stores.files import Fingerprint, LocalFile, RemoteFile, read_head, take_fingerprint
from virtualzarr.stores.fingerprints import differences
from virtualzarr.stores.location import Location
from virtualzarr.stores.pins import _shared

pytest.importorskip("aiohttp")
NAMES = {"json": "json", "parquet": "parquet", "native": "zarr"}
OLD, NEW = 1_000_000_000, 1_000_000_060
SHAPE = (12, 40)


def write_hdf5(path, value, when):
    with h5py.File(path, "w") as file:
        file.create_dataset(
            "v", shape=SHAPE, chunks=(2, 10), dtype="i4", data=np.full(SHAPE, value)
        )
    os.utime(path, (when, when))


def write_tiff(path, value, when):
    tifffile.imwrite(path, np.full((64, 64), value, "i4"), tile=(16, 16), photometric="minisblack")
    os.utime(path, (when, when))


def write_npy(path, value, when):
    with open(path, "wb") as file:
        np.save(file, np.full(SHAPE, value, "i4"))
    os.utime(path, (when, when))


WRITERS = {".h5": write_hdf5, ".tif": write_tiff, ".npy": write_npy}


@pytest.fixture(autouse=True)
def in_small_reads(monkeypatch):
    monkeypatch.setattr(vz.config, "remote_gap", 0)
    monkeypatch.setattr(vz.config, "remote_read", 80)
    monkeypatch.setattr(vz.config, "requests", 1)


def replace_after(server, count, path, write):
    """Let a server replace a file once it has answered so many requests."""
    server.requests.clear()

    def before(method, name):
        if len(server.requests) == count:
            write(f"{path}.new")
            os.replace(f"{path}.new", path)

    server.before = before


def first_array(group):
    return next(node for _, node in group.members(None) if isinstance(node, vz.Array))


def read_all(array):
    """Return the different values, or None if they cannot be read."""
    try:
        return set(np.unique(array[...]).tolist())
    except SourceChangedError:
        return None


@pytest.mark.parametrize("said", ["tags", "dates", "both"])
@pytest.mark.parametrize("kind", WRITERS)
def test_what_is_replaced_while_it_is_read_is_an_error(tmp_path, kind, said):
    path, write = tmp_path / f"a{kind}", WRITERS[kind]
    kinds = {"tags": said != "dates", "dates": said != "tags"}
    failed = 0
    with web_server(tmp_path, **kinds) as server:
        for count in range(8):
            write(path, 1, OLD)
            server.before = None
            array = first_array(vz.virtualize(f"{server.url}/{path.name}"))
            replace_after(server, count, path, lambda place: write(place, 2, NEW))
            found = read_all(array)
            assert found in (None, {1})
            failed += found is None
            # It stays so: what was read before lets nothing new pass.
            assert read_all(array) in (None, {1})
        assert failed


@pytest.mark.parametrize("kind", WRITERS)
def test_what_is_replaced_while_it_is_scanned_is_an_error(tmp_path, kind):
    path, write = tmp_path / f"a{kind}", WRITERS[kind]
    with web_server(tmp_path) as server:
        for count in range(6):
            write(path, 1, OLD)
            replace_after(server, count, path, lambda place: write(place, 2, NEW))
            try:
                array = first_array(vz.virtualize(f"{server.url}/{path.name}"))
            except SourceChangedError:
                continue
            server.before = None
            assert read_all(array) in (None, {1}, {2})


@pytest.mark.parametrize("form", ["json", "parquet", "native"])
def test_published_references_remember(tmp_path, form):
    path = tmp_path / "a.h5"
    for kinds in ({"tags": True}, {"tags": False}):
        write_hdf5(path, 1, OLD)
        with web_server(tmp_path, **kinds) as server:
            refs = str(tmp_path / f"{kinds['tags']}.{NAMES[form]}")
            vz.virtualize(f"{server.url}/a.h5").publish(refs, reference_format=form)
            assert read_all(vz.open(refs, allowed="*")["v"]) == {1}
            assert vz.check_references(refs, allowed="*").good
            write_hdf5(path, 2, NEW)
            assert read_all(vz.open(refs, allowed="*")["v"]) is None
            assert [*vz.check_references(refs, allowed="*").changed] == [f"{server.url}/a.h5"]


@pytest.mark.parametrize("times", [1, 5, 99])
def test_what_a_file_is_shows_though_it_is_replaced_meanwhile(tmp_path, times):
    """Writers replace references all the time: detecting their format has nothing to mix up."""
    path, count = tmp_path / "a.bin", iter(range(times))
    path.write_bytes(bytes(4))

    def replace(method, name):
        if method == "GET" and (number := next(count, None)) is not None:
            path.write_bytes(bytes([number + 1]) * (5 + number))
            os.utime(path, (NEW + 60 * number, NEW + 60 * number))

    with web_server(tmp_path, before=replace) as server:
        location = Location(f"{server.url}/a.bin")
        if times == 99:
            with pytest.raises(SourceChangedError):
                read_head(location, 4)
        else:
            assert read_head(location, 4) == bytes([times]) * 4


def test_references_of_others_are_read_from_one_version(tmp_path):
    """Nothing was noted of their sources: the first answer counts."""
    path = tmp_path / "a.h5"
    with web_server(tmp_path) as server:
        write_hdf5(path, 1, OLD)
        vz.virtualize(f"{server.url}/a.h5").publish(tmp_path / "refs.json")
        with open(tmp_path / "refs.json") as file:
            refs = vz.metadata.loads_json(file.read())
        del refs["virtualzarr"]
        failed = 0
        for count in range(6):
            write_hdf5(path, 1, OLD)
            server.before = None
            array = vz.open(refs)["v"]
            replace_after(server, count, path, lambda place: write_hdf5(place, 2, NEW))
            found = read_all(array)
            assert found in (None, {1}, {2})
            failed += found is None
        assert failed
        assert read_all(vz.open(refs)["v"]) == {2}


@pytest.mark.parametrize("place", ["remote", "local"])
@pytest.mark.parametrize("form", ["json", "parquet"])
def test_arrays_of_one_document_are_read_from_one_version(tmp_path, form, place):
    """Also where references of others say nothing of it: one is not read before, one after."""

    def write_two(value, when):
        with h5py.File(tmp_path / "a.h5", "w") as file:
            for name in "vw":
                file.create_dataset(name, chunks=(2, 10), data=np.full(SHAPE, value, "i4"))
        os.utime(tmp_path / "a.h5", (when, when))

    write_two(1, OLD)
    with web_server(tmp_path) as server:
        source = f"{server.url}/a.h5" if place == "remote" else tmp_path / "a.h5"
        vz.virtualize(source).publish(tmp_path / "refs", reference_format=form)
        forget_versions(tmp_path / "refs")
        group = vz.open(tmp_path / "refs")
        joined = vz.concat([group, group], dim="phony_dim_0")
        assert (group["v"][...] == 1).all()
        write_two(2, NEW)
        for array in (group["w"], group["v"], joined["w"], copy.deepcopy(group)["w"]):
            with pytest.raises(SourceChangedError, match=r"a\.h5"):
                array[...]
        with vz.config.set(verify_sources=False):
            assert (group["w"][...] == 2).all()
        again = vz.open(tmp_path / "refs")  # what is opened anew may be of the other one
        assert (again["w"][...] == 2).all()


@pytest.mark.parametrize("place", ["remote", "local"])
@pytest.mark.parametrize("form", ["json", "parquet", "native"])
@pytest.mark.parametrize("is_read", [True, False])
def test_references_of_others_that_are_published_again(tmp_path, form, place, is_read):
    """They note the version that was read; if none was, all is of the one that comes first."""
    path, again = tmp_path / "a.h5", tmp_path / "again"
    write_hdf5(path, 1, OLD)
    with web_server(tmp_path) as server:
        source = f"{server.url}/a.h5" if place == "remote" else path
        vz.virtualize(source).publish(tmp_path / "refs.json")
        forget_versions(tmp_path / "refs.json")
        group = vz.open(tmp_path / "refs.json")
        if is_read:
            group["v"][:2]
        group.publish(again, reference_format=form)
        opened = vz.open(again)
        if not is_read:
            assert (opened["v"][:2] == 1).all()
        write_hdf5(path, 2, NEW)
        with pytest.raises(SourceChangedError, match=r"a\.h5"):
            opened["v"][...]
        if is_read:
            with pytest.raises(SourceChangedError, match=r"a\.h5"):
                vz.open(again)["v"][...]
        else:
            assert (vz.open(again)["v"][...] == 2).all()


def test_copies_and_references_to_a_file_are_of_one_version(tmp_path):
    """Chunks of one codec are copied when arrays are joined, those of the other one are not."""
    path = tmp_path / "a.h5"

    def write(value, when):
        with h5py.File(path, "w") as file:
            for name, codec in (("v", "gzip"), ("w", None)):
                file.create_dataset(
                    name, chunks=(2, 10), data=np.full(SHAPE, value, "i4"), compression=codec
                )
        os.utime(path, (when, when))

    write(1, OLD)
    vz.virtualize(path).publish(tmp_path / "refs.json")
    forget_versions(tmp_path / "refs.json")
    group = vz.open(tmp_path / "refs.json")
    joined = vz.Group({}, {"v": vz.concat([group["v"], group["w"]])})
    report = joined.publish(tmp_path / "joined.json", copy=True)
    assert report.copied
    write(2, NEW)
    with pytest.raises(SourceChangedError, match=r"a\.h5"):
        vz.open(tmp_path / "joined.json")["v"][...]


def test_processes_that_copy_read_one_version(tmp_path):
    """That of the process which sends them what to do: each would find one of its own."""
    path = tmp_path / "a.h5"
    write_hdf5(path, 1, OLD)
    vz.virtualize(path).publish(tmp_path / "refs.json")
    forget_versions(tmp_path / "refs.json")
    array = vz.open(tmp_path / "refs.json")["v"]
    parts = [cut_array(array, ((k, k + 1), *((0, n) for n in array.grid.grid_shape[1:])))
             for k in (0, 1)]  # fmt: skip
    assert all(source.mtime_ns for part in parts for source in part.manifest.sources)
    write_hdf5(path, 2, NEW)
    for first, part in zip((0, 2), parts, strict=True):
        with pytest.raises(SourceChangedError, match=r"a\.h5"):
            pickle.loads(pickle.dumps(part))[first : first + 2]


@pytest.mark.parametrize("is_noted", [True, False])
def test_local_files_that_are_written_to_in_place_while_they_are_read(
    tmp_path, monkeypatch, is_noted
):
    """After they were looked at: the bytes that come may be of either version."""
    path = tmp_path / "a.h5"
    write_hdf5(path, 1, OLD)
    vz.virtualize(path).publish(tmp_path / "refs.json")
    if not is_noted:
        forget_versions(tmp_path / "refs.json")
    data = path.read_bytes()
    write_hdf5(path, 2, NEW)
    new = path.read_bytes()
    looks, wanted, look = [], [0], os.fstat

    def look_and_write(descriptor):
        status = look(descriptor)
        looks.append(descriptor)
        if len(looks) == wanted[0]:
            path.write_bytes(new)
        return status

    for when in range(1, 6):
        path.write_bytes(data)
        os.utime(path, (OLD, OLD))
        looks.clear()
        wanted[0] = when
        array = vz.open(tmp_path / "refs.json")["v"]
        monkeypatch.setattr(os, "fstat", look_and_write)
        found = read_all(array)
        monkeypatch.undo()
        assert found in (None, {1}) or (not is_noted and found == {2})
    assert found == {1}  # as it was written to no more


def of_xarray(opened):
    xarray = pytest.importorskip("xarray")
    return xarray.open_dataset(opened, engine="virtualzarr")


PICKLED = {
    "array": (lambda target: vz.open(target)["v"], lambda array: array),
    "group": (vz.open, lambda group: group["v"]),
    "dataset": (of_xarray, lambda dataset: dataset["v"]),
    "virtual": (lambda target: vz.open_virtual_dataset(target), lambda dataset: dataset["v"]),
}


@pytest.mark.parametrize("place", ["remote", "local"])
@pytest.mark.parametrize("kind", PICKLED)
def test_pickles_are_of_the_version_that_was_read(tmp_path, place, kind):
    """In this process and in others, of which unpickling without the first one is an image."""
    path, (open_it, take) = tmp_path / "a.h5", PICKLED[kind]
    write_hdf5(path, 1, OLD)
    with web_server(tmp_path) as server:
        vz.virtualize(f"{server.url}/a.h5" if place == "remote" else path).publish(
            tmp_path / "refs.json"
        )
        forget_versions(tmp_path / "refs.json")
        opened = open_it(tmp_path / "refs.json")
        unread = pickle.dumps(opened)
        assert set(np.unique(np.asarray(take(opened)[:2]))) == {1}
        pickled = pickle.dumps(opened)
        assert len(pickled) < len(unread) + 2000
        write_hdf5(path, 2, NEW)
        with pytest.raises(SourceChangedError):  # as long as there is the first one
            np.asarray(take(pickle.loads(unread))[2:])
        del opened
        for again in (pickled, pickle.dumps(pickle.loads(pickled))):
            forget_openings()
            with pytest.raises(SourceChangedError):
                np.asarray(take(pickle.loads(again))[2:])
        forget_openings()
        assert set(np.unique(np.asarray(take(pickle.loads(unread))[2:]))) == {2}
        write_hdf5(path, 1, OLD)
        forget_openings()
        assert set(np.unique(np.asarray(take(pickle.loads(pickled))[2:]))) == {1}


def forget_openings():
    """Have what is unpickled find what it finds in another process."""
    _shared.clear()


def open_form(folder, form):
    """Return references of a form, of a file of which no version is noted."""
    write_hdf5(folder / "a.h5", 1, OLD)
    vz.virtualize(folder / "a.h5").publish(folder / "first.json")
    forget_versions(folder / "first.json")
    group = vz.open(folder / "first.json")
    if form == "dataset":
        vz.create_dataset(folder / "refs", group, group["v"].dimension_names[0] or "phony_dim_0")
    else:
        group.publish(folder / "refs", reference_format=form)
    return vz.open(folder / "refs")


@pytest.mark.parametrize("form", ["json", "parquet", "native", "dataset"])
def test_pickles_of_all_forms_are_of_the_version_that_was_read(tmp_path, form):
    array = open_form(tmp_path, form)["v"]
    halves, name = pickle.dumps(array), to_dask(array).name
    assert (array[:2] == 1).all()
    assert to_dask(array).name == name
    pickled = pickle.dumps(array)
    write_hdf5(tmp_path / "a.h5", 2, NEW)
    with pytest.raises(SourceChangedError):
        pickle.loads(halves)[2:]
    forget_openings()
    with pytest.raises(SourceChangedError):
        pickle.loads(pickled)[2:]
    # A worker that got the one before anything was read, and read it since.
    forget_openings()
    unread = pickle.loads(halves)
    assert (unread[2:] == 2).all()
    with pytest.raises(SourceChangedError):
        pickle.loads(pickled)[2:]


@pytest.mark.parametrize("form", ["json", "parquet", "native", "dataset"])
def test_pickles_of_two_versions_are_refused_as_they_are_read(tmp_path, form):
    """And can be unpickled: a worker of Dask ends where that fails, and its client waits on."""
    group = open_form(tmp_path, form)
    unread = pickle.dumps(group)
    assert (group["v"][:2] == 1).all()
    pickled = pickle.dumps(group), pickle.dumps(group["v"])
    write_hdf5(tmp_path / "a.h5", 2, NEW)
    forget_openings()
    here = pickle.loads(unread)
    assert (here["v"][2:] == 2).all()
    later = pickle.loads(pickled[0])["v"], pickle.loads(pickled[1])
    refused = [here["v"], *later, *map(pickle.loads, map(pickle.dumps, later))]
    pickled = pickle.dumps(later)
    forget_openings()
    refused += pickle.loads(pickled)
    for value, date in ((2, NEW), (1, OLD)):
        write_hdf5(tmp_path / "a.h5", value, date)
        for array in refused:
            with pytest.raises(SourceChangedError):
                array[2:]
            with pytest.raises(SourceChangedError):
                to_dask(array)[2:].compute()
    with pytest.raises(SourceChangedError):
        here.publish(tmp_path / "published.json")
    assert not (tmp_path / "published.json").exists()


@pytest.mark.parametrize("copied", ["group", "copy made before"])
@pytest.mark.parametrize("form", ["json", "parquet", "native", "dataset"])
def test_pickles_of_groups_of_all_forms(tmp_path, form, copied):
    """What was read by arrays of a group is in its own pickle, and in those of its copies."""
    group = open_form(tmp_path, form)
    taken = group if copied == "group" else copy.deepcopy(group)
    assert (group["v"][:2] == 1).all()
    pickled = pickle.dumps(taken)
    write_hdf5(tmp_path / "a.h5", 2, NEW)
    forget_openings()
    with pytest.raises(SourceChangedError):
        pickle.loads(pickled)["v"][2:]
    forget_openings()
    write_hdf5(tmp_path / "a.h5", 1, OLD)
    assert (pickle.loads(pickled)["v"][2:] == 1).all()


def test_pickles_of_sources_without_a_document(tmp_path):
    write_npy(tmp_path / "a.npy", 1, OLD)
    with web_server(tmp_path) as server:
        metadata = vz.create_array(
            {}, shape=(12, 40), dtype="i4", chunks=(6, 40), compressors=[]
        ).metadata
        files, offsets = Sources([Source(f"{server.url}/a.npy")]), [[128], [128 + 4 * 6 * 40]]
        manifest = Manifest((2, 1), files, np.zeros((2, 1), int), np.array(offsets), 4 * 6 * 40)
        array = vz.Array.from_manifest(metadata, manifest, "v")
        assert (array[:6] == 1).all()
        write_npy(tmp_path / "a.npy", 2, NEW)
        with pytest.raises(SourceChangedError):
            pickle.loads(pickle.dumps(array))[6:]


def test_pickles_have_the_versions_of_their_own_files_alone(tmp_path):
    """A document may name a million, of which a task of dask gets a few."""
    refs = {}
    for number in range(50):
        write_hdf5(tmp_path / f"{number}.h5", 1, OLD)
        vz.virtualize(tmp_path / f"{number}.h5").publish(tmp_path / "refs.json", overwrite=True)
        forget_versions(tmp_path / "refs.json")
        parts = json.loads((tmp_path / "refs.json").read_text())["refs"]
        refs |= {key.replace("v/", f"v{number}/"): value for key, value in parts.items()}
    (tmp_path / "all.json").write_text(json.dumps({"version": 1, "refs": refs}))
    group = vz.open(tmp_path / "all.json")
    unread = len(pickle.dumps(group["v0"]))
    for number in range(50):
        assert (group[f"v{number}"][...] == 1).all()
    assert len(pickle.dumps(group["v0"])) < unread + 200


def test_names_of_tasks(tmp_path):
    """What was read is not in them; what is opened again may be another version."""
    dask_base = pytest.importorskip("dask.base")
    write_hdf5(tmp_path / "a.h5", 1, OLD)
    vz.virtualize(tmp_path / "a.h5").publish(tmp_path / "refs.json")
    one, other = (vz.open(tmp_path / "refs.json") for _ in range(2))
    assert to_dask(one["v"]).name == to_dask(other["v"]).name
    forget_versions(tmp_path / "refs.json")
    group = vz.open(tmp_path / "refs.json")
    array = group["v"]
    names = to_dask(array).name, dask_base.tokenize(array), dask_base.tokenize(group)
    array[...]
    assert names == (to_dask(array).name, dask_base.tokenize(array), dask_base.tokenize(group))
    assert dask_base.tokenize(array) != dask_base.tokenize(array.lazy[1:])
    write_hdf5(tmp_path / "a.h5", 2, NEW)
    other = vz.open(tmp_path / "refs.json")["v"]
    assert (to_dask(other) - 2 == 0).all().compute()
    assert to_dask(other).name != to_dask(array).name
    with pytest.raises(SourceChangedError):
        (to_dask(array) - to_dask(other)).compute()


@pytest.mark.parametrize("noted", ["nothing", "size", "date"])
def test_files_whose_dates_change_while_they_are_read(tmp_path, noted):
    """What was not noted of a file, and is compared with nothing, may be another."""
    write_hdf5(tmp_path / "a.h5", 1, OLD)
    path, size = str(tmp_path / "a.h5"), (tmp_path / "a.h5").stat().st_size
    known = {"nothing": Fingerprint(None), "size": Fingerprint(size),
             "date": Fingerprint(size, OLD * 10**9)}[noted]  # fmt: skip
    file = LocalFile(path, known)

    def read():
        with file.open() as opened:
            os.utime(path, (NEW, NEW))
            return len(opened.read(0, 10))

    if noted == "date":
        with pytest.raises(SourceChangedError, match="while it was read"):
            read()
    else:
        assert read() == 10


def forget_versions(place):
    """Leave nothing but references, as other tools write them."""
    file = place / ".zmetadata" if place.is_dir() else place
    document = json.loads(file.read_text())
    for name in [name for name in document if name not in ("version", "refs", "metadata",
                                                            "record_size")]:  # fmt: skip
        del document[name]
    file.write_text(json.dumps(document))


@pytest.mark.parametrize("form", ["json", "parquet"])
def test_the_version_outlives_the_files_that_are_kept_ready(tmp_path, monkeypatch, form):
    """Of many files without noted versions, one is replaced after it was read and evicted."""
    monkeypatch.setattr(vz.config, "open_sources", 2)
    with web_server(tmp_path) as server:
        for i in range(5):
            write_npy(tmp_path / f"{i}.npy", 1, OLD)
        urls = [f"{server.url}/{i}.npy" for i in range(5)]
        group = {f"v/{i}.0": [url, 128, 4 * 12 * 40] for i, url in enumerate(urls)}
        group |= {".zgroup": {"zarr_format": 2}, "v/.zattrs": {"_ARRAY_DIMENSIONS": ["x", "y"]}}
        group["v/.zarray"] = {
            "zarr_format": 2, "shape": [60, 40], "chunks": [12, 40], "dtype": "<i4", "order": "C",
            "fill_value": 0, "compressor": None, "filters": None,
        }  # fmt: skip
        refs = {"version": 1, "refs": group}
        if form == "parquet":
            vz.open(refs, allowed="*").publish(tmp_path / "refs.parquet")
            refs = tmp_path / "refs.parquet"
            for path in refs.rglob("*virtualzarr*"):
                path.unlink()
        array = vz.open(refs, allowed="*")["v"]
        for i in range(5):
            assert set(np.unique(array[12 * i : 12 * i + 12])) == {1}
        assert len(array.chunk_source._files) <= 2
        write_npy(tmp_path / "0.npy", 2, NEW)
        with pytest.raises(SourceChangedError):
            array[:12]
        assert set(np.unique(array[12:24])) == {1}


def test_blocks_of_a_dask_graph_are_of_one_version(tmp_path, monkeypatch):
    """Blocks are arrays of their own, of which each alone would take whatever is there."""
    pytest.importorskip("dask.array")
    monkeypatch.setattr(vz.config, "open_sources", 2)
    with web_server(tmp_path) as server:
        for i in range(5):
            write_npy(tmp_path / f"{i}.npy", 1, OLD)
        files = Sources([Source(f"{server.url}/{i}.npy") for i in range(5)])
        rows = np.arange(5)[:, None]
        metadata = vz.create_array(
            {}, shape=(60, 40), dtype="i4", chunks=(12, 40), compressors=[]
        ).metadata
        manifest = Manifest((5, 1), files, rows, 128, 4 * 12 * 40)
        array = vz.Array.from_manifest(metadata, manifest, "v")
        lazy = to_dask(array, name=False)
        assert set(np.unique(lazy.compute(scheduler="sync"))) == {1}
        # In whatever order dask has read them: the first file is no longer ready.
        assert set(np.unique(lazy[12:].compute(scheduler="sync"))) == {1}
        write_npy(tmp_path / "0.npy", 2, NEW)
        with pytest.raises(SourceChangedError):
            lazy[:12].compute(scheduler="sync")
        assert set(np.unique(lazy[12:24].compute(scheduler="sync"))) == {1}
        again = to_dask(array, name=False)
        assert set(np.unique(again[:12].compute(scheduler="sync"))) == {2}


def test_sharded_arrays(tmp_path):
    """The index of a shard and its parts are of one version, also where the index is kept."""
    random = np.random.default_rng(0)
    values = [random.integers(0, high, SHAPE, "i4") for high in (1000, 50)]

    def write(place, data):
        zarr.create_array(place, data=data, shards=SHAPE, chunks=(2, 10))

    write(tmp_path / "1", values[0])
    write(tmp_path / "2", values[1])
    shard = tmp_path / "1" / "c/0/0"
    first, second = shard.read_bytes(), (tmp_path / "2" / "c/0/0").read_bytes()
    with web_server(tmp_path) as server:
        for warm in (False, True):
            for count in range(6):
                shard.write_bytes(first)
                server.before = None
                array = vz.open(f"{server.url}/1")
                if warm:
                    assert np.array_equal(array[...], values[0])
                replace_after(server, count, shard, lambda place: Path(place).write_bytes(second))
                # Of a Zarr array, each chunk may be the old or the new one.
                found = array[...]
                for i, j in np.ndindex(6, 4):
                    part = (slice(2 * i, 2 * i + 2), slice(10 * j, 10 * j + 10))
                    assert any(np.array_equal(found[part], one[part]) for one in values)


def test_answers_that_say_less_than_was_noted(tmp_path):
    """Some servers name the version in answers to HEAD only."""
    (tmp_path / "a.bin").write_bytes(bytes(100))

    def rewrite(request, status, headers, body):
        if request.command == "GET":
            headers = headers | {"ETag": None, "Last-Modified": None}
        return status, headers, body

    with web_server(tmp_path, rewrite=rewrite) as server:
        url = f"{server.url}/a.bin"
        fingerprint = take_fingerprint(Location.of(url))
        assert fingerprint.etag
        file = RemoteFile(Location.of(url), fingerprint)
        assert bytes(file.read(0, 10)) == bytes(10)
        (tmp_path / "a.bin").write_bytes(b"\1" * 100)
        with pytest.raises(SourceChangedError, match=r"entity tag .* is now .*a\.bin"):
            file.read(0, 10)


TAGGED, DATED = {"ETag": '"a"'}, {"Last-Modified": "Tue, 01 Sep 2020 00:00:00 GMT"}


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (TAGGED, {}),
        (DATED, {}),
        (TAGGED, DATED),
        (DATED, TAGGED),
        ({}, TAGGED),
        ({}, DATED),
        (TAGGED | DATED, {"Last-Modified": "Wed, 02 Sep 2020 00:00:00 GMT"}),
        ({"ETag": '""'} | DATED, {"ETag": '""', "Last-Modified": "Wed, 02 Sep 2020 00:00:00 GMT"}),
        ({"Last-Modified": "2020-09-01T00:00:00Z"}, {"Last-Modified": "2020-09-02T00:00:00Z"}),
        ({"Last-Modified": "1599000000"}, {"Last-Modified": "1599000001"}),
    ],
)
def test_versions_that_are_told_in_another_way_than_before(tmp_path, before, after):
    """As by another server of a pool; a date in a form that is none of HTTP was not looked at."""
    (tmp_path / "a.bin").write_bytes(bytes(100))
    told = before

    def rewrite(request, status, headers, body):
        return status, {k: v for k, v in headers.items() if k == "Content-Range"} | told, body

    with web_server(tmp_path, rewrite=rewrite) as server:
        location = Location.of(f"{server.url}/a.bin")
        file, noted = RemoteFile(location), take_fingerprint(location).as_recorded()
        assert bytes(file.read(0, 10)) == bytes(10)
        assert bytes(file.read(10, 20)) == bytes(10)
        (tmp_path / "a.bin").write_bytes(b"\1" * 100)
        told = after
        with pytest.raises(SourceChangedError, match=r"changed since it was first read"):
            file.read(20, 30)
        if noted.has_version:
            with pytest.raises(SourceChangedError, match="changed since it was scanned"):
                RemoteFile(location, noted).read(20, 30)
        with vz.config.set(verify_sources=False):
            assert bytes(RemoteFile(location, noted).read(20, 30)) == b"\1" * 10


@pytest.mark.parametrize(
    "told", [TAGGED, DATED, {"ETag": 'W/"a"'}, {"Last-Modified": "1599000000"}]
)
def test_versions_that_only_get_tells_are_noted(tmp_path, told):
    write_hdf5(tmp_path / "a.h5", 1, OLD)

    def rewrite(request, status, headers, body):
        kept = {k: v for k, v in headers.items() if k in ("Content-Range", "Content-Length")}
        return status, kept | ({} if request.command == "HEAD" else told), body

    with web_server(tmp_path, rewrite=rewrite) as server:
        group = vz.virtualize(f"{server.url}/a.h5")
        group.publish(tmp_path / "refs.json")
        assert (vz.open(tmp_path / "refs.json")["v"][...] == 1).all()
        write_hdf5(tmp_path / "a.h5", 2, OLD)
        told = {name: value.replace("a", "b").replace("1", "2") for name, value in told.items()}
        for opened in (group, vz.open(tmp_path / "refs.json")):
            with pytest.raises(SourceChangedError):
                opened["v"][...]


def test_versions_and_sizes_that_are_told_apart(tmp_path):
    """HEAD tells the tag and no size, GET the size and no tag."""
    write_hdf5(tmp_path / "a.h5", 1, OLD)
    tag = '"a"'

    def rewrite(request, status, headers, body):
        if request.command == "HEAD":
            return (
                status,
                {"ETag": tag, "Content-Length": None, "Transfer-Encoding": "chunked"},
                b"",
            )
        return status, {k: v for k, v in headers.items() if k.startswith("Content-")}, body

    with web_server(tmp_path, rewrite=rewrite) as server:
        group = vz.virtualize(f"{server.url}/a.h5")
        assert (group["v"][...] == 1).all()
        write_hdf5(tmp_path / "a.h5", 2, OLD)
        tag = '"b"'
        with pytest.raises(SourceChangedError, match="entity tag"):
            group["v"][...]


def test_weak_tags_and_dates(tmp_path):
    """A weak tag may stay though bytes change: then the date must be the same, too."""
    (tmp_path / "a.bin").write_bytes(bytes(100))
    os.utime(tmp_path / "a.bin", (OLD, OLD))

    def rewrite(request, status, headers, body):
        return status, headers | {"ETag": 'W/"same"'}, body

    with web_server(tmp_path, rewrite=rewrite) as server:
        fingerprint = take_fingerprint(Location.of(f"{server.url}/a.bin"))
        assert fingerprint == Fingerprint(100, OLD * 10**9, 'W/"same"')
        (tmp_path / "a.bin").write_bytes(b"\1" * 100)
        with pytest.raises(SourceChangedError, match="modification time"):
            RemoteFile(Location.of(f"{server.url}/a.bin"), fingerprint).read(0, 10)


def test_file_systems_whose_answers_say_nothing(tmp_path):
    """They are asked again after each read."""
    place = f"simplecache::memory://{tmp_path.name}/a.bin"
    memory = fsspec.filesystem("memory")
    memory.pipe_file(f"/{tmp_path.name}/a.bin", bytes(100))
    file = RemoteFile(Location.of(f"memory://{tmp_path.name}/a.bin"), Fingerprint(100))
    assert bytes(file.read(5, 10)) == bytes(5)
    memory.pipe_file(f"/{tmp_path.name}/a.bin", bytes(101))
    with pytest.raises(SourceChangedError, match="size in bytes 100 is now 101"):
        file.read(5, 10)
    assert take_fingerprint(Location.of(place)).size == 101


def test_dates_of_local_files_are_those_of_their_urls(tmp_path):
    path = tmp_path / "a.h5"
    write_hdf5(path, 7, OLD)
    os.utime(path, ns=(1_795_374_505_302_606_434,) * 2)
    by_path, by_url = (
        take_fingerprint(Location.of(str(path))),
        take_fingerprint(Location.of(path.as_uri())),
    )
    assert differences(by_path, by_url) == differences(by_url, by_path) == ""
    scanned = RemoteFile(Location.of(path.as_uri()), fingerprint=by_path)
    assert len(scanned.read(0, 8)) == 8
    os.utime(path, ns=(1_795_374_505_302_608_434,) * 2)  # two microseconds later
    with pytest.raises(SourceChangedError, match="modification time"):
        scanned.read(0, 8)


@pytest.mark.parametrize("inner", ["h5", "zarr"])
def test_archives_in_file_systems_whose_answers_say_nothing(tmp_path, inner):
    """Their version is asked for after each answer, too."""
    memory, name = fsspec.filesystem("memory"), f"/{tmp_path.name}/a.tar"

    def put(value):
        place, bytes_of_file = tmp_path / f"{value}", io.BytesIO()
        place.mkdir()
        values = np.full(3_000_000, value, "i4")  # more than what is requested at once
        if inner == "h5":
            with h5py.File(place / "f.h5", "w") as file:
                file.create_dataset("v", data=values, chunks=(500_000,))
        else:
            zarr.create_array(place / "v", data=values, chunks=(500_000,), compressors=None)
        with tarfile.open(fileobj=bytes_of_file, mode="w") as archive:
            for path in sorted(place.rglob("*")):
                archive.add(path, str(path.relative_to(place)), recursive=False)
        memory.pipe_file(name, bytes_of_file.getvalue())

    put(1)
    member = {"h5": "f.h5", "zarr": "v"}[inner]
    opened = vz.open(f"tar://{member}::memory:/{name}")
    array = opened["v"] if inner == "h5" else opened
    assert set(array[:500_000].tolist()) == {1}
    put(2)
    for selection in np.s_[500_000:1_000_000], np.s_[2_500_000:], np.s_[:]:
        with pytest.raises(SourceChangedError):
            array[selection]


@pytest.mark.parametrize("place", ["local", "file", "memory", "tags", "dates"])
@pytest.mark.parametrize("kind", ["zip", "tar"])
@pytest.mark.parametrize("inner", ["h5", "zarr"])
@pytest.mark.parametrize("change", ["date", "length"])
def test_members_of_archives_are_of_its_version(tmp_path, change, inner, kind, place):
    """Archives tell hardly more of a member than its size, which may be that of another one."""
    path, memory = tmp_path / f"a.{kind}", fsspec.filesystem("memory")

    def put(value, when, extra=0):
        write_archive(path, inner, value, when, extra)
        memory.pipe_file(f"/{tmp_path.name}/a.{kind}", path.read_bytes())

    with web_server(tmp_path, tags=place == "tags", dates=place == "dates") as server:
        urls = {"local": str(path), "file": f"file://{path}", "memory": f"memory://{tmp_path.name}"}
        url = urls.get(place, server.url + f"/a.{kind}") + (f"/a.{kind}" * (place == "memory"))
        put(1, OLD)
        opened = vz.open(f"{kind}://v.{inner}::{url}")
        assert set(np.unique(opened["v"][:2])) == {1}
        opened.publish(tmp_path / "published.json")
        pickled = pickle.dumps(opened)
        if change == "date":
            put(2, NEW)
        else:  # dates are of whole seconds, or copied with the file
            put(2, OLD, extra=100_000)
        # What was requested already is of the old version; nothing more of that can be had.
        assert set(np.unique(opened["v"][...])) == {1}
        with pytest.raises(SourceChangedError):
            pickle.loads(pickled)["v"][...]
        published = vz.open(tmp_path / "published.json", allowed="*")
        with pytest.raises(SourceChangedError):
            published["v"][...]
        assert set(np.unique(vz.open(f"{kind}://v.{inner}::{url}")["v"][...])) == {2}


def write_archive(path, inner, value, when, extra=0):
    """Write a zip or tar file with a group, in which is an array of one value."""
    (path.parent / "extra").write_bytes(bytes(extra))
    content = path.parent / f"v.{inner}"
    shutil.rmtree(content, ignore_errors=True)
    if inner == "h5":
        write_hdf5(content, value, OLD)
    else:
        group = zarr.create_group(content)
        group.create_array("v", data=np.full(SHAPE, value, "i4"), chunks=(2, 10), compressors=None)
    files = [content, *sorted(content.rglob("*")), path.parent / "extra"]
    with (
        zipfile.ZipFile(path, "w") if path.suffix == ".zip" else tarfile.open(path, "w") as archive
    ):
        add = archive.write if path.suffix == ".zip" else partial(archive.add, recursive=False)
        for file in files:
            add(file, str(file.relative_to(path.parent)))
    os.utime(path, (when, when))


def test_zip_files_of_zarr_hierarchies_are_of_one_version(tmp_path):
    """Offsets of members are those of the directory that was read when it was opened."""
    path = tmp_path / "a.zip"

    def put(value, when):
        group = zarr.open_group(zarr.storage.ZipStore(path, mode="w"), mode="w")
        group.create_array(
            "v", data=np.full((1200, 40), value, "i4"), chunks=(200, 40), compressors=None
        )
        group.store.close()
        os.utime(path, (when, when))

    put(1, OLD)
    opened = vz.open(path)
    pickled = pickle.dumps(opened)
    assert set(np.unique(pickle.loads(pickled)["v"][...])) == {1}
    os.unlink(path)  # who has it open still reads the old one
    put(2, NEW)
    assert set(np.unique(opened["v"][...])) == {1}
    with pytest.raises(SourceChangedError):
        pickle.loads(pickled)
    with pytest.raises(SourceChangedError):
        opened.publish(tmp_path / "published.json")
    again = vz.open(path)["v"]
    assert set(np.unique(again[:2])) == {2}
    old, new = (bytes([value, 0, 0, 0]) * 20 for value in (2, 3))
    path.write_bytes(path.read_bytes().replace(old, new))  # in place
    with pytest.raises(SourceChangedError):
        again[2:]


@pytest.mark.parametrize("error", [NotImplementedError, PermissionError, FileNotFoundError, None])
def test_file_systems_that_tell_nothing_but_bytes(tmp_path, error):
    """Without any information of files, or with such as is no date and no tag."""
    files = {}

    class Silent(fsspec.AbstractFileSystem):
        protocol = "silent"

        def cat_file(self, path, start=None, end=None, **kwargs):
            if path not in files:
                raise FileNotFoundError(path)
            return files[path][slice(start, end)]

        def info(self, path, **kwargs):
            if error is not None:
                raise error("no info")
            said = {"mtime": float("nan"), "created": float("inf"), "ETag": np.array([1, 2])}
            return {"name": path, "type": "file", "size": len(files[path]), **said}

    fsspec.register_implementation("silent", Silent, clobber=True)
    values = np.arange(1, 25, dtype="i4")
    array = zarr.create_array(
        tmp_path / "a", data=values, chunks=(4,), shards=(24,), compressors=None
    )
    assert array.shape == (24,)
    plain = zarr.create_array(tmp_path / "b", data=values, chunks=(4,), compressors=None)
    assert plain.shape == (24,)
    for path in tmp_path.rglob("*"):
        if path.is_file():
            files[f"{tmp_path.name}/{path.relative_to(tmp_path)}"] = path.read_bytes()
    files[f"{tmp_path.name}/raw"] = values.tobytes()
    url = f"silent://{tmp_path.name}"
    for options in ({}, {"cache": vz.ChunkCache(10**6)}):
        shards = vz.open(f"{url}/a", **options)
        np.testing.assert_array_equal(shards[...], values)
        np.testing.assert_array_equal(vz.open(f"{url}/b", **options)[...], values)
        assert shards[6:10].tolist() == [7, 8, 9, 10]
        assert shards[20] == 21
        document = {"zarr_format": 2, "shape": [24], "chunks": [4], "dtype": "<i4", "order": "C",
                    "fill_value": 0, "filters": None, "compressor": None}  # fmt: skip
        refs = {f"x/{i}": [f"{url}/raw", 16 * i, 16] for i in range(6)}
        refs |= {".zgroup": '{"zarr_format": 2}', "x/.zarray": json.dumps(document)}
        group = vz.open({"version": 1, "refs": refs}, allowed="*", **options)
        np.testing.assert_array_equal(group["x"][...], values)


def memory_references(name):
    """Return references to two chunks of a file in memory, of which no version is noted."""
    document = {"zarr_format": 2, "shape": [8], "chunks": [4], "dtype": "<i4", "order": "C",
                "fill_value": 0, "filters": None, "compressor": None}  # fmt: skip
    refs = {f"x/{i}": [f"memory://{name}/raw", 16 * i, 16] for i in range(2)}
    refs |= {".zgroup": '{"zarr_format": 2}', "x/.zarray": json.dumps(document)}
    return {"version": 1, "refs": refs}


def test_files_that_were_missing_are_held_to_a_version_once_they_are_there(tmp_path):
    memory, values = fsspec.filesystem("memory"), np.arange(8, dtype="i4")
    array = vz.open(memory_references(tmp_path.name), allowed="*")["x"]
    with pytest.raises(SourceNotFoundError):
        array[:4]
    memory.pipe_file(f"/{tmp_path.name}/raw", values.tobytes())
    np.testing.assert_array_equal(array[:4], values[:4])
    memory.pipe_file(f"/{tmp_path.name}/raw", (100 + values).tobytes() + b"x")
    for _ in range(2):
        with pytest.raises(SourceChangedError):
            array[4:]


@pytest.mark.parametrize("number", range(12))
def test_shards_that_appear_and_are_replaced_while_they_are_read(tmp_path, monkeypatch, number):
    """At any two calls of the file system: all is of one version, or missing."""
    memory, versions, name = fsspec.filesystem("memory"), [], f"/{tmp_path.name}/a"
    for values in (np.arange(1, 25, dtype="i4"), np.array([*[0] * 8, *range(100, 116)], "i4")):
        array = zarr.create_array(
            tmp_path / "a", data=values, chunks=(4,), shards=(24,), compressors=None,
            fill_value=0, overwrite=True,
        )  # fmt: skip
        assert array.shape == (24,)
        content = (tmp_path / "a" / "c" / "0").read_bytes()
        versions.append((values[9:20].tolist(), content))
    memory.pipe_file(f"{name}/zarr.json", (tmp_path / "a" / "zarr.json").read_bytes())
    array, calls = vz.open(f"memory:/{name}"), []

    def step(method, self, *args, **kwargs):
        calls.append(method)
        for (_, content), at in zip(versions, moments, strict=True):
            if len(calls) - 1 == at:
                memory.pipe_file(f"{name}/c/0", content)
        return method(self, *args, **kwargs)

    kind = type(memory)
    for method in (kind.info, kind.cat_file):
        monkeypatch.setattr(kind, method.__name__, partialmethod(partial(step, method)))
    for later in range(12):
        moments, _ = (number, number + later), calls.clear()
        if memory.exists(f"{name}/c/0"):
            memory.rm_file(f"{name}/c/0")
        calls.clear()
        assert array[9:20].tolist() in [*(seen for seen, _ in versions), [0] * 11]


def test_folders_where_a_chunk_would_be(tmp_path):
    """Such as what is left of an array with more axes."""
    memory = fsspec.filesystem("memory")
    array = zarr.create_array(tmp_path / "a", shape=(), dtype="i4", fill_value=7)
    assert array.shape == ()
    memory.pipe_file(f"/{tmp_path.name}/zarr.json", (tmp_path / "a" / "zarr.json").read_bytes())
    memory.pipe_file(f"/{tmp_path.name}/c/0", b"abcd")
    assert vz.open(f"memory://{tmp_path.name}")[...] == 7


def test_shorter_files_with_a_disk_cache(tmp_path, monkeypatch):
    monkeypatch.setattr(vz.config, "disk_cache", str(tmp_path / "cache"))
    (tmp_path / "served").mkdir()
    path = tmp_path / "served/a.bin"
    for method in ("read", "read_many", "tail"):
        path.write_bytes(bytes(2_000_000))
        os.utime(path, (OLD, OLD))
        with web_server(tmp_path / "served") as server:
            file = RemoteFile(Location.of(f"{server.url}/a.bin"))
            assert len(file.read(0, 10)) == 10
            path.write_bytes(bytes(100 if method != "tail" else 0))
            os.utime(path, (NEW, NEW))
            calls = {
                "read": lambda: file.read(1_500_000, 1_500_010),  # noqa: B023
                "read_many": lambda: file.read_many([(0, 5), (1_500_000, 1_500_010)]),  # noqa: B023
                "tail": lambda: file.tail(10),  # noqa: B023
            }
            with pytest.raises(SourceChangedError):
                calls[method]()


def test_ends_of_files_that_are_copied_first(tmp_path):
    memory = fsspec.filesystem("memory")
    values = np.arange(24, dtype="i4")
    zarr.create_array(tmp_path / "a", data=values, chunks=(4,), shards=(24,))
    for path in (tmp_path / "a").rglob("*"):
        if path.is_file():
            memory.pipe_file(
                f"/{tmp_path.name}/a/{path.relative_to(tmp_path / 'a')}", path.read_bytes()
            )
    for kind in ("simplecache", "filecache"):
        options = {kind: {"cache_storage": str(tmp_path / kind)}}
        array = vz.open(f"{kind}::memory://{tmp_path.name}/a", storage_options=options)
        assert array[3:5].tolist() == [3, 4]
        np.testing.assert_array_equal(array[...], values)


# --- local files ---------------------------------------------------------------------------------


def write_netcdf3(path, value, when):
    scipy_io = pytest.importorskip("scipy.io")
    with scipy_io.netcdf_file(path, "w") as file:
        file.createDimension("x", 40)
        file.createVariable("v", "i4", ("x",))[:] = value
    os.utime(path, (when, when))


def write_fits(path, value, when):
    fits = pytest.importorskip("astropy.io.fits")
    fits.PrimaryHDU(np.full(SHAPE, value, "i4")).writeto(path, overwrite=True)
    os.utime(path, (when, when))


def write_grib(path, value, when):
    pytest.importorskip("eccodes")
    from tests.formats.grib.helpers import small

    Path(path).write_bytes(small(float(value)))
    os.utime(path, (when, when))


def write_dmrpp(path, value, when):
    text = """<Dataset xmlns="http://xml.opendap.org/ns/DAP/4.0#" name="a" dapVersion="4.0"
        xmlns:dmrpp="http://xml.opendap.org/dap/dmrpp/1.0.0#" dmrpp:href="a.bin"/>"""
    Path(path).write_text(text + "\n" * value)
    os.utime(path, (when, when))


LOCAL_WRITERS = WRITERS | {
    ".nc": write_netcdf3,
    ".fits": write_fits,
    ".grib2": write_grib,
    ".dmrpp": write_dmrpp,
}


@pytest.mark.parametrize("kind", LOCAL_WRITERS)
def test_local_files_that_are_replaced_while_they_are_scanned(tmp_path, monkeypatch, kind):
    """The fingerprint is that of the old file, the header that of the new one."""
    path, write = tmp_path / f"a{kind}", LOCAL_WRITERS[kind]
    write(path, 1, OLD)
    vz.virtualize(path)

    def replace(location):
        fingerprint = take_fingerprint(location)
        if location.uri == str(path):
            write(f"{path}.new", 2, NEW)
            os.replace(f"{path}.new", path)
        return fingerprint

    monkeypatch.setattr("virtualzarr.manifest.sources.take_fingerprint", replace)
    with pytest.raises(SourceChangedError, match=r"changed since it was scanned.*a\."):
        vz.virtualize(path)
    monkeypatch.undo()
    vz.virtualize(path)


@pytest.mark.parametrize("kind", [".h5", ".grib2"])
def test_local_files_that_are_others_only_while_they_are_opened(tmp_path, monkeypatch, kind):
    """Such as behind a link that is moved, and moved back."""
    path, write = tmp_path / f"a{kind}", LOCAL_WRITERS[kind]
    for value in (1, 2):
        write(tmp_path / str(value), value, NEW + value)
        if kind == ".h5":
            with h5py.File(tmp_path / str(value), "a") as file:
                file.attrs["value"] = file["v"].attrs["value"] = value
            os.utime(tmp_path / str(value), (NEW + value,) * 2)
    path.symlink_to(tmp_path / "1")
    opened, left = os.open, [0]

    def point_to(value):
        (tmp_path / "link").symlink_to(tmp_path / str(value))
        os.replace(tmp_path / "link", path)

    def open_another(name, *args, **kwargs):
        left[0] -= name == str(path)
        if name != str(path) or left[0] != -1:
            return opened(name, *args, **kwargs)
        point_to(2)
        try:
            return opened(name, *args, **kwargs)
        finally:
            point_to(1)

    right, outcomes = contents_of(vz.virtualize(tmp_path / "1")), []
    for number in range(20):
        left[0] = number
        monkeypatch.setattr(os, "open", open_another)
        try:
            group = vz.virtualize(path)
            outcomes.append(contents_of(group))
        except SourceChangedError:
            outcomes.append("error")
        finally:
            monkeypatch.setattr(os, "open", opened)
        if left[0] >= 0:
            break
    assert outcomes[-1] == right
    assert "error" in outcomes
    assert all(one in ("error", right) for one in outcomes)


def contents_of(group):
    arrays = {name: (array[...].tolist(), array.attrs) for name, array in group.members()}
    return arrays, group.attrs
