"""Which objects there are, and what happens to links that lead nowhere."""

from __future__ import annotations

import h5py
import numpy as np
import pytest

import virtualzarr
from tests.formats.hdf5.helpers import assert_same, scan_all
from virtualzarr.config import config
from virtualzarr.errors import (
    NodeNotFoundError,
    SkippedVariableWarning,
    SourceError,
    UnsupportedError,
)
from virtualzarr.formats.hdf5 import scan


@pytest.fixture(params=["earliest", "latest"])
def path(request, tmp_path):
    path = tmp_path / "a.h5"
    with h5py.File(path, "w", libver=request.param) as file:
        file["a/b/x"] = np.arange(5)
        file["a/y"] = np.arange(3)
        file["type"] = np.dtype("i4")
    return path


def test_groups_and_soft_links(path):
    with h5py.File(path, "a") as file:
        file["absolute"] = h5py.SoftLink("/a/b/x")
        file["a/relative"] = h5py.SoftLink("b/./x")
        file["a/b/group"] = h5py.SoftLink("/c")
        file["c/z"] = 1
        file["through"] = h5py.SoftLink("absolute")
        file["hard"] = file["a/y"]
    group = assert_same(path)
    names = {name for name, _ in group.members(max_depth=None)}
    assert names == {
        "a", "a/b", "a/b/x", "a/y", "absolute", "a/relative", "a/b/group", "a/b/group/z", "c",
        "c/z", "through", "hard",
    }  # fmt: skip


def test_links_that_lead_nowhere_cost_only_themselves(path):
    with h5py.File(path, "a") as file:
        file["dangling"] = h5py.SoftLink("/a/none")
        file["into"] = h5py.SoftLink("/a/y/z")
        file["a/loop"] = h5py.SoftLink("loop")
        file["ping"] = h5py.SoftLink("pong")
        file["pong"] = h5py.SoftLink("ping")
        file["other"] = h5py.ExternalLink("elsewhere.h5", "/x")
        file["hidden"] = h5py.SoftLink("/other/x")
        file["a/b/up"] = file["a"]
        file["self"] = file["/"]
    with pytest.warns(SkippedVariableWarning):
        group = scan(path, on_error="warn")
    assert_same(path, group)
    assert group.skipped.keys() == {
        "dangling", "into", "a/loop", "ping", "pong", "other", "hidden", "a/b/up", "self",
    }  # fmt: skip
    assert "nothing at" in group.skipped["dangling"]
    assert "itself" in group.skipped["ping"]
    assert "elsewhere.h5" in group.skipped["other"]
    assert "elsewhere.h5" in group.skipped["hidden"]
    assert "leads back" in group.skipped["a/b/up"]
    assert group["a"].skipped.keys() == {"loop", "b/up"}
    with pytest.raises(NodeNotFoundError, match="elsewhere"):
        group["other"]


@pytest.fixture
def other(path):
    """Return another file beside the first, with dimension scales, references and links."""
    other = path.parent / "parts" / "b.h5"
    other.parent.mkdir()
    with h5py.File(other, "w") as file:
        file["x"] = np.arange(6.0).reshape(2, 3)
        file["deep/time"] = [10, 20, 30]
        file["deep/time"].make_scale()
        file["x"].dims[1].attach_scale(file["deep/time"])
        file["x"].attrs["units"] = "K"
        file["deep/soft"] = h5py.SoftLink("/x")
        file["deep"].attrs["what"] = "a group"
        file["type"] = np.dtype("i4")
    return other


def test_external_links_are_followed(path, other):
    with h5py.File(other, "a") as file:
        file["deep/refs"] = np.array([file["x"].ref, file["deep"].ref], h5py.ref_dtype)
    with h5py.File(path, "a") as file:
        file["direct"] = h5py.ExternalLink("parts/b.h5", "/x")
        file["a/group"] = h5py.ExternalLink(str(other), "deep")
        file["through"] = h5py.SoftLink("/a/group/soft")
        file["named"] = h5py.ExternalLink("parts/b.h5", "type")
    group = scan_all(path)
    assert "named" not in group
    refs = group["a/group/refs"]
    assert refs[...].tolist() == ["/x", "/deep"]  # in their own file
    assert_same(path, virtualzarr.Group({}, {k: group[k] for k in ("direct", "through")}))
    assert group["a/group/time"][...].tolist() == [10, 20, 30]
    assert group["a/group"].attrs["what"] == "a group"
    for name in ("direct", "through", "a/group/soft"):
        assert group[name].dims[1] == "time"
        assert group[name].attrs["units"] == "K"
        assert group[name].manifest.sources[0].uri == str(other)
    assert group["a/b/x"].manifest.sources[0].uri == str(path)


