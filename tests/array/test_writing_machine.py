"""A state machine: whatever is written, appended and resized, the array holds what numpy would."""

import tempfile

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from grids import RectilinearGrid, RegularGrid
from tests.array.stored import ZSTD, create, reopen
from virtualzarr.codecs import make
from virtualzarr.stores import LocalStore, MemoryStore

FILL = 7
LITTLE = {"name": "bytes", "configuration": {"endian": "little"}}
SHARDS = (make("sharding_indexed", chunk_shape=[2, 3], codecs=[LITTLE]),)
TURN = make("transpose", order=[1, 0])
NESTED = (
    TURN,
    make(
        "sharding_indexed",
        chunk_shape=[3, 2],
        index_location="start",
        codecs=[make("sharding_indexed", chunk_shape=[1, 2], codecs=[LITTLE]).to_v3()],
    ),
)


class Writing(RuleBasedStateMachine):
    """Arrays of two axes on one kind of grid."""

    kind = "regular"
    zarr_format = 3
    local = False
    codecs: tuple = (make("bytes", endian="little"), *ZSTD)

    @initialize(rows=st.integers(0, 9), columns=st.integers(0, 9), edge=st.integers(1, 3))
    def start(self, rows, columns, edge):
        self.folder = tempfile.TemporaryDirectory() if self.local else None
        store = LocalStore(self.folder.name) if self.folder else MemoryStore()
        edges = (2 * edge, 3)
        if self.kind == "regular":
            grid = RegularGrid((rows, columns), edges)
        else:
            listed = [[2, -(-rows // 2) * 2] if rows else [], [[3, 4]]]
            grid = RectilinearGrid((rows, columns), listed)
        self.array = create(grid, fill=FILL, store=store, zarr_format=self.zarr_format,
                            codecs=self.codecs)  # fmt: skip
        self.model = np.full((rows, columns), FILL, "i4")

    def teardown(self):
        if getattr(self, "folder", None):
            self.folder.cleanup()

    @rule(data=st.data(), value=st.integers(5, 9), array=st.booleans())
    def write_slices(self, data, value, array):
        selection = tuple(data.draw(st.slices(n)) for n in self.model.shape)
        if array:
            value = value + np.arange(self.model[selection].size) % 3
            value = value.reshape(self.model[selection].shape)
        self.array[selection] = value
        self.model[selection] = value

    @precondition(lambda self: self.model.size)
    @rule(data=st.data(), value=st.integers(5, 9))
    def write_points(self, data, value):
        points = [
            np.array(data.draw(st.lists(st.integers(0, n - 1), min_size=4, max_size=4)))
            for n in self.model.shape
        ]
        values = value + np.arange(4)
        self.array.vindex[tuple(points)] = values
        self.model[tuple(points)] = values
        self.array.oindex[tuple(points)] = values
        self.model[np.ix_(*points)] = values

    @rule(bits=st.integers(0, 2**32))
    def write_mask(self, bits):
        mask = np.random.default_rng(bits).random(self.model.shape) < 0.3
        self.array.vindex[mask] = bits % 10
        self.model[mask] = bits % 10

    @rule(value=st.integers(6, 7))
    def write_all(self, value):
        self.array[...] = value
        self.model[...] = value

    @precondition(lambda self: max(self.model.shape) < 40)
    @rule(axis=st.integers(0, 1), length=st.integers(0, 6), value=st.integers(5, 9))
    def append(self, axis, length, value):
        shape = list(self.model.shape)
        shape[axis] = length
        more = (value + np.arange(np.prod(shape)) % 5).reshape(shape).astype("i4")
        self.model = np.concatenate([self.model, more], axis)
        assert self.array.append(more, axis) == self.model.shape

    @rule(rows=st.integers(0, 14), columns=st.integers(0, 14))
    def resize(self, rows, columns):
        old, self.model = self.model, np.full((rows, columns), FILL, "i4")
        both = tuple(slice(0, min(pair)) for pair in zip(old.shape, (rows, columns), strict=True))
        self.model[both] = old[both]
        self.array.resize((rows, columns))

    @rule()
    def open_again(self):
        self.array = reopen(self.array)

    @invariant()
    def same_as_numpy(self):
        if hasattr(self, "model"):
            np.testing.assert_array_equal(self.array[...], self.model)


KINDS = {
    "regular-v2": {"zarr_format": 2},
    "regular-v3-local": {"local": True},
    "rectilinear": {"kind": "rectilinear"},
    "rectilinear-local": {"kind": "rectilinear", "local": True},
    "sharded": {"codecs": SHARDS},
    "sharded-rectilinear": {"kind": "rectilinear", "codecs": SHARDS},
    "nested-rectilinear": {"kind": "rectilinear", "codecs": NESTED},
}


@pytest.mark.parametrize("name", KINDS)
def test_machine(name):
    machine = type("Machine", (Writing,), KINDS[name])
    case = machine.TestCase
    case.settings = settings(max_examples=40, stateful_step_count=20, deadline=None)
    case().runTest()
