"""Stored Zarr hierarchies opened in place, as zarr-python wrote them."""

import contextlib
import json
import re
import shutil
import zipfile

import numpy as np
import pytest
import zarr

import virtualzarr as vz
from tests.formats.damage import flip_everywhere, truncate_everywhere
from tests.stores.webserver import web_server
from virtualzarr.errors import (
    AccessError,
    MetadataError,
    NodeNotFoundError,
    SkippedVariableWarning,
    UnsupportedError,
    VirtualZarrError,
)
from virtualzarr.stores import FsspecStore, LocalStore, MemoryStore


def write(root, zarr_format, **options):
    rng = np.random.default_rng(0)
    group = zarr.create_group(root, zarr_format=zarr_format, attributes={"title": "sample"})
    values = {
        "a": rng.normal(size=(20, 30)).astype("f4"),
        "inner/b": rng.integers(-100, 100, (17,)).astype("i2"),
        "inner/deep/c": np.array(3.5),
        "empty": np.zeros((0, 4), "u1"),
    }
    for path, data in values.items():
        chunks = tuple(max(1, min(7, n)) for n in data.shape)
        array = group.create_array(
            path, shape=data.shape, dtype=data.dtype, chunks=chunks, **options
        )
        array[...] = data
        array.attrs["units"] = "m"
    hollow = group.create_array("hollow", shape=(9,), dtype="i4", chunks=(4,), fill_value=-1)
    hollow[:4] = np.arange(4)
    return values | {"hollow": np.array([0, 1, 2, 3, -1, -1, -1, -1, -1], "i4")}


@pytest.mark.parametrize("zarr_format", [2, 3])
@pytest.mark.parametrize("consolidated", [False, True])
@pytest.mark.parametrize("kind", ["local", "url", "mapping", "http"])
def test_hierarchies(tmp_path, zarr_format, consolidated, kind, request):
    values = write(tmp_path / "x.zarr", zarr_format)
    if consolidated:
        zarr.consolidate_metadata(str(tmp_path / "x.zarr"))
    target = {
        "local": lambda: tmp_path / "x.zarr",
        "url": lambda: f"local://{tmp_path}/x.zarr",
        "http": lambda: request.getfixturevalue("http_server")(tmp_path) + "/x.zarr",
        "mapping": lambda: {
            str(path.relative_to(tmp_path / "x.zarr")): path.read_bytes()
            for path in (tmp_path / "x.zarr").rglob("*")
            if path.is_file()
        },
    }[kind]()
    group = vz.open(target)
    assert group.attrs["title"] == "sample"
    if kind == "http" and not consolidated:
        for lists in (list, len, lambda group: group.tree()):
            with pytest.raises(UnsupportedError, match="does not list what the group holds"):
                lists(group)
        assert repr(group) == "<Group: members unknown>"
        with pytest.raises(NodeNotFoundError, match="'none' in /; the server does not list"):
            group["none"]
        np.testing.assert_array_equal(group["inner/b"][...], values["inner/b"])
        return
    assert {p for p, node in group.members(None) if isinstance(node, vz.Array)} == set(values)
    for path, expected in values.items():
        array = group[path]
        np.testing.assert_array_equal(array[...], expected)
        assert array.dtype == expected.dtype
        assert array.path == path
        if path != "hollow":
            assert array.attrs["units"] == "m"
    assert vz.open(target, "inner/b")[3:5].tolist() == values["inner/b"][3:5].tolist()


def test_chunks_in_fortran_order_and_big_endian(tmp_path):
    data = np.arange(60, dtype=">f8").reshape(5, 12)
    array = zarr.create_array(
        tmp_path / "f.zarr", shape=data.shape, chunks=(3, 5), dtype=">f8", zarr_format=2, order="F"
    )
    array[...] = data
    np.testing.assert_array_equal(vz.open(tmp_path / "f.zarr")[...], data)


def test_fsspec_store_over_memory():
    import fsspec

    with fsspec.open("memory://store/zarr.json", "wb") as file:
        file.write(b'{"zarr_format": 3, "node_type": "group", "attributes": {"a": 1}}')
    assert vz.open("memory://store").attrs == {"a": 1}
    store = FsspecStore("memory://store")
    assert store.get("nothing") is None
    assert list(store.list_dir("")) == ["zarr.json"]


