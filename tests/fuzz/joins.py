"""Random joins of random files, compared with what numpy and xarray make of each file alone.

``python -m tests.fuzz joins --seconds 600 --seed 1`` looks for seeds that give another value, or an
error that is not one of this package's. ``python -m tests.fuzz joins --only SEED`` runs one again.
"""

from __future__ import annotations

import re
import tempfile
import traceback
import warnings
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from time import monotonic
from typing import Any

import numpy as np

import virtualzarr as vz
from tests.fuzz.join_inputs import (
    ARRAYS,
    GROUPS,
    NUMBERS,
    UNITS,
    Input,
    Variable,
    packing,
    short,
    variable,
    write,
)
from virtualzarr.errors import PublishError, VirtualZarrError
from virtualzarr.metadata.portable import PRIVATE_FILL

LATER = ("rectilinear", "cast_value")
"""What not every zarr-python that is tested with reads of a reference file."""

FILLS = {"i": (0, 0, 5, -1), "u": (0, 0, 5, 99), "f": (0, 0, 5, float("nan"))}

NAMES = ("t", "y", "x")


class Refused(Exception):
    """The package gave one of its own errors."""


@dataclass
class Case:
    """A random join.

    Attributes
    ----------
    random : Random
    folder : Path
    log : list of str
        What was done, for people.
    """

    random: Random
    folder: Path
    log: list[str] = field(default_factory=list)

    def chance(self, of: float) -> bool:
        return self.random.random() < of

    def note(self, *words: object) -> None:
        self.log.append(" ".join(map(str, words)))

    def options(self) -> dict[str, Any]:
        """Return options of a join."""
        options: dict[str, Any] = {}
        if self.chance(0.55):
            rules = ["packing", "time", "fill"]
            options["harmonize"] = self.random.choice([True, True, True, *rules, rules[:2]])
        if self.chance(0.4):
            policies = ["drop_conflicts", "override", "no_conflicts", "identical", "drop"]
            options["combine_attrs"] = self.random.choice(policies)
        if options:
            self.note("options", options)
        return options


def run(seed: int, folder: Path) -> str:
    """Run the case of a seed.

    Returns
    -------
    str
        What kind it was and how it went, such as ``groups: equal``.

    Raises
    ------
    AssertionError
        Something is not equal; the message says what was done.
    Exception
        Any error that is none of this package's.
    """
    case = Case(Random(seed), folder)
    kind = case.random.choice((arrays, arrays, groups, groups, groups, appended, appended, merged))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            kind(case)
    except Refused as error:
        return f"{kind.__name__}: refused: {reason(error.__cause__)}"
    except Exception as error:
        error.add_note("\n".join([f"seed {seed}", *case.log]))
        raise
    return f"{kind.__name__}: equal"


def reason(error: Any) -> str:
    """Return what an error says, without names and numbers."""
    lines = [line for line in str(error).splitlines() if not line.endswith(":")]
    return re.sub(r"\(?/tmp/\S+|\[.*|\d+(\.\d*)?", "", lines[0] if lines else "")[:100]


def joining(function: Any, *items: Any, **options: Any) -> Any:
    """Call a function of the package; its own errors mean that it refuses."""
    try:
        return function(*items, **options)
    except VirtualZarrError as error:
        raise Refused from error


