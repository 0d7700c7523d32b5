"""Codecs of other packages."""

from __future__ import annotations

import importlib.metadata
import sys

import numpy as np
import pytest

from virtualzarr.codecs import BytesBytes, Pipeline, make, register
from virtualzarr.codecs.core import registry
from virtualzarr.codecs.core.base import as_u1
from virtualzarr.errors import UnsupportedError


class Inverted(BytesBytes):
    """All bits of all bytes inverted."""

    def decode(self, data, size, limit):
        return ~as_u1(data)

    def encode(self, data):
        return ~as_u1(data)


CHAIN = ["bytes", {"name": "example.inverted", "must_understand": False}]


@pytest.fixture(autouse=True)
def empty_registry(monkeypatch):
    # Other tests, such as those of the documentation, register codecs of the same names.
    monkeypatch.setattr(registry, "_factories", {})


@pytest.fixture
def entry_point(tmp_path, monkeypatch):
    def install(target):
        folder = tmp_path / "plugin-1.0.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: plugin\nVersion: 1.0\n")
        text = f"[{registry.ENTRY_POINTS}]\nexample.inverted = {target}\n"
        (folder / "entry_points.txt").write_text(text)
        monkeypatch.syspath_prepend(str(tmp_path))
        importlib.invalidate_caches()

    return install


def check():
    codec = Pipeline.from_v3(CHAIN).for_block((3,), "u1")
    assert codec.encode(np.array([0, 1, 255], "u1")) == bytes([255, 254, 0])
    assert codec.decode(bytes([255, 254, 0])).tolist() == [0, 1, 255]


def test_a_registered_codec():
    with pytest.raises(UnsupportedError, match=r"example.inverted is not supported; .*register"):
        Pipeline.from_v3(CHAIN)
    register("example.inverted", Inverted)
    check()


def test_a_codec_from_an_entry_point(entry_point, monkeypatch):
    entry_point(f"{__name__}:Inverted")
    monkeypatch.setitem(sys.modules, __name__, sys.modules[__name__])
    check()


def test_an_entry_point_that_does_not_load(entry_point):
    entry_point("no_such_module:Inverted")
    with pytest.raises(UnsupportedError, match=r"plug-in for codec example.inverted does not load"):
        make("example.inverted")


def test_known_codecs_do_not_look_for_entry_points(monkeypatch):
    def refuse(**_):
        raise AssertionError("looked for entry points")

    monkeypatch.setattr(importlib.metadata, "entry_points", refuse)
    assert make("gzip", level=1).name == "gzip"
