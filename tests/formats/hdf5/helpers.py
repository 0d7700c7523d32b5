"""Files to scan, and the comparison of what was scanned with what h5py reads."""

from __future__ import annotations

import warnings

import h5py
import numpy as np

from tests.fidelity.compare import difference
from virtualzarr.array import Array
from virtualzarr.formats.hdf5 import scan
from virtualzarr.formats.hdf5.byte_source import LocalPages, PageCache
from virtualzarr.formats.hdf5.objects import Objects


def scan_all(path):
    """Scan a file that holds nothing to refuse or complain about."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return scan(path)


def assert_same(path, group=None):
    """Check that every array of a group holds what h5py reads, bit for bit."""
    group = scan_all(path) if group is None else group
    count = 0
    with h5py.File(path) as file:
        for name, node in group.members(max_depth=None):
            if isinstance(node, Array):
                mismatch = difference(np.asarray(node[...], node.dtype), file[name][...])
                assert mismatch is None, f"{name}: {mismatch}"
                count += 1
    assert count
    return group


def low_level(file, name, shape, tid, *, maxshape=None, **properties):
    """Create a dataset with properties h5py's own `create_dataset` does not know."""
    dcpl = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    for key, value in properties.items():
        getattr(dcpl, f"set_{key}")(*value if isinstance(value, tuple) else (value,))
    space = h5py.h5s.create_simple(shape, maxshape)
    dsid = h5py.h5d.create(file.id, name.encode(), tid, space, dcpl)
    return h5py.Dataset(dsid)


def objects_of(path):
    """Read the objects of a local file, without h5py."""
    return Objects(LocalPages(str(path)))


def source_of(raw):
    """Return bytes as a file elsewhere, whose `rounds` and `requests` are counted."""
    return PageCache(lambda ranges: [raw[start:stop] for start, stop in ranges], len(raw))
