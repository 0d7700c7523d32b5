"""Record of how an archive was surveyed, in its decision file: what a run has to do alike."""

from __future__ import annotations

import json
from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from virtualzarr.archive.anomalies import Kind
from virtualzarr.archive.survey import Survey
from virtualzarr.errors import DecisionError
from virtualzarr.redaction import strip_secrets

RECORDED = ("assets", "decode", "typical")
"""Keys of what is recorded, in `archive` of a decision file."""

_DAMAGE: Kind = "damaged chunk"
_COPIES: Kind = "same content twice"


@dataclass(frozen=True)
class ArchiveRecord:
    """How the archive was surveyed of which a decision file decides.

    Parameters
    ----------
    assets : tuple of str, optional
        Names or roles of assets, where a listing is of STAC.
    decode : int or "all"
        How many chunks of each variable and file were decoded.
    typical : tuple of str, optional
        A file of each era, which most of it are like.
    """

    assets: tuple[str, ...] | None = None
    decode: int | Literal["all"] = 0
    typical: tuple[str, ...] | None = None

    @classmethod
    def read(cls, archive: Mapping[str, Any]) -> ArchiveRecord:
        """Return what `archive` of a decision file says. Raises `DecisionError`."""
        decode = archive.get("decode", 0)
        assets, typical = (_read_texts(archive, name) for name in ("assets", "typical"))
        if assets is not None and archive.get("inventory") is None:
            raise DecisionError("archive.assets is of a listing, and there is no inventory")
        if decode != "all" and (type(decode) is not int or decode < 0):
            raise DecisionError(f'archive.decode is a number of chunks, or "all", not {decode!r}')
        return cls(assets, decode, typical)

    @classmethod
    def of(cls, report: Survey) -> ArchiveRecord:
        """Return the record of a survey."""
        typical = tuple(strip_secrets(era.typical) for era in report.eras)
        return cls(report.options.get("assets"), report.options.get("decode", 0), typical)

    def check_lines(self, keys: Iterable[str]) -> None:
        """Refuse lines about what no run could see. Raises `DecisionError`."""
        for key in keys:
            if key.startswith(_DAMAGE) and not self.decode:
                raise DecisionError(
                    f"the line {key!r} holds for nothing where no chunks are decoded: say "
                    "archive.decode, as in `survey --decode`, or remove the line"
                )

    def check_new(
        self, kept: Iterable[str], left_out: Mapping[str, str], keys: Container[str]
    ) -> Iterator[str]:
        """Yield why no files may be left out for which there is no line.

        Most files of an era are what single ones are compared with. If others become the most,
        all that was to be published is what is odd.

        Parameters
        ----------
        kept : iterable of str
            Files that are joined.
        left_out : mapping
            All other files, and the key of the line for which.
        keys : container of str
            Of the lines that there are.
        """
        if self.typical is None:
            yield "new: skip needs archive.typical, a file of each era: draft the file again"
            return
        reasons = {strip_secrets(name): key for name, key in left_out.items()}
        names = reasons.keys() | {strip_secrets(name) for name in kept}
        for name in self.typical:
            key = reasons.get(name)
            if name not in names:
                yield (
                    f"new: skip holds against what was there when the file was drafted, and "
                    f"{name}, which was typical of that, is not there any more: draft it again"
                )
            elif key is not None and key not in keys and key != _COPIES:
                yield (
                    f"new: skip would leave out {name} ({key}), which was typical of what was "
                    "there when the file was drafted: draft it again"
                )

    def list_entries(self) -> Iterator[str]:
        """Yield entries of `archive` in a draft, as YAML."""
        if self.assets is not None:
            yield f"assets: {json.dumps(self.assets)}"
        if self.decode:
            yield f"decode: {json.dumps(self.decode)}"
        if self.typical is not None:
            yield f"typical: {json.dumps(self.typical)}"


def _read_texts(archive: Mapping[str, Any], name: str) -> tuple[str, ...] | None:
    if name not in archive:
        return None
    texts = archive[name]
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        raise DecisionError(f"archive.{name} is a list of texts")
    return tuple(texts)
