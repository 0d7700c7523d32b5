"""Additions that are like what is stored are added as joining would add them, or refuse them."""

from __future__ import annotations

import copy
import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from virtualzarr import Manifest
from virtualzarr.array import Array
from virtualzarr.dataset import fitting
from virtualzarr.dataset.alike import is_alike
from virtualzarr.dataset.create import create_dataset
from virtualzarr.dataset.describe import as_virtual_v3, check_described
from virtualzarr.errors import VirtualZarrError
from virtualzarr.hierarchy.group import Group
from virtualzarr.metadata.node_documents import from_documents

ROWS = 3


def document(dtype, shape, chunks, dims, **attributes):
    return {
        "zarr_format": 3, "node_type": "array", "shape": shape, "data_type": dtype,
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": chunks}},
        "chunk_key_encoding": {"name": "default"}, "fill_value": 0,
        "codecs": [{"name": "bytes", "configuration": {"endian": "little"}}],
        "dimension_names": dims, "attributes": attributes,
    }  # fmt: skip


def documents():
    return {
        "time": document("int64", [ROWS], [2], ["time"], units="days since 2000-01-01"),
        "v": document("int16", [ROWS, 4], [2, 3], ["time", "x"], scale_factor=0.5, _FillValue=-1,
                      note="a"),
        "f": document("float32", [ROWS], [1], ["time"], _FillValue="NaN"),
        "x": document("float64", [4], [3], ["x"], units="m"),
        "in/w": document("float64", [2, ROWS], [2, 3], ["y", "time"]),
    }  # fmt: skip


def build(nodes, first=0, attributes=None, *, values=0, drop=()):
    """Return a group of inline chunks; `values` is added to those of arrays that do not grow."""
    groups = {"": {}, "in": {}}
    for path, node in nodes.items():
        if path in drop:
            continue
        metadata = from_documents({"zarr.json": node})
        shape = metadata.grid.grid_shape
        chunk = tuple(node["chunk_grid"]["configuration"]["chunk_shape"])
        sources, kind = [], np.dtype(node["data_type"])
        for cell in itertools.product(*map(range, shape)):
            numbers = np.arange(np.prod(chunk)).reshape(chunk)
            if path == "time":
                numbers = numbers + first + cell[0] * chunk[0]
            elif "time" not in (node["dimension_names"] or ()):
                numbers = numbers + values
            order = "<" if node["codecs"][0]["configuration"]["endian"] == "little" else ">"
            sources.append(numbers.astype(kind.newbyteorder(order)).tobytes())
        parent, _, name = path.rpartition("/")
        groups[parent][name] = Array.from_manifest(metadata, join_cells(sources, shape), path)
    inner = Group({}, groups["in"], "in")
    return Group(attributes or {}, {**groups[""], "in": inner}, "")


def join_cells(sources, shape):
    heap, offsets = b"".join(sources), np.cumsum([0, *map(len, sources)])
    one = Manifest.inline(heap, len(shape))
    return Manifest(
        shape, one.sources, 0, offsets[:-1].reshape(shape), np.diff(offsets).reshape(shape)
    )


def outcome(prepare):
    """Return what an addition is, or the error that it is."""
    try:
        addition = prepare()
    except VirtualZarrError as error:
        return type(error), str(error)
    arrays = {}
    for path, cells in {**addition.cells, **addition.fixed}.items():
        metadata = addition.schema.arrays[path]
        manifest = cells.manifest
        data = [
            None if source < 0 else manifest.sources[source].data[offset : offset + length]
            for source, offset, length in zip(
                *(np.asarray(c).ravel().tolist() for c in
                  (manifest.source, manifest.offset, manifest.length)), strict=True
            )
        ]  # fmt: skip
        decoders = [(d.pipeline.decoding_key(metadata.dtype), d.shape) for d in manifest.decoders]
        which = None if manifest.decoder is None else np.asarray(manifest.decoder).tolist()
        arrays[path] = manifest.shape, data, decoders, which, cells.chunks
    values = None if addition.coordinates is None else addition.coordinates.tolist()
    return arrays, addition.count, values, addition.schema.to_json(), dict(addition.grids)


def compare(dataset, group, options):
    def join():
        described = check_described(group.map_arrays(as_virtual_v3))
        return fitting.join(dataset.select_last_row(), dataset.schema, described, options)

    assert outcome(lambda: fitting.fit(dataset, group, options)) == outcome(join)
    return is_alike(dataset, group.map_arrays(as_virtual_v3), options)


