"""File systems that directories lie on, and whether their locks can be relied on."""

from __future__ import annotations

import os
import re
from pathlib import Path

_UNRELIABLE = frozenset(
    ["nfs", "nfs4", "cifs", "smb2", "smb3", "smbfs", "ncpfs", "afs", "9p", "v9fs", "drvfs",
     "vboxsf", "prl_fs", "virtiofs", "lustre", "beegfs", "ceph"]
)  # fmt: skip
"""Types whose locks depend on a server, on mount options, or hold on one machine only."""

_LOCAL_FUSE = frozenset(["fuseblk", "fuse.fuse-overlayfs", "fuse.lxcfs"])
"""Of file systems in user space, those whose files no other machine has."""


def find_file_system(path: str, mounts: str = "/proc/self/mountinfo") -> str:
    """Return the type of the file system that a path lies on, or would; "" if that is not said.

    Only Linux says it.

    Parameters
    ----------
    path : str
    mounts : str
        The file in which Linux describes all mounts.
    """
    try:
        text = Path(mounts).read_text("utf-8", "surrogateescape")
    except OSError:
        return ""
    return parse_mounts(text, os.path.realpath(path))


def parse_mounts(mounts: str, path: str) -> str:
    """Return the type of the file system of a path, by what Linux says of all mounts.

    Source: proc_pid_mountinfo(5). Of mounts at one point, the last one is on top.

    Examples
    --------
    >>> line = "36 35 98:0 / /data rw,noatime master:1 - nfs4 server:/export rw"
    >>> parse_mounts(line, "/data/feed"), parse_mounts(line, "/database")
    ('nfs4', '')
    """
    longest, kind = -1, ""
    for line in mounts.splitlines():
        fields, _, file_system = line.partition(" - ")
        columns = fields.split(" ")
        if len(columns) < 5 or not file_system:
            continue
        # Blanks and backslashes in names are written in octal digits.
        point = re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), columns[4])
        point = point.rstrip("/")
        if (path == point or path.startswith(f"{point}/")) and len(point) >= longest:
            longest, kind = len(point), file_system.split(" ")[0]
    return kind


def has_reliable_locks(kind: str) -> bool:
    """Tell whether a lock on files of a type of file system excludes all others, always.

    Examples
    --------
    >>> has_reliable_locks("ext4"), has_reliable_locks("nfs4"), has_reliable_locks("fuse.sshfs")
    (True, False, False)
    """
    if kind.startswith("fuse"):
        return kind in _LOCAL_FUSE
    return kind not in _UNRELIABLE
