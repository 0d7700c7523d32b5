"""Groups in every form, published or served, and clients that are asked to read them."""

from __future__ import annotations

import base64
import json
import os
import tempfile
import urllib.error
import urllib.parse
import urllib.request
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

import virtualzarr as vz
from tests.interop.generated_groups import list_makers
from tests.interop.real_groups import FILES, open_file
from virtualzarr.array import Array
from virtualzarr.hierarchy.group import Group
from virtualzarr.hierarchy.inventory import list_arrays, list_group_attributes
from virtualzarr.serve import create_app, run_in_thread
from virtualzarr.verification.report import ClientResult
from virtualzarr.verification.run_probe import as_target, judge, run_probe
from virtualzarr.verification.samples import Sample, take_sample

PUBLISHED: dict[str, dict[str, Any]] = {
    "json-v2": {"target": "two.json", "zarr_format": 2},
    "json-v3": {"target": "three.json", "zarr_format": 3},
    "parquet": {"target": "refs.parq"},
    "icechunk": {"target": "refs.icechunk"},
    "portable-v2": {"target": "all.json", "zarr_format": 2, "portable": "all"},
}
"""How groups are published, by the name of the form."""

SERVED = {"server-v2": "v2", "server-v3": "v3"}
"""The faces of the server that are asked, by the name of the form."""

FORMS = (*PUBLISHED, *SERVED, "folder-v2", "portable-folder-v2")
"""All forms; folders are what `/v2` has, and what portable references refer to, as files."""

TIMEOUT, MEMORY = 240.0, 4 << 30


@dataclass
class Target:
    """One group in one form.

    Attributes
    ----------
    group, form : str
    request : dict
        What clients open.
    samples : list of Sample
        Of all arrays that are in it.
    arrays : dict of Array
        As published, by path: their data types and codecs say who is to read them.
    groups : dict of dict
        Attributes of all groups by path.
    """

    group: str
    form: str
    request: dict[str, Any]
    samples: list[Sample]
    arrays: dict[str, Array] = field(repr=False)
    groups: dict[str, dict[str, Any]] = field(repr=False)

    @property
    def wanted(self) -> dict[str, Any]:
        """What a probe is asked."""
        return as_target(self.request, self.samples)


class Collection:
    """All groups in all forms, in a folder.

    Parameters
    ----------
    folder : path
    names : iterable of str
        Of groups.
    """

    def __init__(self, folder: Path, names: Iterable[str]) -> None:
        self.folder = folder
        self.groups: dict[str, Group] = {}
        self.samples: dict[str, dict[str, Sample]] = {}
        self.skipped: dict[tuple[str, str], dict[str, str]] = {}
        makers = list_makers()
        for name in names:
            (folder / name).mkdir()
            if name in makers:
                self.groups[name] = makers[name](folder / name)
            else:
                self.groups[name] = open_file(data_root(), name)
            self.samples[name] = {
                path: take_sample(path, array, full=True)
                for path, array in list_arrays(self.groups[name]).items()
                if can_be_compared(array)
            }

    def publish(self, form: str) -> Iterator[Target]:
        """Yield all groups, published in a form."""
        for name, group in self.groups.items():
            options = dict(PUBLISHED[form])
            target = self.folder / name / options.pop("target")
            # What has no form is left out, and named.
            report = group.publish(target, regular=True, copy=True, on_error="warn", **options)
            self.skipped[name, form] = dict(report.skipped)
            kind = form.partition("-")[0]
            request = {
                "target": str(target), "form": {"portable": "json"}.get(kind, kind),
                "zarr_format": report.zarr_format, "sources": {"file": {}},
            }  # fmt: skip
            yield self._target(name, form, request, vz.open(target))

    def serve(self, form: str, url: str) -> Iterator[Target]:
        """Yield all groups, as a server has them."""
        for name in self.groups:
            where = f"{url}/{name}/{SERVED[form]}"
            request = {"target": where, "form": "zarr", "zarr_format": int(form[-1])}
            yield self._target(name, form, request, vz.open(where))

    def mirror(self, form: str, targets: Iterable[Target]) -> Iterator[Target]:
        """Yield groups as folders of files."""
        for target in targets:
            folder = self.folder / target.group / form
            if target.request["form"] == "json":
                mirror(Path(target.request["target"]), folder)
            else:
                mirror_url(target.request["target"], target.arrays, folder)
            request = {**target.request, "target": str(folder), "form": "zarr"}
            yield self._target(target.group, form, request, vz.open(folder))

    def _target(self, name: str, form: str, request: dict[str, Any], opened: Any) -> Target:
        arrays = {p: a for p, a in list_arrays(opened).items() if p in self.samples[name]}
        missing = self.samples[name].keys() - arrays.keys()
        self.skipped.setdefault((name, form), dict.fromkeys(missing, "not in it"))
        samples = [self.samples[name][path] for path in arrays]
        return Target(name, form, request, samples, arrays, list_group_attributes(opened))

    def list_targets(self, forms: Iterable[str], url: str) -> dict[str, list[Target]]:
        """Return all groups in all forms."""
        targets: dict[str, list[Target]] = {}
        for form in forms:
            if form in PUBLISHED:
                targets[form] = list(self.publish(form))
            elif form in SERVED:
                targets[form] = list(self.serve(form, url))
            else:
                source = "server-v2" if form == "folder-v2" else "portable-v2"
                known = targets.get(source) or list(
                    self.serve(source, url) if source in SERVED else self.publish(source)
                )
                targets[form] = list(self.mirror(form, known))
        return targets


