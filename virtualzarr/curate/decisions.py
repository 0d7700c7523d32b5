"""Decision file: what is done about each thing that is odd in an archive, kept with its sources."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any, Literal, get_args

from virtualzarr.archive.anomalies import Anomaly, Kind
from virtualzarr.archive.eras import Era
from virtualzarr.archive.survey import Survey
from virtualzarr.choices import ReferenceFormat
from virtualzarr.curate.archive_record import RECORDED, ArchiveRecord
from virtualzarr.curate.decision_text import parse_text
from virtualzarr.errors import DecisionError, suggest
from virtualzarr.redaction import strip_secrets
from virtualzarr.references.registry import get_form

VERSION = 1

Action = Literal[
    "accept", "skip", "fill", "keep-first", "keep-last", "convert", "copy", "virtual-for-us", "stop"
]
"""What can be done: see `docs/surveying.md`."""

_MOST_BYTES = 16 << 20
_TOP = ("virtualzarr-decisions", "archive", "publish", "decide")
_ARCHIVE = ("paths", "inventory", "files", "listing", "format", *RECORDED)
_PUBLISH = ("form", "to", "dim", "strands")
_JSON = (".json", ".json.zst", ".json.gz")
_LINE = ("at", "do", "files", "what", "from", "strand")
NEW = "new"
_NEW_ACTIONS: tuple[Action, ...] = ("stop", "skip", "accept")
_TWICE = ("same content twice", "replaced", "overlap")
BROKEN = ("empty", "truncated", "no permission", "not the format", "not supported",
           "damaged metadata", "gone", "dangling link", "unreachable",
           "changed during the scan")  # fmt: skip
MISSING = ("variable gone", "variable added")
GAPS = ("step missing", "span missing")
CONVERTED = ("units", "epoch", "calendar", "scale/offset", "fill", "data type")
_INSIDE = "within files"
"""The end of keys of gaps that no join can fill, as they are not between files."""

_CONVERTING = ("convert", "virtual-for-us", "copy")
_ENCODED = ("byte order", "chunk shape", "filters", "format")
_HARMLESS = ("jitter", "step changes", "lossy parameter", "half-written",
             "name contradicts coordinate", "order unlike names")  # fmt: skip


def list_actions(kind: str) -> tuple[Action, ...]:
    """Return what can be done about anomalies of a kind.

    Examples
    --------
    >>> list_actions("truncated"), list_actions("overlap")
    (('skip', 'stop'), ('keep-first', 'keep-last', 'skip', 'stop'))
    """
    if kind in BROKEN:
        return ("skip", "stop")
    if kind in _TWICE:
        return ("keep-first", "keep-last", "skip", "stop")
    if kind in MISSING:
        return ("fill", "skip", "stop")
    if kind in GAPS:
        return ("accept", "fill", "skip", "stop")
    if kind in CONVERTED:
        return ("convert", "virtual-for-us", "copy", "skip", "stop")
    if kind in _ENCODED:
        return ("virtual-for-us", "copy", "skip", "stop")
    if kind in _HARMLESS:
        return ("accept", "skip", "stop")
    return ("skip", "stop")


def _list_line_actions(at: str, form: str) -> tuple[Action, ...]:
    """Return what can be done about what a line is of, in a form. Raises `DecisionError`."""
    if at == NEW:
        return _NEW_ACTIONS
    actions = list_actions(_find_kind(at))
    if at.endswith(f"/{_INSIDE}"):
        actions = tuple(do for do in actions if do != "fill")
    if get_form(form).capabilities.as_is:  # nothing is copied there
        actions = tuple(do for do in actions if do != "copy")
    return actions


@dataclass(frozen=True)
class EraMark:
    """By what a line knows its era again, as numbers of eras change when files come or go.

    Parameters
    ----------
    what : str
        What changes where it begins, in words.
    start : str
        Its first coordinate, as text; empty if there is none.
    strand : str
        The satellite, tile or product that it is of; empty if there is one only.
    """

    what: str = ""
    start: str = ""
    strand: str = ""

    def __str__(self) -> str:
        start = f" from {self.start}" if self.start else ""
        strand = f" of {self.strand}" if self.strand else ""
        return f"{self.what or 'no `what`'}{start}{strand}"


@dataclass(frozen=True)
class Decision:
    """A line of the file.

    Parameters
    ----------
    at : str
        Kind, variable and era; "new" for what has no line.
    do : str or None
        None where nobody has decided yet.
    files : int, optional
        How many there were when it was decided; more stop the run.
    mark : EraMark
        Of the era that it was decided of, if it is about one.
    """

    at: str
    do: Action | None
    files: int | None = None
    mark: EraMark = EraMark()


@dataclass(frozen=True)
class Decisions:
    """What a decision file says.

    Parameters
    ----------
    paths : tuple of str
        Files and patterns of the archive.
    files : int
        How many there were.
    listing : str
        Digest of their names and sizes.
    format : str, optional
    inventory : str, optional
        A listing of the archive, instead of paths: see `virtualzarr.read_listing`.
    record : ArchiveRecord
        How it was surveyed.
    form, to : str
        What is written, and where; ``{strand}`` in ``to`` is the satellite, tile or product.
    dim : str
    lines : tuple of Decision
    digest : str
        Of the file.
    strands : tuple of str
        Satellites, tiles or products that are published; an empty text if there is one only.
    """

    paths: tuple[str, ...]
    files: int
    listing: str
    format: str | None
    form: ReferenceFormat
    to: str
    dim: str
    lines: tuple[Decision, ...]
    digest: str = ""
    inventory: str | None = None
    strands: tuple[str, ...] = ("",)
    record: ArchiveRecord = field(default_factory=ArchiveRecord)

    def name_target(self, strand: str) -> str:
        """Return where a strand is written."""
        return self.to.replace("{strand}", strand)

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> Decisions:
        """Read a decision file: JSON if its name ends so, else YAML.

        Raises
        ------
        DecisionError
            It has an unknown key, lacks one, or a value that it cannot have.
        """
        name = os.fspath(path)
        try:
            with open(path, "rb") as file:
                data = file.read(_MOST_BYTES + 1)
        except OSError as error:
            raise DecisionError(
                f"the decision file cannot be read: {error.strerror}", file=name
            ) from error
        if len(data) > _MOST_BYTES:
            raise DecisionError("the decision file is too large", file=name)
        try:
            document = parse_text(data, name)
        except (ValueError, RecursionError) as error:
            raise DecisionError(f"the decision file cannot be read: {error}", file=name) from error
        try:
            return _read_document(document, blake2b(data, digest_size=16).hexdigest())
        except DecisionError as error:
            raise error.at(file=name) from None


def _read_document(document: Any, digest: str) -> Decisions:
    # Key by key, so that each error says which one it is about.
    top = _take(document, "the file", _TOP, _TOP)
    version = top["virtualzarr-decisions"]
    if type(version) is not int or version != VERSION:
        raise DecisionError(f"the file is of version {version!r}, and this program knows {VERSION}")
    archive = _take(top["archive"], "archive", _ARCHIVE, ("paths", "files", "listing"))
    target = _take(top["publish"], "publish", _PUBLISH, ("form", "to", "dim"))
    paths = archive["paths"]
    if not isinstance(paths, list) or not all(isinstance(path, str) for path in paths):
        raise DecisionError("archive.paths is a list of texts")
    for name in ("format", "inventory", "listing"):
        if not isinstance(archive.get(name), str | None):
            raise DecisionError(f"archive.{name} is a text, not {archive[name]!r:.200}")
    forms = get_args(ReferenceFormat)
    if target["form"] not in forms:
        near = suggest(str(target["form"]), forms)
        raise DecisionError(f"publish.form is {target['form']!r}; {near}")
    for name in ("to", "dim"):
        if not isinstance(target[name], str) or not target[name]:
            raise DecisionError(f"publish.{name} is missing: nobody has decided yet")
    if target["form"] != "json" and target["to"].endswith(_JSON):
        raise DecisionError(
            f"publish.to is {target['to']!r}, a file of JSON, and publish.form is "
            f"{target['form']!r}: say json there, or name a folder"
        )
    for name in (target["to"], archive.get("inventory") or "", *paths):
        _check_name(name)
    _check_count(archive["files"], "archive.files")
    strands = target.get("strands", [""])
    if not isinstance(strands, list) or not all(isinstance(name, str) for name in strands):
        raise DecisionError("publish.strands is a list of texts")
    lines = top["decide"] or []
    if not isinstance(lines, list):
        raise DecisionError("decide is a list of lines")
    record = ArchiveRecord.read(archive)
    decided = _read_lines(lines, target["form"])
    record.check_lines(line.at for line in decided)
    return Decisions(
        tuple(paths), archive["files"], str(archive["listing"]), archive.get("format"),
        target["form"], target["to"], target["dim"], decided, digest,
        archive.get("inventory"), tuple(strands), record,
    )  # fmt: skip


def _read_lines(lines: Sequence[Any], form: str) -> tuple[Decision, ...]:
    decisions: dict[str, Decision] = {}
    for line in lines:
        entry = _take(line, "a line of decide", _LINE, ("at", "do"))
        at, do, files = entry["at"], entry["do"], entry.get("files")
        if not isinstance(at, str) or at in decisions:
            raise DecisionError(f"the line {at!r} is there twice, or is no text")
        if files is not None:
            _check_count(files, f"files of the line {at!r}")
        actions = _list_line_actions(at, form)
        if do is not None and do not in actions:
            names = ", ".join(actions)
            raise DecisionError(f"the line {at!r} cannot be {do!r} in the form {form}, but {names}")
        texts = [entry.get(name, "") for name in ("what", "from", "strand")]
        if not all(isinstance(text, str) for text in texts):
            raise DecisionError(f"what, from and strand of the line {at!r} are texts")
        decisions[at] = Decision(at, do, files, EraMark(*texts))
    return tuple(decisions.values())


def _find_kind(at: str) -> str:
    """Return the kind that a key begins with. Raises `DecisionError` if it begins with none."""
    for kind in get_args(Kind):
        if at == kind or at.startswith(f"{kind}/"):
            return str(kind)
    raise DecisionError(f"the line {at!r} is of no kind; {suggest(at, get_args(Kind))}")


def _check_name(text: str) -> None:
    """Refuse text that names no file: halves of characters, but for bytes that are no text."""
    try:
        text.encode(errors="surrogateescape")
    except UnicodeEncodeError:
        raise DecisionError(f"{text!r} names no file: it has half of a character") from None


def _check_count(value: Any, what: str) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise DecisionError(f"{what} is a number of files, not {value!r}")


def _take(value: Any, what: str, names: Sequence[str], needed: Sequence[str]) -> Mapping[str, Any]:
    """Return a mapping that has no other keys than these, and all that are needed."""
    if not isinstance(value, Mapping):
        raise DecisionError(f"{what} is no mapping, but {type(value).__name__}")
    for name in value:
        if name not in names:
            raise DecisionError(f"{what} has an unknown key {name!r}; {suggest(str(name), names)}")
    for name in needed:
        if name not in value:
            raise DecisionError(f"{what} has no {name}")
    return value


def name_anomaly(anomaly: Anomaly) -> str:
    """Return the key under which an anomaly is decided: kind, variable and era.

    Gaps within files have keys of their own: joins put nothing into files.

    Examples
    --------
    >>> name_anomaly(Anomaly("filters", ("a.nc",), "CMI_*", era=2))
    'filters/CMI_*/era 2'
    >>> name_anomaly(Anomaly("step missing", ("a.nc",), "time"))
    'step missing/time/within files'
    """
    parts = [anomaly.kind, *([anomaly.variable] if anomaly.variable else [])]
    if anomaly.kind in GAPS and len(anomaly.files) == 1 and anomaly.era is None:
        parts.append(_INSIDE)
    return "/".join([*parts, *([f"era {anomaly.era}"] if anomaly.era is not None else [])])


def group_anomalies(report: Survey) -> dict[str, tuple[str, ...]]:
    """Return the files of all anomalies by their keys, sorted."""
    files: dict[str, dict[str, None]] = {}
    for anomaly in report.anomalies:
        entry = files.setdefault(name_anomaly(anomaly), {})
        entry |= dict.fromkeys(anomaly.files)
    return {key: tuple(files[key]) for key in sorted(files)}


def mark_eras(report: Survey) -> dict[str, EraMark]:
    """Return by what the lines about eras know them again, by their keys."""
    words: dict[str, dict[str, None]] = {}
    eras: dict[str, Era] = {}
    for odd in report.anomalies:
        if odd.era is not None:
            words.setdefault(name_anomaly(odd), {})[odd.detail] = None
            eras[name_anomaly(odd)] = report.eras[odd.era - 1]
    return {key: EraMark("; ".join(words[key]), era.start, era.strand)
            for key, era in eras.items()}  # fmt: skip


def draft_decisions(
    report: Survey,
    paths: Sequence[str | os.PathLike[str]],
    *,
    form: str = "native",
    to: str = "",
    inventory: str | None = None,
) -> str:
    """Return a decision file in YAML in which nothing is decided yet, but what can be said.

    Parameters
    ----------
    report : Survey
    paths : sequence of str
        Of the archive.
    form, to : str
        What is to be written, and where.
    inventory : str, optional
        The listing that the names are from, which a run reads again.
    """
    named = [] if inventory is not None else [strip_secrets(os.fspath(path)) for path in paths]
    # As text and not by a library: people edit it, and comments say what a line may have.
    lines = [
        f"virtualzarr-decisions: {VERSION}",
        "archive:",
        f"  paths: {_quote(named)}",
        *([] if inventory is None else [f"  inventory: {_quote(strip_secrets(inventory))}"]),
        f"  files: {report.files}",
        f"  listing: {_quote(report.listing)}",
        *(f"  format: {_quote(name)}" for name in [report.options.get("format")] if name),
        *(f"  {entry}" for entry in ArchiveRecord.of(report).list_entries()),
        "publish:",
        f"  form: {form}",
        f"  to: {_quote(to)}",
        f"  dim: {_quote(report.dim or '')}",
        *([] if report.strands.keys() <= {""} else [f"  strands: {_quote([*report.strands])}"]),
        "decide:",
        "  # What comes later and has no line: stop, skip (the files), accept",
        '  - {at: "new", do: stop}',
    ]
    fixed, marks = _list_unconvertible(report), mark_eras(report)
    for key, files in group_anomalies(report).items():
        actions = ", ".join(do for do in _list_line_actions(key, form)
                            if key not in fixed or do not in _CONVERTING)  # fmt: skip
        mark = _write_mark(marks.get(key, EraMark()))
        lines.append(f"  - {{at: {_quote(key)}, do: null, files: {len(files)}{mark}}}  # {actions}")
    return "\n".join([*lines, ""])


def _write_mark(mark: EraMark) -> str:
    entries = {"what": mark.what, "from": mark.start, "strand": mark.strand}
    return "".join(f", {name}: {_quote(text)}" for name, text in entries.items() if text)


def _list_unconvertible(report: Survey) -> dict[str, str]:
    """Return what differs that joins cannot convert, by key: units of no times, calendars."""
    return {name_anomaly(odd): odd.detail for odd in report.anomalies if not odd.can_convert}


def _quote(value: Any) -> str:
    """Return a value as JSON, which YAML reads."""
    return json.dumps(value)


def check_decisions(decisions: Decisions, report: Survey) -> Iterator[str]:
    """Yield why a run must not begin: what is undecided, or of more files than was decided."""
    lines = {line.at: line for line in decisions.lines}
    new = lines.get(NEW, Decision(NEW, "stop"))
    groups, fixed = group_anomalies(report), _list_unconvertible(report)
    marks = mark_eras(report)
    if new.do is None:
        yield f"{NEW}: undecided"
    for key, files in groups.items():
        line, mark = lines.get(key), marks.get(key, EraMark())
        if line is None:
            if new.do in (None, "stop"):
                yield f"{key}: {len(files):,} files, and no line that decides"
        elif line.mark != mark:
            yield f"{key}: decided of another era ({line.mark}) than is there now ({mark})"
        elif line.do is None:
            yield f"{key}: undecided"
        elif line.do == "stop":
            yield f"{key}: stop was decided"
        elif key in fixed and line.do in _CONVERTING:
            yield f"{key}: no join converts this ({fixed[key]}): skip it, or stop"
        elif line.files is not None and len(files) > line.files:
            yield f"{key}: {len(files):,} files, and decided of {line.files:,}"
    yield from _check_strands(decisions, report, new)
    yield from _find_unused(decisions, groups)


def _find_unused(decisions: Decisions, groups: Mapping[str, Any]) -> Iterator[str]:
    """Yield which lines hold for nothing: the archive is another than they were decided of."""
    for line in sorted(decisions.lines, key=lambda line: line.at):
        if line.at == NEW or line.at in groups:
            continue
        if "/era " in line.at:
            yield f"{line.at}: there is no such era any more"
        elif line.files:
            yield (
                f"{line.at}: decided of {line.files:,} files, and now there are none: remove the "
                "line, or say no number of files if it is about files to come"
            )


def _check_strands(decisions: Decisions, report: Survey, new: Decision) -> Iterator[str]:
    """Yield whether strands are others than were decided on: names depend on all names of files."""
    decided, strands = {*decisions.strands}, report.strands.keys()
    if not strands:
        return
    if decided - strands:
        before, now = (", ".join(sorted(names)) if names != {""} else "one without a name"
                       for names in (decided, strands))  # fmt: skip
        yield f"publish.strands: there is {now} now, and decided was {before}: draft the file again"
    elif strands - decided and new.do in (None, "stop"):
        names = ", ".join(sorted(strands - decided))
        yield f"publish.strands: nobody has decided on {names}; list what is to be published"
