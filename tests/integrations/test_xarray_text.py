"""xarray works on virtual text as it works on the same text in memory."""

from __future__ import annotations

import numpy as np
import pytest

import virtualzarr as vz
from virtualzarr.errors import UnsupportedError
from virtualzarr.virtual.inline import inline_array

xr = pytest.importorskip("xarray")
from virtualzarr.integrations.xarray_datasets import open_virtual_dataset  # noqa: E402
from virtualzarr.integrations.xarray_duck_array import VirtualDuckArray  # noqa: E402

pytestmark = pytest.mark.interop
KINDS = ("U", "S", "str", "bytes")


def stored(values, dtype=None, dims=("y", "x"), fill=None):
    values = np.asarray(values)
    more = {} if fill is None else {"fill_value": fill}
    array = vz.create_array(
        {},
        shape=values.shape,
        dtype=values.dtype if dtype is None else dtype,
        chunks=tuple(max(1, n // 2) for n in values.shape),
        dimension_names=dims,
        **more,
    )
    array[...] = values
    return array


def random_text(random, kind, shape):
    """Text of up to a random length, some of it empty."""
    longest = int(random.integers(1, 9))
    letters = "abcæøå€" if kind in ("U", "str") else "abcxyz"
    flat = [
        "".join(random.choice(list(letters), int(random.integers(0, longest + 1))))
        for _ in range(int(np.prod(shape)))
    ]
    if kind == "U":
        return stored(np.array(flat or [], "U").reshape(shape))
    if kind == "S":
        return stored(np.array([text.encode() for text in flat], "S").reshape(shape))
    values = np.empty(len(flat), object)
    values[:] = flat if kind == "str" else [text.encode() for text in flat]
    return stored(values.reshape(shape), kind)


def pair(array):
    """A virtual dataset and the same in memory."""
    group = vz.Group({}, {"t": array, "n": stored(np.arange(array.size).reshape(array.shape))})
    virtual = open_virtual_dataset(group)
    assert isinstance(virtual["t"].variable._data, VirtualDuckArray)
    virtual = virtual.assign_coords(y=np.arange(array.shape[0]) * 10, x=np.arange(array.shape[1]))
    return virtual, virtual.copy().load()


def other_text(ds):
    return b"longer than all" if ds["t"].dtype.kind == "S" else "longer than all"


def numbered(ds):
    """Without NaN in the index, of which xarray makes what it likes."""
    return ds.assign_coords(y=np.arange(ds.sizes["y"]) * 10)


OPERATIONS = {
    "isel": lambda ds, r: ds.isel(y=slice(r(3), None), x=slice(None, None, -1)),
    "take": lambda ds, r: ds.isel(x=[r(ds.sizes["x"]) for _ in range(3)]),
    "concat_y": lambda ds, r: xr.concat([ds, ds.assign_coords(y=ds["y"] + 1)], "y"),
    "concat_new": lambda ds, r: xr.concat([ds, ds], "z").isel(z=r(2), drop=True),
    "concat_longer": lambda ds, r: xr.concat(
        [ds, xr.full_like(ds, {"t": other_text(ds), "n": 7})], "y"
    ),
    "reindex": lambda ds, r: ds.reindex(y=[10, 999, 0]),
    "reindex_filled": lambda ds, r: ds.reindex(
        y=[10, 999, 0], fill_value={"t": other_text(ds), "n": -1}
    ),
    "shift": lambda ds, r: ds.shift(y=1),
    "shift_filled": lambda ds, r: ds.shift(x=-1, fill_value={"t": other_text(ds), "n": -1}),
    "roll": lambda ds, r: ds.roll(x=r(3), roll_coords=False),
    "where": lambda ds, r: ds.where(ds["y"] > 5),
    "where_filled": lambda ds, r: (
        xr.where(ds["y"] > 5, ds["t"], other_text(ds)).to_dataset(name="t").assign(n=ds["n"])
    ),
    "where_itself": lambda ds, r: ds.where(ds["t"] == ds["t"].isel(y=0), ds.isel(x=0, drop=True)),
    "sortby": lambda ds, r: ds.sortby("y", ascending=False),
    "stack": lambda ds, r: ds.stack(z=("y", "x")).unstack("z"),
    "unstack": lambda ds, r: ds.stack(z=("y", "x")).isel(z=slice(1, None)).unstack("z"),
    "transpose": lambda ds, r: ds.transpose("x", "y"),
    "expand": lambda ds, r: ds.expand_dims(z=2).isel(z=1),
    "pad": lambda ds, r: numbered(ds.pad(y=(1, 0), mode="edge")),
    "pad_filled": lambda ds, r: numbered(
        ds.pad(y=(1, 0), constant_values={"t": other_text(ds), "n": 3})
    ),
    "astype_str": lambda ds, r: ds.assign(t=ds["t"].astype(str)),
    "astype_object": lambda ds, r: ds.assign(t=ds["t"].astype(object)),
    "astype_long": lambda ds, r: ds.assign(t=ds["t"].astype("U12")),
    "numbers_as_text": lambda ds, r: ds.assign(n=ds["n"].astype(str)),
    "broadcast": lambda ds, r: ds.isel(x=0).broadcast_like(ds),
    "groupby": lambda ds, r: ds.groupby("y").first(),
    "drop": lambda ds, r: ds.drop_isel(x=0),
    "fillna": lambda ds, r: ds.fillna({"t": other_text(ds)}),
    "isin": lambda ds, r: ds.assign(n=ds["t"].isin([other_text(ds), ds["t"].values.flat[0]])),
    "copied": lambda ds, r: ds.copy(deep=True),
    "combined": lambda ds, r: xr.combine_nested([[ds, ds], [ds, ds]], ["y", "x"]),
}


def outcome(operation, ds, seed):
    random = np.random.default_rng(seed)
    try:
        return operation(ds, lambda n: int(random.integers(n)))
    except Exception as error:  # of whatever kind: the other must fail as well
        return type(error)


def assert_same(virtual, loaded):
    if isinstance(virtual, type) or isinstance(loaded, type):
        assert virtual is loaded
        return
    for name in loaded.variables:
        ours, theirs = virtual[name].values, loaded[name].values
        assert ours.dtype == theirs.dtype, name
        assert ours.tolist() == theirs.tolist() or xr.Dataset.equals(virtual, loaded)
    xr.testing.assert_identical(virtual.compute(), loaded)


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", OPERATIONS)
def test_one_operation(name, kind):
    random = np.random.default_rng(len(name))
    virtual, loaded = pair(random_text(random, kind, (4, 3)))
    operation = OPERATIONS[name]
    assert_same(outcome(operation, virtual, 1), outcome(operation, loaded, 1))


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("seed", range(60))
def test_several_operations(seed):
    random = np.random.default_rng(seed)
    kind = KINDS[seed % len(KINDS)]
    virtual, loaded = pair(random_text(random, kind, (4, 3)))
    for step in range(4):
        name = str(random.choice(list(OPERATIONS)))
        ours = outcome(OPERATIONS[name], virtual, seed + step)
        theirs = outcome(OPERATIONS[name], loaded, seed + step)
        assert_same(ours, theirs)
        if isinstance(theirs, type):
            return
        virtual, loaded = ours, theirs


class TestLengths:
    def test_no_text_is_cut(self):
        for text in (np.array(["ab", "cdefg"]), np.array([b"ab", b"cdefg"])):
            array = stored(text, dims=("x",))
            for dtype in (str, bytes, "U", "S"):
                for cast in (array.lazy.astype(dtype), vz.concat([array], dtype=dtype)):
                    expected = text.astype(dtype)
                    assert cast.dtype == expected.dtype
                    assert cast[...].tolist() == expected.tolist()

    def test_numbers_as_text(self):
        for values in ([1, -200], [1.5, 2e-300], [True, False], [1 + 2j, -1j]):
            values = np.array(values)
            cast = stored(values, dims=("x",)).lazy.astype(str)
            assert cast.dtype == values.astype(str).dtype
            assert cast[...].tolist() == values.astype(str).tolist()

    def test_the_longest_of_several(self):
        arrays = [stored(np.array(text), dims=("x",)) for text in (["a"], ["abc"], [1.5])]
        joined = vz.concat(arrays, dtype=str)
        assert joined.dtype == np.dtype("U32")
        assert joined[...].tolist() == ["a", "abc", "1.5"]

    def test_times_keep_their_unit(self):
        times = np.array(["2000-01-01", "NaT"], "M8[s]")
        assert stored(times, dims=("x",)).lazy.astype("M8").dtype == times.dtype

    def test_of_variable_length_is_an_error(self):
        array = stored(np.array(["ab", "cdefg"], object), "str", dims=("x",))
        for dtype in (str, "U3", object):
            with pytest.raises(UnsupportedError, match="without reading"):
                array.lazy.astype(np.dtype(dtype) if dtype is not object else "V8")
        with pytest.raises(UnsupportedError, match="longest"):
            vz.concat([array, array], dtype=str)


class TestAssignment:
    @pytest.mark.parametrize("kind", [*KINDS, "numbers"])
    def test_changes_the_copy_alone(self, kind):
        random = np.random.default_rng(3)
        array = stored(np.arange(12.0).reshape(4, 3))
        if kind != "numbers":
            array = random_text(random, kind, (4, 3))
        virtual, loaded = pair(array)
        before = virtual["t"].values.tolist()
        new = {"numbers": 7, "S": b"zz", "bytes": b"zz"}.get(kind, "zz")
        for ds in (ours := virtual.copy(deep=True), theirs := loaded.copy(deep=True)):
            ds["t"][0] = new
            ds["t"].loc[{"x": 1}] = new
            ds["t"][{"y": xr.DataArray([2, 3], dims="p"), "x": xr.DataArray([0, 2], dims="p")}] = (
                ds["t"][0, 0].values
            )
        assert_same(ours, theirs)
        assert virtual["t"].values.tolist() == before
        again = open_virtual_dataset(ours[["t"]].virtualzarr.to_group())
        assert again["t"].values.tolist() == theirs["t"].values.tolist()

    def test_sequences_are_an_error(self):
        rows = np.empty(2, object)
        rows[:] = [np.arange(2), np.arange(3)]
        with pytest.raises(UnsupportedError, match="no bytes"):
            inline_array(rows)
