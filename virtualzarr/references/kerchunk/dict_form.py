"""References as a Python dict: what a reference file in JSON holds, parsed."""

from __future__ import annotations

import json
from collections.abc import Mapping, MutableMapping
from dataclasses import replace
from typing import Any

from virtualzarr.array import Array
from virtualzarr.config import config
from virtualzarr.errors import NodeExistsError
from virtualzarr.hierarchy.group import Group
from virtualzarr.references.form import PublishOptions
from virtualzarr.references.kerchunk.json_form import JsonForm
from virtualzarr.references.kerchunk.write_json import iter_text
from virtualzarr.references.report import PublishReport
from virtualzarr.references.write_plan import WriteTask, Written, write_plan
from virtualzarr.stores.location import Location


class DictForm(JsonForm):
    """A mapping that is filled with references.

    Parameters
    ----------
    target : mutable mapping
        It is empty, or holds references that are replaced.
    """

    def __init__(self, target: MutableMapping[str, Any]) -> None:
        self.target = target
        # There is no file beside it for copied chunks.
        self.capabilities = replace(
            JsonForm.capabilities, title="a dict", beside=False, relative=False, digests=False,
            copied_bytes=config.inline_bytes,
        )  # fmt: skip

    def publish(
        self, node: Group | Array, location: Location, options: PublishOptions
    ) -> PublishReport:
        """Plan, then fill the mapping: nothing else is read or written."""
        is_free = not self.target or isinstance(self.target.get("refs"), Mapping)
        if not is_free and not options.overwrite:
            raise NodeExistsError("the dict holds something else; overwrite=True replaces it")
        plan = self.make_plan(node, options)
        return write_plan(self, plan, location, [], progress=options.progress, layout={})

    def write(self, task: WriteTask) -> Written:
        """Replace what the mapping holds."""
        text = b"".join(iter_text(task))
        document = json.loads(text)
        self.target.clear()
        self.target.update(document)
        return Written(len(text), notes=self.list_notes(task))