def attribute(name, value):
    return lambda nodes, path: nodes[path]["attributes"].__setitem__(name, value)


def member(name, value):
    return lambda nodes, path: nodes[path].__setitem__(name, value)


def rename_dimension(nodes, path):
    nodes[path]["dimension_names"] = [*documents()[path]["dimension_names"][:-1], "z"]


def cut_otherwise(nodes, path):
    nodes[path]["chunk_grid"]["configuration"]["chunk_shape"][-1] = 1


def lengthen(nodes, path):
    nodes[path]["shape"][-1] += 1


CHANGES = {
    "units": attribute("units", "km"),
    "other time": attribute("units", "hours since 2000-01-01"),
    "scale": attribute("scale_factor", 0.25),
    "offset": attribute("add_offset", 1),
    "mask": attribute("_FillValue", 7),
    "other mask": attribute("missing_value", 3),
    "calendar": attribute("calendar", "noleap"),
    "unsigned": attribute("_Unsigned", "true"),
    "note": attribute("note", "b"),
    "fill": member("fill_value", 3),
    "dtype": member("data_type", "int32"),
    "float": member("data_type", "float32"),
    "unnamed": member("dimension_names", None),
    "codecs": lambda nodes, path: nodes[path]["codecs"][0]["configuration"].update(endian="big"),
    "names": rename_dimension,
    "chunks": cut_otherwise,
    "shape": lengthen,
}  # fmt: skip
OPTIONS = (
    {}, {"harmonize": True}, {"harmonize": "time"}, {"harmonize": ["packing"]}, {"missing": "fill"},
    {"compat": "override"}, {"compat": "minimal"}, {"combine_attrs": "drop_conflicts"},
    {"combine_attrs": "identical"}, {"combine_attrs": "drop"},
)  # fmt: skip


@pytest.fixture(scope="module")
def stored(tmp_path_factory):
    folder = tmp_path_factory.mktemp("stored")
    return create_dataset(folder / "d", build(documents(), attributes={"title": "t"}), "time")


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_what_is_alike_is_not_joined(stored, options):
    is_fast = "combine_attrs" not in options
    assert compare(stored, build(documents(), 10, {"title": "t"}), options) == is_fast
    assert compare(stored, build(documents(), 10, {"title": "other"}), options) == is_fast
    last = stored.append(build(documents(), 10)).group
    np.testing.assert_array_equal(last["v"][3:], last["v"][:3])
    np.testing.assert_array_equal(last["in/w"][:, 3:], last["in/w"][:, :3])
    stored.rollback(1)


@pytest.mark.parametrize("options", OPTIONS[:2], ids=str)
@pytest.mark.parametrize("path", documents())
@pytest.mark.parametrize("change", CHANGES)
def test_each_difference_is_resolved_or_refused(stored, change, path, options):
    nodes = documents()
    before = copy.deepcopy(nodes)
    CHANGES[change](nodes, path)
    alike = compare(stored, build(nodes, 10), options)
    # How rows are cut, and how many there are, differs from addition to addition.
    is_of_rows = change in ("chunks", "shape") and nodes[path]["dimension_names"][-1] == "time"
    # Attributes that say nothing of the numbers are no matter, unless rules look at them.
    is_plain = change == "note" and not options
    assert not alike or nodes == before or is_of_rows or is_plain


@settings(max_examples=60, deadline=None)
@given(
    changes=st.lists(st.tuples(st.sampled_from([*CHANGES]), st.sampled_from([*documents()])),
                     max_size=2),
    options=st.sampled_from(OPTIONS),
    values=st.sampled_from([0, 0, 1]),
    drop=st.lists(st.sampled_from(["f", "x", "in/w"]), max_size=1),
    title=st.sampled_from([{}, {"title": "t"}, {"ome": {"version": "0.5"}}]),
)  # fmt: skip
def test_additions_are_as_joining_makes_them(stored, changes, options, values, drop, title):
    nodes = documents()
    for change, path in changes:
        CHANGES[change](nodes, path)
    compare(stored, build(nodes, 10, title, values=values, drop=drop), options)


def test_other_values_of_arrays_that_do_not_grow_are_refused(stored):
    other = build(documents(), 10, values=1)
    assert not is_alike(stored, other.map_arrays(as_virtual_v3), {})
    with pytest.raises(VirtualZarrError, match="the values in"):
        stored.append(other)
