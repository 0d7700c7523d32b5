"""Which clients read which codecs in which Zarr format: the table that `portable=` goes by.

Run as ``python -m tests.interop.matrix [PYTHON ...]``: it asks the clients of this interpreter,
and of others that are named, and writes the table: where two have the same client, of the last.
"""

from __future__ import annotations

import base64
import itertools
import json
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

import virtualzarr as vz
from tests.references.arrays import BIG, LITTLE, SHUFFLE4, ZLIB, virtual
from virtualzarr.errors import PublishError
from virtualzarr.hierarchy.group import Group
from virtualzarr.references.clients import PYTHON, TABLE, list_features, read_table
from virtualzarr.verification.run_probe import all_clients, run_client
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


def mirror(refs: Path, target: Path) -> Path:
    """Write what references refer to as a hierarchy of files."""
    references = json.loads(refs.read_text())["refs"]
    references.pop(".zmetadata", None)
    for key, value in references.items():
        if isinstance(value, str):
            inline = value.startswith("base64:")
            data = base64.b64decode(value[7:]) if inline else value.encode()
        else:
            with open(value[0], "rb") as file:
                # A whole file has neither offset nor length.
                offset, length = value[1:] or (0, -1)
                file.seek(offset)
                data = file.read(length)
        path = target / key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return target


def probe(
    folder: Path, pythons: list[str], clients: Iterable[str], zarr_format: int
) -> Iterator[tuple[str, str, dict[str, bool]]]:
    """Yield, by client, its version, and which chains it reads in a format."""
    for word in ("", "complex"):
        root = folder / f"v{zarr_format}{word}"
        chains = publish_chains(root, folder, zarr_format, word)
        yield from _probe(root, chains, pythons, clients, zarr_format)


def _probe(
    root: Path,
    found: Mapping[str, Path],
    pythons: list[str],
    clients: Iterable[str],
    zarr_format: int,
) -> Iterator[tuple[str, str, dict[str, bool]]]:
    arrays = {f"{path.name}/a": vz.open(path)["a"] for path in found.values()}
    samples = [take_sample(path, array, full=True) for path, array in arrays.items()]
    request = {"target": str(root), "form": "zarr", "zarr_format": zarr_format}
    for python, client in itertools.product(pythons, clients):
        # What is built on zarr-python is asked once: xarray and dask refuse version 2.
        if python != pythons[0] and client in ("dask", "xarray", "kerchunk"):
            continue
        result = run_client(client, python, request, samples, timeout=300, memory=0)
        if result.status in ("missing", "unsupported"):
            continue
        if result.wrong:
            print(f"WRONG: {client} {result.version}: {result.wrong}")
        name = "zarr2" if client == "zarr" and result.version.startswith("2.") else client
        yield name, result.version, {
            "+".join(list_features(array.metadata)): path in result.equal
            for path, array in arrays.items()
        }  # fmt: skip


def fill_table(pythons: list[str]) -> dict[str, Any]:
    """Return the table: by client its version, and by format which chains it reads."""
    table: dict[str, Any] = {}
    for zarr_format in (2, 3):
        with tempfile.TemporaryDirectory() as folder:
            probes = probe(Path(folder), pythons, all_clients(), zarr_format)
            for name, version, reads in probes:
                print(zarr_format, name, version, sum(reads.values()), "of", len(reads), flush=True)
                entry = table.setdefault(name, {"version": version, "2": {}, "3": {}})
                # Of two versions, the one that was named last.
                entry["version"] = version
                entry[str(zarr_format)] |= reads
    return table


def list_rows() -> list[str]:
    """Return the rows of the table in the documentation."""
    table = read_table()
    names = sorted(table, key=lambda name: (name not in PYTHON, name))
    versions = [f"{name} {table[name]['version']}" for name in names]
    rows = [f"| codecs | {' | '.join(versions)} |"]
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


def main() -> None:
    """Write the table, and print that of the documentation."""
    table = fill_table([sys.executable, *sys.argv[1:]])
    TABLE.write_text(json.dumps(table, indent=1, sort_keys=True) + "\n")
    read_table.cache_clear()
    print("\n".join(list_rows()))


if __name__ == "__main__":
    main()
