"""Files that are alike, added as columns: the same as by looking at each."""

from __future__ import annotations

import h5py
import numpy as np
import pytest

import virtualzarr as vz
from tests.dataset.test_scale_out import list_references, list_segments
from virtualzarr.dataset import additions

FILES = 24


def write(path, start, rows=3, *, inline=False, orbit=0, dims=("time", "x")):
    """Write rows of two chunked arrays, one of them along another axis."""
    with h5py.File(path, "w", libver=("v108", "v108")) as file:
        times = np.arange(start, start + rows, dtype="f8")
        file.create_dataset("time", data=times, chunks=(rows,), maxshape=(None,))
        file.create_dataset("x", data=np.arange(4.0))
        for name in ("time", "x"):
            file[name].make_scale(name)
        layout = {} if inline else {"chunks": (rows, 2), "maxshape": (None, 4)}
        air = np.arange(start * 4, (start + rows) * 4, dtype="i4").reshape(rows, 4)
        file.create_dataset("air", data=air, **layout)
        file.create_dataset("turned", data=air.T, chunks=(2, rows), maxshape=(4, None))
        for name, order in (("air", dims), ("turned", dims[::-1])):
            for axis, dim in enumerate(order):
                file[name].dims[axis].attach_scale(file[dim])
        file.attrs["orbit"] = orbit
    return str(path)


@pytest.fixture
def each(monkeypatch):
    """Return what makes a dataset both ways, and says whether files were joined as columns."""
    join, read_marks = additions._join_alike, additions.read_marks
    joined, marked = [], []

    def spy(*args):
        joined.append(join(*args))
        return joined[-1]

    def spy_marks(*args):
        marked.append(read_marks(*args))
        return marked[-1]

    def make(folder, files, more=(), **options):
        monkeypatch.setattr(additions, "_join_alike", spy)
        joined.clear()
        datasets = []
        for name in ("columns", "marks"):
            marked.clear()
            dataset = vz.create_dataset(folder / name, files, "time", **options)
            datasets.append(dataset.append(more) if more else dataset)
            monkeypatch.setattr(additions, "_join_alike", lambda *_: None)
            monkeypatch.setattr(additions, "read_marks", spy_marks)
        columns, marks = datasets
        for by_columns, by_marks in zip(joined, marked, strict=True):
            assert by_columns is None or by_columns[1] == by_marks[1]
        assert list_references(columns) == list_references(marks)
        contents = [sorted(list_segments(dataset).values()) for dataset in datasets]
        assert contents[0] == contents[1]
        for path, _ in columns.group.arrays():
            np.testing.assert_array_equal(columns.group[path][...], marks.group[path][...])
        return [one is not None for one in joined]

    return make


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"combine": "nested"},
        {"overlap": "last"},
        {"drop_variables": ["turned"]},
        {"combine_attrs": "drop_conflicts", "drop_variables": ["time"]},
    ],
)
def test_the_same_as_by_marks(each, tmp_path, options):
    files = [
        write(tmp_path / f"{k:02}.h5", 3 * k, 3 - (k == FILES - 1), orbit=k % 2)
        for k in range(FILES)
    ]
    more = [write(tmp_path / f"more-{k}.h5", 3 * k) for k in range(FILES, 2 * FILES)]
    files = files if options else files[::-1]
    assert each(tmp_path, files, more, **options) == [True, True]


def test_coordinates_that_are_given(each, tmp_path):
    files = [write(tmp_path / f"{k:02}.h5", k, 1) for k in range(FILES)]
    options = {"coordinate": np.arange(FILES), "drop_variables": ["time"]}
    assert each(tmp_path, files, **options) == [False]


def test_rows_that_lead_nowhere(each, tmp_path):
    """Where no reference tells which file a row is of, marks do."""
    files = [write(tmp_path / f"{k:02}.h5", 3 * k) for k in range(FILES)]
    for k in range(FILES):
        with h5py.File(files[k], "a") as file:
            for name in ("air", "turned", "time"):
                del file[name]
            file.create_dataset("air", shape=(3, 4), dtype="i4", chunks=(3, 2), maxshape=(None, 4))
            for axis, dim in enumerate(("x", "x")):
                if axis:
                    file["air"].dims[axis].attach_scale(file[dim])
            file["air"].dims[0].label = "time"
    assert each(tmp_path, files) == [False]


def test_files_that_differ(each, tmp_path):
    files = [write(tmp_path / f"{k:02}.h5", 3 * k, inline=k == 7) for k in range(FILES)]
    assert each(tmp_path / "one", files) == [True]
    files = [write(tmp_path / f"{k:02}.h5", 3 * k, 1 + k % 3) for k in range(FILES)]
    assert each(tmp_path / "all", files) == [False]
