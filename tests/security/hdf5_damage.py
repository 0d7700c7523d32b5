"""Damaged HDF5 structures that the HDF5 library trusts: checksums are put right again."""

from __future__ import annotations

import h5py
import numpy as np

from tests.security.attacks import ANYTHING, attack, attacks
from virtualzarr.formats.hdf5.checksum import compute_checksums


def mappings(raw):
    """Return where the mappings of the only virtual dataset of a file start and end."""
    heap = raw.index(b"GCOL\x01")
    start = heap + 32
    return start, start + int.from_bytes(raw[heap + 24 : heap + 32], "little")


def write_virtual(folder, irregular=False, libver="latest"):
    with h5py.File(folder / "s.h5", "w") as file:
        file["x"] = np.arange(60, dtype="<i4").reshape(6, 10)
    path = folder / "a.h5"
    with h5py.File(path, "w", libver=libver) as file:
        spaces = [h5py.h5s.create_simple((6, 10)) for _ in range(2)]
        for space in spaces:
            space.select_hyperslab((0, 0), (1, 1), (1, 1), (2, 10))
            if irregular:
                space.select_hyperslab((3, 1), (1, 1), (1, 1), (2, 3), op=h5py.h5s.SELECT_OR)
        dcpl = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        dcpl.set_virtual(spaces[0], b"s.h5", b"x", spaces[1])
        space = h5py.h5s.create_simple((6, 10))
        h5py.h5d.create(file.id, b"v", h5py.h5t.STD_I32LE, space, dcpl)
    return path


def change(path, at, data):
    """Change bytes of the mappings, and make their checksum that of what then is there."""
    raw = bytearray(path.read_bytes())
    start, stop = mappings(raw)
    raw[start + at : start + at + len(data)] = data
    raw[stop - 4 : stop] = compute_checksums([bytes(raw[start : stop - 4])])[0].to_bytes(
        4, "little"
    )
    path.write_bytes(raw)


@attacks(ANYTHING)
def damaged_mappings():
    for number in range(24):

        def build(folder, secret, number=number):
            rng = np.random.default_rng(number)
            libver = "latest" if number % 2 else ("v110", "v110")
            path = write_virtual(folder, irregular=number % 4 > 1, libver=libver)
            start, stop = mappings(path.read_bytes())
            for _ in range(1 + number % 3):
                value = int(rng.choice([0, 1, 0x7F, 0x80, 0xFF, int(rng.integers(256))]))
                change(path, int(rng.integers(stop - start - 4)), bytes([value]))
            return path

        yield str(number), build


@attack("SourceError|UnsupportedError", "mappings")
def countless_mappings(folder, secret):
    path = write_virtual(folder)
    change(path, 1, (1 << 40).to_bytes(8, "little"))
    return path


@attack("UnsupportedError|SourceError", "selection|blocks")
def a_selection_of_countless_blocks(folder, secret):
    path = write_virtual(folder, irregular=True, libver=("v110", "v110"))
    raw = path.read_bytes()
    start, _ = mappings(raw)
    count = raw.index(b"x\0", start) + 2 + 24 - start
    change(path, count, (1 << 31).to_bytes(4, "little"))
    return path


@attack("SourceError|UnsupportedError", "")
def mappings_that_lie_nowhere(folder, secret):
    path = write_virtual(folder)
    raw = bytearray(path.read_bytes())
    at = raw.index(b"GCOL\x01")
    raw[at : at + 4] = b"XXXX"
    path.write_bytes(raw)
    return path


_LARGE = 2**31 - 8


def large_types():
    opaque = h5py.h5t.create(h5py.h5t.OPAQUE, _LARGE)
    opaque.set_tag(b"")
    text = h5py.h5t.C_S1.copy()
    text.set_size(_LARGE)
    pointing = h5py.h5t.create(h5py.h5t.COMPOUND, _LARGE)
    pointing.insert(b"text", 0, h5py.h5t.py_create(h5py.string_dtype()))
    return {"opaque": opaque, "text": text, "pointing": pointing}


@attacks("UnsupportedError", r"limits\.element_bytes.*variable x")
def elements_of_gigabytes():
    for name in ("opaque", "text", "pointing"):
        for shape in (None, (), (0,), (3,)):

            def build(folder, secret, name=name, shape=shape):
                null = shape is None
                space = h5py.h5s.create(h5py.h5s.NULL) if null else h5py.h5s.create_simple(shape)
                with h5py.File(folder / "a.h5", "w") as file:
                    h5py.h5d.create(file.id, b"x", large_types()[name], space)
                return folder / "a.h5"

            yield f"{name}-{'null' if shape is None else shape}", build
