"""Source files that change after their rows came, and maybe were folded."""

from __future__ import annotations

import os

import numpy as np
import pytest

import virtualzarr as vz
from tests.dataset.files import write
from tests.dataset.mutations import mutate
from tests.dataset.s3_server import running
from virtualzarr.dataset import dataset as datasets
from virtualzarr.dataset import file_names, fitting
from virtualzarr.dataset.file_names import NAMES, read_names
from virtualzarr.dataset.file_versions import compare_versions, hash_version
from virtualzarr.dataset.limits import Limits
from virtualzarr.dataset.row_tables import encode_columns
from virtualzarr.dataset.snapshot import as_names, as_tuples
from virtualzarr.errors import MismatchError, SourceChangedError
from virtualzarr.manifest import Source, Sources
from virtualzarr.references.native.parts import NO_SIZE, NO_TIME


@pytest.fixture
def files(tmp_path):
    paths = [tmp_path / f"{number}.h5" for number in range(4)]
    for number, path in enumerate(paths):
        write(path, 4 * number)
    return [*map(str, paths)]


def append_each(path, files):
    dataset = vz.create_dataset(path, files[0], "time")
    for file in files[1:]:
        dataset = dataset.append(file)
    return dataset


def append_at_once(path, files):
    return vz.create_dataset(path, files[:1], "time").append([*reversed(files[1:])])


def name_relatively(path, files):
    return vz.create_dataset(path, files[:2], "time", relative=True).append(files[2:])


def append_group(path, files):
    group = vz.virtualize(files[1:], concat_dim="time")
    return vz.create_dataset(path, files[0], "time").append(group)


def commit_staged(path, files):
    dataset = vz.create_dataset(path, files[0], "time")
    return dataset.commit([dataset.stage(files[1:3]), dataset.stage(files[3])])


def commit_transaction(path, files):
    dataset = vz.create_dataset(path, files[0], "time")
    with dataset.transaction() as transaction:
        for file in files[1:]:
            transaction.append(file)
    return transaction.dataset


def replace_each(path, files):
    """Rows come of preliminary files, which change, and replace themselves."""
    dataset = append_each(path, files)
    for number, file in enumerate(files[1:], 1):
        write(file, 4 * number, value=number)
        dataset = dataset.replace(file, replaced=file)
    return dataset


WAYS = [
    append_each, append_at_once, name_relatively, append_group, commit_staged, commit_transaction,
    replace_each,
]  # fmt: skip


def fold(dataset):
    dataset.compact(3)
    dataset.compact(5)  # what is folded is folded again
    return dataset.refresh()


def check_present(dataset, files):
    assert dataset.append(files, duplicates="skip").version == dataset.version
    assert dataset.find_unclear_files(files) == set()
    with pytest.raises(MismatchError, match="already"):
        dataset.append(files)


def check_changed(dataset, file):
    for duplicates in ("skip", "raise"):
        with pytest.raises(SourceChangedError, match="has changed") as error:
            dataset.append(file, duplicates=duplicates)
        assert error.value.file == file


@pytest.mark.parametrize("is_folded", [False, True])
@pytest.mark.parametrize("way", WAYS)
def test_a_file_that_changes_is_noticed(tmp_path, files, way, is_folded):
    dataset = way(tmp_path / "d", files)
    expected = dataset.group["air"][...]
    if is_folded:
        dataset = fold(dataset)
        manifest = dataset.group["air"].manifest
        uris = {s.uri for s in manifest.sources.select(np.asarray(manifest.source))}
        assert not uris & {*files[:3]}, "rows still refer to files"
    check_present(dataset, files)
    write(files[2], 8, value=7)
    check_changed(dataset, files[2])
    check_present(dataset, [files[1], files[3]])
    if is_folded:
        np.testing.assert_array_equal(dataset.group["air"][...], expected)
        dataset = dataset.replace(files[2], replaced=files[2])
        expected[8:12] = 7
        np.testing.assert_array_equal(dataset.group["air"][...], expected)
        check_present(fold(dataset), files)


@pytest.mark.parametrize("is_folded", [False, True])
def test_another_date_is_another_version(tmp_path, files, is_folded):
    """Nobody compares bytes: a file that is touched counts as changed, folded or not."""
    dataset = append_each(tmp_path / "d", files)
    dataset = fold(dataset) if is_folded else dataset
    os.utime(files[1], ns=(10**18, 10**18))
    check_changed(dataset, files[1])


def test_what_changes_with_its_date_kept_is_known_by_its_size(tmp_path, files):
    dataset = fold(append_each(tmp_path / "d", files))
    times = os.stat(files[1])
    with open(files[1], "ab") as file:
        file.write(b"more")
    os.utime(files[1], ns=(times.st_atime_ns, times.st_mtime_ns))
    check_changed(dataset, files[1])


