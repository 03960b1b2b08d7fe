"""Asks servers for batches over Arrow Flight, and makes NumPy arrays of their answers."""

from __future__ import annotations

import atexit
import concurrent.futures
import ctypes
import importlib
import json
import os
import queue
import re
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from ._wire import VERSION, Error, described, dtype_of, fits, told

LARGEST = 2**31 - 2**20  # bytes of a message of gRPC

LONGEST = 32.0  # seconds for which a server that doesn't answer isn't asked, if others do

OPTIONS = [
    ("grpc.keepalive_time_ms", 7_000),  # a server that is stopped is noticed after 14 s
    ("grpc.keepalive_timeout_ms", 7_000),
    ("grpc.http2.ping_timeout_ms", 7_000),
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.min_reconnect_backoff_ms", 5_000),  # how long a connection may take to be made
    ("grpc.max_reconnect_backoff_ms", 2_000),
    ("grpc.lb_policy_name", "round_robin"),  # of a name with several addresses
    ("grpc.enable_http_proxy", 0),  # of the environment
]


_live: dict[Any, Any] = {}  # clients and calls that go on, and whose they are


def _keep() -> None:
    # Freeing them in a fork, where the threads of gRPC are missing, would end the process.
    for one in list(_live):
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(one))


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_keep)


class _Memory:
    """A buffer that nothing else uses, so its array may be written to."""

    def __init__(self, buffer: Any) -> None:
        self.buffer = buffer  # kept as long as the array is
        self.__array_interface__ = {"data": (buffer.address, False), "typestr": "|u1", "shape": (buffer.size,), "version": 3}


def arrays(record: Any) -> dict[str, npt.NDArray[Any]]:
    """The columns of a record batch as arrays, by name, without copies."""
    batch = {}
    for field, column in zip(record.schema, record.columns, strict=True):
        shape = tuple(getattr(field.type, "shape", ()))
        name = (field.metadata or {}).get(b"nwt.type", b"int32")  # lengths have no type of nwt's
        batch[field.name] = np.ndarray((record.num_rows, *shape), dtype_of(name.decode()), np.asarray(_Memory(column.buffers()[-1])))
    return batch


def reason(error: BaseException) -> str:
    """What the server said, without what Arrow and gRPC add to it."""
    text = str(error).split("gRPC client debug context")[0].split(". Client context")[0]
    return text.split("with message: ")[-1].strip(" .")


def location(address: str, tls: Any) -> str:
    """The URI of an address, for gRPC."""
    host, _, port = address.rpartition(":")
    if "://" in address or address.startswith("unix:"):
        raise ValueError(f"addresses: {address!r}: must be host:port, or shared:PATH for a server of this host")
    if ":" in host and not host.startswith("["):
        raise ValueError(f"addresses: {address!r}: an IPv6 address must be in brackets: [host]:port, such as [::1]:7474")
    if not host or not port.isdigit():
        raise ValueError(f"addresses: {address!r}: must be host:port, such as {host or 'host1'}:7474")
    return f"{'grpc+tls' if tls else 'grpc+tcp'}://{address}"


def _flight() -> Any:
    try:
        return importlib.import_module("pyarrow.flight")
    except ImportError as error:
        raise ImportError(f"{error}: servers that aren't asked by shared:PATH need pip install nwt[flight]") from error


class Server:
    """The server at one address."""

    def __init__(self, address: str, token: str | None, tls: Any) -> None:
        self.address, self.under_way = address, 0
        self.failed, self.pause, self.why = 0.0, 0.0, ""  # when, for how long it isn't asked then, and why; 0: it answers
        roots = None
        if isinstance(tls, (str, os.PathLike)):
            with open(tls, "rb") as file:
                roots = file.read()
        self._flight, self._headers = _flight(), [(b"authorization", b"Bearer " + token.encode())] if token else []
        self.client = self._flight.FlightClient(location(address, tls), tls_root_certs=roots, generic_options=OPTIONS)
        _live[self.client] = self

    def _options(self, seconds: float) -> Any:
        return self._flight.FlightCallOptions(headers=self._headers, timeout=max(0.001, seconds))

    def describe(self, rank: int, world: int, seconds: float) -> dict[str, Any]:
        path = self._flight.FlightDescriptor.for_path(str(rank), str(world), str(VERSION))
        about = described(json.loads(self.client.get_flight_info(path, self._options(seconds)).app_metadata))
        if about.get("bytes", 0) > LARGEST:
            raise Error(
                f"a batch of server {about['server']} takes {about['bytes']} bytes, and gRPC at most {LARGEST}: "
                "make its batches smaller, or take them in shared memory (shared:PATH)"
            )
        return about

    def indices(self, ticket: bytes, seconds: float) -> bytes:
        (answer,) = self.client.do_action(self._flight.Action("indices", ticket), self._options(seconds))
        return bytes(answer.body)

    def close(self) -> None:
        self.client.close()
        _live.pop(self.client, None)

    def get(self, ticket: bytes, about: dict[str, Any], asking: _Asking, seconds: float) -> Any:
        """A batch, how many batches follow, the state after the batch, and its bad samples."""
        call = self.client.do_get(self._flight.Ticket(ticket), self._options(seconds))
        _live[call] = asking
        try:
            if asking.stopped.is_set():
                call.cancel()
            chunk = call.read_chunk()
        finally:
            del _live[call]
        answer = json.loads(bytes(chunk.app_metadata))
        fits(answer, about)
        bad = [{**one, "error": f"on server {answer['server']}: {one['error']}"} for one in answer.get("bad") or []]
        return arrays(chunk.data), answer["left"], answer["after"], bad


