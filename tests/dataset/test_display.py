"""Datasets and their histories as people see them."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest

import virtualzarr as vz
from tests.dataset.test_dataset import write
from virtualzarr.dataset.create import create_dataset
from virtualzarr.dataset.history import History


@pytest.fixture
def dataset(tmp_path):
    for number in range(3):
        write(tmp_path / f"{number}.h5", 4 * number)
    dataset = create_dataset(tmp_path / "<b>feed", vz.virtualize(tmp_path / "0.h5"), "time")
    dataset = dataset.append(tmp_path / "1.h5", message="<script>alert(1)</script>\n\x1b[31mred")
    return dataset.tag("final & <i>good</i>")


def read_text(markup):
    return "".join(ElementTree.fromstring(f"<div>{markup}</div>").itertext())


def test_a_dataset_in_a_notebook(dataset):
    markup = dataset.refresh()._repr_html_()
    text = read_text(markup)
    assert "<b>" not in markup.replace("&lt;b&gt;", "")
    assert "<b>feed" in text
    assert "3 of 3" in text
    assert "8 along time" in text
    assert all(name in text for name in ("air", "float32", "time: 8"))
    older = type(dataset)(dataset.path, tag="final & <i>good</i>")
    assert "final & <i>good</i>" in read_text(older._repr_html_())
    assert "2 of 3" in read_text(older._repr_html_())


def test_a_dataset_in_one_line(dataset):
    text = repr(dataset)
    assert text.startswith(f"<Dataset {dataset.path} version 3 (time: 8), 3 arrays")
    assert "\n" not in text


def test_a_history(dataset):
    history = dataset.refresh().history()
    assert isinstance(history, History)
    assert [version.version for version in history] == [1, 2, 3]
    head, *lines = repr(history).splitlines()
    assert head.split() == ["version", "time", "(UTC)", "what"]
    assert len(lines) == 3
    assert lines[0].split()[0] == "1"
    assert "create" in lines[0]
    assert "append: <script>alert(1)</script> [31mred (1 file: 1.h5)" in lines[1]
    assert "\x1b" not in repr(history)
    markup = history._repr_html_()
    assert "<script" not in markup
    assert "<script>alert(1)</script>" in read_text(markup)


def test_a_long_history_is_cut(dataset):
    versions = History(list(dataset.refresh().history()) * 30)
    assert len(repr(versions).splitlines()) == 42
    assert "50 earlier ones" in repr(versions)
    assert "50 earlier ones" in versions._repr_html_()
    assert dataset.history(9) == []
