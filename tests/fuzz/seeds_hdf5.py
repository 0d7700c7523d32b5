"""Small HDF5 files, one for each structure that there is."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from tests.formats.hdf5.helpers import low_level

LIBVERS = ("earliest", "v110", "latest")


def _ramp(*shape: int, dtype: str = "<i4") -> np.ndarray:
    return np.arange(int(np.prod(shape)), dtype=dtype).reshape(shape)


def _contiguous(file: Any) -> None:
    file["x"] = _ramp(3, 4)
    file.create_dataset("unwritten", (5,), ">f8", fillvalue=2.5)
    file["scalar"] = np.uint16(7)
    file["none"] = h5py.Empty("f4")
    file.create_dataset("zero", (0, 3), "i2")


def _compact(file: Any) -> None:
    low_level(file, "x", (5,), h5py.h5t.STD_I16LE, layout=h5py.h5d.COMPACT)[...] = 3


def _chunks(shape: Any, chunk: Any, maxshape: Any = None, **options: Any) -> Callable[[Any], None]:
    """Return what makes a chunked dataset, of which a part is written."""

    def make(file: Any) -> None:
        made = file.create_dataset("x", shape, "<i4", chunks=chunk, maxshape=maxshape, **options)
        half = tuple(slice(0, max(n // 2, 1)) for n in shape)
        made[half] = _ramp(*made[half].shape)

    return make


def _implicit(file: Any) -> None:
    early = h5py.h5d.ALLOC_TIME_EARLY
    low_level(file, "x", (8,), h5py.h5t.STD_I32LE, chunk=((3,),), alloc_time=early)[...] = 7


def _masks(file: Any) -> None:
    made = file.create_dataset("x", (4,), "<i4", chunks=(2,), shuffle=True, compression="gzip")
    made[:2] = 5
    made.id.write_direct_chunk((2,), _ramp(2).tobytes(), 3)


def _shrunk(file: Any) -> None:
    made = file.create_dataset("x", data=_ramp(9, 4), chunks=(2, 2), maxshape=(9, None))
    made.resize((5, 3))


def _filters(file: Any) -> None:
    data = _ramp(8, 4)
    file.create_dataset("szip", data=data, chunks=(8, 4), compression="szip")
    file.create_dataset("lzf", data=data, chunks=(8, 4), compression="lzf", fletcher32=True)
    file.create_dataset("offset", data=data, chunks=(8, 4), scaleoffset=0)
    file.create_dataset("offset_f", data=data.astype("f4"), chunks=(8, 4), scaleoffset=2)
    packed = h5py.h5t.STD_I16LE.copy()
    packed.set_precision(11)
    low_level(file, "nbit", (8,), packed, chunk=((8,),), filter=(5, 0))[...] = _ramp(8)


def _floats(file: Any) -> None:
    odd = h5py.h5t.IEEE_F32LE.copy()
    odd.set_fields(23, 15, 8, 0, 15)
    odd.set_size(3)
    odd.set_precision(24)
    odd.set_ebias(63)
    low_level(file, "odd", (3,), odd)[...] = 1.5
    file["half"] = np.array([1, 2], "<f2")
    file["complex"] = np.array([1 + 2j], "<c8")
    low_level(file, "vax", (3,), h5py.h5t.VAX_F32) if hasattr(h5py.h5t, "VAX_F32") else None


def _kinds(file: Any) -> None:
    file["enum"] = np.array([0, 1, 0], h5py.enum_dtype({"A": 0, "B": 1}, "i2"))
    file["bool"] = np.array([True, False])
    file["text"] = np.array([b"ab", b"c"], "S4")
    file["opaque"] = np.array([b"ab", b"c"], "V3")
    inner = np.dtype([("u", "<u2"), ("v", "S3")])
    dtype = np.dtype({"names": ["a", "b", "c"], "formats": ["<i4", inner, (">f8", (2,))],
                      "offsets": [0, 6, 16], "itemsize": 40})  # fmt: skip
    file["compound"] = np.zeros(2, dtype)
    file.create_dataset("array", (2,), np.dtype(("<i2", (2, 3))))
    file.attrs["compound"] = np.zeros(2, inner)
    file["committed"] = np.dtype("<i4")
    file.create_dataset("shared", (3,), file["committed"])
    file["shared"].attrs.create("a", 5, dtype=file["committed"])
    low_level(file, "space", (2,), _padded(h5py.h5t.STR_SPACEPAD))
    low_level(file, "bits", (2,), h5py.h5t.STD_B16LE)


def _padded(how: int) -> Any:
    made = h5py.h5t.C_S1.copy()
    made.set_size(4)
    made.set_strpad(how)
    return made


def _lengths(file: Any) -> None:
    file.create_dataset("text", data=["ab", "", "cde"], dtype=h5py.string_dtype())
    made = file.create_dataset("numbers", (2,), h5py.vlen_dtype("<i4"))
    made[0] = [1, 2, 3]
    file["ref"] = np.array([file["text"].ref, None], h5py.ref_dtype)
    file["region"] = np.array([file["text"].regionref[:2]], h5py.regionref_dtype)
    file.attrs["text"] = "hello"
    file.attrs["texts"] = ["a", "bc"]
    file.attrs["ref"] = file["text"].ref
    numbers = np.empty(2, object)
    numbers[:] = [np.array([3, 4], "<i4"), np.array([5], "<i4")]
    file.attrs.create("numbers", numbers, dtype=h5py.vlen_dtype("<i4"))
    fields = np.dtype([("a", "<i2"), ("b", h5py.string_dtype())])
    file.create_dataset("mixed", (2,), fields)[0] = (1, "one")


def _attributes(file: Any) -> None:
    group = file.create_group("g")
    for k in range(10):
        group.attrs[f"a{k}"] = np.float32(k)
    group.attrs["null"] = h5py.Empty("f4")
    group.attrs["text"] = np.bytes_("K")


def _links(file: Any) -> None:
    group = file.create_group("g", track_order=True)
    for k in range(9):
        group[f"a{k}"] = h5py.SoftLink("/x")
    file["x"] = np.int8(1)
    group["hard"] = file["x"]
    group["up"] = file["/"]
    file["out"] = h5py.ExternalLink("other.h5", "/x")
    file["g/h/i/y"] = np.int8(2)


def _scales(file: Any) -> None:
    file["x"] = _ramp(3)
    file["x"].make_scale("x")
    file["v"] = _ramp(2, 3)
    file["v"].dims[1].attach_scale(file["x"])
    file["v"].attrs["_FillValue"] = np.int32(-1)


def _virtual(file: Any) -> None:
    layout = h5py.VirtualLayout((4, 3), "<i4")
    layout[:2] = h5py.VirtualSource("near0.h5", "x", (2, 3))
    layout[2:] = h5py.VirtualSource(".", "y", (2, 3))
    file["y"] = _ramp(2, 3)
    file.create_virtual_dataset("v", layout, fillvalue=-1)
    unlimited = h5py.h5s.UNLIMITED
    space = h5py.h5s.create_simple((0, 3), (unlimited, 3))
    inside = space.copy()
    inside.select_hyperslab((0, 0), (unlimited, 1), (2, 1), (2, 3))
    mapping = inside, b"near%b.h5", b"x", h5py.h5s.create_simple((2, 3))
    low_level(file, "grown", (0, 3), h5py.h5t.STD_I32LE, maxshape=(unlimited, 3), virtual=mapping)


def _external(file: Any) -> None:
    file.create_dataset("x", (6,), "<i4", external=[("near.bin", 8, 12), ("near.bin", 32, 12)])


def _paged(path: str) -> Any:
    return h5py.File(path, "w", fs_strategy="page", fs_page_size=512, libver="latest")


def _behind(path: str) -> Any:
    return h5py.File(path, "w", userblock_size=512)


def _narrow(path: str) -> Any:
    fcpl = h5py.h5p.create(h5py.h5p.FILE_CREATE)
    fcpl.set_sizes(4, 4)
    return h5py.File(h5py.h5f.create(path.encode(), h5py.h5f.ACC_TRUNC, fcpl))


CONTENTS: dict[str, Callable[[Any], None]] = {
    "contiguous": _contiguous,
    "compact": _compact,
    "plain": _chunks((5, 4), (2, 2)),
    "deep": _chunks((200,), (1,)),
    "gzip": _chunks((6, 4), (2, 2), compression="gzip", shuffle=True),
    "single": _chunks((3, 4), (3, 4)),
    "single_gzip": _chunks((3, 4), (3, 4), compression="gzip"),
    "implicit": _implicit,
    "extensible": _chunks((8, 3), (2, 2), (None, 3)),
    "extensible_gzip": _chunks((8, 3), (2, 2), (None, 3), compression="gzip"),
    "extensible_long": _chunks((300,), (1,), (None,)),
    "extensible_second": _chunks((3, 9), (2, 2), (3, None)),
    "fixed_paged": _chunks((2100,), (1,)),
    "btree2": _chunks((6, 4), (2, 2), (None, None)),
    "btree2_gzip": _chunks((6, 4), (2, 2), (None, None), compression="gzip"),
    "btree2_deep": _chunks((30, 30), (1, 1), (None, None)),
    "masks": _masks,
    "shrunk": _shrunk,
    "filters": _filters,
    "floats": _floats,
    "kinds": _kinds,
    "lengths": _lengths,
    "attributes": _attributes,
    "links": _links,
    "scales": _scales,
    "virtual": _virtual,
    "external": _external,
}
_OPENERS: dict[str, Callable[[str], Any]] = {
    "paged": _paged, "userblock": _behind, "narrow": _narrow,
}  # fmt: skip


def write_neighbours(folder: Path) -> None:
    """Write what virtual datasets and external files name."""
    (folder / "near.bin").write_bytes(bytes(range(64)))
    for k in range(2):
        with h5py.File(folder / f"near{k}.h5", "w") as near:
            near["x"] = _ramp(2, 3) + 10 * k


def seeds() -> Iterator[tuple[str, bytes]]:
    """Yield names and files."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "a.h5"
        for name, fill in CONTENTS.items():
            for libver in LIBVERS:
                with h5py.File(path, "w", libver=libver, meta_block_size=64) as file:
                    fill(file)
                yield f"{name}-{libver}", path.read_bytes()
        for kind, opener in _OPENERS.items():
            for name in ("contiguous", "gzip", "lengths", "attributes", "links"):
                with opener(str(path)) as file:
                    CONTENTS[name](file)
                yield f"{name}-{kind}", path.read_bytes()
