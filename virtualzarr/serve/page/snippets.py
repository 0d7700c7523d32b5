"""Snippets for the page: how others open a dataset from its URL."""

from __future__ import annotations

import json
from urllib.parse import quote


def make_snippets(url: str, path: str) -> list[tuple[str, str]]:
    """Return titles and code.

    Parameters
    ----------
    url : str
        Of the dataset, with a slash at its end.
    path : str
        Of an array in it.
    """
    group, _, name = path.rpartition("/")
    inner = f", group={_quote(group)}" if group else ""
    variable = f"[{_quote(name)}]" if name else ""
    node = f"/{quote(path, safe='/')}" if path else ""
    inside = f"/{path}"
    v3, v2 = f"{url}v3", f"{url}v2"
    return [
        (
            "Python: xarray",
            "import xarray as xr\n\n"
            f'ds = xr.open_dataset({_quote(v3)}, engine="zarr"{inner}, chunks={{}})\n'
            f"ds{variable}",
        ),
        (
            "Python: zarr",
            f'import zarr\n\nnode = zarr.open({_quote(v3 + node)}, mode="r")\nnode',
        ),
        (
            "Python: virtualzarr",
            f"import virtualzarr as vz\n\nnode = vz.open({_quote(v3 + node)})\nnode",
        ),
        (
            "JavaScript: zarrita",
            'import * as zarr from "zarrita";\n\n'
            f"const store = new zarr.FetchStore({_quote(v3 + node)});\n"
            f'const node = await zarr.open(store, {{ kind: "{"array" if path else "group"}" }});\n'
            + ("const values = await zarr.get(node);" if path else ""),
        ),
        (
            "GDAL",
            "# Without these, connections that break become fill values.\n"
            # By its name the server knows that it has to be told failures otherwise.
            "export GDAL_HTTP_USERAGENT=GDAL\n"
            "export GDAL_HTTP_MAX_RETRY=3 GDAL_HTTP_RETRY_DELAY=1\n"
            "export GDAL_HTTP_RETRY_CODES=429,500,502,503,504\n"
            f"gdalmdiminfo {_shell(f'ZARR:{_gdal(v2)}')}"
            + (f"\ngdalinfo {_shell(f'ZARR:{_gdal(v2)}:{inside}')}" if path else ""),
        ),
        (
            "R: stars",
            "library(stars)\n\n"
            'Sys.setenv(GDAL_HTTP_USERAGENT = "GDAL",\n'
            "           GDAL_HTTP_MAX_RETRY = 3, GDAL_HTTP_RETRY_DELAY = 1,\n"
            '           GDAL_HTTP_RETRY_CODES = "429,500,502,503,504")\n'
            f"x <- read_mdim({_quote(f'ZARR:{_gdal(v2)}')}"
            + (f", variable = {_quote(name)})" if name else ")"),
        ),
        ("Julia: Zarr", f"using Zarr\n\nz = zopen({_julia(v2 + node)})"),
    ]


def _quote(text: str) -> str:
    """Return a literal of Python, JavaScript and R."""
    # Marks that change the direction of writing would show code that is not what is run.
    marks = ((json.dumps(c)[1:-1] if c in '"\\' or not c.isprintable() else c) for c in text)
    return f'"{"".join(marks)}"'


def _julia(text: str) -> str:
    return _quote(text).replace("$", "\\$")


def _gdal(url: str) -> str:
    return f'"/vsicurl/{url}"'


def _shell(text: str) -> str:
    text = "".join(c if c.isprintable() else "?" for c in text)
    return "'" + text.replace("'", "'\\''") + "'"
