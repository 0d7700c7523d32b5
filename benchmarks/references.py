"""Reference files: writing, opening and holding a million references."""

from __future__ import annotations

import importlib.util
import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks._table import Row, alternate, row
from grids import RegularGrid
from virtualzarr import Array, Group, Manifest
from virtualzarr.codecs import Pipeline, make
from virtualzarr.manifest import Source, Sources
from virtualzarr.metadata import ArrayMetadata
from virtualzarr.references.kerchunk import scan
from virtualzarr.references.publish import publish

FILES = 1000


def run(quick: bool = False) -> list[Row]:
    """Write references as JSON and open them again, in several styles."""
    count = 100_000 if quick else 1_000_000
    group = _group(count)
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "refs.json"
        rows.append(_written(group, path, count))
        document = json.loads(path.read_bytes())
        rows += _opened(path, document, count)
        array = group["air"]
        assert isinstance(array, Array)
        held = array.manifest.nbytes / count
        rows.append(Row("bytes of memory a reference", held, target="<= 20 B", unit="B"))
    return rows


def _group(count: int) -> Group:
    """A group of one array of chunks in many files."""
    side = int(count**0.5)
    grid = RegularGrid((side, side), (1, 1))
    random = np.random.default_rng(0)
    length = random.integers(30, 20_000, grid.grid_shape)
    offset = np.cumsum(length).reshape(length.shape) - length + 4096
    source = np.arange(grid.ncells).reshape(length.shape) * FILES // grid.ncells
    uris = Sources(Source(f"s3://some-bucket/some/where/deep/file_{i:04}.nc") for i in range(FILES))
    pipeline = Pipeline([make("bytes", endian="little"), make("numcodecs.zlib", level=1)])
    metadata = ArrayMetadata(grid.shape, "f4", grid, pipeline, dimension_names=("y", "x"))
    manifest = Manifest(grid.grid_shape, uris, source, offset, length)
    return Group({}, {"air": Array.from_manifest(metadata, manifest)})


def _written(group: Group, path: Path, count: int) -> Row:
    publish(group, path)
    document = json.loads(path.read_bytes())
    works: dict[str, Callable[[], Any]] = {
        "ours": lambda: publish(group, path),
        "json.dumps": lambda: json.dumps(document),
    }
    if importlib.util.find_spec("ujson"):
        import ujson

        works["ujson.dumps"] = lambda: ujson.dumps(document)
    if importlib.util.find_spec("virtualizarr") and importlib.util.find_spec("kerchunk"):
        works["VirtualiZarr"] = _virtualizarr_write(group, path.with_name("theirs.json"))
    return row(f"write {count:,} references", alternate(works, 3), "<= 1.5 x json.dumps")


def _opened(path: Path, document: Any, count: int) -> list[Row]:
    """Open the same references in the styles of several writers."""
    texts = {
        "as we write them": path.read_bytes(),
        "as json.dumps writes them": json.dumps(document).encode(),
        "with an indent": json.dumps(document, indent=2).encode(),
        "with slashes escaped, as ujson": json.dumps(document, separators=(",", ":"))
        .replace("/", "\\/")
        .encode(),
        "whole files": _whole_files(count),
    }
    rows = []
    for name, text in texts.items():
        other = path.with_name("other.json")
        other.write_bytes(text)
        works: dict[str, Callable[[], Any]] = {
            "ours": lambda: scan(other),  # noqa: B023
            "json.loads": lambda: json.loads(other.read_bytes()),  # noqa: B023
        }
        if name == "as we write them":
            works |= _peers(path)
        rows.append(row(f"open {count:,} references {name}", alternate(works, 3), "<= 1.2 x json"))
    return rows


def _whole_files(count: int) -> bytes:
    """A document of references to whole files, which no array operation looks at."""
    side = int(count**0.5)
    array = {
        "zarr_format": 2, "shape": [side, side], "chunks": [1, 1], "dtype": "|u1", "order": "C",
        "compressor": None, "filters": None, "fill_value": None,
    }  # fmt: skip
    refs: dict[str, Any] = {".zgroup": {"zarr_format": 2}, "air/.zarray": array}
    refs |= {f"air/{i}.{j}": [f"s3://b/{i}/{j}.bin"] for i in range(side) for j in range(side)}
    return json.dumps({"version": 1, "refs": refs}).encode()


def _peers(path: Path) -> dict[str, Callable[[], Any]]:
    works: dict[str, Callable[[], Any]] = {}
    if importlib.util.find_spec("ujson"):
        import ujson

        works["ujson.loads"] = lambda: ujson.loads(path.read_bytes())
    import fsspec

    works["fsspec"] = lambda: fsspec.filesystem("reference", fo=str(path), fs=_Nothing.fs())
    return works


class _Nothing:
    """A file system for fsspec to find, so that it does not look for S3's package."""

    @staticmethod
    def fs() -> Any:
        import fsspec

        return fsspec.filesystem("memory")


def _virtualizarr_write(group: Group, path: Path) -> Callable[[], Any]:
    """Write the same with VirtualiZarr, from its own columns."""
    import xarray as xr
    from virtualizarr.manifests import ChunkManifest, ManifestArray
    from virtualizarr.manifests.utils import create_v3_array_metadata

    array = group["air"]
    assert isinstance(array, Array)
    ours = array.manifest
    uris = np.array([source.uri for source in ours.sources], np.dtypes.StringDType())
    manifest = ChunkManifest.from_arrays(
        paths=uris[np.asarray(ours.source)],
        offsets=np.asarray(ours.offset).astype(np.uint64),
        lengths=np.asarray(ours.length).astype(np.uint64),
    )
    metadata = create_v3_array_metadata(
        shape=array.shape,
        chunk_shape=(1, 1),
        data_type=np.dtype("f4"),
        codecs=[{"name": "numcodecs.zlib", "configuration": {"level": 1}}],
    )
    data = ManifestArray(metadata=metadata, chunkmanifest=manifest)
    dataset = xr.Dataset({"air": (("y", "x"), data)})
    return lambda: dataset.vz.to_kerchunk(str(path), format="json")


if __name__ == "__main__":
    from benchmarks._table import show

    print(show(run()))
