"""A server of this host, whose batches lie in memory that both processes have mapped."""

import functools
import json
import mmap
import os
import socket
import struct
import time
import weakref

import numpy as np

from .servers import Error, dtype_of, fits

PACKET = 1 << 16
KEPT = 4  # batches that the caller may keep; of more it gets copies


class Shared:
    """The server at a Unix socket, or at a name that begins with @."""

    def __init__(self, path, token, patience, ended):
        self._path = "\0" + path[1:] if path.startswith("@") else path
        self._token, self._patience, self._ended = token or "", patience, ended
        self._about = None  # of the first connection

    def describe(self, rank):
        line, self._about = self.connect(rank)
        line.close()
        return self._about

    def asking(self, rank, ahead):
        return _Asking(self, rank, ahead)

    def close(self):
        """Ends nothing: each iteration has a connection of its own."""

    def connect(self, rank):
        """A socket, and what the server has. Asks again while there is none."""
        failing = time.monotonic()
        while True:
            line = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            try:
                line.connect(self._path)
                line.send(json.dumps({"token": self._token, "ticket": rank}).encode())
                about = json.loads(line.recv(PACKET) or '{"ended": true}')
                if "error" in about:
                    raise Error(about["error"])
                if "ended" not in about:
                    fits(about, self._about or about)
                    return line, about
                error = "it has ended"
            except OSError as failed:
                error = failed
            except BaseException:
                line.close()
                raise
            line.close()
            if why := self._ended():
                raise Error(why)
            if time.monotonic() - failing > self._patience:
                raise Error(f"no server has answered for {self._patience} s; {self._path}: {error}")
            time.sleep(0.01)


class _Asking:
    """One connection, which asks and takes without a thread, and has slots of its own."""

    def __init__(self, shared, rank, ahead):
        self._shared, self._rank, self._slots = shared, rank, ahead + KEPT
        self._asked = {}  # tickets of batches that nobody has taken yet, by number
        self._number = 0
        self._packet = bytearray(PACKET)
        self._connect()

    def _connect(self):
        self._line, about = self._shared.connect(self._rank)
        self._free = list(range(self._slots))
        self._memory, self._numbers, self._given = {}, {}, {}  # by slot
        self._answers = {}  # by number
        self._layout, self._where = None, []  # of the last batch: most are alike
        self._columns = [(f["Name"], dtype_of(f["Type"])) for f in about["fields"]]
        for f in about["fields"]:
            ragged = max(1, f.get("RaggedDims", 0)) if f.get("Ragged") else 0
            self._columns += [(f"{f['Name']}.len{dim}", np.dtype(np.int32)) for dim in range(ragged)]
        for number, ticket in self._asked.items():  # of a server before this one
            self._send(number, ticket)

    def _send(self, number, ticket):
        slot = self._free.pop()
        self._numbers[slot] = number
        try:
            self._line.send(b'{"slot": %d, "ticket": %b}' % (slot, ticket))
        except OSError:
            pass  # _receive notices

    def ask(self, ticket):
        self._number += 1
        self._asked[self._number] = ticket
        self._send(self._number, ticket)
        return functools.partial(self._take, self._number)

    def _take(self, number):
        while number not in self._answers:
            self._receive()
        batch, left, after = self._answers.pop(number)
        del self._asked[number]
        if batch is None:
            raise Error(json.loads(after))
        if len(self._free) + len(self._asked) < self._slots - KEPT:
            batch = {name: column.copy() for name, column in batch.items()}
        return batch, left, after

    def _receive(self):
        try:
            size, control, _, _ = self._line.recvmsg_into([self._packet], socket.CMSG_SPACE(4))
        except ConnectionError:
            size = 0
        if not size:
            self._line.close()
            return self._connect()
        slot, left, layout, after = self._packet[:size].split(b" ", 3)
        slot, batch = int(slot), None
        for _, _, file in control:
            (file,) = struct.unpack("i", file)
            self._memory[slot] = mmap.mmap(file, 0)
            os.close(file)
        if layout == b"null":
            self._free.append(slot)
        else:
            batch = self._arrays(slot, layout)
        self._answers[self._numbers.pop(slot)] = batch, int(left), after

    def _arrays(self, slot, layout):
        if layout != self._layout:
            lies = json.loads(layout)
            shapes = lies["shapes"] + [[]] * len(self._columns)
            self._where = [(*column, (lies["samples"], *shape), at) for column, shape, at in zip(self._columns, shapes, lies["at"])]
            self._layout = layout
        whole, free = np.frombuffer(self._memory[slot], np.uint8), self._free
        self._given[slot] = weakref.ref(whole, lambda _: free.append(slot))  # once nobody has its arrays
        return {name: np.ndarray(shape, kind, whole, at) for name, kind, shape, at in self._where}

    def close(self):
        self._line.close()