def arrays(case: Case) -> None:
    """Join arrays of any formats."""
    ndim = case.random.randint(1, 3)
    axis, stacked = case.random.randrange(ndim), case.chance(0.25)
    shape = [case.random.choice((0, 1, 2, 3, 5)) for _ in range(ndim)]
    dtype = case.random.choice((*NUMBERS, *NUMBERS, "b1", "S3", "U4"))
    found, raw = [], []
    for number in range(case.random.randint(1, 4)):
        own = list(shape)
        if not stacked:
            own[axis] = case.random.choice((0, 1, 2, 3, 6))
        if case.chance(0.15):
            dtype = case.random.choice((*NUMBERS, "b1", "S5", "U2"))
        one = input_array(case, number, dtype, tuple(own), ndim)
        found.append(one[0])
        raw.append(one[1])
    options: dict[str, Any] = case.options()
    if case.chance(0.15):
        options["dtype"] = np.dtype(case.random.choice(("f8", "f4", "i8", "i2")))
        case.note("dtype", options["dtype"])
    case.note("stack" if stacked else "concat", "along", axis)
    if stacked:
        joined = joining(vz.stack, found, axis, dim="new", **options)
    else:
        joined = joining(vz.concat, found, axis, **options)
    glue = np.stack if stacked else np.concatenate
    if "dtype" in options:
        with np.errstate(all="ignore"):
            expected = glue([one.astype(options["dtype"]) for one in raw], axis)
        if all(one.metadata.zarr_format == 3 or one.metadata.fill_value is None for one in found):
            same("values", joined[...], expected)
            parts(case, joined, expected)
        return
    one_by_one = [decoded_array(array) for array in found]
    if "harmonize" not in options:
        for piece in raw:
            lossless(piece, joined.dtype)
        expected = glue([piece.astype(joined.dtype) for piece in raw], axis)
        same("values", joined[...], expected)
        parts(case, joined, expected)
    if one_by_one[0] is not None and ("harmonize" not in options or options["harmonize"] is True):
        theirs = glue_decoded(one_by_one, glue, axis)
        if theirs is not None:
            same("decoded", decoded_array(joined), theirs)
    published(case, vz.Group({}, {"v": joined.with_path("v")}))


def input_array(
    case: Case, number: int, dtype: str, shape: tuple[int, ...], ndim: int
) -> tuple[vz.Array, Any]:
    """Write an array; return it, and what the format's own reader reads."""
    forms = (
        [*GROUPS, *ARRAYS] if np.dtype(dtype).kind in "iuf" else ["zarr2", "zarr3", "npy", "npz"]
    )
    if 0 in shape or ndim == 1:
        forms = [form for form in forms if form not in ("tiff", "netcdf3")]
    form = case.random.choice(forms)
    dims = NAMES[:ndim] if form in GROUPS else (None,) * ndim
    fill = None
    if case.chance(0.4) and np.dtype(dtype).kind in "iuf":
        fill = np.dtype(dtype).type(case.random.choice(FILLS[np.dtype(dtype).kind]))
    one = variable(case.random, dims, shape, dtype=dtype, fill=fill, gaps=form in GROUPS)
    if form == "hdf5":
        one.dims = ("",) * ndim  # such a file names none
    written = write(case.folder, number, form, {"v": one}, case.random)
    (name, raw), *_ = written.raw.items()
    case.note(form, raw.dtype.str, raw.shape, "chunks", one.chunks, "missing", one.missing,
              "fill", fill)  # fmt: skip
    array = written.open()[name]
    assert isinstance(array, vz.Array)
    same(f"input {number} alone", array[...], raw)
    return array.lazy.rename_dims(dict(enumerate(NAMES[:ndim]))), raw


def decoded_array(array: vz.Array) -> Any:
    """Return what xarray decodes of an array; None if it cannot."""
    try:
        return decoded(vz.Group({}, {"v": array.with_path("v")}))["v"].values
    except (OverflowError, TypeError, ValueError):
        return None


def glue_decoded(pieces: list[Any], glue: Any, axis: int) -> Any:
    if any(piece is None for piece in pieces):
        return None
    try:
        return glue(pieces, axis)
    except np.exceptions.DTypePromotionError:
        return None


def parts(case: Case, array: vz.Array, expected: Any) -> None:
    """Compare a few selections."""
    for _ in range(2):
        key = tuple(
            slice(*sorted(case.random.randint(0, n) for _ in "ab"), case.random.randint(1, 3))
            for n in expected.shape
        )
        same(f"part {key}", array[key], expected[key])


