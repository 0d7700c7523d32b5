"""Every Python block of the README and the guides runs, and its results are as they say."""

from __future__ import annotations

import ast
import os
import re
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from tests.references.kerchunk_files import no_garbage_collection
from tests.stores.webserver import web_server
from virtualzarr.cli.samples import FULL, PARTIAL, write_archive, write_stacks

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]

_BLOCK = re.compile(r"^```python(?: ([^\n]*))?\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_TITLE = re.compile(r'title="([^"]*)"')
_RESULT = re.compile(r"#\s*->\s*(.*)$")

OURS = "virtualzarr"
OTHERS = {
    "VirtualiZarr": {"virtualizarr": "2.8", "icechunk": "2.3"},
    "kerchunk": {"kerchunk": None},
    "zarr-python": {"zarr": "3.2"},
    "xarray": {"xarray": None, "dask": None, "h5netcdf": None},
}
"""Titles of blocks that show how others do it, and the versions they need."""


def blocks(page, tool=OURS):
    """Yield the code of each block, moved down to the line where the page has it.

    Blocks with the title of another tool are left out; those without a title are for all.
    """
    text = page.read_text(encoding="utf-8")
    for match in _BLOCK.finditer(text):
        title = _TITLE.search(match[1] or "")
        if title is None or title[1] == tool:
            yield "\n" * text.count("\n", 0, match.start(2)) + match[2]


def run(code, name, namespace):
    """Run statements one by one; what follows ``# ->`` must be the value of the expression."""
    lines = code.split("\n")
    for node in ast.parse(code, name).body:
        if not isinstance(node, ast.Expr):
            exec(compile(ast.Module([node], []), name, "exec", dont_inherit=True), namespace)
            continue
        expression = compile(ast.Expression(node.value), name, "eval", dont_inherit=True)
        value = eval(expression, namespace)
        said = _RESULT.search(lines[node.end_lineno - 1])
        if said:
            assert repr(value) == said[1].strip(), f"{name}:{node.end_lineno}"


def register_engine():
    """Make the engine known by name where the tests run without installing the package."""
    from xarray.backends import list_engines

    from virtualzarr.integrations.xarray_backend import VirtualZarrBackendEntrypoint

    list_engines().setdefault("virtualzarr", VirtualZarrBackendEntrypoint())


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The files that the pages speak of."""
    write_archive(tmp_path / "archive", FULL, "air")
    write_archive(tmp_path / "partial", PARTIAL, "air")
    write_stacks(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("EXAMPLE_TOKEN", "secret")
    return tmp_path


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
@pytest.mark.usefixtures("folder")
def test_python_blocks(page):
    namespace = {"__name__": "docs"}
    found = list(blocks(page))
    if any("xarray" in code for code in found):
        pytest.importorskip("xarray")
        pytest.importorskip("dask")
        register_engine()
    if any("import zarr" in code for code in found):
        pytest.importorskip("zarr")
    with ExitStack() as stack:
        if any("web_server" in code for code in found):
            pytest.importorskip("aiohttp")
            namespace["web_server"] = stack.enter_context(serve_archive())
        for code in found:
            run(code, str(page), namespace)


@contextmanager
def serve_archive():
    """Serve the archive, whose files have not been changed lately."""
    for path in Path("archive").iterdir():
        os.utime(path, (1e9, 1e9))
    with web_server("archive") as server:
        yield server


@pytest.mark.interop
@pytest.mark.parametrize("tool", OTHERS)
@pytest.mark.usefixtures("folder")
def test_how_others_do_it(tool):
    for module, version in OTHERS[tool].items():
        pytest.importorskip(module, version)
    page = ROOT / "docs" / "coming-from.md"
    namespace = {"__name__": "docs"}
    with no_garbage_collection():
        for code in blocks(page, tool):
            run(code, str(page), namespace)


def test_titles_of_blocks_are_names_of_tools():
    for page in PAGES:
        options = " ".join(match[1] or "" for match in _BLOCK.finditer(page.read_text("utf-8")))
        assert set(_TITLE.findall(options)) <= {OURS, *OTHERS}, page


def test_a_wrong_result_is_found():
    with pytest.raises(AssertionError, match="page:1"):
        run("1 + 1  # -> 3", "page", {})


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page):
    text = page.read_text(encoding="utf-8")
    for link in re.findall(r"\]\(([^)#\s]+)[^)]*\)", text):
        if "://" not in link:
            assert (page.parent / link).exists(), link


def test_the_readme_has_two_commands():
    text = PAGES[0].read_text(encoding="utf-8")
    commands = re.findall(r"^```sh\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    assert [command.count("\n") for command in commands] == [1, 1]
    assert commands[0].strip().endswith("virtualzarr demo")
    assert commands[1].strip().endswith("pytest -n auto")
