"""Hierarchies of version 1 of the native form: read as ever, and made datasets in one step."""

from __future__ import annotations

import os
import shutil
import threading
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import virtualzarr as vz
from tests.dataset.files import write
from tests.dataset.native_fixture import expected, unpack, write_source
from virtualzarr.cli.parser import main
from virtualzarr.dataset import directory, objects
from virtualzarr.dataset.dataset import Dataset
from virtualzarr.dataset.upgrade import upgrade
from virtualzarr.errors import (
    MetadataError,
    NodeNotFoundError,
    SourceNotFoundError,
    UnsupportedError,
)
from virtualzarr.stores.upgraded import is_dataset_root


@pytest.fixture
def hierarchy(tmp_path):
    return unpack(tmp_path)


def check(group, *, rows=9):
    assert dict(group.attrs) == {"title": "kept", "level": 0.1}
    for path, (values, attributes) in expected().items():
        array = group[path]
        assert array.dtype == values.dtype
        np.testing.assert_array_equal(array[...][: len(values)], values)
        kept = {n: v for n, v in array.attrs.items() if n not in ("_FillValue", "NAME", "CLASS")}
        assert kept == attributes, path
    assert group["time"].shape == (rows,)


def sources(group):
    return {
        path: sorted({os.path.basename(s.uri) for s in group[path].manifest.sources if s.uri})
        for path in ("air", "more/wind")
    }


def test_version_1_is_read_and_grows(hierarchy, tmp_path):
    check(vz.open(hierarchy))
    write_source(tmp_path / "3.h5", 9, 3)
    vz.append(hierarchy, str(tmp_path / "3.h5"), "time")
    check(vz.open(hierarchy), rows=12)


def test_it_becomes_a_dataset(hierarchy, tmp_path):
    before = vz.open(hierarchy)
    facts = {s.uri: s.fingerprint for s in before["more/wind"].manifest.sources}
    dataset = upgrade(hierarchy, "time", message="grown up")
    check(dataset.group)
    check(vz.open(hierarchy))
    assert dataset.version == 1
    assert dataset.history()[0].about["message"] == "grown up"
    after = dataset.group["more/wind"].manifest
    assert {s.uri: s.fingerprint for s in after.sources if s.uri} == facts
    assert {*os.listdir(hierarchy)} <= {"zarr.json", "head", "schemas", "segments", "data"}
    # What is done is not done again, and nothing is lost by it.
    write_source(tmp_path / "3.h5", 9, 3)
    dataset.append(str(tmp_path / "3.h5"))
    assert upgrade(hierarchy, "time").version == 2
    check(Dataset(hierarchy).group, rows=12)
    Dataset(hierarchy).vacuum(keep=1)
    check(Dataset(hierarchy).group, rows=12)


def test_it_moves_with_its_own_data(hierarchy, tmp_path):
    upgrade(hierarchy, "time")
    os.rename(hierarchy, tmp_path / "elsewhere")
    check(Dataset(tmp_path / "elsewhere").group)


def test_it_moves_with_its_source_files(hierarchy, tmp_path):
    """Relative names stay relative, whatever is done to the dataset then, and are known again."""
    dataset = upgrade(hierarchy, "time")
    write_source(tmp_path / "3.h5", 9, 3)
    write_source(tmp_path / "4.h5", 12, 3)
    dataset = dataset.append(str(tmp_path / "3.h5"))
    dataset = dataset.commit([dataset.stage(str(tmp_path / "4.h5"))])
    dataset = dataset.write("air", (slice(0, 1), 0), 0.0)
    dataset = dataset.drop(12, 14)
    dataset.vacuum(keep=10)  # it merges as well
    place = tmp_path / "elsewhere"
    place.mkdir()
    for path in [hierarchy, *tmp_path.glob("*.h5")]:
        os.rename(path, place / path.name)
    dataset = Dataset(place / hierarchy.name)
    for path in ("air", "more/wind"):
        uris = {s.uri for s in dataset.group[path].manifest.sources if s.uri}
        assert uris
        assert all(uri.startswith(f"{place}/") for uri in uris)
    check(dataset.group, rows=12)
    again = [str(place / f"{k}.h5") for k in range(4)]
    assert dataset.find_files(again) == {*again}
    assert dataset.append(again, duplicates="skip").version == dataset.version
    assert dataset.history(2, 3)[0].about["files"] == [again[3]]
    assert dataset.diff(1, 2).files == (again[3],)
    # The rows of a file that is named, though its name was given elsewhere.
    dataset = dataset.replace(again[3], replaced=again[3])
    check(dataset.group, rows=12)


