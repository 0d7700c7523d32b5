"""File systems of fsspec for URLs, with the options, logins and sessions that each has."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from virtualzarr.errors import MissingDependencyError, UnsupportedError
from virtualzarr.stores.azure_names import at_hosts_of_azure, is_azure
from virtualzarr.stores.credential_providers import Credential
from virtualzarr.stores.credentials import find_keyring, secrets_of, without_keyring
from virtualzarr.stores.foreign_errors import hide_requests
from virtualzarr.stores.ftp_logins import describe_login, log_in, logs_in_at_once
from virtualzarr.stores.location import Location
from virtualzarr.stores.option_names import check_headers, check_options
from virtualzarr.stores.request_loop import with_request_loop
from virtualzarr.stores.s3_sessions import note_environment, with_region, without_own_retries
from virtualzarr.stores.uris import is_cached, is_web
from virtualzarr.stores.web_sessions import with_own_session

_S3 = ("s3://", "s3a://")


def filesystem(location: Location, credential: Credential | None = None) -> tuple[Any, str]:
    """Return fsspec's file system for a location, and the path within it.

    Parameters
    ----------
    location : Location
    credential : Credential, optional
        By default that of its prefix, if the file system logs in when it is made.

    Raises
    ------
    ValueError
        If it takes no such options.
    UnsupportedError
        If fsspec knows no such protocol.
    MissingDependencyError
        The package that it needs is not installed.
    SourceError
        If what the path lies in, such as a zip file, cannot be opened.
    """
    uri, options = location.uri, without_keyring(location.storage_options)
    keyring = find_keyring(location.storage_options)
    # Of Azure, credentials may also say which account is asked. All others are asked for it at each
    # request, when it may be another one.
    is_early = logs_in_at_once(uri) or is_azure(uri)
    provider = None if keyring is None or not is_early else keyring.find(uri)
    if credential is None and provider is not None:
        credential = provider.get()
    if credential is not None:
        options |= credential.as_options()
    check_options(uri, options)
    if keyring is not None and is_cached(uri) and keyring.find(uri.rpartition("::")[2]) is not None:
        raise UnsupportedError(
            "caches of fsspec do not send credentials by prefix: give them as options under the "
            "protocol, such as storage_options={'https': {'headers': ...}}, or open the URL "
            "without it, with virtualzarr.config.disk_cache",
            file=uri,
        )
    asked, options = at_hosts_of_azure(uri, options)
    if is_s3(uri):
        options = with_region(without_own_retries(options))
    if is_web(uri) and "::" not in uri:
        check_headers(options)
        options = with_own_session(options, keyring, uri)
    try:
        if any(link.startswith(_S3) for link in uri.split("::")):
            note_environment()
        open_url = log_in if logs_in_at_once(uri) else _url_to_fs
        fs, path = open_url(asked, with_request_loop(uri, options))
    except ImportError as error:
        raise MissingDependencyError(
            f"{error}. HTTP, S3 and FTP come with pip install 'virtualzarr[remote]'", file=uri
        ) from error
    except ValueError as error:
        raise UnsupportedError(f"cannot open the URL: {error}", file=uri) from error
    except Exception as error:
        hide_requests(error, secrets_of(location.storage_options, uri))
        raise describe_login(error, uri, provider) from error
    return fs, path


def _url_to_fs(uri: str, options: Mapping[str, Any]) -> tuple[Any, str]:
    import fsspec

    fs, path = fsspec.core.url_to_fs(uri, **options)
    return fs, path


def is_s3(uri: str) -> bool:
    """Tell whether a URL is of S3 itself, and not of an archive there."""
    return uri.startswith(_S3) and "::" not in uri
