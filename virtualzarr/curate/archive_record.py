"""Record of how an archive was surveyed, in its decision file: what a run has to do alike."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from virtualzarr.archive.anomalies import Kind
from virtualzarr.archive.survey import Survey
from virtualzarr.errors import DecisionError

RECORDED = ("assets", "decode")
"""Keys of what is recorded, in `archive` of a decision file."""

_DAMAGE: Kind = "damaged chunk"


@dataclass(frozen=True)
class ArchiveRecord:
    """How the archive was surveyed of which a decision file decides.

    Parameters
    ----------
    assets : tuple of str, optional
        Names or roles of assets, where a listing is of STAC.
    decode : int or "all"
        How many chunks of each variable and file were decoded.
    """

    assets: tuple[str, ...] | None = None
    decode: int | Literal["all"] = 0

    @classmethod
    def read(cls, archive: Mapping[str, Any]) -> ArchiveRecord:
        """Return what `archive` of a decision file says. Raises `DecisionError`."""
        assets, decode = archive.get("assets"), archive.get("decode", 0)
        if "assets" in archive:
            if not isinstance(assets, list) or not all(isinstance(name, str) for name in assets):
                raise DecisionError("archive.assets is a list of texts")
            if archive.get("inventory") is None:
                raise DecisionError("archive.assets is of a listing, and there is no inventory")
        if decode != "all" and (type(decode) is not int or decode < 0):
            raise DecisionError(f'archive.decode is a number of chunks, or "all", not {decode!r}')
        return cls(None if assets is None else tuple(assets), decode)

    @classmethod
    def of(cls, report: Survey) -> ArchiveRecord:
        """Return the record of a survey."""
        return cls(report.options.get("assets"), report.options.get("decode", 0))

    def check_lines(self, keys: Iterable[str]) -> None:
        """Refuse lines about what no run could see. Raises `DecisionError`."""
        for key in keys:
            if key.startswith(_DAMAGE) and not self.decode:
                raise DecisionError(
                    f"the line {key!r} holds for nothing where no chunks are decoded: say "
                    "archive.decode, as in `survey --decode`, or remove the line"
                )

    def list_entries(self) -> Iterator[str]:
        """Yield entries of `archive` in a draft, as YAML."""
        if self.assets is not None:
            yield f"assets: {json.dumps(self.assets)}"
        if self.decode:
            yield f"decode: {json.dumps(self.decode)}"
