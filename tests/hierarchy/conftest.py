"""An array that several tests open."""

from __future__ import annotations

import numpy as np
import pytest

import virtualzarr as vz


@pytest.fixture
def store():
    result = {}
    vz.create_array(
        result,
        data=np.arange(24, dtype="i4").reshape(4, 6),
        chunks=(2, 3),
        attributes={"units": "K", "scale": 1.0},
        dimension_names=["y", "x"],
        fill_value=-1,
    )
    return result
