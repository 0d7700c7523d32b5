"""Table of clients: which chains of codecs, kinds of elements and forms each was seen to read."""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

import virtualzarr as vz
from tests.interop.collection import FORMS, all_targets, ask, mirror
from tests.references.arrays import BIG, LITTLE, SHUFFLE4, ZLIB, virtual
from virtualzarr.errors import PublishError
from virtualzarr.hierarchy.group import Group
from virtualzarr.references.clients import PYTHON, list_features, read_table
from virtualzarr.verification.report import ClientResult
from virtualzarr.verification.run_probe import as_target
from virtualzarr.verification.samples import take_sample

VALUES = np.arange(35, dtype="<i4").reshape(7, 5)
CHUNKS = (4, 3)


def values_of(chain: str) -> Any:
    """The elements that a chain encodes."""
    return (VALUES * (1 + 2j)).astype("c8") if "complex" in chain else VALUES


def codec(name: str, **configuration: Any) -> dict[str, Any]:
    """A codec as documents have it."""
    return {"name": name, "configuration": configuration}


CHAINS: dict[str, list[dict[str, Any]]] = {
    "none": [LITTLE],
    "big-endian": [BIG],
    "big-endian complex": [BIG],
    "F order": [codec("transpose", order=[1, 0]), LITTLE],
    "zlib": [LITTLE, ZLIB],
    "shuffle, zlib": [LITTLE, SHUFFLE4, ZLIB],
    "gzip": [LITTLE, codec("gzip", level=1)],
    "zstd": [LITTLE, codec("zstd", level=1, checksum=False)],
    "blosc": [LITTLE, codec("blosc", cname="lz4", clevel=5, shuffle="shuffle", typesize=4,
                            blocksize=0)],
    "lz4": [LITTLE, codec("numcodecs.lz4", acceleration=1)],
    "bz2": [LITTLE, codec("numcodecs.bz2", level=1)],
    "lzma": [LITTLE, codec("numcodecs.lzma")],
    "fletcher32": [LITTLE, codec("numcodecs.fletcher32")],
    "crc32": [LITTLE, codec("numcodecs.crc32")],
    "crc32c": [LITTLE, codec("crc32c")],
    "delta": [codec("numcodecs.delta", dtype="<i4"), LITTLE],
    "scaled": [codec("numcodecs.fixedscaleoffset", offset=3, scale=1, dtype="<i4", astype="<i4"),
               LITTLE],
}  # fmt: skip


def publish_chains(root: Path, folder: Path, zarr_format: int, word: str) -> dict[str, Path]:
    """Publish an array for each chain, and write its keys as files of one hierarchy.

    Chains that the format cannot say are left out. There is no consolidated metadata: one array
    that a client does not know would hide all others.
    """
    vz.create_group(root, zarr_format=zarr_format)
    found = {}
    for number, (name, chain) in enumerate(CHAINS.items()):
        # netCDF-C opens nothing of a hierarchy that has complex numbers somewhere.
        if ("complex" in name) != bool(word):
            continue
        array = virtual(folder / f"{number}.bin", values_of(name), CHUNKS, chain,
                        dimension_names=("y", "x"))  # fmt: skip
        refs = folder / f"{number}-{zarr_format}.json"
        try:
            Group({}, {"a": array}).publish(refs, zarr_format=zarr_format)
        except PublishError:
            continue
        found[name] = mirror(refs, root / f"c{number}")
    return found


def probe(
    folder: Path, clients: Mapping[str, str], zarr_format: int
) -> Iterator[tuple[str, str, dict[str, bool]]]:
    """Yield, by client, its version, and which chains it reads in a format."""
    targets, arrays = [], []
    for word in ("", "complex"):
        root = folder / f"v{zarr_format}{word}"
        found = publish_chains(root, folder, zarr_format, word)
        arrays.append({f"{path.name}/a": vz.open(path)["a"] for path in found.values()})
        samples = [take_sample(path, array, full=True) for path, array in arrays[-1].items()]
        request = {"target": str(root), "form": "zarr", "zarr_format": zarr_format}
        targets.append((as_target(request, samples), samples))
    for client, where in clients.items():
        for result, asked in zip(ask(client, where, targets), arrays, strict=False):
            print_wrong(result)
            if not result.version:
                raise RuntimeError(f"{client} did not start: {dict(result.refused)}")
            if result.status != "unsupported":
                yield client, result.version, {
                    "+".join(list_features(array.metadata)): path in result.equal
                    for path, array in asked.items()
                }  # fmt: skip


