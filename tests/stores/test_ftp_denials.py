"""FTP servers say 550 of what is missing and of what is denied, and do not list all there is."""

from __future__ import annotations

import os

import h5py
import numpy as np
import pytest
import zarr

import virtualzarr as vz
from tests.stores.ftp_server import ftp_server
from virtualzarr.errors import (
    NodeNotFoundError,
    SourceChangedError,
    SourceError,
    SourceNotFoundError,
    UnsupportedError,
    WriteError,
)
from virtualzarr.integrations.zarr_python import ZarrStore
from virtualzarr.stores import FsspecStore

DATA = np.arange(1, 13)


@pytest.fixture
def server(tmp_path, monkeypatch):
    monkeypatch.setattr(vz.config, "retry_seconds", 0.002)
    with ftp_server(tmp_path) as server:
        yield server


def make(tmp_path, zarr_format=3):
    """Write a group with an array of four chunks, of which the last is missing."""
    root = vz.create_group(tmp_path / "h", zarr_format=zarr_format)
    for name in ("a", "g/x"):
        array = root.create_array(name, shape=(15,), chunks=(3,), dtype="i8", fill_value=7)
        array[:12] = DATA
    return {path.relative_to(tmp_path) for path in tmp_path.rglob("*") if path.is_file()}


def once(command, name, reply):
    """Return a fault of the first such command."""
    left = [reply]

    def fault(given, argument):
        return left.pop() if left and (given, argument) == (command, name) else None

    return fault


@pytest.mark.parametrize("tells", ["sizes", "no sizes", "nothing", "why"])
def test_what_is_denied_is_not_missing(server, tmp_path, tells):
    before = make(tmp_path)
    root = vz.open_group(f"{server.url}/h", mode="r+")
    reply = (550, "permission denied") if tells == "why" else (550, "failed to open file")

    def fault(command, name):
        if command == "RETR" and name == "/h/g/x/c/3":
            return reply
        if command == "SIZE" and tells == "no sizes":
            return 502, "unknown"
        return reply if (command, name) == ("SIZE", "/h/g/x/c/3") and tells != "sizes" else None

    server.fault = fault
    array = root["g/x"]
    for work in (
        lambda: array[...],
        lambda: array.__setitem__(9, 50),
        lambda: root.move("g", "k"),
        lambda: root.copy("g", "k"),
    ):
        with pytest.raises(SourceError, match="the server has it, but answered 550"):
            work()
    assert array[:9].tolist() == [*range(1, 10)]
    server.fault = lambda *command: None
    assert before <= {path.relative_to(tmp_path) for path in tmp_path.rglob("*")}
    assert array[...].tolist() == [*DATA, 7, 7, 7]
    assert "k" not in root


def test_folders_that_are_denied_are_not_empty(server, tmp_path):
    make(tmp_path)
    server.fault = lambda command, name: (
        (550, "failed") if (command, name) == ("MLSD", "/h/a/c") else None
    )
    array = vz.open_array(f"{server.url}/h/a")
    with pytest.raises(SourceError, match="the server has it, but answered 550"):
        array.nchunks_initialized  # noqa: B018


@pytest.mark.parametrize("work", ["key", "node", "move", "zarr-python"])
def test_what_may_not_be_deleted_is_not_deleted(server, tmp_path, work):
    before = make(tmp_path)
    server.fault = lambda command, name: (550, "failed") if command == "DELE" else None
    root = vz.open_group(f"{server.url}/h", mode="r+")
    store = FsspecStore(f"{server.url}/h")
    works = {
        "key": lambda: store.delete("a/c/0"),
        "node": lambda: root.__delitem__("a"),
        "move": lambda: root.move("a", "b"),
        "zarr-python": lambda: zarr.open_group(ZarrStore(store), mode="r+").__delitem__("a"),
    }
    with pytest.raises((SourceError, WriteError), match="the server has it, but answered 550"):
        works[work]()
    assert before <= {path.relative_to(tmp_path) for path in tmp_path.rglob("*")}
    store.delete("a/c/9")  # which is not there


