"""Keyword arguments that functions do not have."""

from __future__ import annotations

import inspect

import h5py
import numpy as np
import pytest

import virtualzarr as vz
from virtualzarr.errors import MismatchError, NodeNotFoundError
from virtualzarr.references.native.append import append as append_native
from virtualzarr.references.native.save import save
from virtualzarr.references.publish import preview, publish


@pytest.fixture
def file(tmp_path):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["x"] = np.arange(6)
    return tmp_path / "a.h5"


def every_function():
    """Return all functions of the public face, and methods that pass arguments on."""
    found = {name: getattr(vz, name) for name in vz.__all__}
    functions = {name: each for name, each in found.items() if inspect.isfunction(each)}
    functions |= {"publish": publish, "preview": preview, "save": save}
    functions["native.append"] = append_native
    for model in (vz.models.v2, vz.models.v3):
        functions[f"{model.__name__}.new"] = model.ArraySpec.new
    group = vz.create_group({})
    for name in ("create_array", "require_array", "publish"):
        functions[f"Group.{name}"] = getattr(group, name)
    return functions


@pytest.mark.parametrize("name", every_function())
def test_what_is_not_known_is_refused(name):
    function = every_function()[name]
    required = [
        each for each in inspect.signature(function).parameters.values()
        if each.default is each.empty and each.kind is not each.VAR_KEYWORD
        and each.kind is not each.VAR_POSITIONAL
    ]  # fmt: skip
    with pytest.raises(TypeError, match=r"\(\) has no parameter 'quatsch'; there (is|are) \w+"):
        function(*[None] * len(required), quatsch=1)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda f: vz.open(f, fomat="hdf5"), r"open\(\) has no parameter 'fomat'; is 'format'"),
        (lambda f: vz.open({}, chonks=2), r"open\(\) .*'chonks'; is 'chunks' meant"),
        (lambda f: vz.virtualize(f, harmonise=True), r"virtualize\(\) .* is 'harmonize' meant"),
        (lambda f: vz.concat([], combine_atrs="drop"), "is 'combine_attrs' meant"),
        (lambda f: vz.create_array({}, shape=3, dimension_name=["x"]), "'dimension_names' meant"),
        (lambda f: vz.create_group({}).create_array("x", shape=3, compresor=None), "'compressors'"),
        (lambda f: vz.copy(f, {}, chunk=2), "is 'chunks' meant"),
        (lambda f: vz.append(f, f, "t", harmonised=True), "is 'harmonize' meant"),
        (lambda f: vz.convert_references(f, "x.json", over_write=True), "is 'overwrite' meant"),
        (lambda f: vz.virtualize(f).publish("x.json", relativ=True), "is 'relative' meant"),
        (lambda f: vz.models.v3.ArraySpec.new(shape=3, dtyp="f4"), "is 'dtype' meant"),
    ],
)  # fmt: skip
def test_the_parameter_meant_is_named(file, call, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(TypeError, match=message) as found:
        call(file)
    assert "Wishes" not in str(found.value)
    assert "Options" not in str(found.value)
    assert [path.name for path in tmp_path.iterdir()] == ["a.h5"]


def test_what_is_asked_of_arrays_is_compared(file):
    """Also of those in files, and of what turns out to be a group."""
    assert vz.open(file, "x", shape=(6,), dtype="i8").shape == (6,)
    with pytest.raises(MismatchError, match="dtype"):
        vz.open(file, "x", dtype="f4")
    for target, wish in ((file, {"dtype": "i8"}), (file, {"chunks": 3}), (file, {"shape": 6})):
        with pytest.raises(NodeNotFoundError, match="but a group"):
            vz.open(target, **wish)
    store = {}
    vz.create_group(store)
    with pytest.raises(NodeNotFoundError, match="but a group"):
        vz.open(store, chunks=2)


def test_dimensions_have_two_names():
    array = vz.create_array({}, shape=(2, 3), dtype="i1", dims=["y", "x"])
    assert array.dims == array.dimension_names == ("y", "x")
    assert vz.create_group({}).require_array("a", shape=2, dtype="i1", dims=["t"]).dims == ("t",)
    assert vz.models.v3.ArraySpec.new(
        shape=2, dtype="f4", attributes={}, dims=["t"]
    ).dimension_names == ("t",)
    with pytest.raises(TypeError, match="two names of one parameter"):
        vz.create_array({}, shape=2, dims=["t"], dimension_names=["t"])
