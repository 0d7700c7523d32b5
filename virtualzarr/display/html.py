"""HTML representations of arrays and groups, for notebooks, with a picture of the chunk grid.

Everything is in the text itself: no scripts, no style sheets, nothing to be loaded. However many
chunks, members or attributes there are, the text stays short. No chunk is read or looked for.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from html import escape
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np

from grids import SeparableGrid
from virtualzarr.display.summaries import axes_text, chunk_lengths, human_size, sources_text
from virtualzarr.errors import VirtualZarrError

if TYPE_CHECKING:
    from grids.axis import Axis
    from virtualzarr.array import Array
    from virtualzarr.hierarchy.group import Group

LINES = 32
"""Of an axis with more cells, only about so many cuts are drawn, evenly chosen."""

ROWS = 30
"""Of a group with more members, and of longer attributes, only so many are listed."""

TEXT = 120
"""Longer texts are cut."""

LONGEST, SHORTEST = 140.0, 12.0
"""Pixels of the longest axis, and at least of any other."""

DEPTH = 0.45
"""How much shorter than the others the axis that leads into the picture is drawn."""

_CELL = "text-align:left;unicode-bidi:isolate"
"""Of cells with text of others, whose direction of writing stays their own."""

COLOR = "#4a86bd"
"""Of lines, and of faces with less of it."""

LABEL, LETTER = 20, 6.4
"""Letters of an axis's name that are drawn, and pixels that one takes at most, or nearly so."""

Point = tuple[float, float]


def array_html(array: Array) -> str:
    """Return a table of what there is to know of an array, beside a picture of its grid.

    Examples
    --------
    >>> import virtualzarr as vz
    >>> a = vz.create_array({}, name="<x>", shape=(4,), dtype="i4")
    >>> "&lt;x&gt;" in array_html(a), "<x>" in array_html(a), array_html(a).count("<svg")
    (True, False, 1)
    """
    shards = "" if array.shards is None else f", in shards of {array.shards}"
    rows: list[tuple[str, Any]] = [
        ("Array", f"/{array.path}"),
        ("Shape", axes_text(array)),
        ("Data type", array.dtype),
        ("Fill value", array.fill_value),
        ("Chunks", f"{_chunks(array)}{shards}{', virtual' if array.is_virtual else ''}"),
        ("Codecs", " → ".join(codec.name for codec in array.metadata.pipeline.codecs)),
        ("Size", _size(array.nbytes)),
        ("Stored in", sources_text(array)),
    ]
    table = _table(rows, "white-space:nowrap") + _attributes(array.metadata.attributes)
    return (
        '<div class="virtualzarr" '
        'style="display:flex;gap:1.5em;align-items:flex-start;flex-wrap:wrap">'
        f'<div style="max-width:26em;overflow-wrap:anywhere">{table}</div>{draw_grid(array)}</div>'
    )


def _chunks(array: Array) -> str:
    return f"{array.nchunks:,} of {chunk_lengths(array)}"


def _size(nbytes: int) -> str:
    size = human_size(nbytes)
    return size if nbytes < 1024 else f"{size} ({nbytes:,} bytes)"


def group_html(group: Group) -> str:
    """Return a table of the members of a group, and of what was skipped.

    Examples
    --------
    >>> from virtualzarr import Group
    >>> ">a &amp; b/</td>" in group_html(Group({}, {"a & b": Group()}))
    True
    """
    # A notebook must show something even where the store fails: the error's text stands in.
    names: list[str] = []
    try:
        names = list(group)
        members = f"{len(names):,}"
    except VirtualZarrError as error:
        members = error.message
    rows = [("Group", f"/{group.path}"), ("Members", members)]
    text = _table(rows, "white-space:nowrap") + _attributes(group.attributes)
    if names:
        rows_of_members = _members(group, names)
        # Rows are made one by one: opening each of 100,000 members would take minutes.
        listed = list(islice(rows_of_members, ROWS))
        remaining = len(names) - sum("/" not in str(name).rstrip("/") for name, *_ in listed)
        note = f"<p>and {remaining:,} more</p>" if remaining else ""
        if not remaining and next(rows_of_members, None) is not None:
            note = "<p>and more in the last group</p>"
        text += table_html(_HEADS, listed) + note
    if group.skipped:
        skipped = list(group.skipped.items())
        text += _details(f"{len(skipped):,} skipped", skipped)
    return f'<div class="virtualzarr">{text}</div>'


_HEADS = ("Name", "Dimensions", "Data type", "Chunks", "Size")


