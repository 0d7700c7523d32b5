"""The command ``virtualzarr serve``: datasets as Zarr over HTTP, and a page for people."""

from __future__ import annotations

import argparse
import ipaddress
import logging
import os
import sys
from pathlib import Path
from typing import Any

from virtualzarr.cli.commands.copy import memory
from virtualzarr.cli.options import LineFormatter, add_flags, add_format, opening_options


def add_command(commands: Any, common: argparse.ArgumentParser) -> None:
    """Add the command to those of a parser."""
    parser = commands.add_parser(
        "serve", parents=[common, opening_options()],
        help="serve datasets as Zarr over HTTP, read-only, with a page for people",
    )  # fmt: skip
    parser.set_defaults(run=run)
    parser.add_argument(
        "targets", nargs="+", metavar="TARGET", help="whatever info takes; or NAME=TARGET"
    )
    add_format(parser, "the targets")
    server = parser.add_argument_group("the server")
    # Nobody else may ask unless the user says so: the address is the loopback one, and tokens come
    # from a file, as arguments can be read by all users of a machine.
    server.add_argument("--host", default="127.0.0.1", help="address (default: 127.0.0.1)")
    server.add_argument("--port", type=int, default=8000, help="0 for a free one (default: 8000)")
    server.add_argument(
        "--token-file", metavar="FILE",
        help="with tokens, one a line, of which requests need one (or VIRTUALZARR_TOKEN)",
    )  # fmt: skip
    server.add_argument(
        "--origin", action="append", default=[], metavar="URL",
        help="web pages that may read answers, such as https://example.org; * for all",
    )  # fmt: skip
    add_flags(
        server,
        public="anybody who reaches the server may ask, without a token",
        show_sources="show files and URLs of sources on the page and in errors",
        no_page="no page for people",
        quiet="no line for each request",
    )
    growing = parser.add_argument_group("datasets with versions")
    growing.add_argument("--version", type=int, metavar="N", help="serve this one only")
    growing.add_argument("--at", metavar="TIME", help="serve the newest one then (in UTC) only")
    growing.add_argument("--tag", metavar="NAME", help="serve the one with a tag only")
    growing.add_argument(
        "--follow", choices=("append", "all", "none"), default="append",
        help="new versions that URLs without one follow (default: those that append)",
    )  # fmt: skip
    growing.add_argument(
        "--poll", type=float, default=10.0, metavar="SECONDS", help="between looks (default: 10)"
    )
    limits = parser.add_argument_group("memory and caches")
    limits.add_argument(
        "--memory", type=memory, default=96 << 20, metavar="BYTES",
        help="for chunks on their way, such as 96MB; requests wait for it",
    )  # fmt: skip
    limits.add_argument("--cache", metavar="DIR", help="keep encoded chunks in this folder")
    limits.add_argument(
        "--cache-size",
        type=memory,
        default=10 << 30,
        metavar="BYTES",
        help="in it (default: 10 GiB)",
    )
    limits.add_argument(
        "--max-age", type=int, default=0, metavar="SECONDS",
        help="for which clients need not ask again (default: 0)",
    )  # fmt: skip


def run(options: argparse.Namespace) -> int:
    """Run the command."""
    from virtualzarr.serve.app import create_app

    tokens = read_tokens(options)
    check_exposure(options, tokens)
    names = (
        "public", "show_sources", "follow", "poll", "max_age", "memory", "cache", "cache_size",
        "format", "storage_options", "allowed", "version", "at", "tag",
    )  # fmt: skip
    app = create_app(
        options.targets, tokens=tokens, origins=options.origin, page=not options.no_page,
        **{name: getattr(options, name) for name in names},
    )  # fmt: skip
    _log_to_stderr(options.quiet)
    from virtualzarr.serve.server import listen, run_server

    with listen(options.host, options.port) as socket:
        port = socket.getsockname()[1]
        host = f"[{options.host}]" if ":" in options.host else options.host
        for name in app.entries:
            print(f"http://{host}:{port}/{name + '/' if name else ''}", flush=True)
        run_server(app, socket)
    return 0


def read_tokens(options: argparse.Namespace) -> list[str]:
    """Return the tokens of a file and the environment: command lines are seen by all users."""
    tokens = []
    if options.token_file is not None:
        text = Path(options.token_file).read_text(encoding="utf-8")
        tokens = [line.strip() for line in text.splitlines() if line.strip()]
        if not tokens:
            raise ValueError(f"there is no token in {options.token_file}")
    if from_environment := os.environ.get("VIRTUALZARR_TOKEN", "").strip():
        tokens.append(from_environment)
    return tokens


def check_exposure(options: argparse.Namespace, tokens: list[str]) -> None:
    """Raise ValueError where others could ask, and nobody said that they may."""
    if tokens or options.public or is_loopback(options.host):
        return
    raise ValueError(
        f"--host {options.host} is reached by others: give --token-file, or --public if "
        "everybody may read what is served"
    )


def is_loopback(host: str) -> bool:
    """Tell whether an address is of this machine alone."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _log_to_stderr(quiet: bool) -> None:
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(LineFormatter("%(asctime)s %(message)s"))
    for name in ("virtualzarr.serve", "uvicorn.error"):
        logger = logging.getLogger(name)
        logger.addHandler(handler)
        logger.propagate = False
        logger.setLevel(logging.WARNING if quiet or name.startswith("uvicorn") else logging.INFO)
