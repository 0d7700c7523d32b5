"""Fields are read as ecCodes reads them, whatever they are packed with and however they lie."""

from __future__ import annotations

import itertools
import struct

import numpy as np
import pytest

import virtualzarr as vz
from tests.fidelity.runner import report, run
from tests.formats.grib.helpers import eccodes, message, outcomes
from tests.realdata import real_files
from virtualzarr.codecs.grib import message as messages
from virtualzarr.config import config
from virtualzarr.errors import SkippedVariableWarning, UnsupportedError, VirtualZarrError
from virtualzarr.formats.grib.grids import regular_lines

PACKINGS = {
    1: ["grid_simple", "grid_second_order", "grid_second_order_SPD1", "grid_simple_matrix"],
    2: ["grid_simple", "grid_ieee", "grid_ccsds", "grid_jpeg", "grid_png", "grid_complex",
        "grid_complex_spatial_differencing", "grid_second_order",
        "grid_simple_log_preprocessing"],
}  # fmt: skip


@pytest.mark.parametrize(
    ("edition", "packing"), [(edition, name) for edition in PACKINGS for name in PACKINGS[edition]]
)
@pytest.mark.parametrize("holes", [False, True])
def test_every_packing(tmp_path, edition, packing, holes):
    values = np.random.default_rng(0).random(496).round(2) * 100
    if holes:
        values[::7] = np.nan
    path = tmp_path / "a.grib"
    path.write_bytes(message(edition, values, packingType=packing))
    assert outcomes(path) == []
    array = vz.open(path)["t"]
    assert (array.dtype, array.shape) == (np.dtype("f8"), (31, 16))
    assert np.array_equal(np.isnan(array[...]).reshape(-1), np.isnan(values))


@pytest.mark.parametrize("packing", ["grid_simple", "grid_ccsds", "grid_png", "grid_ieee"])
def test_constant_fields(tmp_path, packing):
    path = tmp_path / "a.grib"
    path.write_bytes(message(values=np.full(496, 9999.0), packingType=packing))
    assert outcomes(path) == []
    assert (vz.open(path)["t"][...] == 9999).all()


@pytest.mark.parametrize("edition", [1, 2])
@pytest.mark.parametrize("packing", ["spectral_simple", "spectral_complex"])
def test_spherical_harmonics(tmp_path, edition, packing):
    values = np.random.default_rng(0).random(4160)
    path = tmp_path / "a.grib"
    path.write_bytes(message(edition, values, f"sh_pl_grib{edition}", packingType=packing))
    assert outcomes(path) == []
    group = vz.open(path)
    assert group["t"].dims == ("values",)
    assert "latitude" not in group


@pytest.mark.parametrize(
    ("sample", "dims"),
    [("regular_gg_pl", ("latitude", "longitude")), ("reduced_gg_pl_32", ("values",)),
     ("rotated_ll_pl", ("y", "x")),
     ("reduced_ll_sfc", ("values",)), ("rotated_gg_pl", ("y", "x"))],
)  # fmt: skip
@pytest.mark.parametrize("edition", [1, 2])
def test_grids(tmp_path, edition, sample, dims):
    path = tmp_path / "a.grib"
    path.write_bytes(message(edition, sample=f"{sample}_grib{edition}"))
    assert outcomes(path) == []
    group = vz.open(path)
    assert next(iter(v for v in group.values() if "GRIB_paramId" in v.attrs)).dims == dims
    assert group["latitude"].dims in (dims, ("latitude",))


@pytest.mark.parametrize("mode", range(0, 256, 16))
def test_scanning_modes(tmp_path, mode):
    """Points are put where the definition of the mode has them (code table 3.4), one by one."""
    if mode & 8:
        return
    rows, columns = 3, 4
    order = []
    outer, inner = (columns, rows) if mode & 32 else (rows, columns)
    for number in range(outer):
        line = [(k, number) if mode & 32 else (number, k) for k in range(inner)]
        order += line[::-1] if mode & 16 and number % 2 else line
    values = np.array([10 * j + i for j, i in order], float)
    south, west = bool(mode & 64), bool(mode & 128)
    ends = {"longitudeOfFirstGridPointInDegrees": 40, "longitudeOfLastGridPointInDegrees": 10}
    if not west:
        ends = dict(zip(ends, (10, 40), strict=True))
    lat = (10, 30) if south else (30, 10)
    path = tmp_path / "a.grib"
    path.write_bytes(
        message(
            values=values, Ni=columns, Nj=rows, scanningMode=mode & 0xF0 & ~0, **ends,
            latitudeOfFirstGridPointInDegrees=lat[0], latitudeOfLastGridPointInDegrees=lat[1],
            iDirectionIncrementInDegrees=10, jDirectionIncrementInDegrees=10,
        )
    )  # fmt: skip
    group = vz.open(path)
    expected = 10 * np.arange(rows)[:, None] + np.arange(columns)
    assert np.array_equal(group["t"][...], expected)
    assert group["t"].dims == ("latitude", "longitude")
    assert group["latitude"][...].tolist() == list(
        range(lat[0], lat[1] + (1 if south else -1), 10 if south else -10)
    )
    assert group["longitude"][...].tolist() == ([40, 30, 20, 10] if west else [10, 20, 30, 40])


