"""Page of a survey for people: one HTML file with timeline, differences and gaps."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import datetime
from html import escape
from pathlib import Path
from typing import Any

from virtualzarr.archive.anomalies import Anomaly
from virtualzarr.archive.survey import Survey
from virtualzarr.curate.publication import list_archive
from virtualzarr.curate.verdict import Verdict, sum_costs
from virtualzarr.manifest import Source
from virtualzarr.redaction import hide_secrets
from virtualzarr.references.overwrite import COMPANIONS, check_ours
from virtualzarr.stores.atomic_files import AtomicFile
from virtualzarr.stores.location import Location

MAX_BYTES = 2_000_000
"""What a page may have, whatever the archive has."""

MAX_ROWS = 1000
"""Anomalies of single files that are listed."""

_MAX_ERAS = 200
_MAX_COLUMNS = 20
_MAX_VARIABLES = 200
_MAX_TEXT = 200
_MAX_YEARS = 60
_COLORS = ("#0b6e99", "#c46200", "#3f7d20", "#8a3ffc", "#b0264f", "#5d5d5d", "#007d79", "#7a5c00")
_REST = "#999"
_STYLE = Path(__file__).with_name("survey.css").read_text(encoding="utf-8")


def make_page(report: Survey, verdicts: Sequence[Verdict] = ()) -> str:
    """Return the page. All names and texts of the archive are escaped, and cut if they are long.

    Parameters
    ----------
    report : Survey
    verdicts : sequence of Verdict, optional
        What each form would copy.
    """
    parts = [
        f"<h1>{report.files:,} files</h1>", _tell(report), _draw_timeline(report),
        _tabulate_eras(report), _tabulate_changes(report), _draw_calendar(report),
        _tabulate_verdicts(verdicts),
    ]  # fmt: skip
    head = (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        '<meta http-equiv="Content-Security-Policy" '
        "content=\"default-src 'none'; style-src 'unsafe-inline'\">"
        f'<meta name="generator" content="virtualzarr"><title>Survey</title><style>{_STYLE}</style>'
        "</head><body><main>"
    )
    page = head + "".join(parts)
    tail = "</main></body></html>"
    return page + _tabulate_odd(report, MAX_BYTES - len(page.encode()) - len(tail)) + tail


def check_page(path: str | os.PathLike[str], sources: Iterable[Source] = ()) -> Location:
    """Return where a page is to be written, if that is none of the files given, nor foreign.

    Raises
    ------
    NodeExistsError
    """
    location = Location.of(path)
    check_ours(location, "page", COMPANIONS["page"][1], sources)
    return location


def write_page(report: Survey, verdicts: Sequence[Verdict], path: str | os.PathLike[str]) -> None:
    """Write the page, in place of a page of ours at most, and never of a file of the archive.

    Raises
    ------
    NodeExistsError
        There is something else.
    WriteError
        It cannot be written; what was there is there still.
    """
    location = check_page(path, list_archive(report))
    # Links are followed by both, so that what was looked at is what is replaced.
    with AtomicFile(location) as file:
        file.write(make_page(report, verdicts).encode())
        file.commit()


def _show(text: object, most: int = _MAX_TEXT) -> str:
    """Return a text of the archive for the page: whatever is in it does nothing there."""
    shortened = hide_secrets(str(text))
    shortened = shortened if len(shortened) <= most else f"{shortened[: most - 1]}\u2026"
    # Control characters and marks that turn the direction of what follows are no text to show.
    clean = "".join(char if char.isprintable() else "\ufffd" for char in shortened)
    return escape(clean, quote=True)


def _tell(report: Survey) -> str:
    formats = ", ".join(
        f"{count:,} {_show(name)}" for name, count in sorted(report.formats.items())
    )
    along = f", along <b>{_show(report.dim)}</b>" if report.dim else ""
    counts = Counter(each.kind for each in report.anomalies if each.era is None)
    odd = ", ".join(f"{count:,} {_show(kind)}" for kind, count in sorted(counts.items()))
    return (
        f"<p>{report.nbytes:,} bytes ({formats or 'none was scanned'}){along}. "
        f"{len(report.eras):,} era{'' if len(report.eras) == 1 else 's'}. "
        f"Odd: {odd or 'nothing'}.</p>"
    )


def _as_seconds(text: str) -> float | None:
    """Return a coordinate as a number: seconds for dates."""
    try:
        return float(text)
    except ValueError:
        pass
    try:
        return (datetime.fromisoformat(text) - datetime(1970, 1, 1)).total_seconds()
    except ValueError:
        return None


def _draw_timeline(report: Survey) -> str:
    """Draw eras as bars along the coordinate, a row for each strand; gaps are red lines."""
    # Places are parts of the whole extent, in percent: the page has no scripts to calculate them.
    spans = [(_as_seconds(era.start), _as_seconds(era.stop)) for era in report.eras]
    bounds = [end for pair in spans for end in pair if end is not None]
    if not bounds:
        return ""
    low, high = min(bounds), max(bounds)
    length = (high - low) or 1.0
    rows: dict[str, list[str]] = {}
    summary: dict[str, tuple[int, float, float]] = {}
    for number, (era, (start, stop)) in enumerate(zip(report.eras, spans, strict=True)):
        if start is None or stop is None:
            continue
        if number >= _MAX_ERAS:
            count, first_start, last_stop = summary.get(era.strand, (0, start, stop))
            summary[era.strand] = (count + 1, min(start, first_start), max(stop, last_stop))
            continue
        span = 100 * (start - low) / length, 100 * (stop - start) / length
        title = f"era {number + 1}: {era.files:,} files, {era.start} to {era.stop}"
        color = _COLORS[number % len(_COLORS)]
        rows.setdefault(era.strand, []).append(_draw_bar(*span, color, title))
    # What is not drawn one by one is one bar, as nothing would say that there are no files.
    for strand, (count, start, stop) in summary.items():
        span = 100 * (start - low) / length, 100 * (stop - start) / length
        if strand in rows:
            title = f"{count:,} eras more, which are not drawn one by one"
            rows[strand].append(_draw_bar(*span, _REST, title))
    every = _list_gaps(report)
    gaps = every[:MAX_ROWS]
    ends = {gap.files[-1] for gap in gaps}
    strands = {name: strand for strand, names in report.strands.items() for name in names
               if name in ends}  # fmt: skip
    for gap in gaps:
        if (bars := rows.get(strands.get(gap.files[-1], ""))) is not None:
            bars.append(_mark_gap(gap, low, length))
    drawn = "".join(
        f"<div>{_show(strand)}</div><div class=bar>{''.join(bars)}</div>"
        for strand, bars in rows.items()
    )
    first = min(report.eras, key=lambda era: _as_seconds(era.start) or high)
    last = max(report.eras, key=lambda era: _as_seconds(era.stop) or low)
    scale = (
        f"<div class=scale><span>{_show(first.start)}</span><span>{_show(last.stop)}</span></div>"
    )
    notes = _say_rest(len(report.eras), _MAX_ERAS, "eras", "are drawn one by one")
    notes += _say_rest(len(every), MAX_ROWS, "gaps", "are marked")
    return f"<h2>Eras along {_show(report.dim)}</h2>{drawn}{scale}{notes}"


def _draw_bar(left: float, width: float, color: str, title: str) -> str:
    style = f"left:{left:.3f}%;width:{width:.3f}%;background:{color}"
    return f'<span style="{style}" title="{_show(title)}"></span>'


def _list_gaps(report: Survey) -> list[Anomaly]:
    return [each for each in report.anomalies
            if each.kind in ("step missing", "span missing") and each.span is not None]  # fmt: skip


def _mark_gap(gap: Anomaly, low: float, length: float) -> str:
    assert gap.span is not None
    at = _as_seconds(gap.span[0])
    if at is None:
        return ""
    title = _show(f"{gap.kind}: {gap.span[0]} to {gap.span[1]}, {gap.detail}")
    return f'<b style="left:{100 * (at - low) / length:.3f}%" title="{title}"></b>'


def _tabulate_eras(report: Survey) -> str:
    rows = [
        (f'<span class=key style="background:{_COLORS[k % len(_COLORS)]}"></span>{k + 1}',
         _show(era.strand), f"{era.files:,}", f"{era.nbytes:,}", _show(era.start), _show(era.stop),
         _show(era.first), _show(era.last))
        for k, era in enumerate(report.eras[:_MAX_ERAS])
    ]  # fmt: skip
    names = ("era", "strand", "files", "bytes", "from", "to", "first file", "last file")
    return f"<h2>Eras</h2>{_table(names, rows)}{_say_rest(len(report.eras), _MAX_ERAS, 'eras')}"


def _tabulate_changes(report: Survey) -> str:
    """Return a matrix: what changes of each variable where each era begins."""
    cells: dict[str, dict[int, list[str]]] = {}
    for each in report.anomalies:
        if each.era is not None:
            entry = cells.setdefault(each.variable, {}).setdefault(each.era, [])
            entry.append(f"{each.kind}: {each.detail}")
    if not cells:
        return ""
    every = sorted({era for entry in cells.values() for era in entry})
    eras = every[:_MAX_COLUMNS]
    rows = [
        (_show(variable), *("<br>".join(_show(text) for text in entry.get(era, [])[:5])
                            for era in eras))
        for variable, entry in sorted(cells.items())[:_MAX_VARIABLES]
    ]  # fmt: skip
    names = ("variable", *(f"era {era}" for era in eras))
    notes = _say_rest(len(every), _MAX_COLUMNS, "eras with changes")
    notes += _say_rest(len(cells), _MAX_VARIABLES, "variables")
    return f"<h2>What changes</h2>{_table(names, rows, mark='change')}{notes}"


def _draw_calendar(report: Survey) -> str:
    """Draw months, red where steps are missing."""
    months: Counter[tuple[int, int]] = Counter()
    for gap in _list_gaps(report):
        months.update(_list_months(gap.span))
    present: set[tuple[int, int]] = set()
    for era in report.eras:
        present |= set(_list_months((era.start, era.stop)))
    if not present:
        return ""
    years = sorted({year for year, _ in present})
    rows = []
    for year in years[:_MAX_YEARS]:
        rows.append(f"<div class=none>{year}</div>")
        for month in range(1, 13):
            count = months[year, month]
            kind = " class=gap" if count else "" if (year, month) in present else " class=none"
            number = f"{count:,} gap{'' if count == 1 else 's'}"
            title = f"{year}-{month:02}: {number}" if count else f"{year}-{month:02}"
            text = f"{month}: {number}" if count else month
            rows.append(f'<div{kind} title="{title}">{text}</div>')
    notes = _say_rest(len(years), _MAX_YEARS, "years")
    return f"<h2>Gaps</h2><div class=year>{''.join(rows)}</div>{notes}"


def _list_months(span: tuple[str, str] | None) -> list[tuple[int, int]]:
    """Return the months from one date to another; none of what is no date."""
    try:
        first, last = (datetime.fromisoformat(text) for text in span or ("", ""))
    except ValueError:
        return []
    numbers = range(first.year * 12 + first.month - 1, last.year * 12 + last.month)
    return [(number // 12, number % 12 + 1) for number in numbers[: 12 * 1000]]


def _tabulate_verdicts(verdicts: Sequence[Verdict]) -> str:
    if not verdicts:
        return ""
    items = "".join(f"<li><b>{_show(form)}</b>: {_show(text, 400)}</li>"
                   for form, text in sum_costs(list(verdicts)))  # fmt: skip
    rows = [
        (_show(each.form), f"{each.era}", _show(each.variable), _show(each.result),
         f"{each.chunks:,}", f"{each.nbytes:,}", _show(each.why))
        for each in verdicts[:MAX_ROWS]
    ]  # fmt: skip
    names = ("form", "era", "variable", "result", "chunks to copy", "bytes, about", "why")
    return f"<h2>Verdict</h2><ul>{items}</ul>{_table(names, rows)}"


def _tabulate_odd(report: Survey, room: int) -> str:
    """Return the anomalies of single files, as many as there is room for."""
    single = [each for each in report.anomalies if each.era is None]
    if not single:
        return ""
    rows: list[str] = []
    room -= 1000
    for each in single[:MAX_ROWS]:
        files = "<br>".join(_show(name) for name in each.files[:3])
        others = f"<br>and {len(each.files) - 3:,} more" if len(each.files) > 3 else ""
        row = _row((_show(each.kind), _show(each.variable), _show(each.detail), files + others))
        room -= len(row.encode())
        if room < 0:
            break
        rows.append(row)
    names = ("kind", "variable", "what", "files")
    notes = _say_rest(len(single), len(rows), "anomalies")
    table = f"<div class=wide><table>{_row(names, 'th')}{''.join(rows)}</table></div>"
    return f"<h2>Odd files</h2>{table}{notes}"


def _say_rest(count: int, shown: int, noun: str, verb: str = "") -> str:
    words = f"The first {shown:,} of {count:,} {noun} {verb}".rstrip()
    return f"<p>{words}.</p>" if count > shown else ""


def _table(names: Iterable[str], rows: Iterable[Sequence[str]], mark: str = "") -> str:
    body = "".join(_row(row, mark=mark) for row in rows)
    return f"<div class=wide><table>{_row(names, 'th')}{body}</table></div>"


def _row(cells: Iterable[Any], tag: str = "td", mark: str = "") -> str:
    marked = [
        f"<{tag} class={mark}>{cell}</{tag}>" if mark and k and cell else f"<{tag}>{cell}</{tag}>"
        for k, cell in enumerate(cells)
    ]
    return f"<tr>{''.join(marked)}</tr>"