def test_absolute_names_stay_absolute(tmp_path):
    """Of a hierarchy with absolute names, none becomes relative."""
    write_source(tmp_path / "0.h5", 0, 3)
    vz.virtualize([str(tmp_path / "0.h5")], "time").publish(tmp_path / "v1.zarr")
    dataset = upgrade(tmp_path / "v1.zarr", "time")
    os.rename(tmp_path / "v1.zarr", tmp_path / "elsewhere.zarr")
    (tmp_path / "below").mkdir()
    os.rename(tmp_path / "elsewhere.zarr", tmp_path / "below" / "v1.zarr")
    dataset = Dataset(tmp_path / "below" / "v1.zarr")
    assert not dataset.schema.relative
    assert sources(dataset.group)["air"] == ["0.h5"]
    assert dataset.group["air"].shape == (3, 4)
    assert dataset.group["air"][2, 1] == 21


def test_others_refuse_it_afterwards(hierarchy):
    upgrade(hierarchy, "time")
    zarr = pytest.importorskip("zarr")
    for path in ("", "air", "data", "more", "more/wind"):
        with pytest.raises(Exception):  # noqa: B017, PT011
            zarr.open(str(hierarchy / path), mode="r")


class Crash(BaseException):
    pass


@pytest.mark.parametrize("is_done", [False, True])
def test_it_stops_anywhere(tmp_path, monkeypatch, is_done):
    """Before or after each rename and each removal; then it is repeated, maybe after an append."""
    unpack(tmp_path / "kept")
    saw = set()
    for number in range(200):
        place = tmp_path / str(number)
        shutil.copytree(tmp_path / "kept", place)
        hierarchy = unpack(place)
        with monkeypatch.context() as patched:
            left = [number]

            def stop(real, left=left):
                def call(*values):
                    left[0] -= 1
                    if left[0] < 0 and not is_done:
                        raise Crash
                    result = real(*values)
                    if left[0] < 0:
                        raise Crash
                    return result

                return call

            # Of this module alone: locks go on as they do when a process dies.
            names = vars(os) | {"replace": stop(os.replace), "unlink": stop(os.unlink)}
            patched.setattr(directory, "os", SimpleNamespace(**names))
            try:
                upgrade(hierarchy, "time")
            except Crash:
                pass
            else:
                break
        is_new = is_dataset_root((hierarchy / "zarr.json").read_bytes())
        saw.add((is_new, (hierarchy / "head").exists()))
        check(vz.open(hierarchy))
        if is_new:
            check(Dataset(hierarchy).group)
        else:
            with pytest.raises(SourceNotFoundError):
                Dataset(hierarchy)
        rows = 9
        if number % 2:
            # Either goes on being what it is.
            rows = 12
            write_source(place / "3.h5", 9, 3)
            if is_new:
                Dataset(hierarchy).append(str(place / "3.h5"))
            else:
                vz.append(hierarchy, str(place / "3.h5"), "time")
        dataset = upgrade(hierarchy, "time")
        check(dataset.group, rows=rows)
        assert sources(dataset.group)["more/wind"] == [f"{k}.h5" for k in range(rows // 3)]
        assert not [p for p in hierarchy.rglob("zarr.json") if p != hierarchy / "zarr.json"]
        dataset.vacuum(keep=1)
        check(Dataset(hierarchy).group, rows=rows)
        shutil.rmtree(place)
    assert number > 20
    assert saw == {(False, False), (False, True), (True, True)}


def test_appends_meanwhile(hierarchy, tmp_path):
    """An append of version 1 is before the upgrade, or refused: it is never lost."""
    write_source(tmp_path / "3.h5", 9, 3)
    outcome = []

    def append():
        try:
            vz.append(hierarchy, str(tmp_path / "3.h5"), "time")
            outcome.append("done")
        except Exception as error:
            outcome.append(error)

    thread = threading.Thread(target=append)
    thread.start()
    upgrade(hierarchy, "time")
    thread.join()
    check(Dataset(hierarchy).group, rows=12 if outcome == ["done"] else 9)


@pytest.fixture
def mixed(tmp_path):
    """A hierarchy of references, elements of which are written, and of arrays of its own."""
    source = tmp_path / "0.h5"
    write(source, 0)
    vz.virtualize(source).publish(tmp_path / "h", reference_format="native")
    group = vz.open(tmp_path / "h", mode="r+")
    group["air"][0, :2] = 77
    group.create_array("own", data=np.arange(1.0, 5.0), chunks=(2,))
    group.create_array("sharded", data=np.arange(1.0, 9.0), chunks=(2,), shards=(4,))
    return tmp_path / "h"


PATHS = ["air", "time", "own", "sharded"]


SELECTIONS = [(Ellipsis,), (slice(1, 2),), (0,)]


def is_told(array, selection, expected):
    """Read, and compare with what it must be; tell whether it was an error that says why not."""
    try:
        values = array[selection]
    except MetadataError as error:
        return "was upgraded to a dataset since it was opened; open it anew" in str(error)
    np.testing.assert_array_equal(values, expected[selection])
    return False


@pytest.mark.parametrize("has_read", [False, True])
def test_who_has_opened_it_before_reads_what_it_had_or_nothing(mixed, tmp_path, has_read):
    """Where chunks lie has changed: those that are not found were not never written."""
    kept, listing = vz.open(mixed), vz.open(mixed, use_consolidated=False)
    arrays = {path: kept[path] for path in PATHS}
    before = {path: array[...] for path, array in vz.open(mixed).arrays()}
    if has_read:
        for path, array in arrays.items():
            np.testing.assert_array_equal(array[...], before[path])
    upgrade(mixed, "time")
    for selection in SELECTIONS:
        told = [path for path in PATHS if is_told(arrays[path], selection, before[path])]
        assert told == (PATHS if not has_read else ["air", "own", "sharded"])
    with pytest.raises(MetadataError, match="was upgraded"):
        list(listing)
    with pytest.raises(MetadataError, match="was upgraded"):
        arrays["own"].publish(tmp_path / "copy", reference_format="native")
    for path, values in before.items():
        np.testing.assert_array_equal(vz.open(mixed)[path][...], values)


CHANGES = [
    lambda group: group["own"].__setitem__(slice(None), 5),
    lambda group: group["own"].__setitem__(0, 5),
    lambda group: group["sharded"].__setitem__(0, 5),
    lambda group: group["air"].__setitem__((0, 0), 5),
    lambda group: group["air"].__setitem__(slice(None), 5),
    lambda group: group["own"].append([1.0]),
    lambda group: group["own"].resize((9,)),
    lambda group: group["own"].attrs.update(units="m"),
    lambda group: group.attrs.update(title="later"),
    lambda group: group.create_array("new", data=np.arange(3)),
]


@pytest.mark.parametrize("change", CHANGES)
def test_who_has_opened_it_before_writes_nothing_to_the_dataset(mixed, change):
    group = vz.open(mixed, mode="r+")
    arrays = {path: group[path] for path in PATHS}
    for array in arrays.values():
        array[...]

    class Kept(dict):
        attrs, create_array = group.attrs, group.create_array

    dataset = upgrade(mixed, "time")
    objects = {*dataset.list_objects()}
    with pytest.raises((MetadataError, NodeNotFoundError), match=r"was upgraded|any more"):
        change(Kept(arrays))
    assert {*dataset.list_objects()} == objects
    assert Dataset(mixed).group["own"][...].tolist() == [1, 2, 3, 4]


def test_what_was_never_written_stays_so(tmp_path):
    """Chunks that are not there are fill values, as long as the array is there."""
    group = vz.create_group(tmp_path / "g")
    array = group.create_array("empty", shape=(4,), dtype="f4", chunks=(2,), fill_value=3)
    assert array[...].tolist() == [3] * 4
    shutil.rmtree(tmp_path / "g" / "empty")
    with pytest.raises(NodeNotFoundError, match="deleted or moved"):
        array[...]


def test_what_is_not_upgraded(hierarchy, tmp_path):
    with pytest.raises(UnsupportedError, match="part of"):
        upgrade(hierarchy / "air", "time")
    with pytest.raises(ValueError, match="no array has a dimension"):
        upgrade(hierarchy, "tim")
    with pytest.raises(UnsupportedError, match="directories"):
        upgrade("s3://bucket/v1.zarr", "time")
    with pytest.raises(SourceNotFoundError):
        upgrade(tmp_path, "time")
    check(vz.open(hierarchy))
    assert not (hierarchy / "head").exists()


def test_the_command(hierarchy, capsys):
    assert main(["upgrade", str(hierarchy), "--dim", "time"]) == 0
    assert "version 1" in capsys.readouterr().out
    check(Dataset(hierarchy).group)


def test_a_member_that_is_called_as_the_head_is_refused(hierarchy):
    """Before anything is written."""
    vz.open(hierarchy, mode="r+").create_group("head")
    before = sorted(os.listdir(hierarchy))
    with pytest.raises(UnsupportedError, match="rename it"):
        upgrade(hierarchy, "time")
    assert sorted(os.listdir(hierarchy)) == before


@pytest.mark.parametrize("content", [b"mine", b"", objects.encode({"version": 1})])
def test_a_file_that_is_called_as_the_head_is_refused(hierarchy, content):
    """Only what an upgrade left that was stopped is replaced."""
    (Path(hierarchy) / "head").write_bytes(content)
    before = sorted(os.listdir(hierarchy))
    with pytest.raises(UnsupportedError, match="rename it"):
        upgrade(hierarchy, "time")
    assert sorted(os.listdir(hierarchy)) == before
    assert (Path(hierarchy) / "head").read_bytes() == content