@pytest.mark.parametrize("edition", [1, 2])
@pytest.mark.parametrize("sample", ["regular_ll_pl", "regular_gg_pl"])
@pytest.mark.parametrize("mode", [0, 32])
def test_large_grids(tmp_path, monkeypatch, edition, sample, mode):
    """Of which not all points are looked at."""
    path = tmp_path / "a.grib"
    path.write_bytes(message(edition, sample=f"{sample}_grib{edition}", scanningMode=mode))
    known = vz.open(path)
    regular_lines.cache_clear()
    monkeypatch.setattr(config.tuning, "grib_compared_points", 0)
    group = vz.open(path)
    regular_lines.cache_clear()
    assert group["t"].dims == ("latitude", "longitude")
    for name in ("latitude", "longitude"):
        assert np.array_equal(group[name][...], known[name][...])


def test_projected_grids_that_run_elsewhere_have_no_coordinates(tmp_path):
    path = tmp_path / "a.grib"
    for mode, there in [(64, True), (0, False), (192, False)]:
        path.write_bytes(message(sample="polar_stereographic_pl_grib2", scanningMode=mode))
        assert ("latitude" in vz.open(path)) == there
        assert outcomes(path) == []


@pytest.mark.parametrize("holes", [False, True])
def test_several_fields_in_a_message(tmp_path, holes):
    """As ecCodes writes and reads them, sharing identification, grid, and the bitmap, too."""
    values = [np.arange(496.0) + 1000 * number for number in range(3)]
    if holes:
        for each in values:
            each[::5] = np.nan
    singles = [
        message(values=each, shortName=name)
        for each, name in zip(values, ("u", "v", "t"), strict=True)
    ]
    raw = joined(singles, same_bitmap=holes)
    path = tmp_path / "a.grib"
    path.write_bytes(raw + singles[0].replace(b"\x07\xd9", b"\x07\xda", 1) + joined(singles[::-1]))
    assert [row for row in outcomes(path) if "same field" not in row.reason] == []
    path.write_bytes(raw)
    assert outcomes(path) == []
    group = vz.open(path)
    for name, each in zip(("u", "v", "t"), values, strict=True):
        assert np.array_equal(group[name][...].reshape(-1), each, equal_nan=True)
    # Not more is read for a field than lies between its product definition and its values.
    whole = 2 if holes else 1
    assert int(np.asarray(group["t"].manifest.length).item()) < len(raw) * whole


def joined(singles, same_bitmap=False):
    """Make one message of several with one identification and grid."""
    body = b""
    for number, single in enumerate(singles):
        _, sections = messages.field_sections(single)
        if same_bitmap and number:
            sections[6] = messages.section(6, bytes((messages.SAME_BITMAP,)))
        kept = sorted(sections) if number == 0 else [4, 5, 6, 7]
        body += b"".join(sections[k] for k in kept)
    return b"GRIB\0\0\0\2" + struct.pack(">Q", 20 + len(body)) + body + b"7777"


def test_messages_longer_than_their_length_can_say(tmp_path):
    """ECMWF counts messages of edition 1 of more than 8 MiB in units of 120 bytes."""
    values = np.random.default_rng(0).random(2000 * 1500)
    raw = message(1, values, Ni=2000, Nj=1500, bitsPerValue=24)
    assert len(raw) > 1 << 23
    assert raw[4] & 0x80
    path = tmp_path / "a.grib"
    path.write_bytes(raw + message(1, level=500))
    group = vz.open(path)
    assert sorted(node for node, _ in group.members(None) if node.endswith("/t")) == [
        "grid_1/t", "grid_2/t",
    ]  # fmt: skip
    handle = eccodes.codes_new_from_message(raw)
    assert np.array_equal(group["grid_1/t"][...].reshape(-1), eccodes.codes_get_values(handle))


