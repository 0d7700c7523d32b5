"""Errors as values: copies and pickles of them are errors of their own."""

import copy
import copyreg
import json
import pickle
from types import SimpleNamespace

import h5py
import pytest

import virtualzarr as vz
from virtualzarr import errors
from virtualzarr.errors import AccessError, SkippedVariableWarning, SourceError, VirtualZarrError
from virtualzarr.stores.http_responses import StatusError

ERRORS = [
    value("it fails", file="a.nc")
    for value in vars(errors).values()
    if isinstance(value, type) and issubclass(value, VirtualZarrError)
] + [StatusError.of(SimpleNamespace(status=403, reason="Forbidden"), "https://host/a.nc")]


def reduce_sharing_dict(error):
    """What tblib gives to copyreg for exceptions with a constructor of their own."""
    if type(error).__reduce__ not in (BaseException.__reduce__, OSError.__reduce__):
        return error.__reduce__()
    return restore_sharing_dict, (type(error), error.args, error.__dict__)


def restore_sharing_dict(kind, args, attributes):
    error = kind.__new__(kind, *args)
    error.__dict__ = attributes
    return error


@pytest.fixture(params=["plain", "shared", "tblib"])
def reducer(request, monkeypatch):
    """How exceptions are copied, where dask or distributed is imported and where not."""
    classes = {type(error) for error in ERRORS}
    monkeypatch.setattr(copyreg, "dispatch_table", dict(copyreg.dispatch_table))
    for kind in classes:
        copyreg.dispatch_table.pop(kind, None)
    if request.param == "shared":
        for kind in classes:
            monkeypatch.setitem(copyreg.dispatch_table, kind, reduce_sharing_dict)
    elif request.param == "tblib":
        pytest.importorskip("tblib.pickling_support").install(*classes)
    # The module `copy` has a reference to the table itself.
    monkeypatch.setattr(copy, "dispatch_table", copyreg.dispatch_table)


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("again", [copy.copy, lambda error: pickle.loads(pickle.dumps(error))])
def test_copies_are_equal_and_independent(reducer, error, again):
    before = str(error)
    copied = again(error)
    assert type(copied) is type(error)
    assert str(copied) == before
    assert copied.args == error.args
    assert vars(copied) == vars(error)
    copied.at(variable="x", chunk="x/0")
    assert (error.variable, error.chunk, str(error)) == (None, None, before)
    assert "[file" in str(copied)
    assert "variable x, chunk x/0]" in str(copied)


def test_an_error_of_several_arrays_names_each(reducer):
    zarray = {"zarr_format": 2, "shape": [4], "chunks": [4], "dtype": "|u1", "compressor": None,
              "fill_value": 0, "order": "C", "filters": None}  # fmt: skip
    document = {".zgroup": '{"zarr_format": 2}'}
    for k in range(3):
        document |= {f"x{k}/.zarray": json.dumps(zarray), f"x{k}/0": ["/etc/a.bin", 0, 4]}
    with (
        pytest.warns(SkippedVariableWarning) as warned,
        pytest.raises(AccessError, match="variable x0, chunk x0/0]"),
    ):
        vz.open(document, format="kerchunk", on_error="warn", allowed="s3://bucket")
    for k, each in enumerate(warned):
        assert f"variable x{k}, chunk x{k}/0]" in str(each.message)
    assert len(warned) == 3


def test_warnings_are_of_the_line_that_called(tmp_path):
    (tmp_path / "bad.nc").write_bytes(b"")
    with h5py.File(tmp_path / "good.nc", "w") as file:
        file["x"] = [1]
        file["odd"] = h5py.ExternalLink("elsewhere.h5", "x")
    paths = [tmp_path / "good.nc", tmp_path / "bad.nc"]
    with pytest.warns(SkippedVariableWarning) as caught:
        group = vz.virtualize(paths, "x", bad_files="skip", on_error="warn")
    with pytest.warns(SkippedVariableWarning, match="elsewhere") as caught_later:
        vz.open(tmp_path / "good.nc", on_error="warn")
    assert {each.filename for each in [*caught, *caught_later]} == {__file__}
    assert len(caught) == 2
    assert list(group.skipped) == ["odd"]


def test_what_the_system_said_goes_to_other_processes():
    error = SourceError("it cannot be read", file="a.nc")
    error.__cause__ = PermissionError(13, "Permission denied", "a.nc")
    again = pickle.loads(pickle.dumps(error))
    assert (str(again), again.file) == (str(error), "a.nc")
    assert isinstance(again.__cause__, PermissionError)
    assert again.__cause__.args == (13, "Permission denied")
