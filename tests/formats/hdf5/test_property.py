"""Files of any type, shape, chunks and filters, against h5py."""

from __future__ import annotations

import h5py
import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.formats.hdf5.helpers import assert_same

TYPES = st.sampled_from(
    ["i1", "<i2", ">i4", "<u8", ">u2", "<f2", ">f4", "<f8", "<c8", ">c16", "S3", "V5", "?"]
)


@st.composite
def datasets(draw):
    """Draw what `create_dataset` needs, and which part to write."""
    ndim = draw(st.integers(0, 4))
    shape = tuple(draw(st.integers(0, 7)) for _ in range(ndim))
    options = {"dtype": np.dtype(draw(TYPES))}
    if options["dtype"].kind in "iuf":
        options["fillvalue"] = draw(st.sampled_from([None, 0, 7]))
    if ndim and draw(st.booleans()):
        maxshape = [draw(st.sampled_from([n, n + 3, None])) for n in shape]
        options["maxshape"] = tuple(max(n, 1) if n is not None else None for n in maxshape)
        options["chunks"] = tuple(
            draw(st.integers(1, 9 if limit is None else max(limit, 1)))
            for limit in options["maxshape"]
        )
        options["compression"] = draw(st.sampled_from([None, "gzip", "lzf"]))
        options["shuffle"] = draw(st.booleans())
        options["fletcher32"] = draw(st.booleans()) and options["dtype"].kind != "V"
    starts = [draw(st.integers(0, n)) for n in shape]
    part = tuple(slice(k, draw(st.integers(k, n))) for k, n in zip(starts, shape, strict=True))
    return shape, options, part


@settings(
    max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    specs=st.lists(datasets(), min_size=1, max_size=3),
    libver=st.sampled_from(["earliest", "v110", "latest"]),
    userblock=st.sampled_from([0, 512]),
    seed=st.integers(0, 1 << 30),
)
def test_any_dataset(tmp_path, specs, libver, userblock, seed):
    random = np.random.default_rng(seed)
    path = tmp_path / "a.h5"
    with h5py.File(path, "w", libver=libver, userblock_size=userblock) as file:
        for number, (shape, options, part) in enumerate(specs):
            dataset = file.create_dataset(f"d{number}", shape, **options)
            count = int(np.prod([k.stop - k.start for k in part], dtype=int))
            if count and options["dtype"].kind == "b":
                dataset[part] = random.integers(0, 2, [k.stop - k.start for k in part]) > 0
            elif count:
                raw = random.bytes(count * options["dtype"].itemsize)
                values = np.frombuffer(raw, options["dtype"])
                dataset[part] = values.reshape([k.stop - k.start for k in part])
    assert_same(path)
