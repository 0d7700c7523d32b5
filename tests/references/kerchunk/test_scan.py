"""Opening reference files: files, errors, odd and hostile documents."""

from __future__ import annotations

import gzip
import json

import numpy as np
import pytest

import virtualzarr as vz
from tests.references.kerchunk.documents import ALWAYS, GROUP, NEVER, looking_at, zarr_json, zarray
from tests.references.kerchunk.test_vectors import listed
from virtualzarr.errors import (
    BadReferenceError,
    MetadataError,
    SkippedVariableWarning,
    SourceError,
    SourceNotFoundError,
    UnsupportedError,
)
from virtualzarr.references.kerchunk import scan

BASE = {".zgroup": GROUP, "x/.zarray": zarray([4], [1])}


def written(folder, text):
    path = folder / "refs.json"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


@pytest.mark.parametrize(
    "text",
    [
        "", "{", "[]", "null", "5", '{"a":}', "{}", '{"refs":{}}', '{"version":1}', "\ufeff{",
        "[" * 100_000,
        '{"a":' * 100_000, '{"version":1,"refs":[]}', '{"version":1,"refs":{},"gen":{}}',
        '{"version":1,"refs":{},"templates":[]}', '{"version":1,"refs":{},"virtualzarr":5}', "\x80",
        '{"a":' + "9" * 5000 + "}", '{"version":"1","refs":{}}', '{"version":true,"refs":{}}',
    ],
)  # fmt: skip
def test_what_is_no_reference_file(text, tmp_path):
    path = written(tmp_path, text)
    with pytest.raises(BadReferenceError) as caught:
        scan(path)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("smallest", [ALWAYS, NEVER])
@pytest.mark.parametrize("times", [2, 3])
def test_a_repeated_key_is_an_error(smallest, times, tmp_path):
    head = json.dumps(BASE)[:-1]
    lines = [f'"x/{i}":["s3://b/f",{i},1]' for i in (0, 1, *[2] * times, 3)]
    text = head + "," + ",".join(lines) + "}" + " " * 200
    with looking_at(smallest), pytest.raises(BadReferenceError, match=r"x/2"):
        scan(written(tmp_path, text))


@pytest.mark.parametrize("key", ["x/.zarray", "s/c"])
def test_a_repeated_key_is_an_error_when_one_is_no_regular_chunk(key, tmp_path):
    refs = BASE | {"s/zarr.json": zarr_json([], [])} | {"s/c": "a"}
    head = json.dumps(refs)[:-1]
    lines = [f'"x/{i}":["s3://b/f",{i},1]' for i in range(3)] + [f'"{key}":["/d/f",0,9]']
    text = head + "," + ",".join([*lines, '"x/3":["s3://b/f",9,1]']) + "}" + " " * 200
    for smallest in (ALWAYS, NEVER):
        with looking_at(smallest), pytest.raises(BadReferenceError, match="more than once"):
            scan(written(tmp_path, text))


def test_a_repeated_key_within_metadata_is_an_error(tmp_path):
    text = '{".zgroup":{"zarr_format":2,"zarr_format":2}}'
    with pytest.raises(BadReferenceError, match="zarr_format"):
        scan(written(tmp_path, text))


def test_missing_files(tmp_path):
    with pytest.raises(SourceNotFoundError):
        scan(tmp_path / "none.json")
    with pytest.raises(SourceError):
        scan(tmp_path)


