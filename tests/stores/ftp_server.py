"""An FTP server of a folder on loopback that breaks connections when it is told to."""

from __future__ import annotations

import os
import socket
import socketserver
import threading
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path


def kind_of(path):
    """Return the type of a file, as RFC 3659 has it in its examples."""
    if path.is_symlink():
        return f"OS.unix=slink:{os.readlink(path)}"
    return "dir" if path.is_dir() else "file"


class Session(socketserver.StreamRequestHandler):
    """One control connection; commands are methods of their names."""

    disable_nagle_algorithm = True  # or each reply waits for the one before to be confirmed

    def handle(self):
        with self.server.lock:
            self.server.open += 1
            is_refused = self.server.most is not None and self.server.open > self.server.most[0]
        try:
            if is_refused and self.server.most[1] == 421:
                self.say(421, "Too many connections")
            else:
                self.serve(is_refused)
        finally:
            with self.server.lock:
                self.server.open -= 1

    def serve(self, is_refused):
        self.folder, self.start, self.data = "/", 0, None
        self.user, self.is_known = "", self.server.logins is None
        # Clients send the end of ABOR as urgent data.
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_OOBINLINE, 1)
        self.say(220, "ready")
        while line := self.rfile.readline():
            name, _, argument = line.decode("latin-1").strip().lstrip("\xff\xf2\xf4").partition(" ")
            self.server.commands.append(name.upper())
            if is_refused and name.upper() == "USER":
                self.say(530, "the maximum number of clients is reached")
                continue
            if not self.is_known and name.upper() not in ("USER", "PASS", "QUIT"):
                self.say(530, "log in first")
                continue
            fault = self.server.fault(name.upper(), argument)
            if fault == "reset":
                return
            if fault is not None:
                self.say(*fault if isinstance(fault, tuple) else (fault, "busy"))
                continue
            method = getattr(self, f"do_{name.upper()}", None)
            if method is None:
                self.say(502, "unknown")
            elif method(argument) is False:
                return

    def say(self, code, text):
        self.wfile.write(f"{code} {text}\r\n".encode())

    def path(self, name):
        return self.server.local(os.path.join(self.folder, name or "."))

    def do_USER(self, name):
        self.user = name
        self.server.users.append(name)
        self.say(230, "welcome") if self.is_known else self.say(331, "and the password")

    def do_PASS(self, password):
        self.is_known = self.server.logins.get(self.user) == password
        if self.is_known:
            self.say(230, "welcome")
        else:
            self.say(530, f"{password} is not the password of {self.user}")

    def do_TYPE(self, kind):
        self.say(200, "all the same")

    do_NOOP = do_TYPE

    def do_PWD(self, _):
        self.say(257, f'"{self.folder}"')

    def do_CWD(self, name):
        if self.path(name).is_dir():
            self.folder = "/" + os.path.relpath(self.path(name), self.server.root)
            self.say(250, "there")
        else:
            self.say(550, "no such folder")

    def do_QUIT(self, _):
        self.say(221, "bye")
        return False

    def do_EPSV(self, _):
        self.data = socket.create_server(("127.0.0.1", 0))
        self.say(229, f"listening (|||{self.data.getsockname()[1]}|)")

    def do_PASV(self, _):
        self.data = socket.create_server(("127.0.0.1", 0))
        port = self.data.getsockname()[1]
        self.say(227, f"listening (127,0,0,1,{port // 256},{port % 256})")

    def do_ABOR(self, _):
        self.say(226, "nothing to stop")

    def do_REST(self, start):
        self.start = int(start)
        self.say(350, "from there")

    def do_SIZE(self, name):
        path = self.path(name)
        self.say(213, path.stat().st_size) if path.is_file() else self.say(550, "no such file")

    def do_MDTM(self, name):
        if self.server.tells_dates is False:
            self.say(502, "unknown")
        elif self.path(name).is_file():
            date = datetime.fromtimestamp(self.path(name).stat().st_mtime, UTC)
            self.say(213, date.strftime(self.server.tells_dates))
        else:
            self.say(550, "no such file")

    def do_MLSD(self, name):
        if not self.server.lists_as.startswith("mlsd"):
            self.say(502, "unknown")
            return
        follow = os.path.realpath if self.server.lists_as == "mlsd without links" else lambda p: p
        self.list_folder(name, lambda path, size: (
            f"type={kind_of(Path(follow(path)))};size={size};modify=20200101000000; {path.name}"
        ))  # fmt: skip

    def do_LIST(self, name):
        if self.server.lists_as == "windows":
            self.list_folder(name, lambda path, size: (
                f"01-03-26  12:00PM {'<DIR>' if path.is_dir() else size:>20} {path.name}"
            ))  # fmt: skip
            return
        modes = {"file": "-rw-r--r--", "dir": "drwxr-xr-x"}
        self.list_folder(name, lambda path, size: (
            f"{modes.get(kind_of(path), 'lrwxrwxrwx')}   1 me us {size:>9} Jan  3 12:00 {path.name}"
            + (f" -> {os.readlink(path)}" if path.is_symlink() else "")
        ))  # fmt: skip

    def list_folder(self, name, line):
        folder = self.path(name)
        if not folder.is_dir():
            self.say(550, "no such folder")
            return
        lines = [
            line(path, path.stat().st_size if path.exists() else 0) + "\r\n"
            for path in sorted(folder.iterdir())
            if not (self.server.hides_dots and path.name.startswith("."))
        ]
        data = "".join(lines).encode()
        self.send(data[: self.server.lists_to(name)])

    def do_RETR(self, name):
        if not self.path(name).is_file():
            self.say(550, "no such file")
            return None
        data, self.start = self.path(name).read_bytes()[self.start :], 0
        return self.send(data, cut=self.server.cut("RETR", name))

    def send(self, data, cut=False):
        self.say(150, "here it comes")
        connection, _ = self.data.accept()
        self.data.close()
        try:
            connection.sendall(data[: len(data) // 2] if cut else data)
        except OSError:
            cut = True  # the client has enough
        connection.close()
        if cut:
            self.say(426, "the transfer was cut off")
        else:
            self.say(226, "done")

    def do_STOR(self, name):
        if not self.path(name).parent.is_dir():
            self.data.close()
            self.say(550, "no such folder")
            return None
        self.say(150, "go on")
        connection, _ = self.data.accept()
        self.data.close()
        fault = self.server.store_fault(name)
        with connection, self.path(name).open("wb") as file:
            while part := connection.recv(1 << 16):
                file.write(part[:10] if fault else part)
        if fault == "reset":
            return False
        self.say(*fault or (226, "done"))
        return None

    def change(self, work):
        try:
            work()
        except OSError as error:
            self.say(550, error.strerror)
        else:
            self.say(250, "done")

    def do_RNFR(self, name):
        self.old = self.path(name)
        if self.server.renames == "nothing":
            self.say(502, "unknown")
        else:
            self.say(350, "to what")

    def do_RNTO(self, name):
        if self.server.renames == "to what is new" and self.path(name).exists():
            self.say(550, "it exists")
        else:
            self.change(lambda: self.old.replace(self.path(name)))

    def do_DELE(self, name):
        self.change(self.path(name).unlink)

    def do_RMD(self, name):
        self.change(self.path(name).rmdir)

    def do_MKD(self, name):
        try:
            self.path(name).mkdir()
        except OSError as error:
            self.say(550, error.strerror)
        else:
            self.say(257, f'"{name}"')


class Server(socketserver.ThreadingTCPServer):
    """A server with a `url`; `fault` and `cut` are given commands and their arguments.

    A fault is a code, or a code and a text. `hides_dots` leaves names with a dot out of listings,
    which are `lists_as` "mlsd", "mlsd without links", "unix" or "windows". `store_fault` is given
    the name of a file that is sent, and says what to answer after its first bytes, or "reset";
    `lists_to` that of a folder, and says where its listing stops;
    `renames` is to what files are renamed: "all", "to what is new" or "nothing".

    `open` is how many connections there are; `most` is how many there may be, and the code for what
    is beyond that.

    `tells_dates` is how it writes dates, or False if it does not; `logins` are passwords by names,
    or None if it asks for none, and `users` the names that were sent.
    """

    logins = None

    hides_dots = False

    lists_as = "mlsd"

    renames = "all"

    tells_dates = "%Y%m%d%H%M%S"

    most = None

    daemon_threads = True
    allow_reuse_address = True

    def handle_error(self, request, client_address):
        pass

    def local(self, name):
        """Return the path of a file."""
        return Path(self.root + os.path.normpath(name))


@contextmanager
def ftp_server(folder):
    """Serve a folder within a with statement."""
    server = Server(("127.0.0.1", 0), Session)
    server.root, server.commands, server.users = str(folder), [], []
    server.fault, server.cut = lambda *command: None, lambda *command: False
    server.open, server.lock = 0, threading.Lock()
    server.store_fault, server.lists_to = lambda name: None, lambda name: None
    server.url = f"ftp://127.0.0.1:{server.server_address[1]}"
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
