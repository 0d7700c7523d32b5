"""Many records cost nothing, and only the header is fetched from elsewhere."""

from __future__ import annotations

import fsspec
import numpy as np
import pytest

from tests.fidelity.runner import report, run
from tests.formats.netcdf3.helpers import header, values_of, write_netcdf4
from tests.realdata import real_files
from virtualzarr.formats.netcdf3 import scan
from virtualzarr.stores.files import RemoteFile


def test_a_million_records(tmp_path):
    path, count = tmp_path / "a.nc", 1_000_000
    head, size = header(count, 5, 10, count * 10 * 20)
    with open(path, "wb") as file:
        file.write(head)
        file.truncate(size)
        file.seek(size - 20)
        file.write(np.arange(5, dtype=">i4").tobytes())
    group = scan(path)
    assert len(group) == 10
    assert all(array.manifest.ncells == count for array in group.values())
    assert sum(array.manifest.nbytes for array in group.values()) < 1000
    assert group["v9"][-1].tolist() == [0, 1, 2, 3, 4]
    assert group["v8"][-2:].tolist() == [[0] * 5] * 2


def test_only_the_header_is_fetched(tmp_path, http_server):
    variables = {
        "a": (("time", "x"), values_of("d", (100, 200))),
        "b": (("x",), values_of("d", (200,))),
    }
    write_netcdf4(tmp_path / "a.nc", "NETCDF3_CLASSIC", {"time": None, "x": 200}, variables)
    group = scan(f"{http_server(tmp_path)}/a.nc")
    assert len(http_server.requests) == 1
    assert np.array_equal(group["a"][7:9], variables["a"][1][7:9])


def test_records_are_fetched_together_and_no_others(tmp_path, http_server, monkeypatch):
    variables = {f"v{i}": (("time", "x"), values_of("f", (20_000, 5), i)) for i in range(4)}
    write_netcdf4(tmp_path / "a.nc", "NETCDF3_64BIT_OFFSET", {"time": None, "x": 5}, variables)
    array, values = scan(f"{http_server(tmp_path)}/a.nc")["v2"], variables["v2"][1]
    fetched = []
    read = RemoteFile.read
    monkeypatch.setattr(
        RemoteFile,
        "read",
        lambda self, start, stop, *rest: (
            fetched.append(stop - start) or read(self, start, stop, *rest)
        ),
    )
    for part, most in (
        (slice(None), 20_000 * 80),
        (slice(700, 707), 7 * 80),
        (slice(None, None, -5000), 4 * 20),
        ((slice(300), 2), 300 * 80),
    ):
        fetched.clear()
        np.testing.assert_array_equal(array[part], values[part])
        assert len(fetched) <= 4
        assert sum(fetched) <= most


def test_long_headers():
    head, size = header(1, 1, 5000, 20_000)
    raw = head + bytes(size - 20_000 - len(head)) + np.arange(5000, dtype=">i4").tobytes()
    fsspec.filesystem("memory").pipe_file("/netcdf3/a.nc", raw)
    group = scan("memory://netcdf3/a.nc")
    assert len(group) == 5000
    assert [group[f"v{i}"][0, 0] for i in (0, 77, 4999)] == [0, 77, 4999]


def test_real_files():
    pytest.importorskip("scipy")
    rows = list(run("netcdf3", real_files("netcdf3")))
    assert not [row for _, row in rows if row.outcome == "wrong"], report(rows)
    counts = [row.outcome for _, row in rows]
    assert counts.count("equal") >= 0.98 * (counts.count("equal") + counts.count("refused"))
