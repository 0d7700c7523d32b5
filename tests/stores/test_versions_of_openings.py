"""Versions of files that several openings, names, caches or datasets share: one, or an error."""

import gc
import itertools
import json
import os
import pickle
import sys
import threading
import time
import zipfile
from functools import partial

import numpy as np
import pytest

import virtualzarr as vz
from tests.stores.webserver import web_server
from virtualzarr.errors import PublishError, SourceChangedError, SourceError
from virtualzarr.integrations.dask import to_dask
from virtualzarr.manifest import Source, Sources
from virtualzarr.stores.fingerprints import Fingerprint
from virtualzarr.stores.pins import Pin, Pins, _shared

OLD, NEW = 1_000_000_000, 1_000_000_060
COUNT, CHUNK = 64, 16


def write(path, value, when=None):
    """Put a file of one value in the place of another."""
    when = OLD + 60 * value if when is None else when
    new = path.with_name(f"{path.name}.new")
    new.write_bytes(np.full(COUNT, value, "<i4").tobytes())
    os.utime(new, ns=(when * 10**9,) * 2 if isinstance(when, int) else (int(when[0]),) * 2)
    os.replace(new, path)


def write_references(path, files):
    """Write references that note no versions: an array for each file."""
    metadata = {"shape": [COUNT], "chunks": [CHUNK], "dtype": "<i4", "fill_value": None,
                "order": "C", "filters": None, "compressor": None, "zarr_format": 2}  # fmt: skip
    refs = {".zgroup": '{"zarr_format": 2}'}
    for name, file in files.items():
        refs[f"{name}/.zarray"] = json.dumps(metadata)
        refs[f"{name}/.zattrs"] = json.dumps({"_ARRAY_DIMENSIONS": ["time"]})
        for i in range(COUNT // CHUNK):
            refs[f"{name}/{i}"] = [str(file), i * CHUNK * 4, CHUNK * 4]
    path.write_text(json.dumps({"version": 1, "refs": refs}))


@pytest.fixture(params=["local", "remote"])
def place(request, tmp_path):
    """A file of ones, and what opens references to it that note no version."""
    path = tmp_path / "a.bin"
    write(path, 1)
    with web_server(tmp_path) as server:
        uri = path if request.param == "local" else f"{server.url}/a.bin"
        write_references(tmp_path / "refs.json", {"a": uri})
        yield path, partial(vz.open, tmp_path / "refs.json", allowed="*")


def read(array, selection=...):
    """Return the different values, or None if they are refused."""
    try:
        return set(np.asarray(array[selection]).tolist())
    except SourceChangedError:
        return None


@pytest.mark.parametrize("is_first", [True, False])
@pytest.mark.parametrize("when", ["before", "after"])
def test_parts_of_several_openings_are_of_one_version(place, when, is_first):
    path, open_it = place
    one, other = open_it()["a"], open_it()["a"]
    parts = [one, other] if is_first else [other, one]
    if when == "before":
        assert read(one, slice(CHUNK)) == {1}
    joined = vz.concat(parts, axis=0)
    if when == "after":
        assert read(one, slice(CHUNK)) == {1}
    write(path, 2)
    assert read(joined, slice(COUNT)) is None
    assert read(joined, slice(COUNT, None)) is None
    assert read(one) is None
    # Neither is what is joined of it later, nor what is made of it elsewhere.
    again = vz.concat([joined, open_it()["a"]], axis=0)
    assert read(again, slice(-CHUNK, None)) is None
    pickled = pickle.dumps(joined)
    _shared.clear()
    assert read(pickle.loads(pickled)) is None
    write(path, 1)
    assert read(joined) == {1}


def test_openings_that_were_joined_unread_read_one_version(place):
    path, open_it = place
    one, other, third = (open_it()["a"] for _ in range(3))
    joined = vz.concat([vz.concat([one, other], axis=0), third], axis=0)
    assert read(third, slice(CHUNK)) == {1}
    write(path, 2)
    assert [read(array) for array in (one, other, third, joined)] == [None] * 4
    # What was joined with none of them is another matter.
    assert read(open_it()["a"]) == {2}


def merge_in_xarray(groups):
    xarray = pytest.importorskip("xarray")
    return xarray.merge([vz.open_virtual_dataset(group) for group in groups]).virtualzarr.to_group()


WAYS = {
    "merge": vz.merge,
    "merge in xarray": merge_in_xarray,
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("form", ["references", "native"])
def test_groups_of_several_openings_are_of_one_version(place, tmp_path, way, form):
    path, open_it = place

    def open_two():
        if form == "references":
            return open_it(), open_it()
        if not (tmp_path / "n.zarr").exists():
            open_it().publish(tmp_path / "n.zarr")
        return tuple(vz.open(tmp_path / "n.zarr", allowed="*") for _ in range(2))

    def join(one, other):
        renamed = vz.Group({}, {"b": other["a"]})
        return WAYS[way]([vz.Group({}, {"a": one["a"]}), renamed])

    joined = join(*open_two())
    assert read(joined["a"], slice(CHUNK)) == {1}
    write(path, 2)
    assert read(joined["b"], slice(CHUNK)) is None
    one, other = open_two()
    assert read(one["a"], slice(CHUNK)) == {2}
    write(path, 3)
    assert read(other["a"], slice(CHUNK)) == {3}
    with pytest.raises(SourceChangedError):
        join(one, other)
    assert read(other["a"]) == {3}


def test_joins_do_not_read_files_that_others_have_read_in_two_versions(tmp_path):
    """Of two openings that share a file, which both have read, arrays of other files are joined."""
    for name in "ab":
        write(tmp_path / f"{name}.bin", 1)
    write_references(tmp_path / "refs.json", {name: tmp_path / f"{name}.bin" for name in "ab"})
    write_references(tmp_path / "b.json", {"b": tmp_path / "b.bin"})
    torn = make_torn(tmp_path / "a.bin", partial(vz.open, tmp_path / "refs.json"))
    other = vz.open(tmp_path / "b.json")
    joined = vz.concat([torn["b"], other["b"]], axis=0)
    assert read(joined) == {1}
    assert read(torn["a"]) is None
    fresh = vz.open(tmp_path / "refs.json")
    assert read(fresh["a"]) == {2}


def test_openings_stay_of_one_version_after_a_join_that_failed(place, tmp_path):
    path, open_it = place
    one, other, third = (open_it()["a"] for _ in range(3))
    merged = vz.merge([vz.Group({}, {"x": one}), vz.Group({}, {"y": other})])
    assert read(merged["x"], slice(CHUNK)) == {1}
    write(path, 2)
    assert read(third, slice(CHUNK)) == {2}
    for parts in ([one, third], [third, merged["y"]]):
        with pytest.raises(SourceChangedError):
            vz.concat(parts, axis=0)
    assert read(merged["y"]) is None
    assert read(third) == {2}
    assert read(vz.concat([third, open_it()["a"]], axis=0)) == {2}


def test_what_is_joined_is_one_in_other_processes(place):
    path, open_it = place
    one, other = open_it()["a"], open_it()["a"]
    merged = vz.merge([vz.Group({}, {"x": one}), vz.Group({}, {"y": other})])
    pickled = pickle.dumps(merged)
    _shared.clear()
    again = pickle.loads(pickled)
    assert read(again["x"], slice(CHUNK)) == {1}
    write(path, 2)
    assert read(again["y"]) is None


def load_elsewhere(*pickled):
    """Return what another process makes of pickles."""
    _shared.clear()
    return [pickle.loads(each) for each in pickled]


@pytest.mark.parametrize("what", ["one", "joined", "group"])
def test_pickles_of_what_is_joined_have_what_others_have_read(place, what):
    path, open_it = place
    groups = open_it(), open_it()
    one, other = (group["a"] for group in groups)
    joined = vz.concat([one, other], axis=0)
    assert read(other, slice(CHUNK)) == {1}
    pickled = pickle.dumps({"one": one, "joined": joined, "group": groups[0]}[what])
    write(path, 2)
    (again,) = load_elsewhere(pickled)
    assert read(again["a"] if what == "group" else again, slice(CHUNK)) is None


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
@pytest.mark.parametrize("kind", ["array", "group", "dask"])
def test_pickles_made_before_and_after_a_join_are_of_one_version(place, kind, order):
    path, open_it = place
    group, other = open_it(), open_it()

    def dump():
        if kind == "dask":
            return pickle.dumps(to_dask(group["a"]))
        return pickle.dumps(group["a"] if kind == "array" else group)

    def take(again):
        return again["a"] if kind == "group" else again

    pickled = [dump()]
    vz.concat([group["a"], other["a"]], axis=0)
    vz.concat([open_it()["a"], other["a"]], axis=0)
    pickled.append(dump())
    again = [take(each) for each in load_elsewhere(*(pickled[i] for i in order))]
    assert read(again[0], slice(CHUNK)) == {1}
    write(path, 2)
    assert read(again[1]) is None


def test_earlier_pickles_of_parts_are_joined_with_what_was_made_of_them(place):
    path, open_it = place
    one, other = open_it()["a"], open_it()["a"]
    pickled = [pickle.dumps(other)]
    pickled.append(pickle.dumps(vz.concat([one, other], axis=0)))
    part, joined = load_elsewhere(*pickled)
    assert read(part, slice(CHUNK)) == {1}
    write(path, 2)
    assert read(joined, slice(COUNT, None)) is None


def test_pickles_find_what_is_joined_though_their_own_opening_is_gone(place):
    path, open_it = place
    one, other = open_it()["a"], open_it()["a"]
    pickled = pickle.dumps(one)
    joined = vz.concat([one, other], axis=0)
    assert read(one, slice(CHUNK)) == {1}
    del one, joined
    gc.collect()
    write(path, 2)
    assert read(pickle.loads(pickled)) is None
    assert read(other) is None


def test_joins_that_fail_leave_all_openings_as_they_were(tmp_path):
    for name in "ab":
        write(tmp_path / f"{name}.bin", 1)
    write_references(tmp_path / "both.json", {name: tmp_path / f"{name}.bin" for name in "ab"})
    for order in itertools.permutations(range(3)):
        for name in "ab":
            write(tmp_path / f"{name}.bin", 1)
        openings = [vz.open(tmp_path / "both.json") for _ in range(3)]
        assert read(openings[0]["a"], slice(CHUNK)) == {1}
        write(tmp_path / "a.bin", 2)
        assert read(openings[2]["a"], slice(CHUNK)) == {2}
        with pytest.raises(SourceChangedError):
            vz.concat([openings[i]["b"] for i in order], axis=0)
        for value, opening in enumerate(openings, 3):
            write(tmp_path / "b.bin", value)
            assert read(opening["b"], slice(CHUNK)) == {value}


@pytest.mark.skipif(os.name == "nt", reason="links take rights there")
def test_folders_whose_links_move(tmp_path):
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
        for name in "ab":
            write(tmp_path / folder / f"{name}.bin", 1)
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "one")
    files = {"a": link / "a.bin", "b": link / "b.bin", "c": tmp_path / "two" / "b.bin"}
    write_references(tmp_path / "refs.json", files)
    group = vz.open(tmp_path / "refs.json", allowed="*")
    assert read(group["a"]) == {1}
    link.unlink()
    link.symlink_to(tmp_path / "two")
    assert read(group["b"]) == {1}
    write(tmp_path / "two" / "b.bin", 2)
    assert read(group["c"]) is None


@pytest.mark.skipif(os.name == "nt", reason="links take rights there")
def test_what_was_read_in_two_versions_is_so_by_all_names(tmp_path):
    path = tmp_path / "a.bin"
    write(path, 1)
    (tmp_path / "link.bin").symlink_to(path)
    write_references(tmp_path / "refs.json", {"a": path, "b": tmp_path / "link.bin"})
    torn = make_torn(path, partial(vz.open, tmp_path / "refs.json"))
    assert read(torn["a"]) is None
    assert read(torn["b"]) is None


@pytest.mark.skipif(os.name == "nt", reason="links take rights there")
@pytest.mark.parametrize("by_system", [True, False])
@pytest.mark.parametrize("left_behind", ["one", "link"])
@pytest.mark.parametrize("name", ["one", "link"])
def test_folders_that_are_renamed_and_links_to_them(
    tmp_path, monkeypatch, name, left_behind, by_system
):
    if not by_system:  # as where it does not tell the path of what is open
        monkeypatch.setattr("virtualzarr.stores.uris._O_PATH", 0)
    folder, renamed, link = (tmp_path / each for each in ("one", "two", "link"))
    folder.mkdir()
    for each in "ab":
        write(folder / f"{each}.bin", 1)
    link.symlink_to(folder)
    files = {each: tmp_path / name / f"{each}.bin" for each in "ab"} | {"c": renamed / "b.bin"}
    write_references(tmp_path / "refs.json", files)
    group = vz.open(tmp_path / "refs.json", allowed="*")
    assert read(group["a"]) == {1}
    folder.rename(renamed)
    if left_behind == "link":
        link.unlink()
    (tmp_path / left_behind).symlink_to(renamed)
    is_there = name == left_behind or left_behind == "one"
    if is_there:
        assert read(group["b"]) == {1}
    write(renamed / "b.bin", 2)
    assert read(group["c"]) == (None if is_there else {2})


@pytest.fixture
def link(tmp_path):
    """A link to the first of two files, which references call a and b; they call the link c."""
    if os.name == "nt":
        pytest.skip("links take rights there")
    for value, name in enumerate("ab", 1):
        write(tmp_path / f"{name}.bin", value)
    link = tmp_path / "link.bin"
    link.symlink_to(tmp_path / "a.bin")
    files = {"a": tmp_path / "a.bin", "b": tmp_path / "b.bin", "c": link}
    write_references(tmp_path / "refs.json", files)
    return link


def test_links_that_move_after_a_read_that_failed(tmp_path, link):
    group = vz.open(tmp_path / "refs.json")
    assert read(group["b"]) == {2}
    (tmp_path / "a.bin").rename(tmp_path / "away.bin")
    with pytest.raises(SourceError, match="link to a missing file"):
        group["c"][...]
    (tmp_path / "away.bin").rename(tmp_path / "a.bin")
    link.unlink()
    link.symlink_to(tmp_path / "b.bin")
    write(tmp_path / "b.bin", 3)
    assert read(group["c"]) is None
    assert read(group["a"]) == {1}
    assert read(vz.open(tmp_path / "refs.json")["c"]) == {3}


def test_pickles_know_where_a_link_led(tmp_path, link):
    """Of the file that it leads to since then, another version may be read."""
    group = vz.open(tmp_path / "refs.json")
    assert read(group["c"]) == {1}
    link.unlink()
    link.symlink_to(tmp_path / "b.bin")
    for what in (group, {name: group[name] for name in "abc"}):
        data = pickle.dumps(what)
        _shared.clear()  # as in another process
        copy = pickle.loads(data)
        assert read(copy["c"]) is None
        assert read(copy["b"]) == {2}
        assert read(copy["a"]) == {1}
        assert read(copy["c"]) is None


def test_joins_through_several_names_leave_all_as_they_were_if_they_fail(tmp_path, link):
    one = vz.open(tmp_path / "refs.json")
    assert [read(one[name]) for name in "abc"] == [{1}, {2}, {1}]
    link.unlink()
    link.symlink_to(tmp_path / "b.bin")
    (tmp_path / "b.bin").rename(tmp_path / "away.bin")
    other = vz.open(tmp_path / "refs.json")
    with pytest.raises(SourceError, match="link to a missing file"):
        other["c"][...]
    (tmp_path / "away.bin").rename(tmp_path / "b.bin")
    # The link is the first file in one opening, and the second, which was not read, in the other.
    for parts in ([one["b"], other["b"]], [other["a"], one["a"]]):
        with pytest.raises(SourceChangedError):
            vz.concat(parts, axis=0)
    assert [read(one[name]) for name in "abc"] == [{1}, {2}, None]
    assert [read(other[name]) for name in "abc"] == [{1}, {2}, {2}]


@pytest.mark.skipif(os.name == "nt", reason="links take rights there")
def test_a_link_that_moves_is_one_file_for_all_that_is_joined(tmp_path):
    write(tmp_path / "a.bin", 1)
    write(tmp_path / "b.bin", 2)
    (tmp_path / "link.bin").symlink_to(tmp_path / "a.bin")
    write_references(tmp_path / "refs.json", {"a": tmp_path / "link.bin"})
    one, other = (vz.open(tmp_path / "refs.json")["a"] for _ in range(2))
    merged = vz.merge([vz.Group({}, {"x": one}), vz.Group({}, {"y": other})])
    assert read(merged["x"], slice(CHUNK)) == {1}
    (tmp_path / "link.bin").unlink()
    (tmp_path / "link.bin").symlink_to(tmp_path / "b.bin")
    assert read(merged["y"]) is None
    assert read(vz.open(tmp_path / "refs.json")["a"]) == {2}


def test_threads_that_join_the_same_openings_in_any_order(tmp_path):
    write(tmp_path / "a.bin", 1)
    write_references(tmp_path / "refs.json", {"a": tmp_path / "a.bin"})
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for _ in range(60):
            arrays = [vz.open(tmp_path / "refs.json")["a"] for _ in range(4)]
            pickled = [pickle.dumps(array) for array in arrays]
            orders = [(0, 1), (1, 0), (1, 2), (2, 1), (2, 3), (3, 0)]

            def work(first, second, arrays=arrays, pickled=pickled):
                vz.concat([arrays[first], pickle.loads(pickled[second])], axis=0)
                vz.concat([arrays[second], arrays[first]], axis=0)[:3]

            threads = [threading.Thread(target=work, args=order, daemon=True) for order in orders]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(60)
                assert not thread.is_alive()
    finally:
        sys.setswitchinterval(interval)


@pytest.mark.parametrize("is_first", [True, False])
def test_what_was_read_in_two_versions_is_not_joined(place, is_first):
    path, open_it = place
    one, other = open_it()["a"], open_it()["a"]
    assert read(one, slice(CHUNK)) == {1}
    write(path, 2)
    assert read(other, slice(CHUNK)) == {2}
    with pytest.raises(SourceChangedError, match=r"since it was first read.*a\.bin"):
        vz.concat([one, other] if is_first else [other, one], axis=0)
    assert read(other) == {2}
    assert read(one) is None


@pytest.mark.parametrize("is_first", [True, False])
def test_what_processes_read_in_two_versions_is_not_joined(place, is_first):
    path, open_it = place
    torn = make_torn(path, open_it)["a"]
    fresh = open_it()["a"]
    with pytest.raises(SourceChangedError, match="in two versions"):
        vz.concat([torn, fresh] if is_first else [fresh, torn], axis=0)
    assert read(fresh) == {2}


def make_torn(path, open_it, forget=lambda: None):
    """Return an opening that read ones here, and twos in another process; they are twos now."""
    here = open_it()
    pins = here["a"].manifest.sources[0].pins
    unread = pickle.dumps(here)
    assert read(here["a"], slice(CHUNK)) == {1}
    write(path, 2)
    _shared.clear()
    forget()
    there = pickle.loads(unread)
    assert read(there["a"], slice(CHUNK)) == {2}
    pickled = pickle.dumps(there)
    _shared.clear()
    _shared[pins.token] = pins
    pickle.loads(pickled)
    return here


def test_a_version_that_was_noted_needs_no_pins(tmp_path):
    noted = Source("/x/a.nc", 3, 5)
    tables = [Sources([Source("/x/a.nc", 3, 5, pins=pins)]) for pins in (None, Pins(), Pins())]
    merged, remaps = Sources.merge(tables)
    assert [*merged] == [noted]
    assert [remap.tolist() for remap in remaps] == [[0, -1]] * 3
    unnoted = [Sources([Source("/x/a.nc", pins=pins)]) for pins in (None, Pins())]
    merged, _ = Sources.merge(unnoted)
    assert merged[0].pins is unnoted[1][0].pins


@pytest.mark.parametrize("setting", [True, False])
def test_versions_of_pickles_are_kept_whatever_is_verified(place, monkeypatch, setting):
    path, open_it = place
    group = open_it()
    assert read(group["a"], slice(CHUNK)) == {1}
    pickled = pickle.dumps(group)
    write(path, 2)
    _shared.clear()
    monkeypatch.setattr(vz.config, "verify_sources", setting)
    again = pickle.loads(pickled)
    monkeypatch.setattr(vz.config, "verify_sources", True)
    assert read(again["a"]) is None
    write(path, 1)
    torn = pickle.dumps(make_torn(path, open_it))
    _shared.clear()
    monkeypatch.setattr(vz.config, "verify_sources", setting)
    again = pickle.loads(torn)
    monkeypatch.setattr(vz.config, "verify_sources", True)
    assert read(again["a"]) is None


def test_whole_seconds_of_local_files_are_exact(tmp_path):
    path = tmp_path / "a.bin"
    write(path, 1, (OLD * 10**9,))
    write_references(tmp_path / "refs.json", {"a": path})
    array = vz.open(tmp_path / "refs.json")["a"]
    assert read(array, slice(CHUNK)) == {1}
    write(path, 2, (OLD * 10**9 + 999_999_999,))
    assert read(array) is None


SPELLINGS = ["{folder}/./a.bin", "/{folder}/a.bin", "{folder}/../{name}/a.bin",
             "file://{folder}/a.bin", "{folder}/link.bin", "{folder}/folder/a.bin",
             "{folder}/folder/../{name}/link.bin"]  # fmt: skip


def spell(folder, name):
    """Return another name of a file in a folder, with the links that it goes through."""
    (folder / "link.bin").symlink_to(folder / "a.bin")
    (folder / "folder").symlink_to(folder)
    return name.format(folder=folder, name=folder.name)


@pytest.mark.skipif(os.name == "nt", reason="links take rights there")
@pytest.mark.parametrize("name", SPELLINGS)
def test_openings_that_name_a_file_differently_are_joined_as_one_version(tmp_path, name):
    path, other = tmp_path / "a.bin", spell(tmp_path, name)
    write_references(tmp_path / "one.json", {"a": path})
    write_references(tmp_path / "other.json", {"a": other})
    names = [tmp_path / "one.json", tmp_path / "other.json"]
    write(path, 1)
    arrays = [vz.open(each, allowed="*")["a"] for each in names]
    joined = vz.concat(arrays, axis=0)
    assert read(joined, slice(COUNT)) == {1}
    write(path, 2)
    assert read(joined, slice(COUNT, None)) is None
    arrays = [vz.open(each, allowed="*")["a"] for each in names]
    for value, array in enumerate(arrays, 3):
        write(path, value)
        assert read(array, slice(CHUNK)) == {value}
    with pytest.raises(SourceChangedError):
        vz.concat(arrays, axis=0)


@pytest.mark.skipif(os.name == "nt", reason="links take rights there")
@pytest.mark.parametrize("name", SPELLINGS)
def test_a_local_file_is_of_one_version_under_all_its_names(tmp_path, name):
    path, other = tmp_path / "a.bin", spell(tmp_path, name)
    for first, then in ("ab", "ba"):
        write(path, 1)
        write_references(tmp_path / "refs.json", {"a": path, "b": other})
        group = vz.open(tmp_path / "refs.json", allowed="*")
        assert read(group[first], slice(CHUNK)) == {1}
        write(path, 2)
        assert read(group[then]) is None
    # A link that leads elsewhere is another file, also where a path goes back behind it.
    (tmp_path / "apart").mkdir()
    write(tmp_path / "apart" / "a.bin", 3)
    (tmp_path / "folder").unlink()
    (tmp_path / "folder").symlink_to(tmp_path / "apart")
    write_references(
        tmp_path / "refs.json", {"a": path, "b": tmp_path / "folder" / "a.bin", "c": other}
    )
    group = vz.open(tmp_path / "refs.json", allowed="*")
    assert read(group["a"]) == {2}
    assert read(group["b"]) == {3}


@pytest.mark.parametrize("recheck", [True, "open", 60, "never"])
def test_cached_blocks_of_another_version_are_not_used(place, recheck):
    path, open_it = place
    open_it = partial(open_it, cache=vz.ChunkCache(10**6), recheck_cached_data=recheck)
    one = open_it()["a"]
    assert read(one, slice(2 * CHUNK)) == {1}
    write(path, 2)
    # What was read first is gone on with, from memory, and nothing of another version.
    assert read(one, slice(2 * CHUNK)) in ({1}, None)
    assert read(one) is None
    other = open_it()["a"]
    found = read(other)
    assert found == {2} or (found is None and recheck in (60, "never"))
    assert read(open_it()["a"]) == {2}  # what was kept was dropped as that was noticed
    assert read(one, slice(2 * CHUNK)) is None
    assert read(one, slice(2 * CHUNK, None)) is None


@pytest.mark.parametrize("age", ["settled", "dated", "new"])
@pytest.mark.parametrize("other_bound", [True, "open", 60, "never"])
@pytest.mark.parametrize("bound", [True, "open", 60, "never"])
def test_what_another_opening_keeps_is_not_used(place, monkeypatch, bound, other_bound, age):
    """Whenever the files were changed: long ago, just now with an old date, or just now."""
    path, open_it = place
    if age == "settled":
        monkeypatch.setattr(vz.config, "settled_ns", -1)

    def replace(value):
        write(path, value)
        if age == "new":  # dates of answers over HTTP are whole seconds, with a tag
            now = time.time_ns() + value
            os.utime(path, ns=(now, now))

    replace(1)
    open_it = partial(open_it, cache=vz.ChunkCache(10**6))
    one = open_it(recheck_cached_data=bound)["a"]
    assert read(one, slice(CHUNK)) == {1}
    replace(2)
    other = open_it(recheck_cached_data=other_bound)["a"]
    kept = read(other, slice(CHUNK, 2 * CHUNK))
    assert kept in ({2}, None)
    assert read(other) in ({2}, None)
    assert read(one, slice(CHUNK, 2 * CHUNK)) is None
    assert read(one) is None
    assert read(one, slice(CHUNK)) in ({1}, None)


@pytest.mark.parametrize("is_folder", [False, True])
@pytest.mark.parametrize("bound", [True, "open", 60, "never"])
def test_what_is_kept_of_a_link_is_of_the_file_it_led_to(tmp_path, bound, is_folder):
    folders = [tmp_path / "one", tmp_path / "two"]
    for folder, value in zip(folders, [1, 2], strict=True):
        folder.mkdir()
        write(folder / "a.bin", value)
    link = tmp_path / "link"
    name = "" if is_folder else "a.bin"
    link.symlink_to(folders[0] / name)
    linked = link / "a.bin" if is_folder else link
    write_references(tmp_path / "refs.json", {"a": folders[1] / "a.bin", "b": linked})
    cache = vz.ChunkCache(10**6)
    open_it = partial(
        vz.open, tmp_path / "refs.json", allowed="*", cache=cache, recheck_cached_data=bound
    )
    assert read(open_it()["b"]) == {1}
    link.unlink()
    link.symlink_to(folders[1] / name)
    write(folders[1] / "a.bin", 3)
    group = open_it()
    assert read(group["b"], slice(CHUNK)) == {3}
    assert read(group["a"]) == {3}


@pytest.mark.skipif(os.name == "nt", reason="links take rights there")
@pytest.mark.parametrize("order", ["ab", "ba"])
@pytest.mark.parametrize("bound", [True, "open", 60, "never"])
def test_what_is_kept_is_dropped_by_all_names_once_a_change_is_noticed(tmp_path, bound, order):
    path, link = tmp_path / "a.bin", tmp_path / "link.bin"
    write(path, 1)
    link.symlink_to(path)
    files = dict(zip(order, [path, link], strict=True))
    write_references(tmp_path / "both.json", files)
    write_references(tmp_path / "link.json", {"a": link})
    open_it = partial(vz.open, cache=vz.ChunkCache(10**6), recheck_cached_data=bound)
    group = open_it(tmp_path / "both.json")
    assert [read(group[name]) for name in "ab"] == [{1}, {1}]
    noticing = vz.open(tmp_path / "link.json", cache=open_it.keywords["cache"])["a"]
    assert read(noticing) == {1}
    write(path, 2)
    assert read(noticing) is None
    found = []
    for _ in range(2):
        group = open_it(tmp_path / "both.json")
        found.append([read(group[name]) for name in "ab"])
    assert found[0] in ([{2}, {2}], [{1}, None])
    assert found[1] == [{2}, {2}]


@pytest.mark.parametrize("recheck", [True, "open", 60, "never"])
def test_cached_blocks_are_not_used_of_what_was_read_in_two_versions(place, recheck):
    path, open_it = place
    cache = vz.ChunkCache(10**6)
    open_it = partial(open_it, cache=cache, recheck_cached_data=recheck)
    torn = make_torn(path, open_it, cache.clear)["a"]
    assert read(open_it()["a"]) == {2}
    assert read(torn) is None


@pytest.mark.parametrize("bound", [True, "open", 0, "now", "never"])
def test_what_comes_from_the_disk_is_no_look_at_the_file(tmp_path, monkeypatch, bound):
    path = tmp_path / "a.bin"
    write(path, 1)
    monkeypatch.setattr(vz.config, "disk_cache", str(tmp_path / "cache"))
    cache = vz.ChunkCache(10**6)
    with web_server(tmp_path) as server:
        write_references(tmp_path / "refs.json", {"a": f"{server.url}/a.bin"})
        open_it = partial(vz.open, tmp_path / "refs.json", allowed="*", cache=cache)
        one = open_it(recheck_cached_data="never")["a"]
        assert read(one) == {1}
        write(path, 2)
        cache.clear()
        bound = time.time() if bound == "now" else bound
        other = open_it(recheck_cached_data=bound)["a"]
        assert read(one) == {1}  # without a request
        assert read(other) == ({1} if bound == "never" else {2})


@pytest.mark.parametrize("where", ["remote", "local", "local, settled"])
@pytest.mark.parametrize("recheck", [True, "open", 60, "never"])
def test_indexes_of_shards_of_another_version_are_not_used(tmp_path, monkeypatch, recheck, where):
    zarr = pytest.importorskip("zarr", minversion="3")
    if where == "local, settled":  # as it is some time after it was written
        monkeypatch.setattr(vz.config, "settled_ns", -1)

    def write_shards(first, when):
        """Write two shards of which every other sub-chunk is stored, from the first or second."""
        store = zarr.storage.MemoryStore()
        array = zarr.create_array(
            store, name="a", shape=(64,), shards=(32,), chunks=(8,), dtype="i4",
            compressors=None, fill_value=-1,
        )  # fmt: skip
        for start in range(first, 64, 16):
            array[start : start + 8] = start
        shards = [store._store_dict[f"a/c/{i}"].to_bytes() for i in range(2)]
        (tmp_path / "a.bin").write_bytes(b"".join(shards))
        os.utime(tmp_path / "a.bin", (when, when))
        return array[...], len(shards[0]), store._store_dict["a/zarr.json"].to_bytes().decode()

    _, end, document = write_shards(0, OLD)
    with web_server(tmp_path) as server:
        url = f"{server.url}/a.bin" if where == "remote" else str(tmp_path / "a.bin")
        refs = {"zarr.json": '{"zarr_format": 3, "node_type": "group"}', "a/zarr.json": document,
                "a/c/0": [url, 0, end], "a/c/1": [url, end, end]}  # fmt: skip
        (tmp_path / "refs.json").write_text(json.dumps({"version": 1, "refs": refs}))
        open_it = partial(vz.open, tmp_path / "refs.json", recheck_cached_data=recheck)
        assert open_it()["a"][:2].tolist() == [0, 0]  # the first index is kept
        new, *_ = write_shards(8, NEW)
        array = open_it()["a"]
        if where == "local, settled" and recheck in (60, "never"):
            # The version that was kept is what it goes on with: once, and it is said.
            for _ in range(2):
                assert read(array, slice(40, 48)) is None
            array = open_it()["a"]
        assert np.array_equal(array[40:48], new[40:48])  # by the second, of the new version
        assert np.array_equal(array[:8], new[:8])
        assert np.array_equal(array[...], new)


@pytest.mark.parametrize("verb", ["create", "append", "publish"])
def test_datasets_note_the_versions_that_were_read(place, tmp_path, verb):
    path, open_it = place
    group = open_it()
    if verb == "append":
        write_references(tmp_path / "other.json", {"a": tmp_path / "b.bin"})
        write(tmp_path / "b.bin", 1)
        vz.create_dataset(tmp_path / "d", vz.open(tmp_path / "other.json"), "time", allowed="*")
    assert read(group["a"], slice(CHUNK)) == {1}
    if verb == "create":
        vz.create_dataset(tmp_path / "d", group, "time", allowed="*")
    elif verb == "append":
        vz.Dataset(tmp_path / "d", allowed="*").append(group)
    else:
        group.publish(tmp_path / "d", reference_format="native")
    assert read(vz.open(tmp_path / "d", allowed="*")["a"]) == {1}
    write(path, 2)
    assert read(vz.open(tmp_path / "d", allowed="*")["a"], slice(-CHUNK, None)) is None


@pytest.mark.parametrize("form", [".json", ".parq", ".zarr", "dict", "dataset"])
def test_what_was_joined_before_anything_of_it_was_read_notes_the_version(place, tmp_path, form):
    path, open_it = place
    one, other = open_it(), open_it()
    assert read(one["a"]) == {1}
    joined = vz.Group({}, {"a": vz.concat([other["a"], one["a"]], axis=0)})
    write(path, 2)
    for number, what in enumerate([other, joined]):
        target = {} if form == "dict" else str(tmp_path / f"out{number}{form}")
        if form == "dataset":
            vz.create_dataset(target, what, "time")
        else:
            what.publish(target)
        assert read(vz.open(target, allowed="*")["a"]) is None


@pytest.mark.parametrize("is_noted_first", [True, False])
@pytest.mark.parametrize("is_read", [True, False])
def test_joins_with_what_notes_a_version_read_that(place, tmp_path, is_noted_first, is_read):
    path, open_it = place
    group = open_it()
    assert read(group["a"]) == {1}
    group.publish(tmp_path / "noted.json")
    noted = vz.open(tmp_path / "noted.json", allowed="*")["a"]
    other = open_it()["a"]
    if is_read:
        assert read(other) == {1}
    parts = [noted, other] if is_noted_first else [other, noted]
    joined = vz.concat(parts, axis=0)
    assert read(joined, slice(COUNT) if is_noted_first else slice(COUNT, None)) == {1}
    write(path, 2)
    assert read(joined, slice(COUNT)) is None
    assert read(joined, slice(COUNT, None)) is None
    noted, other = vz.open(tmp_path / "noted.json", allowed="*")["a"], open_it()["a"]
    assert read(other) == {2}
    with pytest.raises(SourceChangedError):
        vz.concat([noted, other], axis=0)
    assert read(other) == {2}


@pytest.mark.skipif(os.name == "nt", reason="links take rights there")
@pytest.mark.parametrize("bound", [True, "open", 60, "never"])
@pytest.mark.parametrize("names", [("a.bin", "link.bin"), ("link.bin", "a.bin")])
def test_noted_versions_hold_for_all_names_of_a_file(tmp_path, names, bound):
    path = tmp_path / "a.bin"
    write(path, 1)
    (tmp_path / "link.bin").symlink_to(path)
    for name, form in zip(names, ["noted", "free"], strict=True):
        write_references(tmp_path / f"{form}.json", {"a": tmp_path / name})
    group = vz.open(tmp_path / "noted.json")
    assert read(group["a"]) == {1}
    group.publish(tmp_path / "noted.json", overwrite=True)
    options = {"cache": vz.ChunkCache(10**6), "recheck_cached_data": bound}
    one, other = (
        vz.open(tmp_path / f"{form}.json", allowed="*", **options)["a"]
        for form in ("noted", "free")
    )
    joined = vz.concat([one, other], axis=0)
    assert read(joined, slice(COUNT)) == {1}
    write(path, 2)
    vz.Group({}, {"a": joined}).publish(tmp_path / "joined.json")
    assert read(joined) is None
    assert read(vz.open(tmp_path / "joined.json", allowed="*")["a"], slice(COUNT, None)) is None


@pytest.mark.parametrize("is_noted_first", [True, False])
def test_sizes_that_are_noted_hold_where_a_server_tells_nothing_else(tmp_path, is_noted_first):
    path = tmp_path / "a.bin"
    write(path, 1)
    with web_server(tmp_path, tags=False, dates=False) as server:
        write_references(tmp_path / "refs.json", {"a": f"{server.url}/a.bin"})
        open_it = partial(vz.open, tmp_path / "refs.json", allowed="*")
        free = open_it()["a"]
        manifest = open_it()["a"].manifest
        row = manifest.sources[0]
        sized = Sources([Source(row.uri, size=COUNT * 4)])
        noted = vz.Array.from_manifest(free.metadata, manifest.replace(sources=sized))
        joined = vz.concat([noted, free] if is_noted_first else [free, noted], axis=0)
        parts = slice(COUNT), slice(COUNT, None)
        assert read(joined, parts[not is_noted_first]) == {1}
        path.write_bytes(np.full(COUNT + 1, 2, "<i4").tobytes())
        assert [read(joined, part) for part in parts] == [None, None]


@pytest.mark.parametrize("bound", [True, "open", 0, "never"])
def test_a_file_that_is_as_it_was_noted_again_is_read_again(tmp_path, bound):
    """After another answer, of a replica or while it was replaced."""
    path = tmp_path / "a.bin"
    write(path, 1)
    with web_server(tmp_path) as server:
        write_references(tmp_path / "refs.json", {"a": f"{server.url}/a.bin"})
        group = vz.open(tmp_path / "refs.json", allowed="*")
        assert read(group["a"]) == {1}
        group.publish(tmp_path / "noted.json")
        options = {"cache": vz.ChunkCache(10**6), "recheck_cached_data": bound}
        noted = vz.open(tmp_path / "noted.json", allowed="*", **options)["a"]
        write(path, 2)
        assert read(noted) is None
        write(path, 1)
        assert read(noted) == {1}


def test_datasets_are_not_made_of_what_was_read_in_two_versions(place, tmp_path):
    path, open_it = place
    torn = make_torn(path, open_it)
    with pytest.raises(SourceChangedError, match="in two versions"):
        vz.create_dataset(tmp_path / "d", torn, "time", allowed="*")
    assert not (tmp_path / "d").exists()


@pytest.mark.parametrize("form", ["json", "parquet", "native"])
def test_two_noted_versions_of_a_file_are_published_where_both_can_be_noted(tmp_path, form):
    path = tmp_path / "a.bin"
    groups = []
    for value, name in ((1, "x"), (2, "y")):
        write(path, value)
        write_references(tmp_path / "refs.json", {name: path})
        group = vz.open(tmp_path / "refs.json")
        group[name][...]
        group.publish(tmp_path / f"{name}.json")
        groups.append(vz.open(tmp_path / f"{name}.json"))
    merged = vz.merge(groups)
    if form != "native":
        with pytest.raises(PublishError, match=r"two versions.*a\.bin"):
            merged.publish(tmp_path / "both", reference_format=form)
        assert not (tmp_path / "both").exists()
        return
    merged.publish(tmp_path / "both", reference_format=form)
    published = vz.open(tmp_path / "both")
    assert read(published["x"]) is None
    assert read(published["y"]) == {2}


def test_parts_without_the_file_that_was_read_in_two_versions_are_published(tmp_path):
    write(tmp_path / "a.bin", 1)
    write(tmp_path / "b.bin", 5)
    write_references(tmp_path / "first.json", {"a": tmp_path / "a.bin"})
    write_references(tmp_path / "second.json", {"a": tmp_path / "b.bin"})
    first = partial(vz.open, tmp_path / "first.json")
    torn = make_torn(tmp_path / "a.bin", first)["a"]
    second = vz.open(tmp_path / "second.json")["a"]
    joined = vz.concat([torn, second], axis=0)
    with pytest.raises(SourceChangedError, match="in two versions"):
        joined.publish(tmp_path / "all.json")
    joined.lazy[COUNT:].publish(tmp_path / "part.json")
    assert read(vz.open(tmp_path / "part.json")["part"]) == {5}


def test_fingerprints_of_pins_that_are_one():
    one, two, three = Pin(), Pin(), Pin()
    one.absorb("/x", two)
    three.absorb("/x", one)
    one.absorb("/x", three)  # they are one already
    two.check("/x", Fingerprint(3, 5))
    assert one.fingerprint == two.fingerprint == three.fingerprint == Fingerprint(3, 5)
    with pytest.raises(SourceChangedError):
        three.check("/x", Fingerprint(3, 6))


def test_members_of_zip_files_are_of_the_version_that_was_read(tmp_path):
    path = tmp_path / "a.zip"

    def write_zip(value):
        with zipfile.ZipFile(f"{path}.new", "w") as archive:
            archive.writestr("m.bin", np.full(COUNT, value, "<i4").tobytes())
        os.utime(f"{path}.new", (OLD + value, OLD + value))
        os.replace(f"{path}.new", path)

    write_zip(1)
    write_references(tmp_path / "refs.json", {"a": f"zip://m.bin::{path}"})
    array = vz.open(tmp_path / "refs.json", allowed="*")["a"]
    assert read(array, slice(CHUNK)) == {1}
    write_zip(2)
    assert read(array) in ({1}, None)