@pytest.mark.parametrize("work", ["delete", "overwrite", "overwrite all", "zarr-python"])
def test_documents_that_are_not_listed_are_deleted(server, tmp_path, work):
    make(tmp_path, 2)
    server.hides_dots = True
    root = vz.open_group(f"{server.url}/h", mode="r+")
    if work == "delete":
        del root["g"]
    elif work == "overwrite":
        root.create_group("g", overwrite=True)
    elif work == "overwrite all":
        vz.create_group(f"{server.url}/h", zarr_format=2, overwrite=True)
    else:
        del zarr.open_group(ZarrStore(f"{server.url}/h"), mode="r+")["g"]
    left = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()}
    assert not any(name.startswith("h/g/x") for name in left)
    assert ("h/g/.zgroup" in left) == (work == "overwrite")
    assert ("h/a/.zarray" in left) == (work != "overwrite all")
    with pytest.raises((NodeNotFoundError, SourceNotFoundError)):
        vz.open(f"{server.url}/h/g/x")


def test_hidden_documents_have_a_size(server, tmp_path):
    make(tmp_path, 2)
    server.hides_dots = True
    store = FsspecStore(f"{server.url}/h")
    assert store.size("a/.zarray") == (tmp_path / "h/a/.zarray").stat().st_size
    assert store.size("a/.zgroup") is None
    assert vz.open_array(f"{server.url}/h/a").nchunks_initialized == 4


@pytest.mark.parametrize("command", ["MLSD", "EPSV"])
@pytest.mark.parametrize("reply", [421, 425, 450])
@pytest.mark.parametrize("work", ["delete", "overwrite"])
def test_deletions_by_zarr_python_where_the_server_is_busy(server, tmp_path, command, reply, work):
    make(tmp_path)
    root = zarr.open_group(ZarrStore(f"{server.url}/h"), mode="r+")
    server.fault = once(command, "/h/a" if command == "MLSD" else "", reply)
    if work == "delete":
        del root["a"]
        assert not (tmp_path / "h/a").exists()
    else:
        new = root.create_array("a", shape=8, chunks=3, dtype="i8", fill_value=5, overwrite=True)
        assert new[...].tolist() == [5] * 8


def forget(server, name, count):
    """Answer some requests for the listing of a folder as if nothing was in it."""
    list_folder, left = server.RequestHandlerClass.do_MLSD, [None] * count

    class Forgetful(server.RequestHandlerClass):
        def do_MLSD(self, folder):
            is_forgotten = left and folder == name
            list_folder(self, "/empty" if is_forgotten and left.pop() is None else folder)

    server.RequestHandlerClass = Forgetful
    server.url = server.url.replace("127.0.0.1", "localhost")  # a new connection, of that class


@pytest.mark.parametrize("folder", ["/h/a", "/h/a/c"])
@pytest.mark.parametrize("work", ["delete", "overwrite", "zarr-python"])
def test_listings_that_are_empty_delete_nothing(server, tmp_path, folder, work):
    before = make(tmp_path)
    (tmp_path / "empty").mkdir()
    forget(server, folder, 99)
    root = vz.open_group(f"{server.url}/h", mode="r+")
    works = {
        "delete": lambda: root.__delitem__("a"),
        "overwrite": lambda: root.create_array("a", shape=8, dtype="i8", overwrite=True),
        "zarr-python": lambda: zarr.open_group(ZarrStore(f"{server.url}/h"), mode="r+").__delitem__(
            "a"
        ),
    }
    with pytest.raises((SourceError, UnsupportedError), match=r"does not list|cannot be removed"):
        works[work]()
    chunks = {path for path in before if "h/a/c" in str(path)}
    assert chunks <= {path.relative_to(tmp_path) for path in tmp_path.rglob("*")}


@pytest.mark.parametrize("work", ["move", "copy"])
@pytest.mark.parametrize("folder", ["/h/g/x", "/h/g/x/c"])
def test_a_listing_that_is_empty_once_is_asked_for_again(server, tmp_path, folder, work):
    make(tmp_path)
    (tmp_path / "empty").mkdir()
    forget(server, folder, 1)
    root = vz.open_group(f"{server.url}/h", mode="r+")
    getattr(root, work)("g", "k")
    assert root["k/x"][...].tolist() == [*DATA, 7, 7, 7]


