"""Settings of this package, for the whole process."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import Any, Literal

from virtualzarr.limits import Limits, Settings
from virtualzarr.tuning import Tuning


@dataclass
class Config(Settings):
    """Settings that hold for the whole process.

    Attributes
    ----------
    threads : int
        Threads that read and decode local chunks.
    processes : int
        Processes that scan local files, where all of them would take one process more than some
        seconds, and nothing else is said (`parallel`); by default as many as there are processors
        for this process, 8 at most. With 1, no process is ever started for that.
    requests : int
        Requests under way at once to remote files, at most; fewer at a host that has not answered
        as many yet, closes connections, or refuses more than a quarter of them (429 and 503).
    retries : int
        How often a request is repeated that a busy or failing server did not answer: one that was
        cut off, or answered by 408, 425, 429, 500, 502, 503 or 504.
    retry_seconds, max_retry_seconds : float
        How long to wait at most before a request is repeated first, twice as long before each
        further time; and how long at most before any. A server that asks for more gets none.
    hedge_requests : bool
        Whether a request over HTTP or to S3 that is late is sent a second time, of which the first
        answer counts: after twice the time within which 95 % of the requests to that host are
        answered, and for 5 % of them at most.
    total_retry_seconds : float
        A request is not repeated later than this after it first failed; nor is a commit asked for
        whose outcome the store does not say.
    stall_seconds : float
        A request over HTTP counts as failed, and is repeated, when nothing has come for so long;
        unless `timeout` is among the options.
    open_sources : int
        Files of one manifest that are kept ready: each takes far more memory than its references.
    local_gap, remote_gap : int
        Byte ranges of one file that lie at most this many bytes apart are read as one.
    local_read, remote_read : int
        Merged ranges are not made longer than about this many bytes.
    stream_bytes : int
        Bytes of remote chunks that are requested or wait to be decoded, about, at most.
    batch_bytes : int
        A thread is given about this many decoded bytes at once: small chunks one by one are not
        worth the switching.
    partial_read_bytes : int
        Of uncompressed chunks larger than this, only the bytes needed are read.
    member_check_bytes : int
        What is read first of a member of a local zip file makes the rest of it be read, too, to
        compare its checksum; unless that is more than this many bytes.
    settled_ns : int
        A file changed less than this many nanoseconds ago may change again without its times
        telling: it is not cached.
    shard_index_bytes : int
        Memory for the indexes of shards read lately, shared by all arrays.
    chunk_cache_bytes : int
        Memory for decoded chunks, shared by all arrays that were not opened with a cache of their
        own. None by default: see `ChunkCache`.
    recheck_cached_metadata, recheck_cached_data : bool, "always", "open", "never" or float
        When arrays look whether what is kept in memory still is what is stored, for those that
        were not opened with bounds of their own: see `open_array`.
    disk_cache : str, optional
        A folder in which blocks of remote files that have a strong entity tag are kept, for all
        processes of this user; by default the variable ``VIRTUALZARR_DISK_CACHE``, or none.
    disk_cache_bytes : int
        What these blocks take on the disk at most, 10 GiB by default, or what the variable
        ``VIRTUALZARR_DISK_CACHE_BYTES`` says. Those used least recently make room for others.
    inline_bytes : int
        Values that cannot be referenced are copied when a file is scanned, up to this many bytes
        for each variable; larger ones are refused.
    verify_sources : bool
        Whether a source must still have the size, and the modification time or entity tag, it had
        when scanned. Of a file elsewhere, every answer is compared.
    sync_files : bool
        Whether a local file must have reached the disk before it replaces the one before: then a
        crash of the whole machine, not only of a process, leaves old or new bytes.
    limits : Limits
        The most of each thing that a file or document may claim.
    tuning : Tuning
        Sizes of batches and thresholds, which change what things cost.

    Examples
    --------
    >>> import virtualzarr
    >>> virtualzarr.config.threads >= 1
    True
    """

    threads: int = field(default_factory=lambda: min(16, os.cpu_count() or 1))
    processes: int = field(default_factory=lambda: min(8, count_processors()))
    requests: int = 128
    retries: int = 7
    retry_seconds: float = 0.025
    max_retry_seconds: float = 20.0
    total_retry_seconds: float = 120.0
    stall_seconds: float = 50.0
    hedge_requests: bool = True
    open_sources: int = 4096
    local_gap: int = 32 * 1024
    remote_gap: int = 64 * 1024
    local_read: int = 1024 * 1024
    remote_read: int = 8 * 1024 * 1024
    stream_bytes: int = 256 * 1024 * 1024
    batch_bytes: int = 1024 * 1024
    partial_read_bytes: int = 128 * 1024
    member_check_bytes: int = 64 * 1024 * 1024
    settled_ns: int = 2_000_000_000
    shard_index_bytes: int = 32 * 1024 * 1024
    chunk_cache_bytes: int = 0
    recheck_cached_metadata: bool | float | Literal["always", "open", "never"] = "open"
    recheck_cached_data: bool | float | Literal["always", "open", "never"] = True
    disk_cache: str | None = field(
        default_factory=lambda: os.environ.get("VIRTUALZARR_DISK_CACHE") or None
    )
    disk_cache_bytes: int = field(default_factory=lambda: _read_bytes(10 * 2**30))
    inline_bytes: int = 64 * 1024 * 1024
    verify_sources: bool = True
    sync_files: bool = False
    limits: Limits = field(default_factory=Limits)
    tuning: Tuning = field(default_factory=Tuning)

    def _check_value(self, name: str, value: Any) -> None:
        # Without a thread or a request, reading would wait for ever.
        least = {"threads": 1, "processes": 1, "requests": 1, "retries": 0, "open_sources": 1,
                 "disk_cache_bytes": 0}.get(name)  # fmt: skip
        if least is not None and (not isinstance(value, int) or value < least):
            raise ValueError(f"config.{name} is an integer from {least} on, not {value!r}")


def count_processors() -> int:
    """Return how many processors this process may use: by affinity, and by the quota of its group.

    Examples
    --------
    >>> count_processors() >= 1
    True
    """
    has_affinity = hasattr(os, "sched_getaffinity")
    count = len(os.sched_getaffinity(0)) if has_affinity else os.cpu_count() or 1
    try:
        with open("/sys/fs/cgroup/cpu.max") as file:
            quota, period = file.read().split()
        return max(1, min(count, int(quota) // int(period)))
    except (OSError, ValueError):  # there are no groups, or there is no quota
        return count


def _read_bytes(default: int) -> int:
    name = "VIRTUALZARR_DISK_CACHE_BYTES"
    text = os.environ.get(name) or str(default)
    if not text.isdecimal():
        raise ValueError(f"{name} is an integer from 0 on, not {text!r}")
    return int(text)


def settings_for_workers() -> dict[str, Any]:
    """Return the settings that hold in worker processes of this one.

    Threads are as many as a worker has by itself, and none starts processes of its own.

    Examples
    --------
    >>> settings_for_workers()["processes"]
    1
    """
    return {name: value for name, value in vars(config).items() if name != "threads"} | {
        "processes": 1
    }


config = Config()
