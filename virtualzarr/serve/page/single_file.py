"""Page in one file: what was published, with pictures of its variables, beside the references."""

from __future__ import annotations

import base64
import hashlib
import logging
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from virtualzarr.array import Array
from virtualzarr.array.chunk_source import StoreChunks
from virtualzarr.errors import (
    MissingDependencyError,
    PublishError,
    UnsupportedError,
    VirtualZarrError,
)
from virtualzarr.hierarchy.group import Group
from virtualzarr.hierarchy.inventory import iter_arrays, list_uris
from virtualzarr.references.form import ReferenceForm
from virtualzarr.references.overwrite import COMPANIONS, check_companion
from virtualzarr.references.report import PublishReport
from virtualzarr.references.virtual_store import manifest_of
from virtualzarr.serve.page import html
from virtualzarr.serve.page.describe import (
    Chunks,
    choose_variable,
    coordinate_texts,
    describe_chunks,
)
from virtualzarr.serve.page.picture import Picture, draw
from virtualzarr.serve.page.sampling import NoPictureError
from virtualzarr.serve.page.values import is_drawable, sample_text
from virtualzarr.serve.page.view import View, make_view
from virtualzarr.stores.atomic_files import AtomicFile
from virtualzarr.stores.location import Location
from virtualzarr.stores.uris import ANYWHERE, protocol_of

_log = logging.getLogger(__name__)

SECONDS = 20.0
"""After which no more pictures are drawn."""

PICTURE_BYTES = 2 << 20
"""Bytes of all pictures, at most."""

FRAMES = 5
"""Pictures along the longest axis that a picture does not show itself."""

_MOST_CHUNKS = 1_000_000
"""Chunks of larger arrays are not counted one by one."""

_HERE = Path(__file__).parent
_GENERATOR = COMPANIONS["page"][1].decode()


def locate_page(location: Location) -> Location:
    """Return where the page of references lies: beside them.

    Raises
    ------
    ValueError
        That is where the references are to be.

    Examples
    --------
    >>> locate_page(Location("/data/air.json")).uri
    '/data/air.html'
    """
    uri = f"{os.path.splitext(location.uri)[0]}.html"
    if uri == location.uri:
        raise ValueError(f"{uri} is the name of the page: give the references another")
    return location.with_uri(uri)


class Page:
    """The page of references, before they are published.

    Parameters
    ----------
    node : Group or Array
        What is published, which pictures are read from: none of its files is ever replaced.
    location : Location
        Of the references, of which the page says which chunks there are.
    overwrite : bool
        Whether to replace a file that is no page of ours.

    Raises
    ------
    NodeExistsError
        There is something else where it is to be.
    """

    def __init__(self, node: Group | Array, location: Location, *, overwrite: bool = False) -> None:
        self.node, self.references = node, location
        self.location = locate_page(location)
        check_companion(node, self.location, "page", overwrite)

    def write(self, form: ReferenceForm, report: PublishReport) -> PublishReport:
        """Write the page beside the references, and return the report that says where."""
        references = self.references
        try:
            opened = form.open(replace(references, allowed=(ANYWHERE,))).node
        except (MissingDependencyError, UnsupportedError) as error:
            # Some forms are written by versions of libraries that this package cannot read.
            _log.info("%s: the page shows no chunks: %s", references.uri, error)
            opened = None
        name = references.uri.replace(os.sep, "/").rpartition("/")[2]
        with AtomicFile(self.location) as file:
            history = form.list_history(references)
            file.write(make_page(name, self.node, opened, form, report, history))
            file.commit()
        return replace(report, page=self.location.uri)


