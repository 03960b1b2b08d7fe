"""What the ways to a server promise. TestThePythonTransports, in module serve, starts the servers and runs this."""

import collections
import gc
import json
import os
import random
import resource
import signal
import socket
import struct
import sys
import tempfile
import threading
import time
import unittest

import numpy as np

from nwt._servers import Servers
from nwt._shared import Shared, _Memory
from nwt._wire import Error

GIVEN = json.loads(os.environ["NWT_TEST"])


def ticket(number, samples=0):
    return json.dumps({"epoch": 0, "samples": samples, "batch": number, "partial": True}).encode()


def ways(name, **kwargs):
    for address in GIVEN[name]:
        if address.startswith("shared:"):
            yield Shared(address[len("shared:") :], **kwargs)
        else:
            yield Servers([address], **kwargs)


def first(way):
    way.describe(0, 1)
    asking = way.asking(1)
    try:
        return asking.ask(ticket(0))()
    finally:
        asking.close()
        way.close()


class Both(unittest.TestCase):
    def test_a_process_may_have_more_than_1024_files_open(self):
        files = [os.open(os.devnull, os.O_RDONLY) for _ in range(1100)]
        try:
            for way in ways("plain"):
                first(way)
        finally:
            for fd in files:
                os.close(fd)

    def test_a_socket_may_have_any_path(self):
        for way in ways("path"):
            first(way)

    def test_both_ways_give_equal_batches(self):
        (one, *rest), (other, *same) = (first(way) for way in ways("plain"))
        self.assertEqual(list(one), list(other))
        for name in one:
            np.testing.assert_array_equal(one[name], other[name])
        self.assertEqual(rest, same)
        self.assertEqual(rest[0], 10)

    def test_a_client_has_a_bound_of_its_own(self):
        for name in ("hanging", "hanging sized"):
            for way in ways(name, patience=0.5):
                with self.assertRaisesRegex(Error, "no server has answered for 0.5 s"):
                    first(way)

    def test_a_bad_sample_is_left_out_and_told(self):
        for way in ways("bad"):
            way.describe(0, 1)
            asking = way.asking(1)
            batch, left, _, bad = asking.ask(ticket(1))()
            self.assertEqual((len(batch["where"]), left, batch["where"][:, 0].tolist()), (9, 9, [10, 11, 12, 14, 15, 16, 17, 18, 19]))
            self.assertEqual([(b["index"], b["position"]) for b in bad], [(13, 13)])
            self.assertIn("the disk is on fire", bad[0]["error"])
            del batch
            asking.close()
            way.close()

    def test_what_is_wrong_has_a_code(self):
        for way in ways("plain"):
            way.describe(0, 1)
            asking = way.asking(1)
            with self.assertRaises(Error) as told:
                asking.ask(ticket(0, samples=1000))()
            self.assertEqual((told.exception.code, str(told.exception)), ("state-beyond", "state: its samples are more than an epoch has"))
            asking.close()
            way.close()

    def test_the_samples_of_a_batch_are_told_without_loading_one(self):
        for way in ways("hanging"):
            way.describe(1, 2)
            self.assertEqual(json.loads(way.indices(b'{"rank": 1, "world": 2, "batch": 0}')), list(range(10, 20)))
            with self.assertRaisesRegex(Error, "1: the batch must be 0 … 0"):
                way.indices(b'{"rank": 1, "world": 2, "batch": 1}')
            way.close()

    def test_a_batch_of_bad_samples_alone_is_empty_and_its_long_errors_are_cut(self):
        for way in ways("long"):
            batch, _, _, bad = first(way)
            self.assertEqual((set(map(len, batch.values())), len(bad)), ({0}, 10))
            self.assertRegex(bad[0]["error"], "世…$")
            self.assertLess(len(bad[0]["error"]), 4200)

    def test_a_thousand_fields_are_no_limit(self):
        for way in ways("wide"):
            self.assertEqual(len(first(way)[0]), 1000)

    def test_more_than_2_GiB_are_told_at_once_over_gRPC(self):
        over, in_memory = ways("huge")
        with self.assertRaisesRegex(Error, "takes 2684354560 bytes, and gRPC at most .*smaller, or take them in shared memory"):
            over.describe(0, 1)
        self.assertEqual(in_memory.describe(0, 1)["bytes"], 2684354560)
        over.close()

    def test_what_a_server_tells_of_its_dataset(self):
        for way in (Servers(GIVEN["about"][:1], token="secret"), Shared(path("about"))):
            about = way.describe(0, 1)
            self.assertEqual(about["about"], {"classes": ["cat", "dog"]})
            self.assertEqual((about["samples"], about["batches"], about["batch"], about["sized"]), (101, 11, 10, False))
            self.assertEqual(way.describe(1, 2)["batches"], 6)
            way.close()
        servers = Servers(GIVEN["about"][:1], token="guess")
        with self.assertRaisesRegex(Error, "the token is missing or wrong"):
            servers.describe(0, 1)
        servers.close()

    def test_what_cannot_be_used_is_told(self):
        for address in ("host1", "host1:", "[::1]", "unix:/x", "grpc://host1:1", "::1:7474"):
            with self.assertRaisesRegex(ValueError, "has no port|must be host:port|must be in brackets"):
                Servers([address])

    def test_a_request_that_fails_says_why_and_patience_is_kept(self):
        for way in ways("failing", patience=0.5):
            began = time.monotonic()
            with self.assertRaisesRegex(Error, "no server has answered for 0.5 s; .*the transform is broken"):
                first(way)
            self.assertLess(time.monotonic() - began, 20)