def test_keys_cannot_leave_the_store(tmp_path):
    (tmp_path / "secret").write_bytes(b"1")
    store = LocalStore(tmp_path / "inside")
    for key in ("../secret", "a/../../secret", str(tmp_path / "secret")):
        with pytest.raises(AccessError):
            store.get(key)
        with pytest.raises(AccessError):
            store.file(key)


def test_what_is_not_there(tmp_path):
    write(tmp_path / "x.zarr", 3)
    group = vz.open(tmp_path / "x.zarr")
    with pytest.raises(
        NodeNotFoundError, match="no array or group 'nothing' in /; there is a, empty"
    ):
        group["nothing"]
    with pytest.raises(NodeNotFoundError):
        group["a/b"]
    with pytest.raises(NodeNotFoundError):
        vz.open(tmp_path / "x.zarr", "nothing")
    assert "inner/deep/c" in group
    assert "inner/x" not in group
    with pytest.raises(OSError, match="nowhere"):
        vz.open(tmp_path / "nowhere.zarr")


def test_a_broken_array_does_not_cost_the_group(tmp_path):
    write(tmp_path / "x.zarr", 3)
    path = tmp_path / "x.zarr" / "inner" / "b" / "zarr.json"
    document = json.loads(path.read_text())
    document["codecs"] = [{"name": "unheard_of"}]
    path.write_text(json.dumps(document))
    group = vz.open(tmp_path / "x.zarr")
    assert group["a"].shape == (20, 30)
    with pytest.raises(NotImplementedError, match=r"unheard_of.*variable inner/b"):
        group["inner/b"]
    with pytest.warns(SkippedVariableWarning, match="unheard_of"):
        warned = vz.virtualize(tmp_path / "x.zarr", on_error="warn")
    assert list(warned.skipped) == ["inner/b"]
    path.write_text("{")
    with pytest.raises(MetadataError):
        group["inner/b"]


def test_truncated_and_overlong_chunks_are_errors(tmp_path):
    array = zarr.create_array(
        tmp_path / "a.zarr", shape=(8,), chunks=(8,), dtype="i4", compressors=None
    )
    array[...] = np.arange(8)
    chunk = tmp_path / "a.zarr" / "c" / "0"
    whole = chunk.read_bytes()
    for wrong in (whole[:-1], whole + b"\0", b""):
        chunk.write_bytes(wrong)
        with pytest.raises(ValueError, match="chunk 0"):
            vz.open(tmp_path / "a.zarr")[...]


def test_tree_and_repr():
    documents = {
        "zarr.json": b'{"zarr_format": 3, "node_type": "group"}',
        "g/zarr.json": b'{"zarr_format": 3, "node_type": "group"}',
    }
    group = vz.open(MemoryStore(documents))
    assert group.tree() == "/\n└── g"
    assert repr(group) == "<Group: 1 member>"


@pytest.mark.parametrize("zarr_format", [2, 3])
@pytest.mark.parametrize("consolidated", [False, True])
def test_paths_of_members(tmp_path, zarr_format, consolidated):
    write(tmp_path / "x.zarr", zarr_format)
    if consolidated:
        zarr.consolidate_metadata(str(tmp_path / "x.zarr"))
    group = vz.open(tmp_path / "x.zarr")
    for path in ("", "/"):
        assert sorted(group[path]) == sorted(group)
        assert group[path].path == ""
    for path in ("inner/deep/c", "/inner//deep/c/"):
        assert group[path].path == group["inner"]["deep/c"].path == "inner/deep/c"
        assert path in group
    assert group["inner"]["/"].path == "inner"
    assert 0 not in group
    with pytest.raises(TypeError, match="text, not by int"):
        group[0]


def test_names_that_resemble_documents(tmp_path):
    names = ["zarr.json", "zarr.json.old", ".zgroup2"]
    group = b'{"zarr_format": 3, "node_type": "group"}'
    store = {"zarr.json": group} | {f"{name}/zarr.json": group for name in names[1:]}
    assert sorted(vz.open(store)) == sorted(names[1:])
    store["empty/zarr.json"] = b""
    assert "empty" in list(vz.open(store))
    with pytest.raises(MetadataError):
        vz.open(store)["empty"]


