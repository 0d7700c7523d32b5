"""Reference files that are compressed are known by what they hold, or by their names."""

import gzip
import json
import random

import numpy as np
import pytest
import zstandard

import virtualzarr as vz
from virtualzarr.errors import AccessError, SkippedVariableWarning, UnsupportedError
from virtualzarr.ingest.detect import detect

ARRAY = {"zarr_format": 2, "shape": [4], "chunks": [4], "dtype": "|u1", "compressor": None,
         "fill_value": 0, "order": "C", "filters": None}  # fmt: skip


def refs(arrays=1, target="abcd"):
    found = {".zgroup": '{"zarr_format": 2}'}
    for k in range(arrays):
        found |= {f"x{k}/.zarray": json.dumps(ARRAY), f"x{k}/0": target}
    return found


@pytest.mark.parametrize("long", [False, True])
@pytest.mark.parametrize("ending", [".json.zst", ".json.zstd", ".json.gz", ".json", ""])
def test_compressed_references_are_opened(tmp_path, ending, long):
    document = {"version": 1, "refs": refs()}
    if long:  # and so random that no block of it ends soon
        chance = random.Random(0)
        document["refs"] |= {f"x0/{k}.skipped": chance.randbytes(40).hex() for k in range(4000)}
        document["refs"] = {k: v for k, v in document["refs"].items() if "skipped" not in k} | {
            ".zattrs": json.dumps({"noise": chance.randbytes(200_000).hex()})
        }
    text = json.dumps(document).encode()
    pack = gzip.compress if "gz" in ending else zstandard.compress
    path = tmp_path / f"refs{ending}"
    path.write_bytes(text if ending == ".json" else pack(text))
    if long and not ending:
        with pytest.raises(UnsupportedError):
            detect(path)
        group = vz.open(path, format="kerchunk")
    else:
        assert detect(path) == "kerchunk"
        group = vz.open(path)
    assert np.array_equal(group["x0"][...], list(b"abcd"))


def test_frames_follow_one_another(tmp_path):
    text = json.dumps({"version": 1, "refs": refs()}).encode()
    parts = [text[:40], text[40:]]
    (tmp_path / "a.json.zst").write_bytes(b"".join(map(zstandard.compress, parts)))
    assert np.array_equal(vz.open(tmp_path / "a.json.zst")["x0"][...], list(b"abcd"))


def test_what_is_compressed_and_no_references(tmp_path):
    files = {
        "a.gz": gzip.compress(b"hello"), "a.zst": zstandard.compress(b"hello"),
        "b.gz": b"\x1f\x8b rubbish", "b.zst": b"\x28\xb5\x2f\xfd rubbish",
    }  # fmt: skip
    for name, data in files.items():
        (tmp_path / name).write_bytes(data)
        with pytest.raises(UnsupportedError, match="no known format"):
            vz.open(tmp_path / name)


def test_nothing_left_is_an_error_that_names_each_array(tmp_path, http_server):
    (tmp_path / "a.bin").write_bytes(b"abcd")
    document = refs(3, [str(tmp_path / "a.bin"), 0, 4])
    (tmp_path / "refs.json").write_text(json.dumps(document))
    url = http_server(tmp_path) + "/refs.json"
    with (
        pytest.warns(SkippedVariableWarning) as warned,
        pytest.raises(AccessError, match="local file"),
    ):
        vz.open(url, on_error="warn")
    for k in range(3):
        assert any(f"variable x{k}, chunk x{k}/0]" in str(each.message) for each in warned)
    # What is left is worth having.
    document |= {"y/.zarray": json.dumps(ARRAY), "y/0": "abcd"}
    (tmp_path / "refs.json").write_text(json.dumps(document))
    with pytest.warns(SkippedVariableWarning):
        assert [*vz.open(url, on_error="warn")] == ["y"]
