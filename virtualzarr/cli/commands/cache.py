"""The command ``virtualzarr cache``: what the disk cache of remote blocks takes, and its end."""

from __future__ import annotations

import argparse
from typing import Any

from virtualzarr.cli import options as shared


def add_command(commands: Any, common: argparse.ArgumentParser) -> None:
    """Add the command to those of a parser."""
    parser = commands.add_parser(
        "cache", parents=[common, shared.printing_options()],
        help="show what the disk cache of remote files takes, or clear it",
    )  # fmt: skip
    parser.set_defaults(run=run)
    parser.add_argument(
        "folder", nargs="?", metavar="FOLDER",
        help="where the cache is (default: the variable VIRTUALZARR_DISK_CACHE)",
    )  # fmt: skip
    shared.add_flags(parser, clear="delete all blocks")


def run(options: argparse.Namespace) -> int:
    """Run the command."""
    from virtualzarr.config import config
    from virtualzarr.stores.block_cache import BlockCache, Usage

    folder: str = options.folder or config.disk_cache or ""
    if not folder:
        options.parser.error("name a folder: VIRTUALZARR_DISK_CACHE is not set")
    cache = BlockCache(folder) if BlockCache.is_in(folder) else None
    usage, cleared = Usage(0, 0) if cache is None else cache.measure(), Usage(0, 0)
    if cache is not None and options.clear:
        cache.clear()
        cleared, usage = usage, cache.measure()
    limit = config.disk_cache_bytes
    report = {"folder": folder, **usage._asdict(), "limit": limit, "cleared": cleared._asdict()}
    text = f"{folder}: {usage.blocks:,} blocks, {usage.nbytes:,} of {limit:,} bytes"
    if options.clear:
        text += f"; {cleared.blocks:,} blocks deleted"
    shared.print_report(options, report, text)
    return 0
