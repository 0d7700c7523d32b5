"""Publications of a run: all that would stop one is looked for before the first is written."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2b
from typing import Any

from virtualzarr.archive.survey import Survey
from virtualzarr.curate.decisions import Decisions
from virtualzarr.curate.join_plan import JoinPlan
from virtualzarr.dataset.create import create_dataset, is_created
from virtualzarr.errors import NodeExistsError, VirtualZarrError
from virtualzarr.hierarchy.group import Group
from virtualzarr.hierarchy.inventory import list_sources
from virtualzarr.manifest import Source
from virtualzarr.redaction import hide_secrets, strip_secrets
from virtualzarr.references.form import PublishOptions
from virtualzarr.references.overwrite import check_ours, check_sources
from virtualzarr.references.publish import publish
from virtualzarr.references.registry import choose_target
from virtualzarr.stores.atomic_files import AtomicFile, write_errors
from virtualzarr.stores.files import is_url, read_head
from virtualzarr.stores.location import Location
from virtualzarr.stores.open_store import open_store
from virtualzarr.stores.uris import resolve_links

RECEIPT = b'"virtualzarr-receipt"'
"""What receipts of runs begin with, nearly."""

_HEAD_BYTES = 256
"""In which receipts name their decisions."""


@dataclass(frozen=True)
class Publication:
    """What a run writes of one strand: references, or a dataset, and the receipt beside it.

    Parameters
    ----------
    strand : str
    group : Group
        Its files, joined.
    to : str
        Where it is written.
    decisions : Decisions
    options : mapping, optional
        How a URL is opened to write there.
    """

    strand: str
    group: Group
    to: str
    decisions: Decisions
    options: Mapping[str, Any] | None

    @property
    def receipt(self) -> Location:
        """Where the receipt is."""
        return Location.of(f"{self.to.rstrip('/')}.receipt.json", self.options)

    def list_places(self) -> list[Location]:
        """Return what is written, or replaced."""
        location, _ = choose_target(self.to, self.decisions.form, self.options)
        return [location, self.receipt]

    @cached_property
    def commit_id(self) -> str:
        """A name of the commit that makes a dataset: the same of the same decisions and files."""
        digest = blake2b(f"{self.decisions.digest} {self.strand}".encode(), digest_size=16)
        for source in list_sources(self.group):
            version = (strip_secrets(source.uri), source.size, source.mtime_ns, source.etag)
            digest.update(f"{version!r}\n".encode())
        return f"run-{digest.hexdigest()}"

    def is_written(self) -> bool:
        """Tell whether a run of the same decisions on the same files has made its dataset."""
        location, form = choose_target(self.to, self.decisions.form, self.options)
        if form.name != "dataset":
            return False
        try:
            return is_created(location, self.commit_id)
        except VirtualZarrError:
            return False  # the check says what is wrong

    def has_receipt(self) -> bool:
        """Tell whether the receipt of the same decisions is there."""
        try:
            head = read_head(self.receipt, _HEAD_BYTES)
        except VirtualZarrError:
            return False  # the check says what is wrong
        return RECEIPT in head and self.decisions.digest.encode() in head

    def check(
        self,
        plan: JoinPlan,
        sources: Sequence[Source],
        inputs: Mapping[str, str],
        *,
        overwrite: bool,
        is_written: bool = False,
    ) -> Iterator[str]:
        """Yield why it cannot be written.

        Parameters
        ----------
        plan : JoinPlan
        sources : sequence of Source
            Files that are never replaced: at least those of the archive that lie in the way.
        inputs : mapping
            Files that the run itself needs, and what each is.
        is_written : bool
            Whether it is what an earlier run has made, which this one takes as it is.
        """
        location, form = choose_target(self.to, self.decisions.form, self.options)
        try:
            for place in self.list_places():
                _check_inputs(place, inputs)
            _check_local(location, sources)
            # Overwriting is for results of before: whatever else is there is somebody's.
            if (name := form.find_foreign(location)) is not None:
                raise NodeExistsError(
                    f"there is {name!r}, which is no part of references of the form {form.name}: "
                    "remove it, or write to another place",
                    file=location.uri,
                )
            if not is_written:
                form.check_target(self.group, location, overwrite=overwrite)
            check_ours(self.receipt, "receipt of a run", RECEIPT, sources)
            self._check_folder()
        except VirtualZarrError as error:
            yield str(error)
        # Forms that hold everything as it is copy nothing.
        if not form.capabilities.as_is:
            yield from plan.check_copies(form.preview(self.group, location.uri, PublishOptions()))

    def _check_folder(self) -> None:
        """Refuse a folder in which no receipt can be made, before it lacks one."""
        receipt = self.receipt
        folder = os.path.dirname(receipt.uri)
        if receipt.is_remote or not os.path.isdir(folder):
            return
        with write_errors(receipt.uri):
            if not os.access(folder, os.W_OK):
                raise PermissionError(13, "Permission denied")
            with suppress(FileNotFoundError):
                os.lstat(receipt.uri)  # the system refuses a name that is too long

    def write(self, plan: JoinPlan, *, overwrite: bool) -> None:
        """Write it, as was decided."""
        form, options = self.decisions.form, self.options
        if form == "native" and overwrite:
            # Such a result is not replaced as a whole: a kill leaves neither it nor a new one.
            self._remove_receipt()
        if form == "dataset":
            # One that an earlier run has made is left as it is.
            create_dataset(self.to, self.group, self.decisions.dim, commit_id=self.commit_id,
                           storage_options=options)  # fmt: skip
            return
        publish(self.group, self.to, reference_format=form, copy=bool(plan.copied),
                overwrite=overwrite, storage_options=options)  # fmt: skip

    def _remove_receipt(self) -> None:
        folder, name = os.path.split(self.receipt.uri)
        with write_errors(self.receipt.uri):
            open_store(folder, self.options).delete(name)

    def write_receipt(self, receipt: Mapping[str, Any]) -> None:
        """Write the receipt, that of this strand alone: what others will be is not known yet."""
        single = {**receipt, "to": {self.strand: receipt["to"][self.strand]}}
        with AtomicFile(self.receipt) as file:
            file.write(json.dumps(single, indent=2).encode())
            file.commit()


def _check_local(location: Location, sources: Sequence[Source]) -> None:
    """Refuse to replace a file of the archive, or a folder that has some."""
    path = resolve_links(location.uri)
    if location.is_remote:
        if any(source.uri == location.uri for source in sources):
            raise NodeExistsError("it is a file of the archive", file=location.uri)
    elif os.path.exists(path):
        check_sources(path, sources)


def _check_inputs(location: Location, inputs: Mapping[str, str]) -> None:
    """Refuse to replace what the run itself needs, or a folder that has it."""
    target = location.uri if location.is_remote else os.path.realpath(location.uri)
    for name, noun in inputs.items():
        path = name if is_url(name) else os.path.realpath(name)
        is_it = path == target or _is_near(name, (), _identify([target]))
        if is_it or path.startswith(f"{target.rstrip('/')}{os.sep}"):
            subject = "it is" if is_it else f"{hide_secrets(name)} is in it, which is"
            raise NodeExistsError(
                f"{subject} the {noun} of this run: write to another place", file=location.uri
            )


def list_archive(report: Survey) -> list[Source]:
    """Return all files of a survey, also those that could not be scanned."""
    names = dict.fromkeys(name for some in report.strands.values() for name in some)
    names |= dict.fromkeys(name for odd in report.anomalies for name in odd.files)
    return [Source(name) for name in names]


def _select_near(sources: Sequence[Source], places: Sequence[Location]) -> list[Source]:
    """Return the files that are in one of these places, so that others are looked at once only."""
    uris = {location.uri for location in places if location.is_remote}
    paths = [resolve_links(location.uri) for location in places if not location.is_remote]
    folders = tuple(f"{path}{os.sep}" for path in paths if os.path.isdir(path))
    files = _identify(paths)
    if not uris and not folders and not files:
        return []
    return [source for source in sources if source.uri in uris
            or (not is_url(source.uri) and _is_near(source.uri, folders, files))]  # fmt: skip


def _identify(paths: Sequence[str]) -> set[tuple[int, int]]:
    """Return device and inode of those that are files."""
    return {(status.st_dev, status.st_ino) for path in paths if os.path.isfile(path)
            for status in [os.stat(path)]}  # fmt: skip


def _is_near(name: str, folders: tuple[str, ...], files: set[tuple[int, int]]) -> bool:
    if folders and os.path.realpath(name).startswith(folders):
        return True
    try:
        status = os.stat(name)
    except OSError:
        return False
    # By inode: hard links and other spellings of one file do not hide it.
    return (status.st_dev, status.st_ino) in files


def check_publications(
    publications: Sequence[Publication],
    plan: JoinPlan,
    sources: Sequence[Source],
    inputs: Mapping[str, str],
    *,
    overwrite: bool,
) -> Iterator[str]:
    """Yield what would stop any of them; each is named if there are several."""
    near = _select_near(sources, [place for each in publications for place in each.list_places()])
    written = _find_written(publications)
    for each in publications:
        start = f"{hide_secrets(each.to)}: " if len(publications) > 1 else ""
        options = {"overwrite": overwrite, "is_written": each.strand in written}
        for problem in each.check(plan, near, inputs, **options):
            yield start + problem


def _find_written(publications: Sequence[Publication]) -> set[str]:
    """Return strands whose datasets were made by a run that was ended before it had done all.

    None if it had: then there is nothing to do, and what is there is said to be.
    """
    written = [each for each in publications if each.is_written()]
    if len(written) == len(publications) and all(each.has_receipt() for each in written):
        return set()
    return {each.strand for each in written}


def write_publications(
    publications: Sequence[Publication],
    plan: JoinPlan,
    receipt: Mapping[str, Any],
    *,
    overwrite: bool,
) -> None:
    """Write one after the other, with its receipt; an error says which were written before it."""
    written: list[str] = []
    for each in publications:
        try:
            each.write(plan, overwrite=overwrite)
            each.write_receipt(receipt)
        except VirtualZarrError as error:
            if written:
                # An error keeps its class: what to do about it depends on that.
                names = ", ".join(map(hide_secrets, written))
                error.message += f"; {names} were published before that, with receipts"
            raise
        written.append(each.to)