def make_page(
    name: str,
    node: Group | Array,
    opened: Group | Array | None,
    form: ReferenceForm,
    report: PublishReport,
    history: Sequence[tuple[Any, ...]] = (),
) -> bytes:
    """Return the page.

    Parameters
    ----------
    name : str
        Of the references, as seen from the page.
    node : Group or Array
        What was published.
    opened : Group or Array, optional
        The same, as it is read from the references.
    history : sequence of tuple
        Versions of the target, where it has any.
    """
    root = node if opened is None else opened
    listed = list(iter_arrays(root))
    arrays = dict(listed[: html.MAX_ROWS])
    chosen = choose_variable(arrays)
    pictures = _Pictures(node, opened)
    # The one that is shown first has its pictures also where time or room ends.
    paths = sorted(arrays, key=lambda path: path != chosen)
    figures = {path: pictures.draw(path, arrays[path]) for path in paths}
    ids = {path: f"v{number}" for number, path in enumerate(arrays)}

    def describe(path: str, array: Array) -> str:
        chunks = _count(array, opened)
        return html.variable_html(
            pictures.root_of(path), path, array, figures[path], chunks, show_sources=True
        )

    sections = "".join(
        f'<details class="variable" id="{ids[path]}"{" open" if path == chosen else ""}>'
        f"<summary>{html.name_html(path or '/')}</summary>"
        f"{describe(path, array)}"
        "</details>"
        for path, array in arrays.items()
    )
    title = html.title_of(root) or name
    attributes = ""
    if isinstance(root, Group):
        attributes = html.attributes_html("Attributes of the dataset", root.attributes)
    protocols = _list_protocols(root, pictures.arrays, report)
    snippets = form.show_opening(name, report.zarr_format, protocols)
    body = (
        f"<header><h1>{html.name_html(title)}</h1>{html.facts_html(listed)}</header><main>"
        f"{html.variables_html(listed, chosen, lambda path: '#' + ids.get(path, ''))}"
        f"<section>{sections}</section>"
        f"{html.snippets_html(snippets.items())}"
        f"{attributes}{html.history_html(history)}"
        f"{html.skipped_html('Not published', report.skipped)}"
        f'<p class="note">{html.text(pictures.summary())}</p></main>'
    )
    script = (_HERE / "page.js").read_text(encoding="utf-8")
    return html.document(title, f"{body}<script>{script}</script>", _head(script))


def _head(script: str) -> str:
    """Return a style sheet, and a policy by which nothing is loaded and nothing else runs."""
    style = (_HERE / "style.css").read_text(encoding="utf-8")
    digests = (
        base64.b64encode(hashlib.sha256(part.encode()).digest()).decode()
        for part in (script, style)
    )
    policy = "default-src 'none'; img-src data:; script-src 'sha256-{}'; style-src 'sha256-{}'"
    return (
        f'{_GENERATOR}<meta http-equiv="Content-Security-Policy" '
        f"content=\"{policy.format(*digests)}; base-uri 'none'; form-action 'none'\">"
        f"<style>{style}</style>"
    )


def _count(array: Array, opened: Group | Array | None) -> Chunks | None:
    """Return which chunks there are, as the references say."""
    if opened is None or array.nchunks > _MOST_CHUNKS:
        return None
    try:
        manifest = manifest_of(array)
    except PublishError:
        return None  # Chunks that no references point at are not counted.
    return describe_chunks(array, manifest, isinstance(array.chunk_source, StoreChunks))


def _list_protocols(
    root: Group | Array, published: Mapping[str, Array], report: PublishReport
) -> list[str]:
    """Return the protocols of the files that references point into."""
    uris = {report.copied_to} if report.copied_to else set()
    for path, array in iter_arrays(root):
        # References to many chunks are not read only to find their files.
        is_large = array.nchunks > _MOST_CHUNKS
        uris.update(list_uris(published.get(path, array) if is_large else array))
    return sorted({protocol_of(uri) for uri in uris})


@dataclass(frozen=True)
class _Frame:
    """A picture of a variable, and where it is along the axis of its slider."""

    picture: Picture
    value: str
    position: str


