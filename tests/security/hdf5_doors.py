"""HDF5 files that lead to other files, in each way that the HDF5 library would follow."""

from __future__ import annotations

import itertools
import os

import h5py
import numpy as np

from tests.security.attacks import SECRET, attack, attacks

DENIED = "reaches outside what was allowed"
UNLIMITED = h5py.h5s.UNLIMITED


def write_secret(folder, name="s.h5"):
    """Write a file that must not be read: numbers, text, and text of variable length."""
    with h5py.File(folder / name, "w") as file:
        file["x"] = np.full(6, SECRET, "<i4")
        file.create_dataset("grows", data=np.full(6, SECRET, "<i4"), maxshape=(None,), chunks=(2,))
        file["text"] = [str(SECRET)] * 6
    (folder / "s.bin").write_bytes(np.full(6, SECRET, "<i4").tobytes())
    return str(folder / name)


def names(folder, path):
    """Yield the names by which a file in another folder can be called."""
    yield "absolute", str(path)
    yield "relative", os.path.relpath(path, folder)
    (folder / "x").mkdir()
    yield "winding", f"./x/../{os.path.relpath(path, folder)}"
    (folder / "link.h5").symlink_to(path)
    yield "symlink", "link.h5"


def named(how, folder, path):
    return dict(names(folder, path))[how]


def write_virtual(path, file, dataset, how="plain"):
    """Write a virtual dataset over six elements of another."""
    dtype = h5py.string_dtype() if how == "text" else np.dtype("<i2" if how == "type" else "<i4")
    with h5py.File(path, "w", libver="latest") as out:
        if how in ("irregular", "pattern", "growing", "blocks"):
            _write_low_level(out, file.encode(), dataset.encode(), how)
            return
        layout = h5py.VirtualLayout((6,), dtype)
        layout[:] = h5py.VirtualSource(file, dataset, (6,))
        out.create_virtual_dataset("v", layout)


def _write_low_level(out, file, dataset, how):
    inside = h5py.h5s.create_simple((6,), (UNLIMITED,))
    outside = h5py.h5s.create_simple((6,), (UNLIMITED,))
    if how == "irregular":
        for space in (inside, outside):
            space.select_hyperslab((0,), (1,), (1,), (2,))
            space.select_hyperslab((3,), (1,), (1,), (3,), op=h5py.h5s.SELECT_OR)
    elif how == "growing":
        for space in (inside, outside):
            space.select_hyperslab((0,), (1,), (1,), (UNLIMITED,))
    else:
        inside.select_hyperslab((0,), (UNLIMITED,), (6,), (6,))
        outside.select_hyperslab((0,), (1,), (1,), (6,))
        file = file.replace(b"s.h5", b"s%b.h5")
    dcpl = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    dcpl.set_virtual(inside, file, dataset, outside)
    space = h5py.h5s.create_simple((0 if how == "growing" else 6,), (UNLIMITED,))
    h5py.h5d.create(out.id, b"v", h5py.h5t.STD_I32LE, space, dcpl)


@attacks("AccessError", DENIED)
def external_link():
    for how in ("absolute", "relative", "winding", "symlink"):

        def build(folder, secret, how=how):
            with h5py.File(folder / "a.h5", "w") as file:
                name = named(how, folder, write_secret(secret))
                file["v"] = h5py.ExternalLink(name, "/x")
            return folder / "a.h5"

        yield how, build


@attacks("AccessError", DENIED)
def virtual_dataset():
    hows = ("absolute", "relative", "winding", "symlink")
    for name, how in itertools.product(hows, ("plain", "type", "irregular", "growing", "text")):

        def build(folder, secret, name=name, how=how):
            file = named(name, folder, write_secret(secret))
            dataset = {"text": "text", "growing": "grows"}.get(how, "x")
            write_virtual(folder / "a.h5", file, dataset, how)
            return folder / "a.h5"

        yield f"{name}-{how}", build


@attack("AccessError", DENIED)
def virtual_dataset_with_a_pattern(folder, secret):
    write_secret(secret, "s0.h5")
    write_virtual(folder / "a.h5", str(secret / "s.h5"), "x", "pattern")
    return folder / "a.h5"


@attacks("AccessError", DENIED)
def virtual_dataset_through_a_link():
    for how, soft in itertools.product(("plain", "type", "irregular", "text"), (False, True)):

        def build(folder, secret, how=how, soft=soft):
            dataset = "text" if how == "text" else "x"
            with h5py.File(folder / "b.h5", "w") as file:
                file["decoy"] = np.full(6, -1, "<i4")
                file["link"] = h5py.ExternalLink(write_secret(secret), f"/{dataset}")
                file["soft"] = h5py.SoftLink("/link")
            write_virtual(folder / "a.h5", "b.h5", "soft" if soft else "link", how)
            return folder / "a.h5"

        yield f"{how}-{'soft' if soft else 'direct'}", build


@attack("AccessError", DENIED)
def virtual_dataset_through_a_linked_group(folder, secret):
    with h5py.File(folder / "a.h5", "w") as file:
        file["g"] = h5py.ExternalLink(write_secret(secret), "/")
        layout = h5py.VirtualLayout((6,), "<i2")
        layout[:] = h5py.VirtualSource(".", "g/x", (6,))
        file.create_virtual_dataset("a", layout)  # comes before the link
    return folder / "a.h5"


@attacks("AccessError", DENIED)
def nested_virtual_dataset():
    for how in ("plain", "type", "irregular"):

        def build(folder, secret, how=how):
            write_virtual(folder / "b.h5", write_secret(secret), "x", how)
            write_virtual(folder / "a.h5", "b.h5", "v", how)
            return folder / "a.h5"

        yield how, build


@attacks("AccessError", DENIED)
def external_storage():
    for how, through in itertools.product(
        ("absolute", "relative", "symlink"), ("itself", "plain", "type", "irregular")
    ):

        def build(folder, secret, how=how, through=through):
            write_secret(secret)
            name = named(how, folder, secret / "s.bin")
            if how == "relative":  # relative to the current folder, which is the input's
                os.chdir(folder)
            with h5py.File(folder / "b.h5", "w") as file:
                file.create_dataset("x", (6,), "<i4", external=[(name, 0, 24)])
            if through == "itself":
                return folder / "b.h5"
            write_virtual(folder / "a.h5", "b.h5", "x", through)
            return folder / "a.h5"

        yield f"{how}-{through}", build


@attack("AccessError", DENIED, environment={"HDF5_EXT_PREFIX": "{secret}"})
def external_link_with_a_prefix(folder, secret):
    write_secret(secret)
    with h5py.File(folder / "a.h5", "w") as file:
        file["v"] = h5py.ExternalLink("s.h5", "/x")
    return folder / "a.h5"


@attacks("AccessError", DENIED, environment={"HDF5_VDS_PREFIX": "{secret}"})
def virtual_dataset_with_a_prefix():
    for how in ("plain", "irregular"):

        def build(folder, secret, how=how):
            write_secret(secret)
            write_virtual(folder / "a.h5", "s.h5", "x", how)
            return folder / "a.h5"

        yield how, build


@attack("AccessError", DENIED, environment={"HDF5_EXTFILE_PREFIX": "{secret}"})
def external_storage_with_a_prefix(folder, secret):
    write_secret(secret)
    with h5py.File(folder / "a.h5", "w") as file:
        file.create_dataset("v", (6,), "<i4", external=[("s.bin", 0, 24)])
    return folder / "a.h5"
