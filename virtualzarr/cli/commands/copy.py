"""The command ``virtualzarr copy``: chunk lengths, codecs and bytes as arguments."""

from __future__ import annotations

import argparse
import json
import re
from typing import Any

from virtualzarr.cli import options as shared

_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12,
          "ki": 2**10, "mi": 2**20, "gi": 2**30, "ti": 2**40}  # fmt: skip

_EPILOG = """\
LENGTHS are "keep" (the default), "auto", one number for all axes, a number for each ("8,100,100"),
or numbers by the names of dimensions ("time=24,lat=-1"); -1 is the whole axis. Lengths that differ
along an axis are JSON: "[[10, 20, 30], 512]". For --shards there is also "none".

CODECS are "keep" (the default), "auto", "none", names ("zstd"), or JSON as in Zarr metadata:
'{"name": "zstd", "configuration": {"level": 9}}', or a list of such.

examples:
  virtualzarr copy old.zarr new.zarr --zarr-format 3
  virtualzarr copy air.nc air.zarr --chunks time=240,lat=50,lon=50 --memory 1GB
  virtualzarr copy air.zarr s3://bucket/air.zarr --shards time=2400 --compressors zstd
"""


def add_command(commands: Any, common: argparse.ArgumentParser) -> None:
    """Add the command to those of a parser."""
    parents = [common, shared.opening_options(), shared.printing_options()]
    parser = commands.add_parser(
        "copy", parents=parents, epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        help="copy an array or a hierarchy, with other chunks, codecs or formats if asked for",
        description="Copy an array, or a group with everything in it, into a Zarr hierarchy. What "
        "is\nstored alike in both is copied without decoding it.",
    )  # fmt: skip
    parser.set_defaults(run=run)
    add = parser.add_argument
    add("source", metavar="SRC", help="Zarr hierarchy, reference file, file of another format, URL")
    add("destination", metavar="DST", help="directory, URL, or a name that ends with .zip")
    add("--node", default="", metavar="PATH", help="which group or array of SRC (default: all)")
    add("--name", default="", metavar="PATH", help="where in DST (default: the root)")
    # Two groups in the help, as what becomes different matters more than how.
    changes = parser.add_argument_group("what is otherwise in the copy")
    add = changes.add_argument
    add("--chunks", type=lengths, default="keep", metavar="LENGTHS", help="lengths of chunks")
    add("--shards", type=lengths, default="keep", metavar="LENGTHS", help="lengths of shards")
    add("--filters", type=codecs, default="keep", metavar="CODECS", help="from array to array")
    add("--serializer", type=codecs, default="keep", metavar="CODEC", help="from array to bytes")
    add("--compressors", type=codecs, default="keep", metavar="CODECS", help="from bytes to bytes")
    add("--codecs", type=codecs, default="keep", metavar="CODECS", help="all of them at once")
    add("--zarr-format", type=int, choices=(2, 3), help="default: that of SRC")
    add("--fill-value", type=_json, metavar="JSON", help="of elements that are not stored")
    add("--chunk-key-encoding", choices=("default", "v2"), help="how keys of chunks are spelled")
    add("--dimension-separator", choices=("/", "."), help="in the keys of chunks")
    add("--write-empty-chunks", action=argparse.BooleanOptionalAction,
        help="store chunks of nothing but the fill value that SRC has (default: those that need "
        "not be encoded anew); with --no- none at all, which decodes everything")  # fmt: skip
    add("--consolidated", action=argparse.BooleanOptionalAction,
        help="consolidate metadata (default: if those of SRC are)")  # fmt: skip
    how = parser.add_argument_group("how it is copied")
    add = how.add_argument
    add("--memory", type=memory, metavar="BYTES",
        help="to be used for chunks, such as 512MB (default: 256MiB, or what one chunk takes); "
        "more may save decoding chunks several times")  # fmt: skip
    shared.add_flags(how, overwrite="delete an array or group that DST is already")
    shared.add_format(how, "SRC")
    shared.add_on_error(how, "read")
    shared.add_output_options(how, "DST")


def run(options: argparse.Namespace) -> int:
    """Run the command."""
    import virtualzarr

    # "keep" is passed on as it is; options without that word are only passed if they are given.
    changes: dict[str, Any] = {
        name: getattr(options, name)
        for name in ("chunks", "shards", "filters", "serializer", "compressors", "codecs")
    }
    for name in ("fill_value", "chunk_key_encoding", "dimension_separator"):
        if getattr(options, name) is not None:
            changes[name] = getattr(options, name)
    report = virtualzarr.copy(
        options.source,
        options.destination,
        options.node,
        name=options.name,
        zarr_format=options.zarr_format,
        overwrite=options.overwrite,
        write_empty_chunks=options.write_empty_chunks,
        consolidated=options.consolidated,
        memory=options.memory,
        progress=False if options.quiet else None,
        format=options.format,
        on_error=options.on_error,
        allowed=options.allowed,
        storage_options=options.storage_options,
        destination_options=options.output_options or options.storage_options,
        **changes,
    )
    # The report says what was decoded: a copy that was to keep chunks as stored shows that here.
    shared.print_report(options, report)
    return 0


def lengths(text: str) -> Any:
    """Read lengths of chunks or shards.

    Examples
    --------
    >>> lengths("8,100"), lengths("time=24,lat=-1"), lengths("auto"), lengths("[[1, 2], 3]")
    ((8, 100), {'time': 24, 'lat': -1}, 'auto', [[1, 2], 3])
    """
    if text in ("keep", "auto"):
        return text
    if text == "none":
        return None
    if text[:1] in "[{":
        return _json(text)
    try:
        return _named_or_in_order(text)
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"{text!r} has no lengths, such as 8,100 or time=24,lat=-1"
        ) from None


def _named_or_in_order(text: str) -> Any:
    if "=" in text:
        # From the right: names of dimensions may have an equals sign in them.
        pairs = [part.rpartition("=") for part in text.split(",")]
        return {name: "auto" if value == "auto" else int(value) for name, _, value in pairs}
    # "8" is one length for all axes, "8," would be that of the first of one.
    numbers = tuple(int(part) for part in text.split(","))
    return numbers[0] if len(numbers) == 1 and "," not in text else numbers


def codecs(text: str) -> Any:
    """Read codecs.

    Examples
    --------
    >>> codecs("zstd"), codecs("none"), codecs('{"name": "gzip", "configuration": {"level": 9}}')
    (['zstd'], None, {'name': 'gzip', 'configuration': {'level': 9}})
    """
    if text in ("keep", "auto"):
        return text
    if text == "none":
        return None
    return _json(text) if text[:1] in "[{" else text.split(",")


def memory(text: str) -> int:
    """Read a number of bytes.

    Examples
    --------
    >>> memory("512MB"), memory("1 GiB"), memory("4096")
    (512000000, 1073741824, 4096)
    """
    # Decimal and binary units, as people and tools write both; upper and lower case alike.
    match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?) *([kmgt]i?)?b?", text.strip().lower())
    if match is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of bytes, such as 512MB")
    return int(float(match[1]) * _UNITS[match[2] or ""])


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is not JSON: {error}") from error