class _Pictures:
    """Pictures of variables, within a limit of time and bytes.

    Parameters
    ----------
    node : Group or Array
        What was published.
    opened : Group or Array, optional
        For variables that have other names there.
    """

    def __init__(self, node: Group | Array, opened: Group | Array | None) -> None:
        self.node, self.opened = node, opened
        self.arrays: Mapping[str, Array] = dict(iter_arrays(node))
        self.stop = time.monotonic() + SECONDS
        self.nbytes = self.left_out = 0

    @property
    def is_over(self) -> bool:
        """Whether there is no more time, or no more room."""
        return self.nbytes >= PICTURE_BYTES or time.monotonic() > self.stop

    def summary(self) -> str:
        """Return when the page was made, and within which limits."""
        from virtualzarr import __version__

        left_out = f"; {self.left_out:,} variables have none for that" if self.left_out else ""
        return (
            f"Made by virtualzarr {__version__} on {datetime.now(UTC):%Y-%m-%d %H:%M} UTC, with "
            f"pictures as the files were then, of at most {PICTURE_BYTES >> 20} MiB that were "
            f"drawn within {SECONDS:.0f} seconds{left_out}."
        )

    def root_of(self, path: str) -> Group | Array:
        """Return the hierarchy from which a variable and its coordinates are read.

        It is what was published, which knows how its files are opened: the references have no
        credentials.
        """
        return self.node if path in self.arrays or self.opened is None else self.opened

    def draw(self, path: str, array: Array) -> str:
        """Return the pictures of a variable, or some of its values, or why there is neither."""
        root = self.root_of(path)
        array = self.arrays.get(path, array)
        if self.is_over:
            self.left_out += 1
            return '<p class="note">No picture: the time or room for pictures was over.</p>'
        try:
            if not is_drawable(array):
                return html.values_html(sample_text(array))
            view = make_view(root, path, array)
            frames = list(self._frames(root, path, array, view))
        except NoPictureError as error:
            return f'<p class="note">No picture: {html.text(error.message)}.</p>'
        except VirtualZarrError as error:
            # The references are right without a picture. What is wrong may name files that are
            # nobody else's business: it is logged, and not published.
            _log.warning("no picture of %s: %s", path or "/", error)
            return '<p class="notice">The values cannot be read.</p>'
        figures = "".join(_figure(path, frame) for frame in frames)
        if len(frames) == 1:
            return figures
        dim = _slider_name(array, view)
        total = array.shape[_slider_axis(view)]
        note = f"{len(frames):,} of {total:,} places along {dim} have a picture in this file"
        return (
            f'<div class="frames" data-name="{html.text(dim)}">{figures}</div>'
            f'<p class="note">{html.text(note)}.</p>'
        )

    def _frames(self, root: Group | Array, path: str, array: Array, view: View) -> Iterator[_Frame]:
        """Yield pictures along the longest of the other axes, at the beginning of the rest."""
        others = view.others
        if not others:
            yield self._draw(view, [], "", "")
            return
        moving = _slider_axis(view)
        last = array.shape[moving] - 1
        indices = np.unique(np.linspace(0, last, FRAMES).astype(np.int64)).tolist()
        dims = {axis: array.dims[axis] or f"axis {axis}" for axis in others}
        texts = coordinate_texts(root, path, array.dims[moving], indices)
        fixed = [
            f"{dims[axis]} {coordinate_texts(root, path, array.dims[axis], [0])[0]}"
            for axis in others
            if axis != moving
        ]
        for index, text in zip(indices, texts, strict=True):
            at = [index if axis == moving else 0 for axis in others]
            position = ", ".join([f"{dims[moving]} {text}", *fixed])
            yield self._draw(view, at, text, position)
            if self.is_over:
                return

    def _draw(self, view: View, at: list[int], value: str, position: str) -> _Frame:
        picture = draw(view, at)
        self.nbytes += len(picture.data)
        return _Frame(picture, value, position)


def _slider_axis(view: View) -> int:
    return max(view.others, key=lambda axis: view.shape[axis])


def _slider_name(array: Array, view: View) -> str:
    axis = _slider_axis(view)
    return array.dims[axis] or f"axis {axis}"


def _figure(path: str, frame: _Frame) -> str:
    picture = frame.picture
    data = f"data:{picture.media_type};base64,{base64.b64encode(picture.data).decode()}"
    caption = f"{frame.position}: {picture.caption}" if frame.position else picture.caption
    return html.figure_html(path, data, replace(picture, caption=caption), frame.value)