def test_other_files_name_others(path, other):
    with h5py.File(other.parent / "c.h5", "w") as file:
        file["values"] = np.arange(4)
        file["back"] = h5py.ExternalLink("../a.h5", "/a/y")
    with h5py.File(other, "a") as file:
        file["deep/next"] = h5py.ExternalLink("../parts/c.h5", "/values")
        file["deep/rest"] = h5py.ExternalLink("c.h5", "/")
    with h5py.File(path, "a") as file:
        file["b"] = h5py.ExternalLink("parts/b.h5", "/deep")
    group = scan_all(path)
    picked = {"next": group["b/next"], "values": group["b/rest/values"], "y": group["b/rest/back"]}
    assert {name: array[...].tolist() for name, array in picked.items()} == {
        "next": [0, 1, 2, 3], "values": [0, 1, 2, 3], "y": [0, 1, 2],
    }  # fmt: skip
    assert {node.manifest.sources[0].uri for node in picked.values()} == {
        str(path), str(path.parent / "parts/c.h5")
    }  # fmt: skip


def test_files_elsewhere_are_opened_once_and_side_by_side(path, http_server):
    for k in range(3):
        with h5py.File(path.parent / f"{k}.h5", "w") as file:
            file["x"] = np.full(4, k)
    with h5py.File(path, "a") as file:
        for k in range(30):
            file[f"v{k}"] = h5py.ExternalLink(f"{k % 3}.h5", "/x")
        file["none"] = h5py.ExternalLink("none.h5", "/x")
    url = http_server(path.parent)
    with pytest.warns(SkippedVariableWarning, match="not there"):
        group = scan(f"{url}/a.h5", on_error="warn")
    opened = [name for name in http_server.requests if name in ("/0.h5", "/1.h5", "/2.h5")]
    assert len(opened) <= 3 * 2
    assert [group[f"v{k}"][0] for k in range(30)] == [k % 3 for k in range(30)]


def test_places_where_hdf5_looks(path, tmp_path, monkeypatch):
    folders = {name: tmp_path / name for name in ("prefix", "here", "real")}
    for name, folder in folders.items():
        folder.mkdir()
        with h5py.File(folder / "t.h5", "w") as file:
            file["x"] = name
        with h5py.File(folder / f"{name}.h5", "w") as file:
            file["x"] = name
    with h5py.File(tmp_path / "t.h5", "w") as file:
        file["x"] = "beside"
    with h5py.File(folders["real"] / "m.h5", "w") as file:
        file["elsewhere"] = h5py.ExternalLink("/nowhere/t.h5", "x")
        file["t"] = h5py.ExternalLink("t.h5", "x")
        for name in folders:
            file[name] = h5py.ExternalLink(f"{name}.h5", "x")
    linked = tmp_path / "m.h5"
    linked.symlink_to(folders["real"] / "m.h5")
    monkeypatch.setenv("HDF5_EXT_PREFIX", f"/none:{folders['prefix']}")
    monkeypatch.chdir(folders["here"])
    group = assert_same(linked)
    assert {name: str(node[()]) for name, node in group.members()} == {
        "elsewhere": "prefix", "t": "prefix", "prefix": "prefix", "here": "here", "real": "real",
    }  # fmt: skip


def test_external_links_that_lead_nowhere_cost_only_themselves(path, other, tmp_path):
    (tmp_path / "text.h5").write_text("text")
    (tmp_path / "cut.h5").write_bytes(other.read_bytes()[:700])
    outside = tmp_path.parent / f"{tmp_path.name}.h5"
    with h5py.File(outside, "w") as file:
        file["x"] = [1]
    with h5py.File(other, "a") as file:
        file["ping"] = h5py.ExternalLink("../a.h5", "/ping")
        file["up"] = h5py.ExternalLink("../a.h5", "/")
        file["deep/self"] = h5py.ExternalLink("b.h5", "/deep")
        file["dangling"] = h5py.SoftLink("/none")
    links = {
        "missing": ("none.h5", "/x", "not there"),
        "text": ("text.h5", "/x", "cannot open"),
        "cut": ("cut.h5", "/x", "cut off"),
        "path": ("parts/b.h5", "/none", "nothing at 'none'"),
        "outside": (str(outside), "/x", "outside what was allowed"),
        "ping": ("parts/b.h5", "/ping", "leads to itself"),
        "dangling": ("parts/b.h5", "/dangling", "nothing at 'none'"),
    }
    with h5py.File(path, "a") as file:
        for name, (where, message, _) in links.items():
            file[name] = h5py.ExternalLink(where, message)
        file["b"] = h5py.ExternalLink("parts/b.h5", "/")
    with pytest.warns(SkippedVariableWarning):
        group = scan(path, on_error="warn")
    assert group.skipped.keys() == {*links, "b/up", "b/ping", "b/deep/self", "b/dangling"}
    for name, (_, _, reason) in links.items():
        assert reason in group.skipped[name]
    assert "leads back" in group.skipped["b/up"]
    assert "leads back" in group.skipped["b/deep/self"]
    assert group["b/x"].shape == (2, 3)
    assert_same(path, group)
    with pytest.warns(SkippedVariableWarning):
        group = scan(path, on_error="warn", allowed=tmp_path.parent)
    assert group["outside"][...].tolist() == [1]
    with pytest.raises(UnsupportedError, match=r"nothing at 'none' \[file .*b\.h5, variable path"):
        scan_only(path, "path")


