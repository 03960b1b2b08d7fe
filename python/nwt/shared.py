"""A server on this host, whose batches lie in memory that both processes have mapped."""

from __future__ import annotations

import collections
import contextlib
import functools
import hmac
import json
import mmap
import os
import secrets
import select
import socket
import struct
import time
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from ._wire import VERSION, Error, described, dtype_of, fits, speaks

HEAD = struct.Struct("<III")  # length of the body, kind, number
HELLO, CHALLENGE, PROOF, ABOUT, ASK, BATCH, ERROR, RELEASE, WAITING, ALIVE = range(1, 11)
LARGEST = 1 << 24  # bytes of a message
KEPT = 4  # batches that the caller may keep; of more it gets copies
ALIVE_EVERY, SILENT = 5, 10  # seconds: how often a server is asked whether it lives, and how long it may say nothing


class Shared:
    """The server at a Unix socket: at a path, or at a name that begins with @."""

    def __init__(
        self,
        path: str,
        *,
        token: str | None = None,
        patience: float = 60.0,
        ended: Callable[[], str | None] = lambda: None,
        mapped: Callable[[npt.NDArray[Any]], Callable[[], None] | None] = lambda _: None,
    ) -> None:
        self.path, self.token, self._patience, self.ended = path, token or "", patience, ended
        self.mapped = mapped  # is told of each memory, and returns what undoes that, or None
        self._about: dict[str, Any] | None = None  # of the first connection

    def describe(self, rank: int, world: int) -> dict[str, Any]:
        line = self.connect(rank, world, self.end())
        line.close()
        return line.about

    def asking(self, rank: int, world: int, ahead: int) -> _Asking:
        return _Asking(self, rank, world)

    def close(self) -> None:
        """Does nothing: each _Asking closes its own connection."""

    def connect(self, rank: int, world: int, end: float) -> _Line:
        """Returns a connection. Tries until the time is `end`, and then raises Error."""
        while True:
            line = _Line(self, max(0.001, min(SILENT, end - time.monotonic())))
            try:
                line.begin(rank, world)
                self._about = self._about or line.about
                fits(line.about, self._about)
                return line
            except OSError as error:
                line.close()
                said = str(error)
            except BaseException:
                line.close()
                raise
            if why := self.ended():
                raise Error(why)
            if time.monotonic() > end:
                raise self.late(said)
            time.sleep(0.01)

    def late(self, said: str) -> Error:
        return Error(f"no server has answered for {self._patience} s; {self.path}: {said}")

    def end(self) -> float:
        return time.monotonic() + self._patience


