"""Deep checks of references: what sizes and dates do not tell."""

import os
import shutil

import h5py
import numpy as np
import pytest

import virtualzarr as vz
from tests.stores.webserver import web_server
from virtualzarr.cli.parser import main
from virtualzarr.stores.digests import SAMPLE_BYTES, SAMPLES, sample_digest, sample_ranges
from virtualzarr.stores.files import InlineFile

WHEN = (1_000_000_000, 1_000_000_000)


def write(path, value, start=0, **how):
    with h5py.File(path, "w", track_order=True) as file:
        time = file.create_dataset("time", data=np.arange(start, start + 4.0))
        time.make_scale("time")
        data = np.arange(4 * 300, dtype="i4").reshape(4, 300) + value
        air = file.create_dataset("air", data=data, chunks=(1, 100), **how)
        air.dims[0].attach_scale(time)
    os.utime(path, WHEN)
    return str(path)


def overwrite(path, position, data):
    """Change bytes of a file, which keeps its size and date."""
    with open(path, "r+b") as file:
        file.seek(position)
        file.write(data)
    os.utime(path, WHEN)


@pytest.mark.parametrize("form", ["json", "parquet"])
def test_files_of_the_same_size_and_date(tmp_path, form):
    files = [write(tmp_path / f"{k}.h5", 7, 4 * k) for k in range(3)]
    group = vz.virtualize(files[:2], "time")
    refs, plain = tmp_path / f"refs.{form}", tmp_path / f"plain.{form}"
    group.publish(refs, digests=True)
    group.publish(plain)
    vz.append(refs, files[2], "time")  # of which a digest is noted, too
    assert vz.check_references(refs, deep=True).ok == tuple(files)
    write(files[0], 8)
    write(files[2], 9, 8)
    assert vz.check_references(refs).good
    report = vz.check_references(refs, deep=True)
    assert [*report.changed] == [files[0], files[2]]
    assert report.ok == (files[1],)
    assert "bytes are others" in report.changed[files[0]]
    # Without digests, other numbers that decode are not found.
    assert vz.check_references(plain, deep=True).good


def test_digests_go_with_files(tmp_path):
    file = write(tmp_path / "a.h5", 7)
    vz.virtualize(file).publish(tmp_path / "refs.json", digests=True)
    (tmp_path / "new").mkdir()
    shutil.copy(file, tmp_path / "new")
    vz.rename_paths(tmp_path / "refs.json", {str(tmp_path / "a.h5"): str(tmp_path / "new/a.h5")})
    vz.convert_references(tmp_path / "refs.json", tmp_path / "refs.parquet")
    for form in ("json", "parquet"):
        assert vz.check_references(tmp_path / f"refs.{form}", deep=True).ok == (
            str(tmp_path / "new/a.h5"),
        )
    write(tmp_path / "new/a.h5", 8)
    for form in ("json", "parquet"):
        assert vz.check_references(tmp_path / f"refs.{form}").good
        assert not vz.check_references(tmp_path / f"refs.{form}", deep=True).good


@pytest.mark.parametrize("how", [{"compression": "gzip"}, {"fletcher32": True}])
@pytest.mark.parametrize("form", ["json", "native"])
def test_chunks_that_do_not_decode(tmp_path, how, form):
    files = [write(tmp_path / f"{k}.h5", 7, 4 * k, **how) for k in range(2)]
    group = vz.virtualize(files, "time")
    group.publish(tmp_path / f"refs.{form}", reference_format=form)
    manifest = group["air"].manifest
    overwrite(files[1], int(np.asarray(manifest.offset)[6, 1]) + 20, b"\xff\x00\xff\x00")
    assert vz.check_references(tmp_path / f"refs.{form}").good
    report = vz.check_references(tmp_path / f"refs.{form}", deep=True)
    assert [*report.changed] == [files[1]]
    assert "variable air, chunk 6.1" in report.changed[files[1]]
    assert report.ok == (files[0],)


def test_at_a_server(tmp_path):
    write(tmp_path / "a.h5", 7)
    with web_server(tmp_path, tags=False) as server:
        vz.virtualize(f"{server.url}/a.h5").publish(tmp_path / "refs.json", digests=True)
        assert vz.check_references(tmp_path / "refs.json", deep=True).good
        write(tmp_path / "a.h5", 8)
        assert vz.check_references(tmp_path / "refs.json").good
        assert [*vz.check_references(tmp_path / "refs.json", deep=True).changed] == [
            f"{server.url}/a.h5"
        ]


def test_the_command(tmp_path, capsys):
    file = write(tmp_path / "a.h5", 7)
    vz.virtualize(file).publish(tmp_path / "refs.json", digests=True)
    write(file, 8)
    assert main(["check", str(tmp_path / "refs.json")]) == 0
    assert main(["check", "--deep", str(tmp_path / "refs.json")]) == 1
    assert "bytes are others" in capsys.readouterr().out


def test_forms_without_a_place_for_digests(tmp_path):
    group = vz.virtualize(write(tmp_path / "a.h5", 7))
    with pytest.raises(ValueError, match="native has no place for digests"):
        group.publish(tmp_path / "refs.zarr", reference_format="native", digests=True)


@pytest.mark.parametrize(
    "size", [0, 1, SAMPLES * SAMPLE_BYTES, SAMPLES * SAMPLE_BYTES + 1, 10**6, 10**7]
)
def test_samples(size):
    data = np.random.default_rng(0).bytes(size)
    pieces = list(sample_ranges(size))
    assert sum(stop - start for start, stop in pieces) == min(size, SAMPLES * SAMPLE_BYTES)
    digest = sample_digest(InlineFile(data), size)
    assert digest == sample_digest(InlineFile(data), size)
    assert digest != sample_digest(InlineFile(data + b"\0"), size + 1)
    for at in {start for start, _ in pieces} | {stop - 1 for _, stop in pieces}:
        other = bytearray(data)
        other[at] ^= 1
        assert digest != sample_digest(InlineFile(bytes(other)), size)


def test_files_that_cannot_be_asked_for_are_told_and_a_failure(tmp_path, capsys):
    write(tmp_path / "a.nc", 0)
    with web_server(tmp_path) as server:
        vz.virtualize(f"{server.url}/a.nc").publish(tmp_path / "refs.json")
        report = vz.check_references(tmp_path / "refs.json", allowed="*")
        assert report.good
        assert not report.unreachable
        server.faults, server.rate = (403,), 1.0
        report = vz.check_references(tmp_path / "refs.json", allowed="*")
        assert report.unknown == tuple(report.unreachable) == (f"{server.url}/a.nc",)
        assert "403" in report.unreachable[f"{server.url}/a.nc"]
        assert main(["check", str(tmp_path / "refs.json"), "--allowed", "*"]) == 1
        assert "unreachable: http" in capsys.readouterr().out
