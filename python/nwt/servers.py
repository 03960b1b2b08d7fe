"""Servers that are asked over Arrow Flight, and what they answer as NumPy arrays."""

import concurrent.futures
import ctypes
import json
import os
import queue
import threading
import time
import weakref

import numpy as np
import pyarrow.flight as flight

OPTIONS = [
    ("grpc.keepalive_time_ms", 10_000),  # a server that is stopped is noticed after 20 s
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.min_reconnect_backoff_ms", 5_000),  # how long a connection may take to be made
    ("grpc.max_reconnect_backoff_ms", 2_000),
    ("grpc.lb_policy_name", "round_robin"),  # of a name with several addresses
]


_live = weakref.WeakSet()  # clients and calls


def _keep():
    # Freeing them in a fork, where the threads of gRPC are missing, would end the process.
    for one in _live:
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(one))


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_keep)


class Error(RuntimeError):
    """What a server has answered instead of a batch, or that none answers."""


class _Memory:
    """A buffer that nobody else has: its array may be written to."""

    def __init__(self, buffer):
        self.buffer = buffer  # kept as long as the array is
        self.__array_interface__ = {"data": (buffer.address, False), "typestr": "|u1", "shape": (buffer.size,), "version": 3}


def dtype_of(name):
    """The dtype of an element type. NumPy has no bfloat16: its bits are uint16."""
    return np.dtype({"bfloat16": "uint16"}.get(name.lower(), name.lower()))


def arrays(record):
    """The columns of a record batch, by name, in place."""
    batch = {}
    for field, column in zip(record.schema, record.columns):
        shape = tuple(getattr(field.type, "shape", ()))
        name = (field.metadata or {}).get(b"nwt.type", b"int32")  # lengths have no type of nwt's
        batch[field.name] = np.ndarray((record.num_rows, *shape), dtype_of(name.decode()), np.asarray(_Memory(column.buffers()[-1])))
    return batch


def fits(one, other):
    """Raises an error unless two servers have the same batches."""
    for what, is_ in (("data", "dataset"), ("order", "order")):
        if one[what] != other[what]:
            raise Error(
                f"server {one['server']} has the {is_} {one[what]}, server {other['server']} has {other[what]}: "
                "all must serve the same, with the same options"
            )


def reason(error):
    """What the server said, without what Arrow and gRPC say around it."""
    text = str(error).split("gRPC client debug context")[0].split(". Client context")[0]
    return text.split("with message: ")[-1].strip(" .")


class Server:
    """One address."""

    def __init__(self, address, token, tls):
        self.address, self.under_way = address, 0
        self.until = 0.0  # it isn't asked before, since it didn't answer
        scheme, place = ("grpc+tls" if tls else "grpc+tcp"), address
        if address.startswith("unix:"):
            scheme, place = "grpc+unix", address[len("unix:") :]
        roots = None
        if isinstance(tls, str):
            with open(tls, "rb") as file:
                roots = file.read()
        self.client = flight.FlightClient(f"{scheme}://{place}", tls_root_certs=roots, generic_options=OPTIONS)
        _live.add(self.client)
        headers = [(b"authorization", b"Bearer " + token.encode())] if token else []
        self._options = flight.FlightCallOptions(headers=headers)

    def describe(self, rank):
        path = flight.FlightDescriptor.for_path(str(rank["rank"]), str(rank["world"]))
        return json.loads(self.client.get_flight_info(path, self._options).app_metadata)

    def get(self, ticket, about, begun):
        """A batch, how many follow, and the state after it. begun gets the call, so that it can be cancelled."""
        call = self.client.do_get(flight.Ticket(ticket), self._options)
        _live.add(call)
        begun(call)
        chunk = call.read_chunk()
        answer = json.loads(bytes(chunk.app_metadata))
        fits(answer, about)
        return arrays(chunk.data), answer["left"], json.dumps(answer["after"])


class Servers:
    """Servers of the same batches. Any number of threads may ask them."""

    def __init__(self, addresses, token, tls, patience, ended):
        self._servers = [Server(a, token, tls) for a in addresses]
        self._patience, self._ended = patience, ended  # ended says why asking again is in vain
        self._lock = threading.Lock()
        self.about = None  # what the first to answer has

    def describe(self, rank):
        asking = _Asking(self, 1)
        try:
            self.about = asking.call(lambda server, _: server.describe(rank)).result()
            return self.about
        finally:
            asking.close()

    def asking(self, _, ahead):
        return _Asking(self, ahead)

    def ask(self, what, stopped):
        """Calls what with one server after another until one answers, first those with least to do."""
        failing = None  # since when
        while True:
            server, wait = self._take()
            if stopped.wait(wait):
                raise Error("the epoch was given up")
            try:
                return what(server)
            except (flight.FlightUnavailableError, flight.FlightTimedOutError) as error:
                now = time.monotonic()
                failing = failing or now
                server.until = now + 0.05  # gRPC waits longer and longer until it connects again
                if why := self._ended():
                    raise Error(why) from error
                if now - failing > self._patience:
                    raise Error(f"no server has answered for {self._patience} s; {server.address}: {reason(error)}") from error
            except (flight.FlightError, OSError, ValueError, KeyError) as error:
                raise Error(f"{server.address}: {reason(error)}") from error
            finally:
                with self._lock:
                    server.under_way -= 1

    def _take(self):
        """A server, and how long to wait before it is asked."""
        with self._lock:
            now = time.monotonic()
            server = min(self._servers, key=lambda s: (max(now, s.until), s.under_way))
            server.under_way += 1
            return server, max(0, server.until - now)

    def close(self):
        for server in self._servers:
            server.client.close()


class _Asking:
    """Some requests at a time, each in a thread. The threads end with close, or when it is forgotten."""

    def __init__(self, servers, threads):
        self._work, self._about = _Work(servers), servers.about
        self._threads = [threading.Thread(target=self._work.run, name="nwt", daemon=True) for _ in range(threads)]
        for thread in self._threads:
            thread.start()
        self.close = weakref.finalize(self, self._work.stop, self._threads, os.getpid())

    def ask(self, ticket):
        about = self._about
        return self.call(lambda server, begun: server.get(ticket, about, begun)).result

    def call(self, what):
        future = concurrent.futures.Future()
        self._work.jobs.put((future, what))
        return future


class _Work:
    def __init__(self, servers):
        self.jobs = queue.SimpleQueue()
        self._servers = servers
        self._stopped = threading.Event()
        self._lock = threading.Lock()
        self._calls = weakref.WeakSet()  # guarded by _lock

    def run(self):
        while job := self.jobs.get():
            future, what = job
            try:
                future.set_result(self._servers.ask(lambda server: what(server, self._begun), self._stopped))
            except BaseException as error:
                future.set_exception(error)
            del job, future, what  # the batch is the caller's alone

    def _begun(self, call):
        with self._lock:
            self._calls.add(call)
        if self._stopped.is_set():
            call.cancel()

    def stop(self, threads, pid):
        if os.getpid() != pid:
            return  # a fork has none of the threads
        self._stopped.set()
        with self._lock:
            for call in self._calls:
                call.cancel()
        for _ in threads:
            self.jobs.put(None)
        end = time.monotonic() + 1  # later only if a server doesn't even take a request: that ends with the process
        for thread in threads:
            thread.join(max(0, end - time.monotonic()))
