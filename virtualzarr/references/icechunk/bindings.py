"""Bindings to Icechunk: storage by path or URL, its errors, and its asynchronous stores in step."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import AsyncIterator, Coroutine, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import islice
from typing import Any
from urllib.parse import quote, unquote

from virtualzarr.errors import (
    SourceError,
    UnsupportedError,
    VirtualZarrError,
    WriteError,
    import_optional,
)
from virtualzarr.references.icechunk.logins import find_login
from virtualzarr.stores.credentials import find_keyring, names_of, without_keyring
from virtualzarr.stores.files import Location, is_url, open_file
from virtualzarr.stores.forks import check_not_forked
from virtualzarr.stores.s3_sessions import find_endpoint, open_session
from virtualzarr.stores.uris import parse_url

SUFFIX = ".icechunk"
BRANCH = "main"
COMMIT = "virtualzarr.commit"
"""The name under which a commit's metadata have its id."""

RECEIPT = "virtualzarr.receipt"
"""The name under which they say what was published."""

_LOCAL = "file://"
_BATCH = 256
_PARTS = ("snapshots", "transactions")


def icechunk() -> Any:
    """The module.

    Raises `MissingDependencyError` if it is not installed.
    """
    problem = "Icechunk needs its package: pip install 'virtualzarr[icechunk]'"
    return import_optional("icechunk", problem)


def is_repository(uri: str, storage_options: Mapping[str, Any] | None = None) -> bool:
    """Whether there is a repository at a place; of a URL, by how it ends."""
    if is_url(uri):
        return uri.rstrip("/").endswith(SUFFIX)
    return all(os.path.isdir(os.path.join(uri, part)) for part in _PARTS) and any(
        os.path.exists(os.path.join(uri, name)) for name in ("repo", "refs")
    )


def storage(target: Location) -> Any:
    """Icechunk's storage at a location, whose options are those of `s3_storage`, `gcs_storage`."""
    check_not_forked("Icechunk")
    module, uri, arguments = icechunk(), target.uri, without_keyring(target.storage_options)
    arguments.pop("branch", None)
    if not is_url(uri):
        return module.local_filesystem_storage(uri)
    parts = parse_url(uri)
    location = {"bucket": parts.netloc, "prefix": parts.path.strip("/") or None}
    if parts.scheme in ("s3", "s3a"):
        arguments |= find_login(target, "s3")
        return module.s3_storage(**location, **(arguments or {"from_env": True}))
    if parts.scheme in ("gs", "gcs"):
        arguments |= find_login(target, "gs")
        return module.gcs_storage(**location, **(arguments or {"from_env": True}))
    raise UnsupportedError("repositories are opened at local paths, s3:// and gs://", file=uri)


def branch_of(target: Location) -> str:
    """Return the branch that a location's options name."""
    branch = (target.storage_options or {}).get("branch", BRANCH)
    if not isinstance(branch, str) or not branch:
        raise ValueError(f"branch is the name of a branch, not {branch!r}")
    return branch


@contextmanager
def writing_errors(uri: str) -> Iterator[None]:
    """Make Icechunk's errors errors of this package that name the repository, in one line."""
    with _errors(uri, WriteError, "Icechunk cannot write here"):
        yield


@contextmanager
def reading_errors(uri: str) -> Iterator[None]:
    """Do the same where a repository is opened and read."""
    with _errors(uri, SourceError, "Icechunk cannot read the repository"):
        yield


@contextmanager
def _errors(uri: str, kind: type[VirtualZarrError], failure: str) -> Iterator[None]:
    module = icechunk()
    with _quiet(module):
        try:
            yield
            return
        except VirtualZarrError as error:
            raise error.at(file=uri) from error.__cause__
        except (module.IcechunkError, OSError, ValueError, KeyError, RuntimeError) as error:
            problem = first_line(error)
        except BaseException as error:
            # What Rust's code panics with; the first is no Exception.
            if type(error).__name__ not in ("PanicException", "RustPanic"):
                raise
            problem = f"it failed inside: {first_line(error)}"
    # Not chained: its text has whole answers, in which services repeat credentials.
    raise kind(f"{failure}: {problem}", file=uri)


def first_line(error: BaseException) -> str:
    """Return what an error of Icechunk says, without Rust's frames and backtraces."""
    match = re.search(r"\w.*", str(error))
    return match[0].strip() if match else type(error).__name__


