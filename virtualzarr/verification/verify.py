"""Verification: every client that is installed opens a publication, and must read what we read."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import product
from typing import Any

from virtualzarr.errors import error_context
from virtualzarr.hierarchy.inventory import (
    list_arrays,
    list_group_attributes,
    list_sources,
    list_zarr_formats,
)
from virtualzarr.ingest.open_target import open as open_node
from virtualzarr.keywords import strict_keywords
from virtualzarr.manifest import Source
from virtualzarr.references.clients import name_form, predict_refusals
from virtualzarr.references.registry import locate_target, match_form
from virtualzarr.stores.credentials import without_keyring
from virtualzarr.stores.uris import protocol_of
from virtualzarr.verification.logins import find_client_login
from virtualzarr.verification.report import VerifyReport
from virtualzarr.verification.run_probe import all_clients, find_default, python_clients, run_client
from virtualzarr.verification.samples import Sample, take_sample


@strict_keywords()
def verify(
    target: Any,
    *,
    clients: str | Iterable[str] | None = None,
    python: str | Sequence[str] = (),
    full: bool = False,
    timeout: float = 60.0,
    memory: int = 2 << 30,
    seed: int = 0,
    storage_options: Mapping[str, Any] | None = None,
    allowed: str | Iterable[str] | None = None,
) -> VerifyReport:
    """Have other people's clients open a publication, and compare what they read with what we do.

    Each client runs in a process of its own, with limits; a crash and a time-out are results. What
    is read as fill values, or otherwise other than by us, is wrong.

    Parameters
    ----------
    target : path or URL
        Published references, or a Zarr hierarchy.
    clients : str or sequence of str, optional
        Of ``zarr``, ``zarr2``, ``zarrs``, ``dask``, ``xarray``, ``kerchunk``, ``tensorstore``,
        ``gdal``, ``netcdf`` and ``zarrita``; by default all of them. ``zarr2=PATH`` is the
        interpreter that has it, and ``zarrita=FOLDER`` where its modules are installed.
    python : path or several of them, optional
        Other interpreters, whose clients are asked besides: an environment with zarr-python 2, say.
    full : bool
        Whether all of each array is compared. By default that is so of arrays up to 64 MiB; of
        others, the first, last, middle and some random cells are.
    timeout : float
        Seconds that each client has.
    memory : int
        Bytes that each client may take; 0 for no limit.
    seed : int
        Of the random cells.
    storage_options, allowed
        As for `open`.

    Returns
    -------
    VerifyReport

    Examples
    --------
    >>> verify("air.json").exit_code  # doctest: +SKIP
    0
    """
    names = choose_clients(clients)
    location = locate_target(target, storage_options, allowed)
    form, file_format = match_form(location)
    node = open_node(target, storage_options=storage_options, allowed=allowed)
    samples: list[Sample] = []
    arrays = list_arrays(node)
    for path, array in arrays.items():
        with error_context(variable=path or "/"):
            samples.append(take_sample(path, array, full=full, seed=seed))
    zarr_format = _zarr_format(node)
    sources = list_sources(node)
    request: dict[str, Any] = {
        "target": location.uri,
        "form": "zarr" if form is None or file_format == "zarr" else form.name,
        "zarr_format": zarr_format,
        "sources": _options_by_protocol(sources),
    }
    login = find_client_login(location.uri, [source.uri for source in sources], storage_options)
    others = [python] if isinstance(python, str) else list(python)
    results = [
        run_client(name, where, request, samples, timeout=timeout, memory=memory, login=login)
        for name, where in [*names.items(), *product(python_clients(names), others)]
    ]
    form_name = name_form(request["form"], zarr_format, location.uri)
    metadata = {path: array.metadata for path, array in arrays.items()}
    groups = list_group_attributes(node)

    def predict(client: str) -> frozenset[str]:
        return frozenset(predict_refusals(client, form_name, zarr_format, metadata, groups))

    # Of other interpreters it is no news what they do not have.
    compared = tuple(
        replace(r, known=predict(r.client))
        for r in results
        if r.python not in others or r.status != "missing"
    )
    paths = tuple(sample.path for sample in samples)
    return VerifyReport(location.uri, request["form"], request["zarr_format"], paths, compared)


def choose_clients(clients: str | Iterable[str] | None) -> dict[str, str]:
    """Return the clients that are named, and where each is.

    Examples
    --------
    >>> choose_clients("zarr2=/old/bin/python")
    {'zarr2': '/old/bin/python'}
    """
    every = all_clients()
    chosen: dict[str, str] = {}
    for text in every if clients is None else [clients] if isinstance(clients, str) else clients:
        name, _, where = text.partition("=")
        if name not in every:
            raise ValueError(f"clients are {', '.join(every)}; not {name!r}")
        chosen[name] = where or find_default(name)
    return chosen


def _zarr_format(node: Any) -> int:
    return max(list_zarr_formats(node), default=2)


def _options_by_protocol(sources: Iterable[Source]) -> dict[str, dict[str, Any]]:
    """Return by protocol the options that we open all of its sources with, without credentials.

    Clients have one file system for each protocol: what only some of its hosts are to get is not
    for it.
    """
    options: dict[str, dict[str, Any]] = {}
    for source in sources:
        ours = without_keyring(source.storage_options)
        common = options.setdefault(protocol_of(source.uri), ours)
        differing = [name for name in common if name not in ours or ours[name] != common[name]]
        for name in differing:
            del common[name]
    return options
