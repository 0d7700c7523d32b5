"""Editing stored groups: members, attributes, consolidated metadata."""

from __future__ import annotations

import json
import threading

import numpy as np
import pytest
import zarr

import virtualzarr as vz
from virtualzarr.errors import (
    AccessError,
    MetadataError,
    MismatchError,
    NodeExistsError,
    NodeNotFoundError,
    UnsupportedError,
)
from virtualzarr.metadata import parse_consolidated_v2, parse_consolidated_v3
from virtualzarr.stores import MemoryStore

MARKERS = {2: ".zgroup", 3: "zarr.json"}


@pytest.fixture(params=[2, 3])
def zarr_format(request):
    return request.param


@pytest.fixture(params=["memory", "local"])
def root(request, zarr_format, tmp_path):
    place = {} if request.param == "memory" else tmp_path / "root"
    return vz.create_group(place, zarr_format=zarr_format)


def keys(group):
    return sorted(key for key, _ in group.store.list())


def paths(group):
    return [path for path, _ in group.members(max_depth=None)]


class TestMaking:
    def test_ancestors(self, root, zarr_format):
        root.create_array("a/b/x", data=np.arange(3), dimension_names=["t"])
        assert paths(root) == ["a", "a/b", "a/b/x"]
        for path in ("", "a/", "a/b/"):
            assert root.store.get(path + MARKERS[zarr_format]) is not None
        assert root["a/b/x"][:].tolist() == [0, 1, 2]
        assert root["a"]["b"]["x"].metadata.zarr_format == zarr_format

    def test_ancestors_of_what_was_made_alone(self, zarr_format):
        store = {}
        vz.create_array(store, name="a/x", shape=1, dtype="i1", zarr_format=zarr_format)
        vz.create_group(store, path="b/c", zarr_format=zarr_format)
        assert paths(vz.open(store)) == ["a", "a/x", "b", "b/c"]

    def test_ancestors_keep_what_they_say(self, root):
        root.create_group("a", attributes={"kept": 1})
        root.create_group("a/b")
        assert root["a"].attrs == {"kept": 1}

    def test_seen_at_once(self, root):
        assert list(root) == []
        root.create_group("a")
        assert list(root) == ["a"]
        assert "a" in root
        root.delete("a")
        assert list(root) == []
        assert "a" not in root

    @pytest.mark.parametrize("path", ["/x", "x/", "//x", "a/../x", "./x", "..", ".", "", "/"])
    def test_paths(self, root, path):
        if "." in path:
            with pytest.raises(MetadataError, match=r"'\.' or '\.\.'"):
                root.create_group(path)
        elif not path.strip("/"):
            with pytest.raises(ValueError, match="not the name"):
                root.create_group(path)
        else:
            assert root.create_group(path).path == "x"
            assert list(root) == ["x"]

    def test_depths(self, root):
        root.create_group("a/b/c")
        assert [path for path, _ in root.members()] == ["a"]
        assert [path for path, _ in root.members(1)] == ["a", "a/b"]
        with pytest.raises(ValueError, match="max_depth"):
            list(root.members(-1))

    def test_backslashes(self, root):
        root.create_group("a\\b")
        assert paths(root) == ["a", "a/b"]

    @pytest.mark.parametrize("name", ["...", "a/..../b"])
    def test_dots(self, root, name):
        with pytest.raises(MetadataError, match="dots"):
            root.create_array(name, shape=1, dtype="i1")
        assert list(root) == []

    @pytest.mark.parametrize(
        ("name", "version"),
        [
            ("zarr.json", 3),
            ("__x", 3),
            (".zgroup", 2),
            ("a/.zarray", 2),
            (".zattrs", 3),
            ("a/.zmetadata", 3),
            ("zarr.json", 2),
        ],
    )
    def test_reserved(self, name, version):
        group = vz.create_group({}, zarr_format=version)
        with pytest.raises(MetadataError, match="reserved"):
            group.create_group(name)

    def test_there_already(self, root):
        root.create_array("x", data=np.arange(3))
        root.create_group("g/inner")
        for name, kind in (("x", "an array"), ("g", "a group")):
            for make in (
                root.create_group,
                lambda name: root.create_array(name, shape=1, dtype="i1"),
            ):
                with pytest.raises(NodeExistsError, match=f"{kind} already"):
                    make(name)
        root.create_array("g", data=np.ones(2), overwrite=True)
        assert paths(root) == ["g", "x"]
        assert not [key for key in keys(root) if key.startswith("g/inner")]

    def test_below_an_array(self, root):
        root.create_array("x", shape=1, dtype="i1")
        before = keys(root)
        with pytest.raises(MetadataError, match=r"'x/y' cannot be made: .* 'x'"):
            root.create_group("x/y")
        assert keys(root) == before

    def test_in_a_group_of_the_other_format(self, root, zarr_format):
        other = 5 - zarr_format
        with pytest.raises(MetadataError, match=f"cannot be of Zarr v{other}"):
            root.create_group("x", zarr_format=other)

    def test_many_at_once(self, zarr_format):
        store = MemoryStore({})
        won, lost = [], []

        def make(number):
            try:
                vz.create_array(store, name="a/x", data=np.full(2, number), zarr_format=zarr_format)
                won.append(number)
            except NodeExistsError:
                lost.append(number)

        threads = [threading.Thread(target=make, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(won) == 1
        assert len(lost) == 7
        assert vz.open(store)["a/x"][:].tolist() == won * 2

    def test_virtual_groups(self):
        group = vz.Group({"a": 1}, {})
        with pytest.raises(UnsupportedError, match="not stored"):
            group.create_array("x", shape=1, dtype="i1")
        group.attrs["b"] = 2
        assert group.attributes == {"a": 1, "b": 2}


class TestRequiring:
    def test_groups(self, root):
        made = root.require_group("a/b")
        made.attrs["x"] = 1
        assert root.require_group("a/b").attrs == {"x": 1}
        root.create_array("x", shape=1, dtype="i1")
        with pytest.raises(NodeNotFoundError, match="but an array"):
            root.require_group("x")

    def test_arrays(self, root):
        root.require_array("x", shape=(3,), dtype="f4")[...] = 5
        assert root.require_array("x", shape=(3,), dtype="f4")[:].tolist() == [5, 5, 5]
        with pytest.raises(MismatchError, match="shape"):
            root.require_array("x", shape=(4,), dtype="f4")
        with pytest.raises(MismatchError, match="dtype"):
            root.require_array("x", shape=(3,), dtype="f8")


class TestDeleting:
    def test_everything_in_it(self, root):
        root.create_array("a/x", data=np.arange(10), chunks=2)
        root.create_array("b", shape=1, dtype="i1")
        root.delete("a")
        assert paths(root) == ["b"]
        assert not [key for key in keys(root) if key.startswith("a")]
        del root["b"]
        assert paths(root) == []

    def test_names_that_begin_alike(self, root):
        root.create_group("a")
        root.create_group("ab")
        root.delete("a")
        assert list(root) == ["ab"]

    def test_missing(self, root):
        with pytest.raises(NodeNotFoundError):
            root.delete("a")
        with pytest.raises(ValueError, match="not the name"):
            root.delete("/")

    def test_array_is_gone(self, root):
        array = root.create_array("x", data=np.arange(3))
        root.delete("x")
        with pytest.raises(NodeNotFoundError):
            array.append([1])
        with pytest.raises(NodeNotFoundError):
            root["x"]


def refuse_chunks(get):
    """Return a `get` that only gives documents."""

    def found(store, key, byte_range=None):
        assert key.rsplit("/", 1)[-1] in (
            "zarr.json",
            ".zarray",
            ".zgroup",
            ".zattrs",
            ".zmetadata",
        )
        return get(store, key, byte_range)

    return found


class TestMoving:
    def test_move(self, root):
        root.create_array("a/x", data=np.arange(10), chunks=2, attributes={"u": "K"})
        root.create_group("a/empty")
        root.move("a", "new/place")
        assert paths(root) == ["new", "new/place", "new/place/empty", "new/place/x"]
        assert root["new/place/x"][:].tolist() == list(range(10))
        assert root["new/place/x"].attrs == {"u": "K"}
        assert not [key for key in keys(root) if key.startswith("a/")]

    def test_a_directory_is_renamed(self, tmp_path, monkeypatch):
        root = vz.create_group(tmp_path)
        root.create_array("a/x", data=np.arange(10), chunks=2)
        root.create_array("b/y", data=np.arange(3))
        root.consolidate_metadata()
        inode = (tmp_path / "a" / "x" / "c" / "0").stat().st_ino
        monkeypatch.setattr(vz.stores.LocalStore, "get", refuse_chunks(vz.stores.LocalStore.get))
        root.move("a", "b/deep/a")
        assert (tmp_path / "b" / "deep" / "a" / "x" / "c" / "0").stat().st_ino == inode
        assert not (tmp_path / "a").exists()
        for found in (root, vz.open(tmp_path), vz.open_group(tmp_path, mode="r")):
            assert paths(found) == ["b", "b/deep", "b/deep/a", "b/deep/a/x", "b/y"]
            assert found["b/deep/a/x"][:].tolist() == list(range(10))
        root.move("b/deep/a", "b/z")
        assert paths(vz.open(tmp_path)) == ["b", "b/deep", "b/y", "b/z", "b/z/x"]

    def test_where_something_lies_that_is_no_node(self, tmp_path):
        root = vz.create_group(tmp_path)
        root.create_array("x", data=np.arange(10), chunks=2)
        (tmp_path / "y").mkdir()
        (tmp_path / "y" / "notes.txt").write_text("here before")
        root.move("x", "y")
        assert root["y"][:].tolist() == list(range(10))
        assert not (tmp_path / "x").exists()
        assert (tmp_path / "y" / "notes.txt").read_text() == "here before"

    @pytest.mark.parametrize("zarr_format", [2, 3])
    @pytest.mark.parametrize("work", ["copy", "move"])
    def test_where_chunks_lie_that_would_be_in_it(self, zarr_format, work):
        """As copies leave them that were cut short."""
        made = {}
        root = vz.create_group(made, zarr_format=zarr_format)
        lead = "c/" if zarr_format == 3 else ""
        for name in ("x", "g/x"):
            root.create_array(name, shape=(6,), chunks=(2,), dtype="i4", fill_value=-1)[:4] = 5
        shown = {path: node[...].tolist() for path, node in root.members(None) if path != "g"}
        for source in ("x", "g"):
            inner = "" if source == "x" else "x/"
            for name in (f"{inner}{lead}2", ".zattrs" if zarr_format == 2 else "a/zarr.json"):
                made[f"y/{name}"] = b"{}"
                with pytest.raises(NodeExistsError, match=f"y/{name}"):
                    getattr(root, work)(source, "y")
                del made[f"y/{name}"]
            # What it replaces is that of a copy of the same node, and of no array is no chunk.
            made |= {f"y/{inner}{lead}0": b"cut off", f"y/{inner}notes": b"", "y/d/3": b""}
            getattr(root, work)(source, "y")
            end = "/x" if inner else ""
            assert root[f"y{end}"][...].tolist() == shown[f"{source}{end}"]
            root.create_group("y", overwrite=True)
            del root["y"]

    @pytest.mark.parametrize("work", ["delete", "move", "copy"])
    def test_nodes_that_others_call_like_documents(self, tmp_path, work):
        """zarr-python makes them, in v3."""
        theirs = zarr.create_group(tmp_path / "r")
        for name in ("g/.zgroup", "g/.zarray", "g/.zattrs", "g/n"):
            theirs.create_array(name, data=np.arange(3))
        root = vz.open_group(tmp_path / "r", mode="r+")
        names = [".zarray", ".zattrs", ".zgroup", "n"]
        assert sorted(name for name, _ in root["g"].members()) == names
        if work == "delete":
            del root["g"]
            assert not (tmp_path / "r/g").exists()
            return
        getattr(root, work)("g", "h")
        opened = zarr.open_group(tmp_path / "r", mode="r")["h"]
        assert sorted(opened.array_keys()) == names
        assert all(opened[name][...].tolist() == [0, 1, 2] for name in names)

    def test_copy(self, root):
        root.create_array("x", data=np.arange(10), chunks=2)
        root.copy("x", "y")
        root["y"][0] = 100
        assert (root["x"][0], root["y"][0]) == (0, 100)

    def test_refused(self, root):
        root.create_group("a/b")
        root.create_array("x", data=np.arange(2))
        before = keys(root)
        with pytest.raises(NodeExistsError):
            root.move("a", "x")
        with pytest.raises(NodeNotFoundError):
            root.move("c", "d")
        with pytest.raises(MetadataError, match="into itself"):
            root.move("a", "a/c")
        with pytest.raises(MetadataError, match="above it"):
            root.copy("a", "x/a")
        assert keys(root) == before


class TestAttributes:
    @pytest.fixture(params=["group", "array"])
    def node(self, request, root):
        if request.param == "group":
            return root.create_group("n", attributes={"a": 1})
        return root.create_array(
            "n", shape=(2,), dtype="i1", attributes={"a": 1}, dimension_names=["x"]
        )

    def stored(self, root):
        return dict(vz.open(root.store, "n").attrs)

    def test_writing(self, root, node):
        node.attrs["b"] = [1, {"c": None}]
        assert self.stored(root) == {"a": 1, "b": [1, {"c": None}]}
        del node.attrs["a"]
        node.attrs.update({"d": np.float64(0.5)}, e="x")
        assert self.stored(root) == node.attrs == {"b": [1, {"c": None}], "d": 0.5, "e": "x"}
        assert node.attrs.pop("d") == 0.5
        assert node.attrs.setdefault("f", 7) == 7
        node.attrs.put({"only": True})
        assert self.stored(root) == node.attrs.asdict() == {"only": True}
        node.attrs.clear()
        assert self.stored(root) == node.attrs == {}

    def test_the_rest_stays(self, root, node, zarr_format):
        node.attrs["b"] = 2
        again = vz.open(root.store, "n")
        assert type(again) is type(node)
        if isinstance(again, vz.Array):
            assert again.dims == ("x",)
            assert again.metadata == node.metadata
        if zarr_format == 3:
            key = "n/zarr.json"
            document = json.loads(root.store.get(key))
            document["other"] = {"must_understand": False, "x": 1}
            root.store.set(key, json.dumps(document).encode())
            vz.open(root.store, "n", mode="r+").attrs["c"] = 3
            assert json.loads(root.store.get(key))["other"] == document["other"]

    def test_others_are_kept(self, root, node):
        other = vz.open(root.store, "n", mode="r+")
        other.attrs["theirs"] = 1
        node.attrs["mine"] = 2
        assert self.stored(root) == node.attrs == {"a": 1, "theirs": 1, "mine": 2}

    def test_threads(self, root, node):
        def write(number):
            vz.open(root.store, "n", mode="r+").attrs[f"key{number}"] = number

        threads = [threading.Thread(target=write, args=(number,)) for number in range(16)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(self.stored(root)) == 17

    def test_no_json(self, root, node):
        with pytest.raises(MetadataError, match="b is a object"):
            node.attrs["b"] = object()
        assert self.stored(root) == node.attrs == {"a": 1}
        with pytest.raises(KeyError):
            del node.attrs["missing"]

    def test_resizing_keeps_them(self, root):
        array = root.create_array("n", data=np.arange(4))
        vz.open(root.store, "n", mode="r+").attrs["late"] = 1
        array.append([4])
        assert self.stored(root) == {"late": 1}


class TestReadOnly:
    def test_all_edits(self, root):
        root.create_array("x", shape=1, dtype="i1")
        before = keys(root)
        frozen = vz.open_group(root.store, mode="r")
        edits = [
            lambda: frozen.create_group("g"),
            lambda: frozen.require_array("y", shape=1, dtype="i1"),
            lambda: frozen.delete("x"),
            lambda: frozen.move("x", "y"),
            lambda: frozen.attrs.update(a=1),
            lambda: frozen["x"].attrs.update(a=1),
            frozen.consolidate_metadata,
        ]
        for edit in edits:
            with pytest.raises(AccessError, match="read"):
                edit()
        assert keys(root) == before
        assert frozen.require_array("x", shape=1, dtype="i1").shape == (1,)


class TestConsolidated:
    @pytest.fixture
    def whole(self, root):
        root.attrs["title"] = "weather"
        root.create_array("a/x", data=np.arange(4), dimension_names=["t"], attributes={"u": "K"})
        root.create_group("a/empty")
        root.consolidate_metadata()
        return root

    def consolidated(self, group):
        """What a reader sees who has nothing but the one document."""
        if group.zarr_format == 2:
            document = json.loads(group.store.get(".zmetadata"))
            nodes = parse_consolidated_v2(document).nodes
            return {path: node for path, node in nodes.items() if path}
        document = json.loads(group.store.get("zarr.json"))
        return parse_consolidated_v3(document["consolidated_metadata"]).nodes

    def stored(self, group):
        fresh = vz.open(group.store, mode="r+")
        return {
            path: node.metadata if isinstance(node, vz.Array) else node._members.metadata
            for path, node in fresh.members(max_depth=None)
        }

    def check(self, group):
        assert self.consolidated(group) == self.stored(group)

    def test_is_what_is_stored(self, whole):
        assert set(self.consolidated(whole)) == {"a", "a/x", "a/empty"}
        self.check(whole)

    def test_reading_needs_nothing_else(self, whole):
        root_documents = {"zarr.json", ".zmetadata", ".zgroup", ".zattrs"}
        kept = {key: whole.store.get(key) for key in keys(whole) if key in root_documents}
        assert paths(vz.open(kept, mode="r")) == ["a", "a/empty", "a/x"]

    @pytest.mark.parametrize(
        "edit",
        [
            lambda g: g.create_array("a/b/c/new", data=np.arange(3)),
            lambda g: g.create_group("new", attributes={"x": 1}),
            lambda g: g.create_group("a", overwrite=True),
            lambda g: g.delete("a"),
            lambda g: g.delete("a/x"),
            lambda g: g.move("a", "b/a"),
            lambda g: g.copy("a/x", "y"),
            lambda g: g["a"].attrs.update(x=1),
            lambda g: g["a/x"].attrs.update(x=1),
            lambda g: g["a/x"].append([1, 2]),
            lambda g: g["a/x"].resize((2,)),
            lambda g: g.attrs.update(x=1),
        ],
    )
    def test_follows_edits(self, whole, edit):
        edit(whole)
        self.check(whole)
        assert dict(vz.open(whole.store).attrs) == dict(vz.open(whole.store, mode="r+").attrs)

    def test_of_a_part(self, root):
        root.create_array("a/x", data=np.arange(4))
        root["a"].consolidate_metadata()
        root["a/x"].append([1])
        assert vz.open(root.store, "a", mode="r")["x"].shape == (5,)

    def test_again(self, whole):
        whole.create_group("b")
        whole.consolidate_metadata()
        self.check(whole)

    def test_writers_see_what_is_stored(self, whole):
        # As by a writer that knows nothing of consolidated metadata.
        for key in keys(whole):
            if key.startswith("a/empty"):
                whole.store.delete(key)
        assert "a/empty" not in vz.open_group(whole.store, mode="r+")

    def test_needs_a_group(self, zarr_format):
        store = {}
        vz.create_array(store, shape=1, dtype="i1", zarr_format=zarr_format)
        from virtualzarr.nodes.consolidated import consolidate

        with pytest.raises(NodeNotFoundError, match="no Zarr group"):
            consolidate(MemoryStore(store))