def files(case: Case, count: int, same_place: bool = False) -> list[Input]:
    """Write files of the same variables, that follow each other in time."""
    random = case.random
    width = random.choice((1, 2, 3))
    dtype = np.dtype(random.choice(NUMBERS))
    attributes, clock = packing(random, dtype), random.choice((None, None, *UNITS))
    fill = dtype.type(random.choice(FILLS[dtype.kind])) if case.chance(0.3) else None
    text = random.choice((None, None, None, "S3", "U4", object))
    records = text is None and case.chance(0.3)
    x = variable(random, ("x",), (width,), dtype="f4")
    scalar, start = variable(random, (), (), dtype="i4"), 0
    made = []
    for number in range(count):
        length = random.choice((0, 1, 2, 3, 4)) if count > 1 or number else 3
        form = random.choice([form for form in GROUPS if text is None or form != "netcdf3"])
        if records:
            form = random.choice(("netcdf3", "netcdf4"))
        if text in ("S3", "U4"):
            form = random.choice(("zarr2", "zarr3"))
        if case.chance(0.2):
            attributes = packing(random, dtype)
        if case.chance(0.1):
            dtype = np.dtype(random.choice(NUMBERS))
            attributes = packing(random, dtype)
            fill = None
        if clock and case.chance(0.2):
            clock = random.choice(UNITS)
        times = np.arange(start, start + length)
        if clock is None or not same_place:
            start += length
        variables = {"t": time(case, times, clock), "x": x}
        variables["v"] = variable(random, ("t", "x"), (length, width), dtype=dtype, fill=fill,
                                  attributes=attributes, gaps=True)  # fmt: skip
        if records:
            # Of records, or of an unlimited dimension, that others reach further along.
            variables["r"] = short(variable(random, ("t",), (length,), dtype="f4"), random)
        if text is not None:
            variables["w"] = variable(random, ("t",), (length,), dtype=text)
        if case.chance(0.97):
            variables["s"] = scalar
        made.append(write(case.folder, number, form, variables, random))
        case.note(form, "t", length, clock, "v", made[-1].raw["v"].dtype, attributes, "chunks",
                  variables["v"].chunks, "missing", variables["v"].missing, "fill", fill,
                  "w", text)  # fmt: skip
    return made


def time(case: Case, steps: Any, clock: str | None) -> Variable:
    """Return a coordinate, of times where there is a unit."""
    if clock is None:
        return Variable(("t",), steps.astype("f8"), {}, None, (max(len(steps), 1),))
    days = steps + 10.0
    if clock.startswith("hours"):
        days = days * 24
    if clock.startswith("seconds"):
        days = days * 86400
    dtype = case.random.choice(("i4", "i8", "f8"))
    return Variable(("t",), days.astype(dtype), {"units": clock}, None, (max(len(days), 1),))


def groups(case: Case) -> None:
    """Concatenate, stack or order files with several variables."""
    found = files(case, case.random.randint(1, 3))
    way = case.random.choice(("concat", "concat", "stack", "by_coords"))
    options = case.options() | ({"compat": "override"} if case.chance(0.2) else {})
    if case.chance(0.3):
        options["missing"] = case.random.choice(("drop", "fill"))
    case.note(way, options)
    opened = [one.open() for one in found]
    if way == "stack":
        joined = joining(vz.stack, opened, 0, dim="new", **options)
    elif way == "concat":
        joined = joining(vz.concat, opened, dim="t", **options)
    else:
        order = case.random.sample(range(len(found)), len(found))
        joined = joining(vz.combine_by_coords, [opened[i] for i in order], ["t"], **options)
        found = [one for one in found if len(one.raw["t"])] or found[:1]
    if way != "stack":
        compare(case, joined, found, options)
    else:
        compare_stacked(joined, found, options)
    published(case, joined)


def compare(case: Case, joined: vz.Group, found: list[Input], options: dict[str, Any]) -> None:
    """Compare a group joined along time with its files."""
    if not options.get("harmonize") and options.get("missing") != "fill":
        for name, array in joined.arrays():
            pieces = [one.raw[name] for one in found if name in one.raw]
            if not pieces:
                continue  # of a file without times
            if "t" in array.dims:
                for piece in pieces:
                    lossless(piece, array.dtype)
                pieces = [np.concatenate([piece.astype(array.dtype) for piece in pieces])]
            same(f"{name} as stored", array[...], pieces[0].astype(array.dtype))
    if options.get("harmonize", True) is True:
        check_decoded(decoded(joined), found)