def scan_only(path, name):
    """Scan a file with but one of its links."""
    with h5py.File(path, "a") as file:
        for other in set(file) - {name}:
            del file[other]
    return scan(path)


def test_many_other_files(path):
    # More than are kept open.
    with h5py.File(path, "a") as file:
        for k in range(100):
            file[f"v{k}"] = h5py.ExternalLink(f"{k % 70}.h5", "/g/x")
            with h5py.File(path.parent / f"{k % 70}.h5", "w") as linked:
                linked["g/x"] = np.full(3, k % 70)
                linked["g/x"].attrs["number"] = k % 70
    group = assert_same(path)
    assert [group[f"v{k}"].attrs["number"] for k in range(100)] == [k % 70 for k in range(100)]


def test_exponentially_many_ways_through_other_files(path, monkeypatch):
    monkeypatch.setattr(config.limits, "repeated_links", 50)
    for k in range(12):
        with h5py.File(path.parent / f"{k}.h5", "w") as file:
            for name in "abcd":
                file[name] = h5py.ExternalLink(f"{(k + 1) % 12}.h5", "/")
    with pytest.warns(SkippedVariableWarning, match=r"51 links that lead .*limits\.repeated_links"):
        scan(path.parent / "0.h5", on_error="warn")


def test_external_links_between_urls(path, other, http_server):
    with h5py.File(other, "a") as file:
        file["up"] = h5py.ExternalLink("../a.h5", "/a/y")
        file["out"] = h5py.ExternalLink("../../../../etc/passwd", "/")
        file["local"] = h5py.ExternalLink("file:///etc/passwd", "/")
    with h5py.File(path, "a") as file:
        file["b"] = h5py.ExternalLink("parts/b.h5", "/")
        file["gone"] = h5py.ExternalLink("parts/none.h5", "/")
    url = http_server(path.parent)
    with pytest.warns(SkippedVariableWarning):
        group = scan(f"{url}/a.h5", on_error="warn")
    assert group.skipped.keys() == {"gone", "b/out", "b/local"}
    assert group["b/x"].manifest.sources[0].uri == f"{url}/parts/b.h5"
    assert_same(path, virtualzarr.Group({}, {"b": group["b"], "a": group["a"]}, ""))


def test_raising_names_file_and_variable(path):
    with h5py.File(path, "a") as file:
        file["a/dangling"] = h5py.SoftLink("/none")
    with pytest.raises(UnsupportedError, match=r"file .*a\.h5, variable a/dangling"):
        scan(path)


def test_order_of_creation_where_it_is_kept(tmp_path):
    path = tmp_path / "a.h5"
    with h5py.File(path, "w", track_order=True) as file:
        for name in "zax":
            file[name] = 1
    assert list(scan_all(path)) == ["z", "a", "x"]


def test_names_that_are_not_utf8(tmp_path):
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        space = h5py.h5s.create_simple((2,))
        h5py.h5d.create(file.id, b"gr\xfcn", h5py.h5t.STD_I32LE, space)
        file["日本"] = [1]
    group = scan_all(path)
    assert set(group) == {"gr\\xfcn", "日本"}
    assert group["gr\\xfcn"][...].tolist() == [0, 0]


def test_deep_nesting_ends(tmp_path):
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        file.create_group("/".join("g" * 100))["x"] = 1
    with pytest.warns(SkippedVariableWarning, match="nested more than 64"):
        scan(path, on_error="warn")


def test_groups_reachable_in_exponentially_many_ways(tmp_path):
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        group = file
        for _ in range(40):
            inner = group.create_group("a")
            group["b"] = inner
            group = inner
    with pytest.warns(
        SkippedVariableWarning, match=r"10001 links that lead .*limits\.repeated_links"
    ):
        scan(path, on_error="warn")


@pytest.mark.parametrize("content", [b"", b"text", b"\x89HDF\r\n\x1a\n" + bytes(100)])
def test_files_hdf5_cannot_open(tmp_path, content):
    path = tmp_path / "a.h5"
    path.write_bytes(content)
    with pytest.raises(SourceError, match=r"(HDF5 cannot open the file|the file is empty).*a\.h5"):
        scan(path)


def test_missing_file(tmp_path):
    with pytest.raises(SourceError, match="No such file"):
        scan(tmp_path / "none.h5")


def test_truncated_file(path):
    raw = path.read_bytes()
    path.write_bytes(raw[: len(raw) // 2])
    with pytest.raises(SourceError, match="HDF5 cannot open"):
        scan(path)


def test_remote_files(path, http_server):
    url = http_server(path.parent) + "/a.h5"
    with h5py.File(path, "a") as file:
        file.create_dataset("zipped", data=np.arange(1000), chunks=(100,), compression="gzip")
    group = scan_all(url)
    assert group["zipped"].manifest.sources[0].uri == url
    assert_same(path, group)


def test_memory_file_system(path):
    import fsspec

    fsspec.filesystem("memory").pipe("/a.h5", path.read_bytes())
    assert_same(path, scan_all("memory://a.h5"))
