"""HTML of the page: rendered on the server, usable without a script."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from itertools import islice
from typing import Any
from urllib.parse import quote, urlencode

from virtualzarr.array import Array
from virtualzarr.display.summaries import axes_text, chunk_lengths, human_size
from virtualzarr.hierarchy.group import Group
from virtualzarr.hierarchy.inventory import iter_arrays
from virtualzarr.redaction import hide_in_url
from virtualzarr.serve.page.describe import (
    STATES,
    Chunks,
    find_coordinate,
    paint_of,
    range_text,
)
from virtualzarr.serve.page.picture import Picture
from virtualzarr.serve.page.snippets import make_snippets
from virtualzarr.serve.page.view import View

MAX_ROWS = 200
"""Of a hierarchy with more arrays, and of longer histories and attributes, only so many show."""

_TEXT = 400


def text(value: Any) -> str:
    """Return a value as text that is no markup, and not long."""
    full = str(value)
    return escape(full if len(full) <= _TEXT else f"{full[:_TEXT]}…", quote=True)


def attribute(value: str) -> str:
    """Return the value of an attribute whole: a URL or a path that is cut is another."""
    return escape(value, quote=True)


def name_html(value: Any) -> str:
    """Return text of others, apart, so that its direction of writing stays its own."""
    return f"<bdi>{text(value)}</bdi>"


def document(title: str, body: str, head: str) -> bytes:
    """Return a whole page.

    Parameters
    ----------
    head : str
        HTML of what the page loads, or has within.
    """
    # What is no text of Unicode, as names of files may be, has no bytes in UTF-8.
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<title>{text(title)}</title><link rel="icon" href="data:,">'
        f"{head}</head><body>{body}</body></html>\n"
    ).encode(errors="replace")


def _served_head(url: str = "") -> str:
    """Return what a served page loads; `url` is where it is, as snippets have it."""
    return (
        f'<meta name="served" content="{text(url)}"><link rel="stylesheet" href="-/style.css">'
        '<script src="-/page.js" defer></script>'
    )


def catalogue_page(entries: Mapping[str, Any]) -> bytes:
    """Return the page that lists all datasets."""
    rows = "".join(
        f'<li><a href="{quote(name)}/">{text(name)}</a> '
        f"{name_html(title_of(entry.snapshot.node))}</li>"
        for name, entry in entries.items()
    )
    body = f'<header><h1>Datasets</h1></header><main><ul class="catalogue">{rows}</ul></main>'
    return document("Datasets", body, _served_head())


def title_of(node: Group | Array) -> str:
    """Return the title that a dataset gives itself."""
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
    title = title_of(node) or name or "Dataset"
    listed = list(iter_arrays(node))
    array = next((each for at, each in listed if at == path), None)
    parts = [
        f"<header>{_crumb(name)}<h1>{name_html(title)}</h1>",
        f"{facts_html(listed, version)}</header><main>",
        f'<p class="notice" role="status">{text(notice)}</p>' if notice else "",
        variables_html(listed, path, lambda at: "?" + urlencode({"var": at})),
    ]
    if array is not None and path is not None:
        parts.append(
            f'<section id="variable"><h2>{name_html(path or "/")}</h2>'
            f"{variable_html(node, path, array, picture, chunks, show_sources)}</section>"
        )
    parts.append(snippets_html(make_snippets(url, path or "")))
    if isinstance(node, Group):
        parts.append(attributes_html("Attributes of the dataset", node.attributes))
    parts += [history_html(history), skipped_html("Not served", skipped), "</main>"]
    return document(title, "".join(parts), _served_head(url))


def _crumb(name: str) -> str:
    return f'<nav><a href="../">Datasets</a> / {text(name)}</nav>' if name else ""


def facts_html(listed: Sequence[tuple[str, Array]], version: int | None = None) -> str:
    """Return how many arrays there are, and how large they are."""
    nbytes = sum(array.nbytes for _, array in listed)
    count = f"{len(listed):,} array{'' if len(listed) == 1 else 's'}"
    suffix = "" if version is None else f", version {version}"
    return f'<p class="facts">{count}, {human_size(nbytes)}{suffix}</p>'


def table_html(heads: Sequence[str], rows: Iterable[str], label: str) -> str:
    """Return a table that scrolls on its own, also by the keyboard.

    Parameters
    ----------
    heads : sequence of str
        Of columns; none for a table of names and values.
    rows : iterable of str
        HTML.
    """
    head = "".join(f'<th scope="col">{each}</th>' for each in heads)
    header = f"<thead><tr>{head}</tr></thead>" if heads else ""
    return (
        f'<div class="scroll" role="region" aria-label="{label}" tabindex="0"><table>{header}'
        f"<tbody>{''.join(rows)}</tbody></table></div>"
    )


def variables_html(
    listed: Sequence[tuple[str, Array]], chosen: str | None, link: Callable[[str], str]
) -> str:
    """Return the table of variables.

    Parameters
    ----------
    link : callable
        Returns the URL of a variable's path.
    """
    rows = []
    for path, array in listed[:MAX_ROWS]:
        current = ' aria-current="true"' if path == chosen else ""
        attributes = array.metadata.attributes
        long_name = attributes.get("long_name") or attributes.get("standard_name") or ""
        rows.append(
            f'<tr{current}><th scope="row"><a href="{attribute(link(path))}">'
            f"{name_html(path or '/')}</a><small>{name_html(long_name)}</small></th>"
            f"<td>{name_html(axes_text(array))}</td><td>{name_html(array.dtype)}</td>"
            f"<td>{name_html(attributes.get('units', ''))}</td>"
            f"<td>{human_size(array.nbytes)}</td></tr>"
        )
    note = f"<p>and {len(listed) - MAX_ROWS:,} more</p>" if len(listed) > MAX_ROWS else ""
    heads = ("Variable", "Dimensions", "Type", "Units", "Size")
    return f"<section><h2>Variables</h2>{table_html(heads, rows, 'Variables')}{note}</section>"


def variable_html(
    node: Group | Array,
    path: str,
    array: Array,
    picture: str,
    chunks: Chunks | None,
    show_sources: bool,
) -> str:
    """Return what there is to know of a variable, but for its name.

    Parameters
    ----------
    picture : str
        HTML of it.
    show_sources : bool
        Whether sources are named.
    """
    rows = []
    for dim, length in zip(array.dims, array.shape, strict=True):
        coordinate = find_coordinate(node, path, dim)
        reach = "" if coordinate is None else range_text(coordinate)
        # Names and texts of others' files come through `text`, which escapes them.
        rows.append(
            f'<tr><th scope="row">{name_html(dim or "")}</th><td>{length:,}</td>'
            f"<td>{name_html(reach)}</td></tr>"
        )
    table = table_html(("Dimension", "Length", "Range"), rows, "Dimensions") if rows else ""
    facts = [
        ("Data type", array.dtype),
        ("Fill value", array.fill_value),
        ("Chunks", f"{array.nchunks:,} of {chunk_lengths(array)}"),
        ("Codecs", " → ".join(codec.name for codec in array.metadata.pipeline.codecs)),
        ("Size", human_size(array.nbytes)),
    ]
    details = "".join(f"<dt>{name}</dt><dd>{name_html(value)}</dd>" for name, value in facts)
    return (
        f"{picture}{table}<dl>{details}</dl>{_chunks(chunks, show_sources)}"
        f"{attributes_html('Attributes', array.metadata.attributes)}"
    )


def _chunks(chunks: Chunks | None, show_sources: bool) -> str:
    if chunks is None:
        return ""
    legend = "".join(
        f'<li><svg width="12" height="12" aria-hidden="true"><rect x=".5" y=".5" width="11" '
        f'height="11" {paint_of(state)}/></svg> {state}: {chunks.counts[state]:,}</li>'
        for state in STATES
        if chunks.counts[state]
    )
    plural = "" if chunks.sources == 1 else "s"
    files = f"<p>in {chunks.sources:,} file{plural}</p>"
    if show_sources and chunks.names:
        urls = map(hide_in_url, chunks.names)
        names = "".join(f"<li>{name_html(name)}</li>" for name in urls)
        remaining = chunks.sources - len(chunks.names)
        note = f"<li>and {remaining:,} more</li>" if remaining > 0 else ""
        files = (
            f"<details><summary>{chunks.sources:,} files</summary>"
            f'<ul class="files">{names}{note}</ul></details>'
        )
    return (
        f'<h3>Chunks</h3><figure>{chunks.picture}<figcaption><ul class="legend">{legend}</ul>'
        f"{files if chunks.sources else ''}</figcaption></figure>"
    )


@dataclass(frozen=True)
class Slider:
    """A slider of a picture.

    Attributes
    ----------
    name : str
        Of the dimension.
    stop : int
        Number of positions.
    at : int
        The position now.
    value : str
        The coordinate there.
    """

    name: str
    stop: int
    at: int
    value: str


def make_sliders(
    array: Array, view: View, at: Sequence[int], values: Sequence[str]
) -> list[Slider]:
    """Return sliders for all axes but those of the picture."""
    places = zip(view.others, at, values, strict=True)
    return [
        Slider(array.dims[axis] or f"axis {axis}", array.shape[axis], i, value)
        for axis, i, value in places
    ]


def picture_html(path: str, sliders: Sequence[Slider], image: str, picture: Picture) -> str:
    """Return the picture of a variable with its sliders.

    Parameters
    ----------
    image : str
        URL of the picture, escaped.
    """
    controls = "".join(
        f"<label><bdi>{text(slider.name)}</bdi> "
        f'<input type="range" name="at" min="0" max="{slider.stop - 1}" value="{slider.at}" '
        f'data-axis="{number}" aria-valuetext="{text(slider.value)}"> '
        f"<output>{text(slider.value)}</output></label>"
        for number, slider in enumerate(sliders)
    )
    form = ""
    if controls:
        form = (
            f'<form method="get" class="sliders"><input type="hidden" name="var" '
            f'value="{attribute(path)}">{controls}<button>Show</button></form>'
        )
    return figure_html(path, image, picture) + form


def figure_html(path: str, image: str, picture: Picture, value: str = "") -> str:
    """Return a picture with its scale and caption.

    Parameters
    ----------
    image : str
        URL of the picture.
    value : str
        The coordinate at which it is, among others.
    """
    position = f' data-value="{text(value)}"' if value else ""
    return (
        f'<figure class="picture"{position}><img src="{image}" width="{picture.width}" '
        f'height="{picture.height}" alt="{text(alternative(path, picture))}">'
        f'<figcaption><div class="scale">{scale_html(picture)}</div>'
        f'<p class="caption" aria-live="polite">{text(picture.caption)}</p></figcaption></figure>'
    )


def alternative(path: str, picture: Picture) -> str:
    """Return what a picture shows, for those who do not see it."""
    noun = "line" if picture.kind == "line" else "picture"
    name = path if len(path) <= _TEXT else f"{path[:_TEXT]}…"
    return f"{noun} of {name or '/'}: {picture.low} to {high_text(picture)}"


def high_text(picture: Picture) -> str:
    """Return the highest value of a picture, with its unit."""
    return f"{picture.high} {picture.units}".rstrip()


def scale_html(picture: Picture) -> str:
    """Return a bar of the colours of a picture between two values; of a line, the values."""
    low, high = text(picture.low), text(high_text(picture))
    if picture.kind == "line":
        return f"<span>{low} to {high}</span>"
    return f'<span>{low}</span><i class="{picture.kind}"></i><span>{high}</span>'


def values_html(values: str) -> str:
    """Return some values of a variable that has no picture."""
    return f'<p class="values"><span class="note">Values:</span> <bdi>{text(values)}</bdi></p>'


def snippets_html(snippets: Iterable[tuple[str, str]]) -> str:
    """Return lines to copy that open a dataset: titles and code."""
    # Whole, however long names are: code that is cut does something else.
    parts = "".join(
        f"<details{' open' if number == 0 else ''}><summary>{text(title)}</summary>"
        f'<div class="snippet"><pre tabindex="0">{escape(code)}</pre>'
        f'<button type="button" class="copy" aria-label="Copy: {text(title)}" hidden>'
        "Copy</button></div></details>"
        for number, (title, code) in enumerate(snippets)
    )
    return f'<section id="open"><h2>Open it</h2>{parts}</section>'


def attributes_html(title: str, attributes: Mapping[str, Any]) -> str:
    """Return a table of attributes, which is opened on demand."""
    if not attributes:
        return ""
    rows = _pairs(attributes.items())
    return (
        f"<details><summary>{title} ({len(attributes):,})</summary>"
        f"{table_html((), rows, title)}</details>"
    )


def _pairs(items: Iterable[tuple[Any, Any]]) -> Iterator[str]:
    for name, value in islice(items, MAX_ROWS):
        yield f'<tr><th scope="row">{name_html(name)}</th><td>{name_html(value)}</td></tr>'


def history_html(history: Sequence[tuple[Any, ...]]) -> str:
    """Return versions with their time, what was done, and a message."""
    if not history:
        return ""
    rows = (
        f'<tr><th scope="row">{text(version)}</th><td>{text(time)}</td><td>{text(verb)}</td>'
        f"<td>{name_html(message)}</td></tr>"
        for version, time, verb, message in history
    )
    heads = ("Version", "Time", "Change", "Message")
    return f"<section><h2>History</h2>{table_html(heads, rows, 'History')}</section>"


def skipped_html(title: str, skipped: Mapping[str, str]) -> str:
    """Return what is not there, and why."""
    if not skipped:
        return ""
    return f"<section><h2>{title}</h2>{table_html((), _pairs(skipped.items()), title)}</section>"