def can_be_compared(array: Array) -> bool:
    """Tell whether elements have a hash: sequences of any length have none."""
    values = np.asarray(array[...]).reshape(-1)[:1]
    return array.dtype.kind != "O" or all(isinstance(v, str | bytes) for v in values)


def mirror(refs: Path, target: Path) -> Path:
    """Write what references refer to as a hierarchy of files."""
    document = json.loads(refs.read_text())
    references, templates = document["refs"], document.get("templates", {})
    references.pop(".zmetadata", None)
    for key, value in references.items():
        if isinstance(value, str):
            inline = value.startswith("base64:")
            data = base64.b64decode(value[7:]) if inline else value.encode()
        else:
            name = value[0]
            for template, text in templates.items():
                name = name.replace("{{" + template + "}}", text)
            with open(refs.parent / name, "rb") as file:
                # A whole file has neither offset nor length.
                offset, length = value[1:] or (0, -1)
                file.seek(offset)
                data = file.read(length)
        path = target / key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return target


def mirror_url(url: str, arrays: Mapping[str, Array], folder: Path) -> None:
    """Write the documents and chunks of Zarr v2 below a URL as files."""
    keys = json.loads(_get(f"{url}/.zmetadata") or b"{}").get("metadata", {})
    wanted = [".zmetadata", *keys]
    for path, array in arrays.items():
        for cell in np.ndindex(*array.grid.grid_shape):
            wanted.append(f"{path}/{'.'.join(map(str, cell)) or '0'}")
    for key in wanted:
        data = _get(f"{url}/{urllib.parse.quote(key)}")
        if data is not None:
            (folder / key).parent.mkdir(parents=True, exist_ok=True)
            (folder / key).write_bytes(data)


def _get(url: str) -> bytes | None:
    try:
        with urllib.request.urlopen(url) as answer:
            return bytes(answer.read())
    except urllib.error.HTTPError as error:
        if error.code == 404:
            return None
        raise


def ask(
    client: str, where: str, targets: Sequence[tuple[dict[str, Any], list[Sample]]]
) -> Iterator[ClientResult]:
    """Yield what a client does with each target; after it crashed or hung, it is started again."""
    rest = list(targets)
    while rest:
        wanted = [target for target, _ in rest]
        answers, end = run_probe(client, where, wanted, timeout=TIMEOUT, memory=MEMORY)
        if answers and "missing" in answers[0]:
            print(f"{client} is not installed: {answers[0]['missing']}", flush=True)
            return
        done = any("done" in answer for answer in answers)
        # The target at which it ended: the one after its last answer, if that was complete.
        counts = Counter(answer["target"] for answer in answers if "path" in answer)
        last = max(counts, default=0)
        last += counts[last] == len(rest[last][1])
        count = len(rest) if done else last + 1
        if not done:
            print(f"{client}: {wanted[min(last, len(rest) - 1)]['target']}: {end}", flush=True)
        for number, (_, samples) in enumerate(rest[:count]):
            own = (
                [answers[0], *(a for a in answers if a.get("target") == number)] if answers else []
            )
            yield judge(client, where, own, end, samples, 0.0)
        rest = rest[count:]


@contextmanager
def all_targets(names: Iterable[str], forms: Iterable[str]) -> Iterator[tuple[Collection, Any]]:
    """Make, publish and serve groups for as long as they are asked about."""
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        collection = Collection(Path(folder), names)
        with run_in_thread(create_app(dict(collection.groups), page=False)) as url:
            yield collection, collection.list_targets(forms, url)


def data_root() -> Path:
    """Return the folder of real files, which may not be there."""
    beside = Path(__file__).parents[3] / "shared" / "data"
    return Path(os.environ.get("VIRTUALZARR_TEST_DATA", beside))


def list_names() -> list[str]:
    """Return the names of all groups; of real files, where there are any."""
    return [*list_makers(), *(FILES if data_root().is_dir() else ())]
