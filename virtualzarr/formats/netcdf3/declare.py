"""Declarations of the netCDF-3 parser: what a scan depends on, and which bytes may differ."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from virtualzarr.formats.hdf5.superblock import SIGNATURE, USER_BLOCKS
from virtualzarr.formats.netcdf3.header import Header, Value
from virtualzarr.formats.templates.recorder import UNDECODED, AttributeSlot
from virtualzarr.manifest import Source
from virtualzarr.metadata import json_attributes
from virtualzarr.stores.file_heads import find_head

if TYPE_CHECKING:
    from virtualzarr.formats.templates.recorder import Recorder
    from virtualzarr.hierarchy.group import Group


def declare(recorder: Recorder, header: Header, group: Group, source: Source) -> None:
    """Declare that a scan looked at the header, and that values of attributes may differ.

    Where values lie, and how long the file must be for that, follows from the rest of the header.
    """
    recorder.source = source
    size = source.size or 0
    if source.location.is_remote and find_head(source.location) is None:
        recorder.forbid("a remote file that is not all here")
    if header.nrecords is None:
        recorder.forbid("a number of records that follows from the length of the file")
    if size < USER_BLOCKS[-1] + len(SIGNATURE):
        recorder.forbid("a file so short that longer ones might be of another format")
    recorder.others += [(at, SIGNATURE) for at in USER_BLOCKS]
    recorder.require_size(max(header.nbytes, header.nrecords or 0))
    recorder.uses.append((0, header.nbytes, 1))
    recorder.groups.append(("", 0))
    _declare_attributes(recorder, 0, header.attributes)
    for number, variable in enumerate(header.variables, start=1):
        # One that was skipped was warned of: then no template is made.
        if variable.name in group:
            recorder.arrays.append((variable.name, number))
            _declare_attributes(recorder, number, variable.attributes)


def _declare_attributes(recorder: Recorder, node: int, attributes: Mapping[str, Value]) -> None:
    for name, value in attributes.items():
        # Of two attributes of one name the last one counts, here as in a dict.
        if value.raw and value.is_only:
            decode = partial(_decode, name, value)
            slot = AttributeSlot(name, value.raw, 0, len(value.raw), value.at, decode)
            recorder.add_attribute(node, slot)


def _decode(name: str, value: Value, raw: bytes) -> Any:
    """Return an attribute of other bytes as JSON."""
    if value.dtype.kind == "S":
        try:
            raw.rstrip(b"\0").decode("utf-8")
        except UnicodeDecodeError:
            return UNDECODED
    return json_attributes({name: value.decode(raw)}).get(name, UNDECODED)