@contextmanager
def _quiet(module: Any) -> Iterator[None]:
    """Keep Icechunk from telling at every opening that two must not commit to a folder at once.

    Unless the user has asked for its messages by ``ICECHUNK_LOG``.
    """
    choose = getattr(module, "set_logs_filter", None)
    if choose is None or "ICECHUNK_LOG" in os.environ:
        yield
        return
    choose("error")
    try:
        yield
    finally:
        choose(None)


def tip(target: Location) -> str:
    """Return the identifier of the newest snapshot of the branch."""
    with reading_errors(target.uri):
        return str(icechunk().Repository.open(storage(target)).lookup_branch(branch_of(target)))


def read_receipt(target: Location, depth: int = 256) -> Mapping[str, Any]:
    """Return how a branch was published, as its last commits say."""
    with reading_errors(target.uri):
        repository = icechunk().Repository.open(storage(target))
        for snapshot in islice(repository.ancestry(branch=branch_of(target)), depth):
            receipt = snapshot.metadata.get(RECEIPT)
            if isinstance(receipt, Mapping):
                return receipt
    return {}


def list_commits(target: Location, depth: int = 50) -> list[tuple[str, str, str, str]]:
    """Return id, time, verb and message of the last commits of a branch, the newest first."""
    with reading_errors(target.uri):
        repository = icechunk().Repository.open(storage(target))
        return [
            (str(each.id), f"{each.written_at:%Y-%m-%d %H:%M} UTC", "commit", each.message)
            for each in islice(repository.ancestry(branch=branch_of(target)), depth)
        ]


def has_commit(repository: Any, branch: str, commit: str, depth: int = 256) -> bool:
    """Tell whether one of the last commits of a branch has an id."""
    snapshots = islice(repository.ancestry(branch=branch), depth)
    return bool(commit) and any(s.metadata.get(COMMIT) == commit for s in snapshots)


def location(uri: str) -> str:
    """A source's path or URL as Icechunk has it.

    Examples
    --------
    >>> location("/data/a b.nc"), location("s3://bucket/a#1")
    ('file:///data/a%20b.nc', 's3://bucket/a%231')
    """
    if not is_url(uri):
        return _LOCAL + quote(uri)
    scheme, _, path = uri.partition("://")
    return uri if scheme.startswith("http") else f"{scheme}://{quote(path)}"


def source_uri(text: str) -> str:
    """A location of Icechunk's as a source's path or URL."""
    if text.startswith(_LOCAL):
        return unquote(text.removeprefix(_LOCAL), errors="surrogateescape")
    return text if text.startswith("http") else unquote(text)


def container_of(prefix: str, options: Mapping[str, Any] | None) -> tuple[Any, Any]:
    """Where chunks below a location lie, and what lets them be read, if that needs no secrets."""
    module = icechunk()
    scheme, source_options = prefix.partition("://")[0], dict(options or {})
    access: Any = None
    credentials = getattr(module, "Credentials", None)
    # Credentials are never stored in the repository: containers say where chunks lie, who reads
    # brings the keys.
    if scheme == "file":
        store = module.local_filesystem_store(unquote(prefix.removeprefix(_LOCAL)))
        sentinel = getattr(credentials, "LocalFileSystemAccess", None)
        access = None if sentinel is None else sentinel()
    elif scheme in ("s3", "s3a"):
        # The options are fsspec's, as those of the sources are; Icechunk calls them otherwise.
        service = _find_endpoint(prefix, source_options)
        endpoint = service.get("endpoint")
        store = module.s3_store(
            region=service.get("region"),
            endpoint_url=endpoint,
            anonymous=bool(source_options.get("anon")),
            allow_http=bool(endpoint and endpoint.startswith("http://")),
            force_path_style=bool(endpoint),
        )
    elif scheme in ("gs", "gcs"):
        store = module.gcs_store()
    elif scheme in ("http", "https"):
        store = module.http_store()
        sentinel = getattr(credentials, "HttpAccess", None)
        access = None if sentinel is None else sentinel()
    else:
        raise UnsupportedError("Icechunk reads no chunks from such a place", file=prefix)
    return module.VirtualChunkContainer(prefix, store), access


