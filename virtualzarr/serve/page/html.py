"""HTML of the page: rendered on the server, usable without a script."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any
from urllib.parse import quote, urlencode

from virtualzarr.array import Array
from virtualzarr.display.summaries import axes_text, chunk_lengths, human_size
from virtualzarr.hierarchy.group import Group
from virtualzarr.serve.page.describe import (
    STATES,
    Chunks,
    color_of,
    find_coordinate,
    iter_arrays,
    range_text,
)
from virtualzarr.serve.page.snippets import make_snippets

MAX_ROWS = 500
"""Of a hierarchy with more arrays, and of longer histories and attributes, only so many show."""

_TEXT = 400


def text(value: Any) -> str:
    """Return a value as text that is no markup, and not long."""
    shown = str(value)
    return escape(shown if len(shown) <= _TEXT else f"{shown[:_TEXT]}…", quote=True)


def document(title: str, body: str, base: str, url: str = "") -> bytes:
    """Return a whole page.

    Parameters
    ----------
    base : str
        The relative URL of what the page loads.
    url : str
        Of the page, as snippets have it.
    """
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<meta name="served" content="{text(url)}"><title>{text(title)}</title>'
        f'<link rel="stylesheet" href="{base}style.css"><link rel="icon" href="data:,">'
        f'<script src="{base}page.js" defer></script></head><body>{body}</body></html>\n'
    ).encode()


def catalogue_page(entries: Mapping[str, Any]) -> bytes:
    """Return the page that lists all datasets."""
    rows = "".join(
        f'<li><a href="{quote(name)}/">{text(name)}</a> '
        f"<span>{text(_title(entry.snapshot.node))}</span></li>"
        for name, entry in entries.items()
    )
    body = f'<header><h1>Datasets</h1></header><main><ul class="catalogue">{rows}</ul></main>'
    return document("Datasets", body, "-/")


def _title(node: Group | Array) -> str:
    attributes = node.attributes if isinstance(node, Group) else node.metadata.attributes
    title = attributes.get("title", "")
    return title if isinstance(title, str) else ""


def dataset_page(
    name: str,
    node: Group | Array,
    path: str | None,
    *,
    version: int | None,
    skipped: Mapping[str, str],
    notice: str = "",
    picture: str = "",
    chunks: Chunks | None = None,
    history: Sequence[tuple[Any, ...]] = (),
    url: str = "",
    show_sources: bool = False,
) -> bytes:
    """Return the page of a dataset, with a variable of it.

    Parameters
    ----------
    path : str, optional
        Of the variable.
    picture : str
        HTML of its picture.
    url : str
        Of the dataset, with a slash at its end.
    """
    title = _title(node) or name or "Dataset"
    listed = list(iter_arrays(node))
    array = next((each for at, each in listed if at == path), None)
    parts = [
        f"<header>{_crumb(name)}<h1>{text(title)}</h1>{_facts(listed, version)}</header><main>",
        f'<p class="notice" role="status">{text(notice)}</p>' if notice else "",
        _variables(listed, path),
    ]
    if array is not None and path is not None:
        parts.append(_variable(node, path, array, picture, chunks, show_sources))
    parts.append(_open_it(url, path or ""))
    if isinstance(node, Group):
        parts.append(_attributes("Attributes of the dataset", node.attributes))
    parts += [_history(history), _skipped(skipped), "</main>"]
    return document(title, "".join(parts), "-/", url)


def _crumb(name: str) -> str:
    return f'<nav><a href="../">Datasets</a> / {text(name)}</nav>' if name else ""


def _facts(listed: Sequence[tuple[str, Array]], version: int | None) -> str:
    nbytes = sum(array.nbytes for _, array in listed)
    count = f"{len(listed):,} array{'' if len(listed) == 1 else 's'}"
    shown = "" if version is None else f", version {version}"
    return f'<p class="facts">{count}, {human_size(nbytes)}{shown}</p>'


def _variables(listed: Sequence[tuple[str, Array]], chosen: str | None) -> str:
    rows = []
    for path, array in listed[:MAX_ROWS]:
        current = ' aria-current="true"' if path == chosen else ""
        attributes = array.metadata.attributes
        long_name = attributes.get("long_name") or attributes.get("standard_name") or ""
        rows.append(
            f'<tr{current}><th scope="row"><a href="?{text(urlencode({"var": path}))}">'
            f"{text(path or '/')}</a><small>{text(long_name)}</small></th>"
            f"<td>{text(axes_text(array))}</td><td>{text(array.dtype)}</td>"
            f"<td>{text(attributes.get('units', ''))}</td>"
            f"<td>{human_size(array.nbytes)}</td></tr>"
        )
    more = f"<p>and {len(listed) - MAX_ROWS:,} more</p>" if len(listed) > MAX_ROWS else ""
    heads = "".join(f'<th scope="col">{head}</th>' for head in
                    ("Variable", "Dimensions", "Type", "Units", "Size"))  # fmt: skip
    return (
        '<section><h2>Variables</h2><div class="scroll"><table><thead><tr>'
        f"{heads}</tr></thead><tbody>{''.join(rows)}</tbody></table></div>{more}</section>"
    )


def _variable(
    node: Group | Array, path: str, array: Array, picture: str, chunks: Chunks | None, shown: bool
) -> str:
    axes = []
    for dim, length in zip(array.dims, array.shape, strict=True):
        coordinate = find_coordinate(node, path, dim)
        axes.append(
            (dim or "", f"{length:,}", "" if coordinate is None else range_text(coordinate))
        )
    # Names and texts of others' files come through `text`, which escapes them.
    rows = "".join(
        f'<tr><th scope="row">{text(dim)}</th><td>{length}</td><td>{text(reach)}</td></tr>'
        for dim, length, reach in axes
    )
    table = (
        '<div class="scroll"><table><thead><tr><th scope="col">Dimension</th>'
        f'<th scope="col">Length</th><th scope="col">Range</th></tr></thead><tbody>{rows}'
        "</tbody></table></div>"
    )
    codecs = " → ".join(codec.name for codec in array.metadata.pipeline.codecs)
    facts = [
        ("Data type", array.dtype),
        ("Fill value", array.fill_value),
        ("Chunks", f"{array.nchunks:,} of {chunk_lengths(array)}"),
        ("Codecs", codecs),
        ("Size", human_size(array.nbytes)),
    ]
    details = "".join(f"<dt>{name}</dt><dd>{text(value)}</dd>" for name, value in facts)
    return (
        f'<section id="variable"><h2>{text(path or "/")}</h2>{picture}{table if axes else ""}'
        f"<dl>{details}</dl>{_chunks(chunks, shown)}"
        f"{_attributes('Attributes', array.metadata.attributes)}</section>"
    )


def _chunks(chunks: Chunks | None, shown: bool) -> str:
    if chunks is None:
        return ""
    legend = "".join(
        f'<li><svg width="12" height="12" aria-hidden="true"><rect width="12" height="12" '
        f'fill="{color_of(state)}"/></svg> {state}: {chunks.counts[state]:,}</li>'
        for state in STATES
        if chunks.counts[state]
    )
    files = f"<p>in {chunks.sources:,} file{'' if chunks.sources == 1 else 's'}</p>"
    if shown and chunks.names:
        names = "".join(f"<li>{text(name)}</li>" for name in chunks.names)
        rest = chunks.sources - len(chunks.names)
        more = f"<li>and {rest:,} more</li>" if rest > 0 else ""
        files = (
            f"<details><summary>{chunks.sources:,} files</summary>"
            f'<ul class="files">{names}{more}</ul></details>'
        )
    return (
        f'<h3>Chunks</h3><figure>{chunks.picture}<figcaption><ul class="legend">{legend}</ul>'
        f"{files if chunks.sources else ''}</figcaption></figure>"
    )


def picture_html(
    path: str, sliders: Iterable[tuple[str, int, int, str]], image: str, legend: str, caption: str
) -> str:
    """Return the picture of a variable with sliders for all axes but two.

    Parameters
    ----------
    sliders : iterable of (name, length, position, value)
    image : str
        URL of the picture.
    legend : str
        HTML of it.
    """
    controls = []
    for number, (name, length, at, value) in enumerate(sliders):
        controls.append(
            f'<label><span>{text(name)}</span> <input type="range" name="at" min="0" '
            f'max="{length - 1}" value="{at}" data-axis="{number}"> '
            f"<output>{text(value)}</output></label>"
        )
    form = ""
    if controls:
        form = (
            f'<form method="get" id="sliders"><input type="hidden" name="var" value="{text(path)}">'
            f"{''.join(controls)}<button>Show</button></form>"
        )
    return (
        f'<figure id="picture"><img src="{text(image)}" alt="picture of {text(path or "/")}">'
        f'<figcaption><div id="legend">{legend}</div><p id="caption" aria-live="polite">'
        f"{text(caption)}</p></figcaption></figure>{form}"
    )


def legend_html(low: str, high: str, units: str, diverging: bool) -> str:
    """Return the legend of a picture: a bar of its colours between two values."""
    kind = "diverging" if diverging else "sequential"
    return f'<span>{text(low)}</span><i class="{kind}"></i><span>{text(high)} {text(units)}</span>'


def _open_it(url: str, path: str) -> str:
    snippets = "".join(
        f"<details{' open' if number == 0 else ''}><summary>{text(title)}</summary>"
        f'<div class="snippet"><pre>{text(code)}</pre><button type="button" class="copy" hidden>'
        "Copy</button></div></details>"
        for number, (title, code) in enumerate(make_snippets(url, path))
    )
    return f'<section id="open"><h2>Open it</h2>{snippets}</section>'


def _attributes(title: str, attributes: Mapping[str, Any]) -> str:
    if not attributes:
        return ""
    rows = "".join(
        f'<tr><th scope="row">{text(name)}</th><td>{text(value)}</td></tr>'
        for name, value in list(attributes.items())[:MAX_ROWS]
    )
    return (
        f"<details><summary>{title} ({len(attributes):,})</summary>"
        f'<div class="scroll"><table>{rows}</table></div></details>'
    )


def _history(history: Sequence[tuple[Any, ...]]) -> str:
    if not history:
        return ""
    rows = "".join(
        f'<tr><th scope="row">{version}</th><td>{text(time)}</td><td>{text(verb)}</td>'
        f"<td>{text(message)}</td></tr>"
        for version, time, verb, message in history
    )
    heads = "".join(f'<th scope="col">{head}</th>' for head in ("Version", "Time", "Change", ""))
    return (
        f'<section><h2>History</h2><div class="scroll"><table><thead><tr>{heads}</tr></thead>'
        f"<tbody>{rows}</tbody></table></div></section>"
    )


def _skipped(skipped: Mapping[str, str]) -> str:
    if not skipped:
        return ""
    rows = "".join(
        f'<tr><th scope="row">{text(name)}</th><td>{text(why)}</td></tr>'
        for name, why in list(skipped.items())[:MAX_ROWS]
    )
    return f'<section><h2>Not served</h2><div class="scroll"><table>{rows}</table></div></section>'