def test_a_refused_node_is_refused_every_time():
    document = {"zarr_format": 3, "node_type": "group", "consolidated_metadata": {
        "kind": "inline", "metadata": {"a": {"zarr_format": 3, "node_type": "array"}}}}  # fmt: skip
    group = vz.open({"zarr.json": json.dumps(document).encode()})
    depths = []
    for _ in range(3):
        with pytest.raises(MetadataError, match="variable a") as caught:
            group["a"]
        depths.append(len(caught.traceback))
    assert len(set(depths)) == 1


def test_errors_keep_their_cause():
    with pytest.raises(MetadataError, match=r"not JSON.*file memory, variable /") as caught:
        vz.open({"zarr.json": b"{"})
    assert isinstance(caught.value.__cause__, json.JSONDecodeError)


def test_a_hierarchy_in_a_folder_of_an_archive(tmp_path):
    vz.create_array(tmp_path / "a.zarr", shape=(4,), dtype="i4", chunks=(2,))[...] = range(4)
    packed = shutil.make_archive(str(tmp_path / "a"), "zip", tmp_path, "a.zarr")
    with pytest.raises(UnsupportedError, match=r"zip://a\.zarr::") as caught:
        vz.open(packed)
    (place,) = re.findall(r"open (\S+?)[ ;]", str(caught.value))
    assert vz.open(place)[...].tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_archives_of_stored_members(tmp_path, zarr_format, http_server):
    write(tmp_path / "a.zarr", zarr_format)
    names = ("a.zip", "a.zarr.archive")
    for name in names:
        with zipfile.ZipFile(tmp_path / name, "w") as archive:
            for path in (tmp_path / "a.zarr").rglob("*"):
                if path.is_file():
                    archive.write(path, path.relative_to(tmp_path / "a.zarr").as_posix())
    folder = vz.virtualize(tmp_path / "a.zarr")
    for place in (*(tmp_path / name for name in names), http_server(tmp_path) + "/a.zip"):
        group = vz.virtualize(place)
        assert group.tree() == folder.tree()
        joined = vz.concat([group["a"], folder["a"]], 0)
        np.testing.assert_array_equal(joined[...], np.tile(folder["a"][...], (2, 1)))
    joined = vz.concat([vz.virtualize(tmp_path / "a.zip")["a"], folder["a"]])
    vz.Group({}, {"a": joined}).publish(tmp_path / "refs.json", copy=True)
    np.testing.assert_array_equal(vz.open(tmp_path / "refs.json")["a"][...], joined[...])


def test_archives_that_are_damaged(tmp_path):
    write(tmp_path / "a.zarr", 3)
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        for path in sorted((tmp_path / "a.zarr").rglob("*")):
            if path.is_file():
                archive.write(path, path.relative_to(tmp_path / "a.zarr").as_posix())
    size = (tmp_path / "a.zip").stat().st_size
    truncate_everywhere(tmp_path / "a.zip", vz.virtualize, size, 197)
    directory = (tmp_path / "a.zip").read_bytes().find(b"PK\x01\x02")
    flip_everywhere(tmp_path / "a.zip", vz.virtualize, size, directory, 61)
    flip_everywhere(tmp_path / "a.zip", vz.virtualize, directory, step=131)


def places(node, above=()):
    """Yield the path to everything in a document."""
    items = node.items() if isinstance(node, dict) else enumerate(node)
    for key, inner in items:
        yield (*above, key)
        if isinstance(inner, dict | list):
            yield from places(inner, (*above, key))


HUGE = [2**63, 2**63 - 1, 2**64, 10**30, -1, 1.5, 1e308, None, "9", True, [3], {"a": 1}]


