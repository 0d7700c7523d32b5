"""Layers of datasets, rows in two chunkings at once, against numpy; and what a read touches."""

from __future__ import annotations

import json
import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import virtualzarr as vz
from tests.dataset.test_compact import grow
from tests.dataset.test_dataset import scan, write
from virtualzarr.array.read import layers as reading
from virtualzarr.cli import main
from virtualzarr.dataset.compact import compact
from virtualzarr.dataset.dataset import Dataset
from virtualzarr.dataset.layer_merge import find_due_layers, merge_layer
from virtualzarr.dataset.row_tables import read_entries
from virtualzarr.errors import MismatchError, SourceNotFoundError

SERIES = {"time": 10, "x": 2}


def check_layers(array, expected):
    """Compare what each layer has, whatever a read would choose."""
    layers = array.chunk_source.layers
    for layer in layers.others if layers else ():
        ends = zip(layer.starts, layer.stops, strict=True)
        rows = np.concatenate([np.arange(start, stop) for start, stop in ends])
        own = reading._as_array(array, layer)
        np.testing.assert_array_equal(own[...], expected[rows])
    return layers


@pytest.fixture
def layered(tmp_path):
    """A dataset of 23 rows with a layer of the first 20, and its values."""
    dataset, values = grow(tmp_path, [20, 3], chunk=1)
    assert dataset.compact(SERIES, keep="both").rows == 20
    return dataset.refresh(), values


def test_rows_have_two_chunkings(layered):
    dataset, values = layered
    air = dataset.group["air"]
    assert air.grid.chunk_shape == (1, 2)
    assert "and 1 layer" in str(air.chunk_source)
    assert [(info.chunks, info.rows, info.arrays) for info in dataset.layers] == [
        (SERIES, 20, ("air", "time"))
    ]
    assert dataset.compact(SERIES, keep="both").regions == 0
    for selection in [
        np.s_[:, 1], np.s_[5], np.s_[::-2, ::-1], np.s_[3:22, 4], np.s_[5:5], np.s_[-1, ...],
        np.s_[None, 2:, None, 0], np.s_[...], np.s_[[22, 3, 3]], np.s_[np.arange(23) % 3 == 1],
    ]:  # fmt: skip
        np.testing.assert_array_equal(air[selection], values[selection])
    rows, columns = [22, 1, 1, 5], [0, 4, 0, 0]
    np.testing.assert_array_equal(air.oindex[rows, columns], values[rows][:, columns])
    np.testing.assert_array_equal(air.vindex[rows, columns], values[rows, columns])
    np.testing.assert_array_equal(air.vindex[values % 3 == 1], values[values % 3 == 1])
    np.testing.assert_array_equal(air.blocks[3:5, 1], values[3:5, 2:4])
    for zeros in (np.zeros((23, 2)), np.zeros((2, 23)).T, np.zeros((46, 2))[::2]):
        out = zeros.astype("f4", order="K")
        air.read(np.s_[::-1, 1:3], out=out)
        np.testing.assert_array_equal(out, values[::-1, 1:3])
    with pytest.raises(ValueError, match="shape"):
        air.read(np.s_[:, 1], out=np.zeros(22))
    with pytest.raises(IndexError):
        air[23]


def test_a_read_takes_the_cheaper_chunks(layered, monkeypatch):
    dataset, values = layered
    air, touched = dataset.group["air"], []
    locate = type(air.chunk_source).locate

    def count(source, projection):
        located = locate(source, projection)
        own = sum("/data/" in located.open_file(row).uri for row in located.file.tolist())
        touched.append((own, len(located) - own))
        return located

    monkeypatch.setattr(type(air.chunk_source), "locate", count)

    def read(selection):
        touched.clear()
        np.testing.assert_array_equal(air[selection], values[selection])
        return [sum(counts) for counts in zip(*touched, strict=True)]

    # Chunks of the layer, and others: a series has three rows that are in no layer.
    assert read(np.s_[:, 1]) == [2, 3]
    assert read(np.s_[:20, 1]) == [2, 0]
    assert read(np.s_[:, 1:3]) == [4, 6]
    # Maps.
    assert read(np.s_[7]) == [0, 3]
    assert read(np.s_[7:8, :2]) == [0, 1]
    # By rows that are far from each other.
    touched.clear()
    air.vindex[[1, 15], [0, 4]]
    assert [sum(counts) for counts in zip(*touched, strict=True)] == [0, 2]


def test_sources_are_needed_for_what_no_layer_has(layered, tmp_path):
    dataset, values = layered
    (tmp_path / "0.h5").unlink()
    np.testing.assert_array_equal(dataset.group["air"][:, 3], values[:, 3])
    with pytest.raises(SourceNotFoundError, match=r"0\.h5"):
        dataset.group["air"][5]


