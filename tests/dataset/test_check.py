"""Deep checks of the source files of versions."""

from __future__ import annotations

import json
import os

import pytest

import virtualzarr as vz
from tests.dataset.test_dataset import write
from virtualzarr.array import Array
from virtualzarr.cli import main
from virtualzarr.dataset import check
from virtualzarr.dataset.check import check_objects, check_sources
from virtualzarr.dataset.create import create_dataset


@pytest.fixture
def dataset(tmp_path):
    for number in range(4):
        write(tmp_path / f"{number}.h5", 4 * number)
    dataset = create_dataset(tmp_path / "feed", vz.virtualize(tmp_path / "0.h5"), "time")
    dataset = dataset.append(tmp_path / "1.h5").tag("both")
    write(tmp_path / "final.h5", 4)
    dataset = dataset.replace(tmp_path / "final.h5", replaced=tmp_path / "1.h5")
    return dataset.append(tmp_path / "2.h5")


def test_files_of_tagged_versions_are_checked(dataset, tmp_path):
    report = check_sources(dataset.path)
    assert report.good
    names = {file.rpartition("/")[2] for file in report.ok}
    assert names == {"0.h5", "1.h5", "2.h5", "final.h5"}
    (tmp_path / "1.h5").unlink()
    report = check_sources(dataset.path)
    assert [file.rpartition("/")[2] for file in report.missing] == ["1.h5"]
    dataset.delete_tag("both")
    assert check_sources(dataset.path).good


def test_damage_that_only_a_tagged_version_has(dataset, tmp_path):
    path = tmp_path / "1.h5"
    data = bytearray(path.read_bytes())
    chunk = vz.virtualize(path)["air"].manifest
    start = int(chunk.offset.reshape(-1)[0])
    data[start : start + 4] = b"\0\0\0\0"
    stat = path.stat()
    path.write_bytes(data)
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    report = check_sources(dataset.path)
    assert [file.rpartition("/")[2] for file in report.changed] == ["1.h5"]
    assert main(["check", dataset.path, "--deep", "--json"]) == 1


def test_rows_of_several_versions_are_decoded_once(dataset, monkeypatch, capsys):
    dataset = dataset.tag("again", 2).tag("newest")
    decoded = []
    read = Array.__getitem__

    def count(self, selection):
        result = read(self, selection)
        if self.path == "air":
            decoded.append(result.shape[0])
        return result

    monkeypatch.setattr(Array, "__getitem__", count)
    assert main(["check", dataset.path, "--deep", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["missing"] == []
    # 12 rows of the newest version, and the 4 that only the tagged one has.
    assert sum(decoded) == 16


def test_objects_that_a_vacuum_takes_meanwhile_are_not_damaged(dataset, monkeypatch):
    """The newest version decides what has to be there; what that misses is damage."""
    real, sweeps = check.mark, []

    def mark(head, marker):
        if not sweeps:
            dataset.refresh().delete_tag("both")
            sweeps.append(vz.Dataset(dataset.path).vacuum())
        return real(head, marker)

    monkeypatch.setattr(check, "mark", mark)
    assert check_objects(dataset.path).damaged == {}
    assert sweeps[0].deleted
    (segment, *_) = vz.Dataset(dataset.path).snapshot.entries.tail
    os.unlink(f"{dataset.path}/{segment.segment.name}")
    assert [*check_objects(dataset.path).damaged] == [segment.segment.name]
