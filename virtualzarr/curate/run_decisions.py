"""Run of a decision file: an archive is surveyed again, joined as was decided, and published."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from virtualzarr.archive.survey import survey
from virtualzarr.curate.decisions import Decisions, check_decisions
from virtualzarr.curate.join_plan import JoinPlan
from virtualzarr.curate.publication import (
    Publication,
    check_publications,
    list_archive,
    write_publications,
)
from virtualzarr.errors import DecisionError
from virtualzarr.ingest.listing import Listing, read_listing
from virtualzarr.ingest.virtualize import virtualize
from virtualzarr.keywords import strict_keywords
from virtualzarr.redaction import escape_unprintable, strip_secrets


@dataclass(frozen=True)
class RunReceipt:
    """What a run did.

    Parameters
    ----------
    decisions, listing : str
        Digests of the decision file, and of the names and sizes of files.
    to : dict
        What was written for each strand, and from how many files.
    counts : dict
        Files by the line that decided about them.
    left_out : dict
        Files that are not in what was written, and why.
    versions : dict
    """

    decisions: str
    listing: str
    to: dict[str, dict[str, Any]]
    counts: dict[str, int]
    left_out: dict[str, str]
    versions: dict[str, str] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Return the receipt as JSON."""
        return {"virtualzarr-receipt": 1, **vars(self)}

    def __repr__(self) -> str:
        lines = [f"{each['to']}: {each['files']:,} files" for each in self.to.values()]
        lines += [f"  {key}: {count:,} files" for key, count in self.counts.items()]
        lines.append(f"  left out: {len(self.left_out):,} files")
        return "\n".join(map(escape_unprintable, lines))


@strict_keywords()
def run_decisions(
    path: str | os.PathLike[str],
    *,
    ledger: str | os.PathLike[str] | None = None,
    storage_options: Mapping[str, Any] | None = None,
    allowed: str | Iterable[str] | None = None,
    output_options: Mapping[str, Any] | None = None,
    parallel: Any = None,
    overwrite: bool = False,
    dry_run: bool = False,
    progress: bool | None = None,
) -> RunReceipt:
    """Do what a decision file says: survey the archive, join its files, publish the result.

    Parameters
    ----------
    path : path
        The decision file.
    ledger : path, optional
        As for `survey`: with the one of the survey, nothing is scanned again.
    storage_options, output_options : mapping, optional
        How files are opened, and how the result is.
    allowed, parallel, progress
        As for `virtualizarr.virtualize`.
    overwrite : bool
        Whether results of before are replaced; never anything else.
    dry_run : bool
        Whether nothing is written; all is surveyed, joined and checked.

    Returns
    -------
    RunReceipt
        It is also written beside the result of each strand, with what was written of that, as
        ``NAME.receipt.json``.

    Raises
    ------
    DecisionError
        The file cannot be understood, something is undecided, or of more files than was decided,
        or cannot be done as it was decided, or there is anything but results and receipts of
        before where those are to be. Nothing was written.
    MismatchError
        Files differ in what no line of the file is about.

    Examples
    --------
    >>> run_decisions("goes.yaml", ledger="goes.ledger")  # doctest: +SKIP
    """
    # One after the other: what can stop the run comes before the first thing that is written.
    decisions = Decisions.read(path)
    access: dict[str, Any] = {"storage_options": storage_options, "allowed": allowed}
    paths: Any = decisions.paths
    if decisions.inventory is not None:
        paths = read_listing(decisions.inventory, assets=decisions.record.assets, **access)
    access |= {"parallel": parallel, "progress": progress, "ledger": ledger}
    decode = decisions.record.decode
    report = survey(paths, decisions.dim, format=decisions.format, decode=decode, **access)
    plan = JoinPlan.of(decisions, report)
    problems = [*check_decisions(decisions, report), *plan.check(decisions)]
    if problems:
        raise DecisionError("nothing was written: " + "; ".join(problems), file=os.fspath(path))
    receipt = RunReceipt(
        decisions.digest, report.listing, _list_targets(plan, decisions), plan.counts,
        {strip_secrets(name): why for name, why in plan.left_out.items()}, _list_versions(),
    )  # fmt: skip
    how = output_options or storage_options
    # All are joined before the first is written: what one strand lacks stops the others, too.
    publications = []
    for strand, files in plan.files.items():
        group = virtualize(
            _with_versions(files, paths), decisions.dim, combine="by_coords",
            format=decisions.format, **plan.join, **access,
        )  # fmt: skip
        to = decisions.name_target(strand)
        publications.append(Publication(strand, group, to, decisions, how))
    inputs = _list_inputs(path, decisions, ledger)
    problems = [*check_publications(publications, plan, list_archive(report), inputs,
                                    overwrite=overwrite)]  # fmt: skip
    if problems:
        raise DecisionError("nothing was written: " + "; ".join(problems), file=os.fspath(path))
    if not dry_run:
        write_publications(publications, plan, receipt.to_json(), overwrite=overwrite)
    return receipt


def _list_inputs(
    path: str | os.PathLike[str], decisions: Decisions, ledger: str | os.PathLike[str] | None
) -> dict[str, str]:
    """Return the files that a run needs beside the archive, and what each is."""
    inputs = {os.fspath(path): "decision file"}
    if decisions.inventory is not None:
        inputs[decisions.inventory] = "listing"
    if ledger is not None:
        # SQLite has files of its own beside it, some of them only now and then.
        for ending in ("", ".lock", "-journal", "-wal", "-shm"):
            inputs[f"{os.fspath(ledger)}{ending}"] = "ledger"
    return inputs


def _list_targets(plan: JoinPlan, decisions: Decisions) -> dict[str, dict[str, Any]]:
    """Return what is written of each strand."""
    return {strand: plan.describe(strand, strip_secrets(decisions.name_target(strand)))
            for strand in plan.files}  # fmt: skip


def _with_versions(files: Sequence[str], paths: Any) -> Sequence[str]:
    """Return files with what a listing says of them."""
    if not isinstance(paths, Listing):
        return files
    return Listing({name: paths.versions.get(name) for name in files})


def _list_versions() -> dict[str, str]:
    versions = {}
    for name in ("virtualzarr", "numpy", "h5py"):
        try:
            versions[name] = version(name)
        except PackageNotFoundError:  # used from its sources
            versions[name] = "unknown"
    return versions