def test_a_damaged_layer_is_left_by_deleting_it(layered, tmp_path):
    dataset, values = layered
    for path in (tmp_path / "d" / "data").iterdir():
        path.unlink()
    with pytest.raises(vz.errors.MetadataError, match="missing"):
        dataset.group["air"][:, 1]
    dataset = dataset.delete_layer(SERIES)
    np.testing.assert_array_equal(dataset.group["air"][:, 1], values[:, 1])
    assert not dataset.layers
    with pytest.raises(MismatchError, match="no layer"):
        dataset.delete_layer(SERIES)


def test_copies_and_views_have_the_same_values(layered):
    dataset, values = layered
    air = dataset.group["air"]
    for array in (pickle.loads(pickle.dumps(air)), air.replace(path="b")):
        assert len(array.chunk_source.layers.others) == 1
        np.testing.assert_array_equal(array[:, 1], values[:, 1])
    np.testing.assert_array_equal(air.lazy[2:, ::-1][...], values[2:, ::-1])
    np.testing.assert_array_equal(air.lazy.transpose()[1, 3:], values.T[1, 3:])
    opened = vz.open(dataset.path)["air"]
    np.testing.assert_array_equal(opened[:, 1], values[:, 1])


def test_xarray_reads_from_layers(layered, tmp_path):
    xarray = pytest.importorskip("xarray")
    dataset, values = layered
    opened = xarray.open_dataset(dataset.path, engine="virtualzarr", decode_times=False)
    opened = opened.drop_vars("x")
    np.testing.assert_array_equal(opened["air"][::-1].values, values[::-1])
    (tmp_path / "0.h5").unlink()
    np.testing.assert_array_equal(opened["air"][:, 2].values, values[:, 2])
    np.testing.assert_array_equal(opened["air"].isel(x=4, time=slice(3, 20, 2)), values[3:20:2, 4])


def test_values_that_change_are_never_read_from_a_layer(layered, tmp_path):
    dataset, values = layered
    start = dataset.version
    dataset = dataset.write("air", (slice(3, 5), 1), -7)
    changed = values.copy()
    changed[3:5, 1] = -7
    assert dataset.layers[0].rows == 18
    np.testing.assert_array_equal(dataset.group["air"][:, 1], changed[:, 1])
    write(tmp_path / "new.h5", 10, 2, value=9)
    dataset = dataset.replace(scan(tmp_path / "new.h5"))
    changed[10:12] = 9
    np.testing.assert_array_equal(dataset.group["air"][:, 1], changed[:, 1])
    assert dataset.layers[0].rows == 16
    dataset.vacuum(keep=100)
    # Rows that were changed get into the layer again where there are several of them.
    assert dataset.compact(SERIES, keep="both").rows == 4
    dataset = dataset.refresh()
    assert dataset.layers[0].rows == 20
    air = dataset.group["air"]
    check_layers(air, changed)
    np.testing.assert_array_equal(air[:, 1], changed[:, 1])
    # Folding all of it: rows have new ids, and no layer.
    dataset.compact(20)
    dataset = dataset.refresh()
    assert not dataset.layers[0].rows
    np.testing.assert_array_equal(dataset.group["air"][:, 1], changed[:, 1])
    dataset = dataset.rollback(start)
    assert dataset.layers[0].rows == 20
    np.testing.assert_array_equal(dataset.group["air"][:, 1], values[:, 1])
    first = Dataset(dataset.path, version=1)
    assert not first.layers


def test_a_vacuum_keeps_and_drops_layers(layered, tmp_path):
    dataset, values = layered
    dataset.vacuum(keep=1)
    assert len([*(tmp_path / "d" / "data").iterdir()]) == 1
    np.testing.assert_array_equal(dataset.refresh().group["air"][:, 1], values[:, 1])
    dataset = dataset.refresh().drop(0, 9)
    dataset.vacuum(keep=1)
    dataset = dataset.refresh()
    assert dataset.layers[0].rows == 10
    np.testing.assert_array_equal(dataset.group["air"][:, 1], values[10:, 1])
    dataset = dataset.drop(10, 19)
    assert not dataset.layers[0].rows
    dataset.vacuum(keep=1)
    dataset = dataset.refresh()
    assert not dataset.layers
    assert not [*(tmp_path / "d" / "data").iterdir()]
    np.testing.assert_array_equal(dataset.group["air"][...], values[20:])


def test_two_layers(layered):
    dataset, values = layered
    dataset.compact({"time": 23, "x": 1}, keep="both")
    dataset = dataset.refresh()
    assert [info.rows for info in dataset.layers] == [20, 23]
    air = dataset.group["air"]
    np.testing.assert_array_equal(air[:, 1], values[:, 1])
    np.testing.assert_array_equal(air[::-3, 1:4], values[::-3, 1:4])
    check_layers(air, values)
    dataset = dataset.delete_layer(SERIES)
    assert [info.rows for info in dataset.layers] == [23]