def print_wrong(result: ClientResult) -> None:
    """Print what a client reads otherwise than we do."""
    if result.wrong:
        print(f"WRONG: {result.client} {result.version}: {dict(result.wrong)}", flush=True)


KINDS: dict[str, Any] = {
    **{name: np.arange(6).reshape(2, 3).astype(name) for name in (
        "bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64",
        "float16", "float32", "float64", "complex64", "complex128")},
    "fixed bytes": np.array([[b"a", b"bc", b"d\xe9f"]] * 2),
    "fixed text": np.array([["a", "bc", "üef"]] * 2),
    "raw bytes": np.array([[b"a", b"bc", b"def"]] * 2, "V3"),
    "text": np.array([["a", "bc", "üef"]] * 2, object),
    "bytes": np.array([[b"a", b"bc", b"def"]] * 2, object),
    "fields": np.array([[(1, 2.5)] * 3] * 2, [("a", "<i4"), ("b", "<f8")]),
    "datetime64": np.arange(6).reshape(2, 3).astype("M8[s]"),
    "timedelta64": np.arange(6).reshape(2, 3).astype("m8[ms]"),
    "big-endian fields": np.array([[(1, 2.5)] * 3] * 2, [("a", ">i4"), ("b", "<f8")]),
    "no dimensions": np.array(5, "i4"),
    "one dimension": np.arange(5, dtype="i4"),
    "no elements": np.zeros((0, 4), "i4"),
    "unnamed dimensions": np.arange(6, dtype="i4").reshape(2, 3),
}  # fmt: skip


def write_kinds(root: Path, zarr_format: int) -> dict[str, str]:
    """Write a hierarchy for each kind of elements or shape, and return the paths of arrays."""
    paths = {}
    for number, (name, values) in enumerate(KINDS.items()):
        dtype = {"text": str, "bytes": bytes}.get(name, values.dtype)
        names = None if name == "unnamed dimensions" else ("y", "x")[2 - values.ndim :]
        # A hierarchy of its own: some clients open nothing beside what they do not know.
        group = vz.create_group(root / f"k{number}", zarr_format=zarr_format)
        array = group.create_array(
            "a", shape=values.shape, dtype=dtype, chunks=(2,) * values.ndim, compressors=None,
            dimension_names=names,
        )  # fmt: skip
        array[...] = values
        paths[name] = f"k{number}"
    return paths


def write_neighbours(root: Path, zarr_format: int) -> None:
    """Write a group with two arrays, of which one has a codec that no client knows."""
    group = vz.create_group(root, zarr_format=zarr_format)
    other = {2: {"id": "bz2", "level": 1}, 3: codec("zstd", level=1, checksum=False)}
    for name, compressor in (("a", None), ("strange", other[zarr_format])):
        group.create_array(name, data=VALUES, chunks=CHUNKS, compressors=compressor,
                           dimension_names=("y", "x"))  # fmt: skip
    group.consolidate_metadata()
    names = (".zmetadata", ".zarray", "zarr.json")
    for document in [path for path in root.rglob("*") if path.name in names]:
        text = document.read_text().replace('"bz2"', '"nobody.has"')
        document.write_text(text.replace('"zstd"', '"nobody.has"'))


def probe_kinds(
    folder: Path, clients: Mapping[str, str], zarr_format: int
) -> Iterator[tuple[str, dict[str, bool], bool]]:
    """Yield, by client, which kinds it reads in a format, and whether beside what is unknown."""
    roots = [
        folder / "kinds" / path for path in write_kinds(folder / "kinds", zarr_format).values()
    ]
    write_neighbours(folder / "beside", zarr_format)
    targets = []
    for root in [*roots, folder / "beside"]:
        samples = [take_sample("a", vz.open(root)["a"], full=True)]
        request = {"target": str(root), "form": "zarr", "zarr_format": zarr_format}
        targets.append((as_target(request, samples), samples))
    for client, where in clients.items():
        results = list(ask(client, where, targets))
        for result in results:
            print_wrong(result)
        if not all(result.version for result in results):
            raise RuntimeError(f"{client} did not start")
        if results and results[0].status != "unsupported":
            reads = [result.status == "equal" for result in results]
            yield client, dict(zip(KINDS, reads, strict=False)), reads[-1]


