"""Paths of nodes in a hierarchy, and the names that nodes may have."""

from __future__ import annotations

from virtualzarr.config import config
from virtualzarr.errors import MetadataError
from virtualzarr.metadata.json_documents import short
from virtualzarr.stores.store import DOCUMENTS


def normalize_path(path: str) -> str:
    """Return a path without leading, trailing, doubled or backward slashes.

    Source: Zarr v2 specification, logical storage paths.

    Raises
    ------
    MetadataError
        A step of the path is `.` or `..`.
    UnsupportedError
        The path has more steps than `config.limits.depth`.

    Examples
    --------
    >>> normalize_path("/a//b/")
    'a/b'
    """
    # v2 spec: backslashes become slashes. `..` must not reach a store, which could resolve it to a
    # file outside of itself.
    steps = [step for step in path.replace("\\", "/").split("/") if step]
    if "." in steps or ".." in steps:
        raise MetadataError(f"the path {short(path)} contains the step '.' or '..'")
    config.limits.check("depth", len(steps), "groups in one another", short(path))
    return "/".join(steps)


def check_name(name: str, zarr_format: int = 3) -> str:
    """Return the name of a node to be created, if it may have that name.

    Source: Zarr v3 core specification, node names.

    Raises
    ------
    MetadataError
        The name is empty, contains a slash, consists of dots or is reserved.

    Examples
    --------
    >>> check_name("air")
    'air'
    """
    if not isinstance(name, str) or not name:
        raise MetadataError(f"the name of a node must be a string of characters, not {short(name)}")
    if "/" in name or (zarr_format == 2 and "\\" in name):
        raise MetadataError(f"the name of a node must not contain a slash: {short(name)}")
    if not name.strip("."):
        raise MetadataError(f"the name of a node must not consist of dots: {short(name)}")
    # v3 core, "Node names"; others are keys of documents beside the node's children, and of either
    # format no member: who lists a group does not know yet of which it is.
    if name in DOCUMENTS or (zarr_format == 3 and name.startswith("__")):
        raise MetadataError(f"the name {short(name)} is reserved")
    return name
