"""Random appends to random publications, compared with a join of all files at once.

``python -m tests.fuzz appends --seconds 600 --seed 1`` looks for seeds that give another value than
xarray decodes of each file alone, than the join of all files, or than zarr-python reads; or an
error that is not one of this package's. Times keep the unit that was published, where a join
chooses one for all files: they are compared as moments.
"""

from __future__ import annotations

import re
import sys
import tempfile
import traceback
import warnings
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from random import Random
from time import monotonic
from typing import Any

import numpy as np

import virtualzarr as vz
from tests.fuzz.join_inputs import GROUPS, NUMBERS, Input, Variable, packing, variable, write
from tests.fuzz.joins import Case, Refused, check_decoded, decoded, joining, reason, same
from virtualzarr.errors import VirtualZarrError
from virtualzarr.metadata.portable import PRIVATE_FILL

TARGETS = ("refs.json", "refs.json.zst", "refs.parquet", "refs.zarr")

CALENDARS = ("standard", "standard", "proleptic_gregorian", "noleap", "360_day")

SPANS = {"days": 24 * 60, "hours": 60, "minutes": 1, "seconds": 1 / 60, "milliseconds": 1 / 60_000}
"""Minutes of each unit."""

EPOCHS = {"2000-01-01": 0, "2000-01-02 06:00": 30 * 60, "2000-01-03T12:00:00": 60 * 60}
"""Minutes of each reference date."""


def list_targets() -> list[str]:
    """Return the names of the forms that can be appended to here."""
    try:
        import icechunk
    except ImportError:
        return [*TARGETS]
    recent = sys.version_info >= (3, 12) and icechunk.__version__ >= "2"
    return [*TARGETS, *(["refs.icechunk"] if recent else [])]


def times(case: Case, start: int, length: int, clock: tuple[str, str, str]) -> Variable:
    """Return times of a file, in its own unit: some with fractions, some missing, some packed."""
    random, (unit, epoch, calendar) = case.random, clock
    step = random.choice((24 * 60, 24 * 60, 12 * 60, 90, 1, 0.1))
    minutes = np.arange(start, start + length) * 24 * 60 + step
    numbers = (minutes - EPOCHS[epoch]) / SPANS[unit]
    whole = bool(np.all(numbers == np.rint(numbers)))
    dtype = random.choice(("i4", "i8", "f8", "f4") if whole else ("f8", "f8", "f4"))
    with np.errstate(all="ignore"):
        values = (np.rint(numbers) if dtype[0] == "i" else numbers).astype(dtype)
    attributes: dict[str, Any] = {"units": f"{unit} since {epoch}", "calendar": calendar}
    # Calendars without datetimes have no missing date; see docs/combining.md.
    if calendar in ("standard", "proleptic_gregorian") and case.chance(0.15):
        attributes["_FillValue"] = np.dtype(dtype).type(-999)
        values[np.random.default_rng(start).random(length) < 0.2] = -999
    return Variable(("t",), values, attributes, None, (max(random.randint(1, length), 1),))


def files(case: Case, count: int) -> list[Input]:
    """Write files that follow each other in time."""
    random = case.random
    dtype, clock = np.dtype(random.choice(NUMBERS)), None
    attributes = packing(random, dtype)
    fill = dtype.type(random.choice((0, 5))) if case.chance(0.3) else None
    text, has_bounds = random.choice((None,) * 7 + ("S3", object)), case.chance(0.4)
    made, start = [], 0
    for number in range(count):
        length = random.choice((1, 2, 3, 4, 4))
        forms = [form for form in GROUPS if text is None or form != "netcdf3"]
        form = random.choice(forms if text != "S3" else ["zarr2", "zarr3"])
        if clock is None or case.chance(0.35):
            calendar = clock[2] if clock and case.chance(0.8) else random.choice(CALENDARS)
            clock = (random.choice([*SPANS]), random.choice([*EPOCHS]), calendar)
        if case.chance(0.25):
            attributes = packing(random, dtype)
        if case.chance(0.12):
            dtype, fill = np.dtype(random.choice(NUMBERS)), None
            attributes = packing(random, dtype)
        variables = {"t": times(case, start, length, clock)}
        if has_bounds:
            low = variables["t"].values
            variables["b"] = Variable(("t", "n"), np.stack([low, low], 1), {}, None, (1, 2))
            variables["t"].attributes["bounds"] = "b"
        variables["v"] = variable(random, ("t", "x"), (length, 3), dtype=dtype, fill=fill,
                                  attributes=attributes, gaps=True)  # fmt: skip
        if text is not None:
            variables["w"] = variable(random, ("t",), (length,), dtype=text)
        start += length
        made.append(write(case.folder, number, form, variables, random))
        case.note(form, length, clock, variables["t"].values.tolist(), variables["t"].values.dtype,
                  made[-1].raw["v"].dtype, attributes, "chunks", variables["v"].chunks, "missing",
                  variables["v"].missing, "fill", fill, "w", text)  # fmt: skip
    return made


def run(seed: int, folder: Path) -> str:
    """Run the case of a seed, and return how it went; raise where something is not equal."""
    case = Case(Random(seed), folder)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return _run(case)
    except Refused as error:
        cause: Any = error.__cause__
        return f"{error}: {reason(cause)}"
    except Exception as error:
        error.add_note("\n".join([f"seed {seed}", *case.log]))
        raise