def probe_forms(clients: Mapping[str, str]) -> Iterator[tuple[ClientResult, str]]:
    """Yield how each client reads uncompressed numbers in each form."""
    with all_targets(["plain"], FORMS) as (_, targets):
        for (client, where), (form, some) in itertools.product(clients.items(), targets.items()):
            for result in ask(client, where, [(t.wanted, t.samples) for t in some]):
                print_wrong(result)
                yield result, form


def list_rows() -> list[str]:
    """Return the rows of the table in the documentation."""
    table = {name: entry for name, entry in read_table().items() if "kinds" in entry}
    names = sorted(table, key=lambda name: (name not in PYTHON, name))
    versions = [f"{name} {table[name]['version']}" for name in names]
    rows = [f"| codecs | {' | '.join(versions)} |", f"|---|{'---|' * len(versions)}"]
    chains = list(dict.fromkeys(chain for name in names for chain in table[name]["2"]))
    for chain in sorted(chains):
        cells = []
        for name in names:
            reads = [table[name][zarr_format].get(chain, False) for zarr_format in ("2", "3")]
            known = [
                f"v{zarr_format}" for zarr_format, yes in zip((2, 3), reads, strict=True) if yes
            ]
            cells.append(", ".join(known) or "-")
        rows.append(f"| {chain.replace('+', ', ')} | {' | '.join(cells)} |")
    return rows


DOCUMENT = Path(__file__).parents[2] / "docs" / "publishing.md"


def fill_document(text: str) -> str:
    """Put the tables where the documentation asks for them."""
    tables = {"forms": list_form_rows(), "codecs": list_rows(), "elements": list_kind_rows()}
    for name, rows in tables.items():
        head, mark, rest = text.partition(f"<!-- clients: {name} -->\n")
        _, end, tail = rest.partition("<!-- end -->")
        text = "".join((head, mark, "\n", "\n".join(rows), "\n\n", end, tail))
    return text


def list_form_rows() -> list[str]:
    """Return the rows of the table of forms in the documentation."""
    table = read_table()
    rows = [f"| client | {' | '.join(FORMS)} |", f"|---|{'---|' * len(FORMS)}"]
    for name, entry in sorted(table.items()):
        cells = ["yes" if entry["forms"].get(form) else "-" for form in FORMS]
        rows.append(f"| {name} {entry['version']} | {' | '.join(cells)} |")
    return rows


def list_kind_rows() -> list[str]:
    """Return the rows of the table of elements and shapes in the documentation."""
    table = {name: entry for name, entry in read_table().items() if "kinds" in entry}
    names = sorted(table)
    rows = [f"| elements | {' | '.join(names)} |", f"|---|{'---|' * len(names)}"]
    for kind in KINDS:
        cells = []
        for name in names:
            kinds = table[name]["kinds"]
            formats = [f"v{f}" for f in "23" if kinds.get(f, {}).get(kind)]
            cells.append(", ".join(formats) or "-")
        rows.append(f"| {kind} | {' | '.join(cells)} |")
    return rows


def fill_table(clients: Mapping[str, str]) -> dict[str, Any]:
    """Return the table: by client its version, and what it reads."""
    table: dict[str, Any] = {}
    for zarr_format, key in ((2, "2"), (3, "3")):
        with tempfile.TemporaryDirectory() as folder:
            for name, version, reads in probe(Path(folder), clients, zarr_format):
                print(key, name, version, sum(reads.values()), "of", len(reads), flush=True)
                entry = table.setdefault(
                    name, {"2": {}, "3": {}, "forms": {}, "kinds": {"2": {}, "3": {}},
                           "beside": {"2": False, "3": False}}
                )  # fmt: skip
                entry["version"] = version
                entry[key] |= reads
            for name, kinds, beside in probe_kinds(Path(folder), clients, zarr_format):
                print(key, name, sum(kinds.values()), "kinds", beside, flush=True)
                table[name]["kinds"][key], table[name]["beside"][key] = kinds, beside
    for result, form in probe_forms(clients):
        # The engine kerchunk opens references only, and reads them by zarr-python.
        entry = table.setdefault(result.client, {"version": result.version, "forms": {}})
        entry["forms"][form] = result.status == "equal"
    return table
