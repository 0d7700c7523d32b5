"""Ways out of copies: what else can be done where no single array keeps all chunks virtual."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from virtualzarr.array import Array
from virtualzarr.errors import PublishError
from virtualzarr.hierarchy.group import Group
from virtualzarr.hierarchy.inventory import list_arrays
from virtualzarr.references import portable
from virtualzarr.references.form import PublishOptions, ReferenceForm
from virtualzarr.references.preview import Preview, Way
from virtualzarr.references.split_runs import split_runs


def list_ways(
    node: Group | Array, uri: str, form: ReferenceForm, options: PublishOptions, plain: Preview
) -> tuple[Way, ...]:
    """Return the ways that copy less than what was found, those that copy least first.

    Each is planned as it would be published; no chunk is read.
    """
    ways = [*_try_ways(node, uri, form, options, plain)]
    # What others open without references comes last: it needs a process that runs.
    ways.append(
        Way("virtualzarr serve copies nothing: clients read all arrays by the server's URL", {})
    )
    return tuple(sorted(ways, key=lambda way: way.copied_bytes))


def _try_ways(
    node: Group | Array, uri: str, form: ReferenceForm, options: PublishOptions, plain: Preview
) -> Iterator[Way]:
    runs = _try_split(node)
    if runs is not None:
        other = form.preview(runs, uri, options)
        if len(other.skipped) <= len(plain.skipped):
            count = len(list(runs.groups()))
            yield from _compare(f'split="runs" makes {count} groups and', "", other, plain)
    if not options.plugin_codecs:
        other = form.preview(node, uri, replace(options, plugin_codecs=True))
        arrays = list_arrays(node).values()
        images = any(portable.list_image_codecs(each.metadata.pipeline) for each in arrays)
        also = " and register the codecs of imagecodecs" if images else ""
        why = f", for readers that have this package{also}"
        yield from _compare("plugin_codecs=True", why, other, plain)
    if options.regular and form.capabilities.any_grid:
        other = form.preview(node, uri, replace(options, regular=False, clients=()))
        why = ", but chunks have several shapes"
        yield from _compare("without regular=True it", why, other, plain)


def _try_split(node: Group | Array) -> Group | None:
    """Return the groups of runs; None where there are none along one dimension."""
    if not isinstance(node, Group):
        return None
    try:
        runs = split_runs(node)
    except PublishError:
        return None
    return None if runs is node else runs


def _compare(name: str, why: str, other: Preview, plain: Preview) -> Iterator[Way]:
    """Yield a way if it copies less."""
    if other.copied_bytes >= plain.copied_bytes:
        return
    copied = {line.path: line.copied_bytes for line in other.lines if line.copied}
    total = sum(copied.values())
    names = ", ".join(f"{path or '/'} {nbytes:,}" for path, nbytes in copied.items())
    of = f" ({names})" if copied else ""
    yield Way(f"{name} copies {total:,} bytes{of}{why}", copied)
