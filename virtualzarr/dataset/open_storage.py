"""Opening of storages: what a path or URL of a dataset is.

Options are those of fsspec's file systems, as everywhere in this package, so that the same ones
open a dataset and the files that it refers to.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from virtualzarr.dataset.directory import Directory
from virtualzarr.dataset.fsspec_storage import FsspecStorage
from virtualzarr.dataset.object_client import ObjectClient
from virtualzarr.dataset.object_store import ObjectStore
from virtualzarr.dataset.open_obstore import find_endpoint, open_client
from virtualzarr.dataset.s3_client import S3Client
from virtualzarr.dataset.storage import Storage
from virtualzarr.errors import MissingDependencyError, UnsupportedError, VirtualZarrError
from virtualzarr.stores.credentials import find_keyring
from virtualzarr.stores.location import Location
from virtualzarr.stores.obstore import describe_error
from virtualzarr.stores.uris import protocol_of

_S3 = ("s3", "s3a")
_SERVICES = {"gs": "gs", "gcs": "gs", "az": "az", "abfs": "az", "abfss": "az"}


def open_storage(location: Location, single_writer: bool = False) -> Storage:
    """Return the storage of a dataset, there or not; one that cannot be committed to is read."""
    if not location.is_remote:
        return Directory(location, single_writer)
    protocol = protocol_of(location.uri).lower()
    if "::" not in location.uri:
        if protocol in _S3:
            reopen = partial(S3Client, location)
            return ObjectStore(location, _open(location, reopen), single_writer, reopen)
        if protocol in _SERVICES:
            return _open_by_obstore(location, _SERVICES[protocol], single_writer)
    return FsspecStorage(location, single_writer)


def _open(location: Location, open_client: Callable[[], ObjectClient]) -> ObjectClient:
    try:
        return open_client()
    except Exception:
        # What a function gave for credentials is not to stay.
        keyring = find_keyring(location.storage_options)
        provider = None if keyring is None else keyring.find(location.uri)
        if provider is not None:
            provider.forget()
        raise


def _open_by_obstore(location: Location, service: str, single_writer: bool) -> Storage:
    refusal: VirtualZarrError
    try:
        reopen = partial(open_client, location, service, find_endpoint(location, service))
        return ObjectStore(location, _open(location, reopen), single_writer, reopen)
    except ImportError:
        refusal = MissingDependencyError(
            "committing to datasets in GCS and Azure needs obstore: "
            "pip install 'virtualzarr[object-stores]'",
            file=location.uri,
        )
    except UnsupportedError as error:
        refusal = error
    except Exception as error:
        # Those of obstore can only be named where it is there.
        if type(error).__module__ != "obstore.exceptions" and not isinstance(error, TypeError):
            raise
        refusal = UnsupportedError(
            f"these options are none to commit to object stores with: {describe_error(error)}",
            file=location.uri,
        )
    return FsspecStorage(location, single_writer, refusal)