def _find_endpoint(prefix: str, options: Mapping[str, Any]) -> dict[str, str]:
    """Return endpoint and region of buckets, as these options and the configuration have them."""
    keyring = find_keyring(options)
    provider = None if keyring is None else keyring.find(prefix)
    settings = {**options, **({} if provider is None else provider.get().as_options())}
    settings |= settings.get("client_kwargs") or {}
    session = open_session(settings.get("profile"))
    names = {"endpoint_url": "endpoint", "region_name": "region"}
    named = {new: settings[name] for name, new in names.items() if settings.get(name)}
    return {**({} if session is None else find_endpoint(session)), **named}


def run(work: Coroutine[Any, Any, Any]) -> Any:
    """Wait for a coroutine, also where an event loop is running."""
    check_not_forked("Icechunk", work)
    # A thread with a loop of its own: asyncio.run fails where a loop is running, as in notebooks.
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(asyncio.run, work).result()


def put(store: Any, items: Iterable[tuple[str, bytes]]) -> int:
    """Set values in a session's store; return how many bytes that were."""
    from zarr.core.buffer import default_buffer_prototype

    make = default_buffer_prototype().buffer.from_bytes

    async def go() -> int:
        total = 0
        batches = iter(items)
        # Values may fail to be made: no call is begun before those of its batch are there.
        while batch := list(islice(batches, _BATCH)):
            await asyncio.gather(*(store.set(key, make(value)) for key, value in batch))
            total += sum(len(value) for _, value in batch)
        return total

    return int(run(go()))


def clear(store: Any, path: str = "") -> None:
    """Delete everything in a session's store, or a node."""
    run(store.delete_dir(path) if path else store.clear())


def documents(store: Any) -> dict[str, bytes]:
    """The metadata in a session's store, by key."""
    from zarr.core.buffer import default_buffer_prototype

    async def go() -> dict[str, bytes]:
        values = {}
        async for key in _nodes(store):
            value = await store.get(key, default_buffer_prototype())
            if value is not None:
                values[key] = value.to_bytes()
        return values

    result: dict[str, bytes] = run(go())
    return result


async def _nodes(store: Any, path: str = "") -> AsyncIterator[str]:
    """Keys of metadata, without a listing of chunks."""
    key = f"{path}/zarr.json" if path else "zarr.json"
    if not await store.exists(key):
        return
    yield key
    async for name in store.list_dir(path):
        # Chunks of an array lie below "c", but a member of a group may be called so, too.
        if name != "zarr.json":
            async for below in _nodes(store, f"{path}/{name}" if path else name):
                yield below


def node_id(session: Any, path: str) -> str:
    """Return the identifier of an array.

    Raises `UnsupportedError` if the package is too old to tell.
    """
    if not hasattr(session, "get_node_id"):
        raise UnsupportedError("comparing checksums of sources needs a newer Icechunk: 2.3")
    return str(session.get_node_id(f"/{path}"))


def read_object(target: Location, name: str) -> bytes:
    """Return an object of a repository as it is stored."""
    options = _fsspec_options(target.storage_options or {}) | names_of(target.storage_options)
    return bytes(open_file(Location(f"{target.uri}/{name}", options)).read(0, None))


def _fsspec_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of Icechunk's storage as fsspec has them."""
    names = {
        "access_key_id": "key", "secret_access_key": "secret", "session_token": "token",
        "anonymous": "anon", "service_account_file": "token", "service_account_key": "token",
        "application_credentials": "token", "bearer_token": "token",
    }  # fmt: skip
    credentials = {names[k]: v for k, v in options.items() if k in names and v is not None}
    client = {
        name: options[argument]
        for name, argument in (("endpoint_url", "endpoint_url"), ("region_name", "region"))
        if options.get(argument) is not None
    }
    return credentials | ({"client_kwargs": client} if client else {})


def batches(store: Any, path: str, size: int) -> list[tuple[Any, ...]]:
    """The references of an array: coordinates, kinds, places, offsets, lengths, inline chunks.

    Raises `UnsupportedError` if the package is too old to tell.
    """
    if not hasattr(store, "array_chunk_iterator"):
        raise UnsupportedError("reading references from Icechunk needs its version 2.0.5 or newer")

    async def go() -> list[tuple[Any, ...]]:
        return [batch async for batch in store.array_chunk_iterator(f"/{path}", size)]

    result: list[tuple[Any, ...]] = run(go())
    return result
