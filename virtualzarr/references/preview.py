"""Preview of a publication: chunks that stay virtual, are inline, or are copied, by variable."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from virtualzarr.array import Array
from virtualzarr.hierarchy.group import Group
from virtualzarr.hierarchy.inventory import iter_arrays
from virtualzarr.references.array_plan import ArrayPlan
from virtualzarr.references.plan import Plan
from virtualzarr.virtual.from_store import build_manifest


@dataclass(frozen=True)
class Line:
    """One variable.

    Attributes
    ----------
    chunks : int
        Cells of its grid.
    virtual : int
        Chunks that stay where they are.
    inlined : int
        Chunks kept with the references.
    missing : int
        Cells without a chunk.
    copied : int
        Chunks that must be decoded and stored again.
    copied_bytes : int
        Bytes of their elements.
    """

    path: str
    chunks: int
    virtual: int
    inlined: int
    missing: int
    copied: int
    copied_bytes: int
    why: str = ""

    @classmethod
    def of(cls, plan: ArrayPlan) -> Line:
        """Count what is planned for an array."""
        manifest = plan.manifest
        source = np.asarray(manifest.source).reshape(-1)
        is_inline = np.array([s.is_inline for s in manifest.sources] + [False], bool)
        present, inline = source >= 0, is_inline[source]
        # A chunk that must be copied counts as copied, also where it is inline now.
        inline[plan.misread] = plan.inline
        copied = 0 if plan.inline else len(plan.misread)
        missing = int(np.count_nonzero(~present))
        inlined = int(np.count_nonzero(inline))
        # Sizes are those of full chunks before compression: the chunks themselves are not read.
        shape = plan.metadata.grid.cell_shape((0,) * plan.metadata.ndim) if len(source) else (0,)
        nbytes = math.prod(shape) * plan.array.dtype.itemsize * copied
        reasons = [f"{count:,} {reason}" for reason, count in plan.reasons.items()]
        if plan.filler is not None:
            reasons.append(f"one chunk of fill values for {missing:,} missing ones")
            nbytes += len(plan.filler)
        virtual = len(source) - missing - inlined - copied
        why = "; ".join(reasons)
        return cls(plan.path, len(source), virtual, inlined, missing, copied, nbytes, why)


@dataclass(frozen=True)
class Way:
    """Another way to publish, which copies less.

    Attributes
    ----------
    text : str
        What to do, what it copies, and for whom.
    copied : mapping of int by path
        Bytes of elements of each variable of which something is copied.
    """

    text: str
    copied: Mapping[str, int]

    def __str__(self) -> str:
        return self.text

    @property
    def copied_bytes(self) -> int:
        """Bytes of the elements of chunks that are copied."""
        return sum(self.copied.values())


@dataclass(frozen=True)
class Preview:
    """What publishing would do.

    Attributes
    ----------
    path : str
    reference_format : str
    zarr_format : int
    lines : tuple of Line
    skipped : dict of str to str
        Variables that cannot be published at all, and why.
    ways : tuple of Way
        What else can be done where chunks must be copied, and what that copies. What the lines
        copy is the least that was found for single arrays.
    """

    path: str
    reference_format: str
    zarr_format: int
    lines: tuple[Line, ...]
    skipped: Mapping[str, str] = field(default_factory=dict)
    ways: tuple[Way, ...] = ()

    @property
    def copied_bytes(self) -> int:
        """Bytes of the elements of chunks that must be copied."""
        return sum(line.copied_bytes for line in self.lines)

    @property
    def copied(self) -> int:
        """Chunks that must be copied."""
        return sum(line.copied for line in self.lines)

    def __repr__(self) -> str:
        return self.table()

    def table(self) -> str:
        """Return a table, a line for each variable.

        Examples
        --------
        >>> lines = (Line("air", 4, 3, 0, 0, 1, 1024, "1 stored as a part of a larger block"),)
        >>> print(Preview("refs.json", "json", 2, lines).table())
        refs.json: json, Zarr v2
        variable  chunks  virtual  inline  missing  copied  bytes copied
        air            4        3       0        0       1         1,024  1 stored as a part of \
a larger block
        all            4        3       0        0       1         1,024
        """
        head = ("variable", "chunks", "virtual", "inline", "missing", "copied", "bytes copied")
        rows = [(line.path or "/", *_numbers(line)) for line in self.lines]
        total = tuple(sum(column) for column in zip(*(n for _, *n in rows), strict=True))
        rows.append(("all", *(total or (0,) * 6)))
        texts = [head, *((str(row[0]), *(f"{n:,}" for n in row[1:])) for row in rows)]
        widths = [max(map(len, column)) for column in zip(*texts, strict=True)]
        whys = ["", *(line.why for line in self.lines), ""]
        out = [f"{self.path}: {self.reference_format}, Zarr v{self.zarr_format}"]
        for (name, *numbers), why in zip(texts, whys, strict=True):
            cells = (text.rjust(width) for text, width in zip(numbers, widths[1:], strict=True))
            out.append("  ".join([name.ljust(widths[0]), *cells, why]).rstrip())
        out += [f"cannot be published: {path or '/'}: {why}" for path, why in self.skipped.items()]
        out += [f"another way: {way}" for way in self.ways]
        return "\n".join(out)


def _numbers(line: Line) -> tuple[int, ...]:
    return (
        line.chunks, line.virtual, line.inlined, line.missing, line.copied, line.copied_bytes,
    )  # fmt: skip


def preview_plan(plan: Plan, uri: str, reference_format: str) -> Preview:
    """Count what a plan would write."""
    lines = tuple(Line.of(array) for array in plan.arrays.values())
    return Preview(uri, reference_format, plan.zarr_format, lines, plan.skipped)


def preview_as_is(node: Group | Array, uri: str, reference_format: str) -> Preview:
    """Count what a form of Zarr v3 would write that holds all references as they are."""
    nothing = np.empty(0, np.int64)
    plans = [ArrayPlan(path, array, array.metadata, build_manifest(array), nothing)
             for path, array in iter_arrays(node)]  # fmt: skip
    return Preview(uri, reference_format, 3, tuple(map(Line.of, plans)))
