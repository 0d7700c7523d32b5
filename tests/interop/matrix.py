"""Command that asks other people's clients what they read, of all that we publish and serve.

``python -m tests.interop.matrix [CLIENT[=PATH] ...]`` asks them for each codec, kind of elements
and form, and writes the table that `portable=` and `verify` go by; clients that are not named keep
what is in it. With ``--groups`` they are asked to read the collection of groups in all forms: it
prints counts, and exits with 1 if one reads other values, or refuses what the table does not say.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tests.interop.client_table import DOCUMENT, fill_document, fill_table
from tests.interop.collection import FORMS, Target, all_targets, ask, list_names
from virtualzarr.references.clients import (
    TABLE,
    list_features,
    list_kinds,
    predict_refusals,
    read_table,
)
from virtualzarr.verification.report import ClientResult
from virtualzarr.verification.verify import choose_clients


def judge_target(target: Target, result: ClientResult) -> Iterator[dict[str, Any]]:
    """Yield what a client did with each array, and whether the table says so."""
    metadata = {path: array.metadata for path, array in target.arrays.items()}

    zarr_format = target.request["zarr_format"]
    foretold = predict_refusals(result.client, target.form, zarr_format, metadata, target.groups)
    for sample in target.samples:
        path = sample.path
        status, why = "unsupported", ""
        if path in result.equal:
            status = "equal"
        elif path in result.wrong:
            status, why = "wrong", result.wrong[path]
            if path in foretold:
                status = "wrong as said"
        elif path in result.refused:
            status, why = "refused as said", result.refused[path]
            if path not in foretold:
                status = "refused"
        array = metadata[path]
        yield {
            "client": result.client, "version": result.version, "form": target.form,
            "group": target.group, "path": path, "status": status, "why": why[:300],
            "foretold": foretold.get(path, ""), "kinds": list_kinds(array),
            "codecs": list_features(array), "dims": array.dimension_names, "shape": array.shape,
        }  # fmt: skip


def ask_all(
    clients: Mapping[str, str], targets: Mapping[str, list[Target]]
) -> Iterator[list[dict[str, Any]]]:
    """Yield what each client did with each form."""
    for (client, where), some in itertools.product(clients.items(), targets.values()):
        results = list(ask(client, where, [(t.wanted, t.samples) for t in some]))
        yield [
            row
            for target, result in zip(some, results, strict=False)
            for row in judge_target(target, result)
        ]


def check_groups(options: argparse.Namespace, clients: Mapping[str, str]) -> int:
    """Ask all clients about all groups in all forms, and print the counts."""
    rows: list[dict[str, Any]] = []
    names = options.groups or list_names()
    with all_targets(names, options.forms) as (collection, targets):
        print(f"{len(collection.groups)} groups", flush=True)
        for some in ask_all(clients, targets):
            rows += some
            if some:
                counts = Counter(row["status"] for row in some)
                print(some[0]["client"], some[0]["form"], dict(counts), flush=True)
            if options.output:
                options.output.write_text(json.dumps(rows, default=str))
    bad = [row for row in rows if row["status"] in ("wrong", "refused")]
    for row in bad:
        print(*(row[name] for name in ("status", "client", "form", "group", "path", "why")))
    print("all:", dict(Counter(row["status"] for row in rows)))
    return int(bool(bad))


def main() -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("clients", nargs="*", metavar="CLIENT[=PATH]")
    parser.add_argument("--groups", nargs="*", metavar="NAME")
    parser.add_argument("--forms", nargs="*", default=FORMS, choices=FORMS)
    parser.add_argument("--output", type=Path, help="a file for what each did with each array")
    options = parser.parse_args()
    clients = choose_clients(options.clients or None)
    if options.groups is not None:
        return check_groups(options, clients)
    found = fill_table(clients)
    read_table.cache_clear()
    table = read_table() | found
    TABLE.write_text(json.dumps(table, indent=1, sort_keys=True) + "\n")
    read_table.cache_clear()
    DOCUMENT.write_text(fill_document(DOCUMENT.read_text()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