class Servers:
    """Servers that serve the same batches. Any number of threads may ask them."""

    def __init__(self, addresses: list[str], *, token: str | None = None, tls: Any = None, patience: float = 60.0) -> None:
        flight = _flight()
        self._passing = flight.FlightUnavailableError, flight.FlightTimedOutError, flight.FlightCancelledError
        self._wrong = flight.FlightError, OSError, ValueError, KeyError, TypeError
        self._servers = [Server(a, token, tls) for a in addresses]
        self._patience, self._changed = patience, threading.Condition()
        self._closed = threading.Event()
        self.close = weakref.finalize(self, _close, self._closed, self._servers, os.getpid())
        self.about: dict[str, Any] = {}  # what the first to answer has

    def describe(self, rank: int, world: int) -> dict[str, Any]:
        self.about = self._once(lambda server, seconds: server.describe(rank, world, seconds))
        return self.about

    def indices(self, ticket: bytes) -> bytes:
        text: bytes = self._once(lambda server, seconds: server.indices(ticket, seconds))
        return text

    def _once(self, what: Callable[[Server, float], Any]) -> Any:
        asking = _Asking(self, 1)
        try:
            return asking.call(what)()
        finally:
            asking.close()

    def asking(self, ahead: int) -> _Asking:
        return _Asking(self, ahead)

    def ask(self, what: Callable[[Server, float], Any], stopped: threading.Event) -> Any:
        """Calls `what` with one server after another, the least busy first, until one answers."""
        end = time.monotonic() + self._patience
        while True:
            server, seconds = self._take(stopped, end)
            pause = server.pause
            try:
                if pause:
                    server.describe(0, 1, min(2.0, seconds))  # if it still doesn't answer, that costs no more than this
                    server.pause = 0.0
                return what(server, seconds)
            except self._passing as error:
                server.failed, server.pause = time.monotonic(), min(2 * pause or 0.05, LONGEST)
                server.why = f"{server.address}: {reason(error)}"
                if re.search("certificate.verify.failed|not in peer certificate|wrong.version.number", server.why, re.IGNORECASE) and not self.about:
                    raise Error(server.why) from error
            except self._wrong as error:
                raise told(f"{server.address}: {reason(error)}") from error
            finally:
                with self._changed:
                    server.under_way -= 1
                    self._changed.notify_all()

    def _take(self, stopped: threading.Event, end: float) -> tuple[Server, float]:
        """The server to ask, and how many seconds it has for its answer."""
        with self._changed:
            while True:
                now = time.monotonic()
                if stopped.is_set() or self._closed.is_set():
                    raise Error("the epoch was given up, or the loader is closed")
                if now >= end:
                    last = max(self._servers, key=lambda s: s.failed)
                    raise Error(f"no server has answered for {self._patience} s; {last.why or 'none was free'}")
                most = LONGEST if any(not s.pause for s in self._servers) else 1.0
                # one request at a time tries a server that didn't answer
                if free := [s for s in self._servers if not s.pause or not s.under_way and now >= s.failed + min(s.pause, most)]:
                    server = min(free, key=lambda s: s.under_way)
                    server.under_way += 1
                    return server, end - now
                self._changed.wait(min(end - now, 0.05))


def _close(closed: threading.Event, servers: list[Server], pid: int) -> None:
    """Ends what Servers has begun. A call that failed after Python's end would be a segmentation fault."""
    if os.getpid() != pid:
        return  # a fork has none of the threads
    closed.set()
    for server in servers:
        server.close()


class _Asking:
    """Makes several requests at a time, in threads that end with close or with the program."""

    def __init__(self, servers: Servers, threads: int) -> None:
        self._servers, self._about = servers, servers.about
        self._jobs: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.stopped, self._pid = threading.Event(), os.getpid()
        self._threads = [threading.Thread(target=self._run, name="nwt", daemon=True) for _ in range(threads)]
        for thread in self._threads:
            thread.start()
        atexit.register(self.close)

    def ask(self, ticket: bytes) -> Callable[[], Any]:
        return self.call(lambda server, seconds: server.get(ticket, self._about, self, seconds))

    def call(self, what: Callable[[Server, float], Any]) -> Callable[[], Any]:
        future: concurrent.futures.Future[Any] = concurrent.futures.Future()
        self._jobs.put((future, what))
        return future.result

    def _run(self) -> None:
        while job := self._jobs.get():
            self._do(*job)
            del job  # the batch is the caller's alone

    def _do(self, future: concurrent.futures.Future[Any], what: Callable[[Server, float], Any]) -> None:
        try:
            future.set_result(self._servers.ask(what, self.stopped))
        except BaseException as error:
            future.set_exception(error)

    def close(self) -> None:
        atexit.unregister(self.close)
        if os.getpid() != self._pid:
            return  # a fork has none of the threads
        self.stopped.set()
        for call, asking in list(_live.items()):
            if asking is self:
                call.cancel()
        for _ in self._threads:
            self._jobs.put(None)
        end = time.monotonic() + 1  # later only if a server doesn't even take a request: that ends with the process
        for thread in self._threads:
            thread.join(max(0, end - time.monotonic()))