def _members(group: Group, names: Iterable[str], above: str = "") -> Iterator[tuple[Any, ...]]:
    """Yield a row for each member, and for those of inner groups, one after the other."""
    from virtualzarr.array import Array

    for name in names:
        try:
            node = group[name]
            if isinstance(node, Array):
                described = (axes_text(node), node.dtype, _chunks(node), human_size(node.nbytes))
                yield (above + name, *described)
                continue
            inner = list(node)
        except VirtualZarrError as error:
            # One member that cannot be opened must not hide the others.
            yield (above + name, error.message, "", "", "")
            continue
        yield (f"{above}{name}/", f"group of {len(inner):,}", "", "", "")
        yield from _members(node, inner, f"{above}{name}/")


def table_html(heads: Iterable[str], rows: Iterable[Iterable[Any]]) -> str:
    """Return a table with a line of heads.

    Examples
    --------
    >>> table_html(["a"], [["<b>"]]).endswith(">&lt;b&gt;</td></tr></table>")
    True
    """
    head = "".join(f'<th style="text-align:left">{escape(head)}</th>' for head in heads)
    return f"<table><tr>{head}</tr>{''.join(map(_row, rows))}</table>"


def facts_html(rows: Iterable[tuple[str, Any]]) -> str:
    """Return a table of facts, without those of which there is nothing to say.

    Examples
    --------
    >>> facts_html([("Name", "<x>"), ("Tags", "")]).count("<tr>")
    1
    """
    return _table([row for row in rows if row[1] != ""], "white-space:nowrap")


def _row(cells: Iterable[Any]) -> str:
    # Aligned here, as notebooks align the cells of tables to the right.
    cells_html = (f'<td style="{_CELL}">{_text(cell)}</td>' for cell in cells)
    return f"<tr>{''.join(cells_html)}</tr>"


def _text(value: Any) -> str:
    """Return a value as text that is no markup, and not long."""
    # Escaped last, and cut before: half an entity would show as garbage. Names come from files.
    text = str(value)
    return escape(text if len(text) <= TEXT else f"{text[:TEXT]}…")


def _table(rows: Iterable[tuple[Any, Any]], head: str = "") -> str:
    body = "".join(
        f'<tr><th style="text-align:left;{head}">{_text(name)}</th>'
        f'<td style="{_CELL}">{_text(value)}</td></tr>'
        for name, value in rows
    )
    return f"<table>{body}</table>"


def _note_remaining(count: int) -> str:
    return f"<p>and {count - ROWS:,} more</p>" if count > ROWS else ""


def _details(title: str, rows: list[tuple[str, Any]]) -> str:
    table = _table(rows[:ROWS]) + _note_remaining(len(rows))
    return f"<details><summary>{escape(title)}</summary>{table}</details>"


def _attributes(attributes: Any) -> str:
    rows = list(attributes.items())
    return _details(f"Attributes ({len(rows):,})", rows) if rows else ""


def draw_grid(array: Array) -> str:
    """Return a drawing of the grid of an array as SVG; nothing without axes or elements.

    The last axis goes to the right, the one before it down, and the one before that from the back
    to the front; those before are named below. Cuts lie where they are in the array; lengths of
    different axes are drawn more alike than they are. Colors suit light and dark pages.
    """
    grid = array.grid
    if not isinstance(grid, SeparableGrid) or not grid.ndim or 0 in grid.shape:
        return ""
    first = max(grid.ndim - 3, 0)
    # The axis into the picture shifts points right and down alike, so that one number is both. A
    # grid of one axis is drawn as a row, by adding an axis of one cell.
    sizes = _sizes(grid.shape[first:])
    cuts = [_cuts(axis, size) for axis, size in zip(grid.axes[first:], sizes, strict=True)]
    if len(sizes) == 1:
        sizes, cuts = [2 * SHORTEST, *sizes], [[0.0, 2 * SHORTEST], *cuts]
    height, width = sizes[-2:]
    rows, columns = cuts[-2:]
    if len(sizes) == 3:
        depth = [DEPTH * cut for cut in cuts[0]]
    else:
        depth = [0.0]
    back = depth[-1]
    faces = [
        ([(0, 0), (width, 0), (width + back, back), (back, back)], 0.25),
        ([(0, 0), (back, back), (back, back + height), (0, height)], 0.45),
    ] if back else []  # fmt: skip
    front: list[Point] = [(back, back), (back + width, back),
                          (back + width, back + height), (back, back + height)]  # fmt: skip
    shapes = [_polygon(points, opacity) for points, opacity in [*faces, (front, 0.1)]]
    # One path element for all lines: each of its own would make the text several times longer.
    path = "".join(_lines(rows, columns, depth, width, height))
    names = [_axis_text(array, axis) for axis in range(first, grid.ndim)]
    x, total, bottom = _frame(names, width, height, back)
    others, wide, high = _name_others(array, first, x, bottom)
    total, bottom = max(total, wide), bottom + high
    label = escape(f"chunks of {axes_text(array)}"[:TEXT], quote=True)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{total:.0f}" height="{bottom:.0f}" '
        f'viewBox="{x:.1f} -2 {total:.1f} {bottom:.1f}" role="img" '
        f'aria-label="{label}" style="flex:none">'
        f'{"".join(shapes)}<path d="{path}" stroke="{COLOR}" stroke-width="1" fill="none"/>'
        '<g fill="currentColor" font-family="sans-serif" font-size="11">'
        f"{''.join(_labels(names, width, height, back))}{others}</g></svg>"
    )