@pytest.mark.parametrize("closed", ["/h/a/c/", "/h/a/"])
def test_what_is_in_a_folder_that_may_not_be_entered(server, tmp_path, closed):
    """Nothing in it has a size: the folder above tells that it is there."""
    make(tmp_path)
    array = vz.open_array(f"{server.url}/h/a")

    def fault(command, name):
        is_within = command in ("RETR", "SIZE", "MDTM", "CWD", "MLSD") and (
            f"{name}/".startswith(closed)
        )
        return (550, "failed") if is_within else None

    server.fault = fault
    for work in (
        lambda: array[...],
        lambda: array.nchunks_initialized,
        lambda: vz.open_group(f"{server.url}/h")["a"][...],
    ):
        with pytest.raises(SourceError, match="the server has it, but answered 550"):
            work()


@pytest.mark.parametrize("lists_as", ["mlsd", "unix", "windows"])
@pytest.mark.parametrize("zarr_format", [2, 3])
def test_listings_of_all_forms(server, tmp_path, lists_as, zarr_format):
    """Names with spaces, and links to files and folders, are in them."""
    make(tmp_path, zarr_format)
    chunk = tmp_path / ("h/a/c/2" if zarr_format == 3 else "h/a/2")
    (tmp_path / "aside").mkdir()
    chunk.rename(tmp_path / "aside" / "chunk")
    chunk.symlink_to(tmp_path / "aside" / "chunk")
    (tmp_path / "h/g").rename(tmp_path / "aside" / "group")
    (tmp_path / "h/my group").symlink_to(tmp_path / "aside" / "group")
    server.lists_as = lists_as
    root = vz.open_group(f"{server.url}/h", mode="r+")
    assert sorted(root) == ["a", "my group"]
    assert sorted(root["my group"]) == ["x"]
    assert root["a"].nchunks_initialized == 4
    assert (
        root["a"].chunk_nbytes().tolist() == vz.open_array(tmp_path / "h/a").chunk_nbytes().tolist()
    )
    root.copy("a", "my copy")
    assert root["my copy"][...].tolist() == [*DATA, 7, 7, 7]


def test_listings_that_nobody_knows_are_errors(server, tmp_path):
    make(tmp_path)
    server.lists_as = "unix"
    array = vz.open_array(f"{server.url}/h/a")

    class Odd(server.RequestHandlerClass):
        def list_folder(self, name, line):
            super().list_folder(name, lambda path, size: f"{size} bytes: {path.name}")

    server.RequestHandlerClass = Odd
    array = vz.open_array(f"{server.url.replace('127.0.0.1', 'localhost')}/h/a")
    with pytest.raises(SourceError, match="lists files in an unknown form"):
        array.nchunks_initialized  # noqa: B018


@pytest.mark.parametrize("tells_sizes", [True, False])
def test_chunks_that_are_missing_cost_no_listing_each(server, tmp_path, tells_sizes):
    vz.create_array(tmp_path / "s", shape=(100,), chunks=(1,), dtype="i4")[::10] = 1
    if not tells_sizes:
        server.fault = lambda command, name: 502 if command == "SIZE" else None
    array = vz.open_array(f"{server.url}/s")
    server.commands.clear()
    assert array[...].sum() == 10
    assert server.commands.count("MLSD") + server.commands.count("CWD") <= 4


@pytest.mark.parametrize("lists_as", ["mlsd", "unix"])
def test_links_in_a_circle(server, tmp_path, lists_as):
    make(tmp_path)
    (tmp_path / "h/a/c/again").symlink_to(tmp_path / "h/a")
    server.lists_as = lists_as
    array = vz.open_array(f"{server.url}/h/a")
    assert array[...].tolist() == [*DATA, 7, 7, 7]
    with pytest.raises(SourceError, match="links to folders lead to others, without end"):
        array.nchunks_initialized  # noqa: B018


@pytest.mark.parametrize("lists_as", ["mlsd", "mlsd without links", "unix"])
@pytest.mark.parametrize("zarr_format", [2, 3])
def test_links_are_deleted_and_not_what_they_lead_to(server, tmp_path, lists_as, zarr_format):
    make(tmp_path, zarr_format)
    array = vz.create_array(tmp_path / "aside", data=DATA, chunks=(4,), zarr_format=zarr_format)
    (tmp_path / "h/link").symlink_to(tmp_path / "aside")
    (tmp_path / "h/g/link").symlink_to(tmp_path / "aside")
    server.lists_as = lists_as
    root = vz.open_group(f"{server.url}/h", mode="r+")
    assert root["g/link"][...].tolist() == DATA.tolist()
    del root["link"]
    root.move("g", "moved")
    assert root["moved/link"][...].tolist() == DATA.tolist()
    assert sorted(root) == ["a", "moved"]
    (tmp_path / "h/again").symlink_to(tmp_path / "aside")
    root.create_array("again", shape=4, dtype="i4", overwrite=True)
    assert root["again"][...].tolist() == [0] * 4
    assert array[...].tolist() == DATA.tolist()