def test_values_that_are_the_usual_missing_value(tmp_path):
    """What is missing is told by the bitmap, not by a number."""
    values = np.full(496, 9999.0)
    values[3] = np.nan
    path = tmp_path / "a.grib"
    path.write_bytes(message(values=values))
    assert np.array_equal(vz.open(path)["t"][...].reshape(-1), values, equal_nan=True)


def test_threads(tmp_path):
    rng = np.random.default_rng(0)
    fields = {level: rng.random(496) for level in range(100, 140)}
    path = tmp_path / "a.grib"
    path.write_bytes(b"".join(message(values=v, level=k, packingType="grid_ccsds")
                              for k, v in fields.items()))  # fmt: skip
    first = vz.open(path)["t"][...]
    for _ in range(3):
        assert np.array_equal(vz.open(path)["t"][...], first)
    assert outcomes(path) == []


def test_real_files():
    rows = list(run("grib", real_files("grib")))
    assert not [row for _, row in rows if row.outcome == "wrong"], report(rows)
    assert [row.outcome for _, row in rows].count("equal") >= 612


def test_cfgrib_sees_the_same(tmp_path):
    """Names, dimensions, coordinates and attributes are those that xarray gets from cfgrib."""
    xarray, cfgrib = pytest.importorskip("xarray"), pytest.importorskip("cfgrib")
    from virtualzarr.integrations.xarray_backend import VirtualZarrBackendEntrypoint

    path = tmp_path / "a.grib"
    path.write_bytes(
        b"".join(
            message(shortName=name, level=level, step=step, values=np.arange(496.0) + step)
            for name, level, step in itertools.product(("t", "u"), (500, 850), (0, 6))
        )
    )
    ours = xarray.open_dataset(path, engine=VirtualZarrBackendEntrypoint)
    theirs = cfgrib.open_dataset(path, indexpath="", backend_kwargs={"indexpath": ""})
    assert dict(ours.sizes) == dict(theirs.sizes)
    assert set(ours.coords) == set(theirs.coords)
    for name in theirs.variables:
        mine, other = ours[name], theirs[name]
        assert mine.dims == other.dims
        lacking = {k: v for k, v in other.attrs.items() if mine.attrs.get(k) != v}
        assert not set(lacking) - {"GRIB_missingValue"}, name
        assert np.array_equal(mine.values.astype(other.dtype), other.values), name


@pytest.mark.parametrize("edition", [1, 2])
@pytest.mark.parametrize("bits", [33, 48, 57, 60])
def test_values_of_many_bits(tmp_path, edition, bits):
    values = np.random.default_rng(0).random(496) * 1e5
    path = tmp_path / "a.grib"
    path.write_bytes(message(edition, values, bitsPerValue=bits))
    assert outcomes(path) == []
    # What ecCodes unpacks, and not only what we make of it.
    np.testing.assert_allclose(vz.open(path)["t"][...].reshape(-1), values, rtol=1e-4)


@pytest.mark.parametrize("edition", [1, 2])
def test_values_of_more_bits_than_ecCodes_unpacks_are_refused(tmp_path, edition):
    path = tmp_path / "a.grib"
    path.write_bytes(message(edition, bitsPerValue=63) + message(edition, level=500))
    with pytest.raises(UnsupportedError, match=r"63 bits.*a\.grib.*message at byte 0"):
        vz.open(path)
    with pytest.warns(SkippedVariableWarning, match="63 bits"):
        group = vz.open(path, on_error="warn")
    assert group["isobaricInhPa"][...] == 500


@pytest.mark.parametrize("template", [53, 300, 50000, 65535])
def test_packings_that_are_refused(tmp_path, template):
    raw = message()
    at = raw.index(b"\0\0\0\x15\x05") + 9
    path = tmp_path / "a.grib"
    path.write_bytes(raw[:at] + template.to_bytes(2, "big") + raw[at + 2 :])
    with pytest.raises(VirtualZarrError, match=rf"packing {template}.*a\.grib"):
        vz.open(path)["t"][...]
    if template != 53:
        with pytest.raises(UnsupportedError, match="which ecCodes does not unpack"):
            vz.open(path)


def test_double_fourier_series(tmp_path):
    handle = eccodes.codes_new_from_samples("lambert_bf_grib2", eccodes.CODES_PRODUCT_GRIB)
    path = tmp_path / "a.grib"
    path.write_bytes(eccodes.codes_get_message(handle))
    assert eccodes.codes_get(handle, "dataRepresentationTemplateNumber") == 53
    assert outcomes(path) == []
    assert vz.open(path)["t"].dims == ("values",)