def test_truncated_compressed_files(tmp_path):
    zstandard = pytest.importorskip("zstandard")
    text = json.dumps(BASE | {f"x/{i}": ["s3://b/f", i, 1] for i in range(4)}).encode()
    for data in (gzip.compress(text), zstandard.compress(text)):
        for cut in (5, len(data) // 2, len(data) - 15):
            with pytest.raises(BadReferenceError):
                scan(written(tmp_path, data[:cut]))


def test_a_gzip_file_of_several_members(tmp_path):
    text = json.dumps(BASE).encode()
    data = gzip.compress(text[:50]) + gzip.compress(text[50:])
    assert scan(written(tmp_path, data))["x"].shape == (4,)


def test_a_gzip_file_without_its_checksum_is_an_error(tmp_path):
    with pytest.raises(BadReferenceError, match="early"):
        scan(written(tmp_path, gzip.compress(json.dumps(BASE).encode())[:-8]))


def test_bombs_are_refused(tmp_path):
    zstandard = pytest.importorskip("zstandard")
    bomb = b" " * (1 << 24)
    for data in (gzip.compress(bomb), zstandard.compress(bomb)):
        limited = vz.config.limits.set(document_bytes=1 << 16)
        with limited, pytest.raises(BadReferenceError, match="more than"):
            scan(written(tmp_path, data))


def test_values_are_read_from_local_files(tmp_path):
    data = np.arange(20, dtype="<i4")
    (tmp_path / "data.bin").write_bytes(b"head" + data.tobytes())
    refs = {".zgroup": GROUP, "x/.zarray": zarray([4, 5], [2, 5], "<i4")}
    refs |= {f"x/{i}.0": [str(tmp_path / "data.bin"), 4 + 40 * i, 40] for i in range(2)}
    (tmp_path / "whole").write_bytes(data.tobytes())
    refs |= {"y/.zarray": zarray([20], [20], "<i4"), "y/0": [f"file://{tmp_path}/whole"]}
    group = scan(written(tmp_path, json.dumps({"version": 1, "refs": refs})))
    assert np.array_equal(group["x"][:], data.reshape(4, 5))
    assert np.array_equal(group["y"][3:7], data[3:7])


def test_a_source_that_changed_its_size_is_an_error(tmp_path):
    (tmp_path / "data").write_bytes(b"abcd")
    refs = BASE | {f"x/{i}": [str(tmp_path / "data"), i, 1] for i in range(4)}
    sizes = {"sizes": {str(tmp_path / "data"): 4}}
    path = written(tmp_path, json.dumps({"version": 1, "refs": refs, "virtualzarr": sizes}))
    assert scan(path)["x"][:].tobytes() == b"abcd"
    (tmp_path / "data").write_bytes(b"abcde")
    with pytest.raises(SourceError, match="changed"):
        scan(path)["x"][:]


def test_on_error_warn_leaves_out_what_is_wrong():
    refs = {
        **BASE,
        "x/0": ["s3://b/f", 0],
        "bad/.zarray": "{",
        "bad/0": ["s3://b/f", 0, 1],
        "odd/.zarray": zarray([1], [1]),
        "odd/0": ["github://f", 0, 1],
        "good/.zarray": zarray([2], [1]),
        "good/1": ["s3://b/f", 0, 1],
        "stray/0": ["s3://b/f", 0, 1],
    }
    with pytest.warns(SkippedVariableWarning) as warned:
        group = scan({"version": 1, "refs": refs}, on_error="warn")
    assert list(group) == ["good"]
    assert set(group.skipped) >= {"x", "bad", "odd"}
    assert len(warned) == 3
    assert group.ignored_keys == 1
    assert "Ignored    : 1 key," in group.info
    assert listed(group["good"].manifest) == [None, ["s3://b/f", 0, 1]]
    with pytest.raises(ValueError, match="on_error"):
        scan({"version": 1, "refs": BASE}, on_error="ignore")


@pytest.mark.parametrize("smallest", [ALWAYS, NEVER])
@pytest.mark.parametrize("value", [["/d/f"], ["/d/f", 3, 1]])
def test_a_v3_scalar_among_other_members(smallest, value, tmp_path):
    refs = BASE | {"s/zarr.json": zarr_json([], [])} | {"s/c": value}
    refs |= {f"x/{i}": [*value[:1], *value[1:]] for i in range(4)}
    with looking_at(smallest):
        group = scan(written(tmp_path, json.dumps(refs) + " " * 200))
    assert listed(group["s"].manifest) == [[*value, 0, -1][:3]]


@pytest.mark.parametrize("smallest", [ALWAYS, NEVER])
def test_metadata_by_reference(smallest, tmp_path):
    (tmp_path / "zarray").write_text("  " + zarray([3], [1]))
    zarray_ref = [str(tmp_path / "zarray"), 2, len(zarray([3], [1]))]
    refs = {".zgroup": GROUP, "x/.zarray": zarray_ref}
    refs |= {f"x/{i}": ["s3://b/f", i, 1] for i in range(3)}
    with looking_at(smallest):
        group = scan(written(tmp_path, json.dumps(refs) + " " * 200))
    assert listed(group["x"].manifest) == [["s3://b/f", i, 1] for i in range(3)]


@pytest.mark.parametrize("uri", [7, None, 2.5, True, [], {}])
@pytest.mark.parametrize("templates", [{}, {"u": "s3://b/f"}])
def test_what_is_no_text_is_no_url(uri, templates, tmp_path):
    for key in ("x/.zarray", "x/0"):
        refs = {**BASE, key: [uri, 0, 1]}
        path = written(tmp_path, json.dumps({"version": 1, "refs": refs, "templates": templates}))
        with pytest.raises(BadReferenceError, match="refs"):
            scan(path)


def test_a_grid_with_absurdly_many_cells_costs_no_memory():
    refs = {".zgroup": GROUP, "x/.zarray": zarray([10**15], [1])}
    array = scan(refs)["x"]
    assert array.manifest.nbytes < 100
    assert array[10**14] == 0
    with pytest.raises(UnsupportedError, match="sparse"):
        scan(refs | {"x/5": ["s3://b/f", 0, 1]})


def test_members_of_many_arrays_mixed(tmp_path):
    refs = {".zgroup": GROUP}
    refs |= {f"g/v{v}/.zarray": zarray([5, 3], [1, 1]) for v in range(7)}
    refs |= {f"w{v}/zarr.json": zarr_json([5, 3], [1, 1]) for v in range(7)}
    refs |= {
        f"g/v{v}/{t}.{y}": [f"s3://b/{t}", v, y]
        for t in range(5)
        for y in range(3)
        for v in range(7)
    }
    refs |= {
        f"w{v}/c/{t}/{y}": [f"s3://c/{t}", v, y]
        for t in range(5)
        for y in range(3)
        for v in range(7)
    }
    with looking_at(ALWAYS):
        group = scan(written(tmp_path, json.dumps(refs)))
    for v in range(7):
        for path, bucket in ((f"g/v{v}", "b"), (f"w{v}", "c")):
            expected = [[f"s3://{bucket}/{t}", v, y] for t in range(5) for y in range(3)]
            assert listed(group[path].manifest) == expected


def test_columns_that_are_constant_take_no_memory():
    refs = {".zgroup": GROUP, "x/.zarray": zarray([1000], [1])}
    refs |= {f"x/{i}": ["s3://b/f", i, 1] for i in range(1000)}
    assert scan(refs)["x"].manifest.nbytes < 8100


def test_names_of_nodes_that_lead_elsewhere_are_refused():
    for name in ("../x", "x/../y", "x//y", "/x", "./x"):
        with pytest.raises((BadReferenceError, MetadataError)):
            scan({".zgroup": GROUP, f"{name}/.zarray": zarray([1], [1])})