def test_versions_outlive_upkeep(tmp_path, files):
    """Elements are written, rows dropped, tables of names merged, and versions forgotten."""
    limits = Limits(names=1, leaf_names=2, fan_out=2, names_fan_in=2, most_names=8)
    with pytest.MonkeyPatch.context() as patch:
        commit = datasets.commit
        patch.setattr(datasets, "commit", lambda *a, **k: commit(*a, **{**k, "limits": limits}))
        dataset = append_each(tmp_path / "d", files)
        dataset = fold(dataset).write("air", (slice(5, 6), 0), 3.0)
        dataset = fold(dataset).drop(9, 20)
        assert dataset.snapshot.names["time"].tables
    dataset.vacuum(forget=True)
    dataset = dataset.refresh()
    check_present(dataset, files[:3])
    write(files[2], 8, value=7)
    check_changed(dataset, files[2])
    # All rows of the last one are gone: it comes again, whatever it has become.
    write(files[3], 12, value=9)
    dataset = dataset.append(files[3], duplicates="skip")
    assert (dataset.group["air"][-4:] == 9).all()
    # By a rollback, rows are there again with the version that they came from.
    before = fold(dataset)
    later = before.drop(12, None)
    write(files[3], 12, value=8)
    later = later.append(files[3])
    check_present(later, [files[3]])
    check_changed(later.rollback(before.version), files[3])


def test_late_rows_have_the_version_of_their_file(tmp_path, files):
    dataset = fold(append_each(tmp_path / "d", [files[0], files[2]]))
    dataset = fold(dataset.append([files[3], files[1]]))
    check_present(dataset, files)
    write(files[1], 4, value=7)
    check_changed(dataset, files[1])


def strip(group):
    """Return a group whose references say nothing of versions, but maybe the size."""

    def change(array):
        manifest = array.manifest
        sources = Sources(Source(s.uri, s.size if "1" in s.uri[-5:] else None)
                          for s in manifest.sources)  # fmt: skip
        return array.replace(array.metadata, manifest.replace(sources=sources))

    return group.map_arrays(change)


@pytest.mark.parametrize("is_folded", [False, True])
def test_nobody_says_changed_of_what_cannot_be_compared(tmp_path, files, is_folded):
    """Of one file nothing is known, of another the size."""
    group = strip(vz.virtualize(files[1:3], concat_dim="time"))
    dataset = vz.create_dataset(tmp_path / "d", files[0], "time").append(group)
    dataset = fold(dataset) if is_folded else dataset
    assert dataset.find_unclear_files(files[:3]) == {*files[1:3]}
    assert dataset.append(files[:3], duplicates="skip").version == dataset.version
    os.utime(files[2], ns=(10**18, 10**18))
    assert dataset.append(files[:3], duplicates="skip").version == dataset.version
    with open(files[1], "ab") as file:
        file.write(b"more")
    check_changed(dataset, files[1])


@pytest.mark.parametrize("is_folded", [False, True])
def test_entity_tags_say_of_remote_files_whether_they_changed(tmp_path, files, is_folded):
    pytest.importorskip("s3fs")
    with running() as server:
        options = {"storage_options": server.options()}

        def upload(number):
            with open(files[number], "rb") as file:
                server.store(f"bucket/{number}.h5", file.read(), {})
            return f"s3://bucket/{number}.h5"

        urls = [upload(number) for number in range(3)]
        dataset = vz.create_dataset(tmp_path / "d", urls, "time", **options)
        if is_folded:
            dataset.compact(4)
            dataset = dataset.refresh()
        upload(1)  # later, with the same bytes
        again = dataset.append(urls, duplicates="skip")
        assert again.version == dataset.version
        assert dataset.find_unclear_files(urls) == set()
        write(files[1], 4, value=7)
        upload(1)
        with pytest.raises(SourceChangedError, match="has changed"):
            dataset.append(urls, duplicates="skip")


# -- what older writers stored ----------------------------------------------------------------


def encode_without_versions(self, items):
    return encode_columns([np.ascontiguousarray(items[n]) for n in ("hash", "first", "count")])


@pytest.fixture(params=["head", "tables"])
def old_dataset(tmp_path, files, request, monkeypatch):
    """A dataset whose names have no versions, in the head or in tables."""
    with monkeypatch.context() as patch:
        patch.setattr(fitting, "version_of", lambda source: "")
        patch.setattr(file_names.NameTable, "encode", encode_without_versions)
        if request.param == "tables":
            commit = datasets.commit
            limits = Limits(names=1, names_fan_in=2)
            patch.setattr(datasets, "commit", lambda *a, **k: commit(*a, **{**k, "limits": limits}))
        dataset = append_each(tmp_path / "d", files[:3])
        assert bool(dataset.snapshot.names["time"].tables) == (request.param == "tables")
        assert all(len(item) == 3 for item in dataset.snapshot.names["time"].to_json()["tail"])
    return dataset


