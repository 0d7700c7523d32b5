"""NPY and NPZ files are read as numpy reads them."""

from __future__ import annotations

import pickle
import struct
import zipfile

import fsspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import virtualzarr as vz
from tests.fidelity.npy import check
from tests.formats.damage import flip_everywhere, read, truncate_everywhere
from virtualzarr.errors import SourceError, UnsupportedError, VirtualZarrError
from virtualzarr.formats.npy import scan


def check_file(path):
    rows = list(check(path))
    assert rows
    assert [row for row in rows if row.outcome != "equal"] == []
    return vz.open(path)


STRUCTURED = [("a", "<i4"), ("b", ">f8", (2,)), ("c", "S3")]


@pytest.mark.parametrize(
    "dtype",
    ["?", "i1", "<u2", ">i4", "<f2", ">f8", "<c8", ">c16", "<M8[D]", ">m8[25s]", "S5", "<U3", "V4",
     STRUCTURED, {"names": ["x"], "formats": ["<i2"], "offsets": [3], "itemsize": 8}],
)  # fmt: skip
@pytest.mark.parametrize("order", ["C", "F"])
def test_every_type(tmp_path, dtype, order):
    dtype = np.dtype(dtype)
    raw = np.random.default_rng(0).integers(0, 2, (3, 4, dtype.itemsize), "u1")
    values = np.asarray(raw.view(dtype).reshape(3, 4), order=order)
    np.save(tmp_path / "a.npy", values)
    group = check_file(tmp_path / "a.npy")
    assert group["data"].manifest.nrefs == 1


@settings(max_examples=60)
@given(
    values=hnp.arrays(
        hnp.integer_dtypes() | hnp.floating_dtypes(sizes=(16, 32, 64)),
        hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=4),
    ),
    order=st.sampled_from("CF"),
    version=st.sampled_from([(1, 0), (2, 0), (3, 0)]),
)
def test_any_array(tmp_path_factory, values, order, version):
    path = tmp_path_factory.getbasetemp() / "any.npy"
    with open(path, "wb") as file:
        np.lib.format.write_array(file, np.asarray(values, order=order), version=version)
    check_file(path)


def test_archives(tmp_path):
    arrays = {"a": np.arange(6).reshape(2, 3), "b c": np.array(5.5), "é": np.zeros((0, 2), ">i2"),
              "f": np.asfortranarray(np.arange(12.0).reshape(3, 4))}  # fmt: skip
    np.savez(tmp_path / "a.npz", **arrays)
    assert list(check_file(tmp_path / "a.npz")) == list(arrays)
    np.savez(tmp_path / "b.npz", np.arange(3), np.arange(4))
    assert list(check_file(tmp_path / "b.npz")) == ["arr_0", "arr_1"]


def test_compressed_archives_are_refused_by_name(tmp_path):
    path = tmp_path / "a.npz"
    np.savez_compressed(path, a=np.arange(6))
    with pytest.raises(UnsupportedError, match=r"compressed .*savez.*variable a"):
        vz.open(path)
    with pytest.warns(UserWarning, match="compressed"):
        assert "compressed" in vz.open(path, on_error="warn").skipped["a"]


def test_objects_are_refused_by_name(tmp_path):
    np.save(tmp_path / "a.npy", np.array([{}, 1], object), allow_pickle=True)
    with pytest.raises(UnsupportedError, match="pickles"):
        scan(tmp_path / "a.npy")
    np.save(tmp_path / "a.npy", np.zeros(3, np.longdouble))
    with pytest.raises(UnsupportedError, match="extended precision"):
        scan(tmp_path / "a.npy")


def test_elsewhere(tmp_path):
    np.savez(tmp_path / "a.npz", a=np.arange(9), b=np.eye(3))
    fsspec.filesystem("memory").pipe_file("/npy/a.npz", (tmp_path / "a.npz").read_bytes())
    group = vz.open("memory://npy/a.npz")
    assert np.array_equal(group["b"][...], np.eye(3))


def test_files_are_joined(tmp_path):
    np.save(tmp_path / "0.npy", np.arange(6, dtype="<i4").reshape(2, 3))
    np.save(tmp_path / "1.npy", np.asfortranarray(np.arange(9, dtype=">i4").reshape(3, 3)))
    joined = vz.virtualize(tmp_path / "*.npy", concat_dim=0)["data"]
    assert joined[:, 1].tolist() == [1, 4, 1, 4, 7]


