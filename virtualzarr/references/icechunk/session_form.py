"""References set in a writable session of Icechunk, which the caller commits."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from virtualzarr.array import Array
from virtualzarr.errors import AccessError, NodeExistsError, PublishError
from virtualzarr.hierarchy.group import Group
from virtualzarr.references.form import PublishOptions
from virtualzarr.references.icechunk import bindings
from virtualzarr.references.icechunk.form import IcechunkForm
from virtualzarr.references.icechunk.write import list_prefixes, set_references
from virtualzarr.references.report import PublishReport
from virtualzarr.references.write_plan import WriteTask, Written, write_plan
from virtualzarr.stores.location import Location


class SessionForm(IcechunkForm):
    """A writable session.

    Parameters
    ----------
    session : icechunk.Session
    """

    def __init__(self, session: Any) -> None:
        self.session = session

    def publish(
        self, node: Group | Array, location: Location, options: PublishOptions
    ) -> PublishReport:
        """Plan, then set everything in the session; nothing is committed."""
        if self.session.read_only:
            raise AccessError("the session is read-only: give one of writable_session()")
        has_nodes = bool(bindings.documents(self.session.store))
        if has_nodes and not options.overwrite:
            raise NodeExistsError("the session has nodes already; overwrite=True replaces them")
        plan = self.make_plan(node, options)
        check_containers(self.session, list_prefixes(plan, ""))
        if has_nodes:
            bindings.clear(self.session.store)
        return write_plan(self, plan, location, [], progress=options.progress, layout={})

    def write(self, task: WriteTask) -> Written:
        """Set references and chunks."""
        with bindings.writing_errors(""):
            nbytes, copied = set_references(task, self.session.store)
        return Written(nbytes, copied, ["set in the session: commit it"])


def check_containers(session: Any, prefixes: Iterable[str]) -> None:
    """Refuse sources for which a repository has no container: nobody could read them.

    Raises `PublishError`.
    """
    containers = tuple(session.config.virtual_chunk_containers or {})
    missing = [prefix for prefix in prefixes if not prefix.startswith(containers)]
    if missing:
        raise PublishError(
            f"the repository has no virtual chunk container for {', '.join(map(repr, missing))}: "
            "add it with RepositoryConfig.set_virtual_chunk_container, and save_config()"
        )
