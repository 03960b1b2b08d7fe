"""A server on this host, whose batches lie in memory that both processes have mapped."""

from __future__ import annotations

import collections
import contextlib
import itertools
import json
import mmap
import os
import queue
import socket
import struct
import threading
import time
import weakref
from collections.abc import Callable
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from ._children import OBJECTS
from ._wire import VERSION, Error, described, dtype_of, fits, told

HEAD = struct.Struct("<III")  # length of the body, kind, number
HELLO, DROP, MORE, ABOUT, ASK, BATCH, ERROR, RELEASE, WAITING, INDICES = range(1, 11)
ANSWERS = {HELLO: ABOUT, MORE: MORE, ASK: BATCH, INDICES: INDICES}
FIRST = 2**31  # the number of a connection's hello
KEPT = 4  # batches that the caller may keep; of more it gets copies
TICK = 1.0  # seconds between two looks at the time that is left


def dial(path: str) -> Socket:
    """Connects with this user's, or root's, server at the path of a Unix socket."""
    own = socket.socket(socket.AF_UNIX)
    try:
        own.connect(path)
        user = struct.unpack("iII", own.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[1]
        with open("/proc/sys/kernel/overflowuid") as overflow:  # it stands for all whom the kernel can't name here
            if user not in (0, os.geteuid()) or user == int(overflow.read()):
                raise Error(f"{path} is user {user}'s, who is neither this user nor root")
        return Socket(own)
    except BaseException:
        own.close()
        raise


class Shared:
    """A server on this host. One thread at a time asks it; any thread may close it."""

    def __init__(
        self,
        where: str,
        start: Callable[[int], Any] | None = None,
        *,
        patience: float = 60.0,
        mapped: Callable[[npt.NDArray[Any]], Callable[[], None] | None] = lambda _: None,
        waits: Callable[[], None] = lambda: None,
    ) -> None:
        self._where, self._patience = where, patience  # the path of its socket, unless start starts it
        self._start = start  # is told how many batches came; returns a connection and what the server is to do, for which it has any time
        self._waits = waits  # is called while no message comes; an OSError ends the connection
        self._mapped = mapped  # is told of each memory, and returns what undoes that, or None
        self.about: dict[str, Any] = {}  # what the first server has
        self._lock, self._closed = threading.Lock(), False
        self._line: _Line | None = None
        self._place: dict[str, Any] = {}
        self._numbers, self.came = itertools.count(), 0  # of requests; how many batches came
        self._asked: dict[int, tuple[int, bytes]] = {}  # requests without an answer, by number
        self._answers: dict[int, Any] = {}  # that nobody took

    def describe(self, rank: int, world: int) -> dict[str, Any]:
        self._place = {"version": VERSION, "rank": rank, "world": world}
        return dict(self._answer(HELLO, json.dumps(self._place).encode()))

    def more(self, name: str) -> bytes:
        """What the server has by this name and doesn't send unasked, such as the list of files."""
        return bytes(self._answer(MORE, name.encode()))

    def indices(self, ticket: bytes) -> bytes:
        return bytes(self._answer(INDICES, ticket))

    def asking(self, ahead: int) -> _Asking:
        return _Asking(self)

    def drop(self, numbers: set[int]) -> None:
        """Forgets requests, and their answers."""
        for number in numbers:
            self._asked.pop(number, None)
            self._answers.pop(number, None)
        if (line := self._line) and numbers:
            line.say(DROP, 0, json.dumps(list(numbers)).encode())

    def close(self) -> None:
        self._closed = True
        if line := self._line:
            line.close()

    def ask(self, kind: int, body: bytes) -> int:
        number = 1 + next(self._numbers) % (FIRST - 1)
        self._asked[number] = kind, body
        if (line := self._line) and line.about:
            line.say(kind, number, body)
        return number

    def _answer(self, kind: int, body: bytes) -> Any:
        with self._lock:
            return self._wait(self.ask(kind, body))

    def take(self, number: int) -> Any:
        with self._lock:
            batch, left, after, bad = self._wait(number)
            if self._line and self._line.kept() - len(self._answers) > KEPT:
                rows = batch.get(OBJECTS, ())  # mostly empty, of megabytes each
                batch = {name: column.copy() for name, column in batch.items() if name != OBJECTS} | (
                    {OBJECTS: [row[:n].copy() for row, n in zip(rows, batch[OBJECTS + ".len0"])]} if len(rows) else {}
                )
            return batch, left, after, bad

    def _wait(self, number: int) -> Any:
        left, looked, told, why = self._patience, time.monotonic(), None, ""
        tick = min(TICK, left / 4)
        while number not in self._answers:
            if self._closed:
                self._hang_up()
                raise Error("it is closed")
            if self._start and not self._line:
                self._connect()  # that the server can't be started is no passing trouble
            try:
                line = self._line or self._connect()
                if line is not told and line.about and not line.came.qsize():
                    line.say(WAITING, number)
                    told = line
                if said := self._hear(line, min(tick, left)):
                    why, told = said, None
            except OSError as error:
                why = str(error)
                self._hang_up()
                time.sleep(0.01)
            except Error:  # of the connection: those of requests are answers
                self._hang_up()
                raise
            now = time.monotonic()
            if not (self._start and self._line and not self._line.about):
                left -= min(now - looked, 2 * tick)  # this process may have been stopped
            looked = now
            if left <= 0 and number not in self._answers:
                if self._start and not why:  # it loads
                    hint = "if your code hangs in a sample, timeout= makes it an error; if samples take long, patience= waits longer"
                    raise Error(f"no batch has come for {self._patience} s: {hint}")
                raise Error(f"no server has answered for {self._patience} s; {self._where}: {why or 'it says nothing'}")
        answer = self._answers.pop(number)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def _hang_up(self) -> None:
        if line := self._line:
            self._line = None
            line.close()

    def _connect(self) -> _Line:
        link, document = self._start(self.came) if self._start else (dial(self._where), {})
        line = self._line = _Line(link, self._mapped)
        line.say(HELLO, FIRST, json.dumps({**document, **self._place}).encode())
        return line

    def _hear(self, line: _Line, seconds: float) -> str | None:
        """Takes a message. Returns what is to be told if nothing else comes."""
        try:
            kind, number, body, memory = line.came.get(timeout=max(0, seconds))
        except queue.Empty:
            self._waits()
            return None
        try:
            answer: Any = body
            if isinstance(memory, Exception):
                try:
                    raise memory
                finally:
                    del memory  # or its traceback would keep it, and the line
            if kind == ERROR:
                said = json.loads(body)
                answer = told(said["error"])
                if number in (0, FIRST):
                    self._answers.update(dict.fromkeys(self._asked, answer))
                    self._asked.clear()
                    self._hang_up()
                elif said["temporary"] and number in self._asked:
                    time.sleep(0.05)
                    line.say(self._asked[number][0], number, self._asked[number][1])
                    return str(answer)
            elif kind == BATCH:
                answer = line.batch(memory, *body.split(b"\n"))
            elif kind == ABOUT:
                answer = described(json.loads(body))
                if number == FIRST:
                    line.begin(answer)
                    self.about = self.about or answer
                    fits(answer, self.about)
                    for again, (asks, what) in self._asked.items():
                        line.say(asks, again, what)
            elif kind not in (MORE, INDICES):
                raise ValueError(f"a message of kind {kind} about {number}")
            if asked := self._asked.pop(number, None):
                if kind not in (ERROR, ANSWERS[asked[0]]):
                    raise ValueError(f"a message of kind {kind} answers one of kind {asked[0]}")
                self._answers[number] = answer
                self.came += kind == BATCH
            return None
        except (ValueError, KeyError, TypeError, IndexError, MemoryError) as error:
            raise Error(f"{self._where}: this isn't what an nwt server says: {error!r}") from error


class _Asking:
    """Asks for batches, until it is closed."""

    def __init__(self, of: Shared) -> None:
        self._of = of
        self._open: set[int] = set()  # requests that nobody took the answer of

    def ask(self, ticket: bytes) -> Callable[[], Any]:
        asked = self._of.ask(ASK, ticket)
        self._open.add(asked)

        def take() -> Any:
            batch = self._of.take(asked)
            self._open.discard(asked)
            return batch

        return take

    def close(self) -> None:
        self._of.drop(self._open)
        self._open = set()


class Socket:
    """A connection through which file descriptors may come too."""

    def __init__(self, own: socket.socket) -> None:
        self._own, self.send, self.into = own, own.sendall, own.recv_into

    def head(self) -> tuple[bytes, list[int]]:
        head, files, flags, _ = socket.recv_fds(self._own, HEAD.size, 4)
        if flags & socket.MSG_CTRUNC:
            raise Error("shared memory: this process may not open more files (ulimit -n)")
        return head, files

    def end(self) -> None:
        self._own.shutdown(socket.SHUT_RDWR)  # for the other end, and for forks of this process

    def close(self) -> None:
        self._own.close()


class Pipes:
    """A connection of two pipes, where there are no such sockets."""

    def __init__(self, to: IO[bytes], from_: IO[bytes]) -> None:
        self.send, self.end, self.close = to.write, to.close, from_.close
        self.into = from_.readinto  # type: ignore[attr-defined]

    def head(self) -> tuple[bytes, list[int]]:
        head = bytearray(HEAD.size)
        return bytes(head[: self.into(head)]), []


class _Memory(weakref.ref[Any]):
    """A file's memory. Once nobody has its arrays, it is appended to a deque: no signal is handled in that."""

    __slots__ = ("file",)
    file: int


class _Line:
    """A connection, and the memory that came over it. A thread reads: no interrupt tears a message."""

    def __init__(self, link: Any, mapped: Callable[[npt.NDArray[Any]], Callable[[], None] | None]) -> None:
        self._link, self._mapped, self._undo = link, mapped, contextlib.ExitStack()
        self.came: queue.SimpleQueue[Any] = queue.SimpleQueue()  # messages, and the memory of those that bring some
        self.about: dict[str, Any] = {}  # empty until the server has said hello
        self._memory: dict[int, mmap.mmap] = {}  # by number of file
        self._told: set[int] = set()  # the files that mapped was told of
        self._given: dict[int, _Memory] = {}
        self._free: collections.deque[_Memory] = collections.deque()  # of files that nobody has
        self._layout: bytes | None = None  # of the last batch: most are alike
        self._where: list[Any] = []
        self._thread = threading.Thread(target=self._read, name="nwt-read", daemon=True)
        self._thread.start()

    def begin(self, about: dict[str, Any]) -> None:
        self.about, fields = about, about["fields"]
        self._columns = [(f["Name"], dtype_of(f["Type"])) for f in fields]
        self._columns += [(f"{f['Name']}.len{dim}", dtype_of("int32")) for f in fields for dim in range(f.get("RaggedDims", 0))]

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._link.end()
        if self._thread is not threading.current_thread():
            self._thread.join(1)
        self._undo.close()

    def say(self, kind: int, number: int, body: bytes = b"") -> None:
        with contextlib.suppress(OSError, ValueError):  # the thread says so
            while self._free:
                file = self._free.popleft().file
                del self._given[file]
                self._link.send(HEAD.pack(0, RELEASE, file))
            self._link.send(HEAD.pack(len(body), kind, number) + body)

    def _read(self) -> None:
        files: list[int] = []
        try:
            while True:
                head, files = self._link.head()
                size, kind, number = HEAD.unpack(head + bytes(self._bytes(HEAD.size - len(head))))
                body, memory = bytes(self._bytes(size)), None
                if kind == BATCH:
                    file, _, rest = map(int, body.split(maxsplit=3)[:3])
                    if files:
                        self._memory[file] = mmap.mmap(files[0], 0)
                    if file:
                        memory = np.frombuffer(self._memory[file], np.uint8)
                        self._given[file] = given = _Memory(memory, self._free.append)
                        given.file = file
                    else:
                        memory = self._bytes(rest)
                while files:
                    os.close(files.pop())
                self.came.put((kind, number, body, memory))
                del memory
        except Exception as error:
            for file in files:
                os.close(file)
            self.came.put((0, 0, b"", error.with_traceback(None)))  # or it would keep this line
        finally:
            self._link.close()

    def _bytes(self, size: int) -> npt.NDArray[Any]:
        whole, n = np.empty(size, np.uint8), 0
        while n < size:
            if not (more := self._link.into(whole[n:])):
                raise OSError("it has ended")
            n += more
        return whole

    def batch(self, memory: Any, where: bytes, layout: bytes, after: bytes, bad: bytes) -> Any:
        """What an answer says. Its arrays stay where they are."""
        file, left, _ = map(int, where.split())
        if file and file not in self._told:
            if undo := self._mapped(np.frombuffer(self._memory[file], np.uint8)):
                self._undo.callback(undo)
            self._told.add(file)
        if layout != self._layout:
            lies = json.loads(layout)
            if min(lies["at"]) < 0:
                raise ValueError(layout)
            shapes = lies["shapes"] + [[]] * len(self._columns)
            self._where = [(*column, (lies["samples"], *shape), at) for column, shape, at in zip(self._columns, shapes, lies["at"], strict=False)]
            self._layout = layout
        batch = {name: np.ndarray(shape, kind, memory, at) for name, kind, shape, at in self._where}
        return batch, left, json.loads(after), json.loads(bad)

    def kept(self) -> int:
        """How many batches came and are still in use."""
        return len(self._given) - len(self._free)
