"""A server of this host, whose batches lie in memory that both processes have mapped."""

from __future__ import annotations

import collections
import errno
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
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from .wire import VERSION, Error, check, check_ahead, described, dtype_of, fits, speaks

Array = npt.NDArray[Any]

HEAD = struct.Struct("<III")  # length of the body, kind, number
HELLO, CHALLENGE, PROOF, ABOUT, ASK, BATCH, ERROR, RELEASE, WAITING, ALIVE = range(1, 11)
LARGEST = 1 << 24  # bytes of a message
KEPT = 4  # batches that the caller may keep; of more it gets copies
ALIVE_EVERY, SILENT = 5, 10  # seconds: how often a server is asked whether it lives, and how long it may say nothing


class Shared:
    """The server at a Unix socket, or at a name that begins with @."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        token: str | None = None,
        patience: float = 60.0,
        ended: Callable[[], str | None] = lambda: None,
        mapped: Callable[[Array], Callable[[], None] | None] | None = None,
    ) -> None:
        check(token, patience)
        self.path, self._token, self._patience, self.ended = os.fspath(path), token or "", patience, ended
        self.mapped = mapped  # is told of each memory, and returns what undoes that, or None
        self._about: dict[str, Any] | None = None  # of the first connection

    def describe(self, rank: int, world: int) -> dict[str, Any]:
        asking = _Asking(self, rank, world, 1)
        asking.close()
        assert self._about
        return self._about

    def asking(self, rank: int, world: int, ahead: int) -> _Asking:
        check_ahead(ahead)
        return _Asking(self, rank, world, ahead)

    def close(self) -> None:
        """Ends nothing: each asking has a connection of its own."""

    def connect(self, rank: int, world: int, end: float) -> tuple[_Line, dict[str, Any]]:
        """A line, and what the server has. Asks again while there is none."""
        while True:
            line = _Line(min(SILENT, max(0.001, end - time.monotonic())))
            try:
                about = line.begin(self.path, self._token, rank, world)
                fits(about, self._about or about)
                self._about = self._about or about
                return line, about
            except OSError as failed:
                line.close()
                error: Exception = failed
            except (ValueError, KeyError, TypeError) as wrong:
                line.close()
                raise Error(f"{self.path}: this isn't what an nwt server says: {wrong!r}") from wrong
            except BaseException:
                line.close()
                raise
            if why := self.ended():
                raise Error(why)
            if time.monotonic() > end:
                raise self.late(error)
            time.sleep(0.01)

    def late(self, error: Exception | None) -> Error:
        return Error(f"no server has answered for {self._patience} s; {self.path}: {error or 'it says nothing'}")

    def end(self) -> float:
        return time.monotonic() + self._patience


class _Line:
    """A socket, and the messages on it. What fails is an OSError."""

    def __init__(self, seconds: float) -> None:
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.socket.settimeout(seconds)
        self.close = self.socket.close
        self._poll = select.poll()  # select takes no file above 1023
        self._poll.register(self.socket, select.POLLIN)
        self.files: collections.deque[int] = collections.deque()  # in the order of the answers that name them first
        self._got = bytearray()

    def begin(self, path: str, token: str, rank: int, world: int) -> dict[str, Any]:
        try:
            self.socket.connect("\0" + path[1:] if path.startswith("@") else path)
        except OSError as error:
            if error.errno == errno.EPROTOTYPE:
                speaks(f"the server at {path}", 1)
            raise
        nonce = secrets.token_hex(16)
        self.say(HELLO, 0, json.dumps({"version": VERSION, "nonce": nonce, "rank": rank, "world": world}).encode())
        theirs = self._object(CHALLENGE)
        speaks(f"the server at {path}", theirs.get("version", 1))
        nonce += str(theirs.get("nonce"))
        user = struct.unpack("iII", self.socket.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[1]
        if user not in (0, os.geteuid()) and not (token and hmac.compare_digest(str(theirs.get("proof")), _proof(token, "server", nonce))):
            raise Error(f"{path} is user {user}'s, who is neither this user nor root, and doesn't know the token")
        self.say(PROOF, 0, json.dumps({"proof": _proof(token, "client", nonce)}).encode())
        return described(self._object(ABOUT))

    def _object(self, kind: int) -> dict[str, Any]:
        got, _, body = self.hear()
        said = json.loads(body)
        if got == ERROR:
            raise Error(said["error"])
        if got != kind or not isinstance(said, dict):
            raise ValueError(f"a message of kind {got}, not {kind}")
        return said

    def say(self, kind: int, number: int, body: bytes = b"") -> None:
        try:
            self.socket.sendall(HEAD.pack(len(body), kind, number) + body)
        except OSError:
            self.close()  # hear says so

    def ready(self, seconds: float) -> bool:
        if self.socket.fileno() < 0:
            raise OSError("it has ended")
        return bool(self._got or self._poll.poll(1000 * max(0, seconds)))

    def hear(self) -> tuple[int, int, bytes]:
        length, kind, number = HEAD.unpack(self._bytes(HEAD.size))
        if length > LARGEST:
            raise ValueError(f"a message of {length} bytes")
        return kind, number, self._bytes(length)

    def _bytes(self, size: int) -> bytes:
        while len(self._got) < size:
            data, files, flags, _ = socket.recv_fds(self.socket, 1 << 16, 4)
            self.files += files
            if flags & socket.MSG_CTRUNC:
                raise Error("shared memory: this process may not open more files (ulimit -n)")
            if not data:
                raise OSError("it has ended")
            self._got += data
        taken = bytes(self._got[:size])
        del self._got[:size]
        return taken


def _proof(token: str, who: str, nonces: str) -> str:
    return hmac.new(token.encode(), (who + nonces).encode(), "sha256").hexdigest()


class _Asking:
    """One connection, which asks and takes without a thread."""

    def __init__(self, shared: Shared, rank: int, world: int, ahead: int) -> None:
        self._shared, self._rank = shared, {"rank": rank, "world": world, "version": VERSION}
        self._state: dict[str, Any] | None = None
        self._ticket = b""
        self._number = 0
        self._asked: dict[int, bytes] = {}  # tickets without an answer, by number
        self._answers: dict[int, Any] = {}  # that nobody took
        self._line: Any = None
        self._undo: list[Callable[[], None]] = []
        self._connect(shared.end())

    def _connect(self, end: float) -> None:
        self._forget()
        self._line, about = self._shared.connect(self._rank["rank"], self._rank["world"], end)
        self._memory: dict[int, mmap.mmap] = {}  # by number of file
        self._given: dict[int, Any] = {}
        self._free: collections.deque[int] = collections.deque()  # files that nobody has
        self._layout: bytes | None = None  # of the last batch: most are alike
        self._where: list[Any] = []
        self._columns = [(f["Name"], dtype_of(f["Type"])) for f in about["fields"]]
        for f in about["fields"]:
            self._columns += [(f"{f['Name']}.len{dim}", np.dtype(np.int32)) for dim in range(f.get("RaggedDims", 0))]
        for number, ticket in self._asked.items():  # of a server before this one
            self._line.say(ASK, number, ticket)

    def ask(self, state: dict[str, Any], number: int, partial: bool = False) -> Callable[[], Any]:
        if state is not self._state:
            self._state, self._ticket = state, json.dumps({**state, **self._rank}).encode()[:-1]
        self._number += 1
        ticket = b'%b, "batch": %d, "partial": %b}' % (self._ticket, number, b"true" if partial else b"false")
        self._asked[self._number] = ticket
        self._line.say(ASK, self._number, ticket)
        return functools.partial(self._take, self._number)

    def _take(self, number: int) -> Any:
        end, self._said = self._shared.end(), 0.0
        while number not in self._answers:
            try:
                self._receive(number, end)
            except OSError:
                if why := self._shared.ended():
                    raise Error(why) from None
                self._connect(end)
            except (ValueError, KeyError, TypeError, IndexError) as error:
                raise Error(f"{self._shared.path}: this isn't what an nwt server says: {error!r}") from error
        batch, left, after, bad = self._answers.pop(number)
        if batch is None:
            raise Error(after)
        if len(self._given) - len(self._free) - len(self._answers) > KEPT:
            batch = {name: column.copy() for name, column in batch.items()}
        return batch, left, after, bad

    def _receive(self, number: int, end: float) -> None:
        line, wait = self._line, 0.0
        while self._free:
            line.say(RELEASE, self._release(self._free.popleft()))
        while not line.ready(wait):
            now = time.monotonic()
            if now >= end:
                raise self._shared.late(None)
            if not self._said:
                self._heard = self._said = now - ALIVE_EVERY
            if now - self._heard > SILENT + ALIVE_EVERY:
                raise OSError("it says nothing")
            if now >= self._said + ALIVE_EVERY:
                line.say(WAITING, number)
                self._said = now
            wait = min(self._said + ALIVE_EVERY, end) - now
        kind, number, body = line.hear()
        self._heard = time.monotonic()
        if kind == BATCH and number in self._asked:
            self._answers[number] = self._batch(*body.split(b"\n"))
            del self._asked[number]
        elif kind == ERROR:
            said = json.loads(body)
            if said["temporary"] and number in self._asked:
                time.sleep(0.05)
                line.say(ASK, number, self._asked[number])
            elif number in self._asked:
                del self._asked[number]
                self._answers[number] = None, 0, said["error"], []
            else:
                raise Error(said["error"])
        elif kind != ALIVE:
            raise ValueError(f"a message of kind {kind} about {number}")

    def _release(self, file: int) -> int:
        del self._given[file]
        return file

    def _batch(self, where: bytes, layout: bytes, after: bytes, bad: bytes) -> Any:
        file, left = map(int, where.split())
        if file not in self._memory:
            fd = self._line.files.popleft()
            self._memory[file] = mmap.mmap(fd, 0)
            os.close(fd)
            if self._shared.mapped and (undo := self._shared.mapped(np.frombuffer(self._memory[file], np.uint8))):
                self._undo.append(undo)
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

    def _forget(self) -> None:
        if self._line:
            self._line.close()
        for undo in self._undo:
            undo()
        self._undo = []

    close = _forget