class Flight(unittest.TestCase):
    def test_servers_that_pad_differently_are_not_equal(self):
        servers = Servers([GIVEN["plain"][0], GIVEN["sized"][0]])
        servers.describe(0, 1)
        asking = servers.asking(2)
        with self.assertRaisesRegex(Error, "aren't the same on all servers"):
            for take in [asking.ask(ticket(0)) for _ in range(20)]:
                take()
        asking.close()
        servers.close()

    def test_one_that_does_not_answer_is_not_asked_before_it_does(self):
        silent = socket.create_server(("127.0.0.1", 0))
        servers = Servers([f"127.0.0.1:{silent.getsockname()[1]}", GIVEN["plain"][0]], patience=20)
        servers._servers[0].failed, servers._servers[0].pause = time.monotonic(), 1.0
        servers.describe(0, 1)
        asking = servers.asking(4)
        for take in [asking.ask(ticket(n)) for n in range(10)]:
            take()
        self.assertEqual([s.pause > 0 for s in servers._servers], [True, False])
        asking.close()
        servers.close()
        silent.close()


def path(name):
    return GIVEN[name][1][len("shared:") :]


class FakeServer:
    """Says what a test wants to who connects."""

    def __init__(self, says):
        self._folder = tempfile.TemporaryDirectory()
        self.path = os.path.join(self._folder.name, "socket")
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.bind(self.path)
        self._socket.listen()
        self._says = says
        self._lines = []
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self):
        try:
            while True:
                line, _ = self._socket.accept()
                self._lines.append(line)
                self._says(line)
        except OSError:
            pass

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for line in [self._socket, *self._lines]:
            line.close()
        self._folder.cleanup()


def _target(fd):
    try:
        return os.readlink(f"/proc/self/fd/{fd}")
    except OSError:
        return ""


def message(kind, number, body):
    return struct.pack("<III", len(body), kind, number) + body


ABOUT = json.dumps(
    {
        "server": "fake",
        "data": "x",
        "order": "y",
        "samples": 1,
        "batches": 1,
        "batch": 1,
        "fields": [{"Name": "x", "Type": "Uint8", "Shape": None}],
    }
).encode()
BEGIN = message(4, 2**31, ABOUT) + message(4, 1, ABOUT)