def test_names_without_versions(tmp_path, files, old_dataset):
    """References say it as long as there are some; after that nothing is known, nor said."""
    check_present(old_dataset, files[:3])
    before = os.stat(files[1]).st_mtime_ns
    os.utime(files[1], ns=(10**18, 10**18))
    check_changed(old_dataset, files[1])
    os.utime(files[1], ns=(before, before))
    dataset = fold(old_dataset.append(files[3]))
    assert dataset.find_unclear_files(files) == {*files[:3]}
    assert dataset.append(files, duplicates="skip").version == dataset.version
    for file in files[1], files[3]:
        os.utime(file, ns=(10**18, 10**18))
    assert dataset.append(files[:3], duplicates="skip").version == dataset.version
    check_changed(dataset, files[3])
    # What replaces an old one has a version.
    dataset = fold(dataset.replace(files[1], replaced=files[1]))
    assert dataset.find_unclear_files(files) == {files[0], files[2]}
    check_present(dataset, [files[1]])


def test_a_file_of_which_some_rows_have_no_version(tmp_path, files, monkeypatch):
    """Rows of two versions of a file, of one of which only the name is known."""
    with monkeypatch.context() as patch:
        patch.setattr(fitting, "version_of", lambda source: "")
        dataset = append_each(tmp_path / "d", files[:2])
    dataset.compact(2)
    write(files[1], 4, count=6)
    dataset = dataset.append(vz.virtualize(files[1]), overlap="first")
    dataset.compact(2)
    dataset = dataset.refresh()
    assert dataset.group["time"][...].tolist() == [*range(10)]
    assert dataset.find_unclear_files(files) == {*files[:2]}
    write(files[1], 4, count=8)
    assert dataset.append(files[:2], duplicates="skip").version == dataset.version


def test_leaves_of_old_and_new_names():
    chance = np.random.default_rng(0)
    for count in (1, 4, 5, 8, 20, 300):
        items = np.zeros(count, as_names().dtype)
        # Zeros at the end are bytes as others.
        hashes = [chance.bytes(15) + bytes([k % 2]) for k in range(count)]
        items["hash"] = sorted(hashes)
        items["first"], items["count"] = chance.integers(0, 2**62, (2, count))
        old = NAMES.decode(encode_without_versions(None, items))
        np.testing.assert_array_equal(old, items)
        items["version"] = [chance.bytes(8) if k % 3 else b"" for k in range(count)]
        np.testing.assert_array_equal(NAMES.decode(NAMES.encode(items)), items)
        np.testing.assert_array_equal(as_names(as_tuples(items)), items)
        assert [name for name, *_ in as_tuples(items)] == [name.hex() for name in sorted(hashes)]


# -- what versions say ---------------------------------------------------------------------------


def test_comparison_is_that_of_what_both_know():
    facts = [(size, time, tag) for size in (NO_SIZE, 4, 5) for time in (NO_TIME, 1, 2)
             for tag in ("", "a", "b")]  # fmt: skip
    for one in facts:
        for other in facts:
            said = compare_versions([hash_version(*one)], hash_version(*other))
            known = [fact[1:] != (NO_TIME, "") for fact in (one, other)]
            if (one[0] != other[0] and NO_SIZE not in (one[0], other[0])) or (
                all(known) and one[1:] != other[1:]
            ):
                assert said == "changed", (one, other)
            else:
                assert said == ("same" if all(known) else "unknown"), (one, other)
    assert compare_versions([], hash_version(4, 1, "")) == "unknown"
    two = [hash_version(4, 1, ""), hash_version(4, 2, "")]
    assert compare_versions(two, two[1]) == "same"
    assert compare_versions(two, hash_version(4, 3, "")) == "changed"
    assert compare_versions([*two, ""], hash_version(4, 3, "")) == "unknown"


@pytest.mark.parametrize(
    ("function", "old", "new"),
    [
        (file_names.move_files, "n, version)", 'n, "")'),
        (file_names.NameTable.decode, 'items["version"] = ', 'items["version"][:0] = '),
        (read_names, "append((first, count, version))", 'append((first, count, ""))'),
    ],
)
def test_a_version_that_is_lost_is_noticed(tmp_path, files, monkeypatch, function, old, new):
    mutate(monkeypatch, function, old, new)
    with pytest.raises((AssertionError, pytest.fail.Exception, ValueError)):
        test_versions_outlive_upkeep(tmp_path, files)
