"""Damage of the kinds that confuse readers of binary formats."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

_WIDTHS = (1, 2, 4, 8)


def mutated(raw: bytes, others: Sequence[bytes], random: Random) -> bytes:
    """Return a file with one to four changes."""
    out = bytearray(raw)
    for _ in range(random.choice((1, 1, 1, 2, 2, 4))):
        if len(out) < 16:
            break
        random.choice(_CHANGES)(out, others, random)
    return bytes(out)


def _place(out: bytearray, random: Random) -> int:
    """Choose a byte, mostly one that is not among many zeros."""
    place = 0
    for _ in range(8):
        place = random.randrange(len(out))
        if any(out[max(place - 8, 0) : place + 8]):
            break
    return place


def _bit(out: bytearray, others: Sequence[bytes], random: Random) -> None:
    out[_place(out, random)] ^= 1 << random.randrange(8)


def _byte(out: bytearray, others: Sequence[bytes], random: Random) -> None:
    out[_place(out, random)] = random.choice((0, 1, 2, 3, 4, 127, 128, 255, random.randrange(256)))


def _nudge(out: bytearray, others: Sequence[bytes], random: Random) -> None:
    """Change a number a little: counts, ranks, versions, sizes."""
    place = _place(out, random)
    out[place] = out[place] + random.choice((-2, -1, 1, 1, 2, 8)) & 255


def _number(out: bytearray, others: Sequence[bytes], random: Random) -> None:
    """Write a number that is a limit somewhere."""
    width = random.choice(_WIDTHS)
    limit = 1 << 8 * width
    near = random.choice((0, limit, limit >> 1, 1 << random.randrange(8 * width), len(out)))
    value = (near + random.choice((-1, 0, 1))) % limit
    order = random.choice(("little", "little", "big"))
    place = _place(out, random)
    out[place : place + width] = value.to_bytes(width, order)[: len(out) - place]


def _copy(out: bytearray, others: Sequence[bytes], random: Random) -> None:
    """Write over a place what stands at another: addresses become those of other things."""
    width = random.choice((*_WIDTHS, 16, 32, 64))
    start, place = _place(out, random), _place(out, random)
    part = out[start : start + width]
    out[place : place + len(part)] = part[: len(out) - place]


def _splice(out: bytearray, others: Sequence[bytes], random: Random) -> None:
    """Write over a place what stands at the same place, or another, of another file."""
    other = random.choice(others)
    width = random.choice((8, 16, 64, 256))
    place = _place(out, random)
    start = place if random.random() < 0.5 else random.randrange(len(other))
    part = other[start : start + width]
    out[place : place + len(part)] = part[: len(out) - place]


def _cut(out: bytearray, others: Sequence[bytes], random: Random) -> None:
    del out[random.randrange(len(out)) :]


def _drop(out: bytearray, others: Sequence[bytes], random: Random) -> None:
    """Take a few bytes away, or put some in: what follows moves."""
    place, width = _place(out, random), random.choice((1, 2, 4, 8, 64))
    if random.random() < 0.5:
        del out[place : place + width]
    else:
        out[place:place] = bytes(random.choice((0, 255)) for _ in range(width))


_CHANGES = (_bit, _bit, _byte, _byte, _nudge, _nudge, _nudge, _number, _number, _number, _copy,
            _copy, _splice, _cut, _drop)  # fmt: skip