def test_rows_come_and_go_while_a_layer_is_made(tmp_path):
    dataset, values = grow(tmp_path, [10, 10], chunk=2)
    one, other = dataset, Dataset(dataset.path)
    write(tmp_path / "more.h5", 20, 2)
    dataset.append(scan(tmp_path / "more.h5"))
    assert compact(one, SERIES, keep="both", memory=1).rows == 20
    # The other one knows nothing of it yet.
    report = compact(other, SERIES, keep="both", memory=1)
    assert (report.rows, report.remaining) == (0, 20)
    dataset = dataset.refresh()
    assert dataset.layers[0].rows == 20
    stale = dataset
    dataset.write("air", 3, -1)
    report = compact(stale, {"time": 5}, keep="both", memory=1)
    assert (report.rows, report.remaining) == (15, 5)
    values = np.concatenate([values, np.arange(20, 22)[:, None] * 100.0 + np.arange(5)])
    values[3] = -1
    air = dataset.refresh().group["air"]
    np.testing.assert_array_equal(air[:, 1], values[:, 1])
    check_layers(air, values)


def layer_entries(dataset):
    entries = dataset.run(read_entries(dataset.snapshot))
    return [entry for entry in entries if entry.layer is not None]


def test_segments_of_a_layer_stay_few(tmp_path):
    """As rows come and are folded one chunk at a time: by compactions, and by vacuums the rest."""
    dataset, values = grow(tmp_path, [5], chunk=1)
    most, merges = 0, 0
    for number in range(1, 34):
        write(tmp_path / f"{number}.h5", 5 * number, 5)
        dataset = dataset.append(scan(tmp_path / f"{number}.h5"))
        values = np.concatenate([values, np.arange(5 * number, 5 * number + 5)[:, None] * 100.0
                                 + np.arange(5)])  # fmt: skip
        dataset.compact({"time": 5, "x": 2}, keep="both")
        dataset = dataset.refresh()
        most = max(most, len(layer_entries(dataset)))
    merges = sum(version.about["verb"] == "merge" for version in dataset.history())
    assert most < 10
    assert merges >= 3
    dataset = dataset.write("air", (slice(7, 9), 1), -1.0).drop(20, 22)
    values[7:9, 1] = -1
    values = np.delete(values, slice(20, 23), axis=0)
    assert check_layers(dataset.group["air"], values)
    dataset.vacuum(keep=1)
    dataset = dataset.refresh()
    (entry,) = layer_entries(dataset)
    assert [info.rows for info in dataset.layers] == [170 - 2 - 3]
    assert len(entry.layer.ids) == 1
    assert check_layers(dataset.group["air"], values)
    np.testing.assert_array_equal(dataset.group["air"][:, 1], values[:, 1])
    # Nothing is merged twice for nothing.
    before = dataset.version
    dataset.vacuum(keep=1)
    assert {v.about["verb"] for v in dataset.refresh().history(before + 1)} == {"vacuum"}


def test_a_merge_of_a_layer_that_is_gone_is_given_up(tmp_path):
    dataset, _ = grow(tmp_path, [10, 10], chunk=1)
    dataset.compact(SERIES, keep="both", memory=1)
    dataset = dataset.refresh()
    (due,) = dataset.run(find_due_layers(dataset.snapshot, "time"))
    change = merge_layer(due, dataset.schema.axes, dataset.open_segment)
    other = dataset.delete_layer(SERIES)
    with pytest.raises(MismatchError, match="not there any more"):
        dataset.commit_change(change)
    assert other.refresh().version == other.version
    write(tmp_path / "20.h5", 20, 1)
    # With the layer there again, it can be done; beside other changes, too.
    other.rollback(dataset.version).append(scan(tmp_path / "20.h5"))
    (entry,) = layer_entries(dataset.commit_change(change))
    assert len(entry.layer) == 20
    check_layers(dataset.refresh().group["time"], np.arange(21))


def test_a_layer_whose_rows_are_gone_is_not_merged(layered, tmp_path):
    dataset, _ = layered
    write(tmp_path / "more.h5", 23, 7)
    dataset = dataset.append(scan(tmp_path / "more.h5"))
    dataset.compact(SERIES, keep="both")
    assert len(layer_entries(dataset.refresh())) == 2
    dataset.drop(0, 19)
    dataset.vacuum(keep=1)
    dataset = dataset.refresh()
    (entry,) = layer_entries(dataset)
    assert len(entry.layer) == 10
    assert {named.name for named in entry.data} == {
        f"data/{path.name}" for path in (tmp_path / "d" / "data").iterdir()
    }


