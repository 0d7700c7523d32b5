"""Limits of what a head has itself, and of the nodes of tables: choices of writers."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Limits:
    """How much is where. Readers take whatever they find.

    Attributes
    ----------
    runs, entries, names, records : int
        How many a head has itself at most; more of them go to tables, or a block of the log.
    head_bytes : int
        The size from which on a head gives all of those away.
    record_bytes : int
        The size as JSON from which on a record is an object of its own.
    leaf_runs, leaf_entries, leaf_names, leaf_blocks : int
        Items in a leaf of a table, at most.
    fan_out : int
        Children of a node, at most.
    names_fan_in : int
        How many tables of names of about the same length are merged into one.
    most_names : int
        Names in a table that is not merged any more, at most.
    """

    runs: int = 64
    entries: int = 64
    names: int = 64
    records: int = 64
    head_bytes: int = 48_000
    record_bytes: int = 4_000
    leaf_runs: int = 1024
    leaf_entries: int = 64
    leaf_names: int = 512
    leaf_blocks: int = 128
    fan_out: int = 128
    names_fan_in: int = 10
    most_names: int = 1 << 15


LIMITS = Limits()
