"""Cache of templates: which recorded scans are tried for a file, and how they are audited."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from hashlib import blake2b
from itertools import islice
from typing import Any

from virtualzarr.batches import Row
from virtualzarr.config import config
from virtualzarr.errors import TemplateError, VirtualZarrError, count_warnings
from virtualzarr.formats.registry import BUILT_IN, FORMATS
from virtualzarr.formats.templates.recorder import Recorder
from virtualzarr.formats.templates.template import Template, read_head
from virtualzarr.hierarchy.group import Group
from virtualzarr.ingest.detect import scan
from virtualzarr.ingest.differences import find_difference
from virtualzarr.stores.file_heads import find_head
from virtualzarr.stores.location import Location

MAX_TEMPLATES = 64
MAX_TEMPLATE_BYTES = 64 << 20
MAX_TRIED = 4
MAX_MISSES = 32
"""After so many files in a row that no template fitted, only each 16th is tried."""

_RARELY = 16
_AUDITED = 1000
# Files that are read together, which a kill loses, and the memory for that.
_AHEAD = 24
_AHEAD_BYTES = 8 << 20
_MAX_OUTLINES = 4096


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
        # Outlines of scans, with the templates that were made of others than the first one: most
        # files of which that costs are alone.
        self._outlines: dict[int, list[Template]] = {}
        # Products may come in turns: the template of the file before, which one came after each,
        # and the number of the last file of each.
        self._previous: Template | None = None
        self._next: dict[int, Template] = {}
        self._last: dict[int, int] = {}
        self._misses = self._skipped = 0
        self.nalike = self.nparsed = self.naudited = 0

    def scan_each(self, files: Sequence[str]) -> Iterator[Group | Row | VirtualZarrError]:
        """Yield what came of each file in order, or what is wrong with it."""
        ready: dict[int, Row] = {}
        tried: dict[int, set[int]] = {}
        self._last.clear()  # numbers of other lists of files
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
        """Whether templates are tried for the next file, and its scan is recorded."""
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
                    step = number - self._last.get(id(template), number - 1)
                    numbers = range(number + step, min(number + _AHEAD + 1, len(files)), step)
                    self._read_ahead(template, files, numbers, ready, tried)
                return scanned
        return None

    def _find_likely(self, location: Location, tried: set[int]) -> Iterator[Template]:
        """Yield templates that may fit; the one that came next the last time is the first."""
        expected = self._next.get(id(self._previous))
        if expected is not None and id(expected) not in tried:
            yield expected
        others = [one for one in self._templates if one is not expected and id(one) not in tried]
        if len(others) <= MAX_TRIED:
            yield from others
            return
        # One look at the file costs less than trying most of them.
        head = read_head(location, max(one.nfirst for one in others))
        if head is not None:
            yield from (one for one in others if one.begins_like(head))

    def _note(self, template: Template | None, number: int) -> None:
        """Note of which template a file is."""
        if template is not None:
            self._next[id(self._previous)] = template
            self._last[id(template)] = number
        self._previous = template

    def _read_ahead(
        self,
        template: Template,
        files: Sequence[str],
        following: Sequence[int],
        ready: dict[int, Row],
        tried: dict[int, set[int]],
    ) -> None:
        """Read files that come as one block, of which most are likely to be alike, too."""
        count = max(min(_AHEAD, _AHEAD_BYTES // template.image.nbytes), 1)
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
        for number, scanned in zip(numbers, template.read(locations), strict=True):
            if scanned is not None:
                ready[number] = scanned

    def _locate(self, file: str) -> Location | None:
        """Return where a file is that can be read without a request; None of any other."""
        location = Location.of(file, self._options.get("storage_options"))
        return None if location.is_remote and find_head(location) is None else location

    def _accept(self, file: str, number: int, scanned: Row) -> Group | Row | VirtualZarrError:
        self._misses = 0
        self.nalike += 1
        template = self._by_schema.get(id(scanned.schema))
        self._note(template, number)
        if template is None:  # others have taken its place since the file was read
            return self._audit(file, scanned) if is_audited(file) else scanned
        self._templates.remove(template)
        self._templates.insert(0, template)
        self._hits[id(template)] += 1
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
            if self._is_changed(scanned):
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
            scanned.source.check_unchanged()
        except VirtualZarrError:
            return True
        return False

    def _parse(self, file: str, number: int, tried: set[int]) -> Group | VirtualZarrError:
        """Scan a file without templates, and make one of it."""
        self.nparsed += 1
        self._misses += 1
        record = self._misses <= MAX_MISSES or self._skipped % _RARELY == 0
        recorder = Recorder() if record else None
        before = count_warnings()
        try:
            group = scan(file, **self._options, recorder=recorder)
        except VirtualZarrError as error:
            return error.at(file=file)
        except Exception as error:
            error.add_note(f"while scanning {file}")
            raise
        template = None
        if recorder is not None and count_warnings() == before:
            template = self._find_untried(file, recorder, tried) or self._add(group, recorder)
        self._note(template, number)
        return group

    def _find_untried(self, file: str, recorder: Recorder, tried: set[int]) -> Template | None:
        """Return the template that would have fitted a file, had it been tried."""
        likely = self._outlines.get(recorder.outline, ())
        location = self._locate(file) if likely else None
        for template in likely:
            if location is not None and id(template) not in tried:
                (scanned,) = template.read([location])
                if scanned is not None:
                    return template
        return None

    def _add(self, group: Group, recorder: Recorder) -> Template | None:
        """Make a template of a scan, if that can be, and another file had the same outline."""
        outline = recorder.outline
        if recorder.obstacle or outline not in self._outlines:
            self._outlines.setdefault(outline, [])
            if len(self._outlines) > _MAX_OUTLINES:
                del self._outlines[next(iter(self._outlines))]
            return None
        try:
            template = Template(group, recorder, recorder.source)
        except (ValueError, VirtualZarrError):
            return None  # of no use for other files, which are then scanned each for itself
        if template.nbytes > MAX_TEMPLATE_BYTES:
            return None
        self._outlines[outline].append(template)
        self._templates.insert(0, template)
        self._hits[id(template)] = 0
        self._by_schema[id(template.schema)] = template
        while (
            len(self._templates) > MAX_TEMPLATES
            or sum(one.nbytes for one in self._templates) > MAX_TEMPLATE_BYTES
        ):
            self._drop(self._templates.pop())
        return template

    def _drop(self, template: Template) -> None:
        del self._hits[id(template)], self._by_schema[id(template.schema)]
        self._last.pop(id(template), None)
        self._next.pop(id(template), None)
        self._next = {key: each for key, each in self._next.items() if each is not template}
        for each in self._outlines.values():
            if template in each:
                each.remove(template)


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
