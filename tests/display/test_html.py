"""Arrays and groups in notebooks: well-formed, escaped, short, and drawn where the cuts are."""

import re
from xml.etree import ElementTree

import numpy as np
import pytest

import virtualzarr as vz
from virtualzarr import Array, Group
from virtualzarr.codecs import Pipeline, make
from virtualzarr.display import html
from virtualzarr.manifest import Manifest, Source, Sources
from virtualzarr.metadata import ArrayMetadata
from virtualzarr.stores import MemoryStore

NASTY = "<script>alert('&\"')</script>"


def parsed(text):
    return ElementTree.fromstring(text.replace("xmlns=", "x="))


def made(shape, chunks, **options):
    return vz.create_array({}, shape=shape, chunks=chunks, dtype="f4", **options)


def lines(array):
    """The lines of the picture, as ((x, y), (x, y))."""
    path = parsed(array._repr_html_()).find(".//path").get("d")
    number = r"(-?[\d.]+)"
    found = re.findall(rf"M{number} {number}L{number} {number}", path)
    return [((float(a), float(b)), (float(c), float(d))) for a, b, c, d in found]


class TestArrays:
    def test_what_is_said(self):
        array = made((6, 4), (2, 4), dimension_names=["time", None], attributes={"units": "K"})
        text = "".join(parsed(array._repr_html_()).itertext())
        for part in (
            "(time: 6, 4)",
            "float32",
            "Chunks3 of (2, 4)",
            "bytes → zstd",
            "Size96 bytes",
            "unitsK",
        ):
            assert part in text

    def test_virtual(self):
        array = made((4,), (2,))
        manifest = Manifest((2,), Sources([Source.inline(b"")]), -1, 0, 0)
        assert "2 of (2), virtual" in Array.from_manifest(array.metadata, manifest)._repr_html_()

    def test_where_it_is_stored(self, tmp_path):
        array = made((4,), (2,))
        sources = Sources([Source(f"/data/{i}.nc") for i in range(5)])
        virtual = Array.from_manifest(array.metadata, Manifest((2,), sources, 0, 0, 8))
        assert "/data/0.nc, /data/1.nc and 3 more" in virtual._repr_html_()
        stored = vz.create_array(tmp_path / "x.zarr", shape=4, dtype="f4")
        assert str(tmp_path / "x.zarr") in stored._repr_html_()
        assert "RegularGrid" not in stored._repr_html_()

    def test_sizes_are_for_people(self):
        text = made((1 << 28,), (1 << 20,))._repr_html_()
        assert "1.00 GiB (1,073,741,824 bytes)" in text

    def test_lines_of_one_axis(self):
        found = lines(made((8,), [[2, 6]]))
        across = sorted({a[0] for a, b in found if a[0] == b[0]})
        assert across == [0, html.LONGEST / 4, html.LONGEST]

    def test_lines_of_two_axes(self):
        found = lines(made((8, 8), [[2, 6], [8]]))
        assert sorted({a[1] for a, b in found if a[1] == b[1]}) == [0, 35, 140]
        assert sorted({a[0] for a, b in found if a[0] == b[0]}) == [0, 140]

    def test_lines_of_three_axes(self):
        found = lines(made((8, 8, 8), (4, 2, 1)))
        # Cuts on the front, and each cut goes on over one of the sides.
        assert len(found) == 2 * (3 + 5 + 9)
        box = ElementTree.tostring(parsed(made((8, 8, 8), (4, 2, 1))._repr_html_())).decode()
        assert box.count("<polygon") == 3

    def test_all_lines_lie_in_the_picture(self):
        array = made((3, 100, 7), (1, 9, 2))
        box = list(map(float, parsed(array._repr_html_()).find(".//svg").get("viewBox").split()))
        for line in lines(array):
            for x, y in line:
                assert box[0] <= x <= box[0] + box[2]
                assert box[1] <= y <= box[1] + box[3]

    @pytest.mark.parametrize(
        ("shape", "names", "labels"),
        [
            ((1500,), ["time"], ["time: 1,500"]),
            ((3, 4), ["y", None], ["4", "y: 3"]),
            ((2, 3, 4), ["t", "y", "<x>"], ["<x>: 4", "t: 2", "y: 3"]),
            (
                (5, 6, 2, 3, 4),
                ["t", None, "z", "y", "<x>"],
                ["<x>: 4", "z: 2", "y: 3", "for each of t: 5, 6"],
            ),
            ((2000, 1), ["y", "x" * 500], ["x" * html.LABEL + "…", "y: 2,000"]),
        ],
    )
    def test_axes_have_their_names(self, shape, names, labels):
        picture = parsed(made(shape, shape, dimension_names=names)._repr_html_()).find(".//svg")
        left, top, width, height = map(float, picture.get("viewBox").split())
        texts = picture.findall(".//text")
        assert [text.text for text in texts] == labels
        for text in texts:
            x, y = float(text.get("x")), float(text.get("y"))
            assert left <= x <= left + width
            assert top <= y <= top + height
            start = (
                x if text.get("text-anchor") == "start" else x - html.LETTER * len(text.text) / 2
            )
            assert start + html.LETTER * len(text.text) <= left + width

    @pytest.mark.parametrize("shape", [(2**60,), (2**40, 1), (2**30, 5, 2**20)])
    def test_short_however_many_chunks(self, shape):
        array = made(shape, (1,) * len(shape))
        assert len(lines(array)) <= 6 * (html.LINES + 1)
        assert len(array._repr_html_()) < 12000

    def test_short_however_many_edges(self):
        array = made((10**5 * 3 // 2,), [[1, 2] * (10**5 // 2)])
        assert len(array._repr_html_()) < 5000

    @pytest.mark.parametrize("shape", [(), (0,), (3, 0), (2, 2, 0, 2)])
    def test_no_picture(self, shape):
        text = made(shape, (1,) * len(shape))._repr_html_()
        assert "<svg" not in text
        assert parsed(text).tag == "div"

    def test_names_are_no_markup(self):
        dtype = np.dtype([(NASTY, "u1")])
        grid = made((2,), (2,)).grid
        names = (NASTY,)
        meta = ArrayMetadata((2,), dtype, grid, Pipeline([make("bytes")]), None, names,
                             {NASTY: NASTY})  # fmt: skip
        text = Array.from_store(meta, MemoryStore(), NASTY)._repr_html_()
        assert "<script" not in text
        assert "".join(parsed(text).itertext()).count(NASTY) == 4

    def test_nothing_is_read(self):
        class Deaf(MemoryStore):
            def list(self, prefix=""):
                raise AssertionError("it was listed")

            get = file = list_dir = list

        array = made((4,), (2,))
        assert "<svg" in Array.from_store(array.metadata, Deaf(), "x")._repr_html_()


class TestGroups:
    def test_members(self):
        group = vz.create_group({}, attributes={"title": "weather"})
        group.create_array("air", shape=(4, 6), dtype="f4", chunks=(2, 6))
        group.create_group("inner/deep")
        text = parsed(group._repr_html_())
        rows = ["|".join(cell.text or "" for cell in row) for row in text.iter("tr")]
        assert "air|(4, 6)|float32|2 of (2, 6)|96 bytes" in rows
        assert "inner/|group of 1|||" in rows
        assert "inner/deep/|group of 0|||" in rows
        assert "title|weather" in rows

    def test_dimensions_and_inner_members(self):
        inner = Group({}, {"t": made((1 << 20,), (1 << 10,), dimension_names=["time"])})
        rows = ["|".join(cell.text or "" for cell in row)
                for row in parsed(Group({}, {"g": inner})._repr_html_()).iter("tr")]  # fmt: skip
        assert rows[-2:] == [
            "g/|group of 1|||",
            "g/t|(time: 1048576)|float32|1,024 of (1024)|4.00 MiB",
        ]

    def test_many_inner_members(self):
        inner = Group({}, {f"m{i}": Group() for i in range(1000)})
        text = Group({}, {"g": inner})._repr_html_()
        assert "and more in the last group" in text
        assert len(text) < 20000
        assert "and 5 more" in Group({}, {f"{i}": inner for i in range(6)})._repr_html_()

    def test_short_however_many_members(self):
        names = {f"m{i}": Group() for i in range(1000)}
        group = Group(dict.fromkeys(names, "x" * 1000), names, skipped=dict.fromkeys(names, "no"))
        text = group._repr_html_()
        assert "and 970 more" in text
        assert len(text) < 20000
        parsed(text)

    def test_names_are_no_markup(self):
        group = Group({NASTY: NASTY}, {"<b>": Group()}, NASTY, {NASTY: NASTY})
        text = group._repr_html_()
        assert "<script" not in text
        assert ">&lt;b&gt;/</td>" in text
        assert "".join(parsed(text).itertext()).count(NASTY) == 5

    def test_a_member_that_cannot_be_opened(self):
        store = MemoryStore()
        group = vz.create_group(store)
        group.create_array("good", shape=(4,), dtype="f4")
        group.create_array("bad", shape=(4,), dtype="f4")
        store.set("bad/zarr.json", store.get("bad/zarr.json").replace(b"float32", b"<float>"))
        text = vz.open(store)._repr_html_()
        assert "float32" in text
        assert "&lt;float&gt;" in text
        assert "<float>" not in text

    def test_a_server_that_cannot_list(self):
        class Members(dict):
            def __iter__(self):
                raise vz.errors.UnsupportedError("it does not list <this>")

        assert "it does not list &lt;this&gt;" in Group({}, Members())._repr_html_()

    def test_empty(self):
        assert parsed(Group()._repr_html_()).tag == "div"