@pytest.mark.parametrize("lists_as", ["mlsd", "mlsd without links", "unix"])
def test_nothing_is_moved_into_itself_by_a_link(server, tmp_path, lists_as):
    make(tmp_path)
    (tmp_path / "h/link").symlink_to(tmp_path / "h/g")
    server.lists_as = lists_as
    root = vz.open_group(f"{server.url}/h", mode="r+")
    with pytest.raises(SourceChangedError, match="nothing was deleted"):
        root.move("g", "link/y")
    assert root["g/x"][...].tolist() == [*DATA, 7, 7, 7]


def test_links_that_cannot_be_removed(server, tmp_path):
    make(tmp_path)
    (tmp_path / "h/g/link").symlink_to(tmp_path / "h/a")
    server.fault = lambda command, name: (
        550 if command in ("DELE", "RMD") and name.endswith("link") else None
    )
    root = vz.open_group(f"{server.url}/h", mode="r+")
    with pytest.raises(SourceError, match="the link to a folder cannot be removed"):
        del root["g"]
    assert root["a"][...].tolist() == root["g/x"][...].tolist() == [*DATA, 7, 7, 7]


@pytest.mark.parametrize("code", [550, 553, 451, 501])
def test_folders_are_made_whatever_a_server_says(server, tmp_path, code):
    """Of a file in a folder that is not there: vsftpd says 553."""

    def fault(command, name):
        is_missing = command == "STOR" and not server.local(name).parent.is_dir()
        return (code, "Could not create file.") if is_missing else None

    server.fault = fault
    vz.open_group(f"{server.url}/h", mode="a").create_array("g/a", data=DATA)
    assert zarr.open_array(tmp_path / "h/g/a")[...].tolist() == DATA.tolist()


@pytest.mark.parametrize("tells", ["sizes", "sizes in MLSD", "sizes in LIST"])
def test_files_of_which_a_part_has_arrived(server, tmp_path, tells):
    """A server may take what has arrived for all, and say that it is."""
    make(tmp_path)
    if tells != "sizes":
        server.lists_as = "mlsd" if tells == "sizes in MLSD" else "unix"
        server.fault = lambda name, _: (502, "unknown") if name == "SIZE" else None
    root = vz.open_group(f"{server.url}/h", mode="r+")
    server.store_fault = lambda name: (226, "done") if "/a/" in name else None
    for change in (
        lambda: root["a"].__setitem__(0, 9),
        lambda: root["a"].append(DATA),
    ):
        with pytest.raises(SourceError, match="the server has stored 10 bytes of"):
            change()
        assert root["a"][...].tolist() == [*DATA, 7, 7, 7]
    left = [2]
    server.store_fault = lambda name: (226, "done") if left and left.pop() else None
    root["a"][0] = 9
    assert zarr.open_array(tmp_path / "h/a")[0] == 9


def test_listings_of_which_a_part_has_arrived(server, tmp_path):
    """As above: the last name would be another one, and be missing."""
    make(tmp_path)
    root = vz.open_group(f"{server.url}/h", mode="r+")
    left = [True]
    server.lists_to = lambda name: -5 if "/a/c" in name and left and left.pop() else None
    assert root["a"].nchunks_initialized == 4
    assert not left
    left, ends = [True] * 100, [-5, -6]
    server.lists_to = lambda name: ends[len(left) % 2] if "/a/c" in name and left.pop() else None
    for work in (lambda: root["a"].chunk_exists(), lambda: root.copy("a", "b")):
        with pytest.raises(SourceError, match="the listing ends in the middle of a line"):
            work()
    assert not (tmp_path / "h/b").exists()
    # Not even twice the same: this server ends its listings with a new line.
    left = [True] * 2
    server.lists_to = lambda name: -5 if "/a/c" in name and left and left.pop() else None
    assert root["a"].nchunks_initialized == 4
    assert not left
    # Some servers end none so.
    server.lists_to = lambda name: -2
    assert vz.open_group(f"{server.url}/h")["a"].nchunks_initialized == 4


