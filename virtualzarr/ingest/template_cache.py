"""Cache of templates: which recorded scans are tried for a file, and how they are audited."""

from __future__ import annotations

import os
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from itertools import islice
from typing import Any

from virtualzarr.array import Array
from virtualzarr.batches import Row
from virtualzarr.config import config
from virtualzarr.errors import SourceChangedError, TemplateError, VirtualZarrError, count_warnings
from virtualzarr.formats.registry import BUILT_IN, FORMATS
from virtualzarr.formats.templates.recorder import Recorder
from virtualzarr.formats.templates.template import Template, read_head
from virtualzarr.hierarchy.group import Group
from virtualzarr.ingest.detect import scan
from virtualzarr.ingest.differences import find_difference
from virtualzarr.stores.file_heads import find_head, use_heads
from virtualzarr.stores.location import Location

MAX_TEMPLATES = 64
MAX_TEMPLATE_BYTES = 64 << 20
MAX_TRIED = 4
MAX_MISSES = 8
"""After so many files in a row that no template fitted, they are tried for each 16th only."""

_RARELY = 16
_AUDITED = 1000
# Files that are read together, which a kill loses, and the memory for that.
_AHEAD = 24
_AHEAD_BYTES = 8 << 20
_MAX_KINDS = 4096
# Scans that are recorded of which no template comes: so many, and one of so many more. Recording
# takes a sixth of the time of a scan.
_VAIN_FIRST, _VAIN_EACH = 4, 16


@dataclass(eq=False)
class _Kind:
    """Files with the same variables of the same shapes: many of them may be alike.

    Attributes
    ----------
    nfiles : int
        Files that were parsed since a template was made of one.
    nvain : int
        Templates that fitted nothing, less files that one fitted: each makes the next one wait for
        twice as many files.
    is_proven : bool
        Whether a file fitted one: then others are likely to be worth theirs at once.
    templates : list of Template
    """

    nfiles: int = 0
    nvain: int = 0
    is_proven: bool = False
    templates: list[Template] = field(default_factory=list)

    @property
    def is_due(self) -> bool:
        """Whether the next of these files is worth a template."""
        return self.nfiles >= ((1 << self.nvain) - 1 if self.is_proven else 2 << self.nvain)


class _Turns:
    """Guesses which template comes next, where products come in turns."""

    def __init__(self) -> None:
        self._previous: Template | None = None
        # Which one came after each, and whether that was so the last time.
        self._next: dict[int, Template] = {}
        self._is_regular = True
        # The number of the last file of each, and how many were read ahead in vain or not.
        self._last: dict[int, int] = {}
        self._reach: dict[int, int] = {}

    def begin(self) -> None:
        """Begin another list of files, whose numbers are others."""
        self._last.clear()

    @property
    def expected(self) -> Template | None:
        """The one that is worth a try before the file was looked at, if there is one."""
        return self._next.get(id(self._previous)) if self._is_regular else None

    def note(self, template: Template | None, number: int) -> None:
        """Note which template a file is of."""
        if template is not None:
            self._is_regular = self._next.get(id(self._previous)) is template
            self._next[id(self._previous)] = template
            self._last[id(template)] = number
        self._previous = template

    def list_following(self, template: Template, number: int, stop: int) -> Sequence[int]:
        """Return which files after one of a template are likely to be of it, too."""
        last = self._last.get(id(template))
        if last is None and self._next.get(id(template), template) is not template:
            return ()  # in lists before this one, others came in between
        step = 1 if last is None else number - last
        reach = self._reach.setdefault(id(template), 1)
        return range(number + step, min(number + _AHEAD + 1, stop), step)[:reach]

    def note_following(self, template: Template, outcomes: Sequence[bool]) -> None:
        """Note which of the files that were read ahead are of a template."""
        ngood = [*outcomes, False].index(False)
        self._reach[id(template)] = min(2 * ngood, _AHEAD) if all(outcomes) else max(ngood, 1)

    def drop(self, template: Template) -> None:
        """Forget a template."""
        self._last.pop(id(template), None)
        self._reach.pop(id(template), None)
        self._next.pop(id(template), None)
        self._next = {key: each for key, each in self._next.items() if each is not template}