def check_decoded(ours: Any, found: list[Input]) -> None:
    """Compare a decoded dataset with what xarray decodes of each file, one after the other."""
    each = [one.decoded() for one in found]
    for name in ours.variables:
        mine = ours[name].variable
        theirs = [dataset[name].variable for dataset in each if name in dataset.variables]
        if not theirs:
            continue  # of a file without times
        if "t" not in mine.dims:
            same(f"{name} decoded", mine.values, theirs[0].values)
        elif len(theirs) == len(each):
            pieces = [piece.values for piece in theirs]
            same(f"{name} decoded", mine.values, joined_values(pieces))
        else:
            place = 0
            for dataset in each:
                length = dataset.sizes["t"]
                part = mine.values[place : place + length]
                if name in dataset.variables:
                    same(f"{name} decoded", part, dataset[name].values)
                place += length


def stacked_values(pieces: list[Any]) -> Any:
    return joined_values([piece[None] for piece in pieces])


def joined_values(pieces: list[Any]) -> Any:
    kinds = {piece.dtype.kind for piece in pieces}
    if "O" in kinds:
        return np.concatenate([piece.astype(object) for piece in pieces])
    return np.concatenate(pieces)


def compare_stacked(joined: vz.Group, found: list[Input], options: dict[str, Any]) -> None:
    """Compare what was stacked with its files."""
    if options.get("missing") == "fill":
        return
    if options.get("harmonize", True) is True:
        ours, each = decoded(joined), [one.decoded() for one in found]
        for name in ours.variables:
            pieces = [dataset[name].values for dataset in each]
            expected = stacked_values(pieces) if "new" in ours[name].dims else pieces[0]
            same(f"{name} stacked and decoded", ours[name].values, expected)
    if "harmonize" in options:
        return
    for name, array in joined.arrays():
        pieces = [one.raw[name].astype(array.dtype) for one in found]
        expected = np.stack(pieces) if "new" in array.dims else pieces[0]
        same(f"{name} stacked", array[...], expected)


def merged(case: Case) -> None:
    """Merge files of several variables."""
    (first,) = files(case, 1)
    again = write(case.folder, 7, case.random.choice(list(GROUPS)), {
        "t": Variable(("t",), first.raw["t"], {}, None, (max(first.raw["t"].size, 1),)),
        "extra": variable(case.random, ("t",), first.raw["t"].shape),
    }, case.random)  # fmt: skip
    case.note("merge")
    options = {k: v for k, v in case.options().items() if k == "combine_attrs"}
    joined = joining(vz.merge, [first.open(), again.open()], **options)
    for one in (again, first):
        for name, raw in one.raw.items():
            found: Any = joined[name]
            same(name, found[...], raw)
    published(case, joined)


def appended(case: Case) -> None:
    """Publish one file, and append others."""
    found = files(case, case.random.randint(2, 3))
    target = case.folder / case.random.choice(("refs.json", "refs.zarr", "refs.parquet"))
    wanted = {"zarr_format": case.random.choice((None, 2, 3))} if target.suffix == ".json" else {}
    options = {"harmonize": True} if case.chance(0.6) else {}
    case.note("append to", target.name, wanted, options)
    copies = {} if target.suffix == ".zarr" else {"copy": True}
    joining(found[0].open().publish, target, **copies, **wanted)
    for one in found[1:]:
        joining(vz.append, target, one.path, "t", **copies, **options)
    opened = vz.open(target)
    assert isinstance(opened, vz.Group)
    check_decoded(decoded(opened), found)


