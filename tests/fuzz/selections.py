"""Random selections of random arrays, read and written as numpy does it."""

from __future__ import annotations

import time
import traceback
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from random import Random
from typing import Any

import numpy as np

import virtualzarr as vz
from tests.fuzz.loop import kind
from virtualzarr.stores import MemoryStore

Finding = tuple[str, str, str]
MODES = ("basic", "oindex", "vindex", "blocks", "mask")


@dataclass
class Case:
    """An array of this package, and what it must be.

    Attributes
    ----------
    text : str
        How it was made.
    array : Array
    data : numpy.ndarray
        Its values, changed along with it.
    edges : list of list of int
        Where cells begin along each axis, and the end.
    """

    text: str
    array: vz.Array
    data: np.ndarray[Any, Any]
    edges: list[list[int]]


def make_case(random: Random) -> Case:
    """Return an array of some shape, type, grid and codecs, filled or not."""
    ndim = random.choice((0, 1, 1, 2, 2, 2, 3, 4))
    shape = tuple(random.choice((0, 1, 2, 3, 5, 8, 13, 30)) for _ in range(ndim))
    dtype = random.choice(("i4", "u1", "f8", "?", "S3", "<U2", "M8[s]", "c8", "V5", str))
    arguments: dict[str, Any] = {"shape": shape, "dtype": dtype}
    form = random.choice(
        ("regular", "regular", "rectilinear", "sharded", "sharded rectilinear", "v2")
    )
    arguments.update(_chunks(form, shape, random))
    if random.random() < 0.4:
        arguments["order"] = "F"
    if form != "v2" and ndim > 1 and random.random() < 0.2 and "order" not in arguments:
        order = random.sample(range(ndim), ndim)
        if "sharded" not in form:
            turn = {"name": "transpose", "configuration": {"order": order}}
            arguments["filters"] = turn
    arguments["compressors"] = random.choice((None, "zstd", "gzip", "blosc"))
    array = vz.create_array(MemoryStore(), **arguments)
    data = np.empty(shape, array.dtype)
    if data.size:
        data[...] = np.asarray(array[...], array.dtype)
    case = Case(repr(arguments), array, data, _edges(array.grid))
    if random.random() < 0.8:
        data[...] = _values(shape, array.dtype, random)
        array[...] = data
    return case