def _name_others(array: Array, first: int, x: float, bottom: float) -> tuple[str, float, float]:
    """Return a line on the axes that are not drawn, its width and its height."""
    if not first:
        return "", 0.0, 0.0
    names = ", ".join(_axis_text(array, axis) for axis in range(first))
    text = f"for each of {names if len(names) <= 2 * LABEL else f'{names[: 2 * LABEL]}…'}"
    return _label(text, x + 2, bottom + 12, "start"), LETTER * len(text) + 4, 18.0


def _frame(
    names: list[str], width: float, height: float, back: float
) -> tuple[float, float, float]:
    """Return where the picture begins on the left, its width and height, names included."""
    middle, half = back + width / 2, LETTER * len(names[-1]) / 2
    beside = back + width + 8 + LETTER * max(map(len, names[:-1]), default=0)
    left = min(-2.0, middle - half)
    return left, max(beside, middle + half) + 2 - left, height + back + 20


def _axis_text(array: Array, axis: int) -> str:
    name, length = array.dims[axis], array.shape[axis]
    text = f"{length:,}" if name is None else f"{name}: {length:,}"
    return text if len(text) <= LABEL else f"{text[:LABEL]}…"


def _labels(names: list[str], width: float, height: float, back: float) -> Iterator[str]:
    """Yield the name of the last axis below the picture, and those of others to the right."""
    right, middle = back + width, back + height / 2 + 4
    yield _label(names[-1], right - width / 2, back + height + 14, "middle")
    if len(names) == 3:
        # Never above the picture, however flat it is.
        yield _label(names[0], right - back / 2 + 6, max(back / 2 + 1, 8.0), "start")
        middle = max(middle, back / 2 + 14, 21.0)
    if len(names) > 1:
        yield _label(names[-2], right + 6, middle, "start")


def _label(text: str, x: float, y: float, anchor: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


def _lines(
    rows: list[float], columns: list[float], depth: list[float], width: float, height: float
) -> Iterator[str]:
    """Yield the cuts on the front, and on the two sides where there is depth."""
    back = depth[-1]
    for y in rows:
        yield _line((back, back + y), (back + width, back + y))
        if back:
            yield _line((0, y), (back, back + y))
    for x in columns:
        yield _line((back + x, back), (back + x, back + height))
        if back:
            yield _line((x, 0), (back + x, back))
    if back:
        for z in depth:
            yield _line((z, z), (z + width, z))
            yield _line((z, z), (z, z + height))


def _line(start: Point, stop: Point) -> str:
    return f"M{start[0]:.1f} {start[1]:.1f}L{stop[0]:.1f} {stop[1]:.1f}"


def _polygon(points: list[Point], opacity: float) -> str:
    corners = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    return f'<polygon points="{corners}" fill="{COLOR}" fill-opacity="{opacity}"/>'


def _sizes(shape: tuple[int, ...]) -> list[float]:
    """Return the pixels of each axis."""
    # Square roots: an axis of 3 beside one of 10,000 would not be visible in proportion.
    longest = max(shape)
    return [max(SHORTEST, LONGEST * (length / longest) ** 0.5) for length in shape]


def _cuts(axis: Axis, size: float) -> list[float]:
    """Return where to draw cuts along an axis, its two ends among them."""
    # Objects, as the product of two counts may exceed 64 bits.
    count = min(axis.ncells, LINES)
    cells = np.arange(count, dtype=object) * axis.ncells // count
    starts = axis.start(cells.astype(np.int64)) / axis.extent * size
    return [*starts.tolist(), size]
