"""Short summaries of arrays for people: axes, chunk lengths, sizes and sources."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from virtualzarr.array.chunk_source import ManifestChunks
from virtualzarr.redaction import hide_in_url

if TYPE_CHECKING:
    from virtualzarr.array import Array

_RUNS = 5
"""Of an axis with more runs of chunk lengths, only so many are shown."""

_UNITS = ("bytes", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB")


def human_size(nbytes: int) -> str:
    """Return a number of bytes with three digits and a unit.

    Examples
    --------
    >>> [human_size(n) for n in (0, 1, 1023, 1024, 1_234_567, 2**60)]
    ['0 bytes', '1 byte', '1023 bytes', '1.00 KiB', '1.18 MiB', '1.00 EiB']
    """
    if nbytes < 1024:
        return f"{nbytes} byte{'' if nbytes == 1 else 's'}"
    size, unit = float(nbytes), 0
    # Rounding comes before the choice of the unit: 1023.7 KiB would show as four digits.
    while size >= 999.5 and unit < len(_UNITS) - 1:
        size, unit = size / 1024, unit + 1
    return f"{size:.{2 if size < 9.995 else 1 if size < 99.95 else 0}f} {_UNITS[unit]}"


def axes_text(array: Array) -> str:
    """Return lengths and names of the axes, such as ``(time: 6, 4)``."""
    axes = [
        str(length) if name is None else f"{name}: {length}"
        for name, length in zip(array.dims, array.shape, strict=True)
    ]
    return f"({', '.join(axes)})"


def chunk_lengths(array: Array) -> str:
    """Return chunk lengths in short: one number for an axis where they are equal, else runs."""
    axes: Any = getattr(array.grid, "axes", None)
    if axes is None:
        return repr(array.grid)
    return "(" + ", ".join(_lengths(axis) for axis in axes) + ")"


def _lengths(axis: Any) -> str:
    if len(axis.edges) == 1:
        return str(axis.edges[0])
    runs = list(zip(axis.counts.tolist(), axis.edges.tolist(), strict=True))
    texts = [f"{times} x {edge}" if times > 1 else str(edge) for times, edge in runs[:_RUNS]]
    return " + ".join(texts) + (f" + {len(runs) - _RUNS} runs more" if len(runs) > _RUNS else "")


def sources_text(array: Array, most: int = 2) -> str:
    """Return where the chunks of an array lie, as far as that is known without reading anything."""
    chunks: Any = array.chunk_source
    if not isinstance(chunks, ManifestChunks):
        return hide_in_url(str(getattr(getattr(chunks, "store", None), "uri", "a store")))
    # Through vars, as the attribute would read the manifest: a representation must not do I/O.
    manifest = vars(chunks).get("manifest")
    if manifest is None:
        return "as reference files say, which are read when needed"
    names = list(dict.fromkeys(source.uri or "the references" for source in manifest.sources))
    if not names:
        return "nowhere: never written"
    suffix = f" and {len(names) - most:,} more" if len(names) > most else ""
    return f"{', '.join(map(hide_in_url, names[:most]))}{suffix}"