@pytest.mark.parametrize("name", ["a.npy", "a.npz"])
def test_damage(tmp_path, name):
    path = tmp_path / name
    values = np.arange(6, dtype="<i2").reshape(2, 3)
    np.save(path, values) if name == "a.npy" else np.savez(path, a=values)
    size = path.stat().st_size
    truncate_everywhere(path, scan, size)
    # Flipped bits of the header; of an archive, also of its directory at the end.
    flip_everywhere(path, scan, 128, step=2)
    if name == "a.npz":
        flip_everywhere(path, scan, size, size - 90)
    assert np.array_equal(*read(scan(path)).values(), values)


@pytest.mark.parametrize(
    "header",
    ["{'descr': '<i4', 'fortran_order': False, 'shape': (1000000000000,)}",
     "{'descr': '<i4', 'fortran_order': False, 'shape': (99999999999999999999,)}",
     "{'descr': '<i4', 'fortran_order': False, 'shape': (-1,)}",
     "{'descr': '<i4', 'fortran_order': 1, 'shape': (1,)}",
     "{'descr': '<i4', 'fortran_order': False, 'shape': (True,)}",
     "{'descr': '<i4', 'shape': (1,)}", "((((" * 5000, "[", "__import__('os')", "é\xff"],
)  # fmt: skip
def test_absurd_headers(tmp_path, header):
    raw = header.encode("latin-1")
    path = tmp_path / "a.npy"
    path.write_bytes(b"\x93NUMPY\2\0" + struct.pack("<I", len(raw)) + raw + bytes(8))
    with pytest.raises(VirtualZarrError, match=r"a\.npy"):
        scan(path)


def test_archives_that_point_nowhere(tmp_path):
    path = tmp_path / "a.npz"
    np.savez(path, a=np.arange(6))
    raw = bytearray(path.read_bytes())
    entry = raw.rindex(b"PK\1\2")
    raw[entry + 42 : entry + 46] = struct.pack("<I", 3)
    path.write_bytes(raw)
    with pytest.raises(SourceError, match="points to no member"):
        scan(path)


def damage(path, raw, at):
    path.write_bytes(raw[:at] + bytes([raw[at] ^ 1]) + raw[at + 1 :])
    return vz.open(path)


@pytest.mark.parametrize("key", [..., (slice(3, 5), 0), (0, 0)])
def test_checksums_of_archives(tmp_path, monkeypatch, key):
    path = tmp_path / "a.npz"
    values = np.arange(60_000, dtype="i4").reshape(300, 200)
    np.savez(path, before=np.zeros(3), a=values, after=np.ones(3))
    raw = path.read_bytes()
    at = raw.index(values.tobytes())
    for place in (0, 7, values.nbytes - 1):
        group = damage(path, raw, at + place)
        with pytest.raises(zipfile.BadZipFile), np.load(path) as theirs:
            theirs["a"]
        assert group["before"][...].tolist() + group["after"][...].tolist() == [0] * 3 + [1] * 3
        with pytest.raises(SourceError, match=r"checksum.*a\.npz"):
            group["a"][key]
        with pytest.raises(SourceError, match="checksum"):
            pickle.loads(pickle.dumps(vz.concat([group["a"], group["a"]], axis=0)))[...]
    monkeypatch.setattr(vz.config, "verify_sources", False)
    assert group["a"][0, 0] == 0


def test_parts_of_large_members_are_not_compared(tmp_path, monkeypatch):
    path = tmp_path / "a.npz"
    values = np.arange(300_000)
    np.savez(path, a=values)
    raw = path.read_bytes()
    group = damage(path, raw, raw.index(values.tobytes()))
    monkeypatch.setattr(vz.config, "member_check_bytes", 1000)
    assert group["a"][5] == 5
    monkeypatch.undo()
    with pytest.raises(SourceError, match="checksum"):
        group["a"][5]


def test_damaged_headers_of_empty_arrays_in_archives(tmp_path):
    path = tmp_path / "a.npz"
    np.savez(path, a=np.zeros((0, 3), "i8"), b=np.arange(2))
    raw = path.read_bytes()
    path.write_bytes(raw.replace(b"(0, 3)", b"(0, 4)"))
    with pytest.raises(SourceError, match=r"checksum.*variable a"):
        vz.open(path)
    with pytest.warns(UserWarning, match="checksum"):
        assert list(vz.open(path, on_error="warn")) == ["b"]


def test_damaged_headers_in_archives(tmp_path):
    path = tmp_path / "a.npz"
    np.savez(path, a=np.arange(12))
    raw = path.read_bytes()
    path.write_bytes(raw.replace(b"'<i8'", b"'<f8'"))
    with pytest.raises(SourceError, match="checksum"):
        vz.open(path)["a"][...]
