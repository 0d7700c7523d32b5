"""Damaged, truncated and absurd files give clear errors, in little time and memory."""

from __future__ import annotations

import contextlib
import struct
import tracemalloc

import numpy as np
import pytest

from tests.formats.netcdf3.helpers import header, values_of, write_netcdf4
from virtualzarr.array import Array
from virtualzarr.errors import SourceError, UnsupportedError, VirtualZarrError
from virtualzarr.formats.netcdf3 import scan


@pytest.fixture(params=["NETCDF3_CLASSIC", "NETCDF3_64BIT_DATA"])
def whole(request, tmp_path):
    path = tmp_path / "a.nc"
    variables = {
        "fixed": (("x",), values_of("h", (3,))),
        "a": (("time", "x"), values_of("b", (2, 3))),
        "b": (("time",), values_of("f", (2,))),
    }
    write_netcdf4(path, request.param, {"time": None, "x": 3}, variables)
    return path, variables


def read(path):
    """Read all that is not absurdly large."""
    group = scan(path)
    nodes = {name: node for name, node in group.items() if isinstance(node, Array)}
    return {name: node[...] for name, node in nodes.items() if node.nbytes < 1 << 20}


def test_truncated_anywhere(whole, tmp_path):
    path, variables = whole
    raw = path.read_bytes()
    cut = tmp_path / "cut.nc"
    for size in range(len(raw)):
        cut.write_bytes(raw[:size])
        with pytest.raises(SourceError, match=r"cut\.nc"):
            read(cut)
    assert read(path).keys() == variables.keys()


def test_padding_at_the_end_may_be_missing(tmp_path):
    path = tmp_path / "a.nc"
    values = values_of("b", (3,))
    write_netcdf4(path, "NETCDF3_CLASSIC", {"x": 3}, {"v": (("x",), values)})
    path.write_bytes(path.read_bytes()[:-1])
    assert np.array_equal(read(path)["v"], values)


def test_a_truncated_variable_costs_only_itself(tmp_path):
    path = tmp_path / "a.nc"
    variables = {"a": (("x",), values_of("i", (3,))), "b": (("x",), values_of("i", (3,)))}
    write_netcdf4(path, "NETCDF3_CLASSIC", {"x": 3}, variables)
    path.write_bytes(path.read_bytes()[:-4])
    with pytest.warns(UserWarning, match="variable b"):
        group = scan(path, on_error="warn")
    assert list(group) == ["a"]
    assert "truncated" in group.skipped["b"]


@pytest.mark.filterwarnings("ignore::virtualzarr.errors.SkippedVariableWarning")
def test_every_bit_flipped(whole):
    path, variables = whole
    raw = path.read_bytes()
    end = raw.index(variables["fixed"][1].astype(">h").tobytes())
    for place in range(end):
        for bit in (0, 7):
            damaged = bytearray(raw)
            damaged[place] ^= 1 << bit
            path.write_bytes(damaged)
            with contextlib.suppress(VirtualZarrError):
                read(path)


@pytest.mark.parametrize("claim", [2**31 - 1, 2**32 - 2])
def test_absurd_numbers_of_records(tmp_path, claim):
    path = tmp_path / "a.nc"
    head, size = header(0, 5, 2, 40)
    path.write_bytes(head[:4] + struct.pack(">I", claim) + head[8:] + bytes(size))
    tracemalloc.start()
    with pytest.raises(SourceError, match="the file ends at"):
        scan(path)
    assert tracemalloc.get_traced_memory()[1] < 1 << 20
    tracemalloc.stop()


def test_absurd_records(tmp_path):
    path = tmp_path / "a.nc"
    path.write_bytes(
        b"CDF\5" + struct.pack(">q", 0)
        + struct.pack(">iq", 10, 3)
        + b"".join(struct.pack(">q4sq", 1, bytes([c, 0, 0, 0]), n)
                   for c, n in zip(b"txy", (0, 2**62, 2**62), strict=True))
        + struct.pack(">iq", 0, 0)
        + struct.pack(">iqq4sqqqqiqiqq", 11, 1, 1, b"v\0\0\0", 3, 0, 1, 2, 0, 0, 6, 0, 4096)
    )  # fmt: skip
    with pytest.raises(SourceError, match="more bytes than a file can have"):
        scan(path)


@pytest.mark.parametrize("version", [0, 3, 4, 6])
def test_unknown_versions(tmp_path, version):
    path = tmp_path / "a.nc"
    path.write_bytes(b"CDF" + bytes([version]) + bytes(40))
    with pytest.raises(UnsupportedError, match=f"version {version} of netCDF3"):
        scan(path)


def test_variables_on_top_of_each_other(whole):
    path, _ = whole
    raw = path.read_bytes()
    fixed = values_of("h", (3,)).astype(">h").tobytes()
    begin = struct.pack(">I", raw.index(fixed))
    path.write_bytes(raw.replace(begin, struct.pack(">I", 8)))
    with pytest.raises(SourceError, match=r"within the header.*variable fixed"):
        scan(path)


def test_names_that_lead_elsewhere(tmp_path):
    path = tmp_path / "a.nc"
    write_netcdf4(path, "NETCDF3_CLASSIC", {"x": 3}, {"abc": (("x",), values_of("i", (3,)))})
    for name in (b"../", b"...", b"a/b"):
        path.write_bytes(path.read_bytes().replace(b"abc", name))
        with pytest.raises(VirtualZarrError, match="the name of a node"):
            scan(path)
        path.write_bytes(path.read_bytes().replace(name, b"abc"))
