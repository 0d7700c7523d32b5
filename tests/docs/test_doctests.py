"""The examples in the docstrings of both packages."""

from __future__ import annotations

import doctest
import pkgutil
from importlib import import_module

import pytest

import grids
import virtualzarr

OPTIONAL = {"xarray", "dask", "zarr"}


def modules():
    """Names of all modules, without importing them."""
    for package in (grids, virtualzarr):
        yield package.__name__
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if not module.name.endswith("__main__"):
                yield module.name


@pytest.mark.parametrize("name", list(modules()))
def test_examples(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    try:
        module = import_module(name)
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] in OPTIONAL:
            pytest.skip(f"{error.name} is not installed")
        raise
    failed, _ = doctest.testmod(module)
    assert failed == 0