@pytest.mark.parametrize("zarr_format", [2, 3])
@pytest.mark.parametrize("number", HUGE, ids=str)
def test_absurd_metadata(tmp_path, zarr_format, number):
    values = np.arange(6, dtype="i2").reshape(2, 3)
    shards = {"shards": (2, 2)} if zarr_format == 3 else {}
    zarr.create_array(
        tmp_path / "a.zarr", data=values, chunks=(1, 2), zarr_format=zarr_format, **shards
    )
    path = tmp_path / "a.zarr" / ("zarr.json" if zarr_format == 3 else ".zarray")
    document = json.loads(path.read_text())
    for place in places(document):
        changed = json.loads(path.read_text())
        inner = changed
        for key in place[:-1]:
            inner = inner[key]
        inner[place[-1]] = number
        other = tmp_path / "b.zarr"
        shutil.copytree(tmp_path / "a.zarr", other, dirs_exist_ok=True)
        (other / path.name).write_text(json.dumps(changed))
        with contextlib.suppress(VirtualZarrError):
            array = vz.virtualize(other)["b"]
            array[(slice(1),) * array.ndim]
            if array.nbytes < 1 << 20:
                array[...]
            vz.stack([array, array])


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_a_server_that_does_not_list_is_asked_for_each_chunk(
    tmp_path, zarr_format, http_server, monkeypatch
):
    values = write(tmp_path / "x.zarr", zarr_format)
    url = http_server(tmp_path) + "/x.zarr"
    for name in ("a", "hollow", "inner/deep/c"):
        array = vz.open(f"{url}/{name}")
        there = vz.open(tmp_path / "x.zarr" / name).chunk_exists()
        np.testing.assert_array_equal(array.chunk_exists(), there)
        joined = vz.stack([array, array])
        np.testing.assert_array_equal(joined[...], np.stack([values[name]] * 2))
        assert joined.manifest.nrefs == 2 * there.sum()
    zarr.consolidate_metadata(str(tmp_path / "x.zarr"))
    group = vz.virtualize(url)
    group.publish(tmp_path / "refs.json")
    for name, expected in values.items():
        np.testing.assert_array_equal(vz.open(tmp_path / "refs.json")[name][...], expected)
    monkeypatch.setattr(vz.config.limits, "chunk_queries", 3)
    with pytest.raises(UnsupportedError, match=r"does not list which chunks.*x\.zarr.*variable a"):
        group["a"].chunk_exists()
    with pytest.raises(UnsupportedError, match="does not list which chunks"):
        vz.concat([group["a"]])


PAGES = {
    "the first": lambda names: names[:4],
    "no slashes": lambda names: [name.rstrip("/") for name in names],
    "all": None,
}


@pytest.mark.parametrize("options", [{}, {"shards": (4, 4)}, {"zarr_format": 2}], ids=str)
@pytest.mark.parametrize("links", PAGES.values(), ids=PAGES)
def test_pages_that_leave_chunks_out_are_not_believed(tmp_path, monkeypatch, links, options):
    values = np.arange(1.0, 65.0).reshape(16, 4)
    array = vz.create_array(tmp_path / "a", shape=(16, 4), chunks=(2, 4), dtype="f8", **options)
    array[:12] = values[:12]
    values[12:] = 0
    with web_server(tmp_path, lists=True, links=links) as server:
        there = vz.open(f"{server.url}/a")
        np.testing.assert_array_equal(there[...], values)
        np.testing.assert_array_equal(vz.concat([there, there])[...], np.concatenate([values] * 2))
        there.publish(tmp_path / "a.json")
        (published,) = dict(vz.open(tmp_path / "a.json").arrays()).values()
        np.testing.assert_array_equal(published[...], values)
        for chunks in ("keep", (4, 1)):
            vz.copy(there, tmp_path / "copied", overwrite=True, chunks=chunks)
            np.testing.assert_array_equal(vz.open(tmp_path / "copied")[...], values)
        monkeypatch.setattr(vz.config.limits, "chunk_queries", 0)
        with pytest.raises(UnsupportedError, match=r"may leave some out.*chunk_queries"):
            vz.concat([there])
        vz.copy(there, tmp_path / "copied", overwrite=True)
        np.testing.assert_array_equal(vz.open(tmp_path / "copied")[...], values)


def test_a_server_that_shows_nothing_is_not_believed(tmp_path, http_server):
    vz.create_array(tmp_path / "a", shape=(4,), chunks=(2,), dtype="i4")
    with pytest.raises(UnsupportedError, match="does not list which chunks"):
        vz.concat([vz.open(http_server(tmp_path) + "/a")])
