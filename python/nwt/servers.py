"""Servers that are asked over Arrow Flight, and what they answer as NumPy arrays."""

import ctypes
import json
import os
import threading
import time
import weakref

import numpy as np
import pyarrow.flight as flight

PING_MS = 10_000  # a server that is stopped is noticed after two of them

OPTIONS = [
    ("grpc.keepalive_time_ms", PING_MS),
    ("grpc.keepalive_timeout_ms", PING_MS),
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.min_reconnect_backoff_ms", 5_000),  # how long a connection may take to be made
    ("grpc.max_reconnect_backoff_ms", 2_000),
    ("grpc.http2.lookahead_bytes", 16 << 20),
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
    """Memory of Arrow's, as NumPy takes it. Nobody else has it, so it may be written to."""

    def __init__(self, buffer, dtype, shape):
        self.buffer = buffer  # kept as long as the array is
        self.__array_interface__ = {
            "data": (buffer.address, False),
            "typestr": dtype.str,
            "shape": shape,
            "version": 3,
        }


def dtype_of(name):
    """The dtype of an element type of nwt's. NumPy has no bfloat16: its bits are uint16."""
    return np.dtype({"bfloat16": "uint16"}.get(name.lower(), name.lower()))


def arrays(record):
    """The columns of a record batch, by name, in place."""
    batch = {}
    for field, column in zip(record.schema, record.columns):
        shape = tuple(getattr(field.type, "shape", ()))
        name = (field.metadata or {}).get(b"nwt.type", b"int32")  # lengths have no type of nwt's
        batch[field.name] = np.asarray(
            _Memory(column.buffers()[-1], dtype_of(name.decode()), (record.num_rows, *shape))
        )
    return batch


def reason(error):
    """What the server said, without what Arrow and gRPC say around it."""
    text = str(error).split("gRPC client debug context")[0].split(". Client context")[0]
    return text.split("with message: ")[-1].strip(" .")


class Server:
    """One address."""

    def __init__(self, address, token, tls):
        self.address = address
        self.under_way = 0
        self.failures = 0  # in a row
        self.until = 0.0  # it isn't asked before, since it didn't answer
        scheme, place = ("grpc+tls" if tls else "grpc+tcp"), address
        if address.startswith("unix:"):
            scheme, place = "grpc+unix", address[len("unix:") :]
        roots = None
        if isinstance(tls, str):
            with open(tls, "rb") as file:
                roots = file.read()
        self._client = flight.FlightClient(f"{scheme}://{place}", tls_root_certs=roots, generic_options=OPTIONS)
        _live.add(self._client)
        headers = [(b"authorization", b"Bearer " + token.encode())] if token else []
        self._options = flight.FlightCallOptions(headers=headers)

    def describe(self, rank, world):
        path = flight.FlightDescriptor.for_path(str(rank), str(world))
        return json.loads(self._client.get_flight_info(path, self._options).app_metadata)

    def get(self, ticket, begun):
        """A batch, with what the server tells of it. begun gets the call, so that it can be cancelled."""
        call = self._client.do_get(flight.Ticket(json.dumps(ticket)), self._options)
        _live.add(call)
        begun(call)
        chunk = call.read_chunk()
        return arrays(chunk.data), json.loads(bytes(chunk.app_metadata))

    def close(self):
        self._client.close()


class Servers:
    """Servers of the same batches. Any number of threads may ask them."""

    def __init__(self, servers, patience, ended):
        self._servers = servers
        self._patience = patience
        self._ended = ended  # why asking again is in vain, or None
        self._lock = threading.Lock()

    def ask(self, what, stopped):
        """Calls what with one server after another until one answers.

        Among those that answered last time it takes the one with the fewest requests under way.
        """
        failing = None  # since when
        while True:
            server, wait = self._take()
            if stopped.wait(wait):
                raise Error("the epoch was given up")
            try:
                answer = what(server)
                server.failures = 0
                return answer
            except (flight.FlightUnavailableError, flight.FlightTimedOutError) as error:
                now = time.monotonic()
                failing = failing or now
                server.failures += 1
                server.until = now + min(2, 0.01 * 2 ** min(server.failures, 10))
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
            server.close()