class SharedMemory(unittest.TestCase):
    def test_one_that_says_nothing_is_given_up(self):
        for begin in (b"", BEGIN):
            with FakeServer(lambda line, begin=begin: line.sendall(begin)) as server, self.assertRaisesRegex(Error, "no server has answered for 0.4 s"):
                first(Shared(server.path, patience=0.4))

    def test_after_what_cannot_be_taken_a_loop_goes_on_anew(self):
        way = Shared(path("plain"), patience=10)
        way.describe(0, 1)
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
        try:
            with self.assertRaisesRegex(Error, "this process may not open more files"):
                while True:  # it comes as bytes while others hold the slots
                    way.asking(1).ask(ticket(0))()
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        self.assertEqual(len(way.asking(1).ask(ticket(0))()[0]["where"]), 10)
        way.close()

    def test_the_memory_of_a_server_that_is_gone_is_freed(self):
        gc.disable()
        self.addCleanup(gc.enable)
        way = Shared(path("plain"))
        for _ in range(3):
            way.describe(0, 1)
            way.asking(1).ask(ticket(0))()
            way._line._link.end()
        way.describe(0, 1)
        with open("/proc/self/maps") as maps:
            self.assertEqual([line for line in maps if "memfd:nwt" in line], [])
        way.close()

    def test_it_goes_on_with_one_that_comes_after_it(self):
        with FakeServer(lambda line: line.sendall(BEGIN)) as server:
            way = Shared(server.path, patience=30)
            way.describe(0, 1)
            take = way.asking(1).ask(ticket(0))
            server._lines[0].shutdown(socket.SHUT_RDWR)
            way._where, way.about = path("plain"), {}
            self.assertEqual(len(take()[0]["where"]), 10)
            way.close()

    def test_close_ends_a_thread_that_waits(self):
        for begin in (b"", BEGIN):
            with FakeServer(lambda line, begin=begin: line.sendall(begin)) as server:
                way, got = Shared(server.path, patience=40), []

                def take(way=way, got=got):
                    try:
                        first(way)
                    except Error as error:
                        got.append(str(error))

                thread = threading.Thread(target=take)
                thread.start()
                time.sleep(0.2)  # by then it waits
                began = time.monotonic()
                way.close()
                thread.join()
                self.assertLess(time.monotonic() - began, 20)
                self.assertEqual(got, ["it is closed"])

    def test_loops_that_end_early_leave_no_descriptor_and_no_memory(self):
        way = Shared(path("plain"))
        way.describe(0, 1)
        for _ in range(100):
            asking = way.asking(4)
            takes = [asking.ask(ticket(n)) for n in range(4)]
            takes[0]()
            asking.close()
        files = len(way._line._memory)
        self.assertLessEqual(files, 16)
        way.close()
        del way, asking, takes
        gc.collect()
        self.assertEqual([name for name in map(_target, os.listdir("/proc/self/fd")) if "memfd:nwt" in name], [])
        with open("/proc/self/maps") as maps:
            self.assertNotIn("memfd:nwt", maps.read())

    def test_an_interrupt_while_memory_is_freed_isnt_lost(self):
        lost, free = [], collections.deque()
        gc.collect()  # weak sets of others lose interrupts
        gc.disable()
        self.addCleanup(gc.enable)
        self.addCleanup(setattr, sys, "unraisablehook", sys.unraisablehook)
        sys.unraisablehook = lost.append
        self.addCleanup(signal.signal, signal.SIGALRM, signal.signal(signal.SIGALRM, signal.default_int_handler))
        for _ in range(2000):
            try:
                signal.setitimer(signal.ITIMER_REAL, 1e-4)
                for _ in range(10**5):
                    whole = np.empty(1)
                    given = _Memory(whole, free.append)
                    del whole, given
            except KeyboardInterrupt:
                free.clear()
        self.assertEqual(lost, [])

    def test_the_socket_of_another_user_is_refused(self):
        if "another user's" not in GIVEN:
            self.skipTest("only root can be another user")
        with self.assertRaisesRegex(Error, "is user 1001's, who is neither this user nor root"):
            Shared(GIVEN["another user's"]).describe(0, 1)

    def test_whatever_it_says_the_client_ends_with_an_error(self):
        draw = random.Random(1)
        pieces = [
            b"{}",
            b"[]",
            b"1 2",
            b"\n",
            b"-1 0",
            b'{"samples": -1, "shapes": [[]], "at": [-9]}',
            b'{"error": "no", "temporary": false}',
            b"\xff",
            b"null",
        ]
        for _ in range(300):
            said = BEGIN if draw.random() < 0.8 else b""
            for _ in range(draw.randrange(4)):
                body = b"".join(draw.choices(pieces, k=draw.randrange(6)))
                said += draw.choice([message(draw.randrange(12), draw.randrange(3), body), draw.randbytes(20), struct.pack("<III", 1 << 31, 6, 1)])
            with FakeServer(lambda line, said=said: (line.sendall(said), line.shutdown(socket.SHUT_WR))) as server, self.assertRaises(Error):
                first(Shared(server.path, patience=0.05))

    def test_no_file_is_left_open(self):
        for way in ways("plain"):
            first(way)
        before = len(os.listdir("/proc/self/fd"))
        for _ in range(20):
            first(Shared(path("plain")))
        self.assertLessEqual(len(os.listdir("/proc/self/fd")), before + 1)

    def test_a_process_may_have_many_files_open(self):
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(2048, hard), hard))
        files = [os.dup(0) for _ in range(1100)]
        try:
            self.assertEqual(len(first(Shared(path("plain")))[0]["where"]), 10)
        finally:
            for file in files:
                os.close(file)
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))

    def test_each_memory_is_told_once_and_undone(self):
        told, undone = [], []
        way = Shared(path("plain"), mapped=lambda whole: told.append(whole.nbytes) or (lambda: undone.append(1)))
        way.describe(0, 1)
        asking = way.asking(2)
        for _ in range(50):
            asking.ask(ticket(0))()
        self.assertLess(len(told), 5)
        way.close()
        self.assertEqual(len(undone), len(told))

    def test_a_caller_that_keeps_batches_gets_copies(self):
        way = Shared(path("plain"), patience=10)
        way.describe(0, 1)
        asking = way.asking(1)
        kept = [asking.ask(ticket(n))()[0]["where"] for n in range(11)]
        self.assertEqual([len(k) for k in kept], [10] * 10 + [1])
        self.assertEqual([int(k[0, 0]) for k in kept], list(range(0, 101, 10)))
        way.close()


if __name__ == "__main__":
    unittest.main()