def published(case: Case, node: vz.Group) -> None:
    """Publish what was joined, and compare what is read of it with what is read without."""
    form = case.random.choice(("json", "json", "native", "none"))
    if form == "none":
        return
    target = case.folder / ("published.json" if form == "json" else "published.zarr")
    options: dict[str, Any] = {}
    if form == "json":
        options = {"copy": True, "zarr_format": case.random.choice((None, None, 2, 3))}
    case.note("publish", form, options)
    try:
        report = node.publish(target, **options)
    except PublishError:
        return
    found = vz.open(target)
    assert isinstance(found, vz.Group)
    for name, array in node.arrays():
        again: Any = found[name]
        same(f"{name} published", again[...], array[...])
        assert again.dtype == array.dtype, f"{name} published: {again.dtype}, not {array.dtype}"
    before, after = decoded(node), decoded(found)
    for name in before.variables:
        same(f"{name} published and decoded", after[name].values, before[name].values)
    if form == "json":
        by_others(case, target, before, report.notes)


def by_others(case: Case, target: Path, before: Any, notes: tuple[str, ...]) -> None:
    """Compare what xarray reads by zarr-python of a reference file."""
    if not case.chance(0.3):
        return
    import fsspec
    import imagecodecs.numcodecs
    import xarray as xr
    import zarr

    imagecodecs.numcodecs.register_codecs(verbose=False)  # as notes tell readers
    fs = fsspec.filesystem("reference", fo=str(target), asynchronous=True)
    store = zarr.storage.FsspecStore(fs, read_only=True, path="")
    if any(word in target.read_text() for word in LATER):
        return
    with xr.open_dataset(store, engine="zarr", chunks=None) as theirs:
        for name in before.variables:
            if (
                PRIVATE_FILL in theirs[name].attrs
            ):  # text that others cannot mask: it has to be said
                assert any(name in note and "_FillValue" in note for note in notes), notes
                continue
            same(f"{name} published, as zarr-python reads it", theirs[name].values,
                 before[name].values)  # fmt: skip


def decoded(group: vz.Group) -> Any:
    """Return what xarray decodes of a group."""
    import xarray as xr

    from virtualzarr.integrations.xarray_backend import VirtualZarrBackendEntrypoint

    with xr.open_dataset(group, engine=VirtualZarrBackendEntrypoint) as dataset:
        return dataset.load()


def lossless(values: Any, dtype: np.dtype) -> None:
    """Check that a data type has all values of an array."""
    if values.dtype.kind in "iufb" and dtype.kind in "iufb":
        with np.errstate(all="ignore"):
            assert_equal(f"{values.dtype} as {dtype}", values.astype(dtype).astype(values.dtype),
                         values)  # fmt: skip


def same(what: str, found: Any, expected: Any) -> None:
    """Check that arrays have the same shape and values; NaN equals NaN, text its padded self."""
    found, expected = np.asarray(found), np.asarray(expected)
    assert found.shape == expected.shape, f"{what}: shape {found.shape}, not {expected.shape}"
    assert_equal(what, found, expected)


def assert_equal(what: str, found: Any, expected: Any) -> None:
    if found.dtype.kind in "fcmM" and expected.dtype.kind in "iufcmM":
        both = (found != found) & (expected != expected)
        equal = bool(np.all((found == expected) | both))
    elif found.dtype.kind in "OSU" or expected.dtype.kind in "OSU":
        equal = [_plain(v) for v in found.ravel()] == [_plain(v) for v in expected.ravel()]
    else:
        equal = bool(np.array_equal(found, expected))
    assert equal, f"{what}:\n{found!r}\nis not\n{expected!r}"


def _plain(value: Any) -> Any:
    if isinstance(value, bytes):
        value = value.decode("latin-1")
    return None if value != value else value


def find(seed: int, seconds: float) -> Iterator[tuple[int, str, Counter[str]]]:
    """Yield seeds that fail, with what happened, and counts of what went well until then."""
    stop, counts = monotonic() + seconds, Counter[str]()
    while monotonic() < stop:
        with tempfile.TemporaryDirectory() as folder:
            try:
                counts[run(seed, Path(folder))] += 1
            except Exception as error:
                text = "".join(traceback.format_exception(error, limit=-5))
                yield seed, text, counts
        seed += 1
    yield -1, "", counts