class _Line:
    """A connection, and the memory that came over it. A failed connection is an OSError."""

    def __init__(self, of: Shared, seconds: float) -> None:
        self._of, self._undo = of, contextlib.ExitStack()
        self._socket = self._undo.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
        self._socket.settimeout(seconds)
        self._poll = select.poll()
        self._poll.register(self._socket, select.POLLIN)
        self._got = bytearray()
        self._files: collections.deque[int] = collections.deque()  # in the order of the answers that name them first
        self._memory: dict[int, mmap.mmap] = {}  # by number of file
        self._given: dict[int, Any] = {}
        self._free: collections.deque[int] = collections.deque()  # files that nobody has
        self._layout: bytes | None = None  # of the last batch: most are alike
        self._where: list[Any] = []

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)  # a thread that waits for it wakes up
        self._undo.close()

    def begin(self, rank: int, world: int) -> None:
        path, token, nonce = self._of.path, self._of.token, secrets.token_hex(16)
        self._socket.connect("\0" + path[1:] if path.startswith("@") else path)
        theirs = self._answer(CHALLENGE, HELLO, {"version": VERSION, "nonce": nonce, "rank": rank, "world": world})
        speaks(f"the server at {path}", theirs.get("version", 1))
        nonce += str(theirs.get("nonce"))
        user = struct.unpack("iII", self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[1]
        if user not in (0, os.geteuid()) and not (token and hmac.compare_digest(str(theirs.get("proof")), _proof(token, "server", nonce))):
            raise Error(f"{path} is user {user}'s, who is neither this user nor root, and doesn't know the token")
        with _understood(path):
            self.about = described(self._answer(ABOUT, PROOF, {"proof": _proof(token, "client", nonce)}))
            fields = self.about["fields"]
            self._columns = [(f["Name"], dtype_of(f["Type"])) for f in fields]
            self._columns += [(f"{f['Name']}.len{dim}", dtype_of("int32")) for f in fields for dim in range(f.get("RaggedDims", 0))]

    def _answer(self, kind: int, asks: int, what: dict[str, Any]) -> dict[str, Any]:
        self.say(asks, 0, json.dumps(what).encode())
        with _understood(self._of.path):
            got, _, body = self.hear()
            said = json.loads(body)
            if got == ERROR:
                raise Error(said["error"])
            if got != kind or not isinstance(said, dict):
                raise ValueError(f"a message of kind {got}, not {kind}")
            return said

    def say(self, kind: int, number: int, body: bytes = b"") -> None:
        try:
            self._socket.sendall(HEAD.pack(len(body), kind, number) + body)
        except OSError:
            self._socket.close()  # hear says so

    def ready(self, seconds: float) -> bool:
        """Whether something comes within so many seconds."""
        while self._free:
            self.say(RELEASE, file := self._free.popleft())
            del self._given[file]
        if self._socket.fileno() < 0:
            raise OSError("it has ended")
        return bool(self._got or self._poll.poll(max(0, seconds * 1000)))

    def hear(self) -> tuple[int, int, bytes]:
        length, kind, number = HEAD.unpack(self._bytes(HEAD.size))
        if length > LARGEST:
            raise ValueError(f"a message of {length} bytes")
        return kind, number, self._bytes(length)

    def _bytes(self, size: int) -> bytes:
        while len(self._got) < size:
            data, files, flags, _ = socket.recv_fds(self._socket, 1 << 16, 4)
            self._files += files
            if flags & socket.MSG_CTRUNC:
                raise Error("shared memory: this process may not open more files (ulimit -n)")
            if not data:
                raise OSError("it has ended")
            self._got += data
        taken = bytes(self._got[:size])
        del self._got[:size]
        return taken

    def batch(self, where: bytes, layout: bytes, after: bytes, bad: bytes) -> Any:
        """What an answer says. Its arrays stay where they are, in the shared memory."""
        file, left = map(int, where.split())
        if file not in self._memory:
            fd = self._files.popleft()
            self._memory[file] = mmap.mmap(fd, 0)
            os.close(fd)
            if undo := self._of.mapped(np.frombuffer(self._memory[file], np.uint8)):
                self._undo.callback(undo)
        if layout != self._layout:
            lies = json.loads(layout)
            if min(lies["at"]) < 0:
                raise ValueError(layout)
            shapes = lies["shapes"] + [[]] * len(self._columns)
            self._where = [(*column, (lies["samples"], *shape), at) for column, shape, at in zip(self._columns, shapes, lies["at"], strict=False)]
            self._layout = layout
        whole, free = np.frombuffer(self._memory[file], np.uint8), self._free
        batch = {name: np.ndarray(shape, kind, whole, at) for name, kind, shape, at in self._where}
        self._given[file] = weakref.ref(whole, lambda _: free.append(file))  # once nobody has its arrays
        return batch, left, after, [] if bad == b"[]" else json.loads(bad)

    def kept(self) -> int:
        """How many batches came and are still in use."""
        return len(self._given) - len(self._free)


@contextlib.contextmanager
def _understood(path: str) -> Iterator[None]:
    try:
        yield
    except (ValueError, KeyError, TypeError, IndexError) as error:
        raise Error(f"{path}: this isn't what an nwt server says: {error!r}") from error


def _proof(token: str, who: str, nonces: str) -> str:
    return hmac.new(token.encode(), (who + nonces).encode(), "sha256").hexdigest()


class _Asking:
    """Asks for batches over one connection, without a thread."""

    def __init__(self, shared: Shared, rank: int, world: int) -> None:
        self._shared, self._rank = shared, {"rank": rank, "world": world, "version": VERSION}
        self._state: dict[str, Any] | None = None
        self._ticket = b""
        self._number = 0
        self._asked: dict[int, bytes] = {}  # tickets without an answer, by number
        self._answers: dict[int, Any] = {}  # that nobody took
        self._line = shared.connect(rank, world, shared.end())
        self._waits = 0  # for the batch that is waited for

    def ask(self, state: dict[str, Any], number: int) -> Callable[[], Any]:
        if state is not self._state:
            self._state, self._ticket = state, json.dumps({**state, **self._rank}).encode()[:-1]
        self._number += 1
        ticket = b'%b, "batch": %d, "partial": true}' % (self._ticket, number)
        self._asked[self._number] = ticket
        self._line.say(ASK, self._number, ticket)
        return functools.partial(self._take, self._number)

    def _take(self, number: int) -> Any:
        end, self._waits = self._shared.end(), 0
        while number not in self._answers:
            try:
                with _understood(self._shared.path):
                    self._receive(number, end)
            except OSError:
                if why := self._shared.ended():
                    raise Error(why) from None
                self.close()
                self._line, self._waits = self._shared.connect(self._rank["rank"], self._rank["world"], end), 0
                for asked, ticket in self._asked.items():
                    self._line.say(ASK, asked, ticket)
        batch, left, after, bad = self._answers.pop(number)
        if batch is None:
            raise Error(after)
        if self._line.kept() - len(self._answers) > KEPT:
            batch = {name: column.copy() for name, column in batch.items()}
        return batch, left, after, bad

    def _receive(self, number: int, end: float) -> None:
        line = self._line
        while not line.ready(min(ALIVE_EVERY if self._waits else 0, end - time.monotonic())):
            if time.monotonic() >= end:
                raise self._shared.late("it says nothing")
            if self._waits * ALIVE_EVERY > SILENT:
                raise OSError("it says nothing")
            line.say(WAITING, number)
            self._waits += 1
        kind, got, body = line.hear()
        self._waits = min(self._waits, 1)
        if kind == BATCH and got in self._asked:
            self._answers[got] = line.batch(*body.split(b"\n"))
            del self._asked[got]
        elif kind == ERROR:
            said = json.loads(body)
            if got not in self._asked:
                raise Error(said["error"])
            if said["temporary"]:
                time.sleep(0.05)
                line.say(ASK, got, self._asked[got])
            else:
                del self._asked[got]
                self._answers[got] = None, 0, said["error"], []
        elif kind != ALIVE:
            raise ValueError(f"a message of kind {kind} about {got}")

    def close(self) -> None:
        self._line.close()