def _run(case: Case) -> str:
    random = case.random
    found = files(case, random.randint(2, 4))
    count = random.randint(1, len(found) - 1)
    target = case.folder / random.choice(list_targets())
    is_native = target.suffix == ".zarr"
    copies = {} if is_native or case.chance(0.15) else {"copy": True}
    options: dict[str, Any] = dict(copies)
    if not is_native:
        options |= {"regular": True} if case.chance(0.4) else {}
        options |= {"inline": random.choice((0, 1000))} if case.chance(0.3) else {}
        if target.suffix == ".json":
            options["zarr_format"] = random.choice((None, 2, 3))
    case.note("publish", count, "to", target.name, options)
    opened = [one.open() for one in found]
    first = opened[0] if count == 1 else _try("join", vz.concat, opened[:count], harmonize=True)
    _try("publish", first.publish, target, **options)
    before = decoded(vz.open(target))
    rest = [str(one.path) for one in found[count:]]
    for paths in [rest] if case.chance(0.5) else [[path] for path in rest]:
        try:
            _try("append", vz.append, target, paths, concat_dim="t", harmonize=True, **copies)
        except Refused:
            after = decoded(vz.open(target)).isel(t=slice(before.sizes["t"]))
            for name in before.variables:
                same(f"{name} after what was refused", after[name].values, before[name].values)
            raise
    grown = decoded(vz.open(target))
    check_decoded(grown, found)
    compare_with_join(opened, vz.open(target), grown)
    by_zarr_python(case, target, grown)
    return f"{target.name}: equal"


def _try(word: str, function: Any, *items: Any, **options: Any) -> Any:
    if word == "join":
        options["dim"] = "t"
    try:
        return joining(function, *items, **options)
    except Refused as error:
        raise Refused(f"{word} refused") from error.__cause__


def compare_with_join(opened: list[vz.Group], target: Any, grown: Any) -> None:
    """Compare what was appended with the join of all files; numbers, too, if they mean the same."""
    try:
        at_once = vz.concat(opened, dim="t", harmonize=True, combine_attrs="override")
    except VirtualZarrError:
        return  # What a join cannot bring to one unit may be exact in the one published.
    theirs = decoded(at_once)
    assert theirs.variables.keys() == grown.variables.keys(), "other variables"
    for name in theirs.variables:
        same(f"{name} as joined at once", grown[name].values, theirs[name].values)
        one, other = target[name], at_once[name]
        meanings = [{k: v for k, v in each.attrs.items() if k != "bounds"} for each in (one, other)]
        if meanings[0] == meanings[1] and one.metadata.zarr_format == other.metadata.zarr_format:
            same(f"numbers of {name} as joined at once", one[...], other[...])


def by_zarr_python(case: Case, target: Path, grown: Any) -> None:
    """Compare what xarray reads by zarr-python of references that grew."""
    if target.suffix == ".zarr" or not case.chance(0.5):
        return
    import xarray as xr
    import zarr

    if not hasattr(zarr.core.metadata.v3, "RectilinearChunkGridMetadata"):
        arrays = [array for _, array in vz.open(target).arrays()]  # type: ignore[union-attr]
        if any(not isinstance(array.chunks[0], int) for array in arrays if array.ndim):
            return
    with (
        zarr.config.set({"array.rectilinear_chunks": True}),
        xr.open_dataset(open_store(target), engine="zarr", chunks=None,
                        consolidated=False) as theirs,
    ):  # fmt: skip
        for name in grown.variables:
            if PRIVATE_FILL not in theirs[name].attrs:
                same(f"{name}, as zarr-python reads it", theirs[name].values, grown[name].values)


def open_store(target: Path) -> Any:
    """Return references as a store of zarr-python."""
    if target.suffix == ".icechunk":
        import icechunk

        storage = icechunk.local_filesystem_storage(str(target))
        config = icechunk.Repository.fetch_config(storage)
        places = dict.fromkeys(config.virtual_chunk_containers or {})
        repository = icechunk.Repository.open(
            storage, authorize_virtual_chunk_access=icechunk.containers_credentials(places)
        )
        return repository.readonly_session("main").store
    import fsspec
    import imagecodecs.numcodecs
    import zarr

    imagecodecs.numcodecs.register_codecs(verbose=False)
    packed = {"target_options": {"compression": "zstd"}} if target.suffix == ".zst" else {}
    fs = fsspec.filesystem("reference", fo=str(target), remote_protocol="file",
                           skip_instance_cache=True, asynchronous=False, **packed)  # fmt: skip
    return zarr.storage.FsspecStore.from_mapper(fs.get_mapper(""), read_only=True)


def find(seed: int, seconds: float) -> Iterator[tuple[int, str, Counter[str]]]:
    """Yield seeds that fail, with what happened, and counts of what went well until then."""
    stop, counts = monotonic() + seconds, Counter[str]()
    while monotonic() < stop:
        with tempfile.TemporaryDirectory() as folder:
            try:
                counts[re.sub(r"'\S+'", "...", run(seed, Path(folder)))] += 1
            except Exception as error:
                yield seed, "".join(traceback.format_exception(error, limit=-5)), counts
        seed += 1
    yield -1, "", counts
