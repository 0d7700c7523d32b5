"""Opening: what reference files may reach is the caller's to say."""

import json

import pytest

import virtualzarr as vz
from virtualzarr.errors import AccessError


def test_allowed_places_of_reference_files(tmp_path):
    for folder in ("inside", "outside"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "a.bin").write_bytes(bytes([1, 2, 3]))
    zarray = {
        "zarr_format": 2, "shape": [3], "chunks": [3], "dtype": "|u1", "fill_value": 0,
        "order": "C", "compressor": None, "filters": None,
    }  # fmt: skip
    refs = {
        ".zgroup": {"zarr_format": 2},
        "x/.zarray": zarray,
        "x/0": [str(tmp_path / "outside" / "a.bin"), 0, 3],
    }
    path = tmp_path / "refs.json"
    path.write_text(json.dumps({"version": 1, "refs": refs}))
    assert vz.open(path)["x"][...].tolist() == [1, 2, 3]
    assert vz.open(path, allowed=str(tmp_path / "outside"))["x"][...].tolist() == [1, 2, 3]
    with pytest.raises(AccessError, match="outside"):
        vz.open(path, allowed=[str(tmp_path / "inside")])