class TemplateCache:
    """Scans files, by templates where they are alike.

    Parameters
    ----------
    options : mapping
        Of `virtualzarr.ingest.detect.scan`: the same for all files.

    Attributes
    ----------
    nalike, nparsed, naudited : int
        Files that a template fitted, that were parsed, and how many of the first were both.
    """

    def __init__(self, options: Mapping[str, Any]) -> None:
        self._options = dict(options)
        self._templates: list[Template] = []  # the last that fitted first
        self._hits: dict[int, int] = {}
        self._by_schema: dict[int, Template] = {}
        # By what their groups have: most files are alone in archives in which none are alike, and
        # are not even recorded.
        self._kinds: dict[Hashable, _Kind] = {}
        self._kind_of: dict[int, _Kind] = {}
        self._ndue = self._nvain = 0
        self._turns = _Turns()
        self._misses = self._skipped = 0
        self.nalike = self.nparsed = self.naudited = 0

    def scan_each(self, files: Sequence[str]) -> Iterator[Group | Row | VirtualZarrError]:
        """Yield what came of each file in order, or what is wrong with it."""
        ready: dict[int, Row] = {}
        tried: dict[int, set[int]] = {}
        self._turns.begin()
        for number, file in enumerate(files):
            scanned = ready.pop(number, None)
            if scanned is None and self._is_tried():
                scanned = self._try(files, number, ready, tried)
            attempts = tried.pop(number, set())
            if scanned is None:
                yield self._parse(file, number, attempts)
            else:
                yield self._accept(file, number, scanned)

    def _is_tried(self) -> bool:
        """Whether templates are tried for the next file."""
        self._skipped += 1
        return self._misses < MAX_MISSES or self._skipped % _RARELY == 0

    def _try(
        self,
        files: Sequence[str],
        number: int,
        ready: dict[int, Row],
        tried: dict[int, set[int]],
    ) -> Row | None:
        """Return what a template makes of a file, None if none fits."""
        if not self._templates:
            return None
        location = self._locate(files[number])
        if location is None:
            return None
        attempts = tried.setdefault(number, set())
        for template in islice(self._find_likely(location, attempts), MAX_TRIED):
            attempts.add(id(template))
            (scanned,) = template.read([location])
            if scanned is not None:
                # After the first file, which is audited, others are read some at a time.
                if self._hits[id(template)]:
                    numbers = self._turns.list_following(template, number, len(files))
                    self._read_ahead(template, files, numbers, ready, tried)
                return scanned
        return None

    def _find_likely(self, location: Location, tried: set[int]) -> Iterator[Template]:
        """Yield templates that may fit, the one that is expected first."""
        expected = self._turns.expected
        if expected is not None and id(expected) not in tried:
            yield expected
        others = [one for one in self._templates if one is not expected and id(one) not in tried]
        if len(others) < 2:
            yield from others
            return
        # One look at the file costs less than trying most of them.
        head = read_head(location, max(one.nfirst for one in others))
        if head is not None:
            yield from (one for one in others if one.begins_like(head))

    def _read_ahead(
        self,
        template: Template,
        files: Sequence[str],
        following: Sequence[int],
        ready: dict[int, Row],
        tried: dict[int, set[int]],
    ) -> None:
        """Read files that come as one block, of which most are likely to be alike, too."""
        count = max(_AHEAD_BYTES // template.image.nbytes, 1)
        numbers, locations = [], []
        for number in following[:count]:
            attempts = tried.setdefault(number, set())
            location = self._locate(files[number])
            if (
                number in ready
                or id(template) in attempts
                or len(attempts) >= MAX_TRIED
                or not location
            ):
                continue
            attempts.add(id(template))
            numbers.append(number)
            locations.append(location)
        if not numbers:
            return
        rows = template.read(locations)
        self._turns.note_following(template, [row is not None for row in rows])
        ready |= {number: row for number, row in zip(numbers, rows, strict=True) if row is not None}

    def _locate(self, file: str) -> Location | None:
        """Return where a file is that can be read without a request; None of any other."""
        location = Location.of(file, self._options.get("storage_options"))
        return None if location.is_remote and find_head(location) is None else location

    def _accept(self, file: str, number: int, scanned: Row) -> Group | Row | VirtualZarrError:
        self._misses = 0
        self.nalike += 1
        template = self._by_schema.get(id(scanned.schema))
        self._turns.note(template, number)
        if template is None:  # others have taken its place since the file was read
            return self._audit(file, scanned) if is_audited(file) else scanned
        self._templates.remove(template)
        self._templates.insert(0, template)
        self._hits[id(template)] += 1
        kind = self._kind_of[id(template)]
        was_due = kind.is_due
        kind.nvain, kind.is_proven = max(0, kind.nvain - 1), True
        self._ndue += kind.is_due - was_due
        if self._hits[id(template)] == 1 or is_audited(file):
            return self._audit(file, scanned)
        return scanned

    def _audit(self, file: str, scanned: Row) -> Group | Row | VirtualZarrError:
        """Scan a file both ways.

        Raises `TemplateError` if the results differ.
        """
        self.naudited += 1
        try:
            parsed = scan(file, **self._options)
        except VirtualZarrError as error:
            if isinstance(error, SourceChangedError) or self._is_changed(scanned):
                return error.at(file=file)
            difference = f"it fails: {error}"
        else:
            difference = find_difference(scanned.group(), parsed)
            if not difference:
                return scanned
            if self._is_changed(scanned):
                return parsed
        raise TemplateError(
            "the scan by a template is not that of the file itself; please report it, and set "
            f"virtualzarr.config.tuning.templates = False meanwhile ({difference})",
            file=file,
        )

    def _is_changed(self, scanned: Row) -> bool:
        try:
            assert scanned.source is not None
            with use_heads({}):  # what is there now, not what a head says
                scanned.source.check_unchanged()
        except VirtualZarrError:
            return True
        return False

    def _parse(self, file: str, number: int, tried: set[int]) -> Group | VirtualZarrError:
        """Scan a file without templates, and make one of it."""
        self.nparsed += 1
        self._misses += 1
        # Which kind the file is of shows when it has been parsed.
        is_recorded = self._ndue > 0 and (self._nvain <= _VAIN_FIRST + self.nparsed // _VAIN_EACH)
        recorder = Recorder() if is_recorded else None
        self._nvain += is_recorded
        before = count_warnings()
        try:
            group = scan(file, **self._options, recorder=recorder)
        except VirtualZarrError as error:
            return error.at(file=file)
        except Exception as error:
            error.add_note(f"while scanning {file}")
            raise
        template = None
        if count_warnings() == before and (kind := self._find_kind(group)) is not None:
            was_due = kind.is_due
            kind.nfiles += 1
            if recorder is not None:
                template = self._find_untried(file, kind, tried) or self._add(group, recorder, kind)
                self._nvain -= template is not None
            self._ndue += kind.is_due - was_due
        self._turns.note(template, number)
        return group

    def _find_kind(self, group: Group) -> _Kind | None:
        """Return the kind of a file, None of one of which there is never a template."""
        key = _describe(group)
        if key is None:
            return None
        kind = self._kinds.setdefault(key, _Kind())
        if len(self._kinds) > _MAX_KINDS:
            self._ndue -= self._kinds.pop(next(iter(self._kinds))).is_due
        return kind

    def _find_untried(self, file: str, kind: _Kind, tried: set[int]) -> Template | None:
        """Return the template that would have fitted a file, had it been tried."""
        untried = [one for one in kind.templates if id(one) not in tried]
        location = self._locate(file) if untried else None
        if location is None:
            return None
        for template in untried:
            (scanned,) = template.read([location])
            if scanned is not None:
                return template
        return None

    def _add(self, group: Group, recorder: Recorder, kind: _Kind) -> Template | None:
        """Make a template of a scan, if that can be, and enough other files were of its kind."""
        if not kind.is_due:
            return None
        kind.nfiles = 0
        kind.nvain += 1
        template = _make_template(group, recorder)
        if template is None:
            return None
        kind.templates.append(template)
        self._misses = min(self._misses, MAX_MISSES - 2)  # no file before could fit it
        self._templates.insert(0, template)
        self._hits[id(template)] = 0
        self._kind_of[id(template)] = kind
        self._by_schema[id(template.schema)] = template
        while (
            len(self._templates) > MAX_TEMPLATES
            or sum(one.nbytes for one in self._templates) > MAX_TEMPLATE_BYTES
        ):
            self._drop(self._templates.pop())
        return template

    def _drop(self, template: Template) -> None:
        del self._hits[id(template)], self._by_schema[id(template.schema)]
        self._kind_of.pop(id(template)).templates.remove(template)
        self._turns.drop(template)


def _describe(group: Group) -> Hashable:
    """Return what files that are alike have in common, at least; None of stored groups.

    Examples
    --------
    >>> _describe(Group({}, {"a": Group({})}))
    (('a', ()),)
    """
    if not isinstance(group._members, dict):
        return None
    # As they are, since a group gives its members out as copies with its own settings.
    return tuple(
        (name, node.shape, node.dtype.str) if isinstance(node, Array) else (name, _describe(node))
        for name, node in group._members.items()
    )


def _make_template(group: Group, recorder: Recorder) -> Template | None:
    """Make a template of a scan; None if it would be of no use for other files."""
    if recorder.obstacle:
        return None
    try:
        template = Template(group, recorder, recorder.source)
    except (ValueError, VirtualZarrError):
        return None
    return template if template.nbytes <= MAX_TEMPLATE_BYTES else None


def is_audited(file: str) -> bool:
    """Whether a file is one of those, one in a thousand, that are scanned both ways."""
    digest = blake2b(os.path.basename(file).encode("utf-8", "surrogateescape"), digest_size=8)
    return int.from_bytes(digest.digest(), "big") % _AUDITED == 0


def uses_templates(options: Mapping[str, Any]) -> bool:
    """Whether templates may be tried for files that are scanned with some options."""
    # A registered format might claim a file by its path, whatever is in it.
    claimed = any(
        each.matches_path is not None for name, each in FORMATS.items() if name not in BUILT_IN
    )
    recorded = (None, *(name for name, each in FORMATS.items() if each.records))
    return config.tuning.templates and options.get("format") in recorded and not claimed
