"""Groups of all kinds in all forms: clients read what we read, or refuse what the table says."""

from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path

import pytest

import virtualzarr as vz
from tests.interop.client_table import DOCUMENT, fill_document
from tests.interop.collection import FORMS, all_targets, list_names
from tests.interop.generated_groups import list_makers
from tests.interop.matrix import ask_all
from tests.interop.real_groups import FILES
from virtualzarr.references.clients import TABLE, predict_refusals, read_table
from virtualzarr.serve import create_app, run_in_thread
from virtualzarr.verification.verify import choose_clients

pytestmark = [pytest.mark.interop, pytest.mark.filterwarnings("ignore")]

GROUPS = (
    "plain", "rectilinear", "codecs", "texts", "names", "empty_arrays", "mixed_units", "fills",
)  # fmt: skip


ASKED = [
    ("zarr", "json-v2"), ("zarr", "server-v3"), ("tensorstore", "server-v2"),
    ("gdal", "portable-folder-v2"), ("netcdf", "folder-v2"),
]  # fmt: skip


@pytest.fixture(scope="module")
def targets():
    """A few of the groups, in all forms."""
    with all_targets(GROUPS, {form for _, form in ASKED} | {"server-v2"}) as (_, found):
        yield found


@pytest.mark.parametrize(("client", "form"), ASKED)
def test_they_read_what_we_read_or_refuse_as_the_table_says(targets, client, form):
    pytest.importorskip({"gdal": "rasterio", "netcdf": "netCDF4"}.get(client, client))
    (rows,) = ask_all({client: sys.executable}, {form: targets[form]})
    counts = Counter(row["status"] for row in rows)
    assert not [row for row in rows if row["status"] in ("wrong", "refused")]
    assert {row["group"] for row in rows} == set(GROUPS)
    assert counts["equal"] >= 20


def test_there_are_many_groups():
    assert len(list_makers()) + len(FILES) >= 100
    assert set(list_makers()) <= set(list_names())


def test_names_that_clients_do_not_escape_are_not_served(targets):
    served = {target.group: target for target in targets["server-v2"]}
    published = {target.group: target for target in targets["json-v2"]}
    left_out = published["names"].arrays.keys() - served["names"].arrays.keys()
    assert left_out == {"h#1", "q?a=1", "x%20y"}


@pytest.mark.parametrize(("portable", "has"), [(None, True), (["gdal"], False)])
def test_gdal_is_given_no_templates(tmp_path, portable, has):
    group = list_makers()["rectilinear"](tmp_path)
    options = {"copy": True, "regular": True, "zarr_format": 2}
    group.publish(tmp_path / "a.json", portable=portable, **options)
    assert ("templates" in json.loads((tmp_path / "a.json").read_text())) == has
    (result,) = vz.verify(tmp_path / "a.json", clients="gdal", timeout=300).clients
    # Before 3.11, GDAL opens no references.
    if result.version and tuple(map(int, result.version.split(".")[:2])) >= (3, 11):
        assert result.status == ("unsupported" if has else "equal")


def test_the_documentation_has_the_tables():
    text = DOCUMENT.read_text()
    assert fill_document(text) == text
    assert TABLE.name == "clients.json"


def test_refusals_are_foretold(tmp_path):
    group = vz.create_group(tmp_path / "a.zarr", zarr_format=2)
    for name, dtype in {"whole": "i4", "complex": "c8"}.items():
        options = {"shape": (4, 4), "chunks": 2, "dimension_names": ("y", "x")}
        group.create_array(name, dtype=dtype, compressors=None, **options)
    arrays = {path: array.metadata for path, array in group.members()}
    assert not predict_refusals("zarr", "folder-v2", 2, arrays)
    assert predict_refusals("zarrita", "folder-v2", 2, arrays).keys() >= {"complex"}
    assert predict_refusals("tensorstore", "json-v2", 2, arrays).keys() == arrays.keys()
    assert set(read_table()["zarr"]["forms"]) == set(FORMS)


def test_a_server_is_verified_by_its_url(tmp_path):
    vz.create_array(tmp_path / "a.zarr", name="x", data=[[1, 2], [3, 4]], chunks=1)
    app = create_app(vz.open(tmp_path / "a.zarr"), page=False)
    with run_in_thread(app) as url:
        report = vz.verify(f"{url}/v3", clients=["tensorstore", "zarr2"], timeout=300)
    results = {result.client: result for result in report.clients}
    assert results["tensorstore"].status in ("equal", "missing")
    assert results["zarr2"].status == "missing"
    assert "--client zarr2=ENV/bin/python" in results["zarr2"].message


def test_a_client_may_lie_elsewhere(tmp_path):
    assert choose_clients("zarr2=/env/bin/python") == {"zarr2": "/env/bin/python"}
    assert choose_clients(["zarr", "zarrita"]) == {
        "zarr": sys.executable,
        "zarrita": str(Path.cwd()),
    }
    vz.create_array(tmp_path / "a.zarr", data=[1, 2])
    report = vz.verify(tmp_path / "a.zarr", clients=f"zarrita={tmp_path}", timeout=300)
    assert report.clients[0].message.startswith("not installed: npm install zarrita")