@pytest.mark.parametrize("folder", ["c", "c/1"])
def test_folders_of_chunks_that_are_links_to_nothing(server, tmp_path, folder):
    """As servers list them that do not say what links lead to."""
    server.lists_as = "unix"
    root = vz.create_group(tmp_path / "h")
    root.create_array("a", data=DATA.reshape(3, 4), chunks=(1, 4))
    os.rename(tmp_path / "h/a" / folder, tmp_path / "disk")
    (tmp_path / "h/a" / folder).symlink_to("elsewhere")
    (tmp_path / "h/a/notes").symlink_to(tmp_path / "h/a/zarr.json")
    root = vz.open_group(f"{server.url}/h", mode="r+")
    for work in (
        lambda: root["a"][...],
        lambda: root["a"].chunk_exists(),
        lambda: root.copy("a", "b"),
        lambda: root.move("a", "b"),
    ):
        with pytest.raises(SourceError, match="a symbolic link to "):
            work()
    root.create_group("g")
    (tmp_path / "h/g/nothing").symlink_to("elsewhere")
    for work in (
        lambda: [*root["g"].members()],
        lambda: root.consolidate_metadata(),
        lambda: vz.copy(root, tmp_path / "copy"),
    ):
        with pytest.raises(SourceError, match="a symbolic link to "):
            work()
    del root["g"]
    del root["a"]
    assert sorted(path.name for path in (tmp_path / "disk").rglob("*") if path.is_file())
    assert not (tmp_path / "h/a").exists()


def test_a_folder_is_not_listed_for_each_file(server, tmp_path):
    for number in range(8):
        with h5py.File(tmp_path / f"{number}.h5", "w") as file:
            file.create_dataset("time", data=[number]).make_scale("time")
    files = [f"{server.url}/{number}.h5" for number in range(8)]
    server.commands.clear()
    vz.virtualize(files, "time").publish(tmp_path / "r.json")
    assert vz.check_references(tmp_path / "r.json", allowed=server.url).good
    assert server.commands.count("MLSD") == 0
    for missing in (f"{server.url}/9.h5", f"{server.url}/none/9.h5"):
        with pytest.raises(SourceNotFoundError):
            vz.virtualize(missing)


@pytest.mark.parametrize("renames", ["all", "to what is new", "nothing", "no such names"])
def test_writes_at_servers_that_rename_or_do_not(server, tmp_path, renames):
    make(tmp_path)
    server.renames = renames
    if renames == "no such names":
        server.fault = lambda command, name: (
            (553, "not allowed") if command == "STOR" and name.endswith(".part") else None
        )
    root = vz.open_group(f"{server.url}/h", mode="r+")
    root.attrs["title"] = "new"
    root["a"][9:] = 5
    root.create_array("new/x", data=DATA)
    vz.open(tmp_path / "h").publish(f"{server.url}/references.json")
    vz.open(tmp_path / "h").publish(f"{server.url}/references.json", overwrite=True)
    local = vz.open_group(tmp_path / "h")
    assert local.attrs["title"] == "new"
    assert local["a"][...].tolist() == [*DATA[:9], *[5] * 6]
    assert local["new/x"][...].tolist() == [*DATA]
    assert (tmp_path / "references.json").exists()
    assert not [*tmp_path.rglob("*.part")]


@pytest.mark.parametrize("fault", [(552, "quota exceeded"), (452, "no space left"), "reset"])
def test_what_is_not_stored_whole_replaces_nothing(server, tmp_path, fault, monkeypatch):
    make(tmp_path)
    monkeypatch.setattr(vz.config, "retries", 1)
    root = vz.open_group(f"{server.url}/h", mode="r+")
    vz.open(tmp_path / "h").publish(tmp_path / "references.json")
    before = (tmp_path / "references.json").read_bytes()
    server.store_fault = lambda name: fault
    array = root["a"]
    for work in (
        lambda: root.attrs.update(title="new"),
        lambda: array.__setitem__(4, 50),
        lambda: array.resize((8,)),
        lambda: vz.open(tmp_path / "h")["g"].publish(
            f"{server.url}/references.json", overwrite=True
        ),
    ):
        with pytest.raises((SourceError, WriteError)):
            work()
    local = vz.open_group(tmp_path / "h")
    assert local["a"][...].tolist() == [*DATA, 7, 7, 7]
    assert "title" not in local.attrs
    assert (tmp_path / "references.json").read_bytes() == before
    server.store_fault = lambda name: None
    array[4] = 50
    assert local["a"][4] == 50
    del root["a"]
    assert not (tmp_path / "h/a").exists()


