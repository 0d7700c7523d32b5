"""Which objects there are, and what happens to links that lead nowhere."""

from __future__ import annotations

import h5py
import numpy as np
import pytest

from tests.formats.hdf5.helpers import assert_same, scan_all
from virtualzarr.errors import NodeNotFoundError, RefusedWarning, SourceError, UnsupportedError
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
    found = {name for name, _ in group.members(max_depth=None)}
    assert found == {
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
    with pytest.warns(RefusedWarning):
        group = scan(path, on_error="warn")
    assert_same(path, group)
    assert group.refused.keys() == {
        "dangling", "into", "a/loop", "ping", "pong", "other", "hidden", "a/b/up", "self",
    }  # fmt: skip
    assert "nothing at" in group.refused["dangling"]
    assert "itself" in group.refused["ping"]
    assert "elsewhere.h5" in group.refused["other"]
    assert "elsewhere.h5" in group.refused["hidden"]
    assert "leads back" in group.refused["a/b/up"]
    assert group["a"].refused.keys() == {"loop", "b/up"}
    with pytest.raises(NodeNotFoundError, match="elsewhere"):
        group["other"]


def test_other_files_are_never_opened(path, tmp_path):
    with h5py.File(tmp_path / "secret.h5", "w") as file:
        file["x"] = [1, 2, 3]
    with h5py.File(path, "a") as file:
        file["direct"] = h5py.ExternalLink("secret.h5", "/x")
        file["group"] = h5py.ExternalLink("secret.h5", "/")
        file["through"] = h5py.SoftLink("/group/x")
    with pytest.warns(RefusedWarning):
        group = scan(path, on_error="warn")
    assert group.refused.keys() == {"direct", "group", "through"}


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
    with pytest.warns(RefusedWarning, match="nested more than 64"):
        scan(path, on_error="warn")


def test_groups_reachable_in_exponentially_many_ways(tmp_path):
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        group = file
        for _ in range(40):
            inner = group.create_group("a")
            group["b"] = inner
            group = inner
    with pytest.warns(RefusedWarning, match="links lead to known groups"):
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