def test_the_command_deletes_a_layer(layered, capsys):
    dataset, values = layered
    layers = [{"chunks": SERIES, "rows": 20, "arrays": ["air", "time"]}]
    assert main(["status", dataset.path, "--quick", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["layers"] == layers
    assert main(["status", dataset.path, "--quick"]) == 0
    assert "20 rows in a layer of chunks time=10,x=2" in capsys.readouterr().out
    command = ["delete-layer", dataset.path, "--chunks", "time=10,x=2"]
    assert main([*command, "-m", "too large", "--commit-id", "once", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["changed"]
    dataset = dataset.refresh()
    assert not dataset.layers
    assert dataset.history(-1)[0].about["message"] == "too large"
    assert main([*command, "--commit-id", "once"]) == 0
    assert main(command) == 1
    assert "there is no layer with the chunks" in capsys.readouterr().err
    np.testing.assert_array_equal(dataset.group["air"][...], values)


def test_wrong_arguments(layered):
    with pytest.raises(ValueError, match="keep is one of 'new' and 'both'"):
        layered[0].compact(5, keep="old")


@settings(max_examples=8, deadline=None)
@given(data=st.data())
def test_any_history(tmp_path_factory, data):
    folder = tmp_path_factory.mktemp("layers")
    lengths = data.draw(st.lists(st.integers(1, 5), min_size=1, max_size=4))
    dataset, values = grow(folder, lengths, data.draw(st.integers(1, 4)))
    times, versions = list(range(len(values))), []
    verbs = ["both", "both", "new", "drop", "write", "insert", "replace", "rollback", "vacuum"]
    for number in range(data.draw(st.integers(1, 7))):
        versions.append((dataset.version, times.copy(), values.copy()))
        verb = data.draw(st.sampled_from(verbs))
        low = data.draw(st.integers(0, len(times) - 1))
        high = data.draw(st.integers(low, len(times) - 1))
        if verb in ("both", "new"):
            chunks = {"time": data.draw(st.integers(1, 7)), "x": data.draw(st.integers(1, 6))}
            memory = data.draw(st.sampled_from([1, 200, 1 << 20]))
            with vz.config.tuning.set(merge_fan_in=data.draw(st.sampled_from([2, 3, 10]))):
                dataset.compact(chunks, keep=verb, memory=memory)
        elif verb == "drop" and high - low + 1 < len(times):
            dataset.drop(times[low], times[high])
            del times[low : high + 1]
            values = np.delete(values, slice(low, high + 1), axis=0)
        elif verb == "write":
            dataset.write("air", (slice(low, high + 1), 1), -number)
            values[low : high + 1, 1] = -number
        elif verb == "insert":
            missing = sorted({*range(max(times) + 2)} - {*times})[0]
            write(folder / f"late{number}.h5", missing, 1)
            dataset.append(scan(folder / f"late{number}.h5"))
            at = int(np.searchsorted(times, missing))
            times.insert(at, missing)
            values = np.insert(values, at, missing * 100.0 + np.arange(5), axis=0)
        elif verb == "replace":
            write(folder / f"new{number}.h5", times[low], 1, value=1000 + number)
            dataset.replace(scan(folder / f"new{number}.h5"))
            values[low] = 1000 + number
        elif verb == "rollback":
            version, times, values = data.draw(st.sampled_from(versions))
            times, values = times.copy(), values.copy()
            dataset.rollback(version)
        elif verb == "vacuum":
            dataset.vacuum(keep=1)
            versions.clear()
        dataset = dataset.refresh()
        air = dataset.group["air"]
        check_layers(air, values)
        check_layers(dataset.group["time"], np.array(times))
        rows = slice(low, None, data.draw(st.sampled_from([1, 2, -1])))
        # What is cheaper depends on it.
        with vz.config.tuning.set(chunk_cost_bytes=data.draw(st.sampled_from([0, 1, 1 << 16]))):
            np.testing.assert_array_equal(air[...], values)
            np.testing.assert_array_equal(air[rows, 1], values[rows, 1])
            np.testing.assert_array_equal(air[rows, ::-2], values[rows, ::-2])
            np.testing.assert_array_equal(air.lazy[rows, 1:][:, 0], values[rows, 1])
            points = np.arange(len(times)) // 2, np.arange(len(times)) % 5
            np.testing.assert_array_equal(air.vindex[points], values[points])
            picked = np.arange(len(times))[::-1] // 3
            np.testing.assert_array_equal(air.oindex[picked, [4, 0]], values[picked][:, [4, 0]])
        assert dataset.group["time"][...].tolist() == times