def test_zarr_python_deletes_documents_first(server, tmp_path):
    """An array that is left without some of its chunks would be read."""
    make(tmp_path)
    server.fault = lambda command, name: (
        (550, "failed") if command == "DELE" and name.startswith("/h/a/c/2") else None
    )
    root = zarr.open_group(ZarrStore(f"{server.url}/h"), mode="r+")
    with pytest.raises(SourceError):
        del root["a"]
    assert "a" not in vz.open_group(tmp_path / "h")


@pytest.mark.parametrize("closed", [False, True])
def test_folders_that_may_be_entered_and_not_listed(server, tmp_path, closed):
    make(tmp_path)
    array = vz.open_array(f"{server.url}/h/a")
    server.fault = lambda command, name: (
        (550, "failed")
        if (command == "MLSD" and f"{name}/".startswith("/h/a/c/")) or (closed and command == "CWD")
        else None
    )
    if closed:
        with pytest.raises(SourceError, match="the server has it, but answered 550"):
            array[...]
    else:
        assert array[...].tolist() == [*DATA, 7, 7, 7]


def test_where_the_bytes_are_that_replaced_nothing_whole(server, tmp_path):
    make(tmp_path)
    server.renames = "to what is new"
    server.store_fault = lambda name: None if name.endswith(".part") else (552, "quota exceeded")
    array = vz.open_array(f"{server.url}/h/a", mode="r+")
    with pytest.raises(SourceError, match=r"is whole in /h/a/c/1\.[0-9a-f]+\.part") as raised:
        array[4] = 50
    part = str(raised.value).partition("whole in ")[2].partition(" ")[0]
    (tmp_path / part[1:]).replace(tmp_path / "h/a/c/1")
    assert array[3:6].tolist() == [4, 50, 6]


@pytest.mark.parametrize("refused", ["CWD", "SIZE"])
def test_servers_that_refuse_a_command_always(server, tmp_path, refused):
    make(tmp_path)
    server.fault = lambda command, name: (550, "no") if command == refused else None
    root = vz.open_group(f"{server.url}/h", mode="r+")
    assert root["a"][...].tolist() == [*DATA, 7, 7, 7]
    root.create_array("new/er/x", data=DATA, chunks=(3,))
    root["a"][9:] = 5
    assert root["a"].nchunks_initialized == 5
    assert root["a"].chunk_nbytes().min() > 0
    root.move("new", "moved")
    assert root["moved/er/x"][...].tolist() == [*DATA]
    del root["g"]
    assert sorted(vz.open_group(tmp_path / "h")) == ["a", "moved"]


def test_what_was_missing_just_now_and_is_written_is_missing_no_longer(server, tmp_path):
    make(tmp_path)
    server.fault = lambda command, name: 502 if command == "SIZE" else None
    array = vz.open_array(f"{server.url}/h/a", mode="r+")
    assert array[12:].tolist() == [7, 7, 7]
    array[12:] = 9
    server.fault = lambda command, name: (
        502
        if command == "SIZE"
        else (550, "failed")
        if (command, name) == ("RETR", "/h/a/c/4")
        else None
    )
    with pytest.raises(SourceError, match="the server has it, but answered 550"):
        array[12:]


def test_folders_that_may_not_be_made(server, tmp_path):
    make(tmp_path)
    root = vz.open_group(f"{server.url}/h", mode="r+")
    array = root.create_array("new", shape=4, dtype="i4")
    server.fault = lambda command, name: (550, "not allowed") if command == "MKD" else None
    with pytest.raises(SourceError, match="does not make the folder: 550 not allowed") as raised:
        array[...] = 1
    assert not isinstance(raised.value, SourceNotFoundError)