def _chunks(form: str, shape: tuple[int, ...], random: Random) -> dict[str, Any]:
    if form in ("regular", "v2"):
        chunks = tuple(random.choice((1, 2, 3, 7, 40)) for _ in shape)
        return {"chunks": chunks} | ({"zarr_format": 2} if form == "v2" else {})
    if form == "rectilinear":
        return {"chunks": tuple(_cut(length, 1, random) for length in shape)}
    inner = tuple(random.choice((1, 2, 3)) for _ in shape)
    if form == "sharded":
        shards = tuple(n * random.choice((1, 2, 5)) for n in inner)
        return {"chunks": inner, "shards": shards}
    rounded = tuple(-(-length // n) * n for length, n in zip(shape, inner, strict=True))
    if rounded != shape:
        inner = (1,) * len(shape)
    cuts = (_cut(length, n, random) for length, n in zip(shape, inner, strict=True))
    return {"chunks": inner, "shards": tuple(cuts)} if shape else {"chunks": (), "shards": ()}


def _cut(length: int, unit: int, random: Random) -> Any:
    """Return the edges of an axis: multiples of a unit that make up its length."""
    edges = []
    while (left := length - sum(edges)) > 0:
        edges.append(min(left, unit * random.choice((1, 1, 2, 3, 6))))
    return edges or unit


def _edges(grid: Any) -> list[list[int]]:
    return [
        [*(int(axis.start(cell)) for cell in range(axis.ncells)), int(axis.extent)]
        for axis in grid.axes
    ]


def _values(shape: tuple[int, ...], dtype: np.dtype[Any], random: Random) -> Any:
    rng = np.random.default_rng(random.randrange(2**32))
    numbers = rng.integers(0, 100, shape)
    if dtype.hasobject:
        return numbers.astype(str).astype(object)
    if dtype.kind == "V":
        return numbers.astype("S5").view("V5") if shape else np.array(b"12345").astype("V5")
    if dtype.kind == "U":
        return numbers.astype("U2")
    return numbers.astype(dtype)


# ------------------------------------------------------------------------------------ selections


def make_selection(mode: str, case: Case, random: Random) -> Any:
    """Return a selection of one mode."""
    shape = case.data.shape
    if mode == "mask":
        return np.array(_rng(random).random(shape) < random.choice((0, 0.1, 0.5, 1)))
    if mode == "vindex":
        return _points(shape, random)
    if mode == "blocks":
        counts = [len(edges) - 1 for edges in case.edges]
        return tuple(
            _integer_or_slice(n, random, (1,)) for n in counts[: _some(len(counts), random)]
        )
    if mode == "oindex":
        return tuple(_orthogonal(n, random) for n in shape[: _some(len(shape), random)])
    given: list[Any] = [_integer_or_slice(n, random, (-3, -2, -1, 1, 1, 2, 7)) for n in shape]
    given = given[: _some(len(given), random)]
    if random.random() < 0.3:
        cut = random.randrange(len(given) + 1)
        if random.random() < 0.5 or len(given) < len(shape):
            tail = len(shape) - random.randrange(cut, len(shape) + 1)
            given = [
                *given[:cut],
                ...,
                *(_integer_or_slice(n, random, (1, 2)) for n in shape[len(shape) - tail :]),
            ]
    if random.random() < 0.15:
        given.insert(random.randrange(len(given) + 1), None)
    return tuple(given) if len(given) != 1 or random.random() < 0.5 else given[0]


def _rng(random: Random) -> np.random.Generator:
    return np.random.default_rng(random.randrange(2**32))


def _some(count: int, random: Random) -> int:
    return count if random.random() < 0.8 else random.randrange(count + 1)


def _integer_or_slice(length: int, random: Random, steps: tuple[int, ...]) -> Any:
    if length and random.random() < 0.3:
        index = random.randrange(-length, length)
        return index if random.random() < 0.7 else np.int64(index)
    ends = [None, None, *(random.randrange(-length - 3, length + 4) for _ in range(2))]
    step = random.choice(steps)
    return slice(random.choice(ends), random.choice(ends), None if step == 1 else step)


def _orthogonal(length: int, random: Random) -> Any:
    chosen = random.random()
    if chosen < 0.4 or not length:
        return _integer_or_slice(length, random, (-2, -1, 1, 1, 2, 3))
    rng = _rng(random)
    if chosen < 0.6:
        return rng.random(length) < random.choice((0, 0.2, 0.7))
    count = random.choice((0, 1, 3, 50))
    indices = rng.integers(-length, length, count)
    if random.random() < 0.3:
        indices = np.sort(indices)
    return indices.tolist() if random.random() < 0.3 else indices


def _points(shape: tuple[int, ...], random: Random) -> Any:
    rng = _rng(random)
    into = random.choice(((), (1,), (5,), (60,), (3, 4), (0,)))
    if 0 in shape:
        into = (0,)
    columns = [rng.integers(-n, n, into) if n else np.zeros(into, int) for n in shape]
    return tuple(int(c) if c.ndim == 0 else c for c in map(np.asarray, columns))


# ------------------------------------------------------------------------------------ comparison


def as_numpy(mode: str, selection: Any, case: Case) -> Any:
    """Return the selection as numpy takes it."""
    shape = case.data.shape
    if mode == "blocks":
        chosen = [_span(edges, part) for edges, part in zip(case.edges, selection, strict=False)]
        return tuple(chosen)
    if mode != "oindex":
        return selection
    parts = [*selection, *(slice(None) for _ in shape[len(selection) :])]
    lists, squeezed = [], []
    for axis, (part, length) in enumerate(zip(parts, shape, strict=True)):
        if isinstance(part, int | np.integer):
            squeezed.append(axis)
            lists.append(np.array([part]))
        elif isinstance(part, slice):
            lists.append(np.arange(length)[part])
        else:
            found = np.asarray(part)
            lists.append(np.flatnonzero(found) if found.dtype == bool else found.astype(np.int64))
    return np.ix_(*lists), tuple(squeezed)


def _span(edges: list[int], part: Any) -> slice:
    cells = range(len(edges) - 1)[part]
    if isinstance(cells, int):
        return slice(edges[cells], edges[cells + 1])
    return slice(edges[cells[0]], edges[cells[-1] + 1]) if len(cells) else slice(0, 0)


def expected(mode: str, selection: Any, case: Case) -> Any:
    """Return what numpy has there."""
    if mode == "oindex":
        mesh, squeezed = as_numpy(mode, selection, case)
        return case.data[mesh].squeeze(squeezed) if case.data.ndim else case.data[()]
    return case.data[as_numpy(mode, selection, case)]


def check(case: Case, random: Random) -> str:
    """Read and write at random; return what differs, or ""."""
    for _ in range(12):
        mode = random.choice(MODES if case.data.ndim else MODES[:-1])
        selection = make_selection(mode, case, random)
        indexed = case.array if mode in ("basic", "mask") else getattr(case.array, mode)
        want = expected(mode, selection, case)
        if random.random() < 0.35 and (
            mode not in ("vindex", "oindex") or _distinct(mode, selection, case)
        ):
            value = _values(
                np.shape(want) if random.random() < 0.7 else (), case.data.dtype, random
            )
            indexed[selection] = value
            _assign(mode, selection, case, value)
            got, want = case.array[...], case.data
        else:
            got = indexed[selection]
        if problem := _differ(got, want, case.data.dtype):
            return f"{mode} {selection!r}: {problem}"
    return ""


def _distinct(mode: str, selection: Any, case: Case) -> bool:
    """Whether no element is chosen twice, so that order does not matter."""
    numbers = np.arange(case.data.size).reshape(case.data.shape)
    twin = Case(case.text, case.array, numbers, case.edges)
    chosen = np.asarray(expected(mode, selection, twin))
    return len(np.unique(chosen)) == chosen.size


def _assign(mode: str, selection: Any, case: Case, value: Any) -> None:
    chosen = as_numpy(mode, selection, case)
    if mode != "oindex":
        case.data[chosen] = value
        return
    mesh, squeezed = chosen
    if not case.data.ndim:
        case.data[()] = value
        return
    value = np.asarray(value, case.data.dtype)
    case.data[mesh] = np.expand_dims(value, squeezed) if value.ndim else value


def _differ(got: Any, want: Any, dtype: np.dtype[Any]) -> str:
    if np.shape(got) != np.shape(want):
        return f"shape {np.shape(got)}, not {np.shape(want)}"
    if not np.ndim(got):  # texts as scalars have the length that they have
        got, want = np.asarray(got, dtype), np.asarray(want, dtype)
    if got.dtype != want.dtype:
        return f"dtype {got.dtype}, not {want.dtype}"
    same = (
        got.tolist() == want.tolist() if want.dtype.hasobject else got.tobytes() == want.tobytes()
    )
    return "" if same else f"{got!r}, not {want!r}"


def look(
    random: Random, count: int | None = None, seconds: float = float("inf")
) -> Iterator[Finding]:
    """Yield what was found: how the array was made, the seed of the case, what is wrong."""
    seen: set[str] = set()
    tried, stop = 0, time.monotonic() + seconds
    while tried != count and time.monotonic() < stop:
        tried += 1
        seed = random.randrange(2**32)
        text, found = "", ""
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                own = Random(seed)
                case = make_case(own)
                text = case.text
                found = check(case, own)
        except Exception as error:
            found = "".join(traceback.format_exception(error, limit=-6))
        if found and kind(found) not in seen:
            seen.add(kind(found))
            yield text, str(seed), found
